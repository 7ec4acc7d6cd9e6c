"""Which numbers in the tables below figures have a source of their own: those that stand in one field, or are the mean of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from calibrations.registry import PRECONDITIONS
from meridian import outside_effects
from meridian.figures.forest import RANDOM_CIRCUITS
from meridian.figures.graph import head_name
from meridian.figures.values import CircuitGraph, Curves, Figure, Forest, HeatMap
from meridian.report import head_facts
from meridian.report.head_facts import Method
from meridian.report.sources import OVER_PROMPTS, FieldSource, file_of, of_certificate, step
from meridian.run_folder import RunFolder

Links = Mapping[tuple[int, int], FieldSource]  # by row and column of the table
OVER_STORED = "mean over the stored prompts"  # the page's script says the same of an edge in the panel
GROUPS = {
    "completeness_groups": "worst_groups.claimed[{}].incompleteness",
    "outside_groups": "worst_groups.outside[{}].share",
}
TABLES = tuple(  # pattern of a map's name, the result that it shows, and its table [row][column] in it
    (re.compile(pattern), number, field)
    for pattern, number, field in (
        (r"lens_(probability|logit_diff)_by_position", "04", r"data.by_position.\1"),
        (r"trace_(\w+)", "06", r"data.impact.\1"),
        (r"sites_(\w+)", "02", r"data.sites.denoising.\1"),
    )
)
EXAMPLE = re.compile(r"lens_example_(\d+)")
CURVE = re.compile("lens_(probability|logit_diff)")
ESTIMATE, EFFECT = 2, 4  # columns of `figure_numbers`' tables of forests and of the graph


def of(run: RunFolder, drawn: Mapping[str, Mapping[str, Figure]]) -> dict[str, Links]:
    """{figure: links of its table}.

    Not there: numbers that are drawn again (distributions, intervals), made of several fields, or an illustration (patterns of
    single prompts).
    """
    methods = {method.figure: method for method in head_facts.methods(run, drawn.get("heads", {}))}
    found: dict[str, Links] = {
        name: {(layer, 1 + head): method.source(place) for place, (layer, head) in enumerate(run.evidence.heads)}
        for name, method in methods.items()
    }
    estimates = dict(_estimates(run))
    for name, figure in (one for group in drawn.values() for one in group.items()):
        if name in GROUPS and isinstance(figure, Forest):
            places = [int(mark.label.partition(".")[0]) - 1 for mark in figure.rows]  # "3. L0H0, mean" is the third
            found[name] = {
                (row, ESTIMATE): of_certificate(GROUPS[name].format(place)) for row, place in enumerate(places)
            }
        elif name == "outside_effects":
            found[name] = dict(_outside(run, methods))
        elif isinstance(figure, Forest):
            named = (
                (row, estimates.get((name.rstrip("_0123456789"), mark.label))) for row, mark in enumerate(figure.rows)
            )
            found[name] = {(row, ESTIMATE): source for row, source in named if source is not None}
        elif isinstance(figure, CircuitGraph):
            found[name] = {**_heads(run, figure, methods.get("heads_02_denoising")), **_edges(run, figure)}
        elif isinstance(figure, HeatMap | Curves) and name not in found:
            found[name] = dict(_cells(run, figure))
    return found


def _estimates(run: RunFolder) -> Iterator[tuple[tuple[str, str], FieldSource]]:
    """((forest, label of a row), its source): a record's estimate, and its companions for each recipe or template."""
    for row in run.rows:
        document = run.calibration(row.id) or {"number": PRECONDITIONS, "records": ()}
        file = file_of(run, document["number"]) or ""
        for place, record in enumerate(document["records"]):
            at, metric = f"records[{place}]", record["metric"]
            more = cast("Mapping[str, Any]", record.get("companions", {}))
            yield ("forest_calibrations", metric), FieldSource(file, f"{at}.estimate")
            for recipe in more.get("by_method") or {}:
                source = FieldSource(file, f"{at}.companions.by_method{step(recipe)}.faithfulness")
                words = recipe.replace("_", " ")
                yield ("forest_calibrations", f"{metric}, {words}"), source
                if metric == "P.faithfulness":
                    yield ("forest_recipes", words), source
            if "random_median" in more:
                yield ("forest_recipes", RANDOM_CIRCUITS), FieldSource(file, f"{at}.companions.random_median")
            for template in more.get("by_template") or {}:
                source = FieldSource(file, f"{at}.companions.by_template{step(template)}.faithfulness")
                yield ("forest_templates", template.replace("_", " ")), source


def _outside(run: RunFolder, methods: Mapping[str, Method]) -> Iterator[tuple[tuple[int, int], FieldSource]]:
    """The effects of the heads outside the claim, in the order of their figure."""
    heads = outside_effects.large(run.evidence, run.settings.get("max_outside"))
    places = {head: place for place, head in enumerate(run.evidence.heads)}
    effects = [(places[one.head], effect.measured) for one in heads for effect in one.effects]
    for row, (place, measured) in enumerate(effects):
        method = methods.get("heads_{}_{}".format(*outside_effects.MEASURED[measured]))
        if method is not None:
            yield (row, ESTIMATE), method.source(place)


def _cells(run: RunFolder, figure: HeatMap | Curves) -> Iterator[tuple[tuple[int, int], FieldSource]]:
    """The cells of a map whose table stands in one field, and the means of the lens by layer."""
    if isinstance(figure, Curves):
        if curve := CURVE.fullmatch(figure.name):
            for row in range(len(figure.x)):
                yield (row, 1), FieldSource(file_of(run, "04") or "", f"data.{curve[1]}[{row}][*]", OVER_PROMPTS)
        return
    file, table = _table(run, figure.name)
    for row, column in ((y, x) for y in range(len(figure.y)) for x in range(len(figure.x)) if file):
        yield (row, 1 + column), FieldSource(file, f"{table}[{row}][{column}]")


def _table(run: RunFolder, name: str) -> tuple[str, str]:
    """File and field of the table [row][column] that a map shows; empty if it is not stored as one."""
    if example := EXAMPLE.fullmatch(name):
        return file_of(run, "04") or "", f"data.examples[{int(example[1]) - 1}].top_probability"
    for pattern, number, field in TABLES:
        if found := pattern.fullmatch(name):
            return file_of(run, number) or "", found.expand(field)
    return "", ""


def _heads(run: RunFolder, graph: CircuitGraph, method: Method | None) -> Links:
    places = {head_name(head): place for place, head in enumerate(run.evidence.heads)}
    named = ((row, places.get(node.name)) for row, node in enumerate(graph.nodes))
    return {(row, EFFECT): method.source(place) for row, place in named if method is not None and place is not None}


def _edges(run: RunFolder, graph: CircuitGraph) -> Links:
    largest_first = sorted(enumerate(graph.edges), key=lambda item: -abs(item[1].weight))
    return {
        (row, EFFECT): FieldSource(file_of(run, "28") or "", f"data.noising[{place}][*]", OVER_STORED)
        for row, (place, _) in enumerate(largest_first, start=len(graph.nodes))
    }
