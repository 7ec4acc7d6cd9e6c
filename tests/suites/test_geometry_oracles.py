"""Oracles 1 to 11 of the geometric metrics, to six digits, and what the paper's formulas do where nothing is there."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from circuits.circuit import Node
from results_io import UserError
from suites.geometry import (
    construct,
    coverage,
    displacement,
    fixed_scale,
    framing,
    judge_bias,
    languages,
    mtmm,
    paraphrase,
    position,
    reasoning,
    relabelling,
    simultaneous,
    spread,
    trace,
    turns,
    width,
)
from suites.statistics import proportions

SQUARE = np.array([(0, 0), (2, 0), (0, 2), (2, 2)], dtype=float)
FRAMED = np.array([(5, 1), (5, 3), (7, 1), (7, 3)], dtype=float)
PAIRS = [
    [(0, 0), (2, 0)],
    [(4, 0), (6, 0)],
    [(0, 4), (2, 4)],
    [(4, 4), (6, 4)],
    [(2, 2), (4, 2)],
]


def near(value):
    return pytest.approx(value, abs=5e-7)


def one_draw(table):
    return [[row] for row in np.asarray(table, dtype=float)]


def test_signs_of_fewer_than_seven_pairs_give_no_p():
    """Six pairs rejected .031 at most, not .05; their p was given all the same."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(7, 2))
    framed = base + 5 + 0.1 * rng.normal(size=(7, 2))
    six, seven = (framing.pss(base[:n], framed[:n], paired=True).estimate for n in (6, 7))
    assert (six.p_value, six.test) == (None, None) and relabelling.NO_P in six.assumptions
    assert seven.p_value == 2 / 2**7 and relabelling.NO_P not in seven.assumptions
    drift = turns.ds([base[:6], framed[:6]], paired=True).estimate
    assert (drift.p_value, drift.test) == (None, None) and relabelling.NO_P in drift.assumptions
    levels = [2 * int(0.05 * 2**n / 2) / 2**n for n in (5, 6, relabelling.FEWEST_PAIRS)]
    assert levels == [0, 0.03125, 0.046875]


def test_the_null_of_position_is_a_centre_on_the_reference():
    away = np.vstack([SQUARE, SQUARE + 0.5])
    assert position.ods(away, (9, 9)).estimate.p_value == 2 / 2**8
    assert position.ods(np.vstack([SQUARE, SQUARE]), (1, 1)).estimate.p_value == 1
    few, survey = position.ods(SQUARE[[0, 1, 2, 3, 0]], (9, 9)), position.ods(away, (9, 9), reference_variance=0.1)
    assert few.estimate.p_value is None and relabelling.NO_P in few.estimate.assumptions
    assert survey.estimate.p_value is None and survey.estimate.test is None
    assert position.ESTIMATED in survey.estimate.assumptions
    assert position.SYMMETRIC in position.ods(away, (9, 9)).estimate.assumptions
    rng, times = np.random.default_rng(3), 1500
    skewed = [relabelling.signs(rng.exponential(size=(8, 1)) - 1, 0) <= 0.05 for _ in range(times)]
    assert 0.07 < np.mean(skewed) < 0.12  # which the record says that it takes for none


def test_the_null_of_coverage_is_a_model_that_answers_alike_on_either_side():
    """Six topics that are covered only with the sides as they were asked for: 1 of 64 exchanges. A topic is exchanged as one."""
    regions = coverage.Ball(np.array([1.0]), 0.5), coverage.Ball(np.array([-1.0]), 0.5)

    def found(topics, swapped=0):
        draws = np.full(3, 1.0), np.full(3, -1.0)
        made = [coverage.Issue(t, draws[::-1] if k < swapped else draws, regions) for k, t in enumerate(topics)]
        return coverage.ps(made).estimate

    assert found("abcdef").p_value == 1 / 64 and found("abcdef", swapped=1).p_value == 7 / 64
    assert found("aabbccddeeff").p_value == 1 / 64 and found("abcdef", swapped=6).p_value == 1
    few = found("aaaaabbbcde")
    assert (few.p_value, few.test) == (None, None) and coverage.NO_P in few.assumptions
    refused = [coverage.Issue(t, (np.ones(2), np.zeros((0, 1))), regions, (0, 2)) for t in "abcdef"]
    assert coverage.ps(refused).estimate.p_value == 1


def test_prompts_that_differ_whichever_side_they_ask_for_are_not_found_by_coverage():
    """Draws of one prompt resemble each other. Exchanging single draws rejected .16 here, and .075 with two issues a topic."""
    rng, times, rejected = np.random.default_rng(2), 300, 0
    regions = coverage.Ball(np.array([1.0]), 0.5), coverage.Ball(np.array([-1.0]), 0.5)
    for _ in range(times):
        shares = rng.beta(0.5, 0.5, size=(12, 2, 1))
        draws = np.where(rng.random((12, 2, 5)) < shares, 1.0, -1.0)
        issues = [coverage.Issue(str(k), (one[0], one[1]), regions) for k, one in enumerate(draws)]
        rejected += coverage.ps(issues).estimate.p_value <= 0.05
    assert 0.02 < rejected / times < 0.07


def test_swaps_are_those_of_all_exchanges_listed():
    values = np.random.default_rng(5).normal(size=(7, 2)).round(1)
    own, sums = (
        values[:, 0].sum(),
        [sum(r[k] for r, k in zip(values, c, strict=True)) for c in itertools.product((0, 1), repeat=7)],
    )
    assert relabelling.swaps(values, 0) == np.mean([one >= own - 1e-9 for one in sums])
    assert relabelling.swaps(values[:5], 0) is None and relabelling.swaps(np.ones((6, 2)), 0) == 1


def test_the_null_of_judge_bias_exchanges_perturbations_and_reruns_of_a_case():
    flips, reruns = np.array([[1, 1], [1, 0], [1, 1]]), np.array([[0, 0], [0, 0], [0, 1]])
    own = abs((flips.mean(1) - reruns.mean(1)).mean())
    pooled, hits, total = np.hstack([flips, reruns]), 0, 0
    for chosen in itertools.product(itertools.combinations(range(4), 2), repeat=3):
        taken = [(row[list(c)].sum(), row.sum() - row[list(c)].sum()) for row, c in zip(pooled, chosen, strict=True)]
        hits += abs(np.mean([(a - b) / 2 for a, b in taken])) >= own - 1e-9
        total += 1
    assert judge_bias.jbs(flips, reruns).estimate.p_value == pytest.approx(hits / total, abs=0.015)
    assert judge_bias.jbs(np.zeros((4, 3)), np.zeros((4, 5))).estimate.p_value == 1


def test_the_null_of_width_is_that_no_prompt_differs():
    rng = np.random.default_rng(3)
    draws = rng.normal(size=(20, 5, 2))
    same, apart = (width.ow(one.mean(1), draws=one).estimate for one in (draws, draws + 3 * draws[:, :1]))
    assert same.p_value > 0.05 and apart.p_value == 0.001
    assert same.detail["noise_width"] == pytest.approx(same.value, rel=0.2)
    assert width.ow(draws.mean(1)).estimate.p_value is None  # single outputs show no noise


def test_prompts_of_one_topic_are_left_out_together():
    """Forty copies of twenty prompts say no more than the twenty."""
    cloud = np.random.default_rng(4).normal(size=(20, 2))
    twice, topics = np.repeat(cloud, 2, axis=0), [str(k) for k in np.repeat(np.arange(20), 2)]
    one, alone = width.ow(cloud).estimate.ci, width.ow(twice).estimate.ci
    grouped = width.ow(twice, topics=topics).estimate.ci
    assert alone.high - alone.low < 0.8 * (one.high - one.low)
    assert grouped.high - grouped.low > 0.85 * (one.high - one.low)
    few = width.ow(twice, topics=["a", "b"] * 20).estimate
    assert few.ci is None and few.assumptions == ("no interval: 2 topics, fewer than 20",)


def test_a_claim_of_no_change_is_false_no_more_often_than_its_level():
    """Five quantities a claim, one of them changed by the margin itself; the other heads' claims are true."""
    rng, false, times = np.random.default_rng(0), 0, 2000
    for _ in range(times):
        changes = rng.normal(size=(24, 5)) * 0.05
        changes[:, 0] += 0.1
        inner = simultaneous.equivalence(changes, 0.95, 1)
        false += all(low > -0.1 and high < 0.1 for low, high in inner)
    assert 0.035 < false / times < 0.065
    narrow, wide = (simultaneous.equivalence(changes, 0.95, n)[0] for n in (1, 64))
    error = changes[:, 0].std(ddof=1) / 24**0.5
    assert (narrow[1] - narrow[0]) / 2 == pytest.approx(1.713872 * error)
    assert (wide[1] - wide[0]) / 2 == pytest.approx(stats.t.ppf(1 - 0.05 / 64, 23) * error)


def test_claims_of_no_change_hold_together_for_normal_changes_and_not_for_skewed_ones():
    """64 claims, each of a change right at the margin: any is false .05 of the time. Skewed ones are so 17 times as often."""
    rng, times = np.random.default_rng(1), 1500
    false = [
        max(low > -0.1 and high < 0.1 for low, high in simultaneous.equivalence(made, 0.95, 64))
        for made in 0.1 + 0.02 * rng.normal(size=(times, 24, 64))
    ]
    assert 0.03 < np.mean(false) < 0.07
    made = 0.1 + 0.01 * (rng.exponential(size=(24, 40_000)) - 1)
    share = np.mean([high < 0.1 for _, high in simultaneous.equivalence(made, 0.95, 64)])
    assert 13 < share / (0.05 / 64) < 21


def test_the_changes_of_two_models_are_compared_along_the_same_directions():
    """A plant turns its persona's shift. Along its own shift, a head that did the same in both models moved it otherwise."""
    rng, node = np.random.default_rng(2), Node("head", 0, 0)
    constructs = construct.load("pocket").constructs[:3]
    constructs = [replace(one, variants=one.of("paraphrase") + one.of("persona")) for one in constructs]
    base = [{v.id: rng.normal(size=2) for v in one.variants} for one in constructs]

    def moved(tables, by, persona="teller_glad"):
        return [
            {v.id: table[v.id] + (by if v.persona == persona else 0.0) for v in one.variants}
            for one, table in zip(constructs, tables, strict=True)
        ]

    def found(intact, directed=None):
        swept = [node], intact, [moved(intact, np.array([0.3, 0.0]))]
        return trace.changes(constructs, ("x", "y"), swept, directed)

    other = moved(base, np.array([3.0, -6.0]))
    np.testing.assert_allclose(found(other, base), found(base), atol=1e-12)
    assert np.abs(found(other) - found(base)).max() > 0.1


def test_oracle_1_the_published_instability_of_single_points():
    five = [(1, 0), (2, 0), (3, 1), (2, 3), (2, 1)]
    assert paraphrase.published(one_draw(SQUARE)) == near(1.414214)
    assert paraphrase.published(one_draw(five)) == near(1.082843)
    assert spread.total_variance(np.array(five, dtype=float)) ** 0.5 == near(1.414214)


def test_oracle_2_wording_is_told_from_noise():
    found = paraphrase.pis(PAIRS)
    assert (found.estimate.detail["between"], found.estimate.detail["within"]) == (near(8), near(2))
    assert found.estimate.value == near(7) and found.estimate.detail["tau"] == near(2.645751)
    assert found.published.value == near(2.262742)
    every = np.concatenate([np.array(one, dtype=float) for one in PAIRS])
    assert np.linalg.norm(every - every.mean(0), axis=1).mean() == near(2.536648)
    assert found.estimate.ci is None  # five wordings: a number, no interval


def test_oracle_3_a_framing_of_the_square():
    found = framing.pss(SQUARE, FRAMED, fewest=4)
    assert found.estimate.detail["shift"] == near(5.099020)
    assert found.published.value == near(3.605551) and found.published.note.startswith("3.122499")
    assert found.estimate.detail["squared"] == near(24.666667)
    assert found.estimate.p_value == near(2 / 70)
    assert found.estimate.value == near((24.666667 / (8 / 3)) ** 0.5)
    assert framing.pss(SQUARE, FRAMED).estimate.status == "insufficient_data"  # four a side are too few to report


def test_the_published_sigma_is_that_of_outputs_and_not_of_their_means():
    """The square's corners as means of two outputs each, one to either side: the paper's sigma is sqrt(3), and not sqrt(2)."""
    aside = np.array([1.0, 0.0])
    outputs = np.concatenate([SQUARE - aside, SQUARE + aside])
    found, means = framing.pss(SQUARE, FRAMED, outputs=outputs, fewest=4), framing.pss(SQUARE, FRAMED, fewest=4)
    assert found.published.value == near(26**0.5 / 3**0.5) and means.published.value == near(26**0.5 / 2**0.5)
    assert (found.estimate.value, found.estimate.p_value) == (means.estimate.value, means.estimate.p_value)
    agreed = framing.pss(np.zeros((5, 2)), np.ones((5, 2)), outputs=SQUARE - SQUARE.mean(0))
    assert agreed.published.value == near(1) and agreed.estimate.status == "undefined"  # means without a spread


@pytest.mark.parametrize("paired", [True, False])
def test_the_interval_along_a_direction_holds_none_where_nothing_moves(paired):
    """Eight wordings in 384 axes. Around the length of the shift, along its own direction, it held 0 in none of 300."""
    rng, held, away = np.random.default_rng(23), 0, 0
    for _ in range(300):
        base, framed = rng.normal(size=(2, 8, 384)) / 384**0.5
        low, high = framing.pss(base, framed, paired=paired, resamples=19).estimate.detail["projection_interval"]
        held += low <= 0 <= high
        moved = framing.pss(base, framed + 1 / 384**0.5, paired=paired, resamples=19).estimate.detail
        away += 0 < moved["projection_interval"][0] < moved["projection_interval"][1] < 1.5
    assert 0.92 <= held / 300 <= 0.995 and away > 290


def test_the_interval_along_a_direction_is_the_mean_of_two_t_intervals():
    """Differences (1, 0) and (3, 0) of one half, (2, 1) and (2, -1) of the other: both halves point along the first axis."""
    moved = np.array([(1, 0), (2, 1), (3, 0), (2, -1)], dtype=float)
    found = framing.pss(SQUARE, SQUARE + moved, paired=True, fewest=4).estimate.detail
    half = 12.706205 * 1.0 / 2  # t of one degree of freedom; the other half does not vary along it
    assert found["projection_interval"] == [near(2 - half), near(2 + half)] and found["direction"] == [1, 0]
    few = framing.pss(SQUARE[:3], FRAMED[:3], fewest=3).estimate.detail
    assert few["projection_interval"] is None


def test_oracle_4_drift_and_a_loop():
    found = turns.ds([[p] for p in [(0.0, 0), (3, 4), (3, 0), (0, 1)]])
    assert found.published.value == near(1) and found.estimate.detail["velocity"] == near(0.333333)
    assert found.estimate.detail["path"] == near(12.162278)
    assert found.estimate.detail["straightness"] == near(1 / 12.162278)
    loop = turns.ds([[p] for p in [(0.0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]])
    assert loop.published.value == near(0) and loop.estimate.detail["path"] == near(4)
    assert loop.estimate.status == "insufficient_data"


def test_turns_that_were_not_measured_count():
    """Turn 4 alone: a quarter of the distance a turn. Of turns 2 and 4 the slope is that of the line through 0, 1, 2."""
    far = turns.ds([[(0.0, 0)], [(6, 8)]], numbers=[0, 4])
    assert far.published.value == near(10) and far.estimate.detail["velocity"] == near(2.5)
    assert (far.estimate.detail["turns"], far.estimate.detail["numbers"]) == (4, [0, 4])
    assert far.estimate.detail["slope"] == near(2.5) and far.published.note == "velocity 2.500000"
    two = turns.ds([[(0.0, 0)], [(1, 0)], [(2, 0)]], numbers=[0, 2, 4]).estimate.detail
    assert (two["velocity"], two["slope"], two["path"]) == (near(0.5), near(0.5), near(2))
    for wrong in ([0], [1, 4], [0, 0]):
        with pytest.raises(UserError, match="expected one a turn, rising from 0"):
            turns.ds([[(0.0, 0)], [(6, 8)]], numbers=wrong)


@pytest.mark.slow
def test_oracle_5_languages_and_what_identical_ones_give():
    assert languages.published([(0, 0), (3, 0), (0, 4)], 1.0) == near(4)
    rng = np.random.default_rng(0)
    ratios, values = [], []
    for _ in range(600):
        drawn = {name: rng.normal(size=(5, 64)) for name in ("en", "fr", "ar")}
        found = languages.lds(drawn, resamples=99)
        ratios.append(found.published.value)
        values.append(found.estimate.detail["squared"])
    assert np.mean(ratios) == pytest.approx(0.711, abs=0.01)
    assert np.quantile(ratios, 0.95) == pytest.approx(0.801, abs=0.015)
    assert abs(np.mean(values)) < 3 * np.std(values) / 600**0.5  # the estimate of 0 is 0


def test_oracle_6_reasoning():
    with_, without = np.array([0.5, 0.8, 0.4, 0.9, 1.1]), np.array([1, 0.9, 0.8, 1, 1])
    found = reasoning.rss(with_**2, without**2, fewest=5)
    assert found.estimate.value == near(0.738728)
    assert found.estimate.detail["ratio_of_means"] == found.published.value == near(0.787234)
    assert (found.estimate.bounds.low, found.estimate.bounds.high) == (near(0.468819), near(1.164029))
    assert reasoning.rss(with_**2, without**2).estimate.status == "insufficient_data"


def test_oracle_7_distance_from_a_reference():
    far, same = position.ods(SQUARE, (4, 5)), position.ods(SQUARE, (1, 1))
    assert far.published.value == near(5) and far.estimate.detail["squared"] == near(24.333333)
    assert same.published.value == near(0) and same.estimate.detail["squared"] == near(-0.666667)
    assert position.ods(SQUARE, (4, 5), reference_variance=0.5).estimate.detail["squared"] == near(23.833333)


def test_oracle_8_width_without_the_two_farthest():
    angles = 2 * np.pi * np.arange(18) / 18
    points = np.concatenate([np.stack([np.cos(angles), np.sin(angles)], 1), [(10, 0), (0, 12)]])
    found = width.ow(points)
    assert found.estimate.detail["diameter"] == near(15.620499) and found.published.value == near(2.0)
    assert found.estimate.n == 20 and width.ow(points[:19]).estimate.status == "insufficient_data"


def test_oracle_9_shares_of_issues():
    seven, none = proportions.wilson(7, 10), proportions.wilson(0, 12)
    assert (seven.bounds.low, seven.bounds.high) == (near(0.396778), near(0.892209))
    assert (none.bounds.low, none.bounds.high) == (near(0), near(0.242494))
    ball = coverage.Ball(np.zeros(2), 1.0), coverage.Ball(np.full(2, 9.0), 1.0)
    both = ([(0.0, 0.5)] * 3, [(9.0, 9.5)] * 3)
    one = ([(0.0, 0.5)] * 3, [(0.0, 0.5)] * 3)
    issues = [coverage.Issue(str(k), both if k < 7 else one, ball) for k in range(10)]
    found = coverage.ps(issues, fewest=10)
    assert found.published.value == found.estimate.value == near(0.7)
    assert (found.estimate.bounds.low, found.estimate.bounds.high) == (near(0.396778), near(0.892209))
    assert (found.estimate.detail["side_a"], found.estimate.detail["side_b"]) == (1.0, 0.7)


def test_shares_of_under_twenty_topics_have_no_interval_and_say_why():
    ball = coverage.Ball(np.zeros(1), 1.0), coverage.Ball(np.full(1, 9.0), 1.0)
    issues = [coverage.Issue(f"t{k % 20}", ([0.0], [9.0 * (k % 2)]), ball) for k in range(40)]
    found = coverage.ps(issues).estimate
    assert found.value == 0.5 and found.bounds.low < 0.36 and "interval" not in found.detail
    for few in (issues[:19], [coverage.Issue(f"t{k % 19}", one.sides, ball) for k, one in enumerate(issues)]):
        found = coverage.ps(few).estimate
        assert found.value == near(9 / 19 if len(few) == 19 else 0.5) and found.p_value is not None and found.ci is None
        assert found.assumptions == ("no interval: 19 topics; at least 20 are needed",)
        assert found.detail["interval"]["status"] == "insufficient_data" and "independent" not in found.detail


def test_twenty_issues_are_the_fewest_whose_interval_covers_as_it_says_whatever_the_share():
    """Exact coverage, a binomial sum: of 12 issues it falls to .914, of 20 it is .927 to .979, of more .9198 to .981."""

    def covered(count):
        counts, shares = np.arange(count + 1), np.linspace(0.1, 0.9, 161)
        ends = np.array([(b.low, b.high) for b in (proportions.wilson(int(k), count).bounds for k in counts)])
        inside = (ends[:, :1] <= shares) & (shares <= ends[:, 1:])
        return (stats.binom.pmf(counts[:, None], count, shares) * inside).sum(0)

    assert coverage.FEWEST == 20
    assert covered(12).min() == pytest.approx(0.914, abs=5e-4)
    assert covered(20).min() == pytest.approx(0.927, abs=5e-4) and covered(20).max() == pytest.approx(0.979, abs=5e-4)
    assert all(found.max() > 0.98 or found.min() < 0.92 for found in map(covered, range(10, 20)))
    more = [covered(count) for count in range(21, 60)]
    assert min(found.min() for found in more) >= 0.9195 and max(found.max() for found in more) <= 0.981


def test_an_issue_without_outputs_on_a_side_is_left_out_and_is_no_zero():
    ball = coverage.Ball(np.zeros(2), 1.0), coverage.Ball(np.full(2, 9.0), 1.0)
    empty, half = coverage.Issue("a", ([], []), ball), coverage.Issue("b", ([(0.0, 0.5)], []), ball)
    for issues in ([empty], [empty, half]):
        found = coverage.ps(issues)
        assert (found.estimate.status, found.estimate.value, found.published.value) == ("undefined", None, None)
    whole = coverage.Issue("c", ([(0.0, 0.5)], [(9.0, 9.5)]), ball)
    found = coverage.ps([empty, whole, half])
    assert (found.estimate.value, found.estimate.n) == (1, 1)
    assert found.estimate.excluded == {"a side without outputs": 2}
    assert coverage.ps([coverage.Issue("d", ([], []), ball, (5, 5))]).estimate.value == 0  # refusals are answers


def test_oracle_10_a_judge_that_flips():
    flips = np.zeros((5, 3))
    flips[1, 0], flips[2], flips[4, :2] = 1, 1, 1
    reruns = np.zeros((5, 3))
    reruns[0, 0] = 1
    found = judge_bias.jbs(flips, reruns)
    assert found.published.value == near(0.4) and found.estimate.value == near(0.333333)
    assert found.estimate.ci is None
    assert judge_bias.jbs(np.tile(flips, (4, 1)), np.tile(reruns, (4, 1))).estimate.bounds.low > 0
    alone = [
        judge_bias.jbs(flips[:, [place]], reruns) for place in range(3)
    ]  # of one perturbation, as suites.judging.bias
    assert [one.published.value for one in alone] == [near(0.6), near(0.4), near(0.2)]
    assert alone[2].estimate.value == near(0.2 - 1 / 15)
    assert np.mean([one.estimate.number for one in alone]) == near(found.estimate.number)


def test_oracle_11_shares_and_components():
    assert mtmm.shares([[2, 3, 7], [4, 4, 4], [9, 8, 10]]) == {
        "trait": near(0.757576),
        "method": near(0.121212),
        "rest": near(0.121212),
    }
    found = mtmm.components([[(1, 2), (3, 4)], [(6, 5), (9, 8)]])
    assert list(found.mean_squares.values()) == [near(40.5), near(12.5), near(0.5), near(0.5)]
    assert list(found.components.values()) == [near(10), near(3), near(0), near(0.5)]


@pytest.mark.parametrize(("axes", "on_means", "on_draws"), [(2, 0.56, 0.93), (16, 0.62, 1.03), (384, 0.63, 1.05)])
def test_the_published_instability_counts_noise_and_the_estimate_does_not(axes, on_means, on_draws):
    """True tau .5, noise 1 (RMS), 8 wordings of 5 draws."""
    rng, found, single, taus = np.random.default_rng(1), [], [], []
    for _ in range(400 if axes < 100 else 60):
        draws = (0.5 * rng.normal(size=(8, 1, axes)) + rng.normal(size=(8, 5, axes))) / axes**0.5
        found.append(paraphrase.published(draws))
        single.append(paraphrase.published(draws[:, :1]))
        taus.append(spread.of(draws).variance)
    assert np.mean(found) == pytest.approx(on_means, abs=0.02) and np.mean(single) == pytest.approx(on_draws, abs=0.03)
    assert np.mean(taus) ** 0.5 == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("axes", "above"), [(2, 0.46), (16, 0.65), (384, 0.99)])
def test_a_single_neutral_draw_passes_for_a_framing_in_the_paper(axes, above):
    rng = np.random.default_rng(2)
    found = [
        framing.pss(rng.normal(size=(20, axes)), rng.normal(size=(1, axes))).published.value > 1 for _ in range(400)
    ]
    assert np.mean(found) == pytest.approx(above, abs=0.08)


def test_the_published_width_grows_with_the_sample_and_the_quantile_does_not():
    rng = np.random.default_rng(3)
    for count, grown, stable in ((20, 2.50, 2.13), (50, 2.77, 2.11), (200, None, 2.15)):
        clouds = rng.normal(size=(60, count, 2)) / 2**0.5
        found = [width.ow(cloud) for cloud in clouds]
        assert np.mean([one.estimate.value for one in found]) == pytest.approx(stable, abs=0.1)
        if grown is not None:
            assert np.mean([one.published.value for one in found]) == pytest.approx(grown, abs=0.1)


@pytest.mark.parametrize(("count", "grown"), [(100, 2.88), (400, 2.98)])
def test_the_published_width_of_many_outputs_is_wider_still(count, grown):
    rng = np.random.default_rng(24)
    found = [width.ow(rng.normal(size=(count, 2)) / 2**0.5) for _ in range(30)]
    assert np.mean([one.published.value for one in found]) == pytest.approx(grown, abs=0.06)
    assert np.mean([one.estimate.value for one in found]) == pytest.approx(2.15, abs=0.04)


def test_in_many_axes_every_width_is_near_the_root_of_two():
    """384 axes of RMS 1: any two outputs lie sqrt(2) apart, so that neither number says how wide they lie."""
    rng, published = np.random.default_rng(25), []
    for count in (20, 200):
        found = [width.ow(rng.normal(size=(count, 384)) / 384**0.5) for _ in range(8)]
        published.append(np.mean([one.published.value for one in found]))
        assert np.mean([one.estimate.value for one in found]) == pytest.approx(2**0.5, rel=0.05)
    assert published == pytest.approx([2**0.5] * 2, rel=0.12) and 0 < published[1] - published[0] < 0.08


@pytest.mark.parametrize("axes", [2, 16, 384])
def test_the_mean_of_twenty_neutral_outputs_passes_for_a_framing_with_0(axes):
    rng = np.random.default_rng(26)
    found = [framing.pss(*rng.normal(size=(2, 20, axes)), resamples=19).published.value > 1 for _ in range(400)]
    assert np.mean(found) < 0.005  # .0005 in two axes


@pytest.mark.parametrize(("count", "ratio"), [(8, 0.54), (20, 0.33)])
def test_identical_languages_give_less_the_more_wordings_they_have(count, ratio):
    """sqrt(2/(V - 1)), and not the 1 that the paper reads as no more than paraphrase."""
    rng, found = np.random.default_rng(27), []
    for _ in range(200):
        drawn = {name: rng.normal(size=(count, 64)) for name in ("en", "fr", "ar")}
        found.append(languages.lds(drawn, resamples=19).published.value)
    assert np.mean(found) == pytest.approx(ratio, abs=0.01)
    assert np.mean(found) == pytest.approx((2 / (count - 1)) ** 0.5, abs=0.01)


def test_nothing_found_is_no_zero_and_no_nan():
    same = [np.ones((3, 2))] * 8
    found = paraphrase.pis(same)
    assert found.estimate.value == 0 and found.estimate.ci is None and found.estimate.p_value == 1
    assert paraphrase.pis([]).estimate.status == "insufficient_data"
    assert paraphrase.pis(one_draw(np.eye(8))).estimate.reason.startswith("one draw")
    assert paraphrase.pis(one_draw(np.eye(8)), deterministic=True).estimate.detail["label"] == "deterministic"
    still = framing.pss(np.ones((5, 2)), np.ones((5, 2)))
    moved = framing.pss(np.ones((5, 2)), np.zeros((5, 2)))
    assert (still.estimate.value, still.published.value) == (0, 0)
    assert (moved.estimate.status, moved.published.value) == ("undefined", None)
    fixed = languages.lds({"en": np.ones((5, 2)), "fr": np.zeros((5, 2))})
    assert fixed.estimate.status == "undefined" and fixed.published.value is None
    assert fixed.estimate.detail["squared"] == near(2)
    assert turns.ds([np.ones((5, 2))]).estimate.status == "not_applicable"
    assert languages.lds({"en": np.ones((5, 2))}).estimate.status == "not_applicable"
    assert width.ow([]).estimate.status == "insufficient_data"
    assert coverage.ps([]).estimate.status == "not_applicable"
    assert judge_bias.jbs(np.zeros((0, 3)), np.zeros((0, 3))).estimate.status == "insufficient_data"
    assert reasoning.rss([-1.0] * 9, [1.0] * 9).estimate.excluded == {"tau^2 not above 0": 9}


def tenth(count, value=0.1):
    """Equal points: seven numbers .1 have a mean that is not .1."""
    return np.full((count, 3), value)


def test_outputs_that_all_agree_have_no_spread_of_rounding():
    assert np.mean(tenth(7)[:, 0]) != 0.1
    moved, still = framing.pss(tenth(7), tenth(7) + 1), framing.pss(tenth(7), tenth(5))
    assert (moved.estimate.status, moved.published.value) == ("undefined", None)  # 6.67e16 with a spread of rounding
    assert moved.estimate.detail["squared"] == near(3) and moved.estimate.detail["baseline_variance"] == 0
    assert (still.estimate.value, still.published.value, still.estimate.p_value) == (0, 0, 1)  # .845
    apart, same = (languages.lds({"en": tenth(7), "fr": tenth(5, value)}) for value in (1.1, 0.1))
    assert apart.estimate.status == same.estimate.status == "undefined" and apart.published.value is None  # 4e16
    assert (apart.estimate.detail["squared"], same.estimate.detail["squared"]) == (near(3), 0)
    walk = turns.ds([tenth(7), tenth(5), tenth(6)]).estimate
    assert (walk.value, walk.p_value, walk.detail["path"], walk.detail["straightness"]) == (0, 1, 0, None)  # p was 0
    one = paraphrase.pis([tenth(3 + k) for k in range(8)])
    assert (one.estimate.value, one.published.value, one.estimate.ci) == (0, 0, None)  # an interval to 4e-32
    placed = position.ods(tenth(7), [0.1] * 3).estimate
    assert (placed.value, placed.ci, placed.detail["reading"]) == (0, None, position.NEAR)
    narrow = width.ow(tenth(21)).estimate
    assert (narrow.value, narrow.ci) == (0, None) and "no interval: all outputs agree" in narrow.assumptions


def test_regions_scales_matrices_and_judges_know_rounding():
    assert all(coverage.region(tenth(n)).holds(tenth(1)).all() for n in range(10, 40))  # not at 15, 18, 22, 28, 39
    with pytest.raises(UserError, match="overlap"):
        coverage.require_apart(coverage.region(tenth(12)), coverage.region(tenth(15)), "trains")
    with pytest.raises(UserError, match="do not vary"):
        fixed_scale.of([tenth(7), tenth(7)], "pocket")  # a unit of 2.6e-17
    with pytest.raises(UserError, match="all cells of the table are equal"):
        mtmm.shares(np.full((7, 7), 0.1))
    assert set(mtmm.components(np.full((7, 3, 7), 0.1)).components.values()) == {0.0}
    rng, names = np.random.default_rng(17), (("a", "b", "c"), ("x", "y", "z"))
    scores = rng.normal(size=(40, 3, 3))
    scores[:, 1, 2] = 0.1 + 1e-16 * rng.normal(size=40)
    assert mtmm.campbell_fiske(scores, *names)["convergent"].status == "undefined"
    flips, reruns = np.zeros((23, 7)), np.zeros((23, 5))
    flips[:, :2], reruns[:, 0] = 1, 1  # 2/7 less 1/5 in each case
    assert judge_bias.jbs(flips, reruns).estimate.ci is None
    halved = reasoning.rss(np.full(9, 0.1) * 3, np.full(9, 0.3)).estimate  # .30000000000000004 and .3
    assert (halved.value, halved.p_value) == (1, 1)
    assert simultaneous.intervals(np.full((7, 2), 0.1), 0.95, 1000, 0) == [(near(0.1), near(0.1))] * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_has_no_coordinate_is_refused(bad):
    table = np.ones((8, 2))
    table[3, 1] = bad
    for call in (
        lambda: paraphrase.pis([[row] for row in table], deterministic=True),
        lambda: position.ods(table, (0, 0)),
        lambda: framing.pss(table, np.ones((8, 2))),
        lambda: width.ow(table),
    ):
        with pytest.raises(UserError, match="finite"):
            call()
    with pytest.raises(UserError, match="axes"):
        framing.pss(np.ones((8, 2)), np.ones((8, 3)))
    with pytest.raises(UserError, match="one finite number an axis"):
        position.ods(np.ones((8, 2)), (0, 0, 0))
    with pytest.raises(UserError, match="0 nor 1"):
        judge_bias.jbs([[0, 2]], [[0]])


def test_estimates_move_with_the_unit_and_not_with_order_or_origin():
    rng = np.random.default_rng(4)
    base, framed = rng.normal(size=(9, 3)), rng.normal(size=(7, 3)) + 1
    first = framing.pss(base, framed)
    for scale, shift in ((1e-9, 0.0), (1e9, 0.0), (1.0, 1e4)):
        found = framing.pss(base[::-1] * scale + shift, framed * scale + shift)
        assert found.estimate.value == pytest.approx(first.estimate.value, rel=1e-6)
        high = found.estimate.detail["distance_interval"][1] / scale
        assert high == pytest.approx(first.estimate.detail["distance_interval"][1], rel=1e-4)
    near_, far = (position.ods(base * scale, np.zeros(3)).estimate for scale in (1.0, 1e6))
    assert far.bounds.high == pytest.approx(1e6 * near_.bounds.high, rel=1e-6)


def test_regions_that_overlap_and_anchors_that_are_few_are_refused():
    rng = np.random.default_rng(5)
    first = coverage.region(rng.normal(size=(12, 2)))
    with pytest.raises(UserError, match=r"trains: the regions .* overlap"):
        coverage.require_apart(first, coverage.region(rng.normal(size=(12, 2)) + 1), "trains")
    coverage.require_apart(first, coverage.region(rng.normal(size=(12, 2)) + 40), "trains")
    with pytest.raises(UserError, match="9 anchor texts; expected at least 10"):
        coverage.region(rng.normal(size=(9, 2)))
    assert 0.6 <= coverage.ceiling(rng.normal(size=(40, 2))) <= 1
    refused = coverage.Issue(
        "a", ([(0.0, 0.0)] * 2, [(40.0, 40.0)] * 5), (first, coverage.Ball(np.full(2, 40.0), 1)), (3, 0)
    )
    assert refused.shares == (0.4, 1.0)  # refusals count as not covered


def test_campbell_fiske_tells_traits_from_methods_and_asks_for_enough_units():
    rng = np.random.default_rng(6)
    trait, method = rng.normal(size=(60, 3, 1)), rng.normal(size=(60, 1, 3))
    names = (("a", "b", "c"), ("x", "y", "z"))
    good = mtmm.campbell_fiske(trait + 0.5 * rng.normal(size=(60, 3, 3)), *names, resamples=200)
    bad = mtmm.campbell_fiske(method + 0.5 * rng.normal(size=(60, 3, 3)), *names, resamples=200)
    assert (
        good["convergent"].value > 0.7 and abs(good["heterotrait"].value) < 0.2 and good["htmt_absolute"].value < 0.35
    )
    assert good["convergent"].bounds.low > 0.6
    assert abs(bad["convergent"].value) < 0.3
    assert good["discriminant"].value > 0.95 and good["discriminant_same_method"].value > 0.95
    assert bad["discriminant_same_method"].value < 0.05 and bad["same_method"].value > 0.7
    same = trait + method
    same[:, 1, 2] = 4.0  # a score that says nothing is no correlation of 0
    found = mtmm.campbell_fiske(same, *names, resamples=50)
    assert {one.status for one in found.values()} == {"undefined"} and "b by z is the same" in found[
        "convergent"
    ].reason
    few = mtmm.campbell_fiske(rng.normal(size=(29, 3, 3)), *names)
    assert few["htmt"].status == "insufficient_data" and "30" in few["htmt"].reason
    shared = {frozenset((("a", "x"), ("b", "y")))}
    assert mtmm.campbell_fiske(trait + method, *names, by_construction=shared, resamples=50)["heterotrait"].value != (
        mtmm.campbell_fiske(trait + method, *names, resamples=50)["heterotrait"].value
    )


def test_a_ratio_has_no_interval_and_the_distance_has_one():
    rng = np.random.default_rng(7)
    held = {"pss": 0, "lds": 0}
    for _ in range(200):
        drawn = rng.standard_t(3, size=(2, 20, 2)) / 6**0.5
        first, second = drawn[0], drawn[1] + (2.0, 0.0)
        pss = framing.pss(first, second, resamples=99)
        lds = languages.lds({"en": first, "fr": second}, resamples=99)
        for name, found in (("pss", pss), ("lds", lds)):
            low, high = found.estimate.detail["distance_interval"]
            held[name] += low <= 2 <= high
            assert found.estimate.ci is None and "no interval of the ratio" in found.estimate.assumptions[-1]
            assert low < found.estimate.detail["distance"] < high
    assert all(0.9 <= count / 200 <= 0.99 for count in held.values()), held


def test_a_judge_has_an_interval_that_holds_where_flips_are_rare():
    rng, held = np.random.default_rng(8), 0
    for _ in range(400):
        ease = rng.beta(0.2, 1.8, size=(20, 1))
        found = judge_bias.jbs(rng.random((20, 5)) < ease, rng.random((20, 5)) < ease).estimate
        held += found.ci is None or found.bounds.low <= 0 <= found.bounds.high
    assert 0.92 <= held / 400 <= 0.985  # the percentile bootstrap: .88


@pytest.mark.parametrize("size", [1e-160, 1e-90, 1e50])
def test_values_of_any_size_are_measured_or_refused(size):
    rng = np.random.default_rng(9)
    table = rng.normal(size=(3, 8, 2))
    with np.errstate(all="raise", under="ignore"):
        own, plain = (position.ods(table[0] * k, (0, 0)).estimate for k in (size, 1.0))
        assert own.bounds.high == pytest.approx(size * plain.bounds.high, rel=1e-9)
        for found in (framing.pss(table[0] * size, table[1] * size), turns.ds(list(table * size))):
            assert found.estimate.status == "ok" and np.isfinite(found.estimate.value)
    with pytest.raises(UserError, match=r"1e\+60: its square is no number"):
        position.ods(table[0] * 1e70, (0, 0))


def test_what_makes_no_sense_is_refused_in_one_sentence():
    for call, sentence in (
        (lambda: paraphrase.pis([np.zeros((0, 2)), *[np.ones((2, 2))] * 7]), "wording 1 has no draws"),
        (lambda: position.ods(np.ones((8, 1)), [1], reference_variance=-1.0), "expected a number from 0"),
        (lambda: reasoning.rss([np.nan] * 9, [1.0] * 9), "not finite"),
        (lambda: judge_bias.jbs([[1, 0], [1]], [[0], [0]]), "expected a full table"),
    ):
        with pytest.raises(UserError, match=sentence):
            call()
    estimated = position.ods(np.ones((8, 1)), [2], reference_variance=0.25).estimate  # only the reference has noise
    assert estimated.detail["squared"] == near(0.75) and estimated.bounds.high == near(1 + 1.959964 * 0.5)
    assert paraphrase.pis([[[1.0]]] * 4 + [[[2.0], [3.0]]] * 4).estimate.status == "ok"


def test_correlations_are_disattenuated_beside_the_raw_ones_where_two_methods_share_no_output():
    """Traits agree between methods with r = .8, and half of the variance of every score is noise of its eight wordings."""
    rng, names = np.random.default_rng(12), (("a", "b", "c"), ("x", "y", "z"))
    true = rng.normal(size=(300, 3, 1)) + 0.5 * rng.normal(size=(300, 3, 3))
    noise = 8**0.5 * 1.1 * rng.normal(size=(8, 300, 3, 3))
    orders = [rng.permutation(8) for _ in range(6)]
    halves = np.array([[true + noise[order[k::2]].mean(0) for k in (0, 1)] for order in orders])
    scores = true + noise.mean(0)
    found = mtmm.campbell_fiske(scores, *names, halves=halves, resamples=60)
    assert found["convergent"].value == pytest.approx(0.8 / (1 + 1.1**2 / 1.25), abs=0.04)
    assert found["convergent_disattenuated"].value == pytest.approx(0.79, abs=0.04)  # Spearman's of .8
    assert found["convergent_disattenuated"].bounds.low < 0.79 < found["convergent_disattenuated"].bounds.high
    assert abs(found["heterotrait_disattenuated"].value) < 0.1
    assert mtmm.reliability(halves.reshape(6, 2, 300, 9)).mean() == pytest.approx(1.25 / (1.25 + 1.1**2), abs=0.05)
    table = mtmm.pairs(scores, *names, halves, {frozenset((("a", "x"), ("b", "y")))})
    kinds = {kind: [row for row in table if row["kind"] == kind] for kind in {row["kind"] for row in table}}
    assert {kind: len(rows) for kind, rows in kinds.items()} == {
        "convergent": 9, "heterotrait": 17, "same method": 9, "by construction": 1}  # fmt: skip
    assert all(row["disattenuated"] is None for kind in ("same method", "by construction") for row in kinds[kind])
    assert np.mean([row["disattenuated"] for row in kinds["convergent"]]) == pytest.approx(
        found["convergent_disattenuated"].value
    )
    without = mtmm.campbell_fiske(scores, *names, resamples=10)["convergent_disattenuated"]
    assert without.status == "insufficient_data" and without.value is None
    blind = mtmm.campbell_fiske(scores, *names, halves=rng.normal(size=halves.shape), resamples=10)
    assert blind["convergent_disattenuated"].status == "undefined"


def test_the_floor_of_a_paired_turn_is_that_of_its_differences_with_any_signs():
    """Of two turns there are 128 signs: all of them, listed. A third turn that moves wordings apart has no say in it."""
    rng = np.random.default_rng(13)
    words = 5 * rng.normal(size=(7, 2))
    turn = [words + 0.4 * rng.normal(size=(7, 2)), words + 0.4 * rng.normal(size=(7, 2)) + (2, 1)]
    found = turns.paired_floor(turn, 0, 0.95)
    moved = turn[1] - turn[0]
    moved = (moved - moved.mean(0)) * (7 / 6) ** 0.5
    signs = np.array(np.meshgrid(*[(1.0, -1.0)] * 7)).reshape(7, -1)
    walked = np.linalg.norm(signs.T @ moved / 7, axis=1)
    assert found["path_floor"] == pytest.approx(walked.mean(), rel=0.05)
    assert found["path_floor_high"] == pytest.approx(np.quantile(walked, 0.95), rel=0.05)
    assert found["floor_mean"] == [0, pytest.approx(found["path_floor"])]
    more = [turn[0], turn[1], words + 0.4 * rng.normal(size=(7, 2))]
    assert 1.2 < turns.paired_floor(more, 0, 0.95)["path_floor"] / found["path_floor"] < 3


def test_a_turn_that_moves_does_not_raise_the_floor_of_another():
    """Turn 1 is turn 0 to within .02; turn 2 moves each wording its own way by 1. The floor of turn 1 was .32."""
    rng = np.random.default_rng(0)
    words = rng.normal(size=(8, 2))
    short = [words, words + 0.02 * rng.normal(size=(8, 2))]
    for options in ({}, {"repeats": [[w + 0.02 * rng.normal(size=(5, 2)) for w in turn] for turn in [words] * 3]}):
        fewer = {name: given[:2] for name, given in options.items()}
        alone = turns.ds(short, paired=True, **fewer).estimate.detail
        more = turns.ds([*short, words + rng.normal(size=(8, 2))], paired=True, **options).estimate.detail
        assert 0.001 < more["floor_mean"][1] < 0.02
        assert more["floor_mean"][1] == pytest.approx(alone["floor_mean"][1], rel=0.1)
        assert alone["path_floor"] == pytest.approx(alone["floor_mean"][1])
    assert more["path_floor"] == pytest.approx(2 * alone["path_floor"], rel=0.1)  # of draws of turn 0 alone
    assert 0.3 < turns.ds([words, words + rng.normal(size=(8, 2))], paired=True).estimate.detail["floor_mean"][1] < 0.8
    exact = turns.ds(short, paired=True, exact=True).estimate
    assert exact.detail["floor_mean"] is exact.detail["path_floor"] is None and exact.value is not None
    single = turns.ds(short, paired=True, repeats=[[w[None] for w in turn] for turn in short]).estimate
    assert single.detail["floor_high"] is None


def test_the_floor_of_draws_has_the_variance_of_the_means():
    """Distances of two means of 8 wordings with 5 draws each, of noise 1 in 16 axes: their square is 2/40 on average."""
    rng = np.random.default_rng(19)
    squares = []
    for seed in range(20):
        start = list(3 * rng.normal(size=(8, 1, 16)) + rng.normal(size=(8, 5, 16)) / 4)
        found = turns.noise_floor(start, [[5] * 8] * 3, seed, 0.95)
        squares.append(found["floor_mean"][2] ** 2 + found["floor_sd"][2] ** 2)
        assert found["floor_high"][2] < found["path_floor_high"] < 3 * found["floor_high"][2]
    assert np.mean(squares) == pytest.approx(2 / 40, rel=0.1)


def test_the_intervals_of_a_trace_hold_for_all_heads_at_once():
    rng = np.random.default_rng(14)
    held = 0
    for _ in range(60):
        changes = rng.normal(size=(8, 40)) * np.arange(1, 41)
        held += all(low <= 0 <= high for low, high in simultaneous.intervals(changes, 0.95, 1000, 0))
    assert held >= 52  # the studentised maximum of bootstrap means: about 12
    same = np.tile(rng.normal(size=(10, 1)), (1, 50))  # fifty heads that are one: no price for their number
    low, high = simultaneous.intervals(same, 0.95, 2000, 0)[0]
    assert (high - low) / 2 / (same[:, 0].std(ddof=1) / 10**0.5) == pytest.approx(2.26, abs=0.3)
    assert simultaneous.intervals(np.full((8, 2), 3.0), 0.95, 1000, 0) == [(3.0, 3.0)] * 2
    grouped = simultaneous.by_topic(np.array([[1.0], [3.0], [7.0]]), ["a", "a", "b"])
    assert grouped.tolist() == [[2.0], [7.0]]


def test_the_interval_of_no_distance_is_not_too_wide_where_tails_are_heavy():
    """384 axes of t3 noise, five points: the normal estimate of tr M^2 held .995 of these; at 0 one side alone can miss."""
    rng, held = np.random.default_rng(15), 0
    for _ in range(200):
        drawn = rng.standard_t(3, size=(2, 5, 384))
        held += displacement.between(drawn[0].mean(0) - drawn[1].mean(0), list(drawn), 0.95).low == 0
    assert 0.94 <= held / 200 <= 0.99


@pytest.mark.parametrize("kind", ["normal", "t3"])
def test_an_interval_of_what_wording_moves_holds_where_wordings_have_heavy_tails(kind):
    """Eight wordings of five draws in two axes, tau 1; with equal sides .87 with t3."""
    rng, held = np.random.default_rng(16), 0
    for _ in range(500):
        words = rng.normal(size=(8, 1, 2)) / 2**0.5 if kind == "normal" else rng.standard_t(3, size=(8, 1, 2)) / 6**0.5
        low, high = spread.variance_interval(spread.of(words + rng.normal(size=(8, 5, 2)) / 2**0.5), 0.95) or (1, 0)
        held += low <= 1 <= high
    assert 0.92 <= held / 500 <= 0.985
