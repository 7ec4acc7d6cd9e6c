"""The sound design in a model of another shape: GPT-2 small's 12 layers x 12 heads, seven true heads among 144."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from circuits.circuit import Node, Role, head
from circuits.planted import design
from circuits.planted.design import SOUND_CLAIMS, SOUND_HEADS, SOUND_MECHANISMS, Design
from circuits.planted.mechanisms import JUNK_WRITER, N_HEADS, N_LAYERS, NOISE_HEAD, Decoy, decoys

GPT2_LAYERS = GPT2_HEADS = 12
MOVED = {  # heads of the sound design with another place here; the others keep theirs
    head(0, 5): head(1, 7),
    head(1, 3): head(4, 3),
    head(2, 1): head(6, 1),
    head(3, 0): head(9, 0),
    head(3, 2): head(9, 6),
    head(3, 5): head(10, 2),
    head(1, 7): head(3, 1),  # of greater-than, since a head of the main task takes its place
}


def gpt2_shape() -> Design:
    """Every task of the sound design; indirect object identification spans eleven of the twelve layers."""
    sound = design.sound()
    return replace(
        sound,
        heads=decoys(quieter(JUNK_WRITER), quieter(NOISE_HEAD), GPT2_HEADS, GPT2_LAYERS)
        | {moved(node): one for node, one in SOUND_MECHANISMS.items()},
        claims={task: {name: moved_role(one) for name, one in roles.items()} for task, roles in SOUND_CLAIMS.items()},
        pathology="Nothing is wrong: seven heads of 144 do the task, and the rest are decoys.",
        true_heads=tuple(sorted(moved(node) for node in SOUND_HEADS)),
    )


def quieter(decoy: Decoy) -> Decoy:
    """A decoy scaled so that all decoys together write as much as those of the sound design.

    Variances of independent outputs add up. At full size, 137 decoys together would cancel two fifths of the logit difference,
    so they would not be heads without an effect.
    """
    share = (N_HEADS * N_LAYERS - len(SOUND_HEADS)) / (GPT2_HEADS * GPT2_LAYERS - len(SOUND_HEADS))
    return replace(decoy, output_sd=decoy.output_sd * math.sqrt(share))


def moved(node: Node) -> Node:
    """The place of a head of the sound design in this shape."""
    return MOVED.get(node, node)


def moved_role(role: Role) -> Role:
    return replace(role, heads=tuple(sorted(moved(node) for node in role.heads)))


SHAPES: dict[str, Callable[[], Design]] = {"gpt2_shape": gpt2_shape}
