"""Out-of-sample designs whose MLPs combine the outputs of heads: duplicates, and/or, drafts, conditional backups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from circuits.circuit import Node, Role, head
from circuits.planted.design import LATE, MIDDLE, SOUND_HEADS, Design
from circuits.planted.mechanisms import (
    Attend,
    CopyMechanism,
    Mechanism,
    MLPGate,
    Relay,
    decoys,
    name_mover,
    rest_on_bos,
    s_inhibition,
)
from circuits.planted.out_of_sample_heads import (
    INHIBITION_EVIDENCE,
    MANY,
    MOVER_EVIDENCE,
    WIDE,
    in_one_role,
    in_own_roles,
)
from circuits.planted.variants import SOUND_ROLES, WHOLE_GAIN, altered

FINDERS = SOUND_ROLES["duplicate_token"].heads
INHIBITORS = (head(1, 3), head(1, 6))
LAST = 3  # the layer whose MLP writes the answer
WHOLE, HALF = 1.15, 0.55  # output of a head that suffices alone, and of one that needs another
THIRD = 0.3  # output of a head that needs two others
TRUE = "Nothing is wrong: "
LIMITS = (0.6, 0.9)  # lower and upper end of a gate, above what three heads write for names with similar codes


def drafting(weights: Mapping[Node, float], destination: str = "draft") -> dict[Node, Mechanism]:
    """Name movers that write a draft, which only an MLP reads."""
    return {
        node: replace(name_mover(1.0, inhibition=8.0), copies=(CopyMechanism("name", destination, weight),))
        for node, weight in weights.items()
    }


def answering() -> MLPGate:
    """The gate that turns a draft into the answer."""
    return MLPGate("draft", "answer_name", *LIMITS, WHOLE_GAIN)


def drafted(
    pathology: str,
    movers: Mapping[Node, Mechanism],
    mlps: Mapping[int, tuple[MLPGate | Relay, ...]],
    claimed: Iterable[Node],
    finders: Mapping[Node, Mechanism] | None = None,
) -> Design:
    """Movers and MLPs. As in the sound model, two heads find the repeated name and two inhibit it for the movers.

    Movers, and finders if they are given, are claimed if they are in `claimed`; the inhibitors always are. The claim is sound
    if no head is left out.
    """
    every, claimed = {*FINDERS, *INHIBITORS, *movers}, set(claimed) | set(INHIBITORS)
    claimed |= set() if finders else set(FINDERS)
    roles = {
        "duplicate_token": kept(SOUND_ROLES["duplicate_token"], claimed),
        "s_inhibition": Role(INHIBITORS, MIDDLE, assigned_by="construction", evidence=INHIBITION_EVIDENCE),
        "name_mover": kept(
            Role(tuple(sorted(movers)), LATE, assigned_by="construction", evidence=MOVER_EVIDENCE), claimed
        ),
    }
    found = altered(
        pathology,
        roles=roles,
        pathways=(),
        rewritten={INHIBITORS[1]: s_inhibition(), **(finders or {}), **movers},
        silenced=[node for node in SOUND_HEADS if node not in every],
        fillers=decoys(n_heads=WIDE),
        true_heads=every,
    )
    return replace(found, mlps=dict(mlps), sound=claimed == every)


def kept(role: Role, claimed: set[Node]) -> Role:
    """The role with only its claimed heads."""
    return replace(role, heads=tuple(node for node in role.heads if node in claimed))


# ---------------------------------------------------------------------------------------------------------------
# Duplicates
# ---------------------------------------------------------------------------------------------------------------

TWINS = (head(3, 0), head(3, 2), head(3, 5))


def duplicates(pathology: str, count: int, claimed: int) -> Design:
    """Equal movers, each of which alone makes the MLP write the whole answer."""
    movers = drafting(dict.fromkeys(TWINS[:count], WHOLE))
    return drafted(pathology, movers, {LAST: (answering(),)}, TWINS[:claimed])


def two_duplicates() -> Design:
    """One of two duplicates is left out."""
    return duplicates("Two name movers are the same, each is enough, and one of them is left out of the claim.", 2, 1)


def relabelled(of: Callable[[], Design], made: Callable[[Iterable[Node]], dict[str, Role]]) -> Design:
    """The same model and the same claimed heads under other roles."""
    found = of()
    heads = {node for one in found.claims["ioi"].values() for node in one.heads}
    return replace(found, claims={**found.claims, "ioi": made(heads)})


# ---------------------------------------------------------------------------------------------------------------
# Through an MLP
# ---------------------------------------------------------------------------------------------------------------


def through_mlp(pathology: str, weights: Sequence[float], claimed: int) -> Design:
    """As many movers as weights, three at most, whose drafts an MLP passes on unchanged."""
    movers = drafting(dict(zip(TWINS, weights, strict=False)))
    return drafted(pathology, movers, {LAST: (Relay("draft", "answer_name", WHOLE_GAIN),)}, TWINS[:claimed])


def idle_through_mlp() -> Design:
    """The decoy at layer 3, head 4 is claimed among movers whose drafts an MLP passes on."""
    found = through_mlp(
        "Name movers write drafts that an MLP turns into the answer, and a head that does nothing is claimed among them.",
        (0.4, 0.33, 0.27),
        3,
    )
    roles = dict(found.claims["ioi"])
    roles["name_mover"] = replace(roles["name_mover"], heads=tuple(sorted((*TWINS, head(3, 4)))))
    return replace(found, claims={**found.claims, "ioi": roles}, sound=False)


def two_of_three(pathology: str, claimed: int) -> Design:
    """Three movers, of which any two suffice and one does not."""
    movers = drafting(dict.fromkeys(TWINS, HALF))
    return drafted(pathology, movers, {LAST: (answering(),)}, TWINS[:claimed])


# ---------------------------------------------------------------------------------------------------------------
# And, or
# ---------------------------------------------------------------------------------------------------------------

PAIR_A, PAIR_B = (head(2, 0), head(2, 2)), (head(2, 5), head(2, 8))


def both_needed(pathology: str, claimed: int) -> Design:
    """Two movers, neither of which has an effect without the other."""
    movers = drafting(dict.fromkeys(TWINS[:2], HALF))
    return drafted(pathology, movers, {LAST: (answering(),)}, TWINS[:claimed])


def three_needed(pathology: str, claimed: int) -> Design:
    """Three movers, any two of which do nothing."""
    movers = drafting(dict.fromkeys(TWINS, THIRD))
    return drafted(pathology, movers, {LAST: (answering(),)}, TWINS[:claimed])


def or_of_ands(pathology: str, claimed: Iterable[Node]) -> Design:
    """Two pairs of movers: the movers of a pair need each other, and one pair suffices."""
    movers = drafting(dict.fromkeys(PAIR_A, HALF), "draft_a") | drafting(dict.fromkeys(PAIR_B, HALF), "draft_b")
    joined = tuple(MLPGate(source, "draft", *LIMITS, 1.0) for source in ("draft_a", "draft_b"))
    return drafted(pathology, movers, {2: joined, LAST: (answering(),)}, claimed)


def and_of_ors(pathology: str, claimed: Iterable[Node]) -> Design:
    """Two pairs of movers: one mover of each pair suffices, and both pairs are needed."""
    movers = drafting(dict.fromkeys(PAIR_A, WHOLE), "draft_a") | drafting(dict.fromkeys(PAIR_B, WHOLE), "draft_b")
    joined = tuple(MLPGate(source, "draft", *LIMITS, 0.5) for source in ("draft_a", "draft_b"))
    return drafted(pathology, movers, {2: joined, LAST: (answering(),)}, claimed)


def drafting_finder(weight: float) -> Mechanism:
    """A duplicate-token head that writes a draft of the repeated name, which only an MLP reads."""
    attends = (Attend("name", "name", 36.0), Attend("position", "position", -30.0), rest_on_bos(18.0))
    return Mechanism(attends, (CopyMechanism("name", "drafted_duplicate", weight),))


def two_stages(pathology: str, first: float, last: float, claimed: Iterable[Node]) -> Design:
    """The MLP of layer 0 combines two finders that write `first`; the last MLP combines two movers that write `last`."""
    finders = dict.fromkeys(FINDERS, drafting_finder(first))
    movers = drafting(dict.fromkeys(TWINS[:2], last))
    marks = tuple(MLPGate("drafted_duplicate", name, *LIMITS, 1.0) for name in ("duplicated_name", "duplicate"))
    return drafted(pathology, movers, {0: marks, LAST: (answering(),)}, claimed, finders)


# ---------------------------------------------------------------------------------------------------------------
# Many small heads
# ---------------------------------------------------------------------------------------------------------------


def many_enough(pathology: str, claimed: int) -> Design:
    """Twelve small movers, any six of which suffice."""
    movers = drafting(dict.fromkeys(MANY, 2 * WHOLE / len(MANY)))
    return drafted(pathology, movers, {LAST: (answering(),)}, MANY[::2] if claimed < len(MANY) else MANY)


# ---------------------------------------------------------------------------------------------------------------
# Heads that wake by content
# ---------------------------------------------------------------------------------------------------------------

EARLIER = {head(2, 0): 3.0, head(2, 2): 2.5, head(2, 5): 2.0}
BACKUP = head(3, 4)
SAID = (0.3 * WHOLE_GAIN, 0.7 * WHOLE_GAIN)  # thresholds at which a name begins to count as written and fully counts


def waking_by_content(pathology: str, share: float, claimed: bool = False) -> Design:
    """The MLP of layer 2 inhibits names that are already written, so the backup attends to the answer only if it is not."""
    movers = {node: name_mover(gain) for node, gain in EARLIER.items()} | {
        BACKUP: name_mover(share * WHOLE_GAIN, inhibition=14.0)
    }
    inhibits = MLPGate("answer_name", "inhibited_name", *SAID, 1.0)
    return drafted(pathology, movers, {2: (inhibits,)}, movers if claimed else EARLIER)


def waking_by_silence(pathology: str, share: float) -> Design:
    """The MLP of layer 2 marks that any name is written, and the backup attends to names only without that mark."""
    unless_written = Attend("name_written", "is_name", -24.0)
    movers = {node: name_mover(gain) for node, gain in EARLIER.items()}
    movers[BACKUP] = name_mover(share * WHOLE_GAIN, unless_written)
    return drafted(pathology, movers, {2: (MLPGate("answer_name", "name_written", *SAID, 1.0),)}, EARLIER)


DESIGNS: dict[str, Callable[[], Design]] = {
    "duplicate_left_out": two_duplicates,
    "duplicate_left_out_roles_one": lambda: relabelled(two_duplicates, in_one_role),
    "duplicate_left_out_roles_own": lambda: relabelled(two_duplicates, in_own_roles),
    "three_duplicates_two_claimed": lambda: duplicates(
        "Three name movers are the same, each is enough, and one of them is left out of the claim.", 3, 2
    ),
    "three_duplicates_claimed": lambda: duplicates(
        TRUE + "three name movers are the same, each is enough, and all are claimed.", 3, 3
    ),
    "through_mlp_claimed": lambda: through_mlp(
        TRUE + "three name movers write drafts that an MLP turns into the answer, and all are claimed.",
        (0.4, 0.33, 0.27),
        3,
    ),
    "through_mlp_left_out": lambda: through_mlp(
        "Name movers write drafts that an MLP turns into the answer, and one that does 15 % of it is left out of the claim.",
        (0.5, 0.35, 0.15),
        2,
    ),
    "two_of_three_left_out": lambda: two_of_three(
        "An MLP writes the answer if two of three name movers say it, and one of the three is left out of the claim.", 2
    ),
    "two_of_three_claimed": lambda: two_of_three(
        TRUE + "an MLP writes the answer if two of three name movers say it, and all three are claimed.", 3
    ),
    "both_needed_left_out": lambda: both_needed(
        "Two name movers do nothing without each other, and one of them is left out of the claim.", 1
    ),
    "both_needed_claimed": lambda: both_needed(
        TRUE + "two name movers do nothing without each other, and both are claimed.", 2
    ),
    "or_of_ands_left_out": lambda: or_of_ands(
        "Either of two pairs of name movers is enough, and one pair is left out of the claim.", PAIR_A
    ),
    "or_of_ands_claimed": lambda: or_of_ands(
        TRUE + "either of two pairs of name movers is enough, and both pairs are claimed.", PAIR_A + PAIR_B
    ),
    "and_of_ors_left_out": lambda: and_of_ors(
        "One name mover of each of two pairs is needed, and the other one of each is left out of the claim.",
        (PAIR_A[0], PAIR_B[0]),
    ),
    "or_two_stages_left_out": lambda: two_stages(
        "One of two heads is enough both where the repeated name is found and where the answer is written, and the other "
        "one of each two is left out of the claim.",
        WHOLE,
        WHOLE,
        (FINDERS[0], TWINS[0]),
    ),
    "or_two_stages_claimed": lambda: two_stages(
        TRUE + "one of two heads is enough at the first stage and at the last, and all four are claimed.",
        WHOLE,
        WHOLE,
        (*FINDERS, *TWINS[:2]),
    ),
    "and_two_stages_claimed": lambda: two_stages(
        TRUE + "two heads are needed at the first stage and two at the last, and all four are claimed.",
        HALF,
        HALF,
        (*FINDERS, *TWINS[:2]),
    ),
    "many_half_claimed": lambda: many_enough(
        "Any six of twelve small name movers are enough, and the claim lists six.", len(MANY) // 2
    ),
    "many_enough_claimed": lambda: many_enough(
        TRUE + "any six of twelve small name movers are enough, and all twelve are claimed.", len(MANY)
    ),
    "wakes_by_content": lambda: waking_by_content(
        "A head left out of the claim writes the answer whenever the name movers do not, whatever they write instead.",
        1.0,
    ),
    "wakes_by_content_partly": lambda: waking_by_content(
        "A head left out of the claim makes up for 40 % of what the name movers fail to write.", 0.4
    ),
    "wakes_by_content_claimed": lambda: waking_by_content(
        TRUE + "a head writes the answer whenever the name movers do not, and it is claimed beside them.",
        1.0,
        claimed=True,
    ),
    "wakes_by_silence": lambda: waking_by_silence(
        "A head left out of the claim writes the answer if the name movers write no name at all, and is silent if they write "
        "a wrong one.",
        0.8,
    ),
    "two_through_mlp_claimed": lambda: through_mlp(
        TRUE + "two name movers write drafts that an MLP turns into the answer, and both are claimed.", (0.55, 0.45), 2
    ),
    "idle_through_mlp_claimed": idle_through_mlp,
    "three_needed_claimed": lambda: three_needed(
        TRUE + "three name movers do nothing unless all write, and all are claimed.", 3
    ),
    "three_needed_left_out": lambda: three_needed(
        "Three name movers do nothing unless all write, and one of them is left out of the claim.", 2
    ),
    "one_of_each_pair_claimed": lambda: or_of_ands(
        "Either of two pairs of name movers is enough, and the claim lists one mover of each pair.",
        (PAIR_A[0], PAIR_B[0]),
    ),
}
