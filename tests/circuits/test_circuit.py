"""Nodes and circuits: names, identity, files and what is refused."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
import yaml

import results_io
from circuits import circuit as circuit_files
from circuits.circuit import Circuit, Node, Pathway, Role, head, parse_head
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
PATHWAYS = (
    Pathway("embedding", "both"),
    Pathway("both", "name mover", "v"),
    Pathway("both", "name mover", "q"),
    Pathway("name mover", "logits"),
)
WIRED = replace(CLAIM, pathways=PATHWAYS)
HEADER = "name: a\ntask: b\nmodel: c\nprovenance: {kind: user}\n"


def with_pathway(text: str) -> str:
    return HEADER + "roles: {x: {heads: [L0H0]}}\npathways: [{" + text + "}]\n"


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


# --- pathways ---------------------------------------------------------------------------------------------------


def test_a_circuit_without_pathways_keeps_its_form_and_identity() -> None:
    before = {
        "name": "ioi_wang",
        "task": "ioi",
        "model": "gpt2",
        "roles": CLAIM.to_dict()["roles"],
        "provenance": PROVENANCE,
    }
    assert CLAIM.to_dict() == before
    assert CLAIM.sha256 == results_io.sha256(before)
    assert CLAIM.pathways == ()
    assert len({CLAIM.sha256, WIRED.sha256, replace(CLAIM, pathways=PATHWAYS[1:]).sha256}) == 3


def test_pathways_are_a_set_of_claims() -> None:
    again = replace(CLAIM, pathways=(*reversed(PATHWAYS), PATHWAYS[0]))
    assert again == WIRED
    assert again.sha256 == WIRED.sha256
    assert [str(pathway) for pathway in again.pathways] == [
        "both->name mover.q",
        "both->name mover.v",
        "embedding->both",
        "name mover->logits",
    ]
    assert WIRED.to_dict()["pathways"][2:] == [
        {"sender": "embedding", "receiver": "both", "input": None},
        {"sender": "name mover", "receiver": "logits", "input": None},
    ]


def test_pathways_survive_a_file(tmp_path) -> None:
    path = tmp_path / "wired.yaml"
    circuit_files.save(WIRED, path)
    loaded = circuit_files.load(path)
    assert loaded == WIRED
    assert loaded.sha256 == WIRED.sha256
    circuit_files.save(CLAIM, path)
    assert "pathways" not in path.read_text()


def test_a_pathway_in_a_file_may_leave_its_input_out(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        HEADER
        + "roles: {x: {heads: [L0H0]}, y: {heads: [L1H0]}}\n"
        + "pathways:\n  - {sender: x, receiver: y}\n  - {sender: x, receiver: y, input: k}\n"
    )
    assert circuit_files.load(path).pathways == (Pathway("x", "y"), Pathway("x", "y", "k"))


@pytest.mark.parametrize(
    ("sender", "receiver", "complaint"),
    [
        ("name movers", "logits", r"but 'name movers' is no role of it; use name mover, negative, both, embedding"),
        ("both", "end", r"both->end, but 'end' is no role of it; use name mover, negative, both, logits"),
        ("logits", "both", r"but 'logits' is no role of it"),
        ("both", "embedding", r"but 'embedding' is no role of it"),
        ("negative", "name mover", r"but no head of the sender is in a layer before one of the receiver; remove it"),
    ],
)
def test_a_pathway_that_cannot_be_is_one_sentence(sender, receiver, complaint) -> None:
    with pytest.raises(UserError, match=rf"circuit 'ioi_wang' has the pathway {sender}->{receiver}, but") as refused:
        replace(CLAIM, pathways=(Pathway(sender, receiver),))
    assert re.search(complaint, str(refused.value))


@pytest.mark.parametrize("name", ["embedding", "logits"])
def test_a_role_with_the_name_of_an_end_is_one_sentence(name) -> None:
    with pytest.raises(
        UserError, match=rf"circuit 'ioi_wang' calls a role '{name}', which is an end of pathways; rename"
    ):
        replace(CLAIM, roles={name: Role((head(0, 0),))})


@pytest.mark.parametrize(
    ("receiver", "input_", "complaint"),
    [
        ("both", "z", r"ends at input 'z'; a head has q, k and v"),
        ("logits", "q", r"the logits, which have no q, k or v"),
    ],
)
def test_an_input_that_a_receiver_has_not_is_one_sentence(receiver, input_, complaint) -> None:
    with pytest.raises(UserError, match=complaint):
        Pathway("negative", receiver, input_)


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(UserError, match=r"no circuit file at .*none.yaml; run with circuit=discovered"):
        circuit_files.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "name: [unclosed",
            r"is not a circuit file \(no YAML: expected ',' or ']', but got '<stream end>' in line 1\)",
        ),
        ("", r"is not a circuit file \(it is empty\)"),
        ("just words", r"is not a circuit file \(it holds a str in place of keys with values\)"),
        ("- L0H0\n- L1H0\n", r"is not a circuit file \(it holds a list in place of keys with values\)"),
        (
            "name: a\n\tb: c",
            r"is not a circuit file \(no YAML: found character '\\t' that cannot start any token in line 2",
        ),
        ("name: \0", r"is not a circuit file \(no text: character #x0000\)"),
        (HEADER + "roles: {x: {heads: [L0H0]}, x: {heads: [L1H0]}}\n", r"the key 'x' is there twice"),
        (HEADER + "roles: {x: {heads: [L0H0]}}\nname: again\n", r"the key 'name' is there twice"),
        (
            "name: a\ntask: b\nmodel: c\nroles: {x: {heads: [L0H0]}}\n",
            r"is not a circuit file \(it has no provenance\); it needs",
        ),
        (HEADER, r"\(it has no roles\)"),
        (HEADER + "roles: [L0H0]\n", "is not a circuit file"),
        (HEADER + "roles: {x: {}}\n", r"\(no 'heads'\)"),
        (HEADER + "roles: {x: {heads: [L0H0], sign: minus}}\n", "has sign 'minus'; use 1 or -1"),
        (HEADER + "roles: {x: {heads: ['0.3']}}\n", r"head '0.3' is not of the form L<layer>H<head>"),
        (HEADER + "roles: {x: {heads: L0H0}}\n", "heads is 'L0H0', and not a list"),
        (HEADER + "roles: {x: {heads: [L0H0], ordnal: 4}}\n", r"unknown key 'ordnal'; use heads, ordinal, sign"),
        (HEADER + "roles: {x: {heads: [L0H0], ordinal: 5}}\n", r"has ordinal 5; use 1 \(early\), 2 \(middle\), 3 "),
        (HEADER + "roles: {x: {heads: [L0H0], ordinal: 2.5}}\n", r"has ordinal 2\.5; use 1"),
        (HEADER + "roles: {x: {heads: [L0H0], ordinal: true}}\n", r"has ordinal True; use 1"),
        (HEADER + "roles: {x: {heads: [L0H0], ordinal: late}}\n", r"has ordinal 'late'; use 1"),
        (HEADER + "rolls: {}\nroles: {x: {heads: [L0H0]}}\n", r"unknown key 'rolls'; use name, task"),
        (with_pathway("sender: y, receiver: logits"), r"pathway y->logits, but 'y' is no role of it; use x"),
        (with_pathway("sender: x, receiver: logits, inputs: q"), r"unknown key 'inputs'; use sender, receiver"),
        (with_pathway("sender: embedding, receiver: x, input: z"), r"ends at input 'z'; a head has q, k and v"),
        (with_pathway("sender: x"), r"\(no 'receiver'\)"),
        (HEADER + "roles: {x: {heads: [L0H0]}}\npathways: [x]\n", "is not a circuit file|unknown key"),
    ],
)
def test_a_file_that_is_no_circuit_is_one_sentence(text, complaint, tmp_path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=complaint) as refused:
        circuit_files.load(path)
    assert "\n" not in str(refused.value)


def test_a_folder_and_other_bytes_than_text_are_no_circuit_file(tmp_path) -> None:
    with pytest.raises(UserError, match=r"is a folder; give the circuit file in it, such as .*circuit\.yaml"):
        circuit_files.load(tmp_path)
    (path := tmp_path / "latin.yaml").write_bytes("name: größe".encode("latin-1"))
    with pytest.raises(UserError, match=r"is not a circuit file \(the byte 0xf6 is not UTF-8\)"):
        circuit_files.load(path)
