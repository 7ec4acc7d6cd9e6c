"""C12: convergence of families, never zero-filled, ties, both sources of uncertainty."""

import json

import numpy as np
import pytest
from scipy import stats
from settings import config_of, shuffled
from synthetic import COMMON, documents

from calibrations import c12_convergent_validity as c12
from calibrations.evidence import Evidence
from calibrations.head_scores import Method, kappa_of_selections, select_top

FEWER = {"bootstrap_resamples": 200, "bootstrap_resamples_p": 999}  # speed
CONFIG = {**config_of("c12"), **FEWER}
SHAPE = {"n_layers": 8, "heads_per_layer": 16}
H = 128


def effects(mean, seed, n=600, noise=0.5):
    return (np.asarray(mean) + np.random.default_rng(seed).normal(0, noise, (n, len(mean)))).tolist()


def with_families(seed=0, mean=None, mediation=None, **scores):
    """Documents in which every head has an effect: 02 as given, 05 and fixed scores 07, 10 if given."""
    docs = documents(seed=seed, **SHAPE)
    mean = importance(seed) if mean is None else mean
    docs["02"]["data"]["denoising"] = effects(mean, seed + 1)
    docs["02"]["data"]["noising"] = effects(mean, seed + 2)
    docs["21"]["data"]["effect"] = effects(mean, seed + 3)
    if mediation is not None:
        docs["05"] = {"data": {"effect": effects(mediation, seed + 4)}}
    for name, score in scores.items():
        docs[name.removeprefix("n")] = {"data": {"score": list(score)}}
    return docs


def importance(seed=0, scale=0.5):
    return np.random.default_rng(100 + seed).exponential(scale, H)


def judge(docs, config=CONFIG):
    (record,) = c12.calibrate(Evidence(docs, COMMON), config)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def pair(record, first, second):
    return next(p for p in record.companions["pairs"] if p["methods"] == [first, second])


def test_one_family_is_not_run_and_names_the_missing_numbers():
    record = judge(with_families())
    assert record.verdict == "insufficient" and record.published_value is None and record.gating
    assert record.reasons[0].startswith("not_run") and "05, 07, 10" in record.reasons[0]
    assert record.companions["not_run"] == ["05", "07", "08", "10"]
    measured = pair(record, "activation_patching", "knockouts")
    assert measured["heads"] == H and measured["spearman"] > 0.9
    low, high = measured["ci90_prompts"]
    assert 0.85 < low < high < 1
    assert measured["top_k"]["k"] == 7 and measured["top_k"]["p"] < 0.001
    assert measured["circuit_only"]["heads"] == 7
    assert measured["icc_consistency_z"] > 0.9


def test_published_value_is_the_mean_pairwise_spearman():
    rng = np.random.default_rng(3)
    mean = importance()
    score, llc = mean + rng.normal(0, 0.3, H), -mean + rng.normal(0, 0.3, H)
    docs = with_families(mean=mean, n07=score, n10=llc)
    patching = np.abs(np.array(docs["02"]["data"]["denoising"])[:400].mean(axis=0))
    columns = [patching, score, -llc]
    expected = np.mean([stats.spearmanr(columns[i], columns[j]).statistic for i, j in ((0, 1), (0, 2), (1, 2))])
    record = judge(docs)
    assert record.published_value == pytest.approx(expected)
    assert record.published_verdict == ("pass" if expected > CONFIG["threshold_rho"] else "fail")


def test_planted_convergence_passes():
    mean = importance()
    record = judge(with_families(mean=mean, mediation=mean * 0.8, n07=mean**2, n10=-mean))
    assert record.verdict == "pass" and record.published_verdict == "pass"
    assert record.p < CONFIG["alpha"] and record.n["methods"] == 4 and record.n["heads"] == H
    assert record.ci90[0] > CONFIG["threshold_rho"]
    widths = {source: high - low for source, (low, high) in record.companions["ci90_over"].items()}
    assert record.ci90[1] - record.ci90[0] == max(widths.values())


def test_opposite_rankings_fail():
    mean = importance()
    record = judge(with_families(mean=mean, mediation=mean.max() - mean))
    assert record.verdict == "fail" and record.published_verdict == "fail" and record.published_value < -0.9


def test_independent_rankings_are_never_passed():
    rng = np.random.default_rng(0)
    for seed in range(4):
        record = judge(with_families(seed=seed, n07=rng.random(H)))
        assert record.verdict in ("fail", "inconclusive")


def test_borderline_agreement_is_inconclusive_and_says_what_would_settle_it():
    mean = importance()
    noisy = stats.rankdata(mean) + np.random.default_rng(5).normal(0, 60, H)
    record = judge(with_families(mean=mean, n07=noisy))
    assert 0.4 < record.published_value < 0.6
    assert record.verdict == "inconclusive" and record.needs


def test_missing_scores_are_never_filled_with_zero():
    """D1, finding 6: 26 of 144 heads in exactly opposite order; zero filling would give +.97."""
    mean = np.linspace(1, 3, H)
    scored = [float(3 - mean[i]) + 1 if i < 26 else None for i in range(H)]
    record = judge(with_families(mean=mean, n07=scored))
    assert record.published_value < -0.8 and record.verdict == "fail" and record.n["heads"] == 26
    filled = np.where(np.arange(H) < 26, np.array([s or 0 for s in scored]), 0)
    assert stats.spearmanr(np.where(np.arange(H) < 26, mean, 0), filled).statistic > 0.9


def test_too_few_common_heads_are_insufficient():
    scored = [1.0 * i if i < CONFIG["min_heads"] - 1 else None for i in range(H)]
    record = judge(with_families(n07=scored))
    assert record.verdict == "insufficient" and record.reasons[0].startswith("n_heads")
    assert record.published_verdict == "none"


def test_a_constant_family_is_dropped():
    record = judge(with_families(n07=[1.0] * H))
    assert record.verdict == "insufficient" and record.reasons[0].startswith("n_methods")


def test_a_low_learning_coefficient_marks_a_circuit_head():
    mean = importance()
    assert judge(with_families(mean=mean, n10=-mean)).published_value > 0.9
    assert judge(with_families(mean=mean, n10=mean)).published_value < -0.9


def test_negative_heads_count_by_magnitude():
    mean = importance()
    signs = np.where(np.arange(H) % 2, 1, -1)
    assert judge(with_families(mean=mean * signs, n07=mean)).published_value > 0.9


def test_effects_under_one_percent_tie():
    tie = CONFIG["tie_fraction"] * 5.0
    method = Method("m", "magnitude", np.array([[0.9 * tie, -0.5 * tie, 2 * tie, -3 * tie]]), None, tie)
    np.testing.assert_allclose(method.score(), [0, 0, 2 * tie, 3 * tie])
    np.testing.assert_allclose(method.score(collapse=False), tie * np.array([0.9, 0.5, 2, 3]))


def test_a_confound_with_output_norm_shows_in_the_partial_correlation():
    """Finding 7: methods that only scale with output norm agree; given the norm nothing is left."""
    rng = np.random.default_rng(2)
    norm = rng.lognormal(0, 1.25, H)
    docs = with_families(mean=norm * rng.lognormal(0, 0.8, H))
    docs["21"]["data"]["effect"] = effects(norm * rng.lognormal(0, 0.8, H), 9)
    docs["26"]["data"]["output_norm"] = np.tile(norm, (600, 1)).tolist()
    measured = pair(judge(docs), "activation_patching", "knockouts")
    assert measured["spearman"] > 0.5 and abs(measured["given_output_norm"]) < 0.2


def test_direct_attribution_is_compared_on_heads_that_write_to_the_answer():
    mean = importance() + 0.3
    docs = with_families(mean=mean)
    attribution = np.where(np.arange(H) < 40, mean, 0.0)
    docs["03"]["data"]["attribution"] = effects(attribution, 11, noise=0.01)
    record = judge(docs)
    assert record.companions["heads_that_write_to_the_answer"] == 40
    measured = pair(record, "activation_patching", "direct_logit_attribution")
    assert measured["heads"] == 40 and measured["spearman"] > 0.9 and "restricted_to" in measured


def test_raw_icc_of_different_units_is_near_zero_and_standardised_is_not():
    mean = importance()
    record = judge(with_families(mean=mean, n07=mean * 1000 + 500))
    agreement = record.companions["agreement"]
    assert agreement["icc_agreement_raw"] < 0.05 and agreement["icc_consistency_z"] > 0.9


def test_no_behaviour_is_insufficient():
    mean = importance()
    docs = with_families(mean=mean, n07=mean)
    docs["01"]["data"]["clean_logit_diff"] = (-np.array(docs["01"]["data"]["clean_logit_diff"])).tolist()
    assert judge(docs).reasons[0].startswith("behaviour_absent")


def test_order_of_prompts_does_not_matter_and_runs_repeat():
    mean = importance()
    docs = with_families(mean=mean, n07=mean, n10=-mean)
    first = judge(docs)
    assert first == judge(docs) and first == judge(shuffled(docs))


def test_tied_heads_are_never_selected_into_the_top():
    scores = np.array([[0, 0, 0, 5.0], [0, 0, 4.0, 0]])
    assert select_top(scores, 3, zero_is_nothing=True).sum() == 2
    assert select_top(scores, 3, zero_is_nothing=False).sum() == 6


def test_kappa_of_selections_oracle():
    """Wikipedia's table [[20, 5], [10, 15]] has kappa .4; two empty selections have none."""
    first = np.repeat([1, 1, 0, 0], [20, 5, 10, 15]).astype(bool)
    second = np.repeat([1, 0, 1, 0], [20, 5, 10, 15]).astype(bool)
    assert kappa_of_selections(first, second) == pytest.approx(0.4)
    assert np.isnan(kappa_of_selections(np.zeros(9, bool), np.zeros(9, bool)))
