"""The engine's brute-force twin: one prompt and one variant at a time, on the plain Hugging Face model.

It shares nothing with `circuits.engine` but the values it is given (Variant, PromptSet). Replacements are
computed in float64 from the documented laws of `Recipe`. The engine sees the model in TransformerLens's
compatibility mode, which differs from the plain one in two ways that matter here: the value bias is folded
into the output bias (so z leaves it out), and what layer-norm models write to the residual stream is centred.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from circuits.circuit import Node
from circuits.interventions import EveryBut, Intervention, Recipe, Variant
from circuits.prompts import PromptSet
from tests.circuits import philox_loop

HOOK_NAMES = {  # the noise law names the tensor; the names are TransformerLens's
    "head": "blocks.{}.attn.hook_z",
    "attention": "blocks.{}.hook_attn_out",
    "mlp": "blocks.{}.hook_mlp_out",
    "residual": "blocks.{}.hook_resid_pre",
    "embedding": "hook_embed",
}


def value_bias_gpt2(block: nn.Module, n_heads: int) -> Tensor:
    weight, bias = (part.chunk(3, -1)[2] for part in (block.attn.c_attn.weight, block.attn.c_attn.bias))
    return (bias + block.ln_1.bias @ weight).reshape(n_heads, -1)


def value_bias_neox(block: nn.Module, n_heads: int) -> Tensor:
    joint = block.attention.query_key_value
    weight = joint.weight.reshape(n_heads, 3, -1, joint.in_features)[:, 2]
    return joint.bias.reshape(n_heads, 3, -1)[:, 2] + weight @ block.input_layernorm.bias


def value_bias_grouped(block: nn.Module, n_heads: int) -> Tensor:
    attention = block.self_attn
    bias = attention.v_proj.bias
    if bias is None:
        bias = attention.v_proj.weight.new_zeros(attention.v_proj.out_features)
    grouped = bias.reshape(-1, attention.head_dim)
    return grouped.repeat_interleave(n_heads // len(grouped), 0)


@dataclass(frozen=True)
class Anatomy:
    """Where an architecture keeps its parts, as dotted paths."""

    blocks: str
    attention: str
    output: str
    mlp: str
    embedding: str
    value_bias: Callable[[nn.Module, int], Tensor]
    centred: bool


ANATOMY = {
    "gpt2": Anatomy("transformer.h", "attn", "attn.c_proj", "mlp", "transformer.wte", value_bias_gpt2, True),
    "neox": Anatomy(
        "gpt_neox.layers", "attention", "attention.dense", "mlp", "gpt_neox.embed_in", value_bias_neox, True
    ),
    "llama": Anatomy(
        "model.layers",
        "self_attn",
        "self_attn.o_proj",
        "mlp",
        "model.embed_tokens",
        value_bias_grouped,
        False,
    ),
}
ANATOMY |= dict.fromkeys(("qwen2", "qwen3", "gemma"), ANATOMY["llama"])
ANATOMY |= dict.fromkeys(  # what enters the stream is what the norms after attention and MLP give
    ("gemma2", "gemma3"),
    replace(ANATOMY["llama"], attention="post_attention_layernorm", mlp="post_feedforward_layernorm"),
)


@dataclass(frozen=True)
class Scores:
    """[variant, prompt] each."""

    logit_diff: np.ndarray
    correct: np.ndarray
    answer_probability: np.ndarray


class HookLoop:
    """Scores variants on prompts with forward hooks. `reference` gives means, donors and noise scales."""

    def __init__(self, model: PreTrainedModel, architecture: str, n_heads: int, reference: PromptSet) -> None:
        self.model = model
        self.anatomy = ANATOMY[architecture]
        self.n_heads = n_heads
        self.reference = reference
        self._intact: dict[tuple[int, ...], dict[Node, Tensor]] = {}

    @torch.no_grad()
    def run(self, variants: tuple[Variant, ...], prompts: PromptSet) -> Scores:
        cells = [[self.score(variant, prompts, row) for row in range(len(prompts))] for variant in variants]
        return Scores(*np.moveaxis(np.array(cells, dtype=float), 2, 0))

    def score(self, variant: Variant, prompts: PromptSet, row: int) -> tuple[float, bool, float]:
        tokens = self._tokens(prompts, row, variant.base)
        hooks = [
            (node, self._edit(node, intervention, prompts, row))
            for intervention in variant.interventions
            for node in intervention.nodes
        ]
        with ExitStack() as stack:
            for node, edit in hooks:
                stack.enter_context(self._hook(node, edit))
            logits = self.model(tokens[None]).logits[0, -1]
        answers, wrong = ([i for i in ids[row].tolist() if i >= 0] for ids in (prompts.answers, prompts.wrong))
        probability = logits.softmax(0)
        return (
            float(logits[answers].mean() - logits[wrong].mean()),
            bool(probability[answers].sum() > probability[wrong].sum()),
            float(probability[answers].sum()),
        )

    # --- what is put in place -------------------------------------------------------------------------------

    def _edit(self, node: Node, intervention: Intervention, prompts: PromptSet, row: int) -> Callable[[Tensor], Tensor]:
        source = self._source(node, intervention.recipe, prompts, row)
        places = self._places(intervention.positions, prompts, row)

        def edit(value: Tensor) -> Tensor:
            value = value.clone()
            for place in places:
                where = (place, node.index) if node.kind == "head" else place
                value[where] = source[where]
            return value

        return edit

    def _source(self, node: Node, recipe: Recipe, prompts: PromptSet, row: int) -> Tensor:
        own = self.activation(node, self._tokens(prompts, row, recipe.source))
        length = len(own)
        if recipe.kind == "patch":
            return own
        if recipe.kind == "zero":
            return torch.zeros_like(own)
        if recipe.kind == "zero_raw":
            return torch.zeros_like(own) - (self._value_bias(node) if node.kind == "head" else 0)
        if recipe.kind == "noise":
            mean, deviation = self._pooled(node)
            name = HOOK_NAMES[node.kind].format(node.layer)
            drawn = philox_loop.normal(recipe.seed, prompts.ids[row], name, recipe.draw, own.numel())
            normal = torch.tensor(drawn, dtype=own.dtype).view(own.shape)
            return (own if recipe.additive else mean) + recipe.scale * deviation * normal
        if recipe.kind == "mean" and recipe.pooled:
            return self._pooled(node)[0].expand(own.shape)
        same = [i for i, template in enumerate(self.reference.templates) if template == prompts.templates[row]]
        if recipe.kind == "resample":
            donor = philox_loop.donor(recipe.seed, prompts.ids[row], recipe.draw, len(same))
            return self._of_reference(node)[same[donor]]
        stacked = torch.stack([self._of_reference(node)[i] for i in same])
        assert stacked.shape[1] == length
        return stacked.mean(0)

    def _value_bias(self, node: Node) -> Tensor:
        """[head, d_head]: what z, as compatibility mode shows it, leaves out."""
        return self.anatomy.value_bias(self.model.get_submodule(f"{self.anatomy.blocks}.{node.layer}"), self.n_heads)

    def _of_reference(self, node: Node) -> list[Tensor]:
        return [self.activation(node, self._tokens(self.reference, row, "clean")) for row in range(len(self.reference))]

    def _pooled(self, node: Node) -> tuple[Tensor, Tensor]:
        values = torch.cat(self._of_reference(node))
        return values.mean(0), values.std(0)

    def _places(self, positions: tuple[str | EveryBut, ...] | None, prompts: PromptSet, row: int) -> list[int]:
        length = int(prompts.end[row]) + 1
        if positions is None:
            return list(range(length))
        places = []
        for role in positions:
            if isinstance(role, EveryBut):
                spared = self._places(role.roles, prompts, row)
                places += [i for i in range(length) if i not in spared]
            elif role == "changed":
                places += [i for i in range(length) if prompts.clean[row, i] != prompts.corrupted[row, i]]
            else:
                places.append(int(prompts.positions[role][row]))
        return places

    @staticmethod
    def _tokens(prompts: PromptSet, row: int, base: str) -> Tensor:
        tokens = prompts.clean if base == "clean" else prompts.corrupted
        return tokens[row, : int(prompts.end[row]) + 1]

    # --- reading and editing one site -----------------------------------------------------------------------

    def activation(self, node: Node, tokens: Tensor) -> Tensor:
        """[position, ...] in the intact run, at the site that `node` belongs to (all heads of its layer)."""
        text = tuple(tokens.tolist())
        if text not in self._intact:
            sites = [Node(kind, layer) for kind in HOOK_NAMES for layer in range(self.model.config.num_hidden_layers)]
            kept: dict[Node, Tensor] = {}

            def keep(value: Tensor, site: Node) -> Tensor:
                kept[site] = value.clone()
                return value

            with ExitStack() as stack:
                for site in sites:
                    stack.enter_context(self._hook(site, partial(keep, site=site)))
                self.model(tokens[None])
            self._intact[text] = kept
        return self._intact[text][Node(node.kind, node.layer)]

    @contextmanager
    def _hook(self, node: Node, edit: Callable[[Tensor], Tensor]) -> Any:
        """Pass the site's value, as compatibility mode shows it, through `edit` in every forward pass."""
        block = self.model.get_submodule(f"{self.anatomy.blocks}.{node.layer}")
        if node.kind == "head":
            bias = self._value_bias(node)

            def change(raw: Tensor) -> Tensor:
                z = raw[0].reshape(raw.shape[1], self.n_heads, -1) - bias
                return (edit(z) + bias).reshape(raw.shape)

            handle = _on_input(block.get_submodule(self.anatomy.output), change)
        else:

            def change(raw: Tensor) -> Tensor:
                value = raw[0] - raw[0].mean(-1, keepdim=True) if self.anatomy.centred else raw[0]
                return edit(value)[None]

            if node.kind == "residual":
                handle = _on_input(block, change)
            elif node.kind == "embedding":
                handle = _on_output(self.model.get_submodule(self.anatomy.embedding), change)
            else:
                part = self.anatomy.attention if node.kind == "attention" else self.anatomy.mlp
                handle = _on_output(block.get_submodule(part), change)
        try:
            yield
        finally:
            handle.remove()


def _on_input(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if args:
            return (change(args[0]), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _on_output(module: nn.Module, change: Callable[[Tensor], Tensor]) -> Any:
    def hook(module: nn.Module, args: tuple, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return module.register_forward_hook(hook)
