"""A model given as a Python object: the Hugging Face model inside it, its identity, and a copy that may be modified."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from circuits import runnable
from results_io import UserError

ORIGINAL = "._original_component"  # in the names of weights that a bridge has wrapped
UNNAMED = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, eq=False)
class GivenModel:
    """A Hugging Face causal language model in memory, and its tokenizer. The object itself is never changed.

    `wrapped`: it belongs to an unprocessed bridge, whose wrapping the copy leaves out.
    """

    network: PreTrainedModel
    tokenizer: Any
    wrapped: bool = False

    @classmethod
    def of(cls, model: Any, tokenizer: Any = None) -> GivenModel:
        """From a Hugging Face model, an unprocessed TransformerBridge, or nnsight's LanguageModel.

        `tokenizer` replaces the tokenizer of a bridge or a LanguageModel; a Hugging Face model has none. Raises UserError for a
        bridge with processed weights, for any other object, for weights that are not in memory, without a fast tokenizer, and
        for a model that `runnable.require_runnable` refuses.
        """
        network, own = _unwrapped(model)
        wrapped = network is not model and type(model).__name__ == "TransformerBridge"
        tokenizer = own if tokenizer is None else tokenizer
        name = type(network).__name__
        if tokenizer is None:
            raise UserError(f"{name} comes without a tokenizer; give it as tokenizer=")
        if not getattr(tokenizer, "is_fast", False):
            raise UserError(
                f"the tokenizer {type(tokenizer).__name__} is a slow one, which cannot say where its tokens stand; give a "
                "fast one"
            )
        runnable.require_runnable(network.config, name)
        if any(weight.is_meta for weight in network.parameters()):
            raise UserError(
                f"the weights of {name} are not in memory (meta device); load them, as nnsight's dispatch=True does"
            )
        return cls(network, tokenizer, wrapped)

    @property
    def name(self) -> str:
        """A name for the folder of results: the last part of the path the model was loaded from, or its family."""
        source = str(getattr(self.network.config, "_name_or_path", "") or "")
        last = UNNAMED.sub("-", re.split(r"[\\/]", source.rstrip("\\/"))[-1]).strip(".-")
        return last or str(self.network.config.model_type)

    @property
    def longest(self) -> int | None:
        """The number of positions in the configuration; None if it has none."""
        return runnable.positions_of(self.network.config)

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, heads)"""
        return int(self.network.config.num_hidden_layers), int(self.network.config.num_attention_heads)

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The state dict with Hugging Face's names."""
        found = self.network.state_dict()
        if not self.wrapped:
            return found
        with torch.device("meta"):
            names = set(self._made().state_dict())
        plain = {name.replace(ORIGINAL, ""): value for name, value in found.items()}
        if missing := sorted(names - set(plain)):
            raise UserError(
                f"the bridge's weights lack {len(missing)} of the model's tensors, {missing[0]} for one; give the Hugging Face "
                "model in its place"
            )
        return {name: plain[name] for name in sorted(names)}

    @cached_property
    def sha256(self) -> str:
        """Digest of the state dict (names, types, shapes, bytes), the configuration and the tokenizer."""
        digest = hashlib.sha256()
        for name, value in sorted(self.weights.items()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        config = {key: value for key, value in self.network.config.to_diff_dict().items() if key not in INCIDENTAL}
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        digest.update(self.tokenizer.backend_tokenizer.to_str().encode())
        digest.update(json.dumps(self.tokenizer.special_tokens_map, sort_keys=True, default=str).encode())
        return digest.hexdigest()

    @property
    def by_words(self) -> bool:
        """True if the tokenizer is word-level, like that of the embedded models."""
        return json.loads(self.tokenizer.backend_tokenizer.to_str())["model"]["type"] == "WordLevel"

    def copied(self, dtype: torch.dtype) -> PreTrainedModel:
        """A separate model with the same weights, eager attention, in evaluation mode."""
        with torch.no_grad():
            made = self._made() if self.wrapped else copy.deepcopy(self.network)
            if self.wrapped:
                made.load_state_dict(dict(self.weights))
        made.set_attn_implementation("eager")
        for weight in made.parameters():
            weight.requires_grad_(True)
        return cast(torch.nn.Module, made).to(dtype).eval()  # pyright: ignore[reportReturnType]

    def _made(self) -> PreTrainedModel:
        return AutoModelForCausalLM.from_config(copy.deepcopy(self.network.config))


INCIDENTAL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache")


def _unwrapped(model: Any) -> tuple[PreTrainedModel, Any]:
    """(the Hugging Face model inside, its tokenizer or None)"""
    kind = type(model).__name__
    if kind == "TransformerBridge":
        if model.compatibility_mode or model._weights_processed:  # the library has no public attribute for the latter
            raise UserError(
                "this TransformerBridge is processed already (compatibility mode: norms folded, weights centred), so the model "
                "as it was stored is gone; give the bridge as boot_transformers made it, or the Hugging Face model"
            )
        return model.original_model, model.tokenizer
    if kind == "HookedTransformer":
        raise UserError(
            "a HookedTransformer holds processed weights in a format of its own; give the Hugging Face model, or a "
            "TransformerBridge as boot_transformers made it"
        )
    if isinstance(model, PreTrainedModel):
        if getattr(model, "peft_config", None):
            raise UserError("this model has adapters; merge them first (merge_and_unload) and give the result")
        return model, None
    inner = _inside_nnsight(model)
    if inner is not None:
        return inner, getattr(model, "tokenizer", None)
    raise UserError(
        f"model is a {kind}; give a name, a folder, a Hugging Face causal language model, a TransformerBridge or nnsight's "
        "LanguageModel"
    )


def _inside_nnsight(model: Any) -> PreTrainedModel | None:
    """The model inside an nnsight model, by either attribute name of its versions; None for another object.

    Reads it without nnsight's `__getattr__`, which returns a proxy for any name.
    """
    for name in ("_module", "_model"):
        found = inspect.getattr_static(model, name, None)
        if isinstance(found, PreTrainedModel):
            return found
    return None
