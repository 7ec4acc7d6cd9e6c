"""What a claim leaves out, as forest plots: groups of P.completeness and P.outside, and outside heads with large effects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from calibrations.number_format import number
from calibrations.worst_groups import WorstGroups
from meridian import outside_effects
from meridian.figures.forest import CI, PAGE
from meridian.figures.intervals import LEVEL, clustered_means, interval_words
from meridian.figures.values import EstimateMark, Forest
from meridian.run_folder import RunFolder

NAMED_HEADS = 3  # heads that a row's label names; if there are more, it gives their number
Group = TypeVar("Group")
ADDED = {"model": "without", "circuit": "adding"}


def build(run: RunFolder) -> Iterator[Forest]:
    """The worst groups of P.completeness and P.outside that the certificate names, and outside heads with large effects."""
    found = WorstGroups.read(run.certificate)
    unit = "share of N"
    if found.claimed:
        yield Forest(
            name="completeness_groups",
            title="What circuit and model lose without claimed heads",
            caption="inc: what the circuit loses without a group of its heads, less what the model loses, over N, what all heads "
            "together are worth. Above 0 heads outside stand in for the group, below 0 it acts through heads that the claim "
            f"leaves out. {_which(len(found.claimed))}, which names their heads and has both losses; the 90 % interval is that "
            "of the group alone, the gate's is wider. Results P, 22.",
            x_label="inc, " + unit,
            rows=tuple(
                EstimateMark(
                    f"{place}. {_short(group.heads_text)}, {group.recipe_text}",
                    group.incompleteness,
                    *group.ci90,
                    above=-group.limit,
                    below=group.limit,
                    unit=f"inc; circuit loses {number(group.lost_by_circuit)}, model {number(group.lost_by_model)}",
                )
                for place, group in _farthest([(abs(group.incompleteness), group) for group in found.claimed])
            ),
            level=CI,
        )
    if found.outside:
        yield Forest(
            name="outside_groups",
            title="What heads outside the claim change",
            caption="What the model loses without heads that the claim leaves out, or what adding them to the circuit changes, "
            f"over N, what all heads together are worth. {_which(len(found.outside))}, which names "
            "their heads; the 90 % interval is that of the group alone, the gate's is wider. Results P, 22.",
            x_label=unit,
            rows=tuple(
                EstimateMark(
                    f"{place}. {ADDED[group.side]} {_short(group.heads_text)}, {group.recipe_text}",
                    group.share,
                    *group.ci90,
                    above=-group.limit,
                    below=group.limit,
                    unit=f"{group.name}: {group.side_text}",
                )
                for place, group in _farthest([(abs(group.share), group) for group in found.outside])
            ),
            level=CI,
        )
    if effects := _outside_effects(run):
        yield effects


def _farthest(groups: Sequence[tuple[float, Group]]) -> list[tuple[int, Group]]:
    """(place in the table, from 1; group) of the PAGE groups that are largest by size, in the order of the table."""
    largest = sorted(range(len(groups)), key=lambda place: -groups[place][0])[:PAGE]
    return [(place + 1, groups[place][1]) for place in sorted(largest)]


def _which(count: int) -> str:
    if count <= PAGE:
        return "The groups of the report's table"
    return f"The {PAGE} of {count} groups that are farthest from 0, with their numbers in the report's table"


def _short(heads: str) -> str:
    """The heads, or their number if they are more than NAMED_HEADS."""
    count = len(heads.split())
    return heads if count <= NAMED_HEADS else f"{count} heads"


def _outside_effects(run: RunFolder) -> Forest | None:
    """Heads outside the claim with a large effect under some intervention, whether or not a gate reads that effect."""
    evidence, share = run.evidence, run.settings.get("max_outside")
    heads = outside_effects.large(evidence, share)
    if share is None or not heads:
        return None
    intervals = {}
    for name, field in outside_effects.MEASURED.items():
        if evidence.has(field[0]):
            _, low, high = clustered_means(evidence.head_effect(*field), evidence.clusters, evidence.templates)
            intervals[name] = {head: ends for head, *ends in zip(evidence.heads, low, high, strict=True)}
    ends = interval_words([low for by_head in intervals.values() for low, _ in by_head.values()])
    limit = share * float(evidence.clean.mean())
    return Forest(
        name="outside_effects",
        title="Heads outside the claim with large effects",
        caption=f"Heads that the claim leaves out and of which patching (02) or knocking out (21) changes more than {share:g} of "
        f"the mean {evidence.metric}: mean over {len(evidence.clean)} evaluation prompts in {evidence.unit}, with its rank by "
        f"size among all {len(evidence.heads)} heads. Noising puts the corrupted run's output in the head's place; P.outside "
        f"silences heads instead. No gate reads these numbers; {ends}. Results 02, 21.",
        x_label=f"effect, {evidence.unit}",
        rows=tuple(
            EstimateMark(
                f"{one.name}, {effect.text}", effect.value, *intervals[effect.measured][one.head], group=one.name
            )
            for one in heads[: PAGE // 3]
            for effect in one.effects
        ),
        level=LEVEL,
        lines={f"{share:g} of D": limit, f"-{share:g} of D": -limit},
    )
