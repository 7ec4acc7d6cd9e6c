"""Effect sizes between head groups, and detection rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from calibrations import statistics as st
from calibrations.statistics import Insufficient

RNG = np.random.default_rng(0)


def test_noncentral_t_interval_leaves_the_tails_it_promises() -> None:
    for d, n1, n2 in ((0.8, 7, 137), (-0.3, 20, 20), (6.0, 5, 139)):
        low, high = st.cohen_d_interval(d, n1, n2, 0.90)
        scale = math.sqrt(n1 * n2 / (n1 + n2))
        assert stats.nct.sf(d * scale, n1 + n2 - 2, low * scale) == pytest.approx(0.05, abs=1e-6)
        assert stats.nct.cdf(d * scale, n1 + n2 - 2, high * scale) == pytest.approx(0.05, abs=1e-6)
        assert st.cohen_d_interval(-d, n1, n2, 0.90) == pytest.approx((-high, -low), abs=1e-7)


def test_hedges_factor() -> None:
    a, b = RNG.normal(1, 1, 6), RNG.normal(0, 1, 9)
    assert st.hedges_g(a, b) / st.cohen_d(a, b) == pytest.approx(1 - 3 / (4 * 13 - 1), abs=5e-4)


def test_rms_and_pooled_forms_agree_for_equal_sizes() -> None:
    a, b = RNG.normal(1, 1, 8), RNG.normal(0, 2, 8)
    assert st.d_prime_rms(a, b) == pytest.approx(st.cohen_d(a, b), rel=1e-12)
    assert st.d_prime_rms(a, b) == pytest.approx(-st.d_prime_rms(b, a), rel=1e-12)


def test_one_head_has_no_sd() -> None:
    for function in (st.d_prime_rms, st.cohen_d):
        with pytest.raises(Insufficient) as raised:
            function([1.0], [0.0, 0.5])
        assert raised.value.reason == "n_heads"


def test_cliff_delta_is_two_auroc_minus_one() -> None:
    scores, labels = np.round(RNG.normal(size=60), 1), np.arange(60) < 15
    delta = st.cliff_delta(scores[labels], scores[~labels])
    assert delta == pytest.approx(2 * st.discrimination(labels, scores).auroc - 1, abs=1e-12)


def test_auroc_and_average_precision_by_counting() -> None:
    scores, labels = np.round(RNG.normal(size=144), 1), np.arange(144) < 26
    scores[labels] += 0.7
    result = st.discrimination(labels, scores)
    wins = [(x > y) + 0.5 * (x == y) for x in scores[labels] for y in scores[~labels]]
    assert result.auroc == pytest.approx(np.mean(wins), abs=1e-12)
    called = [scores >= threshold for threshold in sorted(set(scores), reverse=True)]
    recall = [0.0, *((chosen & labels).sum() / 26 for chosen in called)]
    precision = [labels[chosen].mean() for chosen in called]
    assert result.average_precision == pytest.approx(np.diff(recall) @ precision, abs=1e-12)


def test_a_d_of_one_is_an_auroc_of_three_quarters() -> None:
    scores = np.concatenate([stats.norm.ppf((np.arange(500) + 0.5) / 500) + shift for shift in (1.0, 0.0)])
    auroc = st.discrimination(np.arange(1000) < 500, scores).auroc
    assert auroc == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=2e-3)
    assert auroc == pytest.approx(0.760, abs=2e-3)


def test_delong_interval_covers() -> None:
    labels = np.arange(144) < 26
    truth, hits = stats.norm.cdf(1 / math.sqrt(2)), 0
    for _ in range(500):
        low, high = st.auroc_interval(labels, RNG.normal(size=144) + labels, 0.90)
        hits += low < truth < high
    assert hits / 500 == pytest.approx(0.90, abs=3 * math.sqrt(0.09 / 500) + 0.01)


def test_delong_interval_is_symmetric_on_the_logit_scale_and_stays_inside() -> None:
    labels = np.arange(32) < 7
    scores = np.concatenate([np.linspace(1, 2, 6), [0.55], np.linspace(0, 1, 24), [1.05]])
    place = (np.sign(scores[labels][:, None] - scores[~labels]) + 1) / 2
    area = place.mean()
    error = math.sqrt(place.mean(1).var(ddof=1) / 7 + place.mean(0).var(ddof=1) / 25)
    low, high = st.auroc_interval(labels, scores, 0.95)
    assert area + 1.96 * error > 1 > high  # the plain interval would leave the scale
    centre, half = np.log(area / (1 - area)), stats.norm.ppf(0.975) * error / (area * (1 - area))
    assert [np.log(x / (1 - x)) for x in (low, high)] == pytest.approx([centre - half, centre + half], rel=1e-9)


def test_complete_separation_has_no_delong_interval() -> None:
    labels = np.arange(20) < 5
    with pytest.raises(Insufficient) as raised:
        st.auroc_interval(labels, labels.astype(float) + 1e-3 * np.arange(20))
    assert raised.value.reason == "zero_variance"
    for flat, reason in ((np.ones(5), "all_selected"), (np.zeros(5), "n_heads")):
        with pytest.raises(Insufficient) as raised:
            st.discrimination(flat, np.arange(5.0))
        assert raised.value.reason == reason


@pytest.mark.parametrize(("k", "n"), [(0, 20), (3, 7), (2.5, 6.4), (144, 144), (81, 263)])
def test_wilson_ends_are_where_the_score_test_stops_rejecting(k: float, n: float) -> None:
    for level in (0.90, 0.95):
        low, high = st.wilson_interval(k, n, level)
        ends = [share for share in (low, high) if 0 < share < 1]
        z = [abs(k / n - share) / math.sqrt(share * (1 - share) / n) for share in ends]
        assert z == pytest.approx([stats.norm.ppf((1 + level) / 2)] * len(ends), rel=1e-9)
        assert (low == 0) == (k == 0) and (high == 1) == (k == n)
    with pytest.raises(Insufficient):
        st.wilson_interval(0, 0)
    with pytest.raises(ValueError, match="8 successes in 7 trials"):
        st.wilson_interval(8, 7)


def test_rates_at_their_limits() -> None:
    assert st.d_prime_of_rates(1.0, 0.0) == (math.inf, 0.0)
    assert st.d_prime_of_rates(1.0, 0.5) == (math.inf, -math.inf)
    assert st.d_prime_of_rates(0.3, 0.3)[0] == 0.0
    assert st.signal_detection(8, 2, 3, 17).criterion == pytest.approx(
        -(stats.norm.ppf(0.8) + stats.norm.ppf(0.15)) / 2
    )


def test_false_alarms_by_counting() -> None:
    result = st.false_alarms(recall=20 / 25, precision=20 / 30, n_circuit=25, n_heads=144)
    assert result.false_alarm_rate == pytest.approx(10 / 119)
    with pytest.raises(Insufficient) as raised:
        st.false_alarms(0.5, 0.0, 25, 144)
    assert raised.value.reason == "ratio_undefined"
