"""Design: what every head of a variant does and what is claimed about it; and the sound design, which the others alter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from circuits.circuit import INPUT, OUTPUT, Node, Pathway, Role, head
from circuits.planted.mechanisms import (
    CopyMechanism,
    Decoy,
    Mechanism,
    MLPGate,
    Relay,
    decoys,
    duplicate_token,
    gender_mover,
    induction,
    later_year,
    name_mover,
    previous_token,
    s_inhibition,
    subject_number_mover,
)


@dataclass(frozen=True)
class Design:
    """What every head of a variant does, the circuit claimed for each task (roles, what feeds what), and the truth.

    `pathology` says in a sentence what is planted. `sound` is True if the claim for indirect object identification is right
    and has no pathology, so that a certificate may reach the top tier. `true_heads` are all heads that do that task or take it
    over; `claims["ioi"]` may name others. `mlps` says what the MLPs of some layers do; all other MLPs are zero. `scopes` are
    the scopes of the claims by task; a claim without one is about heads.
    """

    heads: Mapping[Node, Mechanism | Decoy]
    claims: Mapping[str, Mapping[str, Role]]
    pathways: Mapping[str, tuple[Pathway, ...]]
    pathology: str
    sound: bool
    true_heads: tuple[Node, ...]
    mlps: Mapping[int, tuple[MLPGate | Relay, ...]] = field(default_factory=dict)
    scopes: Mapping[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, int]:
        """(number of layers, number of heads in each)."""
        return 1 + max(node.layer for node in self.heads), 1 + max(node.index for node in self.heads)


EARLY, MIDDLE, LATE = 1, 2, 4  # ordinals of roles
SOUND_MECHANISMS: dict[Node, Mechanism] = {
    head(0, 2): duplicate_token(),
    head(0, 5): duplicate_token(),
    head(1, 3): s_inhibition(),
    head(2, 1): s_inhibition(),
    head(3, 0): name_mover(3.0),
    head(3, 2): name_mover(2.5),
    head(3, 5): name_mover(2.0),
    head(0, 4): previous_token(
        CopyMechanism("word", "previous_word", 1.0), CopyMechanism("has_word", "after_word", 1.0)
    ),
    head(1, 2): induction(4.0),
    head(2, 4): induction(3.0),
    head(0, 6): previous_token(CopyMechanism("century", "previous_century", 1.0)),
    head(1, 7): later_year(2.0),
    head(2, 3): later_year(1.5),
    head(1, 5): gender_mover(2.0),
    head(2, 6): gender_mover(1.5),
    head(1, 0): subject_number_mover(2.0),
    head(2, 7): subject_number_mover(1.5),
}


def role(ordinal: int, evidence: str, *places: tuple[int, int]) -> Role:
    """A role given by construction to the heads at these (layer, head)."""
    return Role(tuple(head(*place) for place in places), ordinal, assigned_by="construction", evidence=evidence)


SOUND_CLAIMS: dict[str, dict[str, Role]] = {
    "ioi": {
        "duplicate_token": role(EARLY, "written to attend from S2 to S1, mark S2 and copy the name", (0, 2), (0, 5)),
        "s_inhibition": role(MIDDLE, "written to attend from the end to S2 and inhibit the name", (1, 3), (2, 1)),
        "name_mover": role(
            LATE, "written to attend from the end to names not inhibited and copy them", (3, 0), (3, 2), (3, 5)
        ),
    },
    "induction": {
        "previous_token": role(EARLY, "written to note at each token which word precedes it", (0, 4)),
        "induction": role(LATE, "written to copy the word that followed the current one before", (1, 2), (2, 4)),
    },
    "greater_than": {
        "previous_token": role(EARLY, "written to note at each token which century precedes it", (0, 6)),
        "later_year": role(LATE, "written to raise the years after the year of this century", (1, 7), (2, 3)),
    },
    "gendered_pronoun": {
        "gender_mover": role(LATE, "written to copy the name's gender to the pronouns", (1, 5), (2, 6)),
    },
    "subject_verb_agreement": {
        "subject_number_mover": role(LATE, "written to copy the first noun's number to the verbs", (1, 0), (2, 7)),
    },
}

SOUND_PATHWAYS: dict[str, tuple[Pathway, ...]] = {
    "ioi": (
        Pathway(INPUT, "duplicate_token"),
        Pathway(INPUT, "s_inhibition", "q"),
        Pathway(INPUT, "s_inhibition", "k"),
        Pathway("duplicate_token", "s_inhibition", "k"),
        Pathway("duplicate_token", "s_inhibition", "v"),
        Pathway(INPUT, "name_mover"),
        Pathway("s_inhibition", "name_mover", "q"),
        Pathway("name_mover", OUTPUT),
    ),
    "induction": (
        Pathway(INPUT, "previous_token"),
        Pathway(INPUT, "induction"),
        Pathway("previous_token", "induction", "q"),
        Pathway("previous_token", "induction", "k"),
        Pathway("induction", OUTPUT),
    ),
    "greater_than": (
        Pathway(INPUT, "previous_token"),
        Pathway(INPUT, "later_year"),
        Pathway("previous_token", "later_year", "k"),
        Pathway("later_year", OUTPUT),
    ),
    "gendered_pronoun": (Pathway(INPUT, "gender_mover"), Pathway("gender_mover", OUTPUT)),
    "subject_verb_agreement": (Pathway(INPUT, "subject_number_mover"), Pathway("subject_number_mover", OUTPUT)),
}

SOUND_HEADS = tuple(sorted(node for one in SOUND_CLAIMS["ioi"].values() for node in one.heads))


def sound() -> Design:
    """Five tasks on disjoint heads; every circuit is complete, minimal and true."""
    return Design(
        heads=decoys() | SOUND_MECHANISMS,
        claims=SOUND_CLAIMS,
        pathways=SOUND_PATHWAYS,
        pathology="Nothing is wrong: the claim is all that does the task, and the rest are decoys.",
        sound=True,
        true_heads=SOUND_HEADS,
    )
