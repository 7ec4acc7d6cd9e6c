"""Attention patterns of the circuit's heads on the example prompts."""

from __future__ import annotations

from collections.abc import Iterator

from meridian.figures.estimates import cells
from meridian.figures.values import Cells, HeatMap
from meridian.run_folder import RunFolder

NUMBER = "25"


def build(run: RunFolder) -> Iterator[HeatMap]:
    """One heat map per circuit head and example prompt: weight of each key (x) for each query (y). Queries top down."""
    data, evidence = run.data(NUMBER), run.evidence
    role_of = {tuple(h): role for role, spec in evidence.circuit["roles"].items() for h in spec["heads"]}
    index = {head: place for place, head in enumerate(evidence.heads)}
    for place, example in enumerate((data or {}).get("examples") or (), start=1):
        for layer, head in evidence.circuit_heads:
            role = role_of[layer, head].replace("_", " ")
            yield HeatMap(
                name=f"pattern_{place}_L{layer}H{head}",
                title=f"Attention of L{layer}H{head} ({role}) on example prompt {place}",
                caption="Each row is a query and sums to 1 over the keys up to it. One prompt: an illustration, not an "
                f"estimate. Result {NUMBER}.",
                x_label="key",
                y_label="query",
                x=tuple(example["tokens"]),
                y=tuple(example["tokens"]),
                values=_causal(example["pattern"][index[layer, head]]),
                unit="attention weight",
                diverging=False,
                limits=(0.0, 1.0),
            )


def _causal(pattern: list[list[float]]) -> Cells:
    """The weights of keys up to the query; those after it are masked in the model, so there is nothing to show."""
    return cells([[w if key <= query else None for key, w in enumerate(row)] for query, row in enumerate(pattern)])
