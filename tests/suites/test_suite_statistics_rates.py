"""Rates, agreement of repeated outputs, pass@k and detectors: traps, limits and brute-force twins."""

from __future__ import annotations

import itertools
import unicodedata

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.proportion import proportion_confint

from results_io import UserError
from suites.statistics import agreement, detection, passing, proportions


def test_wilson_is_exact_at_its_ends() -> None:
    assert proportions.wilson(20, 20).ci.high == 1.0  # statsmodels: .9999999999999999
    assert proportions.wilson(0, 29).ci.low == 0.0


def test_no_items_have_no_rate() -> None:
    assert proportions.wilson(0, 0).status == proportions.upper_bound(0, 0).status == "undefined"
    for bad in ((3, 2), (-1, 2)):
        with pytest.raises(UserError, match="expected a count between 0 and 2"):
            proportions.wilson(*bad)


@pytest.mark.parametrize(("events", "n"), [(0, 10), (3, 40), (39, 40), (40, 40)])
def test_upper_bound_leaves_five_per_cent_below(events: int, n: int) -> None:
    bound = proportions.upper_bound(events, n).ci.high
    assert bound == 1.0 if events == n else stats.binom.cdf(events, n, bound) == pytest.approx(0.05, abs=1e-9)
    # The two-sided 90 % Clopper-Pearson interval has the same upper end.
    assert bound == pytest.approx(proportion_confint(events, n, 0.10, "beta")[1], abs=1e-12)


def test_outputs_that_differ_in_form_are_the_same() -> None:
    texts = ["Café  noir", unicodedata.normalize("NFD", "café noir "), "CAFÉ NOIR", "tea"]
    assert agreement.mode_consistency(texts).value == 0.75
    assert agreement.pairwise_agreement(texts).value == 0.5


def test_errors_leave_n_and_few_outputs_leave_no_number() -> None:
    found = agreement.mode_consistency(["a", "a", "b", None])
    assert (found.value, found.n, found.excluded) == (pytest.approx(2 / 3), 3, {"error": 1})
    assert agreement.mode_consistency(["a", "a", None]).status == "insufficient_data"
    for measure in (agreement.mode_consistency, agreement.pairwise_agreement):
        assert measure([None, None, None]).status == "error"
        assert measure([]).status == "insufficient_data"


def test_agreement_does_not_depend_on_order() -> None:
    texts = list("aabbbcd")
    values = {
        (agreement.mode_consistency(order).value, agreement.pairwise_agreement(order).value)
        for order in itertools.islice(itertools.permutations(texts), 0, 5040, 97)
    }
    assert values == {(3 / 7, 4 / 21)}


def test_similarity_says_that_it_is_not_transitive() -> None:
    found = agreement.pairwise_agreement(["1", "2", "3"], same=lambda a, b: abs(int(a) - int(b)) <= 1)
    assert found.value == pytest.approx(2 / 3)
    assert found.assumptions == ("sameness by similarity is not transitive",)


def test_determinism_counts_identical_items() -> None:
    found = agreement.determinism([["a", "b", "c", None], ["a", "B", "c", "d"], ["a", "b", "c", "d"]])
    assert (found.value, found.n, found.excluded) == (pytest.approx(2 / 3), 3, {"error": 1})
    assert agreement.determinism([["a"]]).status == "insufficient_data"
    with pytest.raises(UserError, match="1, 2 items"):
        agreement.determinism([["a"], ["a", "b"]])


@pytest.mark.parametrize(
    ("gained", "lost", "share", "gap", "reproducible"),
    [(0, 0, 1.0, 0.0, True), (0, 5, 0.95, 0.05, True), (3, 3, 0.94, 0.0, False), (0, 6, 0.94, 0.06, False)],
)
def test_reproducible_is_both_verdicts_and_rate(
    gained: int, lost: int, share: float, gap: float, reproducible: bool
) -> None:
    first = {str(i): i >= 50 for i in range(100)}
    second = dict(first)
    second |= {str(i): True for i in range(gained)} | {str(99 - i): False for i in range(lost)}
    found = agreement.reproducibility(first, second)
    assert found.value == pytest.approx(share)
    assert found.detail["metric_difference"] == pytest.approx(gap)
    assert found.detail["reproducible"] is reproducible


@pytest.mark.parametrize(("lost", "reproducible"), [(5, True), (6, False), (9, False)])
def test_rates_more_than_five_points_apart_are_not_reproduced(lost: int, reproducible: bool) -> None:
    """By themselves: at 95 % equal verdicts rates are never further apart, so fewer are asked for here."""
    first = {str(i): i >= 50 for i in range(100)}
    second = first | {str(99 - i): False for i in range(lost)}
    assert agreement.reproducibility(first, second, same_verdicts=0.9).detail["reproducible"] is reproducible


def test_repeats_of_items_that_are_alike_count_as_fewer() -> None:
    runs = [["a"] * 80, ["a"] * 60 + ["b"] * 20]
    of_clusters, plain = proportions.wilson(15, 20).ci, proportions.wilson(60, 80).ci
    found = agreement.determinism(runs, [str(i // 4) for i in range(80)])
    assert (found.value, found.n) == (0.75, 80)
    assert (found.ci.low, found.ci.high) == pytest.approx((of_clusters.low, of_clusters.high), abs=1e-12)
    assert agreement.determinism(runs).ci == plain
    passed = [(2, 2)] * 60 + [(2, 1)] * 20
    clusters = [str(i // 4) for i in range(80)]
    narrow, wide = passing.pass_hat_k(passed, 2), passing.pass_hat_k(passed, 2, clusters=clusters)
    assert (narrow.value, wide.value, narrow.n, wide.n) == (0.75, 0.75, 80, 80)
    assert (wide.ci.high - wide.ci.low) / (narrow.ci.high - narrow.ci.low) == pytest.approx(2, rel=0.1)
    assert passing.pass_hat_k(passed, 2, clusters=[str(i // 8) for i in range(80)]).ci is None


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (5, 0, 2), (5, 5, 4), (7, 3, 5), (4, 1, 4)])
def test_pass_at_k_counts_subsets(n: int, c: int, k: int) -> None:
    attempts = [True] * c + [False] * (n - c)
    draws = [[attempts[i] for i in chosen] for chosen in itertools.combinations(range(n), k)]
    assert passing.pass_at_k([(n, c)], k).value == pytest.approx(np.mean([any(draw) for draw in draws]))
    assert passing.pass_hat_k([(n, c)], k).value == pytest.approx(np.mean([all(draw) for draw in draws]))


def test_pass_at_k_is_not_one_minus_a_power() -> None:
    assert passing.pass_at_k([(10, 3)], 5).value == pytest.approx(1 - 21 / 252)
    assert pytest.approx(0.8319, abs=5e-5) == 1 - 0.7**5  # which is what that would be, instead of .9167


def test_pass_at_k_averages_over_items() -> None:
    assert passing.pass_at_k([(4, 4), (4, 0), (4, 2)], 2).value == pytest.approx((1 + 0 + 5 / 6) / 3)
    assert passing.pass_at_k([(4, 4), (2, 1)], 3).status == "undefined"
    assert passing.pass_at_k([], 1).status == "undefined"
    many = passing.pass_hat_k([(4, i % 5) for i in range(40)], 1)
    assert many.value == pytest.approx(0.5)
    assert many.ci.low < 0.5 < many.ci.high
    for bad, said in (([(2, 3)], "3 of 2"), ([(2, -1)], "-1 of 2")):
        with pytest.raises(UserError, match=said):
            passing.pass_at_k(bad, 1)


def test_f1_and_its_interval_come_from_one_share() -> None:
    found = detection.from_counts(48, 3, 2, 47)
    share = proportions.wilson(48, 53).ci
    assert found.f1.ci.low == pytest.approx(2 * share.low / (1 + share.low))
    assert found.f1.ci.low < found.f1.value < found.f1.ci.high


def test_detector_rates_come_from_its_counts() -> None:
    found = detection.from_counts(tp=4, fp=2, fn=1, tn=3)
    assert found.precision.value == pytest.approx(4 / 6)
    assert found.recall.value == pytest.approx(4 / 5)
    assert found.specificity.value == pytest.approx(3 / 5)
    assert found.f1.value == pytest.approx(2 * 4 / (2 * 4 + 2 + 1))


@pytest.mark.parametrize(
    ("counts", "locked", "lacking"),
    [
        ((30, 0, 0, 70), True, ""),
        ((29, 0, 0, 71), False, "29 positives of 30"),
        ((40, 0, 0, 59), False, "99 examples of 100"),
        ((80, 0, 0, 29), False, "29 negatives of 30"),
    ],
)
def test_a_detector_is_locked_by_its_golden_set(counts: tuple[int, ...], locked: bool, lacking: str) -> None:
    found = detection.from_counts(*counts)
    assert (found.locked, found.reason) == (locked, lacking)


def test_a_detector_that_never_flags_has_no_precision() -> None:
    found = detection.from_counts(0, 0, 40, 60)
    assert (found.precision.status, found.recall.value, found.f1.value) == ("undefined", 0.0, 0.0)
    assert detection.from_counts(0, 0, 0, 60).f1.status == "undefined"


def test_rogan_gladen_is_clipped_and_knows_when_nothing_is_known() -> None:
    assert detection.rogan_gladen(proportions.wilson(1, 100), 0.96, 0.94).value == 0.0
    assert detection.rogan_gladen(proportions.wilson(99, 100), 0.96, 0.94).value == 1.0
    assert detection.rogan_gladen(proportions.wilson(30, 100), 0.5, 0.5).status == "undefined"
    assert detection.rogan_gladen(proportions.wilson(30, 100), 0.2, 0.7).status == "undefined"
    perfect = detection.rogan_gladen(proportions.wilson(30, 100), 1.0, 1.0)
    assert (perfect.value, perfect.ci.low) == pytest.approx((0.3, proportions.wilson(30, 100).ci.low))
    assert detection.rogan_gladen(proportions.wilson(0, 0), 0.9, 0.9).status == "undefined"


def test_rogan_gladen_recovers_a_planted_rate() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(200_000) < 0.12
    flagged = np.where(truth, rng.random(truth.size) < 0.9, rng.random(truth.size) < 0.05)
    rate = proportions.wilson(int(flagged.sum()), truth.size)
    assert rate.value == pytest.approx(0.152, abs=0.003)
    assert detection.rogan_gladen(rate, 0.9, 0.95).value == pytest.approx(truth.mean(), abs=0.003)
