"""Which (head, position) pairs a variant replaces, counted one by one; and what is left of a planted model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from circuits.circuit import Circuit, Role, head
from circuits.engine.lens import places
from circuits.interventions import Intervention, Recipe, Sweep, Variant
from meridian.experiments import head_positions, reproduction
from meridian.experiments.reproduce_ioi import MEAN
from tests.meridian.experiments import reproduced

WHERE = {"name_mover": ["end"], "s_inhibition": ["end"], "duplicate_token": ["s2"]}


@pytest.fixture(scope="module")
def study():
    return reproduced.planted()


@pytest.fixture(scope="module")
def nodes(study):
    return head_positions.nodes_of(study.circuit, WHERE)


def replaced(variant: Variant, prompts, row: int) -> set:
    """Every (head, position) of one prompt that a variant replaces."""
    one, found = prompts.select([row]), set()
    for item in variant.on_nodes:
        assert isinstance(item, Intervention)
        length = int(one.end[0]) + 1
        where = range(length) if item.positions is None else []
        for role in item.positions or ():
            where = [*where, *places(one, role)[1].tolist()]
        found |= set(itertools.product(item.nodes, where))
    return found


@pytest.mark.slow
def test_all_pairs_but_the_circuit_s_are_replaced(study, nodes) -> None:
    prompts = study.prompts
    variant = head_positions.only(nodes, study.model.heads, MEAN, "circuit")
    for row in range(0, len(prompts), 7):
        every = set(itertools.product(study.model.heads, range(int(prompts.end[row]) + 1)))
        kept = {(node, int(prompts.positions[role][row])) for node, roles in nodes.items() for role in roles}
        assert replaced(variant, prompts, row) == every - kept
        assert len(kept) == len(study.circuit.heads) == 7


def test_without_replaces_the_nodes_and_nothing_else(study, nodes) -> None:
    prompts, gone = study.prompts, {node: nodes[node] for node in (head(3, 0), head(0, 2))}
    found = replaced(head_positions.without(gone, MEAN, "a"), prompts, 3)
    assert found == {(head(3, 0), int(prompts.end[3])), (head(0, 2), int(prompts.positions["s2"][3]))}
    whole = replaced(head_positions.without({head(1, 1): None}, MEAN, "b"), prompts, 3)
    assert whole == {(head(1, 1), position) for position in range(int(prompts.end[3]) + 1)}


def test_a_head_of_two_roles_has_both_positions_and_of_an_unknown_role_all() -> None:
    roles = {
        "one": Role((head(0, 0), head(0, 1))),
        "two": Role((head(0, 1),)),
        "other": Role((head(0, 2),)),
    }
    circuit = Circuit("a", "ioi", "m", roles, {})
    found = head_positions.nodes_of(circuit, {"one": ["end"], "two": ["s2", "end"]})
    assert found == {head(0, 0): ("end",), head(0, 1): ("end", "s2"), head(0, 2): None}
    assert head_positions.unplaced(circuit, {"one": ["end"], "two": ["s2"]}) == [
        "Heads of other stay at all positions: no position is known for them."
    ]
    assert head_positions.unplaced(circuit, {name: ["end"] for name in roles}) == []
    assert head_positions.share(found, 3, 10.0) == pytest.approx((1 + 2 + 10) / 30)


@pytest.mark.slow
def test_the_planted_circuit_at_its_positions_is_the_whole_model(study, nodes) -> None:
    """Faithful to 1 % at all positions and at its roles' own; nothing without its movers; a decoy more changes nothing."""
    movers = study.circuit.roles["name_mover"].heads
    decoy = {**nodes, head(3, 7): ("end",)}
    heads = study.model.heads
    sweep = Sweep(
        (
            Variant("model"),
            head_positions.only(head_positions.everywhere(nodes), heads, MEAN, "circuit"),
            head_positions.only(nodes, heads, MEAN, "placed"),
            head_positions.only(decoy, heads, MEAN, "placed and a decoy"),
            head_positions.only(head_positions.minus(nodes, movers), heads, MEAN, "no movers"),
            head_positions.restored(nodes, "restored"),
        )
    )
    found = reproduction.corrupted_reference(study).run(sweep, study.prompts).logit_diff.mean(1)
    assert found[0] > 5
    assert found[1:4] == pytest.approx([found[0]] * 3, rel=0.01)
    assert abs(found[4]) < 0.05 * found[0]
    assert found[5] == pytest.approx(found[0], rel=0.01)


def test_at_the_wrong_positions_the_planted_circuit_does_nothing(study) -> None:
    wrong = head_positions.nodes_of(study.circuit, {name: ["io"] for name in study.circuit.roles})
    sweep = Sweep((Variant("model"), head_positions.only(wrong, study.model.heads, MEAN, "wrong")))
    whole, left = reproduction.corrupted_reference(study).run(sweep, study.prompts).logit_diff.mean(1)
    assert abs(left) < 0.05 * whole


def test_the_reference_is_the_abc_twins(study) -> None:
    """As many of each template as asked for, with three names of which none is the clean prompt's."""
    engine = reproduction.corrupted_reference(study, 6)
    reference, clean = engine.reference.prompts, study.engine.reference.prompts
    templates = np.array(reference.templates)
    assert {int((templates == name).sum()) for name in set(clean.templates)} == {6}
    rows = {one: row for row, one in enumerate(clean.ids)}
    for row, one in enumerate(reference.ids):
        assert reference.clean[row].tolist() == clean.corrupted[rows[one], : reference.clean.shape[1]].tolist()
    sweep = Sweep((head_positions.only({}, study.model.heads, Recipe("mean"), "a"),))
    other = study.engine.run(sweep, study.prompts).logit_diff
    assert np.abs(engine.run(sweep, study.prompts).logit_diff - other).max() > 1e-3
