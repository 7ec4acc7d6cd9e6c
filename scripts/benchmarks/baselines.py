"""Baselines, as others work: one variant per forward pass, or many prompts and variants in one nnsight trace.

Every baseline takes a sweep and prompts of one length and returns logit differences [variant, prompt], as the engines do.
All apply the same replacements, from `circuits.engine.sources`, and compute them with runs of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from circuits.engine.lens import constants_of, hook_name
from circuits.engine.sources import ReferenceActivations, Sources
from circuits.interventions import Base, Recipe, Sweep, Variant
from circuits.prompts import CHANGED, PromptSet
from scripts.benchmarks.flops import first_layer
from scripts.benchmarks.plain import Edit, PlainModel
from scripts.benchmarks.subjects import BenchmarkModel

ROWS_PER_TRACE = 512  # bounds the memory of one nnsight trace
LogitDifferences = Float[np.ndarray, "variant prompt"]


class Engine(Protocol):
    """Anything that scores a sweep."""

    def __call__(self, sweep: Sweep, prompts: PromptSet) -> LogitDifferences: ...


class Replacements:
    """The replacements of a sweep on one batch of prompts, on the device; each is made once.

    Patched activations are read in one intact run of each base, as in the engines.
    """

    def __init__(
        self, sweep: Sweep, prompts: PromptSet, reference: ReferenceActivations, run: Callable, device: torch.device
    ) -> None:
        self.prompts, self.device = prompts, device
        self.sources = Sources(prompts, reference, run)
        self._stored: dict[tuple[str, Recipe], Tensor] = {}
        wanted: dict[Base, set[str]] = {}
        for variant in sweep.variants:
            for item in variant.on_nodes:
                if item.recipe.kind == "patch":
                    wanted.setdefault(item.recipe.source, set()).update(map(hook_name, item.nodes))
        for base, hooks in wanted.items():
            self.sources.prefetch(tuple(sorted(hooks)), base)

    def get(self, hook: str, recipe: Recipe) -> Float[Tensor, "prompt position ..."]:
        if (hook, recipe) not in self._stored:
            self._stored[hook, recipe] = self.sources.get(hook, recipe).to(self.device)
        return self._stored[hook, recipe]

    def edits(self, variant: Variant) -> dict[str, Edit]:
        """{hook name: the variant's edit there}. Interventions on one site are applied in their order."""
        steps: dict[str, list[tuple]] = {}
        for item in variant.on_nodes:
            by_site: dict[str, list[int]] = {}
            for node in item.nodes:
                by_site.setdefault(hook_name(node), []).extend([node.index] if node.kind == "head" else [])
            where = _where(item.positions, self.prompts, self.device)
            for name, heads in by_site.items():
                steps.setdefault(name, []).append((self.get(name, item.recipe), heads, where))
        return {name: partial(_replace, own) for name, own in steps.items()}


class HookLoop:
    """The usual TransformerLens loop: one variant per `run_with_hooks`, with all prompts in the batch and full logits."""

    def __init__(self, subject: BenchmarkModel, reference: PromptSet) -> None:
        self.bridge, self.device = subject.model.bridge, subject.model.device
        self.reference = ReferenceActivations(reference, self._activations, constants_of(subject.model))

    @torch.no_grad()
    def __call__(self, sweep: Sweep, prompts: PromptSet) -> LogitDifferences:
        replacements = Replacements(sweep, prompts, self.reference, self._activations, self.device)
        rows = []
        for variant in sweep.variants:
            hooks = [(name, partial(_as_hook, edit)) for name, edit in replacements.edits(variant).items()]
            logits = self.bridge.run_with_hooks(_tokens(variant, prompts, self.device), fwd_hooks=hooks)
            rows.append(logit_difference(logits[:, -1], prompts))
        return torch.stack(rows).cpu().numpy()

    @torch.no_grad()
    def _activations(self, prompts: PromptSet, base: Base, hooks: tuple[str, ...]) -> dict[str, Tensor]:
        kept: dict[str, Tensor] = {}

        def keep(tensor: Tensor, hook: object, name: str) -> None:
            kept[name] = tensor.detach().clone()

        tokens = (prompts.clean if base == "clean" else prompts.corrupted).to(self.device)
        self.bridge.run_with_hooks(tokens, fwd_hooks=[(name, partial(keep, name=name)) for name in hooks])
        return kept


class ExpertLoop:
    """A careful user's loop: cached residual stream, only blocks from the first changed one on, one position unembedded."""

    def __init__(self, subject: BenchmarkModel, reference: PromptSet) -> None:
        self.plain = subject.plain
        self.reference = ReferenceActivations(reference, self.plain.activations, self.plain.constants)

    @torch.no_grad()
    def __call__(self, sweep: Sweep, prompts: PromptSet) -> LogitDifferences:
        replacements = Replacements(sweep, prompts, self.reference, self.plain.activations, self.plain.device)
        streams = tuple(f"blocks.{layer}.hook_resid_pre" for layer in range(len(self.plain.blocks)))
        cached = {base: self.plain.activations(prompts, base, streams) for base in {v.base for v in sweep.variants}}
        rows = []
        for variant in sweep.variants:
            layer = min(first_layer(variant, len(streams)), len(streams) - 1)
            logits = self.plain.resume(cached[variant.base][streams[layer]], layer, replacements.edits(variant))
            rows.append(logit_difference(logits, prompts))
        return torch.stack(rows).cpu().numpy()


class NnsightTraces:
    """nnsight with one invoke per variant, as many per trace as `rows_per_trace` allows; its batcher concatenates them."""

    def __init__(self, subject: BenchmarkModel, reference: PromptSet, rows_per_trace: int = ROWS_PER_TRACE) -> None:
        from nnsight import LanguageModel

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.wrapped = LanguageModel(subject.plain.model, tokenizer=subject.model.tokenizer)
        self.plain, self.rows_per_trace = subject.plain, rows_per_trace
        self.reference = ReferenceActivations(reference, self.plain.activations, self.plain.constants)

    @torch.no_grad()
    def __call__(self, sweep: Sweep, prompts: PromptSet) -> LogitDifferences:
        replacements = Replacements(sweep, prompts, self.reference, self.plain.activations, self.plain.device)
        step, rows = max(1, self.rows_per_trace // len(prompts)), []
        for start in range(0, len(sweep), step):
            rows += self._trace(sweep.variants[start : start + step], prompts, replacements)
        return torch.stack(rows).cpu().numpy()

    def _trace(self, variants: tuple[Variant, ...], prompts: PromptSet, replacements: Replacements) -> list[Tensor]:
        device = self.plain.device
        jobs = [(_tokens(variant, prompts, device), in_order(replacements.edits(variant))) for variant in variants]
        saved = []
        with self.wrapped.trace(logits_to_keep=1, use_cache=False) as tracer:
            for tokens, edits in jobs:
                with tracer.invoke({"input_ids": tokens}):
                    for name, edit in edits:
                        apply_in_trace(self.wrapped.transformer.h, self.plain, name, edit)
                    saved.append(self.wrapped.lm_head.output[:, -1].save())
        return [logit_difference(logits, prompts) for logits in saved]


class OneByOne:
    """Any engine given one variant at a time; it shows what restarting alone gains, without batching."""

    def __init__(self, run: Callable[[Sweep, PromptSet], LogitDifferences]) -> None:
        self.run = run

    def __call__(self, sweep: Sweep, prompts: PromptSet) -> LogitDifferences:
        return np.concatenate([self.run(Sweep((variant,)), prompts) for variant in sweep.variants])


class Exact:
    """The reference: the plain model in float64, with a whole forward pass for each variant."""

    def __init__(self, plain: PlainModel, reference: PromptSet) -> None:
        self.plain = plain
        self.reference = ReferenceActivations(reference, plain.activations, plain.constants)

    @torch.no_grad()
    def __call__(self, sweep: Sweep, prompts: PromptSet) -> LogitDifferences:
        replacements = Replacements(sweep, prompts, self.reference, self.plain.activations, self.plain.device)
        rows = []
        for variant in sweep.variants:
            tokens = _tokens(variant, prompts, self.plain.device)
            rows.append(logit_difference(self.plain.logits(tokens, replacements.edits(variant)), prompts))
        return torch.stack(rows).cpu().numpy()


# --- what the baselines share --------------------------------------------------------------------------------------


def logit_difference(logits: Float[Tensor, "prompt vocabulary"], prompts: PromptSet) -> Float[Tensor, " prompt"]:
    """Answer logit minus foil logit of each prompt, subtracted in float32 or finer.

    In bfloat16, the difference of two logits near 95 would be a multiple of 0.5.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    answer, wrong = (ids[:, :1].to(logits.device) for ids in (prompts.answers, prompts.wrong))
    return (logits.gather(1, answer) - logits.gather(1, wrong))[:, 0]


def in_order(edits: dict[str, Edit]) -> list[tuple[str, Edit]]:
    """The edits in the order in which a forward pass reaches their sites, as nnsight requires."""
    order = ("hook_resid_pre", "hook_z", "hook_attn_out", "hook_mlp_out")
    return sorted(edits.items(), key=lambda item: (int(item[0].split(".")[1]), order.index(item[0].split(".")[-1])))


def apply_in_trace(blocks: Any, plain: PlainModel, name: str, edit: Edit) -> None:
    """One edit inside an nnsight invoke; `blocks` are the wrapped model's."""
    layer, site = int(name.split(".")[1]), name.split(".")[-1]
    if site == "hook_z":
        projection, constant = blocks[layer].attn.c_proj, plain.value_biases[layer]
        z = projection.input.unflatten(-1, (plain.n_heads, -1)) - constant
        projection.input = (edit(z) + constant).flatten(-2)
    elif site == "hook_resid_pre":
        blocks[layer].input = edit(blocks[layer].input)
    elif site == "hook_mlp_out":
        blocks[layer].mlp.output = edit(blocks[layer].mlp.output)
    else:
        output = blocks[layer].attn.output
        blocks[layer].attn.output = (edit(output[0]), *output[1:])


def _replace(steps: list[tuple], value: Tensor) -> Tensor:
    """`value` [prompt, position, (head), component] after the replacements of all steps."""
    value = value.clone()
    for source, heads, where in steps:
        source = source.to(value.dtype)
        if where is None:
            place: tuple = (slice(None), slice(None), heads) if heads else (slice(None),)
        else:
            prompt, position = where
            place = (prompt[:, None], position[:, None], torch.as_tensor(heads)[None]) if heads else (prompt, position)
        value[place] = source[place]
    return value


def _where(positions: tuple[str, ...] | None, prompts: PromptSet, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """(prompt, position) of every token that the roles name; None for all."""
    if positions is None:
        return None
    chosen = torch.zeros(prompts.clean.shape, dtype=torch.bool)
    for role in positions:
        if role == CHANGED:
            chosen |= prompts.clean != prompts.corrupted
        else:
            chosen[torch.arange(len(prompts)), prompts.positions[role]] = True
    prompt, position = chosen.nonzero(as_tuple=True)
    return prompt.to(device), position.to(device)


def _tokens(variant: Variant, prompts: PromptSet, device: torch.device) -> Tensor:
    return (prompts.clean if variant.base == "clean" else prompts.corrupted).to(device)


def _as_hook(edit: Edit, tensor: Tensor, hook: object) -> Tensor:
    return edit(tensor)
