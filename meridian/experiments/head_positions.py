"""Circuits whose nodes are (head, position): which stay, which are replaced (Wang et al. 2022, section 2.3).

A head of such a circuit counts only at the positions of its role: a name mover at the end, an induction head at S2. All
else of every head, this one's other positions included, is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from circuits.circuit import Circuit, Node
from circuits.interventions import EveryBut, Intervention, Recipe, Variant

Positions = tuple[str, ...] | None  # roles of positions; None: all positions
Nodes = Mapping[Node, Positions]


def nodes_of(circuit: Circuit, where: Mapping[str, Sequence[str]]) -> dict[Node, Positions]:
    """The positions at which each head of a circuit counts: those that `where` gives for its roles.

    A head with a role that `where` does not know counts at all positions.
    """
    found: dict[Node, Positions] = {}
    for node in circuit.heads:
        roles = [name for name, role in circuit.roles.items() if node in role.heads]
        known = all(name in where for name in roles)
        found[node] = tuple(dict.fromkeys(place for name in roles for place in where[name])) if known else None
    return found


def unplaced(circuit: Circuit, where: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence about the roles of a circuit for which no position is known, if there are any."""
    names = [name for name in circuit.roles if name not in where]
    return [f"Heads of {', '.join(names)} stay at all positions: no position is known for them."] if names else []


def everywhere(heads: Iterable[Node]) -> dict[Node, Positions]:
    """The same heads, each at all positions."""
    return dict.fromkeys(sorted(heads))


def minus(nodes: Nodes, removed: Iterable[Node]) -> dict[Node, Positions]:
    """Nodes without those of some heads."""
    gone = set(removed)
    return {node: places for node, places in nodes.items() if node not in gone}


def only(kept: Nodes, heads: Iterable[Node], recipe: Recipe, name: str) -> Variant:
    """The clean run in which all of `heads` but the kept nodes is replaced: F(C) for kept C."""
    outside = tuple(node for node in sorted(heads) if node not in kept)
    found = [Intervention(outside, recipe)] if outside else []
    for places, own in _by_positions(kept):
        if places is not None:
            found.append(Intervention(own, recipe, (EveryBut(places),)))
    return Variant(name, tuple(found))


def without(removed: Nodes, recipe: Recipe, name: str) -> Variant:
    """The clean run in which some nodes are replaced and all else is as it is: F(M without K) for removed K."""
    return Variant(name, tuple(Intervention(own, recipe, places) for places, own in _by_positions(removed)))


def restored(nodes: Nodes, name: str) -> Variant:
    """The corrupted run into which the clean activations of some nodes are put."""
    clean = Recipe("patch", source="clean")
    return Variant(name, tuple(Intervention(own, clean, places) for places, own in _by_positions(nodes)), "corrupted")


def share(nodes: Nodes, n_heads: int, n_positions: float) -> float:
    """Share of all (head, position) pairs that the nodes are."""
    pairs = sum(n_positions if places is None else len(places) for places in nodes.values())
    return pairs / (n_heads * n_positions)


def _by_positions(nodes: Nodes) -> list[tuple[Positions, tuple[Node, ...]]]:
    """Heads with the same positions together, in a fixed order."""
    together: dict[Positions, list[Node]] = {}
    for node in sorted(nodes):
        together.setdefault(nodes[node], []).append(node)
    return [(places, tuple(own)) for places, own in together.items()]
