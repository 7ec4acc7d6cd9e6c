"""Logit difference: the final norm and the answer-minus-foil direction of the unembedding, in one dot product.

    out[v, i] = (y . directions[i]) / sqrt(mean(y^2) + eps) + bias[i],        y = x[p, i] - mean(x[p, i]) if centred,
                                                                              y = x[p, i] otherwise,   p = parent[v]

U states, n prompts, M d_model, V variants; in nats. The norm is a layer norm if centred, otherwise an RMS norm (Zhang &
Sennrich 2019), both without gain and offset, which are folded into `directions` and `bias`. The computation is in fp32 whatever
the dtype of x, because a logit difference is a small difference of large sums.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from kernels import launch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

OPERATION = "logit_difference"
ARGUMENTS = "x directions bias parent eps centred".split()
LAYOUTS = {"x": "U n M", "directions": "n M", "bias": "n", "parent": "V"}
WIDEST = 65536  # components that one program holds in registers


def reference(
    x: Float[Tensor, "state prompt d_model"],
    directions: Float[Tensor, "prompt d_model"],
    bias: Float[Tensor, " prompt"],
    parent: Int[Tensor, " variant"],
    eps: float,
    centred: bool,
) -> Float[Tensor, "variant prompt"]:
    """The module's formula in torch, computed once per state; in float64 if x is, otherwise in float32.

    Raises ValueError on the CPU if a parent is out of range.
    """
    launch.require_indices(OPERATION, "parent", parent, 0, len(x))
    dtype = torch.promote_types(x.dtype, torch.float32)
    y = x.to(dtype)
    if centred:
        y = y - y.mean(-1, keepdim=True)
    dot = (y * directions.to(dtype)).sum(-1)
    return (dot / (y.square().mean(-1) + eps).sqrt() + bias.to(dtype))[parent]


def logit_difference(
    x: Float[Tensor, "state prompt d_model"],
    directions: Float[Tensor, "prompt d_model"],
    bias: Float[Tensor, " prompt"],
    parent: Int[Tensor, " variant"],
    eps: float,
    centred: bool,
) -> Float32[Tensor, "variant prompt"]:
    """The module's formula in one Triton kernel, in fp32; `directions` and `bias` may be fp32 beside a narrower x.

    Raises ValueError for shapes that do not fit, a d_model above WIDEST, a dtype other than float32, float16 and bfloat16, and,
    on the CPU, a parent out of range. On a GPU, where reading the values would stall the queue, the row of such a parent is NaN.
    """
    tensors = {"x": x, "directions": directions, "bias": bias, "parent": parent}
    sizes = launch.require_shapes(OPERATION, LAYOUTS, tensors)
    launch.require_launchable(OPERATION, {"x": x}, {"directions": directions, "bias": bias, "parent": parent})
    for name, tensor in (("directions", directions), ("bias", bias)):
        if tensor.dtype not in (x.dtype, torch.float32):
            raise ValueError(f"{OPERATION}: {name} is {tensor.dtype}; pass float32 or the dtype of x, {x.dtype}")
    launch.require_indices(OPERATION, "parent", parent, 0, sizes["U"])
    out = torch.empty(sizes["V"], sizes["n"], dtype=torch.float32, device=x.device)
    if out.numel():
        _launch(out, *(item.contiguous() for item in tensors.values()), eps=eps, centred=centred)
    return out


def calculate_settings(d_model: int) -> dict[str, int]:
    """Block size and warps: one block for a whole row, with about 32 components per thread above 1024.

    Raises ValueError above WIDEST.
    """
    if not 0 < d_model <= WIDEST:
        raise ValueError(f"{OPERATION}: d_model is {d_model}; use the reference outside 1..{WIDEST}")
    block = launch.tile(d_model, WIDEST)
    return {"BLOCK": block, "num_warps": min(32, max(4, block // 1024))}


def _launch(
    out: Tensor, x: Tensor, directions: Tensor, bias: Tensor, parent: Tensor, eps: float, centred: bool
) -> None:  # fmt: skip
    states, prompts, d_model = x.shape
    with torch.cuda.device_of(out):
        _kernel[(out.numel(),)](
            out, x, directions, bias, parent, eps, states, prompts,
            M=d_model, CENTRED=centred, **calculate_settings(d_model),
        )  # fmt: skip


if triton is not None:

    @launch.kernel
    def _kernel(
        out_ptr, x_ptr, directions_ptr, bias_ptr, parent_ptr, eps, n_states, n_prompts,
        M: tl.constexpr, CENTRED: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        """out[v, i] = (y . directions[i]) / sqrt(mean(y^2) + eps) + bias[i]; one program per (variant, prompt)."""
        program = tl.program_id(0)
        prompt = program % n_prompts
        parent = tl.load(parent_ptr + program // n_prompts).to(tl.int64)
        known = (parent >= 0) & (parent < n_states)
        columns = tl.arange(0, BLOCK)
        inside = columns < M
        here = columns < tl.where(known, M, 0)
        y = tl.load(x_ptr + (parent * n_prompts + prompt) * M + columns, mask=here, other=0.0).to(tl.float32)
        if CENTRED:
            y = tl.where(inside, y - tl.sum(y, 0) / M, 0.0)
        direction = tl.load(directions_ptr + prompt.to(tl.int64) * M + columns, mask=inside, other=0.0).to(tl.float32)
        # correctly rounded root and quotient; once per row they cost nothing
        scale = tl.sqrt_rn(tl.sum(y * y, 0) / M + eps)
        result = tl.div_rn(tl.sum(y * direction, 0), scale) + tl.load(bias_ptr + prompt).to(tl.float32)
        tl.store(out_ptr + program, tl.where(known, result, float("nan")))
