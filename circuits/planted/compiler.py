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
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

from circuits.circuit import Node, head
from circuits.planted.features import (
    D_MODEL,
    N_POSITIONS,
    SUBSPACES,
    answer_features,
    columns,
    embedded_features,
    position_matrix,
    word_matrix,
)
from circuits.planted.mechanisms import D_HEAD, N_HEADS, N_LAYERS, Decoy, Mechanism
from circuits.tasks import lexicon

D_MLP = 8  # the MLPs are zero; GPT-2 has to have them
LAYER_NORM_EPSILON = 2.0**16  # residual variance is about 3: its effect on the scale is 3e-5, and sqrt is exact


@dataclass(frozen=True)
class CompiledHead:
    """Query, key and value read the residual stream, output writes it; scores are divided by sqrt(D_HEAD) later."""

    query: Float[Tensor, "d_head d_model"]
    key: Float[Tensor, "d_head d_model"]
    value: Float[Tensor, "d_head d_model"]
    output: Float[Tensor, "d_head d_model"]


def compile_mechanism(mechanism: Mechanism) -> CompiledHead:
    """Weights of a described head: each term takes as many dimensions of the head as its subspaces are wide.

    Raises ValueError if the terms need more than D_HEAD dimensions or join subspaces of different widths.
    """
    scores = [(term.key, term.query, term.weight * math.sqrt(D_HEAD)) for term in mechanism.attends]
    copies = [(term.source, term.destination, term.gain) for term in mechanism.copies]
    key, query = joined(scores)
    value, output = joined(copies)
    return CompiledHead(query, key, value, output)


def joined(
    terms: Sequence[tuple[str, str, float]],
) -> tuple[Float[Tensor, "d_head d_model"], Float[Tensor, "d_head d_model"]]:
    """Two matrices whose product joins the first subspace of each term to the second, times its factor.

    Every term has rows of its own: rows shared between terms would mix them.
    """
    first_matrix, second_matrix = torch.zeros(D_HEAD, D_MODEL), torch.zeros(D_HEAD, D_MODEL)
    used = 0
    for first, second, factor in terms:
        width = SUBSPACES[first]
        if SUBSPACES[second] != width or used + width > D_HEAD:
            raise ValueError(
                f"{first} ({width} wide) and {second} ({SUBSPACES[second]} wide) cannot be joined in the "
                f"{D_HEAD - used} head dimensions that are left; use subspaces of one width that fit"
            )
        rows = slice(used, used + width)
        first_matrix[rows, columns(first)] = torch.eye(width)
        second_matrix[rows, columns(second)] = factor * torch.eye(width)
        used += width
    return first_matrix, second_matrix


def compile_decoy(decoy: Decoy, generator: torch.Generator) -> CompiledHead:
    """Gaussian weights with the decoy's standard deviations, zero outside its source and destination."""
    query, key, value, output = (torch.randn(D_HEAD, D_MODEL, generator=generator) for _ in range(4))
    inside_source, inside_destination = torch.zeros(D_MODEL), torch.zeros(D_MODEL)
    inside_source[columns(decoy.source)] = 1
    inside_destination[columns(decoy.destination)] = 1
    return CompiledHead(
        query * decoy.attention_sd,
        key * decoy.attention_sd,
        value * decoy.value_sd * inside_source,
        output * decoy.output_sd * inside_destination,
    )


def balanced(written: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
    """The same with "balance" set so that every row sums to zero: then the residual stream always has mean zero."""
    balance = columns("balance")
    written = written.clone()
    written[:, balance] = 0
    written[:, balance] = -written.sum(dim=1, keepdim=True)
    return written


def empty_model() -> GPT2LMHeadModel:
    """A GPT-2 of the right shape with zero weights and LayerNorms that do (nearly) nothing."""
    bos = lexicon.VOCABULARY.index(lexicon.BOS)
    config = GPT2Config(
        vocab_size=len(lexicon.VOCABULARY),
        n_positions=N_POSITIONS,
        n_embd=D_MODEL,
        n_layer=N_LAYERS,
        n_head=N_HEADS,
        n_inner=D_MLP,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        tie_word_embeddings=False,
        bos_token_id=bos,
        eos_token_id=bos,
        pad_token_id=lexicon.VOCABULARY.index(lexicon.PAD),
    )
    with torch.random.fork_rng(devices=[]):  # the initial weights are thrown away: leave the caller's random state
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


def compile_head(description: Mechanism | Decoy, node: Node, seed: int) -> CompiledHead:
    """Weights of one head; a decoy's depend on the seed and its place only, not on the other heads."""
    if isinstance(description, Mechanism):
        return compile_mechanism(description)
    place = node.layer * N_HEADS + node.index
    generator = torch.Generator().manual_seed(1 + place + seed * N_LAYERS * N_HEADS)
    return compile_decoy(description, generator)


def compile_model(heads: Mapping[Node, Mechanism | Decoy], seed: int) -> GPT2LMHeadModel:
    """The model in which every head is what `heads` says of it; `seed` draws the decoys and the junk they read."""
    model = empty_model()
    transformer = model.transformer
    embedded = embedded_features(torch.Generator().manual_seed(seed), subspaces_read(heads))
    transformer.wte.weight.data = balanced(word_matrix(embedded))
    transformer.wpe.weight.data = balanced(position_matrix())
    unembedding = word_matrix(answer_features())
    model.lm_head.weight.data = unembedding - unembedding.mean(dim=0)
    for layer, block in enumerate(transformer.h):
        places = [head(layer, index) for index in range(N_HEADS)]
        compiled = [compile_head(heads[node], node, seed) for node in places]
        read = [torch.cat([getattr(one, part) for one in compiled]) for part in ("query", "key", "value")]
        attention = cast(GPT2Attention, block.attn)
        attention.c_attn.weight.data = torch.cat(read).T.contiguous()
        attention.c_proj.weight.data = balanced(torch.cat([one.output for one in compiled]))
    return model
