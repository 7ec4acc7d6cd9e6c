"""Verdicts in both orders, the kappa gate and refusals: hand-computed and published numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from results_io import UserError
from suites.statistics import judging, proportions
from suites.statistics.judging import PairVerdict

SHORT = {"A": "A", "B": "B", "T": "tie", "-": None}
FLEISS = (  # 10 items, 14 raters, 5 labels
    (0, 0, 0, 0, 14), (0, 2, 6, 4, 2), (0, 0, 3, 5, 6), (0, 3, 9, 2, 0), (2, 2, 8, 1, 1),
    (7, 7, 0, 0, 0), (3, 2, 6, 3, 0), (2, 5, 3, 2, 2), (6, 5, 2, 1, 0), (0, 2, 2, 3, 7),
)  # fmt: skip


def verdicts(original, swapped):
    return [PairVerdict(SHORT[a], SHORT[b]) for a, b in zip(original, swapped, strict=True)]


def of_table(yes_yes, yes_no, no_yes, no_no):
    return judging.agreement_of_table([[yes_yes, yes_no], [no_yes, no_no]], ("yes", "no"))


def test_ten_pairs_in_both_orders():
    found = judging.pairwise(verdicts("AAAABBBTAA", "AAABBBBTBB"))
    assert found.counts == {"A": 3, "B": 3, "tie": 4, "invalid": 0}
    assert found.flip_rate.value == 0.3
    assert found.win_rate.value == 0.5
    assert (found.decided.value, found.decided.n, found.decided.excluded) == (0.5, 6, {"tie": 4})
    assert (found.decided.ci.low, found.decided.ci.high) == pytest.approx((0.187616, 0.812384), abs=1e-6)
    assert (found.position.value, found.position.n) == (1.0, 3)  # all three flips favour what is shown first
    assert found.position.p_value == pytest.approx(2 * 0.5**3)
    assert (found.position.detail["verdicts_for_first"], found.position.detail["verdicts"]) == (12, 18)
    assert found.length_slope.status == "not_applicable"


def test_the_interval_of_four_in_seven():
    ci = proportions.wilson(4, 7).ci  # of O25, whose own verdicts decide 3 of 6
    assert (ci.low, ci.high) == pytest.approx((0.2505, 0.8418), abs=5e-5)


def test_every_combination_of_two_verdicts():
    for a, b in itertools.product("ABT-", repeat=2):
        (pair,) = verdicts(a, b)
        assert pair.merged == (None if "-" in (a, b) else SHORT[a] if a == b else "tie")
        exchanged = PairVerdict(judging.SWAPPED[pair.swapped], judging.SWAPPED[pair.original])
        assert exchanged.merged == judging.SWAPPED[pair.merged]  # B against A is the same comparison
        assert exchanged.first_position == pair.first_position


def test_a_win_and_a_tie_favour_the_place_of_the_win():
    """Who was first won one order and tied the other in three pairs, who was second in one: 3 of 4, p = 2 (4 + 1)/16."""
    found = judging.position_preference(verdicts("ATAT", "TBTA"))
    assert (found.value, found.n, found.detail["first"]) == (0.75, 4, 3)
    assert found.p_value == pytest.approx(0.625)


def test_an_unreadable_verdict_is_counted_apart():
    found = judging.pairwise(verdicts("AAB-AT", "AABAA-"))
    assert found.counts == {"A": 3, "B": 1, "tie": 0, "invalid": 2}
    assert (found.win_rate.value, found.win_rate.n, found.win_rate.excluded) == (0.75, 4, {"invalid": 2})
    none = judging.pairwise(verdicts("-", "A"))
    assert {one.status for one in (none.flip_rate, none.win_rate, none.decided, none.position)} == {"undefined"}
    with pytest.raises(UserError, match="'C'; expected A, B, tie"):
        judging.pairwise([PairVerdict("C", "A")])


def test_who_prefers_the_first_place_never_decides():
    pairs = [judging.judged_in_both_orders(lambda one, other: "A", "x", "y") for _ in range(20)]
    found = judging.pairwise(pairs)
    assert (found.counts["tie"], found.flip_rate.value, found.win_rate.value) == (20, 1.0, 0.5)
    assert (found.position.value, found.position.p_value) == (1.0, pytest.approx(2 * 0.5**20))


def test_who_reads_the_texts_has_no_preference_for_a_place():
    def longer(one, other):
        return "A" if len(one) > len(other) else "B" if len(one) < len(other) else "tie"

    texts = [("aaa", "b"), ("a", "bb"), ("a", "b")]
    pairs = [judging.judged_in_both_orders(longer, *both) for both in texts]
    assert [pair.merged for pair in pairs] == ["A", "B", "tie"]
    assert judging.pairwise(pairs).flip_rate.value == 0
    assert judging.pairwise(pairs).position.status == "undefined"


def test_an_unreadable_answer_is_asked_for_once_more():
    said = iter([None, "B", None, None])
    pair = judging.judged_in_both_orders(lambda one, other: next(said), "x", "y")
    assert (pair.original, pair.swapped, pair.merged) == ("B", None, None)
    assert next(said, "no more") == "no more"


def test_the_slope_of_one_yes_or_no_gap_is_the_log_odds_ratio():
    won = [True] * 15 + [False] * 5 + [True] * 6 + [False] * 14
    gaps = [100.0] * 20 + [0.0] * 20
    slope = judging.length_slope(won, gaps)
    ratio = math.log(15 * 14 / (5 * 6))
    error = math.sqrt(1 / 15 + 1 / 5 + 1 / 6 + 1 / 14)
    assert slope.value * 100 == pytest.approx(ratio, abs=1e-6)
    assert (slope.ci.high - slope.ci.low) * 100 == pytest.approx(2 * 1.959964 * error, abs=1e-4)
    assert slope.p_value == pytest.approx(math.erfc(ratio / error / math.sqrt(2)), abs=1e-6)
    assert judging.length_slope(won, [gap * 1000 for gap in gaps]).value * 1e5 == pytest.approx(ratio, abs=1e-6)
    assert judging.length_slope([not one for one in won], gaps).value == pytest.approx(-slope.value, abs=1e-9)


@pytest.mark.parametrize(
    ("won", "gaps", "status"),
    [
        ([True, False] * 9, range(18), "insufficient_data"),
        ([True, False] * 10, [3.0] * 20, "undefined"),
        ([True] * 20, range(20), "undefined"),
        ([False] * 10 + [True] * 10, range(20), "undefined"),  # separated
        ([True] * 10 + [False] * 10, [0.0] * 10 + [0.0, *range(1, 10)], "undefined"),  # all but where they touch
    ],
)
def test_no_slope_where_none_can_be_had(won, gaps, status):
    assert judging.length_slope(won, list(gaps)).status == status


def test_ties_and_invalid_pairs_are_in_no_slope():
    rng = np.random.default_rng(0)
    sides, gaps = rng.choice(["A", "B"], 40).tolist(), rng.normal(size=40).tolist()
    plain = judging.pairwise(verdicts(sides, sides), gaps).length_slope
    more = judging.pairwise(verdicts([*sides, "T", "-"], [*sides, "T", "A"]), [*gaps, 50.0, -50.0]).length_slope
    assert (more.value, more.n) == (pytest.approx(plain.value), 40)
    with pytest.raises(UserError, match="39 length gaps for 40 pairs"):
        judging.pairwise(verdicts(sides, sides), gaps[1:])


@pytest.mark.parametrize(
    ("table", "kappa"), [((20, 5, 10, 15), 0.40), ((45, 15, 25, 15), 0.130435), ((25, 35, 5, 35), 0.259259)]
)
def test_published_kappas(table, kappa):
    assert of_table(*table).kappa.value == pytest.approx(kappa, abs=5e-7)


def test_the_first_table_with_its_interval():
    found = of_table(20, 5, 10, 15)
    assert found.kappa.detail["se"] == pytest.approx(0.126996, abs=5e-7)
    assert (found.kappa.ci.low, found.kappa.ci.high) == pytest.approx((0.1511, 0.6489), abs=5e-5)
    assert found.ac1.value == pytest.approx(0.405941, abs=5e-7)
    assert found.agreement.value == 0.7
    assert found.prevalence == pytest.approx({"yes": 0.55, "no": 0.45})
    assert not found.deploy
    assert found.reason.startswith("50 labelled pairs of 100; kappa is 0.400, not above 0.7; the lower end")


@pytest.mark.parametrize(("n", "low", "high"), [(50, 0.502, 0.898), (100, 0.560, 0.840), (200, 0.601, 0.799)])
def test_how_wide_the_interval_of_a_balanced_seven_tenths_is(n, low, high):
    kappa = of_table(85, 15, 15, 85).kappa  # 200 pairs; 50 would have halves of pairs
    half = 1.959964 * kappa.detail["se"] * math.sqrt(200 / n)
    assert (kappa.value - half, kappa.value + half) == pytest.approx((low, high), abs=5e-4)
    hundred = of_table(43, 7, 8, 42).kappa
    assert (hundred.value, hundred.ci.low, hundred.ci.high) == pytest.approx((0.7, 0.560, 0.840), abs=5e-4)


def test_the_gate_needs_all_three():
    def deployed(agree, differ):
        return of_table(agree, differ, differ, agree).deploy

    assert of_table(85, 15, 15, 85).reason == "kappa is 0.700, not above 0.7"  # the lower bound is .601
    assert deployed(90, 10)  # .8, n = 200
    assert not deployed(43, 7)  # .72, n = 100: the lower bound is .584
    assert deployed(45, 5)  # .8, n = 100
    assert of_table(45, 4, 5, 45).reason == "99 labelled pairs of 100"


def test_labels_and_table_are_the_same():
    judge = ["A", "A", "B", "tie", None, "B"]
    human = ["A", "B", "B", "tie", "A", None]
    found = judging.judge_agreement(judge, human)
    assert found.kappa.value == pytest.approx((3 / 4 - 5 / 16) / (1 - 5 / 16))
    assert (found.kappa.n, found.kappa.excluded) == (4, {"not rated by both": 2})
    with pytest.raises(UserError, match="'C' is not on the scale"):
        judging.judge_agreement(["C"], ["A"])
    with pytest.raises(UserError, match="1 verdicts for 2 labels"):
        judging.judge_agreement(["A"], ["A", "B"])


def agreed(agree, differ, copies=1):
    """The agreement on balanced labels A and B, with so many copies of every pair in a cluster."""
    cells = [
        (a, b)
        for a, b, n in (("A", "A", agree), ("B", "B", agree), ("A", "B", differ), ("B", "A", differ))
        for _ in range(n)
    ]
    pairs = [(a, b, str(k)) for k, (a, b) in enumerate(cells) for _ in range(copies)]
    judge, human, clusters = (list(column) for column in zip(*pairs, strict=True))
    return judging.judge_agreement(judge, human, clusters=clusters)


def test_copies_of_labelled_pairs_are_no_evidence():
    """48 pairs, each five times: kappa .833 has the interval [.763, .903] of 240 pairs, and [.662, .958] of 48 clusters."""
    alone, copied = agreed(22, 2), agreed(22, 2, copies=5)
    assert alone.kappa.value == copied.kappa.value == pytest.approx(0.8333, abs=5e-5)
    error = 5**0.5 * (copied.kappa.detail["independent"]["high"] - copied.kappa.value)
    assert copied.kappa.value - error == pytest.approx(alone.kappa.ci.low)
    assert (copied.kappa.ci.low, copied.kappa.ci.high) == pytest.approx((0.662, 0.958), abs=0.01)
    assert (copied.kappa.n, copied.kappa.detail["clusters"], copied.kappa.ci.method) == (
        240, 48, "percentile bootstrap over clusters",
    )  # fmt: skip
    assert copied.reason == "48 clusters of labelled pairs of 100"
    assert copied.agreement.ci.low == pytest.approx(alone.agreement.ci.low, abs=0.02)


def test_a_judge_is_deployed_by_a_hundred_clusters():
    assert (agreed(45, 5).deploy, agreed(45, 5, copies=2).deploy) == (True, True)
    assert judging.judge_agreement(
        ["A"] * 99 + ["B"] * 99, ["A"] * 99 + ["B"] * 99, clusters=[str(k // 2) for k in range(198)]
    ).reason == ("99 clusters of labelled pairs of 100")
    perfect = agreed(50, 0, copies=2).kappa
    assert (perfect.value, perfect.ci.high) == (1.0, 1.0)
    assert perfect.ci.low == pytest.approx(2 * proportions.wilson(100, 100).ci.low - 1)
    few = agreed(9, 0, copies=12)
    assert few.reason == "18 clusters of labelled pairs of 100; 18 clusters of labelled pairs give kappa no interval"
    with pytest.raises(UserError, match="1 cluster labels for 2 pairs"):
        judging.judge_agreement(["A", "B"], ["A", "B"], clusters=["x"])


def test_constant_raters_have_no_kappa():
    found = judging.judge_agreement(["A"] * 120, ["A"] * 120)
    assert (found.kappa.status, found.agreement.value, found.ac1.value) == ("undefined", 1.0, 1.0)
    assert found.prevalence == {"A": 1.0, "B": 0.0, "tie": 0.0}
    assert not found.deploy
    one = judging.judge_agreement(["A"] * 120, ["A"] * 100 + ["B"] * 20)
    assert one.kappa.value == pytest.approx(0.0)  # of one alone it is 0 whatever the other says
    assert not one.deploy
    assert judging.judge_agreement([], []).kappa.status == "undefined"


def test_perfect_agreement_on_one_label_alone_is_no_proof():
    rare, balanced = of_table(99, 0, 0, 1), of_table(50, 0, 0, 50)
    assert rare.kappa.value == balanced.kappa.value == 1.0
    assert balanced.kappa.ci.low == pytest.approx(2 * proportions.wilson(100, 100).ci.low - 1)
    assert rare.kappa.ci.low < 0
    assert (rare.deploy, balanced.deploy) == (False, True)


def test_kappa_of_a_panel():
    assert judging.panel_agreement(FLEISS).value == pytest.approx(0.209931, abs=5e-7)
    assert judging.panel_agreement([[3, 0], [3, 0]]).status == "undefined"
    with pytest.raises(UserError, match="different numbers of raters"):
        judging.panel_agreement([[3, 0], [1, 0]])


def test_a_table_holds_counts():
    with pytest.raises(UserError, match="whole numbers"):
        of_table(42.5, 7.5, 7.5, 42.5)
    with pytest.raises(UserError, match="shape \\(2, 2\\)"):
        judging.agreement_of_table([[1, 2], [3, 4]])


def test_refusing_the_harmful_and_sparing_the_benign():
    found = judging.refusals([True] * 18 + [False] * 2, [True] * 5 + [False] * 15)
    assert (found.harmful.value, found.benign.value) == (0.9, 0.25)
    assert found.youden.value == pytest.approx(0.65)
    (a, b), (x, y) = ((one.ci.low, one.ci.high) for one in (found.harmful, found.benign))
    assert found.youden.ci.low == pytest.approx(0.65 - math.hypot(0.9 - a, y - 0.25))
    assert found.youden.ci.high == pytest.approx(0.65 + math.hypot(b - 0.9, 0.25 - x))


def test_youden_needs_both_sets():
    found = judging.refusals([True, None], [None])
    assert (found.youden.status, found.benign.status) == ("not_applicable", "undefined")
    assert found.harmful.excluded == {"error": 1}
    assert judging.refusals([True] * 9, [True] * 7).youden.value == 0  # refuses everything


def test_the_tables_of_the_specification():
    refused = judging.agreement_of_table([[40, 4, 2], [5, 30, 3], [3, 2, 11]])
    kappa = refused.kappa
    assert (kappa.value, kappa.detail["se"]) == pytest.approx((0.691958, 0.062771), abs=5e-7)
    assert (kappa.ci.low, kappa.ci.high) == pytest.approx((0.568929, 0.814988), abs=5e-7)
    assert not refused.deploy
    deployed = judging.agreement_of_table([[50, 3, 1], [2, 40, 2], [1, 1, 20]])
    assert (deployed.kappa.value, deployed.kappa.ci.low) == pytest.approx((0.868074, 0.789925), abs=5e-7)
    assert deployed.kappa.n == 120 and deployed.deploy


def test_flips_and_first_positions_of_the_specification():
    found = judging.pairwise(verdicts("A" * 20, "B" * 7 + "A" * 13))
    assert (found.flip_rate.value, found.flip_rate.ci.low, found.flip_rate.ci.high) == pytest.approx(
        (0.35, 0.181192, 0.567146), abs=5e-7
    )
    position = judging.position_preference(verdicts("A" * 9 + "B" * 3, "B" * 9 + "A" * 3))
    assert (position.detail["first"], position.n) == (9, 12)
    assert position.p_value == pytest.approx(0.145996, abs=5e-7)


def test_win_rates_of_clusters_resample_clusters():
    sides = "AB" * 40
    alone = judging.pairwise(verdicts(sides, sides), seed=1).win_rate
    clustered = judging.pairwise(verdicts(sides, sides), seed=1, clusters=[str(k % 20) for k in range(80)]).win_rate
    assert (alone.n, clustered.n) == (80, 80) and alone.value == clustered.value == 0.5
    # every cluster has four equal winners: an interval as of 20 pairs, about twice as wide
    assert 1.6 < (clustered.ci.high - clustered.ci.low) / (alone.ci.high - alone.ci.low) < 2.4
    with pytest.raises(UserError, match="3 cluster labels for 80 pairs"):
        judging.pairwise(verdicts(sides, sides), clusters=["a", "b", "c"])
