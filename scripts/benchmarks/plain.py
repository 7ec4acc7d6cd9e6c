"""PlainModel: Hugging Face GPT-2 blocks with the benchmark's weights, read and edited through forward hooks.

Sites have the names of TransformerLens's hook points, so that `circuits.engine.sources` works for them too. Head outputs are
shown without the value bias, which compatibility mode folds into the output bias, so that zero ablation means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from circuits import models
from circuits.engine.lens import HOOKS
from circuits.interventions import Base
from circuits.prompts import PromptSet

Edit = Callable[[Tensor], Tensor]  # computes a site's new value from its old one, [prompt, position, ...]
KIND_OF = {name.rsplit(".", 1)[-1]: kind for kind, name in HOOKS.items()}


class PlainModel:
    """A GPT-2 as transformers loads it, not modified by TransformerLens."""

    def __init__(self, model: GPT2LMHeadModel) -> None:
        self.model = model.eval()
        self.blocks = model.transformer.h
        self.n_heads = int(model.config.n_head)
        self.value_biases = [self._value_bias(block) for block in self.blocks]

    @classmethod
    def load(cls, folder: Path, device: str, dtype: torch.dtype) -> PlainModel:
        """Load the weights in `folder`, with scaled-dot-product attention, which is transformers' default."""
        with models.quiet():
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
        return cls(model.to(device))

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def constants(self) -> dict[str, Float[Tensor, "head d_head"]]:
        """{site shown without its value biases: these biases}."""
        return {HOOKS["head"].format(layer=layer): bias for layer, bias in enumerate(self.value_biases)}

    def _value_bias(self, block: nn.Module) -> Float[Tensor, "head d_head"]:
        """The constant part of z: b_V plus the contribution of the layer norm's bias through W_V."""
        weight, bias = (part.chunk(3, -1)[2] for part in (block.attn.c_attn.weight, block.attn.c_attn.bias))
        return (bias + block.ln_1.bias @ weight).detach().reshape(self.n_heads, -1)

    # --- runs ------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def activations(self, prompts: PromptSet, base: Base, hooks: tuple[str, ...]) -> dict[str, Tensor]:
        """The intact run's activations {hook: [prompt, position, ...]}, on the model's device."""
        kept: dict[str, Tensor] = {}

        def keep(value: Tensor, name: str) -> Tensor:
            kept[name] = value.clone()
            return value

        tokens = prompts.clean if base == "clean" else prompts.corrupted
        with self.edited({name: partial(keep, name=name) for name in hooks}):
            self.model.transformer(tokens.to(self.device), use_cache=False)
        return kept

    def logits(self, tokens: Int[Tensor, "prompt position"], edits: Mapping[str, Edit]) -> Tensor:
        """Logits [prompt, vocabulary] at the last position, from a whole forward pass with `edits`."""
        with self.edited(edits):
            return self.model(tokens.to(self.device), use_cache=False, logits_to_keep=1).logits[:, -1]

    def resume(
        self, stream: Float[Tensor, "prompt position d_model"], layer: int, edits: Mapping[str, Edit]
    ) -> Float[Tensor, "prompt vocabulary"]:
        """Logits at the last position, from running block `layer` and later ones on the residual stream entering `layer`."""
        with self.edited(edits):
            for block in self.blocks[layer:]:
                stream = block(stream)
        return self.model.lm_head(self.model.transformer.ln_f(stream[:, -1]))

    # --- sites -----------------------------------------------------------------------------------------------------

    @contextmanager
    def edited(self, edits: Mapping[str, Edit]) -> Any:
        """A context in which every named site passes through its edit."""
        with ExitStack() as stack:
            for name, edit in edits.items():
                handle = self._attach(name, edit)
                stack.callback(handle.remove)
            yield

    def _attach(self, name: str, edit: Edit) -> Any:
        kind, block = KIND_OF[name.rsplit(".", 1)[-1]], self.blocks[int(name.split(".")[1])]
        if kind == "head":
            return block.attn.c_proj.register_forward_pre_hook(partial(self._edit_heads, edit, int(name.split(".")[1])))
        if kind == "residual":
            return block.register_forward_pre_hook(lambda module, args: (edit(args[0]), *args[1:]))
        if kind == "mlp":
            return block.mlp.register_forward_hook(lambda module, args, output: edit(output))
        return block.attn.register_forward_hook(lambda module, args, output: (edit(output[0]), *output[1:]))

    def _edit_heads(self, edit: Edit, layer: int, module: nn.Module, args: tuple) -> tuple:
        constant = self.value_biases[layer]
        z = args[0].unflatten(-1, (self.n_heads, -1)) - constant
        return ((edit(z) + constant).flatten(-2),)
