"""The nodes of a claim as measurements store them: heads by (layer, head); where MLPs or positions are claimed, all by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import node_names
from node_names import HEADS, HEADS_AND_MLPS

SCOPE_WORDS = {HEADS: "heads only; MLPs stay intact", HEADS_AND_MLPS: "heads and MLPs"}


@dataclass(frozen=True, order=True)
class ClaimedNode:
    """A head or an MLP ("head", "mlp"), at all positions or at a named one. Nodes sort in the order of results."""

    kind: str
    layer: int
    index: int = -1
    position: str = ""

    @classmethod
    def read(cls, name: str) -> Self:
        """The node called "L9H6", "M10", "L9H6@end" or "M8@subject". ValueError for any other name."""
        found = node_names.read(name)
        if found is None:
            raise ValueError(f"{name!r} is no name of a claimed node; expected for example L9H6, M10 or L9H6@end")
        return cls(*found)

    @property
    def name(self) -> str:
        return str(node_names.NodeName(self.kind, self.layer, self.index, self.position))

    @property
    def whole(self) -> tuple[str, int, int]:
        """The head or MLP that it is or is a part of."""
        return self.kind, self.layer, self.index


def names(stored: Mapping[str, Any]) -> list[str]:
    """The names of stored nodes: `nodes`, or those of `heads` if all are heads at all positions."""
    return list(stored["nodes"]) if "nodes" in stored else [f"L{layer}H{head}" for layer, head in stored["heads"]]


def named(heads: Iterable[Sequence[int]], nodes: Sequence[str]) -> dict[str, Any]:
    """A set of nodes in a record: its `heads`, and all `nodes` by name if they are not just heads."""
    return {"heads": [list(head) for head in heads], **({"nodes": list(nodes)} if nodes else {})}
