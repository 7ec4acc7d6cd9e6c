"""Circuits whose nodes are (head, position): which stay and which are replaced (Wang et al. 2022, section 2.3).

A head of such a circuit counts only at the positions of its role: a name mover at the end, an induction head at S2. The
outputs of heads everywhere else are replaced, including this head's at its other positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from circuits.circuit import Circuit, Node, complement
from circuits.interventions import Recipe, Variant, ablate, denoise

Positions = tuple[str, ...] | None  # roles of positions; None: all positions
Nodes = Mapping[Node, Positions]


def nodes_of(circuit: Circuit, where: Mapping[str, Sequence[str]]) -> dict[Node, Positions]:
    """{head: the positions at which it counts}: those that `where` gives for its roles.

    A head counts at all positions (None) if `where` lacks any of its roles. If the circuit itself claims a head at positions,
    the head counts there, whatever `where` says.
    """
    found: dict[Node, Positions] = {}
    for part in circuit.nodes:
        if part.kind == "head" and part.is_part:
            found[part.whole] = (*(found.get(part.whole) or ()), part.position)
    for node in circuit.heads:
        if node in found:
            continue
        roles = [name for name, role in circuit.roles.items() if node in role.heads]
        known = all(name in where for name in roles)
        found[node] = tuple(dict.fromkeys(place for name in roles for place in where[name])) if known else None
    return found


def unplaced(circuit: Circuit, where: Mapping[str, Sequence[str]]) -> list[str]:
    """A sentence naming the roles of a circuit whose positions are unknown; empty if there are none."""
    placed = {name for name, role in circuit.roles.items() if all(node.is_part for node in role.nodes)}
    names = [name for name in circuit.roles if name not in where and name not in placed]
    return [f"Heads of {', '.join(names)} stay at all positions: no position is known for them."] if names else []


def everywhere(heads: Iterable[Node]) -> dict[Node, Positions]:
    """The same heads, each at all positions."""
    return dict.fromkeys(sorted(heads))


def minus(nodes: Nodes, removed: Iterable[Node]) -> dict[Node, Positions]:
    """The nodes without those of the heads `removed`."""
    gone = set(removed)
    return {node: places for node, places in nodes.items() if node not in gone}


def parts(nodes: Nodes) -> tuple[Node, ...]:
    """The nodes in the form used by claims: one for each head and position, or the head itself if it counts at all positions."""
    return tuple(replace(node, position=at) for node in sorted(nodes) for at in nodes[node] or ("",))


def only(kept: Nodes, heads: Iterable[Node], recipe: Recipe, name: str) -> Variant:
    """The clean run in which everything in `heads` except the kept nodes is replaced: F(C) for kept C."""
    return ablate(complement(parts(kept), sorted(heads)), recipe, name)


def without(removed: Nodes, recipe: Recipe, name: str) -> Variant:
    """The clean run in which only the nodes `removed` are replaced: F(M without K) for removed K."""
    return ablate(parts(removed), recipe, name)


def restored(nodes: Nodes, name: str) -> Variant:
    """The corrupted run with the clean activations of some nodes restored."""
    return denoise(parts(nodes), name)


def share(nodes: Nodes, n_heads: int, n_positions: float) -> float:
    """The nodes' share of all (head, position) pairs."""
    pairs = sum(n_positions if places is None else len(places) for places in nodes.values())
    return pairs / (n_heads * n_positions)
