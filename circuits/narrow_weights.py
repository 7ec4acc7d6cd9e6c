"""float32 over 16 bits: weights are stored in 16 bits, and every computation with them is in float32.

A narrow matrix reports its dtype as float32, and is widened whenever something is computed from it. Only operations that move
or cut it (views, transposes, copies) keep it narrow. A product with a large matrix widens a block of rows at a time, and its
gradient widens them again, so that there is never a second copy of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional
from torch.overrides import get_default_nowrap_functions

KEPT = {
    "float32_over_bfloat16": torch.bfloat16,
    "float32_over_float16": torch.float16,
}  # {name: dtype of stored weights}
WIDENED = {"cpu": 2**22, "cuda": 2**26}  # matrix elements that a product widens at once: 16 and 256 MiB

MOVING = {  # operations that keep the numbers and their type
    *(
        "__deepcopy__",
        "chunk",
        "clone",
        "contiguous",
        "cpu",
        "cuda",
        "detach",
        "expand",
        "flatten",
        "index_select",
        "is_contiguous",
        "mT",
    ),
    *("movedim", "narrow", "permute", "reshape", "split", "squeeze", "swapaxes", "t", "T", "transpose", "unbind"),
    *("unflatten", "unsqueeze", "view", "data", "requires_grad_", "requires_grad", "grad", "grad_fn", "is_leaf"),
    *("device", "shape", "size", "dim", "ndim", "numel", "stride", "is_meta", "is_sparse", "is_cuda", "layout"),
    *("data_ptr", "untyped_storage", "storage_offset", "is_floating_point", "is_complex", "element_size", "nbytes"),
    *("__len__", "__hash__", "_is_view", "is_quantized", "is_mkldnn", "is_nested", "names", "_version", "retain_grad"),
    *(
        "register_hook",
        "_backward_hooks",
        "output_nr",
        "is_inference",
        "is_shared",
        "pin_memory",
        "is_pinned",
        "share_memory_",
    ),
}
MAKING = {"new_zeros", "new_ones", "new_empty", "new_full", "new_tensor"}


class Narrow(Tensor):
    """A matrix of weights in 16 bits, which computes as if it were float32."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, _name_of(func)
        with torch._C.DisableTorchFunctionSubclass():
            if name == "dtype":
                return torch.float32
            if func is functional.linear and isinstance(args[1], Narrow):
                return linear(*(plain(x) if isinstance(x, Tensor) else x for x in args), **kwargs)
            if func is functional.embedding:
                tokens, table, *rest = args
                return functional.embedding(tokens, plain(table), *rest, **kwargs).float()
            if name in MAKING:
                return func(plain(args[0]).new_empty(0, dtype=torch.float32), *args[1:], **kwargs)
            if name in MOVING or (name == "to" and _stays_narrow(args[1:], kwargs)) or _cuts(name, args):
                found = func(*args, **kwargs)
                return found if func in get_default_nowrap_functions() else _wrapped(found)
            if name == "cat" and all(isinstance(part, Narrow) for part in args[0]):
                return func(*args, **kwargs).as_subclass(Narrow)
            if name == "__getitem__":  # widen only the selected rows
                return func(plain(args[0]), *args[1:]).float()
            return func(*_widened(args), **{key: _widened(value) for key, value in kwargs.items()})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = narrow(plain(self).clone())
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied


def narrow(weights: Tensor) -> Narrow:
    """The same memory as a `Narrow`, which computes in float32."""
    return weights.as_subclass(Narrow)  # pyright: ignore[reportReturnType]


def plain(weights: Tensor) -> Tensor:
    """The tensor in its stored dtype, as an ordinary tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        return weights.as_subclass(Tensor) if isinstance(weights, Narrow) else weights


def wide(weights: Tensor) -> Tensor:
    """The tensor in float32 if it is narrow, for code that reads its memory, such as a kernel."""
    return plain(weights).float() if isinstance(weights, Narrow) else weights


@torch.no_grad()
def widen(module: torch.nn.Module) -> None:
    """Make a module compute in float32: matrices keep their stored dtype; vectors and buffers, which are small, are converted."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and weight.is_floating_point():
                value = narrow(weight.data) if weight.ndim > 1 else weight.data.float()
                part._parameters[name] = torch.nn.Parameter(value, weight.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                part._buffers[name] = buffer.float()
        scale: Any = part
        if "embed_scale" in part._buffers:  # Gemma's scale, which was rounded with the weights
            scale.embed_scale = torch.full_like(scale.embed_scale, scale.scalar_embed_scale)


@contextmanager
def widened(module: torch.nn.Module) -> Iterator[None]:
    """Context in which the module is widened by `widen`; restores parameters and buffers afterwards."""
    kept = [(part, dict(part._parameters), dict(part._buffers)) for part in module.modules()]
    widen(module)
    try:
        yield
    finally:
        for part, parameters, buffers in kept:
            part._parameters.update(parameters)
            part._buffers.update(buffers)


# --- products -----------------------------------------------------------------------------------------------------


def linear(
    x: Float[Tensor, "*row from"], weights: Float[Tensor, "to from"], bias: Float[Tensor, " to"] | None = None
) -> Float[Tensor, "*row to"]:
    """x W^T + b in float32 at least, with W stored in 16 bits."""
    if torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad):
        found = _Product.apply(x, weights)
        return found if bias is None else found + bias  # pyright: ignore[reportOperatorIssue]
    blocks = _blocks(weights)
    if len(blocks) == 1:
        return functional.linear(x, blocks[0].to(x.dtype), bias)
    found = torch.cat([functional.linear(x, rows.to(x.dtype)) for rows in blocks], -1)
    return found if bias is None else found + bias


class _Product(torch.autograd.Function):
    """x W^T; the backward pass widens W again. W gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        return torch.cat([functional.linear(x, rows.to(x.dtype)) for rows in _blocks(weights)], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,), (gradient,) = ctx.saved_tensors, gradients
        blocks = _blocks(weights)
        parts = gradient.split([len(rows) for rows in blocks], -1)
        pieces = (part @ rows.to(part.dtype) for part, rows in zip(parts, blocks, strict=True))
        total = next(pieces)
        for piece in pieces:
            total = total + piece
        return total, None


def _blocks(weights: Tensor) -> tuple[Tensor, ...]:
    return weights.split(max(1, widened_at_once(weights.device) // max(1, weights.shape[1])))


def widened_at_once(device: torch.device) -> int:
    """Number of matrix elements that a product widens at once."""
    return WIDENED.get(device.type, WIDENED["cuda"])


# --- what a function does -----------------------------------------------------------------------------------------


def _name_of(func: Callable[..., Any]) -> str:
    """The function's name; for a property's getter or setter, the name of the property."""
    name = getattr(func, "__name__", "")
    return getattr(getattr(func, "__self__", None), "__name__", name) if name in ("__get__", "__set__") else name


def _stays_narrow(args: tuple, kwargs: dict[str, Any]) -> bool:
    """True for a call of `to` with only a device."""
    given = (*args, *kwargs.values())
    return not any(isinstance(one, (torch.dtype, Tensor)) for one in given)


def _cuts(name: str, args: tuple) -> bool:
    """True for indexing by integers and slices, which gives a view."""
    if name != "__getitem__":
        return False
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return all(isinstance(one, (int, slice, type(None), type(Ellipsis))) for one in index)


def _wrapped(found: Any) -> Any:
    if isinstance(found, Tensor) and found.is_floating_point() and not isinstance(found, Narrow):
        return found.as_subclass(Narrow)
    return type(found)(map(_wrapped, found)) if isinstance(found, (tuple, list)) else found


def _widened(value: Any) -> Any:
    if isinstance(value, Narrow):
        return value.as_subclass(Tensor).float()
    if isinstance(value, (tuple, list)):
        return type(value)(map(_widened, value))
    return value
