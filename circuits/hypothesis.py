"""The edges of the computational graph that a circuit calls relevant, and the run in which only those matter.

A circuit claims heads and the pathways between their roles. What it does not mention stays relevant. This holds for MLPs, which
read every circuit head, the embedding and each other, and are read by every circuit head and the logits. It also holds for the
embedding, unless the circuit names pathways that begin there, which are then all. Heads outside the circuit are irrelevant. A
circuit of heads and MLPs does speak about MLPs: those it claims are treated like its heads, and all others are irrelevant.
Edges connect whole nodes; if a node is claimed at named positions, its other positions are irrelevant as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from circuits.circuit import INPUT, OUTPUT, Circuit, Node, Pathway, Role, complement
from circuits.edges import EMBEDDING, PROJECTIONS, Edge, Graph, Reader, ReaderKind
from circuits.interventions import PathIntervention, Recipe, Variant, on_parts


def pathways(circuit: Circuit) -> tuple[Pathway, ...]:
    """The pathways that a circuit declares or, if it declares none, those that its roles imply.

    The rule: a role may feed roles of a later processing step. A role without a step (no ordinal) may feed every role and be
    fed by every role, itself included. Roles of the last step and roles without a step write to the logits. A pathway without
    an edge (no node of the sender comes before one of the receiver) is left out.
    """
    if circuit.pathways:
        return circuit.pathways
    roles = circuit.roles
    last = max((role.ordinal for role in roles.values() if role.ordinal is not None), default=None)
    found = [
        Pathway(sender, receiver)
        for sender in roles
        for receiver in roles
        if _in_order(roles[sender], roles[receiver]) and circuit.feeds(sender, receiver)
    ]
    found += [Pathway(name, OUTPUT) for name, role in roles.items() if role.ordinal in (None, last)]
    return replace(circuit, pathways=tuple(found)).pathways


def _in_order(sender: Role, receiver: Role) -> bool:
    if sender.ordinal is None or receiver.ordinal is None:
        return True
    return sender.ordinal < receiver.ordinal


def hypothesis_edges(circuit: Circuit, graph: Graph, without: Pathway | None = None) -> frozenset[Edge]:
    """The relevant edges if the circuit is right, or if it is right except for the pathway `without`.

    An edge that another pathway also has stays. Under grouped-query attention a key or value input belongs to all query heads
    of its group, so it is relevant if it is relevant for one of them.
    """
    claimed = pathways(circuit)
    about_embedding, silent = any(pathway.sender == INPUT for pathway in claimed), not circuit.judges_mlps
    unclaimed = {
        edge
        for edge in circuit_edges(circuit, graph)
        if (silent and "mlp" in (edge.writer.kind, edge.reader.kind))
        or (edge.writer == EMBEDDING and not about_embedding)
    }
    kept = (pathway_edges(pathway, circuit, graph) for pathway in claimed if pathway != without)
    return frozenset(unclaimed).union(*kept)


def pathway_edges(pathway: Pathway, circuit: Circuit, graph: Graph) -> frozenset[Edge]:
    """The edges of one pathway: every node of the sender to the inputs of every later node of the receiver.

    An MLP has one input, so it is not a receiver of a pathway to only queries, keys or values.
    """
    writers = (EMBEDDING,) if pathway.sender == INPUT else {node.whole for node in circuit.roles[pathway.sender].nodes}
    if pathway.receiver == OUTPUT:
        readers = {graph.logits}
    else:
        role = circuit.roles[pathway.receiver]
        kinds = PROJECTIONS if pathway.input is None else (cast(ReaderKind, pathway.input),)  # q, k or v
        readers = {graph.reader_of(node, kind) for node in role.heads for kind in kinds}
        readers |= {Reader("mlp", node.layer) for node in role.mlps if pathway.input is None}
    return frozenset(Edge(w, reader) for w in writers for reader in readers if graph.connects(w, reader))


def circuit_edges(circuit: Circuit, graph: Graph) -> frozenset[Edge]:
    """All edges among the circuit's nodes, the embedding and the logits, as if no pathways were claimed. For a circuit of heads
    they include the edges of every MLP.
    """
    every = circuit.in_scope(graph.heads, graph.n_layers)
    left_out = set(every) - {node.whole for node in circuit.nodes}
    inside = {
        graph.logits,
        *(reader for node in graph.writers if node not in left_out for reader in _inputs(node, graph)),
    }
    return frozenset(edge for edge in graph.edges if edge.writer not in left_out and edge.reader in inside)


def other_positions(circuit: Circuit, graph: Graph) -> tuple[Node, ...]:
    """The unclaimed positions of nodes that are claimed only at named positions."""
    every = circuit.in_scope(graph.heads, graph.n_layers)
    return tuple(unit for unit in complement(circuit.nodes, every) if unit.is_part)


def scrub(relevant: Iterable[Edge], graph: Graph, recipe: Recipe, name: str, replaced: Iterable[Node] = ()) -> Variant:
    """The clean run in which every edge outside `relevant` carries its writer's value under `recipe`, and so do the nodes
    `replaced`.

    It gives the same logits as `patch_paths` of the complement with less work: a component from which no relevant edges lead to
    the logits is replaced as a whole, and its inputs are not changed.
    """
    relevant = frozenset(relevant)
    writers, readers = _reaching(relevant, graph)
    unread = tuple(node for node in graph.writers if node not in writers)
    cut = tuple(e for e in graph.edges if e not in relevant and e.writer in writers and e.reader in readers)
    interventions = on_parts((*unread, *(node for node in replaced if node.whole in writers)), recipe)
    return Variant(name, (*interventions, PathIntervention(cut, recipe)) if cut else interventions)


def _reaching(relevant: frozenset[Edge], graph: Graph) -> tuple[set[Node], set[Reader]]:
    """Writers and readers from which relevant edges lead to the logits."""
    read_by: dict[Node, set[Reader]] = {}
    for edge in relevant:
        read_by.setdefault(edge.writer, set()).add(edge.reader)
    writers, readers = set(), {graph.logits}
    for node in reversed(graph.writers):
        if readers & read_by.get(node, set()):
            writers.add(node)
            readers.update(_inputs(node, graph))
    return writers, readers


def _inputs(node: Node, graph: Graph) -> tuple[Reader, ...]:
    """The inputs of a writer."""
    if node.kind == "head":
        return tuple(graph.reader_of(node, kind) for kind in PROJECTIONS)
    return (Reader("mlp", node.layer),) if node.kind == "mlp" else ()
