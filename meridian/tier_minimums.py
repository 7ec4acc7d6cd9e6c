"""The least numbers of rows, templates, wordings and companions that each tier needs, from the settings of its gates.

Without these numbers, a gate refuses to judge. They are necessary, not sufficient: effects near a threshold need more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from circuits.tasks import Example

EVALUATION, HELD_OUT = "evaluation rows", "held-out rows"
TEMPLATES, SMALLEST = "templates", "evaluation rows in the smallest template"
WORDINGS, COMPANIONS, CLUSTERS = "wordings", "companions", "clusters of evaluation rows"
SPLIT_OF = {EVALUATION: "evaluation", HELD_OUT: "held_out"}
HOW = {
    TEMPLATES: "prompts of another token length or with other changed positions, or a column template",
    SMALLEST: "rows like those of the smallest",
    WORDINGS: "a column template that names wordings, as wording or wording/variant",
    COMPANIONS: "task.companions",
    CLUSTERS: "rows with other answers and foils, or another cluster",
}


@dataclass(frozen=True)
class Need:
    """A tier needs at least `least` of `what`, because the calibrations `by` require it."""

    tier: int
    what: str
    least: int
    by: str

    def lacks(self, have: Mapping[str, int]) -> int:
        """How many are missing."""
        return max(0, self.least - have[self.what])


def needs(settings: Mapping[str, Any]) -> list[Need]:
    """The needs of all tiers, from the lowest up. `settings`: the whole configuration of a run."""
    c, measured = settings["calibration"], settings["measurement"]
    groups = c["common"]["minimum_group_prompts"]
    supported = {
        "P.completeness": groups * measured["completeness"]["prompt_share"],
        "P.outside": groups * measured["outside"]["prompt_share"],
        "C16": c["c16"]["minimum_prompts_per_batch"] * len(c["c16"]["batch_seeds"]),
        "C30": c["c30"]["pool_factor"] * c["c30"]["minimum_subsample"],
        "C36": c["c36"]["minimum_prompts"],
        "M3b": c["m3b"]["minimum_prompts"],
    }
    triangulated = {"M98": c["m98"], "E1b": c["e1b"], "C13": c["c13"]}
    held_out = supported | {
        "P.completeness": groups * measured["completeness"]["held_out_share"],
        "P.outside": groups * measured["outside"]["held_out_share"],
    }
    return [
        Need(1, EVALUATION, c["c11"]["minimum_prompts"], "C11"),
        Need(1, CLUSTERS, 2, "every interval"),
        _largest(2, EVALUATION, supported),
        _largest(3, EVALUATION, {name: section["minimum_prompts"] for name, section in triangulated.items()}),
        Need(3, TEMPLATES, 2, "C13"),
        Need(3, SMALLEST, c["c13"]["minimum_per_group"], "C13"),
        Need(4, EVALUATION, c["s3"]["min_prompts"], "S3"),
        _largest(4, HELD_OUT, held_out),
        Need(4, WORDINGS, c["common"]["minimum_wordings"], "P.faithfulness_over_wordings"),
        Need(4, COMPANIONS, c["c17"]["min_tasks_gate"] - 1, "C17"),
    ]


def _largest(tier: int, what: str, counts: Mapping[str, int]) -> Need:
    least = max(counts.values())
    return Need(tier, what, least, ", ".join(name for name, count in counts.items() if count == least))


def had(examples: Mapping[str, Sequence[Example]], sizes: Mapping[str, int], companions: int) -> dict[str, int]:
    """The number of each kind in the splits; a run takes at most `sizes` examples of them."""
    from circuits.tasks.example import frame_of

    taken = {name: examples[name][: sizes.get(name, 0)] for name in SPLIT_OF.values()}
    templates = Counter(one.template for one in taken["evaluation"])
    return {
        EVALUATION: len(taken["evaluation"]),
        HELD_OUT: len(taken["held_out"]),
        TEMPLATES: len(templates),
        SMALLEST: min(templates.values(), default=0),
        WORDINGS: len({frame_of(name) for name in templates}),
        COMPANIONS: companions,
        CLUSTERS: len({one.cluster for one in taken["evaluation"]}),
    }


def reached(every: Iterable[Need], have: Mapping[str, int]) -> int:
    """The highest tier that these counts allow, if all verdicts are favourable."""
    every = list(every)
    lacking = min((need.tier for need in every if need.lacks(have)), default=None)
    return max(need.tier for need in every) if lacking is None else lacking - 1


def sentences(
    every: Iterable[Need], have: Mapping[str, int], shares: Mapping[str, float], preset: Mapping[str, Any] | None = None
) -> list[str]:
    """Sentences: the tiers that these counts allow, and the needs of each further tier.

    `shares`: each split's share of new rows, from which the number of additional rows follows. `preset` has a name and a ceiling.
    """
    every = list(every)
    top, tiers = reached(every, have), max(need.tier for need in every)
    most = preset["ceiling"] if preset else tiers
    said = [
        f"tiers: these rows allow tier {min(top, most)} of {tiers} at most; whether it is reached, the verdicts say"
    ]
    if preset:
        said.append(f"preset {preset['name']} certifies tier {most} at most; leave it out for a higher one")
    for tier in range(top + 1, min(tiers, most) + 1):
        missing = [need for need in every if need.tier <= tier and need.lacks(have)]
        rows = max(
            (math.ceil(need.lacks(have) / shares[SPLIT_OF[need.what]]) for need in missing if need.what in SPLIT_OF),
            default=0,
        )
        asked = [f"{need.least} {need.what} (has {have[need.what]}; {need.by})" for need in _last(missing)]
        more = f", so about {rows} rows more" if rows else ""
        how = "".join(f"; {need.what}: {HOW[need.what]}" for need in _last(missing) if need.what in HOW)
        said.append(f"tier {tier} needs {', '.join(asked)}{more}{how}")
    return said


def _last(missing: Sequence[Need]) -> list[Need]:
    """The largest need of each kind."""
    found: dict[str, Need] = {}
    for need in missing:
        if need.what not in found or need.least > found[need.what].least:
            found[need.what] = need
    return list(found.values())
