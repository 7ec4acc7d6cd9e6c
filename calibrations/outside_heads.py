"""P.outside: do heads that the claim leaves out matter?

For heads o outside the claim, over N (see `claim_completeness`), under the mean, the resample and the primary recipe:

    [F(M) - F(M without o)] / N       what the model loses without o                     limit .10
    [F(C and o) - F(C)] / N           what adding o to the circuit changes               limit .10
    the same two of the worst set of up to three heads that a greedy search finds        limit .10
    the same two of all heads with a positive effect, and of all with a negative one     limit .20

The greedy search and the signs use prompts that no verdict reads. Two outside heads that cancel, or one that replaces a
claimed head, leave faithfulness at 1 but are seen here. Heads that oppose the answer make N small and thus the limits strict.
N never exceeds D, so the limits are never lax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from calibrations import preconditions
from calibrations.claim_completeness import (
    WORST_SHOWN,
    Shares,
    decide_within,
    draw_counts,
    joined,
    normaliser,
    settled_by,
    shares,
)
from calibrations.claimed_nodes import named, names
from calibrations.evidence import Evidence, Head, head_names
from calibrations.faithfulness_over_wordings import companion
from calibrations.record import Published, Record, judge
from calibrations.statistics import Insufficient
from calibrations.worst_groups import OF_ONE_SIGN
from result_types import OutsideHeads

SIDES = {"model": "the model loses", "circuit": "the circuit changes by"}


@dataclass(frozen=True)
class OutsideGroup:
    """Outside heads taken together on one side under one recipe. `kind`: head, greedy, positive or negative.

    `effect` [prompt] is their effect, `normal` [prompt] is N, both in the unit of D.
    """

    kind: str
    side: str
    recipe: str
    heads: Sequence[Sequence[int]]
    effect: Float[np.ndarray, " prompt"]
    normal: Float[np.ndarray, " prompt"]
    nodes: Sequence[str] = ()  # all by name, if some are MLPs or parts of nodes

    @property
    def name(self) -> str:
        return " ".join(self.nodes) or head_names(self.heads)


def records(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """P.outside as a gating record."""
    return [
        judge(
            "P.outside",
            lambda: Published(None, preconditions.NO_RULE, "none"),
            lambda: _decide(evidence, config),
            rule=preconditions.NO_RULE,
            n=preconditions.sizes(evidence, outside=_outside(evidence)),
        )
    ]


def _outside(evidence: Evidence) -> int:
    """Number of nodes outside the claim, including those of which only a part is claimed."""
    whole = {node.whole for node in evidence.claimed if not node.position}
    return evidence.in_scope - len(whole)


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    preconditions.require_behaviour(evidence, config)
    groups, found = outside_effects(evidence, config)
    limits = np.array([config["max_outside_sign" if g.kind in OF_ONE_SIGN else "max_outside"] for g in groups])
    places = evidence.stored_columns(evidence.data("22")["outside"]["prompt_index"])[1]
    decided = decide_within(found, limits)
    worst, beyond, room = decided.pop("worst"), decided.pop("beyond"), decided.pop("room")
    told = sorted(beyond, key=lambda place: -abs(found.estimates[place] / limits[place])) or [worst]
    return {
        **decided,
        "reasons": ()
        if decided["verdict"] == "pass"
        else tuple(_sentence(groups[place], float(found.estimates[place])) for place in told[:3]),
        "needs": settled_by(decided["verdict"], room, len(places), f"a claim that accounts for {groups[worst].name}"),
        "companions": {
            "limits": {"head or greedy set": config["max_outside"], "all of one sign": config["max_outside_sign"]},
            "worst": _table(
                groups, found, lambda group: companion(evidence, config, group.effect, group.normal, places)
            ),
        },
    }


def outside_effects(evidence: Evidence, config: Mapping[str, Any]) -> tuple[list[OutsideGroup], Shares]:
    """Every group of result 22 with its effect over N. Raises Insufficient("claims_every_head") or ("not_run")."""
    stored = evidence.data("22").get("outside")
    if stored is None:
        raise Insufficient("not_run", "measurement 22 has no outside heads", needs="measurement 22 anew")
    if not names(stored):
        raise Insufficient("claims_every_head", "the claim is all heads, so none is outside it")
    columns, places = evidence.stored_columns(stored["prompt_index"])
    counts, clean = draw_counts(evidence, config, places), evidence.clean[places]
    groups: list[OutsideGroup] = []
    parts = []
    for recipe in preconditions.about_the_outside(evidence):
        if recipe not in stored["recipes"]:
            raise Insufficient("not_run", f"no outside heads under {recipe}", needs=f"{recipe} in outside.recipes")
        normal = normaliser(clean, evidence.ablated("empty", recipe)[places])
        alone = stored["recipes"][recipe]
        found = [(*one, side, alone[side][place]) for side in SIDES for place, one in enumerate(_single(stored))]
        sets = [one for one in stored["sets"] if one["recipe"] == recipe]
        found += [(one["kind"], one["heads"], one.get("nodes", ()), one["side"], one["effect"]) for one in sets]
        own = [
            OutsideGroup(kind, side, recipe, heads, np.asarray(effect, dtype=float)[columns], normal, nodes)
            for kind, heads, nodes, side, effect in found
        ]
        values = np.stack([group.effect for group in own])
        parts.append(shares([group.name for group in own], values, normal, counts))
        groups += own
    return groups, joined(parts)


def _single(stored: OutsideHeads) -> list[tuple[str, list[Head], list[str]]]:
    """(kind, heads, names) of every single outside node; names only if some nodes are MLPs or parts."""
    if "nodes" not in stored:
        return [("head", [(layer, head)], []) for layer, head in stored["heads"]]
    kinds = {"L": "head", "M": "mlp"}
    return [(kinds[name[0]], [], [name]) for name in stored["nodes"]]


def _sentence(group: OutsideGroup, share: float) -> str:
    heads = OF_ONE_SIGN.get(group.kind, group.name)
    way = "without" if group.side == "model" else "with"
    return f"left_out: {way} {heads} ({group.recipe.replace('_', ' ')}) {SIDES[group.side]} {share:.2f} of N"


def _table(
    groups: Sequence[OutsideGroup], found: Shares, over_wordings: Callable[[OutsideGroup], Any]
) -> list[dict[str, Any]]:
    """The groups with the largest effects, for each kind separately, so that sets do not crowd out single heads.

    `over_wordings` gives a group's interval with wordings as the sampling units.
    """
    rows = []
    for kind in ("head", "mlp", "greedy", "positive", "negative"):
        own = [place for place, group in enumerate(groups) if group.kind == kind]
        for place in sorted(own, key=lambda place: -abs(found.estimates[place]))[:WORST_SHOWN]:
            group, column = groups[place], found.draws[:, place]
            low, high = np.quantile(column, (0.05, 0.95))
            rows.append(
                {
                    "kind": kind,
                    "side": group.side,
                    "recipe": group.recipe,
                    **named(group.heads, group.nodes),
                    "share": float(found.estimates[place]),
                    "ci90": (float(low), float(high)),
                    "ci90_over_wordings": over_wordings(group),
                }
            )
    return rows
