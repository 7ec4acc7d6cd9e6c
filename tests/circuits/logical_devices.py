"""Several devices on a machine that has one: tensors that name a device and are computed on the CPU, and may not meet others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from circuits.narrow_weights import Narrow

KIND = "lazy"  # a kind of device that this build of PyTorch knows and does not look for
CPU = torch.device("cpu")
TAKE_NUMBERS = {  # beside element-wise operations
    *(torch.ops.aten.index_put, torch.ops.aten.index_put_, torch.ops.aten._index_put_impl_),
    *(torch.ops.aten.index_fill, torch.ops.aten.index_fill_, torch.ops.aten.fill, torch.ops.aten.fill_),
    *(torch.ops.aten.masked_fill, torch.ops.aten.masked_fill_),
}
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class Elsewhere(Tensor):
    """A tensor in the CPU's memory that names another device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=device,
        )
        made.held = held
        return made

    def data_ptr(self) -> int:
        return self.held.data_ptr()  # accelerate recognises tied weights by it

    def tolist(self) -> Any:
        return self.held.tolist()

    def as_subclass(self, cls: Any) -> Any:
        """A tensor has one Python class, so that one that is narrow and elsewhere needs a class for both."""
        if cls is Narrow:
            return NarrowElsewhere(self.held, self.device)
        return Elsewhere(self.held, self.device) if isinstance(self, Narrow) else self

    def __repr__(self, **unused: Any) -> str:
        return f"{self.held!r} on {self.device}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        return computed(func, args, kwargs or {})


class NarrowElsewhere(Narrow, Elsewhere):
    """A matrix of weights in 16 bits that names another device and computes as if it were float32."""

    def __new__(cls, held: Tensor, device: torch.device) -> Any:
        return Elsewhere.__new__(cls, held, device)

    __torch_dispatch__ = Elsewhere.__dict__["__torch_dispatch__"]


class LogicalDevices(TorchDispatchMode):
    """Context in which tensors can be made on logical devices. `moves` counts the copies from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = 0

    def __enter__(self) -> Any:
        self._patch = pytest.MonkeyPatch()
        self._patch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # a mode acts in its own thread alone
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # numbers in a list become a tensor on the CPU, which is then moved
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        self._patch.undo()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        target = kwargs.get("device")
        if func is torch.ops.aten._to_copy.default and target is not None and torch.device(target) != args[0].device:
            self.moves += 1
        return computed(func, args, kwargs)


def computed(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of an operation on the CPU, on the device of its tensors.

    RuntimeError as on CUDA if they are on several, or if a CPU's generator draws for another device. A number on the CPU may meet
    any device in element-wise operations that do not write into it.
    """
    tensors: list[Tensor] = []
    tree_map_only(Tensor, tensors.append, (args, kwargs))
    takes_numbers = torch.Tag.pointwise in func.tags or func.overloadpacket in TAKE_NUMBERS
    into = args[0] if func._schema.is_mutable and args else None
    numbers = {id(one) for one in tensors if takes_numbers and one is not into and not one.ndim and one.device == CPU}
    where = {one.device for one in tensors if id(one) not in numbers}
    if len(where) > 1 and func not in COPIES:
        raise RuntimeError(f"{func} got tensors on {', '.join(sorted(map(str, where)))}")
    asked = kwargs.get("device")
    device = torch.device(asked) if asked is not None else next(iter(where), CPU)
    draws = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Generator)]
    if any(one.device != device for one in draws):
        raise RuntimeError(f"{func} got a generator of {draws[0].device} for tensors on {device}")
    inside = {**kwargs, **({} if asked is None else {"device": CPU})}
    own_args, own_kwargs = tree_map_only(Elsewhere, lambda one: one.held, (args, inside))
    found = func(*own_args, **own_kwargs)
    if func._schema.is_mutable:
        return kwargs.get("out", args[0])
    return tree_map_only(Tensor, lambda one: Elsewhere(one, device), found) if device.type == KIND else found
