"""From descriptions of heads to the weights of an ordinary GPT-2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention

from circuits.circuit import Node, head
from circuits.planted.features import (
    D_MODEL,
    N_POSITIONS,
    NAME_WIDTH,
    answer_features,
    columns,
    embedded_features,
    position_matrix,
    spread_codes,
    width_of,
    word_matrix,
)
from circuits.planted.mechanisms import D_HEAD, N_HEADS, N_LAYERS, Decoy, Mechanism, MLPGate, Relay
from circuits.tasks import lexicon

D_MLP = 8  # MLP width if all MLPs are zero, since GPT-2 needs MLPs
SHARPNESS = 40.0  # GELU(SHARPNESS x) / SHARPNESS is max(x, 0) except for a few thousandths near 0
LAYER_NORM_EPSILON = 2.0**16  # a residual variance of about 3 changes the scale by 3e-5, and the sqrt is exact


@dataclass(frozen=True)
class CompiledHead:
    """Weights of a head: query, key and value read the residual stream, output writes it; scores are later divided by
    sqrt(D_HEAD)."""

    query: Float[Tensor, "d_head d_model"]
    key: Float[Tensor, "d_head d_model"]
    value: Float[Tensor, "d_head d_model"]
    output: Float[Tensor, "d_head d_model"]


@dataclass(frozen=True)
class CompiledMLP:
    """Neurons of an MLP: each reads the residual stream, adds a bias, applies GELU and writes."""

    read: Float[Tensor, "neuron d_model"]
    bias: Float[Tensor, " neuron"]
    write: Float[Tensor, "neuron d_model"]


def compile_mechanism(mechanism: Mechanism, d_model: int = D_MODEL) -> CompiledHead:
    """Weights of a described head: each term takes as many dimensions of the head as its subspaces are wide.

    Raises ValueError if the terms need more than D_HEAD dimensions or join subspaces of different widths.
    """
    scores = [(term.key, term.query, term.weight * math.sqrt(D_HEAD)) for term in mechanism.attends]
    copies = [(term.source, term.destination, term.gain) for term in mechanism.copies]
    key, query = joined(scores, d_model)
    value, output = joined(copies, d_model)
    return CompiledHead(query, key, value, output)


def joined(
    terms: Sequence[tuple[str, str, float]], d_model: int = D_MODEL
) -> tuple[Float[Tensor, "d_head d_model"], Float[Tensor, "d_head d_model"]]:
    """Two matrices whose product joins the first subspace of each term to the second, times its factor.

    Every term has its own rows, since shared rows would mix the terms.
    """
    first_matrix, second_matrix = torch.zeros(D_HEAD, d_model), torch.zeros(D_HEAD, d_model)
    used = 0
    for first, second, factor in terms:
        width = width_of(first)
        if width_of(second) != width or used + width > D_HEAD:
            raise ValueError(
                f"{first} ({width} wide) and {second} ({width_of(second)} wide) cannot be joined in the "
                f"{D_HEAD - used} head dimensions that are left; use subspaces of one width that fit"
            )
        rows = slice(used, used + width)
        first_matrix[rows, columns(first)] = torch.eye(width)
        second_matrix[rows, columns(second)] = factor * torch.eye(width)
        used += width
    return first_matrix, second_matrix


def compile_gate(gate: MLPGate, d_model: int) -> CompiledMLP:
    """Two neurons for each name: one begins to write at `low`, the other cancels what exceeds `gain` from `high` on."""
    codes = spread_codes(len(lexicon.NAMES), NAME_WIDTH)
    read, write = torch.zeros(len(codes), d_model), torch.zeros(len(codes), d_model)
    read[:, columns(gate.source)] = SHARPNESS * codes
    write[:, columns(gate.destination)] = codes if width_of(gate.destination) == NAME_WIDTH else torch.ones(1)
    write *= gate.gain / (SHARPNESS * (gate.high - gate.low))
    bias = torch.tensor([-SHARPNESS * gate.low, -SHARPNESS * gate.high]).repeat_interleave(len(codes))
    return CompiledMLP(torch.cat([read, read]), bias, torch.cat([write, -write]))


def compile_relay(relay: Relay, d_model: int) -> CompiledMLP:
    """Two neurons for each dimension: GELU(x) - GELU(-x) is x."""
    width = width_of(relay.source)
    read, write = torch.zeros(width, d_model), torch.zeros(width, d_model)
    read[:, columns(relay.source)] = torch.eye(width)
    write[:, columns(relay.destination)] = relay.gain * torch.eye(width)
    return CompiledMLP(torch.cat([read, -read]), torch.zeros(2 * width), torch.cat([write, -write]))


def compile_mlp(parts: Sequence[MLPGate | Relay], d_model: int) -> CompiledMLP:
    """The neurons of all parts side by side."""
    made = [compile_gate(one, d_model) if isinstance(one, MLPGate) else compile_relay(one, d_model) for one in parts]
    read, bias, write = (torch.cat([getattr(one, part) for one in made]) for part in ("read", "bias", "write"))
    return CompiledMLP(read, bias, write)


def compile_decoy(decoy: Decoy, generator: torch.Generator, d_model: int = D_MODEL) -> CompiledHead:
    """Gaussian weights with the decoy's standard deviations, zero outside its source and destination."""
    query, key, value, output = (torch.randn(D_HEAD, d_model, generator=generator) for _ in range(4))
    inside_source, inside_destination = torch.zeros(d_model), torch.zeros(d_model)
    inside_source[columns(decoy.source)] = 1
    inside_destination[columns(decoy.destination)] = 1
    return CompiledHead(
        query * decoy.attention_sd,
        key * decoy.attention_sd,
        value * decoy.value_sd * inside_source,
        output * decoy.output_sd * inside_destination,
    )


def balanced(written: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
    """The same with "balance" set so that every row sums to zero, which keeps the mean of the residual stream at zero."""
    balance = columns("balance")
    written = written.clone()
    written[:, balance] = 0
    written[:, balance] = -written.sum(dim=1, keepdim=True)
    return written


def empty_model(n_layers: int = N_LAYERS, n_heads: int = N_HEADS, d_mlp: int = D_MLP) -> GPT2LMHeadModel:
    """A GPT-2 of this shape with zero weights and LayerNorms that do (nearly) nothing."""
    bos = lexicon.VOCABULARY.index(lexicon.BOS)
    config = GPT2Config(
        vocab_size=len(lexicon.VOCABULARY),
        n_positions=N_POSITIONS,
        n_embd=n_heads * D_HEAD,
        n_layer=n_layers,
        n_head=n_heads,
        n_inner=d_mlp,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        tie_word_embeddings=False,
        bos_token_id=bos,
        eos_token_id=bos,
        pad_token_id=lexicon.VOCABULARY.index(lexicon.PAD),
    )
    with torch.random.fork_rng(devices=[]):  # the initial weights are discarded, so keep the caller's random state
        model = GPT2LMHeadModel(config)
    for parameter in model.parameters():
        parameter.data.zero_()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.weight.data.fill_(math.sqrt(LAYER_NORM_EPSILON))
    return model.eval()


def subspaces_read(heads: Mapping[Node, Mechanism | Decoy]) -> set[str]:
    """The subspaces that some mechanism compares or copies."""
    mechanisms = [one for one in heads.values() if isinstance(one, Mechanism)]
    attended = {name for one in mechanisms for term in one.attends for name in (term.query, term.key)}
    return attended | {term.source for one in mechanisms for term in one.copies}


def compile_head(description: Mechanism | Decoy, node: Node, seed: int, n_heads: int = N_HEADS) -> CompiledHead:
    """Weights of one head; those of a decoy depend only on the seed and its place, not on the other heads."""
    if isinstance(description, Mechanism):
        return compile_mechanism(description, n_heads * D_HEAD)
    place = node.layer * n_heads + node.index
    generator = torch.Generator().manual_seed(1 + place + seed * N_LAYERS * n_heads)
    return compile_decoy(description, generator, n_heads * D_HEAD)


def compile_model(
    heads: Mapping[Node, Mechanism | Decoy], seed: int, mlps: Mapping[int, Sequence[MLPGate | Relay]] | None = None
) -> GPT2LMHeadModel:
    """The model with the described `heads`, and with the described `mlps` in some layers.

    `seed` determines the decoys and the junk they read. The numbers of layers and heads are those of `heads`.
    """
    n_heads = 1 + max(node.index for node in heads)
    d_model = n_heads * D_HEAD
    written = {layer: compile_mlp(parts, d_model) for layer, parts in (mlps or {}).items()}
    d_mlp = max((len(one.bias) for one in written.values()), default=D_MLP)
    model = empty_model(1 + max(node.layer for node in heads), n_heads, d_mlp)
    transformer = model.transformer
    embedded = embedded_features(torch.Generator().manual_seed(seed), subspaces_read(heads))
    transformer.wte.weight.data = balanced(word_matrix(embedded, d_model))
    transformer.wpe.weight.data = balanced(position_matrix(d_model))
    unembedding = word_matrix(answer_features(), d_model)
    model.lm_head.weight.data = unembedding - unembedding.mean(dim=0)
    for layer, block in enumerate(transformer.h):
        places = [head(layer, index) for index in range(n_heads)]
        compiled = [compile_head(heads[node], node, seed, n_heads) for node in places]
        read = [torch.cat([getattr(one, part) for one in compiled]) for part in ("query", "key", "value")]
        attention = cast(GPT2Attention, block.attn)
        attention.c_attn.weight.data = torch.cat(read).T.contiguous()
        attention.c_proj.weight.data = balanced(torch.cat([one.output for one in compiled]))
    for layer, mlp in written.items():
        set_mlp(cast(GPT2MLP, transformer.h[layer].mlp), mlp)
    return model


def set_mlp(module: GPT2MLP, mlp: CompiledMLP) -> None:
    """Set the neurons of an MLP of zeros; its other neurons stay zero."""
    count = len(mlp.bias)
    module.c_fc.weight.data[:, :count] = mlp.read.T
    module.c_fc.bias.data[:count] = mlp.bias
    module.c_proj.weight.data[:count] = balanced(mlp.write)
