"""S3: stability of moments over subsets, judged only where the criterion can be met."""

import json

import numpy as np
import pytest
from settings import config_of, set_intact, shuffled
from synthetic import COMMON, documents

from calibrations import s3_distributional_stability as s3
from calibrations.evidence import Evidence
from calibrations.statistics import cv_of_variance, size_for_cv_of_variance

CONFIG = config_of("s3")


def judge(docs):
    (record,) = s3.calibrate(Evidence(docs, COMMON), CONFIG)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def with_attribution(draw, seed=0, **law):
    """Documents whose attributions are `draw(rng, shape)`."""
    docs = documents(seed=seed, **law)
    shape = (len(docs["01"]["data"]["split"]), len(docs["01"]["data"]["heads"]))
    docs["03"]["data"]["attribution"] = draw(np.random.default_rng(seed), shape).tolist()
    return docs


def steady(rng, shape):
    return 1 + rng.normal(0, 0.3, shape)


def test_minimum_comes_from_the_variance_of_a_variance():
    """Finding 4: sqrt(2/(m-1)) = .20 at m = 51, five subsets of it are 255 prompts."""
    assert size_for_cv_of_variance(CONFIG["threshold_cv"]) * CONFIG["n_subsets"] == CONFIG["min_prompts"]


def test_published_value_counts_heads_on_the_first_partition():
    docs = with_attribution(steady)
    attribution = np.array(docs["03"]["data"]["attribution"])[:400][:, Evidence(docs, COMMON).in_circuit]
    order = np.argsort(docs["01"]["data"]["prompt_id"][:400])
    parts = np.array_split(np.random.default_rng(CONFIG["partition_seed"]).permutation(400), 5)
    means = np.array([attribution[order][part].mean(axis=0) for part in parts])
    variances = np.array([attribution[order][part].var(axis=0, ddof=1) for part in parts])
    cv = [x.std(axis=0, ddof=1) / np.abs(x.mean(axis=0)) for x in (means, variances)]
    expected = ((cv[0] < 0.2) & (cv[1] < 0.2)).mean()
    assert judge(docs).published_value == pytest.approx(expected)


def test_stable_heads_pass_with_enough_prompts():
    record = judge(with_attribution(steady, n_evaluation=1000))
    assert record.verdict == "pass" and record.published_verdict == "pass" and record.gating
    assert record.estimate == 1.0 and record.p < CONFIG["alpha"]
    assert record.ci90[0] == pytest.approx(7 / (7 + 1.6448536**2))
    assert 0.8 < record.companions["cv_variance_over_expected"] < 1.1


def test_few_prompts_are_insufficient_not_a_failure():
    """D19: at n = 40 no head can pass, stable or not; the peer's own result fails 28 of 28 heads."""
    record = judge(with_attribution(steady, n_evaluation=40, n_clusters=6))
    assert record.verdict == "insufficient" and record.reasons[0].startswith("n_prompts")
    assert record.needs == "at least 255 prompts" and record.published_verdict == "fail"
    assert cv_of_variance(8) == pytest.approx(0.5345224838)
    assert judge(with_attribution(steady, n_evaluation=254)).verdict == "insufficient"
    assert judge(with_attribution(steady, n_evaluation=255)).verdict != "insufficient"


def test_prompt_dependent_heads_fail():
    """Heavy-tailed attributions: a few prompts make the variance, so it differs between any two subsets."""
    record = judge(with_attribution(lambda rng, shape: rng.lognormal(0, 1.5, shape), n_evaluation=600))
    assert record.verdict == "fail" and record.estimate == 0 and record.reasons


def test_a_head_with_mean_zero_is_judged_by_its_own_spread():
    """D19: its CV of the mean explodes; in units of its SD the subset means are steady."""
    docs = with_attribution(lambda rng, shape: rng.normal(0, 1, shape), n_evaluation=1000)
    attribution = np.array(docs["03"]["data"]["attribution"])
    attribution[:1000] -= attribution[:1000].mean(axis=0)
    docs["03"]["data"]["attribution"] = attribution.tolist()
    record = judge(docs)
    assert record.published_value == 0
    assert record.verdict == "pass"
    spread = record.companions["heads"][0]["spread_of_mean"]
    assert spread == pytest.approx(np.sqrt(5 / 1000), rel=0.3)


def test_the_verdict_does_not_hang_on_one_partition():
    """Near the limit single partitions disagree; the average over 50 is what counts."""
    published = set()
    verdicts = set()
    docs = with_attribution(steady, n_evaluation=400)
    for seed in range(6):
        (record,) = s3.calibrate(Evidence(docs, COMMON), {**CONFIG, "partition_seed": seed})
        published.add(record.published_value)
        verdicts.add((record.verdict, record.estimate))
    assert len(published) > 1 and len(verdicts) == 1


def test_templates_as_subsets_reveal_what_random_subsets_hide():
    docs = with_attribution(steady, n_evaluation=600)
    template = np.array([int(name.split()[1]) for name in docs["01"]["data"]["template"]])
    attribution = np.array(docs["03"]["data"]["attribution"]) + 0.8 * (template % 2)[:, None]
    docs["03"]["data"]["attribution"] = attribution.tolist()
    record = judge(docs)
    between = record.companions["between_templates"]
    assert between["heads_whose_mean_differs"] == 7 and between["share_stable"] == 0
    assert record.companions["cv_mean_over_expected"] < 1.1
    same = judge(with_attribution(steady, n_evaluation=600)).companions["between_templates"]
    assert same["heads_whose_mean_differs"] == 0 and same["heads_whose_variance_differs"] == 0


def test_a_null_circuit_is_not_certified_stable():
    docs = with_attribution(steady)
    set_intact(docs, "circuit", np.zeros(600))
    record = judge(docs)
    assert record.verdict == "insufficient" and record.reasons[0].startswith("not_faithful")


def test_a_constant_head_is_zero_variance():
    """D10: no infinite CV."""
    record = judge(with_attribution(lambda rng, shape: np.ones(shape)))
    assert record.verdict == "insufficient" and record.reasons[0].startswith("zero_variance")
    assert record.published_value is None


def test_order_of_prompts_does_not_matter_and_runs_repeat():
    docs = with_attribution(steady)
    assert judge(docs) == judge(docs) == judge(shuffled(docs))
