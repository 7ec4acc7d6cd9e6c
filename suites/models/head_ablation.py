"""HeadAblation: ablates attention heads of a plain Hugging Face model; the ablation is part of the identity of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

import results_io
from circuits.circuit import Node, parse_head
from circuits.models import Identity, UnsupportedArchitectureError
from results_io import UserError


@dataclass(frozen=True)
class HeadAblation:
    """What replaces the output of `heads` at every position, before the output projection.

    zero: the constant that the value bias alone gives, which removes everything that a head reads from the prompt (the convention
    of `circuits.interventions.Recipe`). mean: the mean over all positions of the `reference` texts. UserError for no head, an
    unknown kind, and reference texts that do not go with the kind.
    """

    heads: tuple[Node, ...]
    kind: Literal["zero", "mean"] = "zero"
    reference: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in ("zero", "mean"):
            raise UserError(f"intervention kind {self.kind!r} is unknown; use zero or mean")
        if not self.heads:
            raise UserError("the intervention names no heads; write for example heads: [L3H2], or leave it out")
        if (self.kind == "mean") != bool(self.reference):
            raise UserError(
                f"a {self.kind} ablation with {len(self.reference)} reference texts; mean needs some, zero takes none"
            )

    @property
    def sha256(self) -> str:
        return results_io.sha256(asdict(self))

    def __str__(self) -> str:
        return f"{self.kind} ablation of {', '.join(map(str, self.heads))}"


def parse(settings: Mapping[str, Any]) -> HeadAblation:
    """The ablation of {heads: [L3H2, ...], kind: zero | mean, reference: [texts]}. UserError for other keys and bad values."""
    unknown = sorted(set(settings) - {"heads", "kind", "reference"})
    if unknown:
        raise UserError(f"intervention key {unknown[0]!r} is unknown; use heads, kind and reference")
    heads = tuple(sorted({parse_head(name) for name in settings.get("heads", ())}, key=lambda n: (n.layer, n.index)))
    return HeadAblation(heads, settings.get("kind", "zero"), tuple(settings.get("reference", ())))


# --- where families keep their heads ------------------------------------------------------------------------------


def _joint_values(block: Any, blank: Tensor, heads: int) -> Float[Tensor, "head d_head"]:
    return block.attn.c_attn(blank).chunk(3, -1)[2].reshape(heads, -1)


def _interleaved_values(block: Any, blank: Tensor, heads: int) -> Float[Tensor, "head d_head"]:
    return block.attention.query_key_value(blank).reshape(heads, 3, -1)[:, 2]


def _grouped_values(block: Any, blank: Tensor, heads: int) -> Float[Tensor, "head d_head"]:
    attention = block.self_attn
    shared = attention.v_proj(blank).reshape(-1, attention.head_dim)
    return shared.repeat_interleave(heads // len(shared), 0)


@dataclass(frozen=True)
class Anatomy:
    """Dotted paths: the list of blocks, and within a block the output projection and the norm before attention.

    `values` computes each query head's value of an input.
    """

    blocks: str
    output: str
    norm: str
    values: Callable[[nn.Module, Tensor, int], Tensor]


ANATOMIES = (
    Anatomy("transformer.h", "attn.c_proj", "ln_1", _joint_values),  # GPT-2
    Anatomy("gpt_neox.layers", "attention.dense", "input_layernorm", _interleaved_values),  # Pythia
    Anatomy("model.layers", "self_attn.o_proj", "input_layernorm", _grouped_values),  # Llama, Qwen, Mistral, Gemma
)


def anatomy_of(model: PreTrainedModel) -> Anatomy:
    """The anatomy of a model's family. UnsupportedArchitectureError for a family that is not in ANATOMIES."""
    for anatomy in ANATOMIES:
        try:
            blocks: Any = model.get_submodule(anatomy.blocks)
            block = blocks[0]
            for part in (anatomy.output, anatomy.norm):
                block.get_submodule(part)
        except AttributeError:
            continue
        return anatomy
    raise UnsupportedArchitectureError(
        f"heads of a {type(model).__name__} cannot be ablated: its attention is built like neither GPT-2's, GPT-NeoX's nor "
        "Llama's; run it without an intervention"
    )


# --- doing it -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AblationHooks:
    """Hooks for one model: per layer, the heads and their replacement values [head, d_head]."""

    projections: Mapping[int, nn.Module]
    indices: Mapping[int, Int[Tensor, " head"]]
    values: Mapping[int, Float[Tensor, "head d_head"]]
    n_heads: int

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within this context the model runs with its heads replaced."""
        with ExitStack() as stack:
            for layer, projection in self.projections.items():
                handle = projection.register_forward_pre_hook(self._hook(layer))
                stack.callback(handle.remove)
            yield

    def _hook(self, layer: int) -> Callable[[nn.Module, tuple], tuple]:
        def replace(_: nn.Module, arguments: tuple) -> tuple:
            heads = arguments[0].unflatten(-1, (self.n_heads, -1)).clone()
            heads[..., self.indices[layer], :] = self.values[layer].to(heads)
            return (heads.flatten(-2), *arguments[1:])

        return replace


@torch.no_grad()
def prepare(
    ablation: HeadAblation, model: PreTrainedModel, identity: Identity, reference: Sequence[Sequence[int]]
) -> AblationHooks:
    """The hooks of `ablation` for this model; `reference`: tokens of its reference texts.

    UserError for a head that the model does not have, UnsupportedArchitectureError as `anatomy_of`.
    """
    outside = [node for node in ablation.heads if node.layer >= identity.n_layers or node.index >= identity.n_heads]
    if outside:
        raise UserError(
            f"{outside[0]} is outside model {identity.name}, which has layers 0-{identity.n_layers - 1} with heads "
            f"0-{identity.n_heads - 1}; choose a head inside it"
        )
    anatomy = anatomy_of(model)
    blocks: Any = model.get_submodule(anatomy.blocks)
    layers = sorted({node.layer for node in ablation.heads})
    projections = {layer: blocks[layer].get_submodule(anatomy.output) for layer in layers}
    if ablation.kind == "mean":
        found = _means(model, projections, reference, identity.n_heads)
    else:
        found = {layer: _constants(blocks[layer], anatomy, identity.n_heads) for layer in layers}
    indices = {layer: [node.index for node in ablation.heads if node.layer == layer] for layer in layers}
    return AblationHooks(
        projections,
        {
            layer: torch.tensor(own, device=next(projections[layer].parameters()).device)
            for layer, own in indices.items()
        },
        {layer: found[layer][own] for layer, own in indices.items()},
        identity.n_heads,
    )


def _constants(block: Any, anatomy: Anatomy, heads: int) -> Float[Tensor, "head d_head"]:
    """Each head's output without any input: its value if the norm's output is its bias alone."""
    norm = block.get_submodule(anatomy.norm)
    bias = getattr(norm, "bias", None)
    return anatomy.values(block, torch.zeros_like(norm.weight) if bias is None else bias, heads)


def _means(
    model: PreTrainedModel, projections: Mapping[int, nn.Module], reference: Sequence[Sequence[int]], heads: int
) -> dict[int, Float[Tensor, "head d_head"]]:
    """Mean over all positions of all reference texts, which are run one by one and summed in float64."""
    sums: dict[int, Any] = dict.fromkeys(projections, 0.0)

    def adding(layer: int) -> Callable[[nn.Module, tuple], None]:
        def add(_: nn.Module, arguments: tuple) -> None:
            sums[layer] = sums[layer] + arguments[0][0].double().sum(0)

        return add

    handles = [projection.register_forward_pre_hook(adding(layer)) for layer, projection in projections.items()]
    try:
        for tokens in reference:
            model(torch.tensor([tokens], device=model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    positions = sum(map(len, reference))
    return {layer: (total / positions).reshape(heads, -1) for layer, total in sums.items()}
