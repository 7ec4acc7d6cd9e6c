"""C13: eta squared of the circuit's faithfulness, its equivalence test, factors other than the template."""

import json

import numpy as np
import pytest
from scipy import stats

from calibrations import c13_measurement_invariance as c13
from calibrations.c13_measurement_invariance import calibrate
from calibrations.evidence import Evidence
from calibrations.statistics import equivalence_test, eta2_interval, ratio_of_means, split_groups
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


def test_the_prompts_that_are_needed_have_the_power_and_begin_at_the_minimum_per_group():
    subject = evidence(n_evaluation=100, n_clusters=100, noise=1.5)
    record = one(subject)
    assert record.verdict == "inconclusive"
    effect = c13.grouping(c13._scores(subject), subject.templates, subject.clusters, 10).effect.design_effect
    k = len(np.unique(subject.templates))
    f2, n = 0.06 / 0.94, k * CONFIG["minimum_per_group"]

    def power(n):
        return stats.f.cdf(stats.ncf.ppf(0.05, k - 1, n - k, n * f2), k - 1, n - k)

    while power(n) < CONFIG["target_power"]:
        n = int(np.ceil(n * 1.05))
    assert record.needs == f"about {int(np.ceil(n * effect))} prompts"


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


@pytest.mark.slow
def test_small_samples_are_not_called_sensitive():  # peer D17: E[eta2] = (k-1)/(n-1)
    labels = [one(evidence(seed=seed, n_evaluation=48, n_templates=3, noise=2.0), QUICK) for seed in range(40)]
    assert np.mean([record.published_value for record in labels]) == pytest.approx(2 / 47, abs=0.02)
    assert sum(record.published_verdict == "fail" for record in labels) >= 4  # the published rule's false alarms
    assert sum(record.verdict == "fail" for record in labels) <= 2


@pytest.mark.slow
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


def test_a_difference_too_small_to_matter_passes_however_exact_the_measurement():
    """Template means with an SD of .01, noise of .001: eta squared near 1, and equivalent all the same."""
    record = one(evidence(template_shift=0.02, noise=0.005))
    assert record.published_verdict == "fail" and record.estimate > 0.9
    assert record.verdict == "pass" and record.p < 0.001
    large = one(evidence(template_shift=0.2, noise=0.005))
    assert large.verdict == "fail" and large.companions["between_sd"] > CONFIG["min_spread"]


def test_the_margin_is_the_larger_of_the_relative_and_the_absolute_one():
    """Noise of .4 / 5 = .08 per prompt: an SD of .05 is eta squared .28; noise of .4: .0154, below the relative .06."""
    clusters = np.array([f"c{i}" for i in range(600)])
    labels = np.array([f"t{i % 6}" for i in range(600)])
    for sd, expected in ((0.08, 0.05**2 / (0.05**2 + 0.08**2)), (0.4, CONFIG["equivalence_margin"])):
        scores = np.random.default_rng(0).normal(0, sd, 600)
        split = c13.grouping(scores, labels, clusters, 10)
        assert c13._margin(split, CONFIG) == pytest.approx(expected, rel=0.1)


def test_templates_that_spread_by_the_smallest_relevant_sd_rarely_pass():
    """True SD of six template means .05 = min_spread, noise .08 a prompt (eta squared .28): level .05 at n = 400."""
    rng, passed, effects = np.random.default_rng(5), 0, np.array([1, -1, 1, -1, 1, -1]) * CONFIG["min_spread"]
    labels, clusters = np.arange(400) % 6, np.array([f"c{i}" for i in range(400)])
    for _ in range(200):
        split = c13.grouping(effects[labels] + rng.normal(0, 0.08, 400), labels.astype(str), clusters, 10)
        passed += equivalence_test(split.groups, c13._margin(split, CONFIG), units=split.units).p < CONFIG["alpha"]
    assert passed / 200 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


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


# --- clusters of prompts -----------------------------------------------------------------------------------------


def clustered(shared: float, seed: int = 0, n_clusters: int = 20, **law) -> Evidence:
    """Prompts of one template frame and name set share a deviation of SD `shared` nats; noise .4 nats of their own."""
    docs = documents(seed=seed, n_clusters=n_clusters, n_held_out=0, **law)
    base = docs["01"]["data"]
    units = np.unique(np.char.add(base["template"], base["cluster"]), return_inverse=True)[1]
    rng = np.random.default_rng([seed, 1])
    noise = shared * rng.normal(size=units.max() + 1)[units] + rng.normal(0, 0.4, len(units))
    return Evidence(set_intact(docs, "circuit", 0.95 * clean_of(docs) + noise), COMMON)


def test_prompts_that_are_clusters_of_their_own_give_the_plain_formulas():
    subject = evidence(noise=2.0, template_shift=0.1, n_clusters=100_000)
    assert len(set(subject.clusters)) == 400
    y = ratio_of_means(subject.ablated("circuit"), subject.clean).scores
    groups = split_groups(y, subject.templates)[0]
    record = one(subject)
    assert record.companions["design_effect"] == pytest.approx(1, abs=1e-12)
    assert record.ci90 == pytest.approx(eta2_interval(groups, 0.90))
    assert record.ci95 == pytest.approx(eta2_interval(groups, 0.95))
    assert record.p == pytest.approx(equivalence_test(groups, CONFIG["equivalence_margin"]).p, abs=1e-9)


@pytest.mark.slow
def test_clusters_that_differ_are_not_taken_for_templates_that_differ():
    """Templates are equal: the design effect is above 3, so a plain F would call every third sample sensitive."""
    records = [one(clustered(1.2, seed, n_evaluation=240, n_templates=4), QUICK) for seed in range(25)]
    assert np.mean([one.companions["design_effect"] for one in records]) > 2
    assert sum(one.published_verdict == "fail" for one in records) >= 5
    assert sum(one.verdict == "fail" for one in records) <= 2
    assert np.mean([one.ci90[0] == 0 for one in records]) >= 0.8  # holds the truth 0: at least .95 - 3 SE = .82 of them


def test_names_that_differ_from_frame_to_frame_are_no_effect_of_the_name():
    """A deviation of each frame with each name set is what units are; one of the name set in all frames is an effect."""
    by_unit = [
        one(clustered(1.5, seed, n_clusters=12, n_evaluation=300), QUICK).companions["by_factor"]["cluster"]
        for seed in range(12)
    ]
    assert sum(found["varies"] for found in by_unit) <= 1
    docs = documents(n_clusters=12, n_evaluation=300, n_held_out=0)
    names = np.unique(docs["01"]["data"]["cluster"], return_inverse=True)[1]
    rng = np.random.default_rng(0)
    noise = 1.5 * rng.normal(size=12)[names] + rng.normal(0, 0.4, 300)
    record = one(Evidence(set_intact(docs, "circuit", 0.95 * clean_of(docs) + noise), COMMON), QUICK)
    assert record.verdict == "fail" and "faithfulness varies by cluster" in record.reasons


def test_a_level_of_one_cluster_is_left_out():
    docs = documents()
    names = np.asarray(docs["01"]["data"]["cluster"])
    rare = np.flatnonzero((names == names[0]) & (np.asarray(docs["01"]["data"]["split"]) == "evaluation"))
    docs["01"]["data"]["factors"]["special"] = ["rare" if i == rare[0] else "usual" for i in range(len(names))]
    found = one(Evidence(docs, COMMON)).companions["by_factor"]["special"]
    assert found["levels_left_out"] == 1 and "n_clusters" in found["insufficient"]


@pytest.mark.slow
def test_power_of_the_gate_without_cluster_effects():
    """Three templates, 300 prompts that are clusters of their own, no difference: .98 by the specification."""
    passes = [
        one(evidence(seed=seed, n_evaluation=300, n_held_out=0, n_templates=3, n_clusters=100_000), QUICK).verdict
        == "pass"
        for seed in range(30)
    ]
    assert np.mean(passes) >= 0.98 - 3 * np.sqrt(0.98 * 0.02 / 30)


@pytest.mark.parametrize("noise", [2e-2, 2e-4])
def test_almost_no_noise_and_clear_differences_fail(noise):
    record = one(evidence(template_shift=0.2, noise=noise))
    assert record.ci90[0] > 0.7 and record.verdict == "fail"
    assert record.companions["between_sd"] == pytest.approx(0.1, abs=0.02)


def test_templates_that_differ_without_any_noise_give_no_verdict():
    docs = documents()
    shift = 0.2 * (np.array([int(t.split()[1]) for t in docs["01"]["data"]["template"]]) % 2 - 0.5)
    docs["01"]["data"]["clean_logit_diff"] = np.full(len(shift), 5.0).tolist()
    record = one(Evidence(set_intact(docs, "circuit", (0.95 + shift) * 5.0), COMMON))
    assert record.verdict == "insufficient" and "zero_variance" in record.reasons[0]
