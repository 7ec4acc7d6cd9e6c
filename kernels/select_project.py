"""Select: each variant's heads come from its parent state or from a replacement; then project and add the residual.

    out[c, r] = residual[p, r] + bias + sum_h x[c, r, h] @ weight[h],        p = parent[c],
    x[c, r, h] = z[p, r, h] if pick[c, h] < 0 else sources[pick[c, h], r, h]

U parent states, C child states (variants), R rows (prompts x positions), H heads, D head width, M d_model, K sources.
A head's output z is the mean of values under its attention pattern, before W_O (Elhage et al. 2021).
"""

from __future__ import annotations

from itertools import groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kernels import launch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

OPERATION = "select_project"
ARGUMENTS = "z sources pick parent weight bias residual".split()
LAYOUTS = {
    "z": "U R H D",
    "sources": "K R H D",
    "pick": "C H",
    "parent": "C",
    "weight": "H D M",
    "residual": "U R M",
}


def reference(
    z: Float[Tensor, "parents rows head d_head"],
    sources: Float[Tensor, "sources rows head d_head"],
    pick: Int[Tensor, "children head"],
    parent: Int[Tensor, " children"],
    weight: Float[Tensor, "head d_head d_model"],
    bias: Float[Tensor, " d_model"] | None,
    residual: Float[Tensor, "parents rows d_model"],
) -> Float[Tensor, "children rows d_model"]:
    """The module's formula in torch: gather, one matrix product over all heads, add. Any floating dtype.

    Raises ValueError on the CPU if a parent or pick is out of range.
    """
    launch.require_indices(OPERATION, "pick", pick, None, len(sources))
    launch.require_indices(OPERATION, "parent", parent, 0, len(z))
    if not len(sources):  # without sources, a wrong pick would go unnoticed on a GPU
        selected = z[parent].masked_fill((pick >= 0)[:, None, :, None], float("nan"))
    elif z.device.type == "cpu" and not torch.compiler.is_compiling():
        selected = _selected_by_copies(z, sources, pick, parent)
    else:  # one gather from all states, because `nonzero` would wait for a GPU and break the graph of torch.compile
        states = torch.cat((z, sources))
        place = torch.where(pick < 0, parent[:, None], pick + len(z))
        rows, heads = (torch.arange(size, device=z.device) for size in z.shape[1:3])
        selected = states[place[:, None, :], rows[:, None], heads]
    flat, matrix = selected.reshape(-1, weight.shape[0] * weight.shape[1]), weight.flatten(0, 1)
    projected = flat @ matrix if bias is None else torch.addmm(bias, flat, matrix)
    return residual[parent] + projected.view(len(parent), z.shape[1], weight.shape[2])


def _selected_by_copies(
    z: Float[Tensor, "parents rows head d_head"],
    sources: Float[Tensor, "sources rows head d_head"],
    pick: Int[Tensor, "children head"],
    parent: Int[Tensor, " children"],
) -> Float[Tensor, "children rows head d_head"]:
    """x of the module's formula: copies each parent's heads, then neighbouring heads of one source together.

    On a CPU, gathering head by head would take three to ten times as long.
    """
    selected = z.index_select(0, parent)
    for child, row in enumerate(pick.tolist()):
        start = 0
        for source, same in groupby(row):
            stop = start + len(list(same))
            if source >= 0:
                selected[child, :, start:stop] = sources[source, :, start:stop]
            start = stop
    return selected


def select_project(
    z: Float[Tensor, "parents rows head d_head"],
    sources: Float[Tensor, "sources rows head d_head"],
    pick: Int[Tensor, "children head"],
    parent: Int[Tensor, " children"],
    weight: Float[Tensor, "head d_head d_model"],
    bias: Float[Tensor, " d_model"] | None,
    residual: Float[Tensor, "parents rows d_model"],
) -> Float[Tensor, "children rows d_model"]:
    """The module's formula in one Triton kernel, without storing the selected heads or the gathered residual.

    Accumulates in fp32 and rounds once. Raises ValueError for shapes that do not fit, a dtype other than float32, float16 and
    bfloat16, and, on the CPU, a parent or pick out of range. On a GPU, where reading the values would stall the queue, the rows
    of such a child are NaN.
    """
    tensors = {"z": z, "sources": sources, "pick": pick, "parent": parent, "weight": weight, "residual": residual}
    sizes = launch.require_shapes(OPERATION, LAYOUTS, tensors)
    values = {"z": z, "sources": sources, "weight": weight, "residual": residual}
    if bias is not None:
        launch.require_shapes(OPERATION, {"weight": "H D M", "bias": "M"}, {"weight": weight, "bias": bias})
        values["bias"] = bias
    launch.require_launchable(OPERATION, values, {"pick": pick, "parent": parent})
    launch.require_indices(OPERATION, "pick", pick, None, sizes["K"])
    launch.require_indices(OPERATION, "parent", parent, 0, sizes["U"])
    out = torch.empty(sizes["C"], sizes["R"], sizes["M"], dtype=z.dtype, device=z.device)
    if out.numel():
        _launch(
            out,
            *(item.contiguous() for item in (z, sources, pick, parent, weight)),
            bias=bias,
            residual=residual.contiguous(),
        )
    return out


def calculate_settings(rows: int, d_head: int, d_model: int, dtype: torch.dtype) -> dict[str, int]:
    """Tile sizes and warps; fp32 multiplies without tensor cores, for which larger tiles would only cost registers.

    They are not tuned. At seven of the pocket's shapes on an H100, the kernel took 0.21 to 0.75 of the reference's time, with
    results within 1e-5 of its largest entry.
    """
    block, width, warps = (64, 32, 4) if dtype == torch.float32 else (128, 64, 8)
    block_d = launch.least_padding(d_head, width)
    return {
        "PARTS": -(-d_head // block_d),
        "BLOCK_R": launch.tile(rows, block),
        "BLOCK_D": block_d,
        "BLOCK_M": launch.tile(d_model, block),
        "num_warps": warps,
        "num_stages": 3,
    }


def _launch(
    out: Tensor, z: Tensor, sources: Tensor, pick: Tensor, parent: Tensor, weight: Tensor, bias: Tensor | None,
    residual: Tensor,
) -> None:  # fmt: skip
    children, rows, d_model = out.shape
    parents, _, heads, d_head = z.shape
    settings = calculate_settings(rows, d_head, d_model, z.dtype)
    assert triton is not None  # `require_launchable` has checked it
    row_blocks, model_blocks = triton.cdiv(rows, settings["BLOCK_R"]), triton.cdiv(d_model, settings["BLOCK_M"])
    with torch.cuda.device_of(out):
        _kernel[(children * row_blocks * model_blocks,)](
            out, z, sources, pick, parent, weight, out if bias is None else bias.contiguous(), residual,
            parents, len(sources), rows, heads, row_blocks, model_blocks,
            D=d_head, M=d_model, HAS_BIAS=bias is not None, UPCAST=launch.upcast(z.dtype), **settings,
        )  # fmt: skip


if triton is not None:

    @launch.kernel
    def _kernel(
        out_ptr, z_ptr, sources_ptr, pick_ptr, parent_ptr, weight_ptr, bias_ptr, residual_ptr,
        n_parents, n_sources, n_rows, n_heads, row_blocks, model_blocks,
        D: tl.constexpr, M: tl.constexpr, HAS_BIAS: tl.constexpr, UPCAST: tl.constexpr,
        PARTS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    ):  # fmt: skip
        """out[c, r, m] = residual[p, r, m] + bias[m] + sum_h,d x[c, r, h, d] weight[h, d, m].

        One program takes BLOCK_R rows x BLOCK_M columns of one child. Neighbouring programs share the rows and find z in the
        cache.
        """
        program = tl.program_id(0)
        child = (program // (row_blocks * model_blocks)).to(tl.int64)
        rows = (program // model_blocks) % row_blocks * BLOCK_R + tl.arange(0, BLOCK_R)
        columns = program % model_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
        column_mask = columns < M
        parent = tl.load(parent_ptr + child).to(tl.int64)
        parent_rows = tl.where((parent >= 0) & (parent < n_parents), n_rows, 0)  # an unknown state has no rows to read
        total = tl.zeros([BLOCK_R, BLOCK_M], dtype=tl.float32)
        pick = tl.load(pick_ptr + child * n_heads).to(tl.int64)  # one step ahead of its use: an address that waits
        highest = pick  # for a load of the same step could not be fetched ahead
        # one loop over blocks of all heads, so that the next blocks are loaded during a product
        for step in range(n_heads * PARTS):
            head = step // PARTS
            width = (step - head * PARTS) * BLOCK_D + tl.arange(0, BLOCK_D)
            highest = tl.maximum(highest, pick)
            from_ptr = tl.where(pick < 0, z_ptr, sources_ptr)
            state = tl.where(pick < 0, parent, pick)  # offsets are 64-bit: parents x rows x d_model can pass 2^31
            known_rows = tl.where(pick < n_sources, parent_rows, 0)
            start = (state * n_rows + rows) * n_heads * D + head * D
            inside = (rows < known_rows)[:, None] & (width < D)[None, :]
            x = tl.load(from_ptr + start[:, None] + width[None, :], mask=inside, other=0.0)
            w_offsets = (head * D + width)[:, None] * M + columns[None, :]
            w = tl.load(weight_ptr + w_offsets, mask=(width < D)[:, None] & column_mask[None, :], other=0.0)
            if UPCAST:
                x, w = x.to(tl.float32), w.to(tl.float32)
            total = tl.dot(x, w, acc=total, input_precision="ieee")
            pick = tl.load(pick_ptr + child * n_heads + tl.minimum((step + 1) // PARTS, n_heads - 1)).to(tl.int64)
        total = tl.where(highest < n_sources, total, float("nan"))
        offsets = (parent * n_rows + rows)[:, None] * M + columns[None, :]
        inside = (rows < parent_rows)[:, None] & column_mask[None, :]
        total += tl.load(residual_ptr + offsets, mask=inside, other=float("nan")).to(tl.float32)
        if HAS_BIAS:
            total += tl.load(bias_ptr + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
        offsets = (child * n_rows + rows)[:, None] * M + columns[None, :]
        inside = (rows < n_rows)[:, None] & column_mask[None, :]
        tl.store(out_ptr + offsets, total.to(out_ptr.dtype.element_ty), mask=inside)
