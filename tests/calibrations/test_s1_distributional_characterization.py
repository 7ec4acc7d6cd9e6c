"""S1: attribution ratio with an interval and a relabelling p, and named moments."""

import json

import numpy as np
import pytest
from scipy import stats
from settings import config_of, shuffled
from synthetic import COMMON, documents

from calibrations import s1_distributional_characterization as s1
from calibrations.evidence import Evidence

CONFIG = config_of("s1")
SHARE = CONFIG["threshold_ratio"] / (1 + CONFIG["threshold_ratio"])  # of a ratio at the threshold


def judge(docs, split="evaluation"):
    record, total = s1.calibrate(Evidence(docs, COMMON, split), CONFIG)
    json.dumps([record.to_dict(), total.to_dict()], allow_nan=False)
    return record


def members(docs):
    return Evidence(docs, COMMON).in_circuit


def with_attribution(values, **law):
    docs = documents(**law)
    docs["03"]["data"]["attribution"] = np.asarray(values).tolist()
    return docs


def planted(inside, outside, seed=0, noise=0.3, **law):
    """Every circuit head attributes `inside` nats, every other `outside`, with noise over prompts."""
    docs = documents(seed=seed, **law)
    mask = members(docs)
    mean = np.where(mask, inside, outside)
    n = len(docs["01"]["data"]["split"])
    values = mean + np.random.default_rng(seed).normal(0, noise, (n, len(mask)))
    docs["03"]["data"]["attribution"] = values.tolist()
    return docs


def test_published_value_is_the_ratio_of_absolute_means():
    docs = documents()
    attribution = np.array(docs["03"]["data"]["attribution"])[:400]
    mask = members(docs)
    magnitude = np.abs(attribution.mean(axis=0))
    record = judge(docs)
    assert record.published_value == pytest.approx(magnitude[mask].mean() / magnitude[~mask].mean())
    size = np.abs(attribution)
    assert record.companions["ratio_mean_of_abs"] == pytest.approx(size[:, mask].mean() / size[:, ~mask].mean())


def test_a_planted_circuit_passes():
    record = judge(documents())
    assert record.verdict == "pass" and record.published_verdict == "pass" and record.gating
    assert record.p < CONFIG["alpha"] and record.ci90[0] > SHARE
    assert record.companions["share_threshold"] == pytest.approx(SHARE)
    assert record.companions["p_relabelling_within_layers"] < CONFIG["alpha"]


def test_heads_like_all_others_fail():
    record = judge(planted(0.5, 0.5))
    assert record.verdict == "fail" and record.published_value == pytest.approx(1, abs=0.1)


def test_circuit_heads_without_direct_attribution_fail():
    record = judge(planted(0.0, 0.5))
    assert record.verdict == "fail" and record.published_verdict == "fail"


@pytest.mark.slow
def test_a_ratio_at_the_threshold_is_inconclusive():
    """Sampling error is the only doubt: over samples, 2/3 lies inside nine in ten 90 % intervals."""
    records = [judge(planted(1.0, 0.5, noise=1.0, seed=seed, n_evaluation=100, n_held_out=20)) for seed in range(30)]
    held = np.mean([one.ci90[0] < SHARE < one.ci90[1] for one in records])
    assert held == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 30))
    assert np.mean([one.verdict == "inconclusive" for one in records]) == held


def test_share_by_hand():
    """sqrt of mean (mean^2 - SE^2) in each group; every prompt is nearly its own cluster here, so SE is by hand too."""
    docs = documents(noise=1.0, n_clusters=100_000)
    subject = Evidence(docs, COMMON)
    x, mask = subject.head_effect("03", "attribution"), members(docs)
    assert len(set(subject.clusters)) == len(x)
    noise = np.zeros(x.shape[1])
    for template in np.unique(subject.templates):
        own = x[subject.templates == template]
        noise += len(own) * own.var(axis=0, ddof=1) / len(x) ** 2
    squares = x.mean(axis=0) ** 2 - noise
    inside, outside = (np.sqrt(max(squares[own].mean(), 0)) for own in (mask, ~mask))
    record = judge(docs)
    assert record.estimate == pytest.approx(inside / (inside + outside), rel=1e-12)
    assert record.effect_size == pytest.approx(inside / outside) if outside else record.effect_size is None
    assert record.ci90[0] <= record.estimate <= record.ci90[1] <= 1


@pytest.mark.slow
def test_noise_moves_the_published_ratio_and_not_the_share():
    """Effects 1 and .1 with noise 5 over 60 prompts (SE .65): the ratio falls far below 10, the share stays near 10/11."""
    records = [judge(planted(1.0, 0.1, noise=5.0, seed=seed, n_evaluation=60, n_held_out=10)) for seed in range(25)]
    assert np.mean([one.published_value for one in records]) < 3
    estimates = [one.estimate for one in records]
    assert np.median(estimates) > 0.7
    assert np.mean([one.ci95[0] <= 10 / 11 <= one.ci95[1] for one in records]) >= 0.95 - 3 * np.sqrt(0.0475 / 25)
    assert not any(one.verdict == "fail" for one in records)


@pytest.mark.slow
def test_attribution_that_is_all_noise_is_not_a_verdict_on_the_circuit():
    verdicts = {judge(planted(0.0, 0.0, noise=1.0, seed=seed)).verdict for seed in range(12)}
    assert verdicts <= {"inconclusive", "insufficient"}


def test_one_outlying_head_is_no_evidence_for_a_set():
    """Ratio far above 2 through one head of three: relabelled sets that hold it do as well."""
    roles = {"r": {"heads": [[0, 0], [1, 0], [2, 0]], "ordinal": 1, "sign": 1}}
    docs = documents(roles=roles)
    mean = np.full(32, 0.2)
    mean[[0, 8, 16]] = 8.0, 0.15, 0.15
    docs["03"]["data"]["attribution"] = (mean + np.random.default_rng(0).normal(0, 0.05, (600, 32))).tolist()
    record = judge(docs)
    assert record.published_verdict == "pass" and record.ci90[0] > SHARE
    assert record.p > CONFIG["alpha"] and record.verdict == "inconclusive"


@pytest.mark.slow
def test_heavy_tailed_heads_are_rarely_passed():
    """The published rule passes about every tenth random set; the verdict at most alpha."""
    rng = np.random.default_rng(0)
    passed = published = 0
    for _ in range(40):
        roles = {
            "r": {
                "heads": [[i // 8, i % 8] for i in rng.choice(32, 7, replace=False)],
                "ordinal": 1,
                "sign": 1,
            }
        }
        docs = documents(roles=roles, n_evaluation=60, n_held_out=10, n_clusters=8, n_random=2)
        mean = rng.lognormal(0, 1.6, 32)
        docs["03"]["data"]["attribution"] = (mean + rng.normal(0, 0.01, (70, 32))).tolist()
        record = judge(docs)
        passed += record.verdict == "pass"
        published += record.published_verdict == "pass"
    assert passed <= 2 + 3 * np.sqrt(40 * 0.05 * 0.95) and passed < published


def test_signs_do_not_cancel_between_heads():
    docs = planted(1.0, 0.05)
    signs = np.where(np.arange(32) % 2, 1, -1)
    attribution = np.array(docs["03"]["data"]["attribution"]) * signs
    docs["03"]["data"]["attribution"] = attribution.tolist()
    assert judge(docs).verdict == "pass"


def test_moments_are_of_type_2():
    """D37: one convention for both moments, scipy's unbiased one."""
    docs = documents()
    record = judge(docs)
    index = np.flatnonzero(members(docs))[0]
    x = np.array(docs["03"]["data"]["attribution"])[:400, index]
    profile = record.companions["circuit"][0]
    assert profile["skewness"] == pytest.approx(stats.skew(x, bias=False))
    assert profile["excess_kurtosis"] == pytest.approx(stats.kurtosis(x, bias=False))
    assert profile["variance"] == pytest.approx(x.var(ddof=1))
    assert profile["sparsity"] == (np.abs(x) < CONFIG["sparse_below"]).mean()
    assert profile["mean_ci95"][0] < x.mean() < profile["mean_ci95"][1]


def test_other_heads_have_the_full_profile_too():
    """The published text compares circuit heads with the others in every moment, not in their means alone."""
    docs = documents()
    mask, heads = members(docs), docs["01"]["data"]["heads"]
    x = np.array(docs["03"]["data"]["attribution"])[:400]
    companions = judge(docs).companions
    assert [one["head"] for one in companions["others"]] == [heads[i] for i in np.flatnonzero(~mask)]
    assert [one["head"] for one in companions["circuit"]] == [heads[i] for i in np.flatnonzero(mask)]
    for one, own in zip(companions["others"], x[:, ~mask].T, strict=True):
        assert one["mean"] == pytest.approx(own.mean()) and one["variance"] == pytest.approx(own.var(ddof=1))
        assert one["mean_ci95"][0] < own.mean() < one["mean_ci95"][1]
        assert one["skewness"] == pytest.approx(stats.skew(own, bias=False))
        assert one["excess_kurtosis"] == pytest.approx(stats.kurtosis(own, bias=False))
        assert one["sparsity"] == (np.abs(own) < CONFIG["sparse_below"]).mean()
        assert one["effective_rank_participation"] > 1 and one["effective_rank_entropy"] > 1
    groups = companions["groups"]
    assert (groups["circuit"]["heads"], groups["others"]["heads"]) == (7, 25)
    for name, own in (("circuit", x[:, mask]), ("others", x[:, ~mask])):
        assert groups[name]["mean_variance"] == pytest.approx(own.var(axis=0, ddof=1).mean())
        assert groups[name]["mean_skewness"] == pytest.approx(stats.skew(own, bias=False).mean())
        assert groups[name]["mean_excess_kurtosis"] == pytest.approx(stats.kurtosis(own, bias=False).mean())


def test_the_profile_of_silent_and_of_all_heads():
    """A constant head has no skewness; a claim of all heads leaves no others to describe."""
    docs = documents()
    attribution = np.array(docs["03"]["data"]["attribution"])
    attribution[:, ~members(docs)] = 0
    docs["03"]["data"]["attribution"] = attribution.tolist()
    companions = judge(docs).companions
    assert all(one["skewness"] is None and one["sparsity"] == 1.0 for one in companions["others"])
    assert (
        companions["groups"]["others"]["mean_skewness"] is None and companions["groups"]["others"]["mean_variance"] == 0
    )
    every = {"r": {"heads": [[i // 8, i % 8] for i in range(32)], "ordinal": 1, "sign": 1}}
    record = judge(documents(roles=every))
    assert record.verdict == "insufficient" and record.companions["groups"]["others"] == {"heads": 0}


def test_effective_rank_has_two_named_definitions():
    docs = documents()
    values = np.zeros((32, 8))
    values[:, :2] = (3, 1)
    docs["26"]["data"]["singular_values"] = values.tolist()
    profile = judge(docs).companions["circuit"][0]
    assert profile["effective_rank_participation"] == pytest.approx(1.6)
    assert profile["effective_rank_entropy"] == pytest.approx(1.754765351)


def test_a_silent_rest_is_ratio_undefined_not_infinite():
    """D10: no infinity is ever written."""
    docs = documents()
    attribution = np.array(docs["03"]["data"]["attribution"])
    attribution[:, ~members(docs)] = 0
    docs["03"]["data"]["attribution"] = attribution.tolist()
    record = judge(docs)
    assert record.published_value is None and record.verdict == "insufficient"
    assert record.reasons[0].startswith("ratio_undefined")


def test_small_circuits_and_models_and_samples_are_insufficient():
    one = {"r": {"heads": [[0, 0], [1, 1]], "ordinal": 1, "sign": 1}}
    assert judge(documents(roles=one)).reasons[0].startswith("n_heads")
    small = {"r": {"heads": [[0, 0], [1, 1], [2, 2]], "ordinal": 1, "sign": 1}}
    assert judge(documents(roles=small, n_layers=3, heads_per_layer=4)).reasons[0].startswith("n_heads")
    few = judge(documents(n_evaluation=18, n_clusters=3, n_templates=1))
    assert few.reasons[0].startswith("n_prompts") and few.published_value > 0


def test_behaviour_and_measurement_must_exist():
    assert judge(documents(mean_clean=-3)).reasons[0].startswith("behaviour_absent")
    docs = documents()
    del docs["03"]
    record = judge(docs)
    assert record.reasons[0].startswith("not_run") and record.published_verdict == "none"


def test_order_of_prompts_does_not_matter_and_runs_repeat():
    docs = documents()
    assert judge(docs) == judge(docs) == judge(shuffled(docs))
