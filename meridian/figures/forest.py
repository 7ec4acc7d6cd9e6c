"""Forest plots of the certificate's estimates, each with its interval and its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from calibrations import preconditions
from calibrations.certificate_row import MetricRow
from calibrations.evidence import PRIMARY
from calibrations.worst_groups import named
from meridian.figures.values import EstimateMark, Forest
from meridian.run_folder import RunFolder

CI = 0.90
PAGE = 12  # rows with their own scales that fit a printed page
BY_RECIPE = ("P.faithfulness", "P.faithfulness_every_recipe")  # gates with the same requirement for several recipes
AT_ONCE, ALONE = "simultaneous", "by itself"  # intervals of a gate's worst group: over all groups, or for it alone
RANDOM_CIRCUITS = "random circuits, mean"
Limits = tuple[float | None, float | None]  # the estimate must be above the first and below the second


def _above(name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Limits]:
    return lambda settings, record: (settings[name], None)


def _below(name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Limits]:
    return lambda settings, record: (None, settings[name])


def _within(name: str) -> Callable[[Mapping[str, Any], Mapping[str, Any]], Limits]:
    return lambda settings, record: _both_ways(settings[name])


def _both_ways(limit: float) -> Limits:
    return -limit, limit


# The limits that the verdict compares each metric's estimate with, read from the settings of that verdict. A metric that is
# not listed has no such limit (C14's rates are judged by another rule) and is drawn without one.
LIMITS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Limits]] = {
    "P.behaviour": lambda settings, record: (0.0, None),
    "P.denominator": _above("min_denominator_t"),
    "P.faithfulness": lambda settings, record: (settings["faithfulness_low"], settings["faithfulness_high"]),
    "P.faithfulness_every_recipe": lambda settings, record: (
        settings["faithfulness_low"],
        settings["faithfulness_high"],
    ),
    "P.faithfulness_over_wordings": lambda settings, record: (
        settings["faithfulness_low"],
        settings["faithfulness_high"],
    ),
    "P.random_circuits": lambda settings, record: (record["companions"]["random_90"][1], None),
    "P.completeness": _within("max_incompleteness"),
    "P.completeness_every_recipe": _within("max_incompleteness"),
    "P.incompleteness_score": _within("max_incompleteness"),
    "P.outside": lambda settings, record: _both_ways(named([record]).outside[0].limit),  # the limit of the drawn group
    "C11.bootstrap_faithfulness": _below("max_sigma"),
    "C11.bootstrap_completeness": _below("max_sigma"),
    "C12.convergent_validity": _above("threshold_rho"),
    "C13.measurement_invariance": _below("equivalence_margin"),
    "C14.d_prime": _above("threshold_d_prime"),
    "C16.test_retest": _above("test_retest_above"),
    "C16.split_half": _above("split_half_above"),
    "C16.cronbach_alpha": _above("alpha_above"),
    "C17.discriminant_validity": lambda settings, record: (0.0, None),
    "C23.role_depth_correlation": lambda settings, record: (0.0, None),
    "C30.seed_variance": _below("acceptable_below"),
    "C36.incremental_validity": _above("adds_value_above"),
    "F59.kendalls_w": _above("threshold_rho"),
    "F59.mean_spearman": _above("threshold_rho"),
    "F59.mean_kappa": _above("threshold_kappa"),
    "S1.distributional_characterization": lambda settings, record: (record["companions"]["share_threshold"], None),
    "S3.distributional_stability": _above("threshold_fraction"),
    "M93.multiple_comparisons": _below("alpha"),
    "M98.ablation_invariance": _below("max_divergence"),
    "E1b.method_invariance": lambda settings, record: (1 - settings["max_divergence"], None),
    "M3b.certified_stability": _above("circuit_fraction"),
    "M3b.no_idle_heads": _above("min_effect_fraction"),
}

# The quantity that each metric estimates. It is the verdict's quantity, which is not always that of the published rule.
QUANTITIES: Mapping[str, str] = {
    "P.behaviour": "mean of the task's metric",
    "P.denominator": "t of mean D",
    "P.faithfulness": "faithfulness under the primary recipe; judged under that and resample",
    "P.faithfulness_every_recipe": "faithfulness under the primary recipe; judged under every recipe",
    "P.faithfulness_over_wordings": "faithfulness, over wordings like these",
    "P.random_circuits": "faithfulness, mean ablation; limit: 95th percentile",
    "P.completeness": f"worst group's inc, {AT_ONCE}",
    "P.completeness_every_recipe": f"worst group's inc, {AT_ONCE}",
    "P.incompleteness_score": f"worst group's gap, {AT_ONCE}",
    "P.outside": f"worst group's share of N, {AT_ONCE}",
    "C11.bootstrap_faithfulness": "standard error of faithfulness",
    "C11.bootstrap_completeness": "standard error of completeness",
    "C12.convergent_validity": "mean Spearman rho",
    "C13.measurement_invariance": "eta squared of templates",
    "C14.d_prime": "d'",
    "C16.test_retest": "1 - CV",
    "C16.split_half": "split-half reliability",
    "C16.cronbach_alpha": "generalisability",
    "C17.discriminant_validity": "own effect - {threshold_ratio:g} x other's",
    "C23.role_depth_correlation": "rank correlation",
    "C30.seed_variance": "CV of faithfulness",
    "C36.incremental_validity": "faithfulness gained on top-k by norm",
    "F59.kendalls_w": "Kendall's W, as mean Spearman rho",
    "F59.mean_spearman": "mean Spearman rho",
    "F59.mean_kappa": "mean kappa",
    "S1.distributional_characterization": "share of attribution",
    "S3.distributional_stability": "share of heads",
    "M93.multiple_comparisons": "largest adjusted p",
    "M98.ablation_invariance": "largest difference of faithfulness",
    "E1b.method_invariance": "1 - largest difference",
    "M3b.certified_stability": "share of heads",
    "M3b.no_idle_heads": "weakest head's share of mean D",
}


def build(run: RunFolder) -> Iterator[Forest]:
    """The gates' estimates, each on its own scale; faithfulness by recipe; faithfulness by template."""
    for made in (*_calibrations(run), _recipes(run), _templates(run)):
        if made is not None and made.rows:
            yield made


def _calibrations(run: RunFolder) -> Iterator[Forest]:
    """The gates in the order of the certificate, in parts that fit a page."""
    rows = []
    gating = {metric.metric for row in run.rows for metric in row.metrics if metric.gating}
    for row in run.rows:
        document = run.calibration(row.id) or {"records": ()}
        for record in document["records"]:
            if record["metric"] in gating and record["estimate"] is not None:
                rows += _deciding(run, record, document["subject"]["settings"])
    parts = max(1, -(-len(rows) // PAGE))
    size = -(-len(rows) // parts)
    for part in range(1, parts + 1):
        yield Forest(
            name="forest_calibrations" if part == 1 else f"forest_calibrations_{part}",
            title="Estimates and limits" if parts == 1 else f"Estimates and limits, part {part} of {parts}",
            caption="Each row is a quantity of its own, on a scale of its own: estimate, 90 % interval, and a dashed line where "
            "the verdict's limit lies; the side that passes is shaded. Only the place relative to the limit compares "
            "between rows. A gate that asks the same of several recipes has a row for each, with the verdict of its own "
            "interval; one on groups has its worst group, with the interval by itself if that passes, else the simultaneous one, "
            "for all groups at once. Some verdicts ask for more than the interval, see the reasons in the certificate. "
            "Results P, 11 to 98, E1b, M3b.",
            x_label="each row's own quantity",
            rows=tuple(rows[(part - 1) * size : part * size]),
            level=CI,
            own_scales=True,
        )


def _deciding(run: RunFolder, record: Mapping[str, Any], settings: Mapping[str, Any]) -> list[EstimateMark]:
    """The rows of a record, chosen so that no row seems to contradict its verdict.

    A gate on several recipes has one row per recipe, with the recipe's own interval and verdict: the record's estimate is that
    of the primary recipe, although another recipe may decide. If a gate on groups passes, its row has the interval that passed,
    that of the worst group alone. The record's interval, simultaneous over all groups, is wider and decides a fail.
    """
    recipes = record.get("companions", {}).get("recipes", ())
    if record["metric"] not in BY_RECIPE or not recipes:
        row, alone = _interval(record, settings), _of_worst_group(record)
        if record["verdict"] != "pass" or alone is None:
            return [row]
        return [replace(row, low=alone[0], high=alone[1], unit=row.unit.replace(AT_ONCE, ALONE))]
    rows = []
    for recipe in recipes:
        words, interval = recipe.replace("_", " "), run.recipe_intervals[recipe]
        low, high = settings["faithfulness_low"], settings["faithfulness_high"]
        row = EstimateMark(
            f"{record['metric']}, {words}",
            preconditions.faithfulness(run.evidence, settings, method=recipe).value,
            *interval,
            verdict=preconditions.inside(interval, (low, high)),
            group=record["metric"].partition(".")[0],
            above=low,
            below=high,
            unit=f"faithfulness, {words} ablation",
        )
        rows.append(row)
    return rows


def _of_worst_group(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of a gate's worst group alone; None if the gate is not on groups."""
    worst = named([record])
    given = [group.ci90 for group in (*worst.claimed, *worst.outside)] or [record["companions"].get("group_ci90")]
    return given[0] and (given[0][0], given[0][1])


def _interval(record: Mapping[str, Any], settings: Mapping[str, Any]) -> EstimateMark:
    metric, rule = MetricRow.read(record), LIMITS.get(record["metric"])
    try:
        above, below = (None, None) if rule is None else rule(settings, record)
    except KeyError:  # an insufficient verdict lacks the companion that holds the limit
        above, below = None, None
    return EstimateMark(
        metric.metric,
        metric.estimate,
        *metric.interval,
        verdict=metric.verdict,
        group=metric.metric.partition(".")[0],
        above=above,
        below=below,
        unit=quantity(metric.metric, settings),
    )


def quantity(metric: str, settings: Mapping[str, Any]) -> str:
    """The quantity that the metric estimates, with factors from its settings; empty if the metric's name says it."""
    return QUANTITIES.get(metric, "").format(**settings)


def _faithfulness(
    table: Mapping[str, Any], intervals: Mapping[str, tuple[float, float] | None]
) -> tuple[EstimateMark, ...]:
    """A row for each recipe or template of `table` that has a faithfulness."""
    return tuple(
        EstimateMark(name.replace("_", " "), entry["faithfulness"], *(intervals[name] or (None, None)))
        for name, entry in table.items()
        if "faithfulness" in entry
    )


def _recipes(run: RunFolder) -> Forest | None:
    """Faithfulness under every recipe; the random circuits have a separate row, because they were run under one recipe only."""
    table = run.companions("P.faithfulness").get("by_method")
    if not table:
        return None
    low, high = band = tuple(run.settings[f"faithfulness_{end}"] for end in ("low", "high"))
    rows = [
        replace(row, verdict=preconditions.inside((row.low, row.high), band))
        for row in _faithfulness(table, run.recipe_intervals)
        if row.low is not None and row.high is not None
    ]
    null = run.companions("P.random_circuits")
    alike = preconditions.null_words(null.get("any_layers", False))
    if "random_median" in null:
        rows.append(EstimateMark(RANDOM_CIRCUITS, null["random_median"], *null["random_90"]))
    asked = " and ".join(recipe.replace("_", " ") for recipe in run.companions("P.faithfulness").get("recipes", ()))
    return Forest(
        name="forest_recipes",
        title="Faithfulness by ablation recipe",
        caption="Share of the clean model's value that the circuit keeps with every other head ablated, with its 90 % "
        f"percentile bootstrap interval over clusters. P.faithfulness asks that {asked} lie between "
        f"{low:g} and {high:g}, P.faithfulness_every_recipe that all do. Random circuits of {alike} were run under "
        "mean ablation alone: their median and the middle 90 % of them compare with that row and no other. The headline's "
        f"recipe is {PRIMARY} (per template and position). Results P, 20.",
        x_label="faithfulness",
        rows=tuple(rows),
        level=CI,
        lines={f"at least {low:g}": low, f"at most {high:g}": high},
    )


def _templates(run: RunFolder) -> Forest | None:
    table = run.companions("C13.measurement_invariance").get("by_template")
    if not table:
        return None
    return Forest(
        name="forest_templates",
        title="Faithfulness by template",
        caption="The same circuit on the prompts of each template alone, mean ablation per template and position, 90 % Fieller "
        "interval: what C13 asks to be alike. Result 13.",
        x_label="faithfulness",
        rows=_faithfulness(table, {name: entry.get("ci90") for name, entry in table.items()}),
        level=CI,
        lines={"1": 1.0},
    )
