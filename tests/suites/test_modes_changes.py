"""Modes A9 to A13: what changes when the prompt does."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import results_io
from suites import modes
from suites.item import Item, ItemVariant
from suites.modes import a11_template, a12_needle
from suites.outcome import Case
from tests.suites.judging import ERROR, judge, pair, said, suite, summary


def pairs(right_wrong, wrong_right, both, neither, kind="swap"):
    cells = (
        [(True, False)] * right_wrong
        + [(False, True)] * wrong_right
        + [(True, True)] * both
        + [(False, False)] * neither
    )
    return [pair(clean, changed, number, kind) for number, (clean, changed) in enumerate(cells)]


@pytest.mark.parametrize("mode", ["A9", "A10", "A11"])
def test_flip_rate_and_mcnemar(mode):
    found = summary(mode, pairs(9, 2, 31, 8))  # O46: 50 items, 40 right when clean
    assert found["failure_rate"].value == pytest.approx(0.225) and found["failure_rate"].n == 40
    assert found["failure_rate"].excluded == {"wrong_when_clean": 10}
    assert found["mcnemar"].p_value == pytest.approx(0.065430, abs=5e-7)
    assert (found["accuracy_clean"].value, found["accuracy_changed"].value) == (0.8, 33 / 50)


def test_flips_need_verdicts_on_both_sides():
    clean, broken = said("a", True), Case(Item("x", ""), (ERROR,))
    cases = [
        clean,
        said("b", True, broken),
        said("b", False, clean),
        Case(Item("x", ""), (ERROR,), clean),
        said("b", None, clean),
    ]
    kinds = [seen.subtype for _, seen in judge("A9", cases)]
    assert kinds == ["not_applicable", "error", "", "error", "not_applicable"]
    assert summary("A9", cases)["failure_rate"].value == 1.0


def test_flips_by_kind():
    found = summary("A9", pairs(2, 0, 8, 0) + pairs(6, 0, 4, 0, "drop"))
    assert (found["flip_rate_swap"].value, found["flip_rate_drop"].value) == (0.2, 0.6)
    note = "variants of one original count as independent in the interval"
    assert note in found["failure_rate"].assumptions
    assert note not in summary("A9", pairs(2, 0, 8, 0))["failure_rate"].assumptions


def test_interval_over_clusters_is_wider_where_variants_agree():
    """Six equal variants of each of 30 originals: 30 independent verdicts, not 180."""
    cases = [pair(True, number % 3 > 0, number, f"k{k}") for number in range(30) for k in range(6)]
    found = summary("A10", cases)
    wilson, clustered = found["failure_rate"], found["failure_rate_over_clusters"]
    assert wilson.value == clustered.value == pytest.approx(1 / 3)
    alone = (1 / 3 * 2 / 3 / 30) ** 0.5 * 2 * 1.96
    assert clustered.ci.high - clustered.ci.low == pytest.approx(alone, rel=0.1)
    assert wilson.ci.high - wilson.ci.low == pytest.approx(alone / 6**0.5, rel=0.1)
    assert "failure_rate_over_clusters" not in summary("A10", pairs(9, 2, 31, 8))


def test_no_discordance_is_p_one():
    assert summary("A10", pairs(0, 0, 10, 2))["mcnemar"].p_value == 1.0


COCHRAN = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=bool)


def templated(table):
    cases = []
    for number, row in enumerate(table):
        parent = said("a", bool(row[0]), id=f"{number}-0", template="t0")
        cases.append(parent)
        for place, right in enumerate(row[1:], 1):
            variant = ItemVariant("template", f"{number}-0")
            cases.append(said("b", bool(right), parent, id=f"{number}-{place}", template=f"t{place}", variant=variant))
    return cases


def test_a11_cochran_q():
    found = summary("A11", templated(COCHRAN))  # O47
    q = found["cochran_q"]
    assert (q.value, q.detail["df"]) == (pytest.approx(6.0), 2) and q.p_value == pytest.approx(0.049787, abs=5e-7)
    assert found["spread"].value == pytest.approx(5 / 6 - 1 / 6)
    assert found["worst_template"].value == pytest.approx(1 / 6) and found["spread"].detail == {
        "worst": "t2",
        "best": "t0",
    }
    assert found["failure_rate"].value == pytest.approx((2 + 4) / 10)  # 5 contents right in t0, two variants each


def test_a11_agrees_with_the_formula_and_ignores_order():
    rng = np.random.default_rng(3)
    right = rng.random((25, 4)) < 0.6
    rows, columns = right.sum(1), right.sum(0)
    expected = 3 * (4 * (columns**2).sum() - columns.sum() ** 2) / (4 * rows.sum() - (rows**2).sum())
    cases = templated(right)
    q = summary("A11", cases)["cochran_q"]
    assert q.value == pytest.approx(expected) and q.p_value == pytest.approx(stats.chi2.sf(expected, 3))
    shuffled = [cases[k] for k in rng.permutation(len(cases))]
    assert summary("A11", shuffled)["cochran_q"] == q


def test_a11_limits():
    assert summary("A11", templated(COCHRAN[:, :2]))["spread"].status == "insufficient_data"
    same = a11_template.cochran_q(np.ones((5, 3), dtype=bool))
    assert (same.value, same.p_value) == (0.0, 1.0)
    incomplete = [case for case in templated(COCHRAN) if case.item.id != "0-2"]
    assert summary("A11", incomplete)["spread"].excluded == {"incomplete": 1}
    items = [Item("a", "", answers=("red",)), Item("b", "", answers=("blue",), variant=ItemVariant("template", "a"))]
    with pytest.raises(results_io.UserError, match="other answers than a"):
        modes.check(suite("A11", items))


def needles(failed_of):
    """Cases by (length, depth): (failed, all)."""
    return [
        said("x", place >= failed, factors={"length": length, "depth": depth}, id=f"{length}{depth}{place}")
        for (length, depth), (failed, n) in failed_of.items()
        for place in range(n)
    ]


def test_a12_grid():
    cases = needles({("2", "0"): (0, 10), ("2", "1"): (5, 10), ("10", "0"): (3, 10), ("10", "1"): (4, 9)})
    found = summary("A12", cases)
    assert found["failure_rate"].value == pytest.approx(12 / 39)
    assert found["failure_rate[length=2,depth=1]"].value == 0.5
    small = found["failure_rate[length=10,depth=1]"]
    assert (small.status, small.value) == ("insufficient_data", None)
    assert found["failure_rate[length=10]"].value == pytest.approx(7 / 19)  # its items count in the row
    names = [name for name in found if name.startswith("failure_rate[length") and "depth" not in name]
    assert names == ["failure_rate[length=2]", "failure_rate[length=10]"]  # numbers in order, not text


def test_a12_trend():
    cells = {("1", "0"): (2, 20), ("1", "0.5"): (6, 20), ("1", "1"): (12, 20)}
    trend = summary("A12", needles(cells))["depth_trend"]
    depth, failed = np.repeat([0, 0.5, 1], 20), np.concatenate([np.arange(20) < k for k in (2, 6, 12)])
    r = stats.pearsonr(depth, failed).statistic
    assert trend.value == pytest.approx(0.5)  # (12 - 2) / 20 over one unit of depth
    assert trend.detail["z"] ** 2 == pytest.approx((len(depth) - 1) * r**2)  # Mantel's M2 = (n - 1) r^2
    assert trend.p_value == pytest.approx(stats.chi2.sf((len(depth) - 1) * r**2, 1))


def test_a12_trend_is_blind_to_the_middle_but_says_so():
    cells = {("1", "0"): (1, 20), ("1", "0.5"): (14, 20), ("1", "1"): (1, 20)}
    trend = summary("A12", needles(cells))["depth_trend"]
    assert trend.value == pytest.approx(0) and trend.p_value == pytest.approx(1.0)
    assert trend.detail["p_any_difference"] < 1e-4


def test_a12_limits():
    assert a12_needle.depth_trend([]).status == "insufficient_data"
    assert summary("A12", needles({("1", "0"): (0, 5), ("1", "1"): (0, 5)}))["depth_trend"].status == "undefined"
    cut = Case(Item("x", "", factors={"length": "1", "depth": "0"}), (ERROR,))
    found = summary("A12", [*needles({("1", "0"): (1, 10)}), cut])
    assert found["failure_rate"].value == 0.1 and found["failure_rate"].excluded == {"error": 1}
    with pytest.raises(results_io.UserError, match="lacks the factors depth"):
        modes.check(suite("A12", [Item("i", "", factors={"length": "1"})]))


def captured(text, correct=None):
    return said(text, correct, answers=("red",), distractors=("blue", "dark red"))


def test_a13_capture():
    cases = [captured("red", True)] * 12 + [captured("blue", False)] * 5 + [captured("green", False)] * 3  # O49
    found = summary("A13", cases)
    assert (found["failure_rate"].value, found["share_of_wrong"].value, found["accuracy"].value) == (0.25, 0.625, 0.6)
    assert summary("A13", cases[:19])["failure_rate"].status == "insufficient_data"


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        (" Blue.", True),
        ("red, not blue", False),
        ("blue, not red", True),
        ("dark red", True),
        ("bluebell", False),
        ("", False),
    ],
)
def test_a13_what_is_named_first(text, failed):
    assert judge("A13", [captured(text)])[0][1].failed is failed


def test_a13_own_scorer_and_check():
    last = {"scorer": {"kind": "regex", "pattern": r"is (\w+)"}}
    assert judge("A13", [captured("it is red, no, it is blue")], last)[0][1].failed is True
    same = Item("i", "", answers=("Red",), distractors=("red ",))
    with pytest.raises(results_io.UserError, match="is an answer too"):
        modes.check(suite("A13", [same]))
