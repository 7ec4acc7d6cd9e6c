from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from calibrations import statistics as st
from calibrations.statistics import Insufficient

M3B = {"certified": 0.95, "contingent": 0.5, "circuit_fraction": 0.5}


@pytest.mark.parametrize(
    ("eta2", "label"),
    [(0.0099, "invariant"), (0.01, "moderate"), (0.06, "moderate"), (0.0601, "template-sensitive")],
)
def test_c13_label_keeps_both_ends_in_the_middle(eta2: float, label: str) -> None:
    assert st.c13_label(eta2, invariant=0.01, sensitive=0.06) == label


@pytest.mark.parametrize(
    ("cv", "label"),
    [
        (0.0499, "excellent"),
        (0.05, "acceptable"),
        (0.1, "marginal"),
        (0.2, "marginal"),
        (0.21, "problematic"),
    ],
)
def test_c30_label(cv: float, label: str) -> None:
    assert st.c30_label(cv, excellent=0.05, acceptable=0.10, problematic=0.20) == label


@pytest.mark.parametrize(
    ("delta", "label"), [(-0.1, "none"), (0.0, "none"), (0.1, "adds value"), (0.11, "substantial")]
)
def test_c36_label(delta: float, label: str) -> None:
    assert st.c36_label(delta, adds_value=0.0, substantial=0.1) == label


def test_published_verdict_reads_the_rule_literally() -> None:
    assert [st.published_verdict(0.1, rule, 0.1) for rule in (">", ">=", "<", "<=")] == [
        "fail",
        "pass",
        "fail",
        "pass",
    ]


def test_split_half_as_worded_has_expectation_zero() -> None:
    """Pairing unrelated prompts; a perfect circuit does not pass .7."""
    rng = np.random.default_rng(0)
    values = [st.c16_split_half(rng.normal(0.85, 0.5, 100)) for _ in range(500)]
    assert abs(np.median(values)) < 0.05 and np.mean(np.array(values) > 0.7) < 0.01


def test_divergence_names_what_is_missing() -> None:
    assert st.divergence({"zero": 1.3, "mean": 0.8, "resample": -0.1}) == pytest.approx(1.4)
    with pytest.raises(Insufficient, match=r"no theta for resample; max - min of the others is 0\.05"):
        st.divergence({"zero": 0.85, "mean": 0.8, "resample": None})
    with pytest.raises(Insufficient) as raised:
        st.divergence({"zero": 0.85})
    assert raised.value.reason == "n_methods"


def test_m3b_rule_is_a_t_above_eight_tenths() -> None:
    """A head with no effect is certified in a fifth of samples."""
    threshold = st.m3b_equivalent_t(0.95, 0.8)
    assert threshold == pytest.approx(0.822, abs=5e-4)
    assert stats.norm.sf(threshold) == pytest.approx(0.205, abs=1e-3)
    rng = np.random.default_rng(0)
    x = rng.normal(0.05, 1, 100)
    subsamples = np.array([rng.permutation(x)[:80].mean() for _ in range(4000)])
    t = float(st.mean_test(x[:, None]).t[0])
    assert (subsamples > 0).mean() == pytest.approx(stats.norm.cdf(2 * t), abs=0.03)


def test_m3b_labels_compare_counts() -> None:
    result = st.m3b_labels([950, 949, 500, 499], 1000, **M3B)
    assert result.labels == ["certified", "contingent", "contingent", "unstable"]
    assert (result.fraction_certified, result.verdict) == (0.25, "fail")
    assert st.m3b_labels([950, 1], 1000, **M3B).verdict == "pass"


def test_discriminant_null_pass_probability_by_simulation() -> None:
    rng = np.random.default_rng(0)
    for n_tasks, expected in ((2, 0.10), (3, 0.14), (5, 0.19), (15, 0.28)):
        effects = rng.normal(size=(20_000, n_tasks))
        passes = np.mean(effects[:, 0] > 3 * np.abs(effects[:, 1:].mean(axis=1)))
        assert st.discriminant_null_pass(n_tasks, 3) == pytest.approx(passes, abs=0.01)
        assert st.discriminant_null_pass(n_tasks, 3) == pytest.approx(expected, abs=0.006)


def test_discriminant_matrix_must_be_square_with_two_tasks() -> None:
    with pytest.raises(ValueError, match="source task"):
        st.discriminant_ratios(np.ones((2, 3)))
    with pytest.raises(Insufficient) as raised:
        st.discriminant_ratios([[1.0, 0.0], [0.5, 1.0]])
    assert raised.value.reason == "ratio_undefined"
    assert st.off_diagonal_means([[9.0, 1, 2], [3, 9, 4], [5, 6, 9]]).tolist() == [1.5, 3.5, 5.5]


@pytest.mark.parametrize(("sizes", "floor"), [((1, 1, 1), 1 / 6), ((2, 1, 1), 1 / 12), ((2, 2, 1), 1 / 30)])
def test_role_permutation_floors_of_the_specification(sizes: tuple, floor: float) -> None:
    assert st.minimum_role_p(sizes) == pytest.approx(floor)


def test_role_depth_reaches_its_floor_and_sees_the_sign() -> None:
    layers, roles = [1, 2, 5, 6, 9], [1, 1, 2, 2, 4]
    test = st.role_depth(layers, roles, n_resamples=9999, seed=0)
    assert test.p == pytest.approx(1 / 30) == test.minimum_p
    assert st.role_depth(layers[::-1], roles, n_resamples=9999, seed=0).statistic < 0
    with pytest.raises(Insufficient) as raised:
        st.role_depth([3, 3, 3, 3, 3], roles, n_resamples=9999, seed=0)
    assert raised.value.reason == "zero_variance"


def test_layer_density_null_is_the_redraw_of_head_positions() -> None:
    counts, per_layer = [0, 1, 2], 2
    result = st.layer_density(counts, per_layer, n_resamples=100, seed=0)
    null = []
    for heads in itertools.combinations(range(6), 3):
        drawn = np.bincount(np.array(heads) // 2, minlength=3)
        null.append(0.0 if np.ptp(drawn) == 0 else stats.spearmanr(range(3), drawn).statistic)
    null = np.array(null)
    assert result.rho == pytest.approx(1.0) and result.permutation.n_relabellings == 20
    tails = (null >= 1 - 1e-9).mean(), (null <= 1 + 1e-9).mean()
    assert result.permutation.p == pytest.approx(min(1, 2 * min(tails)))


def test_random_circuits_rarely_show_a_density_trend() -> None:
    rng, significant = np.random.default_rng(0), 0
    for i in range(200):
        counts = np.bincount(rng.choice(144, 12, replace=False) // 12, minlength=12)
        significant += st.layer_density(counts, 12, n_resamples=199, seed=i).permutation.p < 0.05
    assert significant / 200 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)
