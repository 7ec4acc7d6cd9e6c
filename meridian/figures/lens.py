"""Figures of the logit lens: what the residual stream encodes about the answer, by layer and by position."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from meridian.figures.intervals import LEVEL, cells, clustered_means, interval_words
from meridian.figures.names import human
from meridian.figures.values import Curves, Figure, HeatMap, Series
from meridian.run_folder import RunFolder

NUMBER = "04"


def build(run: RunFolder) -> Iterator[Figure]:
    """Answer probability and logit difference by layer; both by position role; the top token on example prompts."""
    data = run.data(NUMBER)
    if data is None:
        return
    for field, title, unit in (
        ("probability", "Logit lens: probability of the answer", "probability"),
        ("logit_diff", "Logit lens: logit difference", "nats"),
    ):
        yield _curve(run, data[field], field, title, unit)
        yield _by_position(data["by_position"], field, title, unit)
    for place, example in enumerate(data["examples"], start=1):
        names = {"name": f"lens_example_{place}", "title": f"Logit lens on example prompt {place}"}
        yield token_map(example, "read at", f"Result {NUMBER}.", **names)


def layer_names(n: int) -> tuple[str, ...]:
    """Names of the n = L + 1 points that the lens reads: the embedding, then the stream after each layer."""
    return ("embedding", *(f"after layer {layer}" for layer in range(n - 1)))


def _curve(run: RunFolder, values: Any, field: str, title: str, unit: str) -> Curves:
    evidence = run.evidence
    sample = np.asarray(values, dtype=float)[:, evidence.rows].T
    means, low, high = clustered_means(sample, evidence.clusters, evidence.templates)
    return Curves(
        name=f"lens_{field}",
        title=title,
        caption=f"At the last position, the stream read through the final norm and the unembedding. Mean over {len(sample)} "
        f"evaluation prompts, {interval_words(low)}. Result {NUMBER}.",
        x_label="place in the residual stream",
        y_label=unit,
        x=layer_names(sample.shape[1]),
        series=(Series("mean", tuple(means), tuple(low), tuple(high)),),
        level=LEVEL,
    )


def _by_position(stored: Mapping[str, Any], field: str, title: str, unit: str) -> HeatMap:
    return HeatMap(
        name=f"lens_{field}_by_position",
        title=f"{title}, by position",
        caption=f"The same read at each named position ({unit}). Mean over {len(stored['rows'])} prompts. Result {NUMBER}.",
        x_label="position",
        y_label="read at",
        upwards=True,
        x=tuple(map(human, stored["roles"])),
        y=layer_names(len(stored[field])),
        values=cells(stored[field]),
        unit=unit,
        diverging=field == "logit_diff",
        limits=(0.0, 1.0) if field == "probability" else None,
    )


def token_map(example: Mapping[str, Any], y_label: str, source: str = "", **names: Any) -> HeatMap:
    """The top token of every layer at every position of one prompt, coloured by its probability.

    `example` has tokens, top_token and top_probability. `source` ends the caption; `names` are name and title.
    """
    caption = (
        "The token that each place would say next, coloured by its probability. One prompt: an illustration, not an "
    )
    return HeatMap(
        **names,
        caption=f"{caption}estimate. {source}".rstrip(),
        x_label="token of the prompt",
        y_label=y_label,
        upwards=True,
        x=tuple(example["tokens"]),
        y=layer_names(len(example["top_token"])),
        values=cells(example["top_probability"]),
        unit="probability",
        text=tuple(map(tuple, example["top_token"])),
        diverging=False,
        limits=(0.0, 1.0),
    )
