"""What an intervention puts in place of an activation, for one batch of prompts.

Random choices derive from the recipe's seed, the draw and each prompt's own id. They do not depend on the order, the
number or the batching of the prompts, so batch size and permutation change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.interventions import Base, Recipe
from circuits.prompts import PromptSet
from results_io import UserError

MINIMUM_REFERENCE_PROMPTS = 5  # per template: a mean over fewer is mostly the prompts themselves

Activations = Mapping[str, Tensor]  # hook name -> [prompt, position, ...]


class ReferenceActivations:
    """Activations on the reference prompts: where means, donors and noise scales come from.

    `constants` are what folding took out of the activations, by hook name (`Model.value_constants`): zero_raw needs them.
    """

    def __init__(
        self,
        prompts: PromptSet,
        run: Callable[[PromptSet, Base, tuple[str, ...]], Activations],
        constants: Activations,
    ) -> None:
        self.prompts = prompts
        self.constants = constants
        self._run = run
        self._stored: dict[str, Tensor] = {}
        self._template_means: dict[tuple[str, str], Tensor] = {}
        self._pooled: dict[str, tuple[Tensor, Tensor]] = {}
        self.rows: dict[str, list[int]] = {}
        for row, template in enumerate(prompts.templates):
            self.rows.setdefault(template, []).append(row)
        positions = torch.arange(prompts.clean.shape[1])
        self.real = positions[None] <= prompts.end[:, None]

    def prefetch(self, hooks: Collection[str]) -> None:
        """Run once for all of `hooks`, rather than once for each."""
        missing = tuple(hook for hook in hooks if hook not in self._stored)
        if missing:
            self._stored |= self._run(self.prompts, "clean", missing)

    def activations(self, hook: str) -> Float[Tensor, "prompt position ..."]:
        self.prefetch((hook,))
        return self._stored[hook]

    def rows_of(self, template: str) -> list[int]:
        rows = self.rows.get(template, [])
        if len(rows) < MINIMUM_REFERENCE_PROMPTS:
            raise UserError(
                f"template {template!r} has {len(rows)} reference prompts and mean or resample ablation needs "
                f"{MINIMUM_REFERENCE_PROMPTS}; raise prompts.reference"
            )
        return rows

    def template_mean(self, hook: str, template: str) -> Float[Tensor, "position ..."]:
        """Mean over the reference prompts of one template, position by position."""
        key = (hook, template)
        if key not in self._template_means:
            self._template_means[key] = self.activations(hook)[self.rows_of(template)].mean(0)
        return self._template_means[key]

    def pooled(self, hook: str) -> tuple[Tensor, Tensor]:
        """Mean and SD of every component over all reference prompts and real positions."""
        if hook not in self._pooled:
            values = self.activations(hook)[self.real]
            self._pooled[hook] = values.mean(0), values.std(0)
        return self._pooled[hook]


class Sources:
    """Replacement activations for one batch of prompts, computed once each."""

    def __init__(
        self,
        prompts: PromptSet,
        reference: ReferenceActivations,
        run: Callable[[PromptSet, Base, tuple[str, ...]], Activations],
    ) -> None:
        self.prompts = prompts
        self.reference = reference
        self._run = run
        self._stored: dict[tuple[str, Recipe], Tensor] = {}
        self._runs: dict[tuple[str, Base], Tensor] = {}

    def get(self, hook: str, recipe: Recipe) -> Float[Tensor, "prompt position ..."]:
        """The replacement at `hook` for every prompt and position of the batch.

        May run the model, so the engine asks for everything before it attaches hooks of its own.
        """
        key = (hook, recipe)
        if key not in self._stored:
            self._stored[key] = self._make(hook, recipe)
        return self._stored[key]

    def _make(self, hook: str, recipe: Recipe) -> Tensor:
        if recipe.kind == "patch":
            return self.run_on(hook, recipe.source)
        if recipe.kind in ("zero", "zero_raw"):
            return self._zeros(hook, raw=recipe.kind == "zero_raw")
        if recipe.kind == "noise":
            return self._noise(hook, recipe)
        if recipe.kind == "resample":
            return self.reference.activations(hook)[self._donors(recipe)][:, : self.prompts.clean.shape[1]]
        if recipe.pooled:
            return self.reference.pooled(hook)[0].expand(self._shape(hook))
        return self._template_means(hook)

    def _zeros(self, hook: str, raw: bool) -> Tensor:
        zeros = torch.zeros(self._shape(hook), dtype=self.reference.activations(hook).dtype)
        constant = self.reference.constants.get(hook) if raw else None
        return zeros if constant is None else zeros - constant.to(zeros)

    def _shape(self, hook: str) -> tuple[int, ...]:
        return (*self.prompts.clean.shape, *self.reference.activations(hook).shape[2:])

    def prefetch(self, hooks: tuple[str, ...], base: Base) -> None:
        """Run `base` once and keep all of `hooks`, rather than once for each."""
        missing = tuple(hook for hook in hooks if (hook, base) not in self._runs)
        if missing:
            for hook, value in self._run(self.prompts, base, missing).items():
                self._runs[hook, base] = value

    def run_on(self, hook: str, base: Base) -> Tensor:
        self.prefetch((hook,), base)
        return self._runs[hook, base]

    def _template_means(self, hook: str) -> Tensor:
        means = torch.zeros(self._shape(hook), dtype=self.reference.activations(hook).dtype)
        for row, template in enumerate(self.prompts.templates):
            mean = self.reference.template_mean(hook, template)[: means.shape[1]]
            means[row, : len(mean)] = mean
        return means

    def _donors(self, recipe: Recipe) -> list[int]:
        """One reference prompt of the same template for each prompt."""
        donors = []
        for prompt_id, template in zip(self.prompts.ids, self.prompts.templates, strict=True):
            rows = self.reference.rows_of(template)
            donors.append(rows[_hash(prompt_id, recipe.seed, recipe.draw, "donor") % len(rows)])
        return donors

    def _noise(self, hook: str, recipe: Recipe) -> Tensor:
        mean, deviation = self.reference.pooled(hook)
        normal = torch.zeros(self._shape(hook), dtype=self.reference.activations(hook).dtype)
        for row, (prompt_id, end) in enumerate(zip(self.prompts.ids, self.prompts.end.tolist(), strict=True)):
            generator = torch.Generator().manual_seed(_hash(prompt_id, recipe.seed, recipe.draw, hook) % 2**63)
            # the prompt's own length, so that a batch's width does not change the stream
            normal[row, : end + 1] = torch.randn((end + 1, *normal.shape[2:]), generator=generator)
        centre = self.run_on(hook, recipe.source) if recipe.additive else mean
        return centre + recipe.scale * deviation * normal.to(deviation)


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8], "big")
