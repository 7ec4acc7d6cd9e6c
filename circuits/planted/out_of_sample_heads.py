"""Out-of-sample designs whose MLPs are zero: heads outside the claim, position, parts of the data, roles, noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from circuits.circuit import Node, Role, head
from circuits.planted.design import LATE, MIDDLE, SOUND_HEADS, Design, role
from circuits.planted.mechanisms import (
    N_HEADS,
    Attend,
    CopyMechanism,
    Decoy,
    Mechanism,
    brought_to_end,
    decoys,
    name_mover,
    rest_on_bos,
    s_inhibition,
    with_terms,
)
from circuits.planted.variants import (
    MOVER_GAINS,
    NEGATIVE,
    SOUND_ROLES,
    WHOLE_GAIN,
    altered,
    with_heads,
)

LOWERING_GAIN = 22.5  # of all heads that lower names together
WIDE = 12  # heads per layer in designs for which eight heads, or their subspaces, are too few
INHIBITION_EVIDENCE = SOUND_ROLES["s_inhibition"].evidence
MOVER_EVIDENCE = SOUND_ROLES["name_mover"].evidence


def sound_claim(pathology: str, roles: Mapping[str, Role] | None = None, **rest: Any) -> Design:
    """A design whose claim is true and complete, even if it looks unlike the sound one."""
    return replace(altered(pathology, roles=roles, **rest), sound=True)


# ---------------------------------------------------------------------------------------------------------------
# Position
# ---------------------------------------------------------------------------------------------------------------

POSITION_READERS = (head(0, 8), head(0, 9))
POSITION_INHIBITORS = (head(1, 8), head(1, 9))


def position_reader() -> Mechanism:
    """From a name to its earlier occurrence: marks the later one and copies the position of the earlier one, not the name."""
    attends = (
        Attend("name", "name", 12.0),
        Attend("position", "position", -12.0),
        rest_on_bos(7.2),
    )
    return Mechanism(
        attends, (CopyMechanism("is_name", "duplicate", 0.5), CopyMechanism("position", "duplicated_position", 0.5))
    )


def position_inhibitor() -> Mechanism:
    """From the end to the duplicate: copies to the end the two positions of the name to avoid."""
    copies = (
        CopyMechanism("duplicated_position", "inhibited_position", 0.5),
        CopyMechanism("position", "inhibited_position", 0.5),
    )
    return Mechanism((Attend("expects_name", "duplicate", 14.0), rest_on_bos(6.0)), copies)


def position_mover(gain: float) -> Mechanism:
    """From the end to every name except at the positions to avoid: raises that name's logit."""
    attends = (
        Attend("expects_name", "is_name", 18.0),
        Attend("inhibited_position", "position", -12.0),
        rest_on_bos(8.0),
    )
    return Mechanism(attends, (CopyMechanism("name", "answer_name", gain),))


def by_position(pathology: str, roles: Mapping[str, Role], by_name: Mapping[Node, float]) -> Design:
    """Name movers that avoid positions instead of names, except those in `by_name` (with these gains).

    Two heads write the position of the repeated name and two carry it to the end. It is the same in all prompts of a template,
    so neither the mean per position nor resampling within the template removes it.
    """
    movers = {node: position_mover(gain) for node, gain in MOVER_GAINS.items() if node not in by_name}
    movers |= {node: name_mover(gain) for node, gain in by_name.items()}
    carriers = {node: position_reader() for node in POSITION_READERS}
    carriers |= {node: position_inhibitor() for node in POSITION_INHIBITORS}
    unused = () if by_name else (*SOUND_ROLES["duplicate_token"].heads, *SOUND_ROLES["s_inhibition"].heads)
    return altered(
        pathology,
        roles=roles,
        pathways=(),
        rewritten={**movers, **carriers},
        silenced=unused,
        fillers=decoys(n_heads=WIDE),
        true_heads=(*(node for node in SOUND_HEADS if node not in unused), *carriers),
    )


def position_all() -> Design:
    """Only the movers are claimed."""
    return by_position(
        "All name movers avoid the repeated name by where it stands, and the four heads that find the place are left out.",
        {"name_mover": SOUND_ROLES["name_mover"]},
        {},
    )


def position_part() -> Design:
    """One mover of three avoids positions; the heads that feed it are left out."""
    kept = {node: gain for node, gain in MOVER_GAINS.items() if node != head(3, 0)}
    return by_position(
        "One name mover of three avoids the repeated name by where it stands, and the four heads that find the place are "
        "left out.",
        SOUND_ROLES,
        kept,
    )


def position_claimed() -> Design:
    """The circuit that works by position, claimed in full."""
    found = by_position(
        "Nothing is wrong: the circuit avoids the repeated name by where it stands, and all seven heads are claimed.",
        {
            "duplicate_token": replace(SOUND_ROLES["duplicate_token"], heads=POSITION_READERS),
            "s_inhibition": replace(SOUND_ROLES["s_inhibition"], heads=POSITION_INHIBITORS),
            "name_mover": SOUND_ROLES["name_mover"],
        },
        {},
    )
    return replace(found, sound=True)


FIRST_NAME = head(3, 1)


def first_name(gain: float) -> Mechanism:
    """From the end to the first name of the prompt: raises its logit."""
    attends = (
        Attend("expects_name", "is_name", 80.0),
        Attend("expects_name", "distance_from_bos", -40.0),
        rest_on_bos(20.0),
    )
    return Mechanism(attends, (CopyMechanism("name", "answer_name", gain),))


def order_bias(share: float) -> Design:
    """A head raises the first name of every prompt, which is the answer in one order of the names and the foil in the other."""
    return altered(
        "A head left out of the claim raises whichever name stands first: it helps in one order of the names and harms as "
        "much in the other.",
        rewritten={FIRST_NAME: first_name(share * WHOLE_GAIN)},
        true_heads=(*SOUND_HEADS, FIRST_NAME),
    )


# ---------------------------------------------------------------------------------------------------------------
# Parts of the data
# ---------------------------------------------------------------------------------------------------------------

HELPER, READER = head(3, 1), head(0, 7)


def helped(pathology: str, query: str, names: str, gain: float, told: CopyMechanism | None = None) -> Design:
    """A mover outside the claim adds to the work of the claimed ones on some prompts; a reader copies `told` to it."""
    reader = {} if told is None else {READER: brought_to_end(told)}
    return altered(
        pathology,
        rewritten={**reader, HELPER: name_mover(gain * WHOLE_GAIN, query=query, names=names, inhibition=10.0)},
        true_heads=(*SOUND_HEADS, *reader, HELPER),
    )


def helped_frame() -> Design:
    """It helps in the frame that begins with "Friends"."""
    return helped(
        'In the frame that begins with "Friends", one of six, two heads left out of the claim add half as much as the '
        "claimed ones do.",
        "cued_template",
        "is_name",
        0.5,
        CopyMechanism("template_cue", "cued_template", 1.0),
    )


def helped_names() -> Design:
    """It helps with fourteen or fifteen names of a hundred."""
    return helped(
        "For one name of seven, a head left out of the claim adds two thirds of what the claimed ones do.",
        "expects_name",
        "helped_name",
        0.65,
    )


def helped_objects() -> Design:
    """It helps with five objects of thirty."""
    return helped(
        "For one object of six, two heads left out of the claim add two thirds of what the claimed ones do.",
        "mentioned_object_0",
        "is_name",
        0.65,
        CopyMechanism("object_0", "mentioned_object_0", 1.0),
    )


# ---------------------------------------------------------------------------------------------------------------
# Too many heads, too few, others
# ---------------------------------------------------------------------------------------------------------------


def all_heads() -> Design:
    """Every head of the sound model is claimed."""
    every = Role(tuple(sorted(decoys())), None, assigned_by="none", evidence="every head of the model")
    return altered(
        "Every head of the model is claimed: seven that do the task and twenty-five that do not.",
        roles={"circuit": every},
        pathways=(),
    )


def one_head() -> Design:
    """Only the single name mover is claimed, without the heads that tell it which name to avoid."""
    mover = role(LATE, MOVER_EVIDENCE, (3, 0))
    return altered(
        "One head is claimed, the only name mover; the four heads that tell it which name not to say are left out.",
        roles={"name_mover": mover},
        rewritten={head(3, 0): name_mover(WHOLE_GAIN)},
        silenced=(head(3, 2), head(3, 5)),
        true_heads=(*SOUND_ROLES["duplicate_token"].heads, *SOUND_ROLES["s_inhibition"].heads, head(3, 0)),
    )


def lowering_names(gain: float) -> Mechanism:
    """From the end to every name: lowers it, `gain` logits at full attention."""
    attends = (Attend("expects_name", "is_name", 16.0), rest_on_bos(8.0))
    return Mechanism(attends, (CopyMechanism("name", "answer_name", -gain),))


def lowering_claimed(pathology: str, *places: tuple[int, int]) -> Design:
    """Heads that lower what they read: of three names at the end two are the same, so the other one is lowered least."""
    claimed = tuple(head(*place) for place in places)
    return sound_claim(
        pathology,
        roles={"name_mover": role(LATE, "written to attend from the end to every name and to lower it", *places)},
        pathways=(),
        rewritten={node: lowering_names(LOWERING_GAIN / len(claimed)) for node in claimed},
        silenced=[node for node in SOUND_HEADS if node not in claimed],
        true_heads=claimed,
    )


def one_head_enough() -> Design:
    """The only head of the task."""
    pathology = (
        "Nothing is wrong: a single head lowers every name as often as it stands in the prompt, and it is claimed."
    )
    return lowering_claimed(pathology, (3, 0))


def two_heads_enough() -> Design:
    """The only two heads of the task, in two layers."""
    pathology = (
        "Nothing is wrong: two heads lower every name as often as it stands in the prompt, and both are claimed."
    )
    return lowering_claimed(pathology, (2, 1), (3, 0))


def idle_claimed(*places: tuple[int, int]) -> Design:
    """The decoys at these places are claimed beside the seven true heads."""
    return altered(
        f"{len(places)} heads that do nothing are claimed beside the seven that do the task.",
        roles=with_heads(SOUND_ROLES, {"name_mover": places}),
    )


def swapped_mover(gain: float) -> Design:
    """A decoy is claimed in place of the smallest of three movers; the three together write as much as in the sound design."""
    rest = WHOLE_GAIN - gain
    gains = {head(3, 0): 0.6 * rest, head(3, 2): 0.4 * rest, head(3, 5): gain}
    return altered(
        f"A name mover that does {gain / WHOLE_GAIN:.0%} of the work is missing, and a head that does nothing is claimed in "
        "its place.",
        roles={**SOUND_ROLES, "name_mover": role(LATE, MOVER_EVIDENCE, (3, 0), (3, 2), (3, 4))},
        rewritten={node: name_mover(one) for node, one in gains.items()},
    )


# ---------------------------------------------------------------------------------------------------------------
# Heads outside that cancel, heads against the answer
# ---------------------------------------------------------------------------------------------------------------


def cancelling(pathology: str, gains: Mapping[Node, float], n_heads: int = N_HEADS) -> Design:
    """Movers outside the claim that cancel each other, with these shares of the claimed movers' work."""
    assert abs(sum(gains.values())) < 1e-9
    return altered(
        pathology,
        rewritten={node: name_mover(share * WHOLE_GAIN) for node, share in gains.items()},
        fillers=decoys(n_heads=n_heads),
        true_heads=(*SOUND_HEADS, *gains),
    )


def cancelling_pair(share: float) -> Design:
    """Two heads that cancel."""
    return cancelling(
        f"Two heads left out of the claim do {share:.0%} of the work and undo it again.",
        {head(3, 1): share, head(3, 6): -share},
    )


def cancelling_three() -> Design:
    """One head for the answer and two against it."""
    return cancelling(
        "Three heads left out of the claim cancel: one adds 40 % of the work, and two take away 20 % each.",
        {head(3, 1): 0.4, head(3, 4): -0.2, head(3, 6): -0.2},
    )


CANCELLING_TWELVE = tuple(head(3, index) for index in (1, 3, 4, 6, 7, 8, 9, 10, 11)) + tuple(
    head(2, index) for index in (8, 9, 10)
)


def cancelling_twelve(share: float) -> Design:
    """Six small heads for the answer and six against it."""
    signs = dict(zip(CANCELLING_TWELVE, [1, -1] * 6, strict=True))
    return cancelling(
        f"Twelve heads left out of the claim do {share:.0%} of the work each, six for the answer and six against it.",
        {node: sign * share for node, sign in signs.items()},
        WIDE,
    )


def negative_left_out_small() -> Design:
    """A head that cancels 12 % of the movers' work is left out."""
    return altered(
        "A head that takes away an eighth of what the name movers write is left out of the claim.",
        rewritten={NEGATIVE: name_mover(-0.125 * WHOLE_GAIN)},
        true_heads=(*SOUND_HEADS, NEGATIVE),
    )


def negatives_claimed() -> Design:
    """Two heads that cancel 45 % of what the movers write are claimed."""
    negatives = role(LATE, "written to attend from the end to names not inhibited and to lower them", (3, 6), (3, 7))
    return sound_claim(
        "Nothing is wrong: two heads take away nearly half of what the name movers write, and both are claimed as such.",
        roles={**SOUND_ROLES, "negative_mover": replace(negatives, sign=-1)},
        pathways=(),
        rewritten={head(3, 6): name_mover(-0.25 * WHOLE_GAIN), head(3, 7): name_mover(-0.2 * WHOLE_GAIN)},
        true_heads=(*SOUND_HEADS, head(3, 6), head(3, 7)),
    )


# ---------------------------------------------------------------------------------------------------------------
# Noise, many small heads, roles
# ---------------------------------------------------------------------------------------------------------------

NOISY = Decoy("junk", "answer_name", attention_sd=0.15, value_sd=0.4, output_sd=0.5)
NOISY_HEAD = head(3, 4)
TWO_NOISY = (NOISY_HEAD, head(3, 7))


def noisy(pathology: str, roles: Mapping[str, Role], sound: bool, decoys_at: Mapping[Node, Decoy]) -> Design:
    """Heads that change the logit of every name at random, independently of the task."""
    found = altered(pathology, roles=roles, fillers={**decoys(), **decoys_at})
    return replace(found, sound=sound)


def noise_claimed(pathology: str, at: Sequence[Node] = (NOISY_HEAD,), loudness: float = 1.0) -> Design:
    """The noise, `loudness` times that of `noisy_outside`, is claimed as name movers."""
    roles = with_heads(SOUND_ROLES, {"name_mover": [(node.layer, node.index) for node in at]})
    decoy = replace(NOISY, output_sd=loudness * NOISY.output_sd)
    return noisy(f"{pathology} claimed among the name movers.", roles, False, dict.fromkeys(at, decoy))


def noisy_claimed() -> Design:
    """The noise is claimed as a name mover."""
    return noise_claimed("A head that raises and lowers names at random is")


def noisy_two_claimed() -> Design:
    """Two noisy heads are claimed."""
    return noise_claimed("Two heads that raise and lower names at random are", at=TWO_NOISY)


def noisy_faint_claimed() -> Design:
    """A head with noise of half the size, which is harder to detect, is claimed."""
    return noise_claimed("A head that raises and lowers names at random, and faintly, is", loudness=0.5)


def noisy_loud_claimed() -> Design:
    """A head with noise of twice the size is claimed, as by someone who picks the heads with the largest output."""
    return noise_claimed("A head that raises and lowers names at random, and loudly, is", loudness=2.0)


def noisy_outside() -> Design:
    """The noise is left out, which is right."""
    return noisy(
        "Nothing is wrong: the seven heads are claimed, and a head that raises and lowers names at random is left out.",
        SOUND_ROLES,
        True,
        {NOISY_HEAD: NOISY},
    )


MANY = (*(head(3, index) for index in range(8)), *(head(2, index) for index in (0, 2, 5, 8)))


def many_small() -> Design:
    """Twelve movers, all claimed, each with a twelfth of the work."""
    return sound_claim(
        "Nothing is wrong: twelve name movers do a twelfth of the work each, and all are claimed.",
        roles={
            "duplicate_token": SOUND_ROLES["duplicate_token"],
            "s_inhibition": role(MIDDLE, INHIBITION_EVIDENCE, (1, 3), (1, 6)),
            "name_mover": Role(MANY, LATE, assigned_by="construction", evidence=MOVER_EVIDENCE),
        },
        pathways=(),
        rewritten={head(1, 6): s_inhibition(), **{node: name_mover(WHOLE_GAIN / len(MANY)) for node in MANY}},
        silenced=(head(2, 1),),
        fillers=decoys(n_heads=WIDE),
        true_heads=(*SOUND_ROLES["duplicate_token"].heads, head(1, 3), head(1, 6), *MANY),
    )


def unlabelled(groups: Iterable[Iterable[Node]]) -> dict[str, Role]:
    """Roles without a meaning: a name, heads, and neither an order nor a reason."""
    return {
        f"part_{number}": Role(tuple(nodes), None, assigned_by="none", evidence="named without a look at what they do")
        for number, nodes in enumerate(groups)
    }


def in_one_role(heads: Iterable[Node]) -> dict[str, Role]:
    """All heads in one role."""
    return unlabelled([sorted(heads)])


def in_own_roles(heads: Iterable[Node]) -> dict[str, Role]:
    """Each head in its own role."""
    return unlabelled([node] for node in sorted(heads))


def in_mixed_roles(heads: Iterable[Node]) -> dict[str, Role]:
    """Two roles, each with every other head, so that both hold heads of all layers."""
    ordered = sorted(heads)
    return unlabelled([ordered[::2], ordered[1::2]])


def roles_of_sound(how: str, made: Callable[[Iterable[Node]], dict[str, Role]]) -> Design:
    """The seven heads of the sound model under other roles."""
    return sound_claim(f"Nothing is wrong: the seven heads are claimed, {how}.", roles=made(SOUND_HEADS), pathways=())


def with_waking_constant(share: float) -> Design:
    """Movers in layer 2 mark their presence by a constant; a backup of this strength becomes active without the marks."""
    earlier = {head(2, 0): 3.0, head(2, 2): 2.5, head(2, 5): 2.0}
    movers = {
        node: with_terms(name_mover(gain), copies=(CopyMechanism("constant", "mover_present", gain / WHOLE_GAIN),))
        for node, gain in earlier.items()
    }
    inhibition = role(MIDDLE, INHIBITION_EVIDENCE, (1, 3), (1, 6))
    backup = head(3, 4)
    unless_present = Attend("mover_present", "is_name", -24.0)
    return altered(
        f"A head left out of the claim does {share:.0%} of the work when the name movers are set to zero, and nothing "
        "otherwise.",
        roles={
            "duplicate_token": SOUND_ROLES["duplicate_token"],
            "s_inhibition": inhibition,
            "name_mover": Role(tuple(earlier), LATE, assigned_by="construction", evidence=MOVER_EVIDENCE),
        },
        rewritten={
            **movers,
            head(1, 6): s_inhibition(),
            backup: name_mover(share * WHOLE_GAIN, unless_present),
        },
        silenced=(head(2, 1), *MOVER_GAINS),
        true_heads=(*SOUND_ROLES["duplicate_token"].heads, *inhibition.heads, *earlier, backup),
    )


DESIGNS: dict[str, Callable[[], Design]] = {
    "position_all": position_all,
    "position_part": position_part,
    "position_claimed": position_claimed,
    "order_bias": lambda: order_bias(0.3),
    "helped_frame": helped_frame,
    "helped_names": helped_names,
    "helped_objects": helped_objects,
    "all_heads": all_heads,
    "one_head": one_head,
    "one_head_enough": one_head_enough,
    "two_heads_enough": two_heads_enough,
    "idle_two": lambda: idle_claimed((3, 4), (3, 6)),
    "swapped_mover": lambda: swapped_mover(0.15 * WHOLE_GAIN),
    "cancelling_pair": lambda: cancelling_pair(0.5),
    "cancelling_pair_weak": lambda: cancelling_pair(0.15),
    "cancelling_three": cancelling_three,
    "cancelling_twelve": lambda: cancelling_twelve(0.07),
    "negative_left_out_small": negative_left_out_small,
    "negatives_claimed": negatives_claimed,
    "noisy_claimed": noisy_claimed,
    "noisy_two_claimed": noisy_two_claimed,
    "noisy_faint_claimed": noisy_faint_claimed,
    "noisy_loud_claimed": noisy_loud_claimed,
    "noisy_outside": noisy_outside,
    "many_small": many_small,
    "roles_one": lambda: roles_of_sound("all in one role", in_one_role),
    "roles_own": lambda: roles_of_sound("each in a role of its own", in_own_roles),
    "roles_mixed": lambda: roles_of_sound("in two roles that each hold heads of all layers", in_mixed_roles),
    "wakes_by_zero": lambda: with_waking_constant(0.6),
}
