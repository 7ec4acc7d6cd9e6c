"""Claims of MLPs and positions as calibrations read them: names, the null's size, bands, roles, and what records say."""

from __future__ import annotations

import copy
import itertools
import math

import pytest

from calibrations import c23_nomological_validity, preconditions
from calibrations.calibrate import judge
from calibrations.claimed_nodes import ClaimedNode, named, names
from calibrations.evidence import Evidence
from calibrations.registry import CALIBRATIONS
from tests.calibrations.settings import config_of
from tests.calibrations.synthetic import COMMON, documents, evidence


def claiming(*roles: list[str], scope: str = "heads and mlps", ordinals=(1, 2, 4)) -> Evidence:
    """Synthetic evidence whose claim names these nodes, a role each; what was measured stays as it is."""
    found = copy.deepcopy(documents())
    circuit = found["20"]["data"]["circuit"]
    circuit["scope"] = scope
    circuit["roles"] = {
        f"role {place}": {
            "heads": sorted({(n.layer, n.index) for n in map(ClaimedNode.read, nodes) if n.kind == "head"}),
            "nodes": nodes,
            "ordinal": ordinal,
            "sign": 1,
            "assigned_by": "function",
            "evidence": "",
        }
        for place, (nodes, ordinal) in enumerate(zip(roles, ordinals, strict=False))
    }
    return Evidence(found, COMMON)


@pytest.mark.parametrize("name", ["L9H6", "M10", "L9H6@end", "M8@the subject", "L12H0@größe"])
def test_names_are_read_and_written_alike(name) -> None:
    assert ClaimedNode.read(name).name == name


@pytest.mark.parametrize("name", ["", "M", "L9", "mlp3", "L9H6@", "9.6"])
def test_another_name_is_refused(name) -> None:
    with pytest.raises(ValueError, match="is no name of a claimed node"):
        ClaimedNode.read(name)


def test_names_of_what_is_stored() -> None:
    assert names({"heads": [[0, 3], [2, 1]]}) == ["L0H3", "L2H1"]
    assert names({"heads": [[0, 3]], "nodes": ["L0H3@end", "M2"]}) == ["L0H3@end", "M2"]
    assert named([(0, 3)], ()) == {"heads": [[0, 3]]}
    assert named([(0, 3)], ["L0H3@end"]) == {"heads": [[0, 3]], "nodes": ["L0H3@end"]}


def test_a_claim_of_heads_is_read_as_before() -> None:
    plain = evidence()
    assert plain.heads_only and plain.scope == "heads" and plain.counted_besides == {}
    assert [(node.layer, node.index) for node in plain.claimed] == plain.circuit_heads
    assert plain.in_scope == len(plain.heads)


def test_heads_mlps_and_parts_are_told_apart() -> None:
    mixed = claiming(["L0H1@end", "L0H1@s2", "M0"], ["L1H2", "M3@end"], ["M0", "L2H0"])
    assert [node.name for node in mixed.claimed] == ["L0H1@end", "L0H1@s2", "L1H2", "L2H0", "M0", "M3@end"]
    assert mixed.circuit_heads == [(0, 1), (1, 2), (2, 0)] and int(mixed.in_circuit.sum()) == 3
    assert mixed.counted_besides == {"nodes": 6, "mlps": 2}
    assert mixed.in_scope == len(mixed.heads) + mixed.n_layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "nodes",
    [
        ["L0H0"],
        ["L0H0", "L0H1@end"],
        ["L0H0@s2", "L0H1@end", "L0H2@end"],
        ["M0"],
        ["L0H0", "L1H0@end", "M0", "M1@end"],
        ["L0H0@end", "L0H0@s2", "L0H1@end"],
    ],
)
def test_the_null_is_counted_by_hand(nodes) -> None:
    """Every way to place as many marked heads in each layer, and as many marked MLPs, listed one by one."""
    found = claiming(nodes)
    heads, layers = len([layer for layer, _ in found.heads if layer == 0]), found.n_layers
    marks: dict = {}
    for node in found.claimed:
        marks.setdefault(node.whole, set()).add(node.position)
    groups: dict = {}
    for (kind, layer, _), own in marks.items():
        groups.setdefault((kind, layer if kind == "head" else None), []).append(frozenset(own))
    expected = 1
    for (kind, _), own in groups.items():
        places = heads if kind == "head" else layers
        ways = {
            frozenset(zip(chosen, order, strict=True))
            for chosen in itertools.combinations(range(places), len(own))
            for order in itertools.permutations(own)
        }
        expected *= len(ways)
    assert preconditions.matching_circuits(found) == expected


def test_an_mlp_counts_in_the_band_of_its_layer_and_by_its_role() -> None:
    """Nodes of three layers in three roles: the MLP of the last one is one more node there, and a part is none."""
    found = claiming(["L0H0", "L0H1", "L0H2"], ["L1H0@end", "L1H0@s2", "L1H1", "M1"], ["L3H0", "L3H1", "M3"])
    density, depth = c23_nomological_validity.calibrate(found, config_of("c23"))
    counts = density.companions["nodes_per_layer"]
    assert counts[:4] == [3, 3, 0, 3] and sum(counts) == 9
    assert depth.n == {"nodes": 9}
    assert depth.estimate == pytest.approx(1) and depth.verdict == "pass"
    turned = claiming(["L0H0", "L0H1", "L0H2", "M3"], ["L1H0"], ["L3H0", "L3H1", "M0"])
    rho = c23_nomological_validity.calibrate(turned, config_of("c23"))[1].estimate
    assert rho is not None and rho < 0.7


@pytest.mark.slow
def test_every_calibration_says_what_it_does_with_them_and_its_first_record_repeats_it() -> None:
    config = {"common": config_of("common"), **{ID.lower(): config_of(ID.lower()) for ID in CALIBRATIONS}}
    said = {ID: module.NODES for ID, module in CALIBRATIONS.items()}
    assert len(said) == 16 and all(text.endswith(".") for text in said.values())
    mixed, plain = claiming(["L0H1", "M0"]), evidence()
    for subject, expected in ((mixed, 1), (plain, 0)):
        made = judge(subject, ["C23"], config)["C23"]["records"]
        notes = [note for record in made for note in record["notes"] if note.startswith("MLPs and positions: ")]
        assert notes == [f"MLPs and positions: {said['C23']}"] * expected


def test_a_claim_of_mlps_alone_is_judged_without_a_crash() -> None:
    found = claiming(["M0"], ["M2", "M3@end"])
    assert found.circuit_heads == [] and math.isclose(found.in_circuit.sum(), 0)
    records = c23_nomological_validity.calibrate(found, config_of("c23"))
    assert all(record.verdict in ("inconclusive", "insufficient") for record in records)
