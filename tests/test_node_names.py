"""Names of claimed nodes: one grammar for claims, which are read and written, and for calibrations, which read them."""

from __future__ import annotations

import pytest

import node_names
from calibrations.claimed_nodes import ClaimedNode
from circuits.circuit import parse_node
from node_names import NodeName
from results_io import UserError


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("L9H6", ("head", 9, 6, "")),
        (" M10 ", ("mlp", 10, -1, "")),
        ("L9H6@end", ("head", 9, 6, "end")),
        ("M8@ the subject ", ("mlp", 8, -1, "the subject")),
        ("L12H0@größe", ("head", 12, 0, "größe")),
    ],
)
def test_claims_and_calibrations_read_a_name_alike(name, parts) -> None:
    found = node_names.read(name)
    assert found == NodeName(*parts)
    node, claimed = parse_node(name), ClaimedNode.read(name)
    assert (node.kind, node.layer, node.index, node.position) == parts
    assert (claimed.kind, claimed.layer, claimed.index, claimed.position) == parts
    assert str(found) == node.name == claimed.name == " ".join(name.replace("@ ", "@").split())


@pytest.mark.parametrize("name", ["", "M", "L9", "L9H6@", "L9H6@!end", "L9H6@a@b", "l9h6", "L-1H2", "L9H6 @end"])
def test_what_is_no_name_is_none_to_either(name) -> None:
    assert node_names.read(name) is None
    with pytest.raises(UserError, match="is not of the form"):
        parse_node(name)
    with pytest.raises(ValueError, match="is no name of a claimed node"):
        ClaimedNode.read(name)
