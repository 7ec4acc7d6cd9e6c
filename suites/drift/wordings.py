"""Wordings: a series is of one version of each prompt. Where a prompt is reworded another series begins; they are never joined.

While both versions run, both series have a point in the same snapshot, and the overlap says what the wording alone changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Names = frozenset[str]  # of prompts: <id>@<version>


@dataclass
class Wording:
    """The version of each prompt, by id, and the prompts asked in it by snapshot; None where the snapshot is a gap."""

    versions: dict[str, int] = field(default_factory=dict)
    asked: dict[str, Names | None] = field(default_factory=dict)

    def agrees(self, versions: Mapping[str, int]) -> bool:
        """Whether every prompt of both has one version."""
        return all(self.versions.get(one, version) == version for one, version in versions.items())


def once(names: Iterable[str]) -> list[str]:
    """The names in order, of each prompt the latest version alone: one that is asked in two versions counts once."""
    latest = {one: max(versions) for one, versions in _versions(names).items()}
    return sorted(f"{one}@{version}" for one, version in latest.items())


def of_axis(snapshots: Sequence[str], asked: Mapping[str, Iterable[str]]) -> list[Wording]:
    """The wordings of an axis in the order of their first snapshot; at least one, also where nothing was asked.

    `asked`: names of prompts by snapshot, failed calls too; a snapshot without is a gap of the wordings asked before it. No
    wording depends on later snapshots.
    """
    found = [Wording()]
    running = found
    for snapshot in snapshots:
        if snapshot not in asked:
            for one in running:
                one.asked[snapshot] = None
            continue
        versions = _versions(asked[snapshot])
        for pick in (min, max):
            own = {name: pick(every) for name, every in versions.items()}
            known = next((one for one in found if one.agrees(own)), None)
            if known is None:
                found.append(known := Wording())
            known.versions |= own
        running = [one for one in found if all(one.versions.get(n, min(v)) in v for n, v in versions.items())]
        for one in running:
            one.versions |= {n: min(v) for n, v in versions.items() if n not in one.versions}
            one.asked[snapshot] = frozenset(f"{n}@{one.versions[n]}" for n in versions)
    return found


def _versions(names: Iterable[str]) -> dict[str, list[int]]:
    """The versions of each prompt."""
    found: dict[str, list[int]] = {}
    for name in names:
        one, _, version = name.rpartition("@")
        found.setdefault(one, []).append(int(version))
    return found
