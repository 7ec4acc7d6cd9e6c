"""Ablation recipes in the order in which they are shown, and the number beside the verdict of a gate on several of them.

A record's estimate is that of the primary recipe, although another recipe may decide. Beside a verdict other than `pass`, tables
show the recipe that is farthest from passing.
"""

from __future__ import annotations

from dataclasses import replace

from calibrations import preconditions
from calibrations.certificate_row import MetricRow
from meridian.figures.forest import BY_RECIPE
from meridian.run_folder import RunFolder


def in_order(run: RunFolder) -> tuple[str, ...]:
    """The recipes in the order of the certificate's headline: the primary one, then those that are always run."""
    return tuple(dict.fromkeys((run.evidence.primary_recipe, *preconditions.every_recipe(run.evidence))))


def of(run: RunFolder, metric: MetricRow) -> str | None:
    """The recipe whose interval reaches farthest out of the band; None if the record's own number fits its verdict."""
    recipes = run.companions(metric.metric).get("recipes") if metric.metric in BY_RECIPE else None
    if metric.verdict == "pass" or not recipes:
        return None
    low, high = (run.settings[f"faithfulness_{end}"] for end in ("low", "high"))
    intervals = {recipe: run.recipe_intervals[recipe] for recipe in recipes}
    return max(recipes, key=lambda recipe: max(low - intervals[recipe][0], intervals[recipe][1] - high))


def shown(run: RunFolder, metric: MetricRow) -> MetricRow:
    """The row with estimate and 90 % interval of the recipe of `of`; its other numbers belong to the primary recipe and go."""
    recipe = of(run, metric)
    if recipe is None:
        return metric
    estimate = run.companions(metric.metric)["by_method"][recipe]["faithfulness"]
    return replace(metric, estimate=estimate, ci90=run.recipe_intervals[recipe], ci95=None)


def named(run: RunFolder, metric: MetricRow) -> MetricRow:
    """As `shown`, with the recipe in the metric's name: "P.faithfulness every recipe (worst: noise)"."""
    recipe = of(run, metric)
    name = metric.metric if recipe is None else f"{metric.metric.replace('_', ' ')} (worst: {recipe.replace('_', ' ')})"
    return replace(shown(run, metric), metric=name)
