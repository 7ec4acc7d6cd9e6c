"""Layout that browser and paper share: ends of axes, positions and sizes of a circuit graph's nodes, and the drawn edges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meridian.figures.values import CircuitGraph, GraphEdge, GraphNode

INSET = 0.46  # from a cell's centre to its frame; below .5, so that two frames do not enclose the cell between them
LOGITS = "logits"
HELPS, OPPOSES = "helps the answer", "opposes it"  # edges with a positive and with a negative effect
FAINT = 0.02  # edges below this share of the largest are left out of the drawing (not of the data)


def axis_ends(values: Sequence[float], share: float = 0.06) -> tuple[float, float]:
    """Ends of an axis for `values`, with `share` of their range as room on both sides."""
    room = share * ((max(values) - min(values)) or abs(values[0]) or 1.0)
    return min(values) - room, max(values) + room


def level_name(layer: int, n_layers: int) -> str:
    """The name of a row of a circuit's graph."""
    return {-1: "embedding", n_layers: LOGITS}.get(layer, f"layer {layer}")


def place_nodes(graph: CircuitGraph) -> dict[str, tuple[float, float]]:
    """{name: (x, y)}. y is the layer. In a layer, heads are one unit apart, with those of one role next to each other.

    Roles are ordered by their mean layer, so that a role keeps its side from layer to layer.
    """
    of_role: dict[str, list[int]] = {}
    for node in graph.nodes:
        of_role.setdefault(node.role, []).append(node.layer)
    rank = {role: (sum(layers) / len(layers), role) for role, layers in of_role.items()}
    places = {}
    for layer in sorted({node.layer for node in graph.nodes}):
        own: list[GraphNode] = sorted(
            (node for node in graph.nodes if node.layer == layer), key=lambda node: (rank[node.role], node.name)
        )
        for place, node in enumerate(own):
            shift = 0.12 * (-1) ** place if len(own) > 2 else 0.0  # up and down, so that edges between neighbours show
            places[node.name] = (place - (len(own) - 1) / 2, layer + shift)
    return places


def disc_shares(nodes: Iterable[GraphNode]) -> dict[str, float]:
    """|effect| divided by the largest, 0 to 1. A disc's area grows linearly with it, from a smallest disc that holds a name."""
    sizes = {node.name: abs(node.effect or 0.0) for node in nodes}
    largest = max(sizes.values(), default=0.0) or 1.0
    return {name: size / largest for name, size in sizes.items()}


def drawn_edges(graph: CircuitGraph) -> dict[GraphEdge, float]:
    """{edge: its share of the largest edge}, for the edges to draw, smallest first.

    An edge is drawn if its share is at least `FAINT` and its sign is known. The largest edge counts whether drawn or not.
    """
    largest = max((abs(edge.weight) for edge in graph.edges), default=0.0) or 1.0
    shares = {edge: abs(edge.weight) / largest for edge in sorted(graph.edges, key=lambda edge: abs(edge.weight))}
    return {edge: share for edge, share in shares.items() if share >= FAINT and not edge.uncertain}
