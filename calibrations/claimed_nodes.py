"""The nodes of a claim as measurements store them: heads by (layer, head); where MLPs or positions are claimed, all by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

NAME = re.compile(r"(?:L(?P<layer>[0-9]+)H(?P<index>[0-9]+)|M(?P<mlp>[0-9]+))(?:@(?P<position>.+))?")
HEADS, HEADS_AND_MLPS = "heads", "heads and mlps"  # scopes, as result 20 stores them; none is heads
SCOPE_WORDS = {HEADS: "heads only; MLPs stay intact", HEADS_AND_MLPS: "heads and MLPs"}


@dataclass(frozen=True, order=True)
class ClaimedNode:
    """A head or an MLP ("head", "mlp"), at all positions or at the one named; in the order in which results list nodes."""

    kind: str
    layer: int
    index: int = -1
    position: str = ""

    @classmethod
    def read(cls, name: str) -> Self:
        """The node called "L9H6", "M10", "L9H6@end" or "M8@subject". ValueError for any other name."""
        match = NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"{name!r} is no name of a claimed node; expected for example L9H6, M10 or L9H6@end")
        if match["mlp"]:
            return cls("mlp", int(match["mlp"]), position=match["position"] or "")
        return cls("head", int(match["layer"]), int(match["index"]), match["position"] or "")

    @property
    def name(self) -> str:
        place = f"L{self.layer}H{self.index}" if self.kind == "head" else f"M{self.layer}"
        return f"{place}@{self.position}" if self.position else place

    @property
    def whole(self) -> tuple[str, int, int]:
        """What it is a part of."""
        return self.kind, self.layer, self.index


def names(stored: Mapping[str, Any]) -> list[str]:
    """The nodes of something stored, by name: its `nodes` or, where it is all heads at all positions, its `heads`."""
    return list(stored["nodes"]) if "nodes" in stored else [f"L{layer}H{head}" for layer, head in stored["heads"]]


def named(heads: Iterable[Sequence[int]], nodes: Sequence[str]) -> dict[str, Any]:
    """What a record says of a set of nodes: its `heads`, and all of them by name if they are not just heads."""
    return {"heads": [list(head) for head in heads], **({"nodes": list(nodes)} if nodes else {})}
