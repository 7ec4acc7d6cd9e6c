"""The bootstrap and null distributions behind the verdicts.

Each is drawn again from the stored measurements, with the calibration's own functions, settings and seeds. If the certificate's
interval is a percentile interval, its ends are percentiles of these draws. Other intervals come from a formula or a simultaneous
bound, so every caption names the method. A metric that a calibration could not judge has no distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from calibrations import c11_bootstrap_stability as c11
from calibrations import c12_convergent_validity as c12
from calibrations import c16_reliability_suite as c16
from calibrations import c17_discriminant_validity as c17
from calibrations import c30_seed_variance as c30
from calibrations import c36_incremental_validity as c36
from calibrations import f59_inter_rater_reliability as f59
from calibrations import preconditions
from calibrations import s1_distributional_characterization as s1
from calibrations import s3_distributional_stability as s3
from calibrations.evidence import Evidence
from calibrations.statistics import (
    Insufficient,
    bootstrap_counts,
    bootstrap_ratios,
    head_relabellings,
    mean_contrast,
    mean_spearman_draws,
    ratio_of_means,
)
from meridian.figures.values import Distribution
from meridian.run_folder import RunFolder

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Draws:
    """The content of one figure: samples by label, and the positions of the estimate and the limits."""

    samples: Mapping[str, np.ndarray]
    lines: Mapping[str, float]


@dataclass(frozen=True)
class DrawnMetric:
    """One figure: the metric that it explains, the function that makes its draws, and its texts."""

    name: str
    metric: str
    title: str
    x_label: str
    caption: str
    draw: Callable[[Evidence, Settings], Draws]


def _resamples(evidence: Evidence, settings: Settings) -> Int[np.ndarray, "resample prompt"]:
    return preconditions.resamples(evidence, settings, settings["bootstrap_resamples_p"])


def random_circuits(evidence: Evidence, settings: Settings) -> Draws:
    """Faithfulness of the random circuits and of the circuit on the same prompts (P.random_circuits)."""
    found = preconditions.random_circuits(evidence, settings)
    lines = {"circuit": found.theta, "95 % of random circuits": float(np.quantile(found.null, 0.95))}
    return Draws({"random circuits": found.null}, lines)


def faithfulness_by_recipe(evidence: Evidence, settings: Settings) -> Draws:
    """Bootstrap of faithfulness over clusters, by recipe (P.faithfulness)."""
    preconditions.require_behaviour(evidence, settings)
    samples = {name.replace("_", " "): x for name, x in preconditions.recipe_draws(evidence, settings).items()}
    limits = (settings["faithfulness_low"], settings["faithfulness_high"])
    return Draws(samples, {f"at least {limits[0]:g}": limits[0], f"at most {limits[1]:g}": limits[1]})


def published_bootstrap(evidence: Evidence, settings: Settings) -> Draws:
    """The published bootstrap over prompts of faithfulness and completeness (C11)."""
    counts = bootstrap_counts(len(evidence.clean), settings["bootstrap_resamples"], seed=settings["bootstrap_seed"])
    numerators = {n: c11.numerator_of(evidence, n) for n in ("faithfulness", "completeness")}
    return Draws(
        {name: bootstrap_ratios(counts, values, evidence.clean) for name, values in numerators.items()},
        {name: ratio_of_means(values, evidence.clean).value for name, values in numerators.items()},
    )


def convergence(evidence: Evidence, settings: Settings) -> Draws:
    """Mean rho of the methods: bootstrap over heads, over prompts, and heads relabelled in every method (C12)."""
    methods = c12.scoring_methods(evidence, settings, "families")
    panel = c12.comparable_panel(evidence, methods, settings)
    draws = c12.rho_draws(evidence, panel, settings)
    null = panel.mean_rho(c12.relabelled_scores(panel, settings))
    rho = float(panel.mean_rho(panel.scores[None])[0])
    samples = {"heads relabelled (chance)": null, **{f"bootstrap over {name}": x for name, x in draws.items()}}
    return Draws(samples, {"estimate": rho, "limit": settings["threshold_rho"]})


def separation(evidence: Evidence, settings: Settings) -> Draws:
    """Mean effect inside minus outside the circuit, for the circuit and for relabelled heads (C14)."""
    oriented = evidence.head_effect("02", "denoising").mean(axis=0) * evidence.expected_sign
    statistic = mean_contrast(oriented)
    masks, _ = head_relabellings(evidence.in_circuit, settings["permutations"], settings["permutation_seed"])
    return Draws({"heads relabelled": statistic(masks)}, {"circuit": float(statistic(evidence.in_circuit[None])[0])})


def test_retest(evidence: Evidence, settings: Settings) -> Draws:
    """1 - CV of faithfulness over batches of a third of the prompts, by bootstrap (C16.test_retest)."""
    ratio = preconditions.faithfulness(evidence, settings)
    size = len(c16.batches(evidence, settings)[0])
    cv, draws = c30.sample_cv_draws(evidence, settings, ratio, size)
    return Draws({"bootstrap over clusters": 1 - draws}, {"estimate": 1 - cv, "limit": settings["test_retest_above"]})


def split_half(evidence: Evidence, settings: Settings) -> Draws:
    """Reliability of the head profile over random halves of the prompts (C16.split_half)."""
    effects = c16.head_profile(evidence)
    found = c16.split_half_of_heads(evidence, settings, effects)
    return Draws({"random halves": found.draws}, {"median": found.median, "limit": settings["split_half_above"]})


def discrimination(evidence: Evidence, settings: Settings) -> Draws:
    """Effect on the own task minus `threshold_ratio` (3) times that on each other task, by bootstrap (C17)."""
    matrix = c17.effect_matrix(evidence, settings)
    matrix.require(settings["min_tasks_gate"])
    own, others = c17.effect_draws(evidence, matrix, settings)
    contrasts = c17.contrasts_with_others(matrix, own, others, settings)
    return Draws({one.name.replace("_", " "): one.draws for one in contrasts}, {"limit": 0.0})


def seed_variance(evidence: Evidence, settings: Settings) -> Draws:
    """CV of faithfulness over samples of a third of the prompts, by bootstrap (C30)."""
    ratio = preconditions.faithfulness(evidence, settings)
    size = c30.subsample_size(evidence, settings)
    cv, draws = c30.sample_cv_draws(evidence, settings, ratio, size)
    return Draws({"bootstrap over clusters": draws}, {"estimate": cv, "limit": settings["acceptable_below"]})


def gain(evidence: Evidence, settings: Settings) -> Draws:
    """Faithfulness gained on the heads with the largest output norm, by paired bootstrap (C36)."""
    counts = _resamples(evidence, settings)
    subsets = ("circuit", c36.BASELINE)
    intact = np.stack([evidence.ablated(subset) for subset in subsets])
    circuit, baseline = bootstrap_ratios(counts, intact, evidence.clean).T
    draws, _ = c36.gains(circuit, baseline, settings["baseline_floor"])
    theta, naive = (preconditions.faithfulness(evidence, settings, subset).value for subset in subsets)
    delta, _ = c36.gains(theta, naive, settings["baseline_floor"])
    return Draws({"bootstrap over clusters": draws}, {"estimate": float(delta), "limit": settings["adds_value_above"]})


def agreement(evidence: Evidence, settings: Settings) -> Draws:
    """Mean rho of the raters, by bootstrap over clusters (F59)."""
    panel = f59.judged_panel(evidence, settings)
    counts = _resamples(evidence, settings)
    rho = float(mean_spearman_draws(panel.scores[None])[0])
    return Draws(
        {"bootstrap over clusters": mean_spearman_draws(panel.draws(counts))},
        {"estimate": rho, "limit": settings["threshold_rho"]},
    )


def attribution_share(evidence: Evidence, settings: Settings) -> Draws:
    """The circuit's share of direct attribution: bootstrap over clusters, and heads relabelled (S1)."""
    attribution = evidence.head_effect("03", "attribution")
    squares, draws = s1.squared_attribution(evidence, settings, attribution)
    share = s1.circuit_share
    masks, _ = head_relabellings(evidence.in_circuit, settings["permutations"], settings["permutation_seed"])
    threshold = settings["threshold_ratio"]
    return Draws(
        {"heads relabelled": _shares(squares, masks), "bootstrap over clusters": share(draws, evidence)},
        {"estimate": float(share(squares, evidence)), "limit": threshold / (1 + threshold)},
    )


def _shares(squares: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """S1's share in / (in + out) for each mask [relabelling head]."""
    sides = [np.sqrt(np.clip(side @ squares / side.sum(axis=1), 0.0, None)) for side in (masks, ~masks)]
    total = sides[0] + sides[1]
    return np.divide(sides[0], total, out=np.full(len(masks), np.nan), where=total > 0)


def stable_heads(evidence: Evidence, settings: Settings) -> Draws:
    """Share of circuit heads with a stable attribution, by bootstrap (S3)."""
    attribution = s3.judged_heads(evidence, settings).values
    size = len(attribution) / settings["n_subsets"]
    counts = _resamples(evidence, settings)
    whole = np.ones((1, len(attribution)), dtype=int)
    stable = [
        s3.stable_heads(s3.expected_cvs(attribution, weights, size), settings).mean(axis=-1)
        for weights in (whole, counts)
    ]
    return Draws(
        {"bootstrap over clusters": stable[1]},
        {"estimate": float(stable[0][0]), "limit": settings["threshold_fraction"]},
    )


def recipe_differences(evidence: Evidence, settings: Settings) -> Draws:
    """Faithfulness under one recipe minus that under another, for every pair, by paired bootstrap (M98, E1b)."""
    methods = settings["methods"]
    counts = _resamples(evidence, settings)
    intact = np.stack([evidence.ablated("circuit", method) for method in methods])
    draws, margin = bootstrap_ratios(counts, intact, evidence.clean), settings["max_divergence"]
    pairs = [(i, j) for i in range(len(methods)) for j in range(i + 1, len(methods))]
    samples = {f"{methods[i]} - {methods[j]}".replace("_", " "): draws[:, i] - draws[:, j] for i, j in pairs}
    return Draws(samples, {f"-{margin:g}": -margin, f"{margin:g}": margin})


_HALVES = "Two random halves of the prompts agree about the heads this well."
SOURCES = (
    DrawnMetric("random_circuits", "P.random_circuits", "Random circuits", "faithfulness",
           "Random circuits with as many heads in every layer, mean ablation, on a share of the prompts. The circuit on "
           "the same prompts has to lie beyond 95 % of them.", random_circuits),
    DrawnMetric("faithfulness", "P.faithfulness", "Faithfulness by recipe, bootstrap", "faithfulness",
           "Clusters of prompts drawn again within their templates. The 90 % intervals of the primary recipe and of resample "
           "have to lie between the lines, for tier 3 those of all recipes.",
           faithfulness_by_recipe),
    DrawnMetric("c11", "C11.bootstrap_faithfulness", "C11: faithfulness and completeness, bootstrap", "share of the clean value",
           "Prompts drawn again, as published; the spread of these draws is the published sigma.", published_bootstrap),
    DrawnMetric("c12", "C12.convergent_validity", "C12: agreement of methods", "mean Spearman rho",
           "What chance gives (heads relabelled in every method), and the estimate drawn again over heads and over prompts.",
           convergence),
    DrawnMetric("c14", "C14.d_prime", "C14: circuit heads against others", "difference of mean effects",
           "Mean patching effect of the circuit's heads less that of the others, and the same for random head sets of its "
           "size.", separation),
    DrawnMetric("c16_test_retest", "C16.test_retest", "C16: test-retest", "1 - CV",
           "CV of faithfulness over batches of prompts.", test_retest),
    DrawnMetric("c16_split_half", "C16.split_half", "C16: split-half", "reliability", _HALVES, split_half),
    DrawnMetric("c17", "C17.discriminant_validity", "C17: own task against others", "own effect - factor x other's",
           "Factor {threshold_ratio:g}. Has to be above 0 for every other task: the circuit's heads then matter that many times "
           "more for their own.",
           discrimination),
    DrawnMetric("c30", "C30.seed_variance", "C30: faithfulness on other prompts", "CV of faithfulness",
           "Coefficient of variation over samples of one prompt in {pool_factor}.", seed_variance),
    DrawnMetric("c36", "C36.incremental_validity", "C36: gain on a naive circuit", "faithfulness gained",
           "Over the same number of heads with the largest output norm.", gain),
    DrawnMetric("f59", "F59.kendalls_w", "F59: agreement of raters", "mean Spearman rho",
           "Three measurements rank the heads; the prompts are drawn again.", agreement),
    DrawnMetric("s1", "S1.distributional_characterization", "S1: share of direct attribution", "share",
           "The circuit's share, and that of random head sets of its size.", attribution_share),
    DrawnMetric("s3", "S3.distributional_stability", "S3: heads with a stable attribution", "share of circuit heads",
           "Share of heads whose mean and variance vary little between subsets; the values are multiples of one head.",
           stable_heads),
    DrawnMetric("m98", "M98.ablation_invariance", "M98: differences between recipes", "difference of faithfulness",
           "Every pair has to stay between the lines.", recipe_differences),
    DrawnMetric("e1b", "E1b.method_invariance", "E1b: differences between recipes", "difference of faithfulness",
           "Every pair has to stay between the lines.", recipe_differences),
)  # fmt: skip


def build(run: RunFolder) -> Iterator[Distribution]:
    """One figure for every calibration that uses draws and could judge."""
    for source in SOURCES:
        document, record = run.calibration(source.metric.partition(".")[0]), run.record(source.metric)
        if document is None or record is None or record["verdict"] == "insufficient":
            continue  # the certificate says why; there is nothing to draw
        try:
            draws = source.draw(run.evidence, document["subject"]["settings"])
        except Insufficient:
            continue  # the verdict rests on another part of the calibration
        samples = {
            label: tuple(float(value) for value in values if np.isfinite(value))
            for label, values in draws.samples.items()
        }
        yield Distribution(
            name=f"distribution_{source.name}",
            title=source.title,
            caption=f"{source.caption.format(**document['subject']['settings'])} {count_words(draws, samples)}. "
            f"{_interval_words(record)} Result {document['number']}.",
            x_label=source.x_label,
            samples=samples,
            lines={label: float(value) for label, value in draws.lines.items()},
        )


def _interval_words(record: Mapping[str, Any]) -> str:
    """The method of the metric's interval in the certificate, which is not always made from these draws."""
    if record["ci90"] is None:
        return "The certificate has no interval of it."
    return f"The certificate's interval: {record['ci_method']}."


def count_words(draws: Draws, shown: Mapping[str, tuple[float, ...]]) -> str:
    """How many draws are shown, and how many had no value."""
    sizes = sorted({len(values) for values in shown.values()})
    lost = sum(map(len, draws.samples.values())) - sum(map(len, shown.values()))
    without = f"; {lost:,} more have no value" if lost else ""
    return f"{' and '.join(f'{size:,}' for size in sizes)} draws{' each' if len(shown) > 1 else ''}{without}"
