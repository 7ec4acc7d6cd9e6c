"""Names of nodes in claims (L9H6, M10, L9H6@end) and scopes of claims, for all code that writes or reads them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

HEADS: Final = "heads"
HEADS_AND_MLPS: Final = "heads and mlps"
SCOPES: Final = (HEADS, HEADS_AND_MLPS)  # the scope of a claim; unclaimed nodes in it are ablated
PATTERN: Final = re.compile(r"(?:L([0-9]+)H([0-9]+)|M([0-9]+))(?:@\s*([^@!\s][^@]*))?")


class NodeName(NamedTuple):
    """A head or an MLP ("head", "mlp" with `index` -1), at all positions or at a named one."""

    kind: str
    layer: int
    index: int = -1
    position: str = ""

    def __str__(self) -> str:
        place = f"L{self.layer}H{self.index}" if self.kind == "head" else f"M{self.layer}"
        return f"{place}@{self.position}" if self.position else place


def read(name: str) -> NodeName | None:
    """The parts of a name such as "L9H6", "M10", "L9H6@end" or "M8@subject"; None for any other text."""
    match = PATTERN.fullmatch(name.strip())
    if match is None:
        return None
    layer, index, of_mlp, position = match.groups()
    place = (position or "").strip()
    return NodeName("mlp", int(of_mlp), -1, place) if of_mlp else NodeName("head", int(layer), int(index), place)
