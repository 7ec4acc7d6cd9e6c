"""Data for the report's script: heads, graph, attention and prompts of a run as JSON that is safe inside a script element."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from meridian.figures import colours
from meridian.figures.graph import head_name
from meridian.figures.layout import FAINT, disc_shares, place_nodes
from meridian.figures.patterns import NUMBER as ATTENTION
from meridian.figures.values import CircuitGraph
from meridian.report import head_facts, prompt_table
from meridian.report.head_facts import Method
from meridian.report.prompt_table import rounded
from meridian.report.sources import OVER_PROMPTS, file_of
from meridian.run_folder import RunFolder

THOUSAND = 1000  # attention has three decimals; as a whole number it takes a third of the space
ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # no text can end the script element or begin a comment


def of(run: RunFolder, measured: Sequence[Method], graph: CircuitGraph) -> dict[str, Any]:
    """All data that the page's script shows on demand.

    `heads`: the model's heads, in the order of every column. `files`: {name of a result: its digest}.
    """
    return {
        "heads": [head_name(head) for head in run.evidence.heads],
        "per_layer": run.require("01")["data"].get("n_heads_per_layer"),
        "unit": run.evidence.unit,
        "methods": [_columns(method) for method in measured],
        "roles": head_facts.roles(run),
        "verdicts": head_facts.verdicts(run),
        "graph": _graph(run, graph),
        "attention": _attention(run),
        "prompts": asdict(prompt_table.of(run)),
        "over_prompts": OVER_PROMPTS,
    }


def as_json(data: Mapping[str, Any]) -> str:
    """`data` as JSON that is safe inside a script element, whatever its strings are. ValueError for a non-finite number."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    for character, escape in ESCAPED.items():
        text = text.replace(character, escape)
    return text


def _columns(method: Method) -> dict[str, Any]:
    stored = asdict(method)
    return {**stored, "effect": method.is_effect} | {
        name: [rounded(value) for value in stored[name]] for name in ("values", "low", "high")
    }


def _graph(run: RunFolder, graph: CircuitGraph) -> dict[str, Any]:
    """Nodes with their positions, discs and fills; edges with their share of the largest, smallest first."""
    places, shares, fills = place_nodes(graph), disc_shares(graph.nodes), colours.role_fills(graph.nodes)
    largest = max((abs(edge.weight) for edge in graph.edges), default=0.0) or 1.0
    return {
        "layers": graph.n_layers,
        "unit": graph.unit,
        "file": file_of(run, "28") or "",
        "faint": FAINT,
        "largest": rounded(largest),
        "nodes": [
            {
                "name": node.name,
                "role": node.role,
                "layer": node.layer,
                "x": places[node.name][0],
                "y": places[node.name][1],
                "effect": None if node.effect is None else rounded(node.effect),
                "share": rounded(shares[node.name]),
                "fill": fills.get(node.role, colours.PLAIN),
            }
            for node in graph.nodes
        ],
        "edges": [
            {
                "row": place,
                "from": edge.sender,
                "to": edge.receiver,
                "input": edge.input or "",
                "weight": rounded(edge.weight),
                "low": rounded(edge.low),
                "high": rounded(edge.high),
                "uncertain": edge.uncertain,
            }
            for place, edge in sorted(enumerate(graph.edges), key=lambda item: abs(item[1].weight))
        ],
    }


def _attention(run: RunFolder) -> dict[str, Any]:
    """Tokens and position names of the example prompts, and every head's pattern up to each query, in thousandths."""
    data = run.data(ATTENTION) or {}
    stored: Sequence[Any] = data.get("examples") or ()
    shown = run.require("01")["data"].get("examples") or ()
    found = []
    for place, example in enumerate(stored):
        told = shown[place] if place < len(shown) else {}
        found.append(
            {
                "tokens": example["tokens"],
                "positions": told.get("positions", {}),
                "answers": told.get("answers", []),
                "patterns": _thousandths(example["pattern"]),
                "corrupted": None
                if "corrupted_pattern" not in example
                else {
                    "tokens": example["corrupted_tokens"],
                    "patterns": _thousandths(example["corrupted_pattern"]),
                },
            }
        )
    return {"file": file_of(run, ATTENTION) or "", "examples": found}


def _thousandths(patterns: Sequence[Sequence[Sequence[float]]]) -> list[list[list[int]]]:
    """Patterns [head][query][key] in thousandths, with the keys up to each query only."""
    return [
        [[round(THOUSAND * weight) for weight in row[: query + 1]] for query, row in enumerate(pattern)]
        for pattern in patterns
    ]
