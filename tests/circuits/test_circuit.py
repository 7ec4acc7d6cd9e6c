"""Nodes and circuits: names, identity, files and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import yaml

from circuits import circuit as circuit_files
from circuits.circuit import Circuit, Node, Role, head, parse_head
from results_io import UserError

ROLES = {
    "name mover": Role(
        (head(9, 9), head(10, 0)), ordinal=4, assigned_by="function", evidence="copies “names” to the end"
    ),
    "negative": Role((head(10, 7),), sign=-1),
    "both": Role((head(9, 9), head(0, 11)), ordinal=1),
}
PROVENANCE = {"kind": "published", "source": "Wang et al. 2022", "split": "none"}
CLAIM = Circuit("ioi_wang", "ioi", "gpt2", ROLES, PROVENANCE)


def test_head_names_round_trip() -> None:
    rng = random.Random(0)
    for _ in range(50):
        node = head(rng.randrange(100), rng.randrange(100))
        assert parse_head(str(node)) == node
    assert str(head(3, 2)) == "L3H2"
    assert parse_head(" L3H2 ") == Node("head", 3, 2)
    assert [str(Node(kind, 4)) for kind in ("mlp", "attention", "residual")] == [
        "mlp4",
        "attention4",
        "residual4",
    ]


@pytest.mark.parametrize("name", ["", "3.2", "L3", "H2L3", "L-1H2", "L3H2x", "l3h2", "L3 H2", None, 32])
def test_a_bad_head_name_is_named(name) -> None:
    with pytest.raises(UserError, match=r"is not of the form L<layer>H<head>; write for example L3H2"):
        parse_head(name)


def test_nodes_sort_by_layer_then_head_and_are_hashable() -> None:
    nodes = [head(2, 0), head(0, 3), head(0, 1), head(1, 5)]
    assert [str(node) for node in sorted(nodes)] == ["L0H1", "L0H3", "L1H5", "L2H0"]
    assert {head(1, 1), Node("head", 1, 1)} == {head(1, 1)}


def test_heads_are_every_role_s_once_in_order() -> None:
    assert [str(node) for node in CLAIM.heads] == ["L0H11", "L9H9", "L10H0", "L10H7"]


def test_check_accepts_the_model_s_shape_and_names_a_head_outside_it() -> None:
    assert CLAIM.check(12, 12) is CLAIM
    with pytest.raises(UserError, match=r"names head L10H0, but model 'gpt2' has layers 0-9 with heads 0-11"):
        CLAIM.check(10, 12)
    with pytest.raises(UserError, match=r"names head L0H11, but .* heads 0-10; correct the head"):
        CLAIM.check(12, 11)


@pytest.mark.parametrize("roles", [{}, {"empty": Role(())}])
def test_check_refuses_an_empty_circuit(roles) -> None:
    with pytest.raises(UserError, match="has no heads; name at least one"):
        replace(CLAIM, roles=roles).check(12, 12)


def test_save_then_load_returns_an_equal_circuit(tmp_path) -> None:
    path = tmp_path / "circuits" / "ioi.yaml"
    circuit_files.save(CLAIM, path)
    loaded = circuit_files.load(path)
    assert loaded == CLAIM
    assert loaded.sha256 == CLAIM.sha256
    assert yaml.safe_load(path.read_text())["roles"]["negative"]["heads"] == ["L10H7"]
    first = path.read_bytes()
    circuit_files.save(loaded, path)
    assert path.read_bytes() == first


def test_identity_changes_with_the_claim_and_not_with_the_order_of_roles() -> None:
    reordered = replace(CLAIM, roles=dict(reversed(ROLES.items())))
    assert reordered.sha256 == CLAIM.sha256
    other_head = replace(CLAIM, roles=ROLES | {"negative": Role((head(10, 8),), sign=-1)})
    other_sign = replace(CLAIM, roles=ROLES | {"negative": Role((head(10, 7),), sign=1)})
    other_role = replace(CLAIM, roles={("renamed" if name == "both" else name): role for name, role in ROLES.items()})
    assert len({each.sha256 for each in (CLAIM, other_head, other_sign, other_role)}) == 4


def test_to_dict_is_what_result_20_documents() -> None:
    stored = CLAIM.to_dict()
    assert stored["roles"]["name mover"] == {
        "heads": [[9, 9], [10, 0]],
        "ordinal": 4,
        "sign": 1,
        "assigned_by": "function",
        "evidence": "copies “names” to the end",
    }
    assert (stored["name"], stored["task"], stored["model"]) == ("ioi_wang", "ioi", "gpt2")
    assert stored["provenance"] == PROVENANCE


def test_a_minimal_file_gets_the_documented_defaults(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\ntask: ioi\nmodel: pocket\nprovenance: {kind: user}\nroles: {all: {heads: [L3H2, L0H1]}}\n"
    )
    loaded = circuit_files.load(path)
    assert loaded.roles == {
        "all": Role((head(3, 2), head(0, 1)), ordinal=None, sign=1, assigned_by="none", evidence="")
    }


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match=r"no circuit file at .*none.yaml; run with circuit=discovered"):
        circuit_files.load(tmp_path / "none.yaml")


HEADER = "name: a\ntask: b\nmodel: c\nprovenance: {}\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("name: [unclosed", "is not a circuit file"),
        ("", "is not a circuit file"),
        ("just words", "is not a circuit file"),
        ("name: a\ntask: b\nmodel: c\nroles: {x: {heads: [L0H0]}}\n", "KeyError: 'provenance'"),
        (HEADER, "KeyError: 'roles'"),
        (HEADER + "roles: [L0H0]\n", "is not a circuit file"),
        (HEADER + "roles: {x: {}}\n", "KeyError: 'heads'"),
        (HEADER + "roles: {x: {heads: [L0H0], sign: minus}}\n", "is not a circuit file"),
        (HEADER + "roles: {x: {heads: ['0.3']}}\n", r"head '0.3' is not of the form L<layer>H<head>"),
        (HEADER + "roles: {x: {heads: L0H0}}\n", r"head 'L' is not of the form"),
        (HEADER + "roles: {x: {heads: [L0H0], ordnal: 4}}\n", r"unknown key 'ordnal'; use heads, ordinal, sign"),
        (HEADER + "rolls: {}\nroles: {x: {heads: [L0H0]}}\n", r"unknown key 'rolls'; use name, task"),
    ],
)
def test_a_file_that_is_no_circuit_is_one_sentence(text, complaint, tmp_path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint):
        circuit_files.load(path)
