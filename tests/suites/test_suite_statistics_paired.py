"""Paired comparisons, effect sizes and power: exact tests, score intervals, dependent items, simulated power."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar

from results_io import UserError
from suites.statistics import effect_size, multiplicity, paired, power


def test_exact_p_equals_statsmodels_and_is_symmetric() -> None:
    for b in range(0, 12):
        for c in range(0, 12):
            if b + c:
                expected = mcnemar([[0, b], [c, 0]], exact=True).pvalue
                assert paired.mcnemar(b, c).p_value == pytest.approx(expected, abs=1e-12)
            assert paired.mcnemar(b, c).p_value == paired.mcnemar(c, b).p_value
    with pytest.raises(UserError, match="-1 and 2"):
        paired.mcnemar(-1, 2)


def test_no_discordance_is_where_statsmodels_says_zero() -> None:
    with np.errstate(divide="ignore"):
        assert mcnemar([[5, 0], [0, 5]], exact=False).pvalue == 0.0
    assert paired.mcnemar(0, 0).p_value == 1.0


@pytest.mark.parametrize(("b", "c"), [(1, 8), (5, 15), (3, 3), (0, 4)])
def test_mid_p_is_exact_p_less_one_probability(b: int, c: int) -> None:
    point = stats.binom.pmf(min(b, c), b + c, 0.5)
    expected = 1.0 if b == c else paired.mcnemar(b, c).p_value - point
    assert paired.mcnemar(b, c).detail["mid_p"] == pytest.approx(expected, abs=1e-12)


def test_cells_drop_what_one_side_lacks() -> None:
    a = {"1": True, "2": True, "3": False, "4": False, "5": True, "6": None}
    b = {"1": True, "2": False, "3": True, "4": False, "6": True, "7": True}
    table = paired.cells(a, b)
    assert table == paired.Cells(both=1, only_a=1, only_b=1, neither=1, dropped=3)
    assert paired.difference(table).excluded == {"not judged in both runs": 3}
    assert paired.difference(paired.cells({"1": True}, {"2": True})).status == "undefined"


def test_the_difference_is_b_minus_a() -> None:
    found = paired.difference(paired.Cells(50, 20, 10, 20))
    assert found.value == pytest.approx(-0.10)
    mirrored = paired.difference(paired.Cells(50, 10, 20, 20))
    assert (mirrored.ci.low, mirrored.ci.high) == pytest.approx((-found.ci.high, -found.ci.low), abs=1e-9)


@pytest.mark.parametrize(("table", "delta"), [((30, 9, 3, 8), -0.2), ((30, 9, 3, 8), 0.1), ((10, 2, 7, 1), -0.05)])
def test_score_statistic_equals_a_numerical_maximum(table: tuple[int, ...], delta: float) -> None:
    cells = paired.Cells(*table)
    b, c, rest = cells.only_a, cells.only_b, cells.both + cells.neither

    def loss(q: float) -> float:
        return -(b * math.log(q) + c * math.log(q + delta) + rest * math.log(1 - 2 * q - delta))

    q = optimize.minimize_scalar(
        loss, bounds=(max(0, -delta) + 1e-9, (1 - delta) / 2 - 1e-9), method="bounded", options={"xatol": 1e-10}
    ).x
    expected = (c - b - cells.n * delta) / math.sqrt(cells.n * (2 * q + delta - delta**2))
    assert paired.score_z(cells, delta) == pytest.approx(expected, abs=1e-5)


def test_score_interval_without_discordance_is_z2_over_n_plus_z2() -> None:
    z2 = stats.norm.ppf(0.975) ** 2
    found = paired.score_interval(paired.Cells(60, 0, 0, 40))
    assert (found.low, found.high) == pytest.approx((-z2 / (100 + z2), z2 / (100 + z2)), abs=1e-9)
    assert paired.score_interval(paired.Cells(0, 10, 0, 0)).low == -1.0
    assert paired.score_interval(paired.Cells(0, 0, 10, 0)).high == 1.0


def test_score_interval_covers() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        counts = rng.multinomial(80, [0.6, 0.12, 0.06, 0.22])
        found = paired.score_interval(paired.Cells(*map(int, counts)))
        hits += found.low <= -0.06 <= found.high
    assert hits / 1000 == pytest.approx(0.95, abs=0.02)


def test_noninferiority_p_mirrors_the_interval() -> None:
    for counts in ((700, 60, 40, 200), (300, 20, 18, 70), (400, 0, 0, 100)):
        cells = paired.Cells(*counts)
        low = paired.score_interval(cells, 0.90).low
        assert paired.noninferiority_p(cells, -low) == pytest.approx(0.05, abs=1e-7)
    with pytest.raises(UserError, match="margin is 0"):
        paired.noninferiority_p(cells, 0)


def test_independent_items_have_design_effect_one() -> None:
    assert paired.design_effect([0, 1, -1, 0], list("abcd")) == 1.0


def test_items_that_repeat_count_once() -> None:
    changes, labels = np.repeat([-1, 1, 0, 0, 0], 40), [str(i) for i in range(200)]
    assert paired.design_effect(np.repeat(changes, 4).tolist(), [x for x in labels for _ in range(4)]) == 4.0
    assert paired.design_effect([0] * 12, [str(i // 3) for i in range(12)]) == 3.0  # nothing is known: the worst
    table = paired.Cells(80, 160, 160, 400).worth(4)
    assert paired.score_interval(table) == paired.score_interval(paired.Cells(20, 40, 40, 100))


def test_cluster_p_is_mcnemar_for_single_items() -> None:
    changes = [-1] * 9 + [1] * 2 + [0] * 30
    assert paired.cluster_p(changes, [str(i) for i in range(41)]) == pytest.approx(paired.mcnemar(9, 2).p_value)
    assert paired.cluster_p([-1] * 9, ["one"] * 9) == 1.0  # one cluster can never tell
    assert paired.cluster_p([0, 0], ["a", "b"]) == 1.0


def test_hedges_only_for_small_arms_and_sign_is_b_minus_a() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0, 1, 60), rng.normal(1, 1, 60)
    large = effect_size.cohen_d(a, b)
    assert (large.unit, large.value > 0) == ("Cohen's d", True)
    pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert large.value == pytest.approx((b.mean() - a.mean()) / pooled)
    assert effect_size.cohen_d(b, a).value == pytest.approx(-large.value)
    assert effect_size.cohen_d(a[:19], b).unit == "Hedges' g"
    assert effect_size.cohen_d([1.0], b).status == "insufficient_data"


def test_cohen_h_takes_shares() -> None:
    found = effect_size.cohen_h(0.5, 0.5, 100, 100)
    assert (found.value, found.ci.high) == (0.0, pytest.approx(1.959964 * math.sqrt(0.02)))
    assert effect_size.cohen_h(0.85, 0.80, 9, 9).value == pytest.approx(-0.131896, abs=5e-7)
    with pytest.raises(UserError, match="share B is 80"):
        effect_size.cohen_h(0.8, 80, 9, 9)


def test_widths_are_the_smallest() -> None:
    for width in (0.10, 0.05, 0.3):
        n = int(power.items_for_width(width).value)
        wide, enough = (paired_width(size) for size in (n - 1, n))
        assert wide > width >= enough - 1e-12
    assert power.items_for_width(0.162, share=1.0).value <= 20 < power.items_for_width(0.10, share=1.0).value


def paired_width(n: int) -> float:
    z2 = stats.norm.ppf(0.975) ** 2
    return 2 * math.sqrt(z2) / (1 + z2 / n) * math.sqrt(0.25 / n + z2 / (4 * n * n))


def test_minimum_detectable_effect_inverts_the_items() -> None:
    for delta, psi in ((0.05, 0.1), (0.05, 0.3), (0.02, 0.04), (0.1, 0.1)):
        n = int(power.items_for_paired(delta, psi).value)
        assert (
            power.minimum_detectable_effect(n, psi).value <= delta < power.minimum_detectable_effect(n - 1, psi).value
        )
    assert power.minimum_detectable_effect(400, 0.0).value == pytest.approx(0.0195, abs=5e-5)
    assert power.minimum_detectable_effect(3, 0.2).status == "insufficient_data"
    assert power.items_for_paired(0.2, 0.1).status == "undefined"
    with pytest.raises(UserError, match="alpha is 5"):
        power.minimum_detectable_effect(400, 0.2, alpha=5)


def test_mcnemar_has_the_planned_power() -> None:
    rng, found = np.random.default_rng(0), 0
    n, psi, delta = 626, 0.2, 0.05
    counts = rng.multinomial(n, [(psi - delta) / 2, (psi + delta) / 2, 1 - psi], size=1000)
    found = np.mean([paired.mcnemar(int(b), int(c)).p_value < 0.05 for b, c, _ in counts])
    assert found == pytest.approx(0.80, abs=0.04)  # the exact test is a little below its approximation


def test_a_missing_p_is_not_in_the_family() -> None:
    found = multiplicity.adjust({"a": 0.01, "b": math.nan, "c": 0.04, "d": None}, "f")
    assert (found.m, found.excluded) == (2, ("b", "d"))
    assert dict(found.adjusted) == {"a": pytest.approx(0.02), "c": pytest.approx(0.04)}
    empty = multiplicity.adjust({"a": None}, "f")
    assert (empty.m, empty.rejected, empty.family) == (0, (), "f")
    assert multiplicity.adjust({}, "f").m == 0
