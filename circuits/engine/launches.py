"""Launches: counts the operations of a sweep on a device and predicts how long a GPU would take for them.

A launch is an operation that computes or copies on the device. A sync makes the host wait for the device: reading a number or a
tensor back, `nonzero`, or a copy from memory that is not pinned (not `non_blocking`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from kernels import choice, launch, roofline
from kernels.roofline import Device, KernelWork

NOWHERE = torch.device("meta")
READ_BACK = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal"}  # a number or a size
MEMORY_ONLY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "_unsafe_view"}
GATHERS = {"index", "index_select", "gather", "embedding"}  # operations that read as much as they write
SCATTERS = {"index_copy_", "index_add_", "index_put_", "_index_put_impl_", "scatter_", "copy_"}


@dataclass(frozen=True)
class DeviceWork:
    """Work of a device: its launches by (floating-point operations, bytes), and how often the host waits for it."""

    calls: Mapping[KernelWork, int | float] = field(default_factory=dict)
    syncs: int | float = 0

    def __add__(self, other: DeviceWork) -> DeviceWork:
        works = {**self.calls, **other.calls}
        calls = {work: self.calls.get(work, 0) + other.calls.get(work, 0) for work in works}
        return DeviceWork(calls, self.syncs + other.syncs)

    def __sub__(self, earlier: DeviceWork) -> DeviceWork:
        return self + earlier.times(-1)

    def times(self, factor: int | float) -> DeviceWork:
        """The work repeated `factor` times, for a job that many times as large as the counted one."""
        return DeviceWork({work: factor * count for work, count in self.calls.items()}, factor * self.syncs)

    @property
    def launches(self) -> int | float:
        return sum(self.calls.values())

    @property
    def flops(self) -> int | float:
        return sum(count * work.flops for work, count in self.calls.items())

    @property
    def bytes(self) -> int | float:
        return sum(count * work.bytes for work, count in self.calls.items())

    def roofline(self, device: Device, share: float = 1.0) -> float:
        """Seconds if only arithmetic and memory traffic took time and products reached `share` of the peak."""
        peak = share * device.flops_per_second
        return float(sum(count * work.seconds(peak, device.bytes_per_second) for work, count in self.calls.items()))

    def parts(self, device: Device) -> dict[str, float]:
        """Seconds by purpose. Their sum is the prediction, which assumes no overlap."""
        return {
            "math": self.roofline(device, device.gemm_share),
            "launches": self.launches * device.launch_seconds,
            "syncs": self.syncs * device.sync_seconds,
        }


class LaunchCount(TorchDispatchMode):
    """Counts the work of a device while it is active: that of all operations on tensors of `kind`, "meta" or "cpu".

    On the CPU the host's own operations count too, because they cannot be told apart.
    """

    def __init__(self, kind: str = NOWHERE.type) -> None:
        super().__init__()
        self.kind = kind
        self._calls: Counter[KernelWork] = Counter()
        self._syncs = 0
        self._paused = False
        self._attention = _OneAttention(self)

    def __enter__(self) -> LaunchCount:
        self._attention.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._attention.__exit__(*error)

    @property
    def work(self) -> DeviceWork:
        """The work counted so far."""
        return DeviceWork(dict(self._calls), self._syncs)

    def launch(self, work: KernelWork) -> None:
        if not self._paused:
            self._calls[work] += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, inputs = func.overloadpacket.__name__, self._of_device((args, kwargs))
        if self._paused or not (inputs or self._makes_one(kwargs)):
            return func(*args, **kwargs)
        if name == "_to_copy" and kwargs.get("device") is not None:
            return self._copied(func, args, kwargs, bool(inputs))
        if name in READ_BACK:
            self._syncs += 1
        if name == "_local_scalar_dense" and self.kind == NOWHERE.type:
            return 0
        out = func(*args, **kwargs)
        if not (func.is_view or name in MEMORY_ONLY or name == "_local_scalar_dense"):
            self.launch(KernelWork(_flops(func, args, kwargs, out), _bytes(name, inputs, self._of_device(out))))
        return out

    def _copied(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], from_device: bool) -> Any:
        """A copy to or from the device; it makes the host wait unless it comes from pinned memory."""
        source, device = args[0], torch.device(kwargs["device"])
        self.launch(KernelWork(0, _size(source)))
        if from_device and device.type != self.kind:
            self._syncs += 1
            return torch.zeros(source.shape, dtype=kwargs.get("dtype") or source.dtype, device=device)
        if not from_device and not kwargs.get("non_blocking", False):
            self._syncs += 1
        return func(*args, **kwargs)

    def _of_device(self, values: Any) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and leaf.device.type == self.kind]

    def _makes_one(self, kwargs: Mapping[str, Any]) -> bool:
        return kwargs.get("device") is not None and torch.device(kwargs["device"]).type == self.kind


class _OneAttention(TorchFunctionMode):
    """Counts torch's attention as one kernel, as on CUDA; the meta device would split it into products and sums."""

    def __init__(self, count: LaunchCount) -> None:
        super().__init__()
        self.count = count

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention or args[0].device.type != self.count.kind:
            return func(*args, **kwargs)
        query, key, value = args[:3]
        flops = 4 * query.numel() * key.shape[-2]  # masked scores count too, as in torch's FLOP registry
        self.count.launch(KernelWork(flops, 2 * _size(query) + _size(key) + _size(value)))
        with self.count.paused():
            return func(*args, **kwargs)


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Floating-point operations of matrix products and attention, the only ones that count against the peak."""
    formula = flop_registry.get(func.overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


def _bytes(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Bytes if every input is read once and every output written once; gathers and scatters count only what they move."""
    if name in GATHERS:
        return 2 * sum(map(_size, outputs))
    if name in SCATTERS:
        return 2 * sum(map(_size, inputs[1:]))
    return sum(map(_size, inputs)) + sum(map(_size, outputs))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


# --- kernels ------------------------------------------------------------------------------------------------------


def operations(count: LaunchCount, device: torch.device | str) -> choice.Operations:
    """The batched operations, counted as their Triton launchers would: one kernel each, and a copy of every strided input.

    On the meta device they return tensors of the right shape, elsewhere the reference's results.
    """
    candidates = {name: {choice.REFERENCE: _counted(module, count)} for name, module in choice.MODULES.items()}
    return choice.Operations(device, choice.REFERENCE, candidates)


def _counted(module: ModuleType, count: LaunchCount) -> Callable[..., Tensor]:
    axes = {
        "select_project": "CRM",
        "suffix_attention": "UnSHD",
        "packed_attention": "BSHD",
        "logit_difference": "Vn",
    }[module.OPERATION]

    def call(*arguments: Any) -> Tensor:
        named = dict(zip(module.ARGUMENTS, arguments, strict=True))
        sizes = launch.require_shapes(module.OPERATION, module.LAYOUTS, {name: named[name] for name in module.LAYOUTS})
        for tensor in arguments:
            if isinstance(tensor, Tensor) and not tensor.is_contiguous():
                count.launch(KernelWork(0, 2 * _size(tensor)))
        count.launch(_work(module.OPERATION, sizes, named, arguments[0].element_size()))
        with count.paused():
            if arguments[0].device.type != NOWHERE.type:
                return module.reference(*arguments)
            shape, dtype = [sizes[axis] for axis in axes], arguments[0].dtype
            if module.OPERATION == "logit_difference":
                dtype = torch.promote_types(dtype, torch.float32)
            return arguments[0].new_empty(shape, dtype=dtype)

    return call


def _work(operation: str, sizes: Mapping[str, int], named: Mapping[str, Any], itemsize: int) -> KernelWork:
    extra = {"bias": named["bias"] is not None} if operation == "select_project" else {}
    extra |= {"centred": named["centred"]} if operation == "logit_difference" else {}
    return getattr(roofline, operation)(**sizes, itemsize=itemsize, **extra)
