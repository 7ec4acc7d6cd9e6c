"""Small random models of several architectures, the prompts and the settings that tests run them on.

All weights are multiples of 1/8 with few bits, and the vocabulary and the width are powers of two. So folding
the norms and biases and centring the weights, which TransformerBridge does in float32, rounds nothing: a
float64 bridge and the plain float64 Hugging Face model are the same function to the last digits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from circuits import models
from circuits.circuit import Circuit, Role, head
from circuits.edges import Edge, Reader
from circuits.embedded.tokenizer import build_tokenizer
from circuits.interventions import Recipe, Sweep, Variant, ablate, noise, patch_paths
from circuits.measurements.ablation_battery import METHODS, SUBSETS
from circuits.models import Model
from circuits.study import Study

# with which every test of the engine is run; the fused backend runs the others too: tests/circuits/test_fused_families.py
ARCHITECTURES = ("gpt2", "neox", "llama", "qwen2")
FAMILIES = (*ARCHITECTURES, "qwen3", "gemma", "gemma2", "gemma3")
GEMMA = {"head_dim": 8, "pad_token_id": 0}
CLASSES: dict[str, tuple[Any, Any, dict[str, Any]]] = {  # of grouped-query families, and what they need besides
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "gemma": (GemmaConfig, GemmaForCausalLM, GEMMA),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM, {**GEMMA, "query_pre_attn_scalar": 16}),
    "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM, {**GEMMA, "query_pre_attn_scalar": 16}),
}
N_HEADS, D_HEAD, D_MODEL, VOCABULARY, N_POSITIONS = 4, 8, 32, 1024, 48
WEIGHT_SD, BIAS_SD, GAIN_SD = 0.3, 0.3, 0.25
GRID = 8

ENGINE: dict[str, Any] = {
    "name": "auto",
    "rows_per_forward": 512,
    "memory_mib": 64,
    "tokens_per_block": 512,
    "tolerance": {"float64": 1e-6, "float32": 1e-4, "bfloat16": 0.1},
}
SIZES = {"evaluation": 20, "held_out": 8, "discovery": 16, "groups": 8, "reference": 150}
SETTINGS: dict[str, Any] = {
    "seed": 0,
    "draws": 2,
    "noise_scale": 1.0,
    "fresh_prompts": {"seeds": [42, 123, 456], "pool_factor": 3, "pool_seed": 42},
    "random_circuits": 6,
    "fewest_matched": 0,
    "random_circuit_prompt_share": 4,
    "site_prompts": 6,
    "battery": {subset: list(METHODS) for subset in SUBSETS},
    "mediation": {"onward": True},
    "attribution_tolerance": 1e-4,
    "attention_prompts": 10,
    "companions": 2,
    "companion_prompts": 6,
    "repeated_tokens": {"seed": 0, "length": 8, "sequences": 6},
    "corruption": {"strategy": "entity_swap", "noise_scale": 3.0, "draws": 2, "seed": 0},
    "ocse": {
        "seed": 0,
        "alpha": 0.05,
        "permutations": 39,
        "target_noise": 0.01,
        "resolution": 1e-5,
        "residual_freedom": 5,
        "nearest_neighbour": {"neighbours": 3, "permutations": 19, "local": 3, "most_heads": 2, "most_prompts": 1000},
        "bootstrap": {"refits": 6, "permutations": 19},
    },
    "attribution_patching": {
        "base": "corrupted",
        "prompts": 6,
        "steps": 2,
        "gradient_dropping": True,
        "query_key_correction": True,
    },
    "llc": {
        "seed": 0,
        "prompts": 12,
        "gammas": [16.0],
        "share": 0.9,
        "most_heads": 256,
        "chains": 3,
        "batch": 4,
        "burn_in": 2,
        "draws": 6,
        "pilot": 2,
        "step": 0.5,
        "halvings": 4,
        "acceptance": 0.5,
        "escape": 10.0,
        "r_hat": 9.0,
        "width": 9.0,
        "relative_width": 9.0,
        "replay_tolerance": 1e-3,
        "trace_points": 4,
    },
    "left_out": [],
    "path_patching": {
        "prompts": 6,
        "discovery_prompts": 8,
        "most_edges": 3000,
        "edge_share": 0.02,
        "edge_sizes": [0, 0.5, 1],
    },
    "minimality": {"greedy_heads": 64, "greedy_steps": 2, "discovery_prompts": 6},
    "completeness": {
        "recipes": ["mean", "resample"],
        "draws": 2,
        "others": ["zero", "mean_pooled", "noise"],
        "prompt_share": 4,
        "held_out_share": 2,
        "random_groups": 3,
        "greedy_steps": 2,
    },
    "outside": {"recipes": ["mean", "resample"], "draws": 2, "prompt_share": 4, "held_out_share": 2, "greedy_steps": 2},
    "scrubbing": {"draws": 2, "seed": 0, "prompts": 6},
    "weights": {
        "answer_prompts": 6,
        "rounding": 1e-6,
        "composition_baseline": {"seed": 0, "heads": 4},
        "classifier": {"inverse_penalty": 0.1, "tolerance": 1e-8},
    },
    "head_statistics": {
        "seed": 0,
        "folds": 4,
        "penalties": [10.0**power for power in range(-4, 5)],
        "constant": 1e-5,
    },
}
SEARCH: dict[str, Any] = {  # of discovery, beside what each test file sets for itself
    "fallback": "NAP-IG",
    "completeness": {"incompleteness": 0.1, "counts": 0.02, "groups": 24},
    "nap_ig": {"steps": 3},
    "gim": {"temperature": 2.0, "query": 0.25, "key": 0.25, "value": 0.5, "base": "clean"},
}
BY_FAITHFULNESS = {"incompleteness": 1e9, "counts": 1e9, "groups": 1}  # completeness that is always met


def circuit(task: str = "ioi") -> Circuit:
    """A claim about the toy: one head in each of two layers, and two in the third."""
    roles = {
        "early": Role((head(0, 1),), ordinal=1, assigned_by="function", evidence="a test"),
        "middle": Role((head(1, 2),), ordinal=2),
        "late": Role((head(2, 0), head(2, 3)), ordinal=4, sign=-1),
    }
    return Circuit(f"toy_{task}", task, "toy", roles, {"kind": "user", "source": "tests", "split": "none"})


def build(architecture: str, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A random model; grouped-query ones have two value heads for four query heads.

    `changes` are settings of the family's own configuration, to be put in place of these.
    """
    ids = {"bos_token_id": 1, "eos_token_id": 1, "tie_word_embeddings": False}
    size: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": D_MODEL,
        "num_attention_heads": N_HEADS,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "max_position_embeddings": N_POSITIONS,
    }
    if architecture == "gpt2":
        shape = {"n_embd": D_MODEL, "n_head": N_HEADS, "n_layer": 3, "n_positions": N_POSITIONS}
        model = GPT2LMHeadModel(GPT2Config(**{"vocab_size": VOCABULARY, **shape, **ids, **changes}))
    elif architecture == "neox":
        model = GPTNeoXForCausalLM(GPTNeoXConfig(**{**size, **ids, **changes}))
    else:
        config, network, more = CLASSES[architecture]
        model = network(config(**{**size, **ids, "num_key_value_heads": 2, **more, **changes}))
    return randomise(model, seed).eval()


@torch.no_grad()
def randomise(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        normal = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim > 1:
            value = WEIGHT_SD * normal
        elif name.endswith("bias"):
            value = BIAS_SD * normal
        else:
            value = 1 + (GAIN_SD * normal).clamp(-0.5, 0.5)
        parameter.copy_((value * GRID).round() / GRID)
    return model


def save(model: PreTrainedModel, folder: Path) -> Path:
    """Write a folder that `models.load` and Hugging Face read."""
    with models.quiet():
        model.save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
    return folder


def load(folder: Path, dtype: str = "float32", device_map: list[str] | None = None) -> Model:
    """The model in a bridge, with the pocket's tokenizer whatever its architecture.

    Transformers would load the folder of a Qwen2 with Qwen2's own pre-tokenizer.
    """
    settings = {
        "name": f"toy/{folder.name}",
        "kind": "local",
        "path": str(folder),
        "dtype": dtype,
        "device": None if device_map else "cpu",
        "device_map": device_map,
    }
    return replace(models.load(settings), tokenizer=build_tokenizer())


def plain(folder: Path, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """The same weights as an ordinary Hugging Face model, which TransformerLens has not touched."""
    with models.quiet():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval()


def lowest_hash(study: Study, size: int, split: str = "evaluation") -> list[int]:
    """The rows that a measurement on `size` prompts of a split has to use: those whose ids come first."""
    rows = [row for row, name in enumerate(study.prompts.splits) if name == split]
    return sorted(rows, key=lambda row: study.prompts.ids[row])[:size]


def sweep_of(model: Model) -> Sweep:
    """Of every recipe, on nodes, on paths with rows of their own, and on paths that end in the logits."""
    heads = model.heads
    recipes = (Recipe("zero"), Recipe("mean"), Recipe("resample"), Recipe("noise", additive=True, scale=3.0))
    made = [ablate([node], recipe, f"{node} {recipe}") for node in heads[:5] for recipe in recipes]
    made += [noise([node], f"patch {node}", ("s2",)) for node in heads[4:8]]
    patch = Recipe("patch", source="corrupted")
    made.append(patch_paths([Edge(head(0, 1), Reader("q", 1, 0))], patch, "to a query"))
    made.append(patch_paths([Edge(head(0, 1), Reader("logits", model.n_layers))], patch, "to the logits"))
    return Sweep((Variant("clean"), Variant("corrupted", base="corrupted"), *made), probabilities=True)
