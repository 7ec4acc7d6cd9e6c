"""Circuit files with MLPs and positions on the command line: what is refused is one sentence, exits with 2 and writes nothing."""

from __future__ import annotations

import pytest

from tests.commandline import SMALL, command

HEADER = "name: mine\ntask: ioi\nmodel: planted/mlp_claimed\nprovenance: {kind: user}\n"
REFUSED = {
    "roles: {x: {nodes: [M]}}": "head 'M' is not of the form L<layer>H<head>, and no MLP, M<layer>",
    "roles: {x: {nodes: [M-1]}}": "head 'M-1' is not of the form",
    "roles: {x: {nodes: [M99]}}": "names the MLP of layer 99, but model 'planted/mlp_claimed' has layers 0-3",
    "roles: {x: {nodes: [L1H12@end]}}": "names head L1H12, but model",
    "roles: {x: {nodes: [L1H2@nowhere]}}": "'nowhere' is no position of task 'ioi'; use one of io, s1, s1_plus_1, s2, end",
    "roles: {x: {nodes: [L1H2, L1H2@end]}}": "claims L1H2 at all positions and again as L1H2@end; keep one of the two",
    "roles: {x: {nodes: [M1]}}\nscope: heads": "has an MLP in a role but the scope 'heads'",
    "roles: {x: {heads: [L1H2]}}\nscope: everything": "has scope 'everything'; use 'heads' or 'heads and mlps'",
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("text", "sentence"), REFUSED.items())
def test_a_claim_that_cannot_be_is_refused_before_anything_is_measured(tmp_path, text, sentence) -> None:
    (tmp_path / "mine.yaml").write_text(HEADER + text)
    outcome = command(
        *SMALL,
        "model=planted/mlp_claimed",
        "circuit=file",
        f"circuit.path={tmp_path / 'mine.yaml'}",
        "calibration=[c23]",
        f"results={tmp_path / 'results'}",
    )
    assert outcome.code == 2 and sentence in outcome.errors + outcome.output
    assert "Traceback" not in outcome.errors + outcome.output
    assert not list((tmp_path / "results").rglob("*.json"))


@pytest.mark.slow
def test_discovery_refuses_a_scope_that_is_none(tmp_path) -> None:
    outcome = command(
        *SMALL,
        "model=planted/mlp_claimed",
        "circuit=discovered",
        "measurement.discovery.scope=mlps",
        f"results={tmp_path}",
    )
    assert outcome.code == 2
    assert (
        "measurement.discovery.scope is 'mlps'; expected 'heads' or 'heads and mlps'" in outcome.errors + outcome.output
    )
