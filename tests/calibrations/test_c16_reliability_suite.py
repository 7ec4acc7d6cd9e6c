"""C16: disjoint batches, index pairing as worded, and the head-level companions that decide."""

import json

import numpy as np
import pytest
from scipy import stats

from calibrations.c16_reliability_suite import batches, calibrate, head_profile, measurement_error
from calibrations.evidence import Evidence
from calibrations.statistics import (
    agreement_p,
    cronbach_alpha,
    generalisability,
    generalisability_p,
    intraclass_correlation,
)
from tests.calibrations.settings import config_of, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("c16")


def of(subject):
    records = calibrate(subject, CONFIG)
    json.dumps([record.to_dict() for record in records], allow_nan=False)
    return {record.metric.split(".")[1]: record for record in records}


def test_a_planted_circuit_is_reliable_and_alpha_does_not_gate():
    found = of(evidence())
    assert [record.verdict for record in found.values()] == ["pass"] * 3
    assert [record.gating for record in found.values()] == [True, True, False]
    assert all(record.p < 0.001 for record in found.values())


def test_batches_are_disjoint_thirds_drawn_by_the_published_seeds():  # peer D26: the same prompts reshuffled
    rows = batches(evidence(n_evaluation=100), CONFIG)
    assert [len(batch) for batch in rows] == [33, 33, 33]
    assert len(set(np.concatenate(rows).tolist())) == 99
    first = np.sort(np.random.default_rng(42).choice(np.arange(100), 33, replace=False))
    assert rows[0].tolist() == first.tolist()


def test_published_test_retest_is_one_minus_cv_ddof_0_unclipped():  # peer D27 beside it, ddof 1
    subject = evidence(noise=12.0)
    record = of(subject)["test_retest"]
    fresh = [subject.fresh(seed) for seed in ("42", "123", "456")]
    assert [len(one.clean) for one in fresh] == [400, 400, 400]
    by_seed = [one.circuit.sum() / one.clean.sum() for one in fresh]
    assert record.published_value == pytest.approx(1 - np.std(by_seed) / abs(np.mean(by_seed)))
    thetas = [subject.ablated("circuit")[b].sum() / subject.clean[b].sum() for b in batches(subject, CONFIG)]
    ddof1 = record.companions["one_minus_cv_ddof1"]
    assert ddof1 == pytest.approx(1 - np.std(thetas, ddof=1) / abs(np.mean(thetas)))


def test_the_batch_cv_is_that_of_a_third_of_the_prompts():
    record = of(evidence(noise=6.0, n_evaluation=900, n_held_out=0))["test_retest"]
    assert 1 - record.estimate == pytest.approx(6.0 / 5.0 / np.sqrt(300) / 0.95, rel=0.1)


def test_noisy_batches_are_not_called_reliable_though_the_published_rule_passes():
    record = of(evidence(noise=12.0))["test_retest"]
    assert (record.published_verdict, record.verdict) == ("pass", "inconclusive")
    assert int(record.needs.split()[1]) > 400


@pytest.mark.slow
def test_index_pairing_has_expectation_zero_for_a_perfect_circuit():  # peer D18
    found = [of(evidence(seed=seed))["split_half"] for seed in range(5)]
    assert abs(np.mean([record.published_value for record in found])) < 0.2
    assert all(record.published_verdict == "fail" and record.verdict == "pass" for record in found)


def test_split_half_as_worded_by_hand():
    subject = evidence()
    y = subject.ablated("circuit") / subject.clean
    r = np.corrcoef(y[0::2], y[1::2])[0, 1]
    assert of(subject)["split_half"].published_value == pytest.approx(2 * r / (1 + r))


def test_heads_without_effects_have_no_measurable_profile():
    found = of(evidence(effect=0.0, effect_noise=2.0))
    assert [found[name].verdict for name in ("test_retest", "split_half", "cronbach_alpha")] == ["fail"] * 3
    assert found["split_half"].p > 0.5 and found["test_retest"].p > 0.5


def test_heads_that_hardly_differ_are_reliable_if_their_error_is_below_what_ties():
    """Where either of two pairs is enough, no single head has an effect, and no agreement coefficient can be high."""
    found = of(evidence(effect=0.0, effect_noise=0.3))
    for name in ("test_retest", "split_half"):
        record = found[name]
        assert record.verdict == "pass" and record.p < 0.05
        assert record.companions["error_of_measurement_upper"] < record.companions["error_that_ties"]
    assert found["test_retest"].companions["icc_agreement_90"][0] < CONFIG["icc_above"]
    assert found["cronbach_alpha"].verdict == "fail"  # it gates nothing


def with_directions(denoising, noising, noise=1.0, seed=0):
    """Evidence whose circuit heads have these mean effects (nats; mean D is 5), with `noise` from prompt to prompt."""
    docs = documents()
    mask = Evidence(docs, COMMON).in_circuit
    rng = np.random.default_rng(seed)
    for name, effect in (("denoising", denoising), ("noising", noising)):
        values = effect * mask + rng.normal(0, noise, (len(docs["01"]["data"]["split"]), len(mask)))
        docs["02"]["data"][name] = values.tolist()
    return Evidence(docs, COMMON)


@pytest.mark.parametrize(("denoising", "noising"), [(0.0, 4.0), (4.0, 0.0), (2.0, 2.0)])
def test_heads_that_need_each_other_or_stand_in_for_each_other_have_a_profile(denoising, noising):
    found = of(with_directions(denoising, noising))
    for name in ("test_retest", "split_half"):
        assert found[name].verdict == "pass"
        # by agreement alone: the error is not small
        assert found[name].companions["error_of_measurement"] > found[name].companions["error_that_ties"]
    assert found["test_retest"].effect_size > 0.95


def test_the_error_of_measurement_is_that_of_a_batch_and_its_test_holds_its_level():
    """Prompts that are their own clusters: SD of (N(0, 1) + N(0, 1))/2, over the root of a batch; p of the worst head."""
    subject = with_directions(0.0, 0.0)
    found = measurement_error(subject, CONFIG, head_profile(subject), 133)
    assert found.limit == pytest.approx(0.01 * subject.clean.mean())
    assert found.estimate == pytest.approx(np.sqrt(0.5 / 133), rel=0.2) and found.p > 0.99
    labels = np.unique(subject.clusters)
    df = len(labels) - 1
    assert found.upper / found.estimate == pytest.approx(np.sqrt(df / stats.chi2.ppf(0.025, df)))
    # one head whose error is the limit: the bound lies below it in at most 2.5 % of 2,000 samples, and p is uniform
    rng = np.random.default_rng(3)
    scale = found.limit * np.sqrt(133)
    below, small = 0, 0
    for _ in range(2000):
        one = measurement_error(subject, CONFIG, rng.normal(0, scale, (len(subject.clean), 1)), 133)
        below, small = below + one.negligible, small + (2 * one.p < 0.05)
    assert below == small and 0.015 < below / 2000 < 0.035


def test_alpha_is_cronbachs_alpha_of_the_circuit_heads_negative_values_kept():
    subject = evidence()
    effects = subject.head_effect("02", "denoising")[:, subject.in_circuit]
    k = effects.shape[1]
    total = effects.sum(axis=1).var(ddof=1)
    alpha = k / (k - 1) * (1 - effects.var(axis=0, ddof=1).sum() / total)
    record = of(subject)["cronbach_alpha"]
    assert record.published_value == pytest.approx(alpha) and alpha < 0
    assert record.companions["alpha_90"] == pytest.approx(cronbach_alpha(effects, 0.90).interval)


def test_a_common_factor_raises_alpha():
    docs = documents()
    common = np.random.default_rng(0).normal(size=(600, 1))
    docs["02"]["data"]["denoising"] = (np.asarray(docs["02"]["data"]["denoising"]) + common).tolist()
    assert of(Evidence(docs, COMMON))["cronbach_alpha"].published_verdict == "pass"


def test_a_negative_head_lowers_alpha_but_not_the_oriented_one():
    docs = documents()
    effects = np.asarray(docs["02"]["data"]["denoising"]) + np.random.default_rng(0).normal(size=(600, 1))
    column = Evidence(docs, COMMON).heads.index((3, 0))
    effects[:, column] *= -1
    docs["02"]["data"]["denoising"] = effects.tolist()
    record = of(Evidence(docs, COMMON))["cronbach_alpha"]
    assert record.companions["alpha_oriented_by_sign"] > record.published_value + 0.05


@pytest.mark.slow
def test_one_head_has_no_alpha_and_a_small_sample_no_retest():  # the peer writes 0.0 for both
    roles = {"only": {"heads": [[1, 1]], "ordinal": 1, "sign": 1}}
    alone = of(evidence(roles=roles))["cronbach_alpha"]
    assert alone.published_value is None and "n_heads" in alone.published_label
    # one head among eight in its layer cannot be told from a random one, so nothing else is said of it either
    assert alone.verdict == "insufficient" and alone.reasons[0].startswith("min_p_unreachable: 8 circuits")
    few = of(evidence(n_evaluation=80))["test_retest"]
    assert few.verdict == "insufficient" and few.needs == "at least 90 prompts"


def test_a_null_circuit_is_not_assessed():
    assert all(r.reasons[0].startswith("not_faithful") for r in of(evidence(faithfulness=0.1)).values())


def test_the_p_values_meet_alpha_where_the_intervals_meet_the_threshold():
    ratings = np.random.default_rng(2).normal(size=(40, 1)) + np.random.default_rng(3).normal(0, 0.4, (40, 3))
    bound = intraclass_correlation(ratings, 0.90)["ICC(A,1)"].interval[0]
    assert agreement_p(ratings, bound) == pytest.approx(0.05)
    assert agreement_p(ratings, 0.99) > 0.9 and agreement_p(ratings, 0.0) < 1e-6
    lower = generalisability(ratings.T, 0.90).interval[0]
    assert generalisability_p(ratings.T, lower) == pytest.approx(0.05)


def test_the_icc_is_a_number_that_no_renamed_column_can_lose():  # peer D9: ICC2 is ICC(A,1) in pingouin 0.7
    subject = evidence()
    effects = (subject.head_effect("02", "denoising") + subject.head_effect("02", "noising")) / 2
    x = np.stack([effects[rows].mean(axis=0) for rows in batches(subject, CONFIG)], axis=1)
    n, k = x.shape
    rows = k * x.mean(1).var(ddof=1)
    columns = n * x.mean(0).var(ddof=1)
    rest = ((x - x.mean(1, keepdims=True) - x.mean(0) + x.mean()) ** 2).sum() / ((n - 1) * (k - 1))
    expected = (rows - rest) / (rows + (k - 1) * rest + k * (columns - rest) / n)
    assert of(subject)["test_retest"].effect_size == pytest.approx(expected)


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(noise=3.0)
    first, second = (calibrate(Evidence(d, COMMON), CONFIG) for d in (docs, shuffled(docs)))
    assert [record.to_dict() for record in first] == [record.to_dict() for record in second]


@pytest.mark.slow
def test_prompts_of_one_cluster_are_one_rater():
    """Copies of 60 prompts under the same labels: the coefficient and its interval are those of the 60."""
    docs = documents(n_evaluation=60, n_held_out=0, effect_noise=2.0, n_clusters=100_000)
    subject = Evidence(docs, COMMON)
    effects = subject.head_effect("02", "denoising")[:, subject.in_circuit]
    found = of(subject)["cronbach_alpha"]
    assert found.ci95 == pytest.approx(generalisability(effects, 0.95).interval)  # every prompt its own cluster

    base = docs["01"]["data"]
    base["prompt_id"] = base["prompt_id"] + [f"{name}-again" for name in base["prompt_id"]]
    for name in ("split", "template", "cluster", "clean_logit_diff", "corrupted_logit_diff"):
        base[name] = list(base[name]) * 2
    base["factors"] = {name: list(values) * 2 for name, values in base["factors"].items()}
    docs["02"]["data"] = {name: list(values) * 2 for name, values in docs["02"]["data"].items()}
    docs["20"]["data"]["logit_diff"] = np.tile(docs["20"]["data"]["logit_diff"], (1, 2)).tolist()
    twice = of(Evidence(docs, COMMON))["cronbach_alpha"]
    assert twice.estimate == pytest.approx(found.estimate) and twice.ci95 == pytest.approx(found.ci95)
    assert twice.p == pytest.approx(found.p)
