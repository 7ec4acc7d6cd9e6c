"""Dry run: a sweep as it would run on a GPU, without a GPU or arithmetic, to count its demands on the device.

The engine has CUDA's block sizes and counts each Triton kernel as one launch. Its tensors have shapes but no contents: torch's
meta device stands in for the GPU, so every copy to or from it is counted. The scores of a dry run mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from circuits.engine import fused
from circuits.engine.decoder import Decoder, FlopCount, Layer
from circuits.engine.fused import FusedEngine
from circuits.engine.launches import NOWHERE, DeviceWork, LaunchCount, operations
from circuits.engine.memory import Allowance
from circuits.engine.sources import ReferenceActivations
from circuits.interventions import Sweep
from circuits.prompts import PromptSet

ROOM = 64 * 2**30  # bytes: 80 % of an 80 GB GPU, and less than half of an H200


@dataclass(frozen=True)
class Widths:
    """The sizes of a model other than its numbers of layers, heads and groups."""

    d_model: int
    d_head: int
    d_mlp: int
    vocabulary: int


class DryEngine(FusedEngine):
    """A fused engine as it would be on a GPU. While `count` is active, it records what the engine runs.

    With `widths` the model has these widths: a narrow model stands in for a wide one with as many layers and heads.
    """

    def __init__(self, engine: FusedEngine, count: LaunchCount, widths: Widths | None = None) -> None:
        vars(self).update(vars(engine))
        self.decoder = _without_contents(engine.decoder, widths)
        self.model: Any = _Nowhere(engine.model)
        self.operations = operations(count, NOWHERE)
        if widths is not None:
            self.shape = replace(engine.shape, **vars(widths))
        self.room = ROOM
        self.allowance = Allowance(ROOM)
        use_cuda_blocks(self)
        old = engine.reference
        constants = {
            name: value.new_zeros(value.shape[0], self.decoder.d_head) for name, value in old.constants.items()
        }
        self.reference = ReferenceActivations(old.prompts, self.on_device, constants)

    def _prove_alive(self, name: str) -> None:
        """Nothing is proved where tensors have no contents."""

    def _prove_wired(self) -> None:
        """Nothing is proved where tensors have no contents."""


def count(engine: FusedEngine, sweep: Sweep, prompts: PromptSet, widths: Widths | None = None) -> DeviceWork:
    """The work of a sweep on a GPU after the reference prompts have been run, as in the second sweep of a study."""
    counting = LaunchCount()
    dry = DryEngine(engine, counting, widths)
    with counting:
        dry.run(replace(sweep, variants=sweep.variants), prompts.select([0]))
    ready = LaunchCount()
    dry.operations = operations(ready, NOWHERE)
    with ready:
        dry.run(sweep, prompts)
    return ready.work


def use_cuda_blocks(engine: FusedEngine) -> None:
    """Give an engine its block sizes on CUDA; a `tokens_per_block` other than the CPU's default is kept."""
    if engine.tokens_per_block == fused.TOKENS_PER_BLOCK["cpu"]:
        engine.tokens_per_block = fused.TOKENS_PER_BLOCK["cuda"]
    engine.smallest_product = fused.SMALLEST_PRODUCT["cuda"]


class _Nowhere:
    """A model on the meta device; all else is taken from the model."""

    device = NOWHERE

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _without_contents(decoder: Decoder, widths: Widths | None) -> Decoder:
    """The decoder with empty weights of the same shapes, or of the shapes that `widths` give."""
    hidden, vocabulary = decoder.layers[0].mlp_in.shape[0], len(decoder.embedding)
    wide = widths or Widths(decoder.d_model, decoder.d_head, hidden, vocabulary)
    heads, groups = decoder.n_heads, decoder.n_groups
    shapes = {
        "qkv": ((heads + 2 * groups) * wide.d_head, wide.d_model),
        "qkv_bias": ((heads + 2 * groups) * wide.d_head,),
        "output": (heads, wide.d_head, wide.d_model),
        "output_bias": (wide.d_model,),
        "mlp_in": (wide.d_mlp, wide.d_model),
        "mlp_in_bias": (wide.d_mlp,),
        "mlp_gate": (wide.d_mlp, wide.d_model),
        "mlp_out": (wide.d_model, wide.d_mlp),
        "mlp_out_bias": (wide.d_model,),
        "query_gain": (wide.d_head,),
        "key_gain": (wide.d_head,),
        "attention_gain": (wide.d_model,),
        "mlp_gain": (wide.d_model,),
        "embedding_scale": (),
        "embedding": (wide.vocabulary, wide.d_model),
        "positions": (0 if decoder.positions is None else len(decoder.positions), wide.d_model),
        "unembedding": (wide.vocabulary, wide.d_model),
        "unembedding_bias": (wide.vocabulary,),
    }

    def emptied(owner: Any) -> Any:
        found = {one.name: getattr(owner, one.name) for one in fields(owner) if one.name in shapes}
        return replace(
            owner, **{name: x.new_empty(shapes[name], device=NOWHERE) for name, x in found.items() if x is not None}
        )

    layers: tuple[Layer, ...] = tuple(map(emptied, decoder.layers))
    angles_of = None if decoder.angles_of is None else _angles_without_contents(decoder.angles_of)
    return replace(
        emptied(decoder), layers=layers, d_head=wide.d_head, angles_of=angles_of, flops=FlopCount(), _angles={}
    )


def _angles_without_contents(
    angles_of: Callable[[int], tuple[tuple[Tensor, Tensor], ...]],
) -> Callable[[int], tuple[tuple[Tensor, Tensor], ...]]:
    def angles(length: int) -> tuple[tuple[Tensor, Tensor], ...]:
        return tuple((cos.to(NOWHERE), sin.to(NOWHERE)) for cos, sin in angles_of(length))

    return angles
