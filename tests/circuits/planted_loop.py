"""A small way to measure planted models, of PyTorch hooks alone: z of every head is what enters c_proj of its layer.

It shares nothing with `circuits.engine`; every ablation replaces z at every position.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from circuits import planted
from circuits.circuit import Node, head
from circuits.planted import mechanisms
from circuits.prompts import PromptSet, tokenize
from circuits.tasks import TASKS

N_PROMPTS, N_REFERENCE = 48, 96
HEADS = tuple(head(layer, index) for layer in range(planted.N_LAYERS) for index in range(planted.N_HEADS))
ABLATIONS = ("zero", "mean", "pooled_mean", "resample", "noise")


@cache
def prompts(task: str, n: int, seed: int) -> PromptSet:
    rng = random.Random(seed)
    examples = [TASKS[task].sample(rng) for _ in range(n)]
    return tokenize(TASKS[task], examples, planted.tokenizer_with_bos("planted"), split="evaluation")


def logit_difference(
    scored: PromptSet, logits: Float[Tensor, "prompt position vocabulary"]
) -> Float[Tensor, " prompt"]:
    """Mean logit of the answers minus mean logit of the wrong words at the end of each prompt."""
    last = logits[torch.arange(len(scored)), scored.end]
    rows = zip(last, scored.answers, scored.wrong, strict=True)
    return torch.stack([row[yes[yes >= 0]].mean() - row[no[no >= 0]].mean() for row, yes, no in rows])


class Measured:
    """One set of weights on prompts of one task: ablations of z, [layer, prompt, position, head, d_head]."""

    def __init__(self, variant: str, task: str, n: int):
        self.model = planted.build(variant).model
        self.n_layers, self.n_heads = planted.design_of(variant).shape
        self.heads = tuple(head(layer, index) for layer in range(self.n_layers) for index in range(self.n_heads))
        self.scored, self.reference = prompts(task, n, seed=1), prompts(task, N_REFERENCE, seed=2)
        self.sources = self.replacements()
        self.known: dict[tuple[frozenset[Node], str], Tensor] = {}
        self.clean = self.ablated(())

    def run(self, of: PromptSet, hooks: Mapping[int, object]) -> Float[Tensor, "prompt position vocabulary"]:
        with ExitStack() as stack:
            for layer, hook in hooks.items():
                projection = self.model.transformer.h[layer].attn.c_proj
                stack.callback(projection.register_forward_pre_hook(hook).remove)
            return self.model(of.clean).logits

    def head_outputs(self, of: PromptSet) -> Float[Tensor, "layer prompt position head d_head"]:
        stored: dict[int, Tensor] = {}

        def keep(layer: int):
            return lambda module, inputs: stored.__setitem__(layer, inputs[0].unflatten(-1, (self.n_heads, -1)))

        self.run(of, {layer: keep(layer) for layer in range(self.n_layers)})
        return torch.stack([stored[layer] for layer in range(self.n_layers)])

    def replacements(self) -> dict[str, Tensor]:
        """What each kind of ablation puts in the place of z; all from prompts other than the scored ones."""
        rng, generator = random.Random(0), torch.Generator().manual_seed(0)
        z = self.head_outputs(self.reference)
        rows = {
            name: [i for i, other in enumerate(self.reference.templates) if other == name]
            for name in self.scored.templates
        }
        shape = (self.n_layers, *self.scored.clean.shape, self.n_heads, mechanisms.D_HEAD)
        width = self.scored.clean.shape[1]
        z = z[:, :, :width] if z.shape[2] >= width else torch.nn.functional.pad(z, (0, 0, 0, 0, 0, width - z.shape[2]))
        real = torch.arange(width)[None] <= self.reference.end[:, None]
        pooled, deviation = z[:, real].mean(1), z[:, real].std(1)
        pooled_mean = pooled[:, None, None].expand(shape)
        noise = deviation[:, None, None] * torch.randn(shape, generator=generator)
        return {
            "zero": torch.zeros(shape),
            "mean": torch.stack([z[:, rows[name]].mean(1) for name in self.scored.templates], 1),
            "pooled_mean": pooled_mean,
            "resample": torch.stack([z[:, rng.choice(rows[name])] for name in self.scored.templates], 1),
            "noise": pooled_mean + noise,
        }

    def ablated(self, heads: Iterable[Node], kind: str = "zero") -> Float[Tensor, " prompt"]:
        """Logit difference of every prompt with z of `heads` replaced at every position; each is run once."""
        key = (frozenset(heads), kind)
        if key not in self.known:
            self.known[key] = self._ablated(*key)
        return self.known[key]

    def _ablated(self, heads: Iterable[Node], kind: str) -> Float[Tensor, " prompt"]:
        by_layer: dict[int, list[int]] = {}
        for node in heads:
            by_layer.setdefault(node.layer, []).append(node.index)

        def replace(layer: int, indices: list[int]):
            def hook(module: object, inputs: tuple[Tensor]) -> tuple[Tensor]:
                z = inputs[0].unflatten(-1, (self.n_heads, -1)).clone()
                z[:, :, indices] = self.sources[kind][layer][:, :, indices]
                return (z.flatten(-2),)

            return hook

        hooks = {layer: replace(layer, indices) for layer, indices in by_layer.items()}
        return logit_difference(self.scored, self.run(self.scored, hooks))

    def faithfulness(self, kept: Iterable[Node], kind: str, rows: Tensor | slice = slice(None)) -> float:
        """sum F / sum D over the prompts `rows` with nothing but `kept` intact."""
        kept = set(kept)
        alone = self.ablated([node for node in self.heads if node not in kept], kind)
        return float(alone[rows].sum() / self.clean[rows].sum())

    def monte_carlo_error(self, kept: Iterable[Node], kind: str) -> float:
        """Standard error of `faithfulness`: that of the mean of F - theta D, in units of mean D."""
        kept = set(kept)
        alone = self.ablated([node for node in self.heads if node not in kept], kind)
        residual = alone - self.faithfulness(kept, kind) * self.clean
        return float(residual.std() / len(residual) ** 0.5 / self.clean.mean())

    def effect(self, heads: Iterable[Node], kind: str, rows: Tensor | slice = slice(None)) -> float:
        """Share of sum D that is lost with `heads` ablated."""
        return float(1 - self.ablated(heads, kind)[rows].sum() / self.clean[rows].sum())


MEASURED: dict[tuple[str, str, int], Measured] = {}


def measured(variant: str, task: str = "ioi", n: int = N_PROMPTS) -> Measured:
    """Once for each set of weights."""
    key = (planted.weights_key(variant), task, n)
    if key not in MEASURED:
        MEASURED[key] = Measured(variant, task, n)
    return MEASURED[key]


def claimed(variant: str, task: str = "ioi") -> tuple[Node, ...]:
    return planted.claimed_circuits(variant)[task].heads
