"""Hand-written GPT-2s whose circuits are known: the ground truth that measurements and calibrations are checked against.

A description of each head says what its queries and keys compare, and what it copies from where to where. One compiler turns
the descriptions into the weights of an ordinary `GPT2LMHeadModel`:

- The residual stream is a direct sum of named subspaces (`SUBSPACES`): codes of names, words and positions, flags,
  and outputs of heads. Token and position embeddings fill some of them, the unembedding reads others.
- The MLPs are zero except in designs that use them. LayerNorm is made linear: the coordinate "balance" holds minus the sum of
  all others, so that every mean is zero, and epsilon is so large that the scale is sqrt(epsilon) up to rounding, which the
  gain cancels.
- Heads outside the circuits are decoys with random attention and random outputs of the same size. They write what neither a
  circuit nor the unembedding reads (junk writers), or a little noise everywhere (noise heads).

In the sound variant, each task's circuit is all that contributes to it, under every kind of ablation. Each other variant has
one fault in its heads or in what is claimed about them; `truth` says which.

    features        the subspaces, what words hold in them and what logits read
    mechanisms      what a head can be
    compiler        from descriptions to weights
    design          the sound design: heads, claims, truth
    variants        one design for each pathology
    out_of_sample   further designs, which were not used to make any rule
    shapes          the sound design in a model of GPT-2 small's shape
    with_mlps       designs in which an MLP does part of the work, claimed as heads and MLPs
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from circuits.circuit import Circuit, Node
from circuits.embedded.tokenizer import build_tokenizer
from circuits.planted.compiler import compile_model
from circuits.planted.design import Design
from circuits.planted.mechanisms import N_HEADS, N_LAYERS
from circuits.planted.out_of_sample import OUT_OF_SAMPLE
from circuits.planted.shapes import SHAPES
from circuits.planted.variants import DESIGNS, DRAWN_DESIGNS, VARIANTS
from circuits.planted.with_mlps import WITH_MLPS
from results_io import UserError

__all__ = [
    "N_HEADS",
    "N_LAYERS",
    "OUT_OF_SAMPLE",
    "SHAPES",
    "VARIANTS",
    "WITH_MLPS",
    "PlantedModel",
    "Truth",
    "build",
    "claimed_circuits",
    "design_of",
    "tokenizer_with_bos",
    "truth",
    "weights_key",
]


@dataclass(frozen=True)
class PlantedModel:
    """A model with the circuits claimed for it, by task.

    TransformerBridge rewires the model that it is given, so build it again for a second use.
    """

    name: str
    model: GPT2LMHeadModel
    tokenizer: PreTrainedTokenizerFast
    circuits: Mapping[str, Circuit]

    @property
    def circuit(self) -> Circuit:
        """The circuit claimed for indirect object identification."""
        return self.circuits["ioi"]


@dataclass(frozen=True)
class Truth:
    """What is known by construction about a variant on indirect object identification.

    `pathology` says in a sentence what is planted. `heads` are all heads that do the task or take it over, in (layer, head)
    order. `sound` is True if the claim is right and a certificate may reach the top tier.
    """

    variant: str
    pathology: str
    heads: tuple[Node, ...]
    sound: bool


def build(variant: str = "sound", seed: int = 0) -> PlantedModel:
    """The planted model of this variant, ready for measuring (eval mode, float32, CPU).

    `seed` determines the decoys and the junk that they read. The circuits do not depend on it, except that "random_circuit"
    draws its claim by it. Raises UserError if the variant is unknown.
    """
    name, design = f"planted/{variant}", design_of(variant, seed)
    model = compile_model(design.heads, seed, design.mlps)
    return PlantedModel(name, model, tokenizer_with_bos(name), claimed_circuits(variant, seed))


def claimed_circuits(variant: str, seed: int = 0) -> dict[str, Circuit]:
    """The circuits that come with a variant, by task, without building its weights. Raises as `build`."""
    provenance = {"kind": "planted", "variant": variant, "seed": seed}
    name, design = f"planted/{variant}", design_of(variant, seed)
    return {
        task: Circuit(
            f"planted_{variant}_{task}",
            task,
            name,
            roles,
            provenance,
            design.pathways.get(task, ()),
            tuple(sorted(design.mlps)) if task == "ioi" and task not in design.scopes else (),
            scope=design.scopes.get(task, ""),
        ).check(*design.shape)
        for task, roles in design.claims.items()
    }


def truth(variant: str) -> Truth:
    """What is known about a variant; the same for every seed. Raises as `build`."""
    design = design_of(variant)
    return Truth(variant, design.pathology, design.true_heads, design.sound)


def weights_key(variant: str, seed: int = 0) -> str:
    """SHA-256 of what determines the weights, all descriptions and the seed; equal for variants with equal weights.

    Measurements that do not depend on the claim hold for all variants with the same key. Raises as `build`.
    """
    design = design_of(variant, seed)
    described: list[tuple[Node | int, str]] = sorted((node, repr(one)) for node, one in design.heads.items())
    described += sorted((layer, repr(one)) for layer, one in design.mlps.items())
    return hashlib.sha256(repr((described, seed)).encode()).hexdigest()


def design_of(variant: str, seed: int = 0) -> Design:
    """What every head of the variant does, what is claimed and what is true. Raises as `build`."""
    if variant in DRAWN_DESIGNS:
        return DRAWN_DESIGNS[variant](seed)
    others = {**OUT_OF_SAMPLE, **SHAPES, **WITH_MLPS}
    if variant in others:
        return others[variant]()
    if variant not in DESIGNS:
        raise UserError(f"unknown planted variant {variant!r}: expected one of {', '.join(VARIANTS)}")
    return DESIGNS[variant]()


def tokenizer_with_bos(name: str) -> PreTrainedTokenizerFast:
    """The embedded models' tokenizer, set to start every text with BOS.

    TransformerBridge would set this by reloading the tokenizer from its folder, which a planted model does not have.
    """
    tokenizer = build_tokenizer()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        add_bos_token=True,
        name_or_path=name,
        clean_up_tokenization_spaces=False,
        **tokenizer.special_tokens_map,
    )
