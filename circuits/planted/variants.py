"""One variant per pathology: the sound design with some heads rewritten, or with a false claim about the same heads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from circuits.circuit import INPUT, OUTPUT, Node, Pathway, Role, head
from circuits.planted import design
from circuits.planted.design import EARLY, LATE, MIDDLE, SOUND_HEADS, SOUND_MECHANISMS, SOUND_PATHWAYS, Design, role
from circuits.planted.features import MENTIONED_CLASSES, OBJECT_CLASSES
from circuits.planted.mechanisms import (
    JUNK_WRITER,
    N_LAYERS,
    NOISE_HEAD,
    Attend,
    CopyMechanism,
    Decoy,
    Mechanism,
    brought_to_end,
    constant_writer,
    decoys,
    duplicate_token,
    name_mover,
    s_inhibition,
    with_terms,
)

IOI = "ioi"
SOUND_ROLES = design.SOUND_CLAIMS[IOI]
MOVER_GAINS = {head(3, 0): 3.0, head(3, 2): 2.5, head(3, 5): 2.0}  # those of the sound design
WHOLE_GAIN = sum(MOVER_GAINS.values())
QUIET_JUNK_WRITER = replace(JUNK_WRITER, output_sd=0.01)
QUIET_NOISE_HEAD = replace(NOISE_HEAD, output_sd=0.001)


def altered(
    pathology: str,
    roles: Mapping[str, Role] | None = None,
    pathways: Iterable[Pathway] | None = None,
    rewritten: Mapping[Node, Mechanism] | None = None,
    silenced: Iterable[Node] = (),
    fillers: Mapping[Node, Decoy] | None = None,
    true_heads: Iterable[Node] = SOUND_HEADS,
) -> Design:
    """The sound design with another claim for indirect object identification and with some heads rewritten.

    `silenced` heads become decoys. `fillers` are the decoys of all places (default: the usual ones). The default of `pathways`
    are those of the sound claim between the claimed roles.
    """
    sound = design.sound()
    roles = SOUND_ROLES if roles is None else roles
    pathways = among(roles, SOUND_PATHWAYS[IOI]) if pathways is None else tuple(pathways)
    silenced = set(silenced)
    kept = {node: one for node, one in SOUND_MECHANISMS.items() if node not in silenced}
    return replace(
        sound,
        heads={**(fillers or decoys()), **kept, **(rewritten or {})},
        claims={**sound.claims, IOI: roles},
        pathways={**sound.pathways, IOI: pathways},
        pathology=pathology,
        sound=False,
        true_heads=tuple(sorted(true_heads)),
    )


def among(roles: Iterable[str], pathways: Iterable[Pathway]) -> tuple[Pathway, ...]:
    """The pathways whose two ends are both among the roles, the embedding and the logits."""
    ends = {*roles, INPUT, OUTPUT}
    return tuple(way for way in pathways if way.sender in ends and way.receiver in ends)


def with_heads(roles: Mapping[str, Role], added: Mapping[str, Iterable[tuple[int, int]]]) -> dict[str, Role]:
    """The roles with further heads, at these (layer, head), in some of them."""
    return {
        name: replace(one, heads=(*one.heads, *(head(*place) for place in added.get(name, ()))))
        for name, one in roles.items()
    }


def without_heads(roles: Mapping[str, Role], removed: Iterable[Node]) -> dict[str, Role]:
    """The roles without some heads; a role that loses all its heads is removed."""
    removed = set(removed)
    kept = {name: tuple(node for node in one.heads if node not in removed) for name, one in roles.items()}
    return {name: replace(roles[name], heads=heads) for name, heads in kept.items() if heads}


# ---------------------------------------------------------------------------------------------------------------
# Sound, with a head that works against the answer
# ---------------------------------------------------------------------------------------------------------------

NEGATIVE = head(3, 7)
NEGATIVE_GAIN = -1.8  # a quarter of what the movers write; without it the logit difference is 1.3 times as large


def negative_head() -> Design:
    """A head that lowers the answer, claimed as such."""
    negative = role(LATE, "written to attend from the end to names not inhibited and to lower them", (3, 7))
    fed = (Pathway(INPUT, "negative_mover"), Pathway("s_inhibition", "negative_mover", "q"))
    claim = altered(
        "Nothing is wrong: one head writes against the answer, and the claim lists it with sign -1.",
        roles={**SOUND_ROLES, "negative_mover": replace(negative, sign=-1)},
        pathways=(*SOUND_PATHWAYS[IOI], *fed, Pathway("negative_mover", OUTPUT)),
        rewritten={NEGATIVE: name_mover(NEGATIVE_GAIN)},
        true_heads=(*SOUND_HEADS, NEGATIVE),
    )
    return replace(claim, sound=True)


def negative_left_out() -> Design:
    """The same model; the claim leaves out the head that lowers the answer."""
    return altered(
        "A head that writes against the answer is left out, so the circuit alone does more than the model.",
        rewritten={NEGATIVE: name_mover(NEGATIVE_GAIN)},
        true_heads=(*SOUND_HEADS, NEGATIVE),
    )


# ---------------------------------------------------------------------------------------------------------------
# Sound weights, false claims
# ---------------------------------------------------------------------------------------------------------------


def missing_head() -> Design:
    """The largest name mover is left out."""
    return altered(
        "One of the three name movers, the largest, is left out of the claim.",
        roles=without_heads(SOUND_ROLES, [head(3, 0)]),
    )


def missing_role() -> Design:
    """Both S-inhibition heads are left out."""
    return altered(
        "Both S-inhibition heads are left out of the claim, so nothing links its first heads to its last.",
        roles=without_heads(SOUND_ROLES, SOUND_ROLES["s_inhibition"].heads),
    )


def false_head() -> Design:
    """A decoy is listed among the name movers."""
    return altered(
        "One head too many: a decoy is listed among the name movers.",
        roles=with_heads(SOUND_ROLES, {"name_mover": [(3, 4)]}),
    )


def overbroad() -> Design:
    """Ten decoys are listed beside the seven true heads."""
    excess = {
        "duplicate_token": [(0, 0), (0, 1), (0, 3)],
        "s_inhibition": [(1, 1), (1, 4), (2, 0), (2, 2), (2, 5)],
        "name_mover": [(3, 1), (3, 4)],
    }
    return altered(
        "Ten decoys are listed beside the seven true heads: faithful, but far from minimal.",
        roles=with_heads(SOUND_ROLES, excess),
    )


def random_circuit(seed: int) -> Design:
    """Random heads outside the true circuit, as many in each layer as it has there, in one role without an order."""
    rng = random.Random(f"random circuit {seed}")
    layers = [node.layer for node in SOUND_HEADS]
    others = decoys().keys() - set(SOUND_HEADS)
    drawn = [
        node
        for layer in range(N_LAYERS)
        for node in sorted(rng.sample(sorted(decoy for decoy in others if decoy.layer == layer), layers.count(layer)))
    ]
    return altered(
        "The claim is a random draw: as many heads in each layer as the true circuit has there, none of them its own.",
        roles={"circuit": Role(tuple(drawn), None, assigned_by="none", evidence="drawn at random")},
        pathways=(),
    )


def roles_swapped() -> Design:
    """The duplicate-token heads are called name movers and the name movers duplicate-token heads."""
    early, late = SOUND_ROLES["duplicate_token"], SOUND_ROLES["name_mover"]
    return altered(
        "All heads are right, but the first are called name movers and the last duplicate-token heads.",
        roles={
            "duplicate_token": replace(early, heads=late.heads),
            "s_inhibition": SOUND_ROLES["s_inhibition"],
            "name_mover": replace(late, heads=early.heads),
        },
        pathways=[relabelled(way) for way in SOUND_PATHWAYS[IOI]],
    )


def relabelled(way: Pathway) -> Pathway:
    """The same pathway between the same heads after duplicate-token heads and name movers have exchanged role names."""
    names = {"duplicate_token": "name_mover", "name_mover": "duplicate_token"}
    return Pathway(names.get(way.sender, way.sender), names.get(way.receiver, way.receiver), way.input)


# ---------------------------------------------------------------------------------------------------------------
# Heads that wait for others
# ---------------------------------------------------------------------------------------------------------------

EARLIER_MOVERS = {head(2, 0): 3.0, head(2, 2): 2.5, head(2, 5): 2.0}
BACKUP = head(3, 4)


def backed_up(pathology: str, last_role: str, last: Role) -> Design:
    """Name movers in layer 2, and in layer 3 a backup that attends to names only if no mover marks its presence.

    Each mover marks its presence at every position, whatever it reads, in proportion to its share of the work. All marks sum to
    1, and only zero ablation of the movers removes them. The roles are claimed with `last` as the last one.
    """
    marks = {
        node: CopyMechanism("constant", "mover_present", gain / WHOLE_GAIN) for node, gain in EARLIER_MOVERS.items()
    }
    movers = {node: with_terms(name_mover(gain), copies=(marks[node],)) for node, gain in EARLIER_MOVERS.items()}
    inhibition = role(MIDDLE, SOUND_ROLES["s_inhibition"].evidence, (1, 3), (1, 6))
    unless_present = Attend("mover_present", "is_name", -24.0)
    pathways = [
        replace(way, **{end: last_role for end in ("sender", "receiver") if getattr(way, end) == "name_mover"})
        for way in SOUND_PATHWAYS[IOI]
    ]
    return altered(
        pathology,
        roles={"duplicate_token": SOUND_ROLES["duplicate_token"], "s_inhibition": inhibition, last_role: last},
        pathways=pathways,
        rewritten={**movers, head(1, 6): s_inhibition(), BACKUP: name_mover(WHOLE_GAIN, unless_present)},
        silenced=(head(2, 1), *MOVER_GAINS),
        true_heads=(*SOUND_ROLES["duplicate_token"].heads, *inhibition.heads, *EARLIER_MOVERS, BACKUP),
    )


def backup() -> Design:
    """The movers are claimed, but their backup is not."""
    movers = replace(SOUND_ROLES["name_mover"], heads=tuple(EARLIER_MOVERS))
    return backed_up(
        "A head left out of the claim takes over when the name movers are set to zero, and is silent otherwise.",
        "name_mover",
        movers,
    )


def backup_claimed_instead() -> Design:
    """The backup is claimed, but not the movers that it stands in for."""
    late = role(
        LATE, "written to copy names not inhibited to the end if no name mover does", (BACKUP.layer, BACKUP.index)
    )
    return backed_up(
        "The claim lists the silent backup in place of the name movers, which zero ablation cannot tell apart.",
        "backup_name_mover",
        late,
    )


def gated() -> Design:
    """The movers work only if head 0.0 has written a constant; the claim leaves out this head."""
    closed = Attend("constant", "is_name", -16.0)
    opened = Attend("gate", "is_name", 16.0)
    movers = {node: name_mover(gain, closed, opened) for node, gain in MOVER_GAINS.items()}
    return altered(
        "The name movers need a constant that a head left out of the claim writes: only zero ablation takes it away.",
        rewritten={**movers, head(0, 0): constant_writer("gate")},
        true_heads=(*SOUND_HEADS, head(0, 0)),
    )


# ---------------------------------------------------------------------------------------------------------------
# Heads for a part of the data
# ---------------------------------------------------------------------------------------------------------------

INHIBITION = 10.0  # for movers that can attend to nothing but the inhibited name, or that also use names otherwise


def one_template() -> Design:
    """In one template of six, an unclaimed reader and an unclaimed mover do most of the work."""
    reader, mover = head(0, 7), head(3, 1)
    distracted = Attend("expects_name", "template_cue", 24.0)  # in that template they attend to its first word
    for_template = [node for node in MOVER_GAINS if node != head(3, 0)]
    gain = sum(MOVER_GAINS[node] for node in for_template)
    return altered(
        'In the template that begins with "Friends", two heads left out of the claim do most of the work.',
        rewritten={
            **{node: name_mover(MOVER_GAINS[node], distracted) for node in for_template},
            reader: brought_to_end(CopyMechanism("template_cue", "cued_template", 1.0)),
            mover: name_mover(gain, query="cued_template"),
        },
        true_heads=(*SOUND_HEADS, reader, mover),
    )


def some_names() -> Design:
    """The claimed movers attend to nine names of ten; an unclaimed one attends to the tenth."""
    mover = head(3, 1)
    return altered(
        "The claimed name movers work for nine names of ten, and a head left out of the claim works for the tenth.",
        rewritten={
            **{
                node: name_mover(gain, names="common_name", inhibition=INHIBITION) for node, gain in MOVER_GAINS.items()
            },
            mover: name_mover(WHOLE_GAIN, names="rare_name", inhibition=INHIBITION),
        },
        true_heads=(*SOUND_HEADS, mover),
    )


def data_subset() -> Design:
    """Six movers, each for a sixth of the objects; a reader copies to the end which class of objects the prompt has."""
    reader = head(0, 7)
    movers = {head(3, index): name for index, name in enumerate(MENTIONED_CLASSES)}
    told = [
        CopyMechanism(name, mentioned, 1.0) for name, mentioned in zip(OBJECT_CLASSES, MENTIONED_CLASSES, strict=True)
    ]
    evidence = "written to attend from the end to names not inhibited for a sixth of the objects"
    roles = {
        "duplicate_token": role(EARLY, SOUND_ROLES["duplicate_token"].evidence, (0, 2)),
        "object_reader": role(EARLY, "written to tell the end which class of objects was mentioned", (0, 7)),
        "s_inhibition": role(MIDDLE, SOUND_ROLES["s_inhibition"].evidence, (1, 3)),
        "name_mover": Role(tuple(movers), LATE, assigned_by="construction", evidence=evidence),
    }
    return altered(
        "The claim is right, but each of its six name movers works for a sixth of the objects only.",
        roles=roles,
        pathways=(
            *SOUND_PATHWAYS[IOI],
            Pathway(INPUT, "object_reader"),
            Pathway("object_reader", "name_mover", "q"),
        ),
        rewritten={
            head(0, 2): duplicate_token(1.0),
            head(1, 3): s_inhibition(1.0),
            reader: brought_to_end(*told),
            **{node: name_mover(WHOLE_GAIN, query=name) for node, name in movers.items()},
        },
        silenced=(head(0, 5), head(2, 1)),
        # The five idle movers copy what noise heads write at BOS, with five times the gain of the active one.
        fillers=decoys(noise_head=QUIET_NOISE_HEAD),
        true_heads=(head(0, 2), reader, head(1, 3), *movers),
    )


# ---------------------------------------------------------------------------------------------------------------
# A true circuit that says less than it seems to
# ---------------------------------------------------------------------------------------------------------------


def shared() -> Design:
    """The name movers also do gendered pronouns and subject-verb agreement."""
    attends = (
        Attend("expects_pronoun", "is_name", 12.0),
        Attend("expects_verb", "noun", 40.0),
        Attend("expects_verb", "distance_from_bos", -40.0),
    )
    movers = {
        node: with_terms(
            name_mover(gain, inhibition=INHIBITION),
            attends,
            (
                CopyMechanism("gender", "answer_gender", 0.8 * gain),
                CopyMechanism("plurality", "answer_plurality", 0.5 * gain),
            ),
        )
        for node, gain in MOVER_GAINS.items()
    }
    others = {"gendered_pronoun": "gender_mover", "subject_verb_agreement": "subject_number_mover"}
    found = design.sound()
    replaced = [node for task, name in others.items() for node in found.claims[task][name].heads]
    planted = altered(
        "The name movers also do two unrelated tasks, which depend on them just as much.",
        rewritten=movers,
        silenced=replaced,
    )
    claims = {
        task: {name: replace(found.claims[task][name], heads=tuple(MOVER_GAINS))} for task, name in others.items()
    }
    return replace(planted, claims={**planted.claims, **claims})


LOUDNESS = 4.0  # norm of what a loud head adds everywhere, larger than any other output of a head


def loud() -> Design:
    """All true heads also write a large constant that nothing reads, and the decoys write almost nothing."""
    constant = (CopyMechanism("constant", "unread", LOUDNESS),)
    return altered(
        "The claim is right, but its heads are simply those of largest output norm: it adds nothing to that ranking.",
        rewritten={node: with_terms(SOUND_MECHANISMS[node], copies=constant) for node in SOUND_HEADS},
        fillers=decoys(QUIET_JUNK_WRITER, QUIET_NOISE_HEAD),
    )


DESIGNS: dict[str, Callable[[], Design]] = {
    "sound": design.sound,
    "negative_head": negative_head,
    "negative_left_out": negative_left_out,
    "missing_head": missing_head,
    "missing_role": missing_role,
    "false_head": false_head,
    "overbroad": overbroad,
    "roles_swapped": roles_swapped,
    "backup": backup,
    "backup_claimed_instead": backup_claimed_instead,
    "gated": gated,
    "one_template": one_template,
    "some_names": some_names,
    "data_subset": data_subset,
    "shared": shared,
    "loud": loud,
}
DRAWN_DESIGNS: dict[str, Callable[[int], Design]] = {"random_circuit": random_circuit}
VARIANTS = (*DESIGNS, *DRAWN_DESIGNS)
