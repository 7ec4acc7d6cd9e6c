"""Where a ranking's circuit ends: at the smallest size that is faithful and complete, with a next head that does not count.

With f the normalised faithfulness of what is intact, C_n the first n components and M all of them, size n will do if

    faithful    |f(C_n) - 1| <= tolerance
    complete    |f(C_n without K) - f(M without K)| <= incompleteness    for K = C_n, and for each of its heads alone
    ended       |f(C_n+1) - f(C_n)| <= counts                            for heads only; a single edge changes too little

Faithfulness alone ends too early in two ways. It leaves out a head whose effect is within the tolerance, however certain that
effect is. And of two heads that do the same, the first alone is as faithful as both; but without it the circuit loses
everything and the model nothing (Wang et al. 2022: completeness). Only discovery prompts are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from circuits.circuit import Node
from circuits.discovery import curve
from circuits.discovery.nested import Nested
from circuits.discovery.ranking import searched
from circuits.interventions import Sweep


@dataclass(frozen=True)
class Ending:
    """Where a circuit ends. `complete` is False if only all components would do; the size is then the smallest faithful one.

    `smallest_faithful` is the size that faithfulness alone would choose. `group` is the group K whose removal differs most
    between circuit and model, by `incompleteness`. `next` is what one more head adds; None if that is not tested.
    """

    size: int
    smallest_faithful: int
    complete: bool
    incompleteness: float
    group: str
    next: float | None


@dataclass(frozen=True, eq=False)
class Stopping:
    """The stopping rule for the circuits of one ranking. `settings` are those of discovery: `tolerance`, `completeness`."""

    nested: Nested
    settings: Mapping[str, Any]
    _without: dict[bytes, float] = field(default_factory=dict)  # f of the model without a set, by that set

    def ending(self, grid: Sequence[int]) -> Ending:
        """The circuit to choose; `grid` is that of `Nested.smallest`. Raises as `Nested.limits`."""
        faithful = self.nested.smallest(self.faithful, grid)
        size = self.nested.smallest(self.will_do, grid, faithful)
        complete = size < self.nested.total or faithful == size
        size = size if complete else faithful
        worst, group = self.incompleteness(size)
        return Ending(size, faithful, complete, worst, group, self.next(size))

    def will_do(self, size: int) -> bool:
        """True if size is faithful, ended and complete, tested in this order because the first tests are cheap."""
        bound = self.settings["completeness"]
        if not self.faithful(size) or abs(self.next(size) or 0.0) > bound["counts"]:
            return False
        return all(difference <= bound["incompleteness"] for difference, _ in self.differences(size))

    def faithful(self, size: int) -> bool:
        return abs(float(self.nested.faithfulness([size])[0]) - 1) <= self.settings["tolerance"]

    def next(self, size: int) -> float | None:
        """f(C_n+1) - f(C_n); None for edges and for a circuit of everything."""
        if not self.nested.ranking.all_sizes or size == self.nested.total:
            return None
        now, after = self.nested.faithfulness([size, size + 1])
        return float(after - now)

    def incompleteness(self, size: int) -> tuple[float, str]:
        """(largest |f(C without K) - f(M without K)|, its K)."""
        return max(self.differences(size), key=lambda one: one[0])

    def differences(self, size: int) -> Iterator[tuple[float, str]]:
        """(|f(C without K) - f(M without K)|, K) of every group: the circuit, then its `completeness.groups` strongest heads.

        For heads all groups run at once; for edges, whose runs take long, each runs when it is needed.
        """
        ranking, kept = self.nested.ranking, self.nested.order[:size]
        members, everything = ranking.members(kept), np.ones(self.nested.total, bool)
        heads = ranking.strongest_heads(kept)[: self.settings["completeness"]["groups"]]
        groups = [("the whole circuit", members), *((str(node), ranking.part(node)) for node in heads)]
        for some in [groups] if ranking.all_sizes else [[group] for group in groups]:
            circuit = self._faithfulness([members & ~part for _, part in some])
            model = self._of_model([everything & ~part for _, part in some])
            for (name, _), one, other in zip(some, circuit, model, strict=True):
                yield abs(one - other), name

    def _of_model(self, sets: Iterable[np.ndarray]) -> list[float]:
        """f of the model with only these sets intact; each is run once, since it does not depend on the circuit."""
        keys = [(one.tobytes(), one) for one in sets]
        missing = {key: one for key, one in keys if key not in self._without}
        self._without.update(zip(missing, self._faithfulness(list(missing.values())), strict=True))
        return [self._without[key] for key, _ in keys]

    def _faithfulness(self, sets: Sequence[np.ndarray]) -> list[float]:
        """f of the runs in which only these components are intact."""
        nested, found = self.nested, []
        empty, whole = nested.limits()
        variants = [nested.ranking.only(np.flatnonzero(one), f"set {place}") for place, one in enumerate(sets)]
        batches = [variants] if nested.ranking.all_sizes else [[one] for one in variants]
        for batch in filter(None, batches):
            kept = nested.study.run(Sweep(tuple(batch)), nested.prompts).logit_diff.astype(float)
            found += curve.normalised(kept, whole, empty).tolist()
        return found


def head_order(nested: Nested) -> tuple[Node, ...]:
    """All searched nodes, most important first: by their first component in the ranking, then those without one."""
    found = nested.ranking.strongest_heads(nested.order)
    return (*found, *(node for node in searched(nested.study) if node not in set(found)))
