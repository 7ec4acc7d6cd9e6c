"""How many claims were tried on the same weights and task: whoever tries enough seeds, circuits or prompts finds one that passes.

The certificates below one folder of results are counted, so writing to another folder evades the count. Held-out prompts do
not depend on it: the hash of a prompt's text decides whether it is held out, and does so for all claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import results_io
from calibrations.rules import Standing


@dataclass(frozen=True)
class ClaimsTried:
    """The claims about one task on the same weights. `tiers`: (tier, under released rules) of each claim, lowest first."""

    model: str
    model_sha256: str
    task: str
    tiers: tuple[tuple[int | None, bool], ...]

    def to_dict(self) -> dict[str, Any]:
        """What summary.json holds of it."""
        return {
            **{"model": self.model, "model_sha256": self.model_sha256, "task": self.task, "tried": len(self.tiers)},
            "tiers": [tier for tier, _ in self.tiers],
            "under_released_rules": [released for _, released in self.tiers],
        }

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """One of the `claims` of summary.json."""
        tiers = tuple(zip(stored["tiers"], stored["under_released_rules"], strict=True))
        return cls(stored["model"], stored["model_sha256"], stored["task"], tiers)

    @property
    def sentence(self) -> str:
        """ "3 claims tried about ioi on pocket: tiers none 0 4* (* under rules that are not released)"."""
        told = [f"{'none' if tier is None else tier}{'' if released else '*'}" for tier, released in self.tiers]
        several = "claim" if len(told) == 1 else "claims"
        note = "" if all(released for _, released in self.tiers) else " (* under rules that are not released)"
        return f"{len(told)} {several} tried about {self.task} on {self.model}: tiers {' '.join(told)}{note}"


def of(certificates: Iterable[Mapping[str, Any]]) -> list[ClaimsTried]:
    """The claims of these certificates by weights and task, in the order of their names.

    Certificates of one circuit on the same prompts, by the same rules and with the same tier are copies and count once.
    Weights with several names take the first.
    """
    groups: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for certificate in certificates:
        subject, standing = certificate["subject"], Standing.read(certificate)
        about = [subject["circuit_sha256"], subject["prompts_sha256"], standing.sha256, certificate["tier"]]
        groups.setdefault((subject["model_sha256"], subject["task"]), {})[results_io.sha256(about)] = certificate
    found = [
        ClaimsTried(min(one["subject"]["model"] for one in tried.values()), weights, task, _tiers(tried.values()))
        for (weights, task), tried in groups.items()
    ]
    return sorted(found, key=lambda one: (one.model, one.task, one.model_sha256))


def about(subject: Mapping[str, Any], certificates: Iterable[Mapping[str, Any]]) -> ClaimsTried:
    """The claims about the task and the weights of `subject`; at least one of these certificates must be about them."""
    key = subject["model_sha256"], subject["task"]
    return next(one for one in of(certificates) if (one.model_sha256, one.task) == key)


def _tiers(certificates: Iterable[Mapping[str, Any]]) -> tuple[tuple[int | None, bool], ...]:
    tiers = [(one["tier"], Standing.read(one).released) for one in certificates]
    return tuple(sorted(tiers, key=lambda one: (-1 if one[0] is None else one[0], one[1])))
