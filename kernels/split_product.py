"""Split product: a linear map in float32 on tensor cores, with each operand in two TF32 parts.

    out[r, m] = sum_k x[r, k] weights[m, k] + bias[m]

R rows, K inputs, M outputs. With x = x1 + x2, both rounded to TF32's 10 bits, x1 w1 + x1 w2 + x2 w1 is summed in float32
("3xTF32", Ootomo & Yokota 2022). This keeps about 21 of float32's 24 bits and is not IEEE float32. So it is no candidate of
`choice`; code that uses it must check that the numbers agree, and record its use.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import launch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

OPERATION = "split_product"
LAYOUTS = {"x": "R K", "weights": "M K"}


def split_product(
    x: Float[Tensor, "*row from"], weights: Float[Tensor, "to from"], bias: Float[Tensor, " to"] | None = None
) -> Float[Tensor, "*row to"]:
    """`functional.linear` by the module's formula, in one Triton kernel.

    Raises ValueError for shapes that do not fit, a dtype other than float32, or if Triton cannot run.
    """
    rows = x.reshape(-1, x.shape[-1])
    values = {"x": rows, "weights": weights} | ({} if bias is None else {"bias": bias})
    launch.require_shapes(OPERATION, LAYOUTS | ({} if bias is None else {"bias": "M"}), values)
    launch.require_launchable(OPERATION, values)
    if x.dtype != torch.float32:
        raise ValueError(f"{OPERATION}: x is {x.dtype}; pass float32, the only dtype that is split")
    out = torch.empty(len(rows), len(weights), dtype=x.dtype, device=x.device)
    if out.numel():
        _launch(out, rows.contiguous(), weights.contiguous(), bias)
    return out.view(*x.shape[:-1], len(weights))


def calculate_settings(rows: int, outputs: int, name: str = launch.NEWEST) -> dict[str, int]:
    """Tile sizes and warps on architecture `name`, not tuned; before 9.0, operands of 128 x 128 would spill registers."""
    block, warps = (128, 8) if launch.family(name) == "sm_90" else (64, 4)
    return {
        "BLOCK_R": launch.tile(rows, block),
        "BLOCK_M": launch.tile(outputs, block),
        "BLOCK_K": 32,
        "num_warps": warps,
        "num_stages": 3,
    }


def _launch(out: Tensor, x: Tensor, weights: Tensor, bias: Tensor | None) -> None:
    (rows, inputs), outputs = x.shape, len(weights)
    settings = calculate_settings(rows, outputs, launch.part(x.device))
    assert triton is not None  # `require_launchable` has checked it
    row_blocks, output_blocks = triton.cdiv(rows, settings["BLOCK_R"]), triton.cdiv(outputs, settings["BLOCK_M"])
    with torch.cuda.device_of(out):
        _kernel[(row_blocks * output_blocks,)](
            out, x, weights, out if bias is None else bias.contiguous(), rows, output_blocks,
            K=inputs, M=outputs, HAS_BIAS=bias is not None, **settings,
        )  # fmt: skip


if triton is not None:

    @launch.kernel
    def _kernel(
        out_ptr, x_ptr, weights_ptr, bias_ptr, n_rows, output_blocks,
        K: tl.constexpr, M: tl.constexpr, HAS_BIAS: tl.constexpr,
        BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    ):  # fmt: skip
        """out[r, m] = sum_k x[r, k] weights[m, k] + bias[m]; one program takes BLOCK_R rows x BLOCK_M outputs."""
        program = tl.program_id(0)
        rows = (program // output_blocks).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
        columns = program % output_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
        total = tl.zeros([BLOCK_R, BLOCK_M], dtype=tl.float32)
        for first in range(0, K, BLOCK_K):
            inner = first + tl.arange(0, BLOCK_K)
            inside = (rows < n_rows)[:, None] & (inner < K)[None, :]
            x = tl.load(x_ptr + rows[:, None] * K + inner[None, :], mask=inside, other=0.0)
            inside = (columns < M)[:, None] & (inner < K)[None, :]
            w = tl.load(weights_ptr + columns[:, None] * K + inner[None, :], mask=inside, other=0.0)
            total = tl.dot(x, tl.trans(w), acc=total, input_precision="tf32x3")
        if HAS_BIAS:
            total += tl.load(bias_ptr + columns, mask=columns < M, other=0.0)[None, :]
        inside = (rows < n_rows)[:, None] & (columns < M)[None, :]
        tl.store(out_ptr + rows[:, None] * M + columns[None, :], total, mask=inside)
