"""GIM's backward pass: gradients that undo how softmax and norms hide the effect of an attention head (Edin et al. 2025).

If several inputs of a softmax work together, the gradient of each is near 0, because the others would compensate for it
(self-repair). A norm shrinks gradients in the same way. Gradient Interaction Modifications keep the forward pass and change
three things in the backward pass:

    softmax   dL/ds = p' * (dL/dp - <dL/dp, p'>),  p' = softmax(s / temperature)    in place of p = softmax(s)
    norms     (x - mean) / scale, the scale a constant
    q, k, v   dL/dq, dL/dk and dL/dv times a share each, so the joint effect of two or three factors is counted once

The factor 1 / temperature of the softmax's derivative is left out, as in the authors' code. A gradient under GIM is not the
derivative of any function, so sums of it have no exact counterpart; it serves only to rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from circuits.edges import PROJECTIONS
from circuits.engine.decoder import Decoder, Hook, precise, seen_through
from circuits.engine.lens import hooked_logits
from circuits.models import Model, UnsupportedArchitectureError

SCALE = "hook_scale"  # suffix of the name of a norm's scale in the bridge


@dataclass(frozen=True)
class BackwardPass:
    """GIM's settings: the softmax's temperature, and the shares of the gradients of queries, keys and values."""

    temperature: float = 2.0
    query: float = 0.25
    key: float = 0.25
    value: float = 0.5

    @property
    def shares(self) -> dict[str, float]:
        """{kind of projection ("q", "k" or "v"): share}."""
        return dict(zip(PROJECTIONS, (self.query, self.key, self.value), strict=True))

    def decoder(self, plain: Decoder) -> ModifiedDecoder:
        """The same decoder with this backward pass."""
        return ModifiedDecoder(**{one.name: getattr(plain, one.name) for one in fields(plain)}, backward=self)


class _Softmax(torch.autograd.Function):
    """Returns `pattern`, the softmax of `scores` over the last axis; the backward pass divides scores by the temperature."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, pattern: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(scores)
        ctx.temperature = temperature
        return pattern.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (scores,), (gradient,) = ctx.saved_tensors, gradients
        smooth = (scores / ctx.temperature).softmax(-1).nan_to_num()  # a fully masked row has no gradient
        gradient = gradient.to(smooth.dtype)
        return smooth * (gradient - (gradient * smooth).sum(-1, keepdim=True)), None, None


def softmax(scores: Float[Tensor, "*at position"], temperature: float) -> Float[Tensor, "*at position"]:
    """Softmax over the last axis with the backward pass of GIM."""
    return _Softmax.apply(scores, scores.detach().softmax(-1), temperature)  # pyright: ignore[reportReturnType]


def with_share(value: Tensor, share: float) -> Tensor:
    """The same values; the gradient is multiplied by `share`."""
    if not value.requires_grad:
        return value
    passed = value.view_as(value)
    passed.register_hook(lambda gradient: share * gradient)
    return passed


@dataclass(frozen=True, eq=False)
class ModifiedDecoder(Decoder):
    """A decoder whose norms and attention have GIM's backward pass."""

    backward: BackwardPass = BackwardPass()

    def norm(self, stream: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """As `Decoder.norm`; its scale is a constant in the backward pass."""
        centred = stream - stream.mean(-1, keepdim=True) if self.centred else stream
        return centred * torch.rsqrt(centred.detach().pow(2).mean(-1, keepdim=True) + self.eps)

    def scaled_norm(self, x: Float[Tensor, "... d"], gain: Float[Tensor, " d"] | None) -> Float[Tensor, "... d"]:
        """As `Decoder.scaled_norm`; its scale is a constant in the backward pass."""
        if gain is None:
            return x
        values = precise(x)
        return (values * torch.rsqrt(values.detach().pow(2).mean(-1, keepdim=True) + self.eps) * gain).to(x.dtype)

    def attend(
        self,
        q: Float[Tensor, "row query head d_head"],
        k: Float[Tensor, "row position group d_head"],
        v: Float[Tensor, "row position group d_head"],
        mask: Bool[Tensor, "row 1 1 position"] | None = None,
        window: int | None = None,
    ) -> Float[Tensor, "row query head d_head"]:
        """As `Decoder.attend`."""
        shares, repeats = self.backward.shares, q.shape[2] // k.shape[2]
        q, k, v = (with_share(x, shares[kind]).transpose(1, 2) for kind, x in zip(PROJECTIONS, (q, k, v), strict=True))
        k, v = (x.repeat_interleave(repeats, 1) for x in (k, v))
        self.flops.add(4 * q[:, :, 0].numel() * k.shape[2] ** (2 if mask is None else 1))
        if mask is None:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        if window is not None:
            mask = seen_through(mask, window)
        scores = self.bounded(self.scale * q @ k.mT).masked_fill(~mask, -torch.inf)
        return (softmax(scores, self.backward.temperature) @ v).transpose(1, 2)


class ModelHooks:
    """GIM's backward pass on a model's own modules. An instance serves one forward pass; call `check` after it."""

    def __init__(self, backward: BackwardPass, model: Model) -> None:
        self.backward, self.model = backward, model
        self._scores: dict[int, Tensor] = {}
        self._called: set[str] = set()

    def hooks(self) -> list[Hook]:
        """Hooks to attach after all others, so that the others see the gradients of activations that GIM leaves unchanged."""
        names = self.model.bridge.hook_dict
        found: list[Hook] = [(name, partial(self._constant, name=name)) for name in names if name.endswith(SCALE)]
        for layer in range(self.model.n_layers):
            block = f"blocks.{layer}.attn"
            for kind, share in self.backward.shares.items():
                name = f"{block}.hook_{kind}"
                found.append((name, partial(self._share, share=share, name=name)))
            found.append((f"{block}.hook_attn_scores", partial(self._keep, layer=layer)))
            found.append((f"{block}.hook_pattern", partial(self._cooler, layer=layer, name=f"{block}.hook_pattern")))
        return found

    def check(self) -> None:
        """Raises UnsupportedArchitectureError if the model did not call one of the hooks."""
        expected = {name for name, _ in self.hooks() if not name.endswith("hook_attn_scores")}
        if unseen := sorted(expected - self._called):
            raise UnsupportedArchitectureError(
                f"model {self.model.name} never called {unseen[0]}, so GIM's backward pass cannot be put in; use "
                "method=AtP or NAP-IG"
            )

    def _constant(self, scale: Tensor, hook: object, name: str) -> Tensor:
        self._called.add(name)
        return scale.detach()

    def _share(self, value: Tensor, hook: object, share: float, name: str) -> Tensor:
        self._called.add(name)
        return with_share(value, share)

    def _keep(self, scores: Tensor, hook: object, layer: int) -> None:
        self._scores[layer] = scores

    def _cooler(self, pattern: Tensor, hook: object, layer: int, name: str) -> Tensor:
        """The pattern, with GIM's gradient to its scores. Raises UnsupportedArchitectureError if it is not their softmax."""
        scores = self._scores.pop(layer, None)
        expected = None if scores is None else scores.detach().to(pattern.dtype).softmax(-1).nan_to_num()
        tolerance = torch.finfo(pattern.dtype).eps ** 0.5
        if scores is None or expected is None or not torch.allclose(expected, pattern, rtol=0, atol=tolerance):
            raise UnsupportedArchitectureError(
                f"the attention pattern of layer {layer} in model {self.model.name} is not the softmax of its scores, so "
                "GIM's backward pass is not defined; use method=AtP or NAP-IG"
            )
        self._called.add(name)
        return _Softmax.apply(scores, pattern.detach(), self.backward.temperature)  # pyright: ignore[reportReturnType]


def modified_logits(
    backward: BackwardPass,
    model: Model,
    tokens: Int[Tensor, "row position"],
    end: Int[Tensor, " row"],
    hooks: Sequence[Hook],
) -> Float[Tensor, "row vocabulary"]:
    """As `hooked_logits`, with GIM's backward pass. Raises UnsupportedArchitectureError if the model does not allow it."""
    modified = ModelHooks(backward, model)
    with as_norms_are_written():
        logits = hooked_logits(model, tokens, end, [*hooks, *modified.hooks()])
    modified.check()
    return logits


@contextmanager
def as_norms_are_written() -> Iterator[None]:
    """Silences the warning that a norm with a hooked scale is computed from its formula, as GIM intends."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A forward hook edited hook_scale")
        yield


def frozen_norm(model: Model, layer: int) -> Callable[[Tensor], Tensor]:
    """The norm in front of a layer's queries, keys and values; its scale is a constant in the backward pass."""
    module = model.bridge.blocks[layer].ln1

    def norm(stream: Tensor) -> Tensor:
        module.hook_scale.add_hook(lambda scale, hook: scale.detach())
        try:
            with as_norms_are_written():
                return module(stream)
        finally:
            module.hook_scale.remove_hooks()

    return norm


def of_settings(settings: Mapping[str, float]) -> BackwardPass:
    """The backward pass that `measurement.discovery.gim` sets."""
    return BackwardPass(**{one.name: float(settings[one.name]) for one in fields(BackwardPass)})
