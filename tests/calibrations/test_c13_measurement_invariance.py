"""C13: eta squared of the circuit's faithfulness, its equivalence test, factors other than the template."""

import json

import numpy as np
import pytest
from scipy import stats

from calibrations.c13_measurement_invariance import calibrate
from calibrations.evidence import Evidence
from tests.calibrations.settings import clean_of, config_of, set_intact, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("c13")
QUICK = {**CONFIG, "permutations": 99, "bootstrap_resamples": 99}  # for rates over many samples


def one(subject, config=CONFIG):
    (record,) = calibrate(subject, config)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def test_an_invariant_circuit_passes_by_equivalence():
    record = one(evidence())
    assert (record.verdict, record.published_label, record.gating) == ("pass", "invariant", True)
    assert record.p < 0.001 and record.p_kind == "F (equivalence)"


def test_eta_squared_by_hand_on_linearised_scores():
    subject = evidence(noise=2.0, template_shift=0.1)
    f, d = subject.ablated("circuit"), subject.clean
    y = f.sum() / d.sum() + (f - f.sum() / d.sum() * d) / d.mean()
    groups = [y[subject.templates == name] for name in np.unique(subject.templates)]
    between = sum(len(g) * (g.mean() - y.mean()) ** 2 for g in groups)
    record = one(subject)
    # peer D9: a renamed column of pingouin made this p None without a word
    assert record.companions["welch_p"] == pytest.approx(stats.f_oneway(*groups, equal_var=False).pvalue)
    assert record.published_value == pytest.approx(between / ((y - y.mean()) ** 2).sum())
    assert record.estimate == record.published_value
    k, n = len(groups), len(y)
    f_value = stats.f_oneway(*groups).statistic
    assert record.effect_size == pytest.approx((k - 1) * (f_value - 1) / ((k - 1) * (f_value - 1) + n))


def test_a_template_bound_circuit_fails():
    record = one(evidence(template_shift=0.3))
    assert (record.published_label, record.published_verdict, record.verdict) == (
        "template-sensitive",
        "fail",
        "fail",
    )
    assert record.ci90[0] > 0.5
    assert record.companions["largest_difference"]["difference"] == pytest.approx(0.3, abs=0.05)


def test_a_head_that_works_for_some_names_is_seen_though_templates_agree():
    record = one(evidence(cluster_shift=0.5))
    assert record.published_verdict == "pass"
    assert record.verdict == "fail" and "faithfulness varies by cluster" in record.reasons
    assert record.companions["by_factor"]["cluster"]["permutation_p"] == pytest.approx(0.001)
    assert record.companions["by_factor"]["order"]["varies"] is False
    assert record.p > 0.05  # the equivalence of templates is not what this record stands on


def test_the_clean_logit_difference_is_not_what_is_tested():  # peer D16
    docs = documents(template_shift=0.3)
    flat = Evidence(docs, COMMON)
    swapped = Evidence(
        set_intact(
            documents(template_shift=0.3),
            "circuit",
            0.9 * clean_of(docs) + np.random.default_rng(3).normal(0, 0.4, len(clean_of(docs))),
        ),
        COMMON,
    )
    assert one(flat).estimate > 0.5 > 0.05 > one(swapped).estimate


def test_small_samples_are_not_called_sensitive():  # peer D17: E[eta2] = (k-1)/(n-1)
    labels = [one(evidence(seed=seed, n_evaluation=48, n_templates=3, noise=2.0), QUICK) for seed in range(40)]
    assert np.mean([record.published_value for record in labels]) == pytest.approx(2 / 47, abs=0.02)
    assert sum(record.published_verdict == "fail" for record in labels) >= 4  # the published rule's false alarms
    assert sum(record.verdict == "fail" for record in labels) <= 2


def test_a_true_difference_at_the_margin_passes_at_most_at_the_level():
    """Group means with eta squared of exactly the margin: equivalence is claimed in 5 % of samples."""
    margin, passes = CONFIG["equivalence_margin"], 0
    f2 = margin / (1 - margin)
    strict = {**QUICK, "min_spread": 0.0}
    for seed in range(60):
        docs = documents(seed=seed, n_evaluation=240, n_held_out=0, n_templates=3, n_random=20)
        noise = np.random.default_rng(1000 + seed).normal(0, 1.0, 240)
        shift = np.sqrt(1.5 * f2) * (np.arange(240) % 3 - 1)
        set_intact(docs, "circuit", 0.95 * clean_of(docs) + noise + shift)
        passes += one(Evidence(docs, COMMON), strict).verdict == "pass"
    assert passes <= 8


def test_a_difference_too_small_to_matter_is_undecided_however_exact_the_measurement():
    record = one(evidence(template_shift=0.02, noise=0.005))
    assert record.published_verdict == "fail" and record.estimate > 0.9
    assert record.verdict == "inconclusive" and record.p > 0.99  # the margin is fixed: never a pass
    assert "only by an SD of 0.01" in record.reasons[0]
    large = one(evidence(template_shift=0.2, noise=0.005))
    assert large.verdict == "fail" and large.companions["between_sd"] > CONFIG["min_spread"]


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        ({"n_evaluation": 50}, "n_prompts"),
        ({"n_templates": 1}, "n_clusters"),
        ({"n_evaluation": 24, "n_templates": 2}, "n_prompts"),
        ({"faithfulness": 0.1}, "not_faithful"),
    ],
)
def test_insufficient(law, reason):
    record = one(evidence(**law))
    assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_one_template_falls_back_to_length_in_the_published_half_only():
    docs = documents(n_templates=1)
    docs["01"]["data"]["factors"]["length"] = [10 + i % 9 for i in range(600)]
    record = one(Evidence(docs, COMMON))
    assert record.published_label.startswith("by length: ")
    assert record.verdict == "insufficient"


def test_zero_variance_inside_groups_gives_no_verdict():
    docs = documents()
    record = one(Evidence(set_intact(docs, "circuit", 0.9 * clean_of(docs)), COMMON))
    assert record.verdict == "insufficient" and "zero_variance" in record.reasons[0]


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(template_shift=0.1)
    assert one(Evidence(docs, COMMON)).to_dict() == one(Evidence(shuffled(docs), COMMON)).to_dict()
