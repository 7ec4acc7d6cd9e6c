"""The law's closed forms against samples of it, and the coverage simulation against intervals that are known to fail."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import yaml
from scipy import stats

import results_io
from calibrations import preconditions
from calibrations.record import Record
from meridian.experiments.validation import coverage as simulation
from meridian.experiments.validation import law as laws
from tests.calibrations.settings import CONFIGS

LAW = laws.Law()
POPULATION = laws.population(LAW, 1)
NAME = "02.denoising"


def configuration(*only: str, **changes) -> dict:
    """The shipped coverage section with the shipped calibrations, restricted to `only`."""
    own = yaml.safe_load((CONFIGS.parent / "experiment" / "validate_calibrations.yaml").read_text())["coverage"]
    sections = [yaml.safe_load(path.read_text()) for path in sorted(CONFIGS.glob("*.yaml"))]
    shipped = {key: value for section in sections for key, value in section.items() if key != "defaults"}
    return {**own, "calibration": shipped, "only": only, **changes}


def found(results: list, metric: str, interval: str = "ci95"):
    return next(one for one in results if (one.metric, one.interval) == (metric, interval))


def ratio(documents: dict, subset: str = "circuit", method: str = "mean") -> float:
    """sum F / sum D by brute force."""
    battery = documents["20"]["data"]
    rows = [i for i, c in enumerate(battery["conditions"]) if (c["subset"], c["method"]) == (subset, method)]
    return float(battery["logit_diff"][rows].mean(0).sum() / documents["01"]["data"]["clean_logit_diff"].sum())


# --- law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("subset", "method"), [("circuit", "mean"), ("circuit", "noise"), ("top_k_norm", "zero")])
def test_faithfulness_is_the_limit_without_noise(subset, method):
    documents = laws.documents(POPULATION, 40, seed=0, noiseless=True)
    assert ratio(documents, subset, method) == pytest.approx(POPULATION.faithfulness(subset, method), abs=1e-12)


def test_template_deviations_leave_the_mean_and_have_the_stated_spread():
    assert POPULATION.faithfulness() == pytest.approx(LAW.faithfulness["mean"], abs=1e-12)
    assert POPULATION.theta_shift.std() == pytest.approx(LAW.template_spread, abs=1e-12)
    assert POPULATION.clean_mean.mean() == pytest.approx(LAW.mean_clean, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "subset"), [(40, "circuit"), (100, "complement")])
def test_standard_error_is_the_sd_over_samples(n, subset):
    replicates = 300
    thetas = [ratio(laws.documents(POPULATION, n, seed=s), subset) for s in range(replicates)]
    error = 1 / math.sqrt(2 * replicates)  # of an SD, relative
    assert np.std(thetas, ddof=1) == pytest.approx(POPULATION.standard_error(n, subset), rel=3 * error)


def test_design_effect_is_the_expected_sum_of_squared_cluster_sizes():
    """1 + rho (E sum m_g^2 / m - 1), the expectation by counting name sets."""
    per_template, rng = 25, np.random.default_rng(0)
    sizes = rng.multinomial(per_template, np.full(LAW.names, 1 / LAW.names), size=20_000)
    sums = (sizes**2).sum(1) / per_template
    expected = 1 + LAW.intraclass * (sums.mean() - 1)
    assert POPULATION.design_effect(per_template * LAW.n_templates) == pytest.approx(
        expected, abs=3 * LAW.intraclass * sums.std() / math.sqrt(len(sums))
    )


def test_score_variance_between_and_within_templates():
    documents = laws.documents(POPULATION, 40_000, seed=3)
    clean = documents["01"]["data"]["clean_logit_diff"]
    battery = documents["20"]["data"]
    row = next(i for i, c in enumerate(battery["conditions"]) if c["name"] == "circuit/mean/0")
    theta = ratio(documents)
    scores = theta + (battery["logit_diff"][row] - theta * clean) / clean.mean()
    groups = [scores[t :: LAW.n_templates] for t in range(LAW.n_templates)]
    between, within = POPULATION.score_variance()
    # 240 clusters shared by 40,000 prompts leave half of the variance with 240 draws: 3 SE = 3 sqrt(2/240)/2 = 14 %
    assert np.mean([g.var() for g in groups]) == pytest.approx(within, rel=0.14)
    assert np.var([g.mean() for g in groups]) == pytest.approx(between, rel=0.5)


def test_effect_moments_are_those_of_independent_prompts():
    law = replace(LAW, intraclass=0.0, names=10, heavy_tail=0.3)
    source = laws.population(law, 2)
    effects = laws.documents(source, 20_000, seed=4)["02"]["data"]["denoising"]
    variance, kurtosis = source.effect_moments(NAME)
    assert effects.var(axis=0) == pytest.approx(variance, rel=0.06)
    assert stats.kurtosis(effects, axis=0, fisher=False).mean() == pytest.approx(kurtosis.mean(), rel=0.05)


def test_reliability_is_the_squared_correlation_with_the_true_effects():
    """Over samples, the mean squared correlation of head means with their true values; rel is its limit for many heads."""
    law = replace(LAW, effect_noise=1.5).enlarged(20)
    source = laws.population(law, 3)
    mu = source.mu[NAME]
    r = [np.corrcoef(laws.documents(source, 40, seed=s)["02"]["data"]["denoising"].mean(0), mu)[0, 1] for s in range(8)]
    expected = source.head_reliability(40, mu.var(ddof=1), source.loading.var(ddof=1))
    assert np.mean(np.square(r)) == pytest.approx(expected, abs=0.01)


def test_samples_share_the_population_and_differ_by_seed():
    first, again, other = (laws.documents(POPULATION, 40, seed=s) for s in (1, 1, 2))
    key = ("02", "denoising")
    assert np.array_equal(first[key[0]]["data"][key[1]], again[key[0]]["data"][key[1]])
    assert not np.array_equal(first[key[0]]["data"][key[1]], other[key[0]]["data"][key[1]])


# --- truths ------------------------------------------------------------------------------------------------------


def context(n: int = 100, *only: str) -> simulation.Context:
    return simulation.Context(POPULATION, n, simulation.settings_by_id(configuration(*only)))


def test_closed_forms_over_heads_match_a_large_population():
    large = laws.population(LAW.enlarged(2000), 5)
    inside, outside = large.mu[NAME][large.member], large.mu[NAME][~large.member]
    d_prime = (inside.mean() - outside.mean()) / math.sqrt((inside.var() + outside.var()) / 2)
    assert d_prime == pytest.approx(simulation._d_prime(context(100, "P")), rel=0.02)
    k = len(inside)
    ranks = stats.rankdata(np.abs(large.mu["08.effect"]))[large.member]
    auroc = (ranks.sum() - k * (k + 1) / 2) / (k * len(outside))
    error = 0.29 / math.sqrt(k)  # SD of a placement over circuit heads is at most that of a uniform variable
    assert auroc == pytest.approx(simulation._auroc(context(100, "P")), abs=3 * error)


def test_limit_of_the_attribution_share_is_that_of_the_true_means():
    truth = simulation.ESTIMANDS["S1.distributional_characterization"][0].truth(context(100, "S1"), None)
    mu, member = POPULATION.mu["03.attribution"], POPULATION.member
    inside, outside = (math.sqrt((mu[own] ** 2).mean()) for own in (member, ~member))
    assert truth == pytest.approx(inside / (inside + outside), abs=1e-9)


def test_eta_squared_is_the_share_between_templates():
    source = laws.population(replace(LAW, template_spread=0.0), 1)
    assert simulation._eta2(simulation.Context(source, 40, {})) == pytest.approx(0.0, abs=1e-12)


# --- simulation --------------------------------------------------------------------------------------------------


def test_every_interval_of_every_record_has_an_estimand_and_a_truth():
    results = simulation.coverage(configuration(every={}), n=100, replicates=1, seed=0)
    with_interval = {one.metric for one in results if one.intervals}
    assert len(with_interval) >= 24
    assert all(one.truth is not None and math.isfinite(one.truth) for one in results if one.intervals)
    assert set(simulation.ESTIMANDS) == {one.metric for one in results}
    json.dumps([one.to_dict() for one in results])


@pytest.mark.slow
def test_sound_intervals_cover_at_their_nominal_rate():
    """Faithfulness, its Fieller interval and the incremental gain: within 3 Monte Carlo SE of the nominal level."""
    replicates = 100
    results = simulation.coverage(configuration("P", "C36"), n=100, replicates=replicates, seed=11)
    for metric in ("P.faithfulness", "C36.incremental_validity"):
        for interval, nominal in simulation.LEVELS.items():
            error = math.sqrt(nominal * (1 - nominal) / replicates)
            assert found(results, metric, interval).share == pytest.approx(nominal, abs=3 * error), metric


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calibration", "metric", "n"),
    [
        ("C11", "C11.bootstrap_faithfulness", 400),  # .76 with G - 1 degrees of freedom and templates drawn
        ("C13", "C13.measurement_invariance", 400),  # .85 with prompts as units
        ("S1", "S1.distributional_characterization", 100),  # .13 for the ratio of absolute means
    ],
)
def test_intervals_of_clustered_prompts_cover(calibration, metric, n):
    """Not below .95 by more than 3 Monte Carlo SE: .866. The intervals that these replaced fell below it."""
    replicates = 60
    one = found(simulation.coverage(configuration(calibration), n=n, replicates=replicates, seed=12), metric)
    assert one.without == 0
    assert one.share >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / replicates)


@pytest.mark.slow
def test_a_narrowed_interval_is_caught(monkeypatch):
    """Half the width of a 95 % interval covers 67 % (normal): the upper Wilson bound must lie below .92."""
    whole = preconditions.percentile_interval

    def narrowed(draws, level):
        low, high = whole(draws, level)
        centre = (low + high) / 2
        return centre - (high - low) / 4, centre + (high - low) / 4

    monkeypatch.setattr(preconditions, "percentile_interval", narrowed)
    one = found(simulation.coverage(configuration("P"), n=100, replicates=80, seed=11), "P.faithfulness")
    assert one.wilson[1] < 0.92
    assert one.share == pytest.approx(2 * stats.norm.cdf(0.98) - 1, abs=3 * math.sqrt(0.67 * 0.33 / 80))


def test_a_shifted_interval_misses_on_one_side(monkeypatch):
    whole = preconditions.percentile_interval
    monkeypatch.setattr(
        preconditions, "percentile_interval", lambda draws, level: tuple(x + 0.2 for x in whole(draws, level))
    )
    one = found(simulation.coverage(configuration("P"), n=100, replicates=20, seed=11), "P.faithfulness")
    assert (one.covered, one.above, one.below) == (0, 20, 0)


def test_equal_arguments_give_equal_results():
    first, again = (simulation.coverage(configuration("P"), n=40, replicates=5, seed=3) for _ in range(2))
    assert first == again


def test_every_kth_sample_and_missing_intervals_are_counted():
    results = simulation.coverage(configuration("P", "C30", every={"C30": 3}), n=40, replicates=7, seed=3)
    assert found(results, "P.behaviour").replicates == 7
    seeds = found(results, "C30.seed_variance")
    assert (seeds.replicates, seeds.intervals, seeds.without, seeds.share) == (3, 0, 3, None)


def test_an_interval_without_an_estimand_is_refused():
    record = Record("X.unknown", None, "none", "none", "pass", estimate=1.0, ci95=(0.0, 2.0))
    with pytest.raises(results_io.UserError, match=r"X\.unknown has an interval and no estimand"):
        simulation._count(record, "fixed heads", context(40, "P"), {})


def test_no_replicates_are_refused():
    with pytest.raises(results_io.UserError, match="expected at least 1"):
        simulation.coverage(configuration("P"), n=40, replicates=0, seed=0)


@pytest.mark.parametrize(
    ("changes", "n", "message"),
    [
        ({"law": {"nose": 1.0}}, 40, "the law has no field nose"),
        ({"every": {"C99": 2}}, 40, "'C99'.* are unknown"),
        ({}, 3, "3 prompts for 4 templates"),
    ],
)
def test_bad_input_is_refused(changes, n, message):
    with pytest.raises(results_io.UserError, match=message):
        simulation.coverage(configuration("P", **changes), n=n, replicates=1, seed=0)
