"""Where the nodes of a circuit graph stand."""

from __future__ import annotations

from meridian.figures.values import CircuitGraph, GraphNode


def place_nodes(graph: CircuitGraph) -> dict[str, tuple[float, float]]:
    """Name: (x, y). y is the layer; in a layer heads stand side by side, one unit apart, those of one role together.

    Roles come in the order of their mean layer, so that a role keeps its side from layer to layer.
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
            shift = 0.12 * (-1) ** place if len(own) > 2 else 0.0  # a little up and down: edges between neighbours show
            places[node.name] = (place - (len(own) - 1) / 2, layer + shift)
    return places
