"""Designs in which an MLP does part of the work and the claim is about heads and MLPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from circuits.circuit import Node, Role, mlp
from circuits.planted.design import LATE, Design
from circuits.planted.mechanisms import Relay, name_mover
from circuits.planted.out_of_sample_mlps import LAST, TWINS, drafted, drafting
from circuits.planted.variants import WHOLE_GAIN

BY_HEADS, MLP_SHARE = (
    (0.35, 0.25),
    0.4,
)  # shares of the answer: what two name movers write themselves, and what the last MLP writes
WRITER = "answer_writer"
BEFORE_LATE = 3  # ordinal of writing the draft, before the step that reads it and writes the answer
TRUE_MLP = mlp(LAST)
WRITER_EVIDENCE = "written to turn a mover's draft of the answer into two fifths of the answer"


def shared_work(pathology: str, *writers: Node) -> Design:
    """Two movers write three fifths of the answer; the MLP of the last layer writes the rest, from a third mover's draft.

    `writers` are claimed as the writers of the rest. The claim is sound if they are the MLP, at all positions or at the end,
    where the draft is.
    """
    movers = {
        node: name_mover(share * WHOLE_GAIN, inhibition=8.0) for node, share in zip(TWINS, BY_HEADS, strict=False)
    }
    movers |= drafting({TWINS[-1]: 1.0})
    found = drafted(pathology, movers, {LAST: (Relay("draft", "answer_name", MLP_SHARE * WHOLE_GAIN),)}, TWINS)
    writer = Role((), LATE, assigned_by="construction", evidence=WRITER_EVIDENCE, mlps=writers)
    movers_of = found.claims["ioi"]["name_mover"]
    claims = {
        **found.claims["ioi"],
        "name_mover": replace(movers_of, heads=TWINS[:-1]),
        "drafting_mover": replace(movers_of, heads=TWINS[-1:], ordinal=BEFORE_LATE),
        **({WRITER: writer} if writers else {}),
    }
    right = writers in ((TRUE_MLP,), (replace(TRUE_MLP, position="end"),))
    return replace(found, claims={**found.claims, "ioi": claims}, scopes={"ioi": "heads and mlps"}, sound=right)


TRUE = "Nothing is wrong: two name movers write part of the answer, and an MLP the rest from the draft of a third"
WITH_MLPS: dict[str, Callable[[], Design]] = {
    "mlp_claimed": lambda: shared_work(f"{TRUE}, and all are claimed.", TRUE_MLP),
    "mlp_claimed_at_end": lambda: shared_work(
        f"{TRUE}, and all are claimed, the MLP at the end alone, where it writes.", replace(TRUE_MLP, position="end")
    ),
    "mlp_left_out": lambda: shared_work("An MLP that writes two fifths of the answer is left out of the claim."),
    "mlp_of_another_layer": lambda: shared_work(
        "The claim names the MLP of a layer in which it does nothing, in place of the one that writes two fifths of the answer.",
        mlp(LAST - 1),
    ),
    "mlp_at_another_position": lambda: shared_work(
        "The claim names the MLP that writes two fifths of the answer, but at a position where it writes none of it.",
        replace(TRUE_MLP, position="s2"),
    ),
}
