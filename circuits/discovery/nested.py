"""The nested circuits of a ranking, one for every size, and what they keep of the task's metric."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from circuits.discovery import curve
from circuits.discovery.ranking import ComponentRanking
from circuits.interventions import Sweep
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError


@dataclass(frozen=True, eq=False)
class Nested:
    """Circuits of 0, 1, ... all components of a ranking on some prompts. Each size is run once, on first use."""

    study: Study
    prompts: PromptSet
    ranking: ComponentRanking
    _known: dict[int, Float[np.ndarray, " prompt"]] = field(default_factory=dict)

    @cached_property
    def order(self) -> Int[np.ndarray, " component"]:
        """Indices of the components, most important first, on all prompts."""
        return self.ranking.order(np.ones(len(self.prompts)))

    @property
    def total(self) -> int:
        return len(self.ranking.components)

    def logit_diff(self, sizes: Iterable[int]) -> Float[np.ndarray, "size prompt"]:
        """The task's metric (logit difference, in nats) of the runs in which only the first `size` components are intact."""
        sizes = list(sizes)
        missing = sorted(set(sizes) - set(self._known))
        # all head circuits in one sweep, which shares common work; edge sets are too large to hold many
        batches = [missing] if self.ranking.all_sizes else [[size] for size in missing]
        for batch in filter(None, batches):
            variants = tuple(self.ranking.only(self.order[:size], f"first {size}") for size in batch)
            found = self.study.run(Sweep(variants), self.prompts).logit_diff.astype(float)
            self._known.update(zip(batch, found, strict=True))
        return np.stack([self._known[size] for size in sizes])

    def limits(self) -> Float[np.ndarray, "limit prompt"]:
        """The task's metric without any component and with all. Raises UserError unless the sum with all is larger."""
        empty, whole = found = self.logit_diff([0, self.total])
        if whole.sum() <= empty.sum():
            metric = self.study.task.quantity
            raise UserError(
                f"model {self.study.model.name} does task {self.study.task.name} no better with all {self.ranking.unit} "
                f"than with none of them ({metric} {whole.mean():.2f} and {empty.mean():.2f}, the others "
                f"{self.ranking.recipe}), so there is no circuit of {self.ranking.unit} to find; use another method"
            )
        return found

    def faithfulness(self, sizes: Sequence[int]) -> Float[np.ndarray, " size"]:
        """f of each size. Raises as `limits`."""
        empty, whole = self.limits()
        return curve.normalised(self.logit_diff(sizes), whole, empty)

    def smallest(self, will_do: Callable[[int], bool], grid: Sequence[int], at_least: int = 1) -> int:
        """The smallest size from `at_least` on for which `will_do` is true; all components if there is none.

        If there are too many sizes to try all, it takes the smallest of a grid and bisects the gap below it. `will_do` need not
        be monotone, so a smaller size inside another gap may be missed.
        """
        sizes: Sequence[int] = range(at_least, self.total + 1)
        if self.ranking.all_sizes:
            self.logit_diff(sizes)
        else:
            sizes = sorted({at_least, *(size for size in grid if size > at_least), self.total})
        below = at_least - 1
        for size in sizes:
            if size == self.total or will_do(size):
                break
            below = size
        while size - below > 1:
            middle = (size + below) // 2
            size, below = (middle, below) if will_do(middle) else (size, middle)
        return size

    def path(self) -> dict[int, float]:
        """f of every size that was run, largest first."""
        sizes = sorted(self._known, reverse=True)
        return dict(zip(sizes, self.faithfulness(sizes).tolist(), strict=True))
