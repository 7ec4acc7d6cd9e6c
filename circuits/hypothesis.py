"""Which edges of the computational graph a circuit says matter, and the run in which only those do.

A circuit claims heads and the pathways between their roles. What it is silent about stays relevant: MLPs, which read every
circuit head, the embedding and each other, and are read by every circuit head and the logits; and the embedding, unless the
circuit names pathways that begin there (then those are all). Heads outside the circuit are irrelevant everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from circuits.circuit import INPUT, OUTPUT, Circuit, Node, Pathway, Role
from circuits.edges import EMBEDDING, PROJECTIONS, Edge, Graph, Reader, ReaderKind
from circuits.interventions import Intervention, PathIntervention, Recipe, Variant


def pathways(circuit: Circuit) -> tuple[Pathway, ...]:
    """The pathways that a circuit declares or, if it declares none, those that its roles imply.

    The rule: a role may feed roles of a later processing step. A role without a step (no ordinal) is not ordered: it may
    feed every role and be fed by every role, itself included. Roles of the last step and roles without a step write to
    the logits. A pathway without an edge (no head of the sender in a layer before one of the receiver) is left out.
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
    """The edges that matter if the circuit is right, or if it is right but for the pathway `without`.

    An edge that another pathway also holds stays. Under grouped-query attention a key or value input belongs to all query
    heads of its group, so it is relevant if it is so for one of them.
    """
    claimed = pathways(circuit)
    about_embedding = any(pathway.sender == INPUT for pathway in claimed)
    unclaimed = {
        edge
        for edge in circuit_edges(circuit, graph)
        if "mlp" in (edge.writer.kind, edge.reader.kind) or (edge.writer == EMBEDDING and not about_embedding)
    }
    kept = (pathway_edges(pathway, circuit, graph) for pathway in claimed if pathway != without)
    return frozenset(unclaimed).union(*kept)


def pathway_edges(pathway: Pathway, circuit: Circuit, graph: Graph) -> frozenset[Edge]:
    """The edges of one pathway: every head of the sender to the inputs of every later head of the receiver."""
    writers = (EMBEDDING,) if pathway.sender == INPUT else circuit.roles[pathway.sender].heads
    if pathway.receiver == OUTPUT:
        readers = {graph.logits}
    else:
        kinds = PROJECTIONS if pathway.input is None else (cast(ReaderKind, pathway.input),)  # q, k or v
        readers = {graph.reader_of(node, kind) for node in circuit.roles[pathway.receiver].heads for kind in kinds}
    return frozenset(Edge(w, reader) for w in writers for reader in readers if graph.connects(w, reader))


def circuit_edges(circuit: Circuit, graph: Graph) -> frozenset[Edge]:
    """All edges among the circuit's heads, the MLPs, the embedding and the logits: what the heads alone claim."""
    heads = set(circuit.heads)
    inside = {reader for node in heads for reader in _inputs(node, graph)}
    return frozenset(
        edge
        for edge in graph.edges
        if (edge.writer.kind != "head" or edge.writer in heads)
        and (edge.reader.kind not in PROJECTIONS or edge.reader in inside)
    )


def scrub(relevant: Iterable[Edge], graph: Graph, recipe: Recipe, name: str) -> Variant:
    """The clean run in which every edge outside `relevant` carries what its writer gives under `recipe`.

    The same logits as `patch_paths` of the complement, for less: a component from which no relevant edges lead to the
    logits is replaced as a whole, and what it would have read is left alone.
    """
    relevant = frozenset(relevant)
    writers, readers = _reaching(relevant, graph)
    replaced = tuple(node for node in graph.writers if node not in writers)
    cut = tuple(e for e in graph.edges if e not in relevant and e.writer in writers and e.reader in readers)
    interventions = (Intervention(replaced, recipe),) if replaced else ()
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
    """What a writer reads."""
    if node.kind == "head":
        return tuple(graph.reader_of(node, kind) for kind in PROJECTIONS)
    return (Reader("mlp", node.layer),) if node.kind == "mlp" else ()
