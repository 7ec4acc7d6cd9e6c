"""What a claim leaves out, by name: the worst groups of P.completeness and P.outside, as every display shows them.

Losses and effects are shares of N, the effect of all heads together (see `claim_completeness`). The losses of circuit and
model are shown side by side; a ratio would hide how small one of them is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from calibrations.evidence import head_names
from calibrations.number_format import interval_text, number
from calibrations.record import Interval

COMPLETENESS, EVERY_RECIPE, OUTSIDE = "P.completeness", "P.completeness_every_recipe", "P.outside"
STORED = "worst_groups"  # where a certificate holds them
OF_ONE_SIGN = {"positive": "all outside heads that help", "negative": "all outside heads that hurt"}
SIDES = {"model": "the model without them", "circuit": "the circuit with them"}


@dataclass(frozen=True)
class Named:
    """Heads taken together under one recipe, with an interval. `heads` are (layer, head)."""

    heads: tuple[tuple[int, int], ...]
    recipe: str
    ci90: Interval
    nodes: tuple[str, ...] = field(default=(), kw_only=True)  # all by name, if some are MLPs or parts of nodes

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """From a record's companion or a certificate; other keys are ignored."""
        known = {field.name: stored[field.name] for field in fields(cls) if field.name != "nodes"}
        heads = tuple((layer, head) for layer, head in stored["heads"])
        low, high = stored["ci90"]
        return cls(**known | {"heads": heads, "nodes": tuple(stored.get("nodes", ())), "ci90": (low, high)})

    @property
    def heads_text(self) -> str:
        """ "L0H3 L2H1", or "L0H3 M2 L2H1@end"."""
        return " ".join(self.nodes) or head_names(self.heads)

    @property
    def recipe_text(self) -> str:
        """The recipe in words."""
        return self.recipe.replace("_", " ")


@dataclass(frozen=True)
class GroupCompleteness(Named):
    """A group of claimed heads: what circuit and model lose without it, and inc, the difference of the losses.

    `name` says how the group was made, `gate` is the metric that asks for it, `limit` the bound on |inc|.
    `published_score` is that of Wang et al. 2022, |F(C without K) - F(M without K)| / N.
    """

    gate: str
    name: str
    lost_by_circuit: float
    lost_by_model: float
    incompleteness: float
    published_score: float
    limit: float

    @property
    def in_limits(self) -> float:
        """inc in units of its limit."""
        return self.incompleteness / self.limit

    @property
    def incompleteness_text(self) -> str:
        """inc with its pointwise 90 % interval."""
        return number(self.incompleteness) + interval_text(*self.ci90)


@dataclass(frozen=True)
class LeftOutGroup(Named):
    """Heads outside the claim: what the model loses without them, or what adding them to the circuit changes (`side`).

    `kind` is head, greedy, positive or negative; |`share`| has to stay below `limit`.
    """

    kind: str
    side: str
    share: float
    limit: float

    @property
    def in_limits(self) -> float:
        """The share in units of its limit."""
        return self.share / self.limit

    @property
    def name(self) -> str:
        """The kind of group in words: "head", "worst set", "all outside heads that help"."""
        return OF_ONE_SIGN.get(self.kind, {"greedy": "worst set"}.get(self.kind, self.kind))

    @property
    def side_text(self) -> str:
        """Whether the heads were ablated in the model or added to the circuit."""
        return SIDES[self.side]

    @property
    def share_text(self) -> str:
        """The share with its pointwise 90 % interval."""
        return number(self.share) + interval_text(*self.ci90)


@dataclass(frozen=True)
class WorstGroups:
    """The groups that a certificate names, in units of their limits, largest first.

    In `claimed`, groups under the recipes of P.completeness come before those that only P.completeness_every_recipe asks for.
    `by_template` is inc of the first claimed group on the prompts of each template. `normalisers` maps each recipe to N in the
    unit of the task's metric.
    """

    claimed: tuple[GroupCompleteness, ...] = ()
    outside: tuple[LeftOutGroup, ...] = ()
    by_template: Mapping[str, float] | None = None
    normalisers: Mapping[str, float] | None = None

    @property
    def template_text(self) -> str:
        """The templates with the smallest and largest inc of the first claimed group; empty for fewer than two templates."""
        inc = self.by_template or {}
        if len(inc) < 2:
            return ""
        ends = [
            f"{number(inc[name])} ({name})" for name in (min(inc, key=inc.__getitem__), max(inc, key=inc.__getitem__))
        ]
        return f"By template, inc of the first runs from {' to '.join(ends)}."

    @classmethod
    def read(cls, certificate: Mapping[str, Any]) -> Self:
        """The worst groups that a stored certificate names; none if an older version wrote it."""
        stored = certificate.get(STORED)
        if not stored:
            return cls()
        claimed, outside = map(GroupCompleteness.read, stored["claimed"]), map(LeftOutGroup.read, stored["outside"])
        return cls(tuple(claimed), tuple(outside), stored["by_template"], stored["normalisers"])

    def to_dict(self) -> dict[str, Any]:
        """What the certificate stores of them; `nodes` only if there are any."""
        stored = asdict(self)
        for group in (*stored["claimed"], *stored["outside"]):
            if not group["nodes"]:
                del group["nodes"]
        return stored


def named(records: Iterable[Mapping[str, Any]]) -> WorstGroups:
    """The worst groups in the companions of the records of P; none if the gates judged nothing."""
    companions = {record["metric"]: record.get("companions", {}) for record in records}
    supported, every, outside = (companions.get(metric) or {} for metric in (COMPLETENESS, EVERY_RECIPE, OUTSIDE))
    first = supported.get("by_recipe", {})
    rest = {recipe: table for recipe, table in every.get("by_recipe", {}).items() if recipe not in first}
    tables = first | rest
    return WorstGroups(
        (
            *_claimed(COMPLETENESS, first, supported.get("limit")),
            *_claimed(EVERY_RECIPE, rest, every.get("limit")),
        ),
        _outside(outside),
        supported.get("worst_by_template"),
        {recipe: table["normaliser"] for recipe, table in tables.items()} or None,
    )


def _claimed(gate: str, by_recipe: Mapping[str, Any], limit: float | None) -> Sequence[GroupCompleteness]:
    found = [
        GroupCompleteness.read({**group, "gate": gate, "recipe": recipe, "limit": limit})
        for recipe, table in by_recipe.items()
        for group in table["groups"]
    ]
    return sorted(found, key=lambda group: -abs(group.in_limits))


def _outside(companions: Mapping[str, Any]) -> tuple[LeftOutGroup, ...]:
    limits = companions.get("limits", {})
    found = [
        LeftOutGroup.read(
            {**group, "limit": limits["all of one sign" if group["kind"] in OF_ONE_SIGN else "head or greedy set"]}
        )
        for group in companions.get("worst", ())
    ]
    return tuple(sorted(found, key=lambda group: -abs(group.in_limits)))
