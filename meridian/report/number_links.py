"""Which numbers in the tables below figures have a source of their own: heads, edges, and groups that the certificate names."""

from __future__ import annotations

from collections.abc import Mapping

from meridian.figures.graph import head_name
from meridian.figures.values import CircuitGraph, Figure
from meridian.report import head_facts
from meridian.report.head_facts import Method
from meridian.report.sources import FieldSource, file_of, of_certificate
from meridian.run_folder import RunFolder

Links = Mapping[tuple[int, int], FieldSource]  # by row and column of the table
OVER_STORED = "mean over the stored prompts"  # the page's script says the same of an edge in the panel
GROUPS = {
    "completeness_groups": "worst_groups.claimed[{}].incompleteness",
    "outside_groups": "worst_groups.outside[{}].share",
}
ESTIMATE, EFFECT = 2, 4  # columns of `figure_numbers`' tables of forests and of the graph


def of(run: RunFolder, drawn: Mapping[str, Mapping[str, Figure]]) -> dict[str, Links]:
    """{figure: links of its table}. Not there: numbers that are drawn again, or made of several fields."""
    methods = {method.figure: method for method in head_facts.methods(run, drawn.get("heads", {}))}
    found: dict[str, Links] = {
        name: {(layer, 1 + head): method.source(place) for place, (layer, head) in enumerate(run.evidence.heads)}
        for name, method in methods.items()
    }
    for name, figure in (one for group in drawn.values() for one in group.items()):
        if name in GROUPS:
            rows = range(len(getattr(figure, "rows", ())))
            found[name] = {(row, ESTIMATE): of_certificate(GROUPS[name].format(row)) for row in rows}
        elif isinstance(figure, CircuitGraph):
            found[name] = {**_heads(run, figure, methods.get("heads_02_denoising")), **_edges(run, figure)}
    return found


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
