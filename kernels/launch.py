"""Launch requirements: what every Triton launcher here requires of its tensors, and how it picks a tile.

The kernels load fp16 and bf16 and accumulate in fp32. fp32 is IEEE fp32: every `tl.dot` says `input_precision="ieee"`,
because Triton's default on NVIDIA rounds fp32 operands to TF32.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    import triton
except ImportError:  # no Triton on this platform, so only the references run
    triton = None

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SMALLEST_TILE = 16  # shortest side that tl.dot accepts
LARGEST_HEAD = 256  # with wider heads a tile of queries, keys and sums would not fit into registers
NEWEST = "sm_90"  # the GPU architecture that settings assume without a device
# (queries, keys, warps) of an attention tile by architecture, kind of number and widest head. They spill no registers, see
# tests/kernels/test_compiled_kernels.py. fp32 does not use tensor cores, so a thread holds its operands itself
ATTENTION_TILES: dict[str, dict[str, dict[int, tuple[int, int, int]]]] = {
    "sm_80": {
        "fp32": {32: (64, 32, 8), 96: (64, 16, 16), 128: (64, 16, 8), 256: (32, 16, 16)},
        "half": {64: (64, 32, 4), 128: (64, 32, 8), 256: (32, 16, 8)},
    },
    "sm_90": {
        "fp32": {64: (64, 32, 8), 128: (64, 16, 8), 256: (32, 16, 8)},
        "half": {64: (64, 64, 4), 128: (64, 64, 8), 256: (64, 16, 8)},
    },
    "gfx942": {
        "fp32": {128: (64, 32, 8), 256: (32, 16, 8)},
        "half": {64: (64, 64, 4), 128: (64, 64, 8), 256: (64, 32, 8)},
    },
}


def kernel(function: Callable[..., None]) -> Any:
    """`triton.jit` of a kernel that is compiled once for all counts.

    By default Triton recompiles, which takes seconds, when an integer argument is 1, or changes between multiples of 16 and
    other numbers. So only pointers (`*_ptr`) are specialised, and what loads need to know is a `tl.constexpr`.
    """
    parameters = inspect.signature(function).parameters.values()
    counts = [p.name for p in parameters if not p.name.endswith("_ptr") and "constexpr" not in str(p.annotation)]
    assert triton is not None  # kernels are defined only if Triton is installed
    return triton.jit(do_not_specialize=counts)(function)


def require_shapes(operation: str, layouts: dict[str, str], tensors: dict[str, Tensor]) -> dict[str, int]:
    """The length of every axis, {axis: length}; `layouts` names the axes of each tensor, as in {"z": "U R H D"}.

    Raises ValueError if a tensor has another number of axes, or if an axis has different lengths in two tensors.
    """
    sizes: dict[str, int] = {}
    first: dict[str, str] = {}
    for name, layout in layouts.items():
        axes, shape = layout.split(), list(tensors[name].shape)
        if len(axes) != len(shape):
            raise ValueError(f"{operation}: {name} has shape {shape}; pass a tensor with the axes [{layout}]")
        for axis, length in zip(axes, shape, strict=True):
            if sizes.setdefault(axis, length) != length:
                raise ValueError(
                    f"{operation}: {name} {shape} has {axis} = {length}, but {first[axis]} has {axis} = {sizes[axis]}; "
                    f"{axis} must agree, with {name} laid out as [{layout}]"
                )
            first.setdefault(axis, name)
    return sizes


def require_heads(operation: str, heads: int, groups: int, d_head: int) -> None:
    """Raises ValueError unless the key/value heads divide the query heads and fit the tiles of an attention kernel."""
    if groups == 0 or heads % groups:
        raise ValueError(f"{operation}: {heads} query heads cannot share {groups} key/value heads; pass a divisor")
    if d_head > LARGEST_HEAD:
        raise ValueError(f"{operation}: heads are {d_head} wide; use the reference above {LARGEST_HEAD}")


def require_launchable(operation: str, values: dict[str, Tensor], others: dict[str, Tensor] | None = None) -> None:
    """Raises ValueError unless Triton can take these tensors: `values` of one floating dtype, all on one device.

    On a CPU this needs Triton's interpreter (TRITON_INTERPRET=1 before the first import).
    """
    if triton is None:
        raise ValueError(f"{operation}: Triton is not installed on this platform; use the reference implementation")
    (first, example), *rest = values.items()
    if example.dtype not in DTYPES:
        raise ValueError(f"{operation}: {first} is {example.dtype} and the kernel takes float32, float16 and bfloat16; "
                         "use the reference implementation")  # fmt: skip
    for name, tensor in rest:
        if tensor.dtype != example.dtype:
            raise ValueError(
                f"{operation}: {name} is {tensor.dtype} and {first} {example.dtype}; cast them to one dtype"
            )
    for name, tensor in {**values, **(others or {})}.items():
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{operation}: {name} requires a gradient and the kernel has none; call it under torch.no_grad()"
            )
        if tensor.device != example.device:
            raise ValueError(
                f"{operation}: {name} is on {tensor.device} and {first} on {example.device}; move it there"
            )
    if example.device.type != "cuda" and not interpreted():
        raise ValueError(f"{operation}: the tensors are on {example.device} and Triton needs a CUDA device; "
                         "use the reference implementation, or set TRITON_INTERPRET=1")  # fmt: skip


def require_indices(operation: str, name: str, index: Tensor, lowest: int | None, stop: int) -> None:
    """Raises ValueError unless `index` holds whole numbers and, on the CPU, all of them are in [lowest, stop).

    On a GPU the values are not checked: reading them would wait for the queue, and torch.compile would break its graph here.
    """
    if index.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{operation}: {name} is {index.dtype}; pass int32 or int64")
    if torch.compiler.is_compiling() or index.device.type == "cuda" or not index.numel():
        return
    if int(index.max()) >= stop or (lowest is not None and int(index.min()) < lowest):
        found = int(index.max()) if int(index.max()) >= stop else int(index.min())
        raise ValueError(f"{operation}: {name} holds {found} and there are {stop} to name; pass numbers below {stop}"
                         + ("" if lowest is None else f" and from {lowest}"))  # fmt: skip


def interpreted() -> bool:
    """True if Triton interprets kernels on the CPU instead of compiling them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def upcast(dtype: torch.dtype) -> bool:
    """True if operands are converted to fp32 before a product; otherwise the interpreter multiplies bf16 bit patterns."""
    return dtype == torch.float32 or interpreted()


def tile(length: int, largest: int) -> int:
    """The smallest power of two not below `length`, clipped to [SMALLEST_TILE, `largest`]."""
    return min(largest, max(SMALLEST_TILE, 1 << (length - 1).bit_length() if length > 1 else 1))


def least_padding(length: int, largest: int) -> int:
    """The power of two from SMALLEST_TILE to `largest` whose multiples overshoot `length` least; the largest of equals.

    For example, 80 components take five blocks of 16, not one of 128.
    """
    sizes = [size for size in (128, 64, 32, 16) if SMALLEST_TILE <= size <= largest]
    return min(sizes, key=lambda size: (-(-length // size) * size, -size))


def two_parts(length: int) -> tuple[int, int]:
    """Two powers of two from SMALLEST_TILE whose sum exceeds `length` least, the larger first; (power, 0) if one is as good.

    For example, 80 components are split into 64 and 16, 96 into 64 and 32, and 112 take one block of 128.
    """
    whole = tile(length, LARGEST_HEAD)
    half = whole // 2
    rest = tile(length - half, LARGEST_HEAD)
    return (half, rest) if half > rest else (whole, 0)


def part(device: torch.device) -> str:
    """The device's architecture as compilers name it: "sm_80" (compute capability 8.0) or "gfx942"; NEWEST without a GPU."""
    if device.type != "cuda":
        return NEWEST
    properties = torch.cuda.get_device_properties(device)
    name = getattr(properties, "gcnArchName", "")
    return name.partition(":")[0] if torch.version.hip and name else f"sm_{properties.major}{properties.minor}"


def family(name: str) -> str:
    """The architecture in ATTENTION_TILES whose tiles `name` uses: its own, or the nearest older one of its maker."""
    if name in ATTENTION_TILES or not name.startswith("sm_"):
        return name if name in ATTENTION_TILES else "gfx942"
    return "sm_90" if 90 <= int(name.removeprefix("sm_")) < 120 else "sm_80"  # 12.x has as little shared memory as 8.6


def attention_settings(queries: int, keys: int, d_head: int, dtype: torch.dtype, name: str = NEWEST) -> dict[str, int]:
    """Tile sizes and warps of an attention kernel for `queries` rows that see up to `keys` keys at once, on architecture `name`.

    They come from ATTENTION_TILES and are not tuned for speed: at four of the pocket's shapes on an H100, packed attention took
    0.73 to 2.1 times as long as the reference, with results within 1e-5 of its largest entry.
    """
    kind = "fp32" if dtype == torch.float32 else "half"
    tiles = ATTENTION_TILES[family(name)][kind]
    block_q, block_k, warps = next(tiles[widest] for widest in sorted(tiles) if d_head <= widest)
    block_d, block_rest = two_parts(d_head)
    return {
        "BLOCK_Q": tile(queries, block_q),
        "BLOCK_K": tile(keys, block_k),
        "BLOCK_D": block_d,
        "BLOCK_REST": block_rest,
        "num_warps": warps,
        "num_stages": 2,
    }


def packing(queries: int, block: int) -> tuple[int, int]:
    """(pairs per tile, tiles per pair) for pairs of `queries` rows and tiles of `block`: one of the two is 1."""
    return max(1, block // queries), max(1, -(-queries // block))
