"""The replacement activations of interventions, for one batch of prompts.

Everything is computed on the model's device, where the activations are. Random choices are functions of the recipe's seed,
the draw, the layer and each prompt's id (`philox`), so the order, number and batching of the prompts change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from circuits.engine import philox
from circuits.engine.indices import on_device
from circuits.engine.philox import NoiseStream
from circuits.interventions import Base, Recipe
from circuits.prompts import PromptSet
from results_io import UserError

MINIMUM_REFERENCE_PROMPTS = 5  # per template; a mean over fewer mostly reflects the single prompts

DONOR = "donor"  # kind of the random number that chooses a donor
HOST = torch.device("cpu")

Activations = Mapping[str, Tensor]  # hook name -> [prompt, position, ...]


class ReferenceActivations:
    """Activations on the reference prompts, the source of means, donors and noise scales.

    `constants` are what folding removed from the activations, by hook name (`Model.value_constants`); zero_raw needs them.
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
        self._real = (positions[None] <= prompts.end[:, None]).flatten().nonzero()[:, 0]

    def prefetch(self, hooks: Collection[str]) -> None:
        """Run the model once for all of `hooks` instead of once for each."""
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
            values = self.activations(hook)
            rows = on_device(torch.tensor(self.rows_of(template)), values.device)
            self._template_means[key] = values[rows].mean(0)
        return self._template_means[key]

    def pooled(self, hook: str) -> tuple[Tensor, Tensor]:
        """Mean and SD of every component over all reference prompts and real positions."""
        if hook not in self._pooled:
            values = self.activations(hook).flatten(0, 1)
            self._real = on_device(self._real, values.device)
            values = values[self._real]
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
        self._keys: dict[tuple[int, torch.device], Int[Tensor, "2 prompt"]] = {}
        self._chosen: dict[tuple[int, int], Int[Tensor, " prompt"]] = {}

    def get(self, hook: str, recipe: Recipe) -> Float[Tensor, "prompt position ..."]:
        """The replacement at `hook` for every prompt and position of the batch.

        This may run the model, so the engine calls it for everything before it attaches its own hooks.
        """
        key = (hook, recipe)
        if key not in self._stored:
            self._stored[key] = self._make(hook, recipe)
        return self._stored[key]

    def prefetch_noise(self, wanted: Iterable[tuple[str, Recipe]]) -> None:
        """Draw the noise of all (hook, recipe) pairs together, with as many launches as a single draw.

        The further operations on the draws of one hook also take as many launches as for one draw.
        """
        missing = [one for one in wanted if one[1].kind == "noise" and one not in self._stored]

        def drawn_together(one: tuple[str, Recipe]) -> tuple[int, tuple[int, ...]]:
            return one[1].seed, self._shape(one[0])

        def alike(one: tuple[str, Recipe]) -> tuple[str, bool, str]:
            return one[0], one[1].additive, one[1].source

        missing.sort(key=lambda one: (*drawn_together(one), *alike(one)))
        for (seed, shape), some in groupby(missing, drawn_together):
            pairs = list(some)
            streams = [NoiseStream.of_hook(hook, recipe.draw) for hook, recipe in pairs]
            like = self.reference.activations(pairs[0][0])
            dtype = torch.promote_types(like.dtype, torch.float32)
            drawn = philox.normal(self._key(seed, like.device), streams, torch.Size(shape[1:]).numel(), dtype)
            left = iter(
                drawn.to(like.dtype).view(-1, *shape).split([len(list(own)) for _, own in groupby(pairs, alike)])
            )
            for (hook, *_), own in groupby(pairs, alike):
                recipes = [recipe for _, recipe in own]
                values = self._noise(hook, recipes, next(left))
                self._stored.update(zip(((hook, recipe) for recipe in recipes), values, strict=True))

    def _make(self, hook: str, recipe: Recipe) -> Tensor:
        if recipe.kind == "patch":
            return self.run_on(hook, recipe.source)
        if recipe.kind == "noise":
            self.prefetch_noise([(hook, recipe)])
            return self._stored[hook, recipe]
        if recipe.kind in ("zero", "zero_raw"):
            return self._zeros(hook, raw=recipe.kind == "zero_raw")
        if recipe.kind == "resample":
            values = self.reference.activations(hook)
            return self._rows(values, self._donors(recipe, values.device))
        if recipe.pooled:
            return self.reference.pooled(hook)[0].expand(self._shape(hook))
        return self._template_means(hook)

    def _zeros(self, hook: str, raw: bool) -> Tensor:
        zeros = self.reference.activations(hook).new_zeros(self._shape(hook))
        constant = self.reference.constants.get(hook) if raw else None
        return zeros if constant is None else zeros - constant.to(zeros)

    def _shape(self, hook: str) -> torch.Size:
        return torch.Size((*self.prompts.clean.shape, *self.reference.activations(hook).shape[2:]))

    def prefetch(self, hooks: tuple[str, ...], base: Base) -> None:
        """Run `base` once and keep all of `hooks` instead of running it once for each."""
        missing = tuple(hook for hook in hooks if (hook, base) not in self._runs)
        if missing:
            for hook, value in self._run(self.prompts, base, missing).items():
                self._runs[hook, base] = value

    def run_on(self, hook: str, base: Base) -> Tensor:
        self.prefetch((hook,), base)
        return self._runs[hook, base]

    def _template_means(self, hook: str) -> Tensor:
        names = list(dict.fromkeys(self.prompts.templates))
        means = torch.stack([self.reference.template_mean(hook, name) for name in names])
        number = {name: place for place, name in enumerate(names)}
        return self._rows(means, torch.tensor([number[name] for name in self.prompts.templates], device=means.device))

    def _rows(
        self, values: Float[Tensor, "row known ..."], rows: Int[Tensor, " prompt"]
    ) -> Float[Tensor, "prompt position ..."]:
        """`rows` of `values` with as many positions as the batch has; those beyond a reference prompt's end are zero.

        Positions beyond the batch's are left out before the rows are copied, so nothing more is held than the batch needs.
        """
        width = self.prompts.clean.shape[1]
        taken = values[:, :width].index_select(0, rows)
        lacking = width - taken.shape[1]
        return torch.cat([taken, taken.new_zeros(len(taken), lacking, *taken.shape[2:])], 1) if lacking else taken

    def _key(self, seed: int, device: torch.device) -> Int[Tensor, "2 prompt"]:
        if (seed, device) not in self._keys:
            self._keys[seed, device] = philox.keys(seed, self.prompts.ids, device)
        return self._keys[seed, device]

    def _donors(self, recipe: Recipe, device: torch.device) -> Int[Tensor, " prompt"]:
        """For each prompt, the row of a reference prompt of the same template, chosen by `philox.choice`.

        The choice is made on the host, which takes as long as a few launches for any number of prompts; rows go to the device.
        """
        drawn = recipe.seed, recipe.draw
        if drawn not in self._chosen:
            known = {name: self.reference.rows_of(name) for name in dict.fromkeys(self.prompts.templates)}
            first = dict(zip(known, accumulate(map(len, known.values()), initial=0), strict=False))
            names = self.prompts.templates
            rows = torch.tensor([row for own in known.values() for row in own])
            counts, start = torch.tensor([[len(known[name]), first[name]] for name in names]).T
            place = philox.choice(self._key(recipe.seed, HOST), NoiseStream(DONOR, 0, recipe.draw), counts)
            self._chosen[drawn] = on_device(rows[start + place], device)
        return self._chosen[drawn]

    def _noise(
        self, hook: str, recipes: Sequence[Recipe], normal: Float[Tensor, "draw prompt position ..."]
    ) -> Float[Tensor, "draw prompt position ..."]:
        """Centre + scale x SD x `normal` for recipes with the same centre; overwrites `normal`."""
        mean, deviation = self.reference.pooled(hook)
        centre = self.run_on(hook, recipes[0].source) if recipes[0].additive else mean
        scales = [recipe.scale for recipe in recipes]
        if len(set(scales)) == 1:
            return normal.mul_(scales[0] * deviation).add_(centre)
        each = on_device(torch.tensor(scales, dtype=deviation.dtype), deviation.device)
        return normal.mul_(each.view(-1, 1, 1, *[1] * deviation.ndim) * deviation).add_(centre)
