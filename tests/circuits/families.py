"""A tiny random model of every family in docs/families.json: how it is built, and which of its weights a head writes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from tests.circuits import toy

LAYERS = 2
SIZE: dict[str, Any] = {
    "vocab_size": toy.VOCABULARY,
    "hidden_size": toy.D_MODEL,
    "num_attention_heads": toy.N_HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 64,
    "max_position_embeddings": toy.N_POSITIONS,
}
GROUPED = {**SIZE, "num_key_value_heads": 2}
HEAD_DIM = {**GROUPED, "head_dim": toy.D_HEAD}
GEMMA = {**HEAD_DIM, "query_pre_attn_scalar": 16}
GPT2 = {
    "vocab_size": toy.VOCABULARY,
    "n_embd": toy.D_MODEL,
    "n_head": toy.N_HEADS,
    "n_layer": LAYERS,
    "n_positions": toy.N_POSITIONS,
}
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
OPT = {name: value for name, value in SIZE.items() if name != "intermediate_size"}
FALCON = {name: SIZE[name] for name in ("vocab_size", "hidden_size", "num_attention_heads", "num_hidden_layers")}
RUN: dict[str, tuple[str, dict[str, Any], str]] = {  # family: model type, its configuration, where W_O of a block is
    "GPT-2": ("gpt2", GPT2, "attn.c_proj"),
    "GPT-NeoX, Pythia": ("gpt_neox", SIZE, "attention.dense"),
    "Llama 3 (scaled rotary positions)": ("llama", {**GROUPED, "rope_scaling": ROPE}, "self_attn.o_proj"),
    "Qwen 2": ("qwen2", GROUPED, "self_attn.o_proj"),
    "Qwen 3": ("qwen3", HEAD_DIM, "self_attn.o_proj"),
    "Mistral": ("mistral", HEAD_DIM, "self_attn.o_proj"),
    "Phi-3": ("phi3", GROUPED, "self_attn.o_proj"),
    "OPT": ("opt", {**OPT, "ffn_dim": 64, "word_embed_proj_dim": toy.D_MODEL}, "self_attn.out_proj"),
    "Bloom": (
        "bloom",
        {"vocab_size": toy.VOCABULARY, "hidden_size": toy.D_MODEL, "n_layer": LAYERS, "n_head": toy.N_HEADS},
        "self_attention.dense",
    ),
    "GPT-Neo": (
        "gpt_neo",
        {
            **{name: SIZE[name] for name in ("vocab_size", "hidden_size", "max_position_embeddings")},
            **{"num_layers": LAYERS, "num_heads": toy.N_HEADS, "window_size": 16},
            "attention_types": [[["global", "local"], 1]],
        },
        "attn.attention.out_proj",
    ),
    "Gemma": ("gemma", HEAD_DIM, "self_attn.o_proj"),
    "Gemma 2": ("gemma2", GEMMA, "self_attn.o_proj"),
    "Gemma 3 (text)": ("gemma3_text", GEMMA, "self_attn.o_proj"),
    "OLMo 2": ("olmo2", GROUPED, "self_attn.o_proj"),
    "GPT-J": ("gptj", {**GPT2, "rotary_dim": 4}, "attn.out_proj"),
    "Phi": ("phi", SIZE, "self_attn.dense"),
    "Falcon (7B)": ("falcon", {**FALCON, "multi_query": True, "alibi": False, "bias": False}, "self_attention.dense"),
    "Mixtral": ("mixtral", {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, "self_attn.o_proj"),
}
SEQ2SEQ = {"vocab_size": toy.VOCABULARY, "d_model": toy.D_MODEL, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "T5": ("t5", SEQ2SEQ),
    "BERT": ("bert", SIZE),
    "Mamba": ("mamba", {"vocab_size": toy.VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS, "state_size": 4}),
    "Jamba": ("jamba", {**GROUPED, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1}),
    "DeepSeek V3": ("deepseek_v3", {**SIZE, "kv_lora_rank": 8}),
    "Falcon (40B, 180B)": ("falcon", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "Gemma 3 (with images)": ("gemma3", {}),
    "GPT-2, quantised": (
        "gpt2",
        {**GPT2, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    ),
    "Llama, GPTQ": ("llama", {**GROUPED, "quantization_config": {"quant_method": "gptq", "bits": 4}}),
    "Llama, AWQ": ("llama", {**GROUPED, "quantization_config": {"quant_method": "awq", "bits": 4}}),
    "Llama, fp8": ("llama", {**GROUPED, "quantization_config": {"quant_method": "fp8"}}),
    "Llama, compressed-tensors": (
        "llama",
        {**GROUPED, "quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
    ),
}


def configuration(kind: str, changes: dict[str, Any]) -> transformers.PretrainedConfig:
    """The configuration of a family with the toy's tokens."""
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False}
    return CONFIG_MAPPING[kind](**{**ids, **changes})


def save(family: str, folder: Path) -> Path:
    """A folder with a random model of a family that runs."""
    kind, changes, _ = RUN[family]
    network = AutoModelForCausalLM.from_config(configuration(kind, changes), attn_implementation="eager")
    return toy.save(toy.randomise(network, 0).eval(), folder)


@torch.no_grad()
def without_head(plain: PreTrainedModel, family: str, layer: int, head: int) -> None:
    """Set what a head writes to zero in the plain model's own weights: the columns of W_O that read its z."""
    blocks = next(m for m in plain.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == LAYERS)
    matrix = cast("Tensor", blocks[layer].get_submodule(RUN[family][2]).weight)
    own = slice(head * toy.D_HEAD, (head + 1) * toy.D_HEAD)
    if family == "GPT-2":  # whose Conv1D is [from, to]
        matrix[own] = 0
    else:
        matrix[:, own] = 0
