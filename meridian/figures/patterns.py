"""Attention patterns of the circuit's heads on the example prompts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from meridian.figures.intervals import cells
from meridian.figures.values import HeatMap
from meridian.run_folder import RunFolder

NUMBER = "25"


def build(run: RunFolder) -> Iterator[HeatMap]:
    """One heat map per circuit head and example prompt."""
    data, evidence = run.data(NUMBER), run.evidence
    for place, example in enumerate((data or {}).get("examples") or (), start=1):
        for head, role in evidence.roles.items():
            layer, index = head
            yield attention_map(
                example["tokens"],
                example["pattern"][evidence.heads.index(head)],
                f"Result {NUMBER}.",
                name=f"pattern_{place}_L{layer}H{index}",
                title=f"Attention of L{layer}H{index} ({role.replace('_', ' ')}) on example prompt {place}",
            )


def attention_map(tokens: Sequence[str], weights: Sequence[Sequence[float]], source: str = "", **names: Any) -> HeatMap:
    """Weight of each key (x) for each query (y), with queries from the top down. Keys after the query are masked: gaps.

    `source` ends the caption; `names` are name and title.
    """
    caption = "Each row is a query and sums to 1 over the keys up to it. One prompt: an illustration, not an estimate."
    return HeatMap(
        **names,
        caption=f"{caption} {source}".rstrip(),
        x_label="key",
        y_label="query",
        x=tuple(tokens),
        y=tuple(tokens),
        values=cells([[w if key <= query else None for key, w in enumerate(row)] for query, row in enumerate(weights)]),
        unit="attention weight",
        diverging=False,
        limits=(0.0, 1.0),
    )
