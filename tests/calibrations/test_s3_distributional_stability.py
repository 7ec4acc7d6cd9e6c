"""S3: stability of moments over subsets, judged only where the criterion can be met."""

import json

import numpy as np
import pytest
from scipy import stats
from settings import config_of, set_intact, shuffled
from synthetic import COMMON, documents

from calibrations import s3_distributional_stability as s3
from calibrations.evidence import Evidence
from calibrations.statistics import cv_of_variance

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
    size = CONFIG["min_prompts"] // CONFIG["n_subsets"]
    assert cv_of_variance(size) == pytest.approx(CONFIG["threshold_cv"]) and size * CONFIG["n_subsets"] == 255


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
    assert record.ci90 == (1.0, 1.0)
    over = record.companions["cv_over_expected"]
    assert over["mean"] == pytest.approx(0.94, abs=0.06) and over["variance"] == pytest.approx(0.94, abs=0.06)


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


def test_the_closed_form_is_what_random_subsets_show():
    """Moments of a skewed law, 4,000 prompts: mean CV over 200 subsets of 400 against the formula and its limit."""
    rng = np.random.default_rng(0)
    sample = rng.gamma(2.0, 1.0, (200_000, 1))  # mean 2, variance 2, excess kurtosis 3
    (of_mean, of_variance) = s3.expected_cvs(sample, np.ones((1, len(sample)), dtype=int), 400.0)[0, :, 0]
    assert of_mean == pytest.approx(np.sqrt(2 / 400) / 2, rel=0.02)
    assert of_variance == pytest.approx(np.sqrt(2 / 399 + 3 / 400), rel=0.05)
    parts = sample.reshape(500, 400)
    assert parts.mean(axis=1).std() / 2 == pytest.approx(of_mean, rel=0.1)
    assert parts.var(axis=1, ddof=1).std() / 2 == pytest.approx(of_variance, rel=0.1)


def test_resampled_coefficients_are_those_of_the_repeated_prompts():
    rng = np.random.default_rng(1)
    attribution, counts = rng.normal(1, 0.5, (30, 3)), rng.multinomial(30, np.full(30, 1 / 30), 4)
    for row, found in zip(counts, s3.expected_cvs(attribution, counts, 6.0), strict=True):
        repeated = np.repeat(attribution, row, axis=0)
        kurtosis = stats.kurtosis(repeated, axis=0)
        np.testing.assert_allclose(found[0], repeated.std(axis=0) / np.abs(repeated.mean(axis=0)) / 6**0.5)
        np.testing.assert_allclose(found[1], np.sqrt(np.maximum(2 / 5 + kurtosis / 6, 0)))


def test_heads_that_do_not_write_to_the_answer_are_not_judged():
    """Three heads write, four hold rounding: the share is that of the three, and the others are named."""
    docs = with_attribution(steady, n_evaluation=400)
    attribution = np.array(docs["03"]["data"]["attribution"])
    rounding = np.random.default_rng(3).standard_t(2, attribution.shape) * 1e-6
    attribution[:, :24] = rounding[:, :24]
    docs["03"]["data"]["attribution"] = attribution.tolist()
    record = judge(docs)
    assert record.published_verdict == "fail" and record.published_value == pytest.approx(3 / 7)
    assert record.verdict == "pass" and record.n["heads"] == 3 and record.n["circuit_heads"] == 7
    assert "[2, 1]" in record.notes[0]
    attribution[:, :30] = rounding[:, :30]
    attribution[:, 31:] = rounding[:, 31:]
    docs["03"]["data"]["attribution"] = attribution.tolist()
    assert judge(docs).reasons[0].startswith("n_heads")


def test_heads_a_little_beyond_the_limit_rarely_pass():
    """CV of the mean .21 in every head (limit .20), normal, 400 prompts: at most .05 + 3 standard errors of 60 samples."""
    sd = 0.21 * np.sqrt(80)
    config = {**CONFIG, "bootstrap_resamples_p": 499, "n_partitions": 2}
    verdicts = []
    for seed in range(60):
        docs = with_attribution(lambda rng, shape: rng.normal(1, sd, shape), seed=seed)
        verdicts.append(s3.calibrate(Evidence(docs, COMMON), config)[0].verdict)
    assert verdicts.count("pass") / 60 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 60)
    assert verdicts.count("inconclusive") >= 10  # the limit is within reach of the noise


def test_heads_that_matter_on_a_sixth_of_the_prompts_fail():
    """CV of the mean of a head that fires on one prompt in six: sqrt(5 / 80) = .25 over subsets of 80."""
    failed = [
        judge(with_attribution(lambda rng, shape: 6.0 * (rng.random(shape) < 1 / 6), seed=seed)).verdict
        for seed in range(10)
    ]
    assert failed.count("pass") == 0 and failed.count("fail") >= 8


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
    assert record.companions["cv_over_expected"]["mean"] < 1.1
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
