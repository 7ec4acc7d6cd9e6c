"""C11: numbers of the bootstrap and of the bound on sigma."""

import numpy as np
import pytest
from scipy import stats

from calibrations.c11_bootstrap_stability import calibrate
from calibrations.evidence import Evidence
from tests.calibrations.settings import clean_of, config_of, set_intact, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("c11")


def of(**law):
    return calibrate(evidence(**law), CONFIG)


def test_a_planted_circuit_is_stable_and_both_inner_metrics_gate():
    faithfulness, completeness = of()
    assert (faithfulness.metric, completeness.metric) == (
        "C11.bootstrap_faithfulness",
        "C11.bootstrap_completeness",
    )
    assert faithfulness.gating and completeness.gating
    assert (faithfulness.verdict, faithfulness.published_verdict) == ("pass", "pass")
    # sd(y) = noise / mean D = .08, so sigma = .08 / sqrt(400).
    assert faithfulness.estimate == pytest.approx(0.004, rel=0.1)


def test_the_bound_is_the_chi_square_bound_of_the_standard_error_over_clusters_within_templates():
    subject = evidence(noise=3.0)
    record = calibrate(subject, CONFIG)[0]
    f, d = subject.ablated("circuit"), subject.clean
    theta = f.sum() / d.sum()
    residual = (f - theta * d) / d.mean()
    squares, variance = [], 0.0
    for template in np.unique(subject.templates):
        inside = subject.templates == template
        own, labels = residual[inside] - residual[inside].mean(), subject.clusters[inside]
        totals = np.array([own[labels == label].sum() for label in np.unique(labels)])
        variance += len(totals) / (len(totals) - 1) * (totals**2).sum() / len(f) ** 2
        squares.extend(totals**2)
    q, sigma = np.array(squares), np.sqrt(variance)
    most = len(q) - len(np.unique(subject.templates))
    freedom = min(most, 2 * q.sum() ** 2 / ((q - q.mean()) ** 2).sum() * most / len(q))
    assert record.published_value == pytest.approx(theta)
    assert record.estimate == pytest.approx(sigma)
    assert record.companions["degrees_of_freedom"] == pytest.approx(freedom) and freedom < most
    assert record.ci90[1] == pytest.approx(sigma * np.sqrt(freedom / stats.chi2.ppf(0.05, freedom)))
    assert record.p == pytest.approx(max(stats.chi2.cdf(freedom * (sigma / 0.1) ** 2, freedom), 1e-300))
    assert record.effect_size == pytest.approx(residual.std(ddof=1))


def test_templates_are_fixed_by_design_so_their_differences_are_no_sampling_error():
    """Templates .4 apart add .2 to the SD of scores; samples hold the same templates, so sigma stays noise / mean D."""
    record = of(template_shift=0.4)[0]
    assert record.estimate == pytest.approx(0.4 / 5 / np.sqrt(400), rel=0.15)
    assert record.companions["with_templates_drawn_too"] > 2 * record.estimate


def test_published_sigma_has_ddof_0_over_1000_resamples_of_prompts():
    subject = evidence(noise=3.0)
    record = calibrate(subject, CONFIG)[0]
    rng = np.random.default_rng(1)
    rows = rng.integers(400, size=(20000, 400))
    f, d = subject.ablated("circuit"), subject.clean
    brute = (f[rows].sum(1) / d[rows].sum(1)).std()
    assert float(record.published_label.split()[1].rstrip(",")) == pytest.approx(brute, rel=0.07)


def test_proportional_logit_differences_pass_with_a_note():
    docs = documents()
    record = calibrate(Evidence(set_intact(docs, "circuit", 0.9 * clean_of(docs)), COMMON), CONFIG)[0]
    assert record.verdict == "pass" and record.notes[0].startswith("zero_variance")
    assert record.estimate == pytest.approx(0, abs=1e-12) and record.p is None


def test_a_noisy_circuit_fails_and_says_how_many_prompts_it_takes():
    record = of(noise=18.0, n_evaluation=150, n_templates=3)[0]
    assert (record.published_verdict, record.verdict) == ("fail", "fail")
    assert record.p > 0.95
    needed = int(record.needs.split()[1])
    assert needed == pytest.approx(1.3 * 150 * (record.estimate / CONFIG["max_sigma"]) ** 2, abs=1)


def test_a_null_circuit_is_as_stable_as_a_good_one_and_is_not_certified():
    record = of(faithfulness=0.1)[0]
    assert record.published_verdict == "pass"  # the published rule sees nothing
    assert record.verdict == "insufficient" and record.reasons[0].startswith("not_faithful")


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        ({"n_evaluation": 8}, "n_prompts"),
        ({"mean_clean": -1.0}, "behaviour_absent"),
        ({"mean_clean": 0.1}, "denominator"),
    ],
)
def test_insufficient(law, reason):
    record = of(**law)[0]
    assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_clustered_prompts_widen_sigma():
    """Prompts that share a frame and names are no independent evidence."""
    docs = documents(n_clusters=10, n_templates=2, n_evaluation=400)
    base = docs["01"]["data"]
    size = np.random.default_rng(0).normal(size=10)
    bump = dict(zip(sorted(set(base["cluster"])), size, strict=True))
    shift = np.array([bump[name] for name in base["cluster"]])
    record = calibrate(Evidence(set_intact(docs, "circuit", 0.9 * clean_of(docs) + shift), COMMON), CONFIG)[0]
    assert record.estimate > 2 * record.effect_size / np.sqrt(400)


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(noise=3.0)
    first = [record.to_dict() for record in calibrate(Evidence(docs, COMMON), CONFIG)]
    assert first == [record.to_dict() for record in calibrate(Evidence(docs, COMMON), CONFIG)]
    assert first == [record.to_dict() for record in calibrate(Evidence(shuffled(docs), COMMON), CONFIG)]
