"""Packed attention: causal attention of many short sequences, several to a tile.

    out[b, s, h] = sum_t<=s softmax_t(scale q[b, h, s] . k[b, g, t]) v[b, g, t],        g = h // (H / G)

B sequences, H query heads, G key/value heads (consecutive query heads share one), S positions, D head width. With one sequence
of 20 positions, a tile of 64 queries would compute 64 x 64 scores, of which 210 count. Here a tile holds as many (sequence,
key/value head) pairs as fit, and a block-diagonal causal mask separates them.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from kernels import launch

try:
    import triton
    import triton.language as tl

    from kernels.online_softmax import begin, finish, update
except ImportError:
    triton = None

OPERATION = "packed_attention"
ARGUMENTS = "q k v scale".split()
LONGEST = 64  # positions; a longer sequence fills tiles by itself, so a flash kernel suits it better
LAYOUTS = {"q": "B H S D", "k": "B G S D", "v": "B G S D"}


def reference(
    q: Float[Tensor, "batch head position d_head"],
    k: Float[Tensor, "batch group position d_head"],
    v: Float[Tensor, "batch group position d_head"],
    scale: float,
) -> Float[Tensor, "batch position head d_head"]:
    """The module's formula by torch's scaled_dot_product_attention. Any floating dtype, any number of positions."""
    # shared keys and values are repeated: with enable_gqa, PyTorch computes float32 by its slowest backend on CUDA
    k, v = (x[:, :, None].expand(-1, -1, q.shape[1] // k.shape[1], -1, -1).flatten(1, 2) for x in (k, v))
    # scaled before, because torch.compile recompiles for every new value of scale
    out = functional.scaled_dot_product_attention(q * scale, k, v, is_causal=True, scale=1.0)
    return out.transpose(1, 2).contiguous()


def packed_attention(
    q: Float[Tensor, "batch head position d_head"],
    k: Float[Tensor, "batch group position d_head"],
    v: Float[Tensor, "batch group position d_head"],
    scale: float,
) -> Float[Tensor, "batch position head d_head"]:
    """The module's formula in one Triton kernel, with scores and sums in fp32.

    Raises ValueError for shapes that do not fit, more than LONGEST positions, heads wider than launch.LARGEST_HEAD, or a
    dtype other than float32, float16 and bfloat16.
    """
    values = {"q": q, "k": k, "v": v}
    sizes = launch.require_shapes(OPERATION, LAYOUTS, values)
    launch.require_heads(OPERATION, sizes["H"], sizes["G"], sizes["D"])
    if sizes["S"] > LONGEST:
        raise ValueError(f"{OPERATION}: {sizes['S']} positions do not pack; use the reference above {LONGEST}")
    launch.require_launchable(OPERATION, values)
    out = torch.empty(sizes["B"], sizes["S"], sizes["H"], sizes["D"], dtype=q.dtype, device=q.device)
    if out.numel():
        _launch(out, q.contiguous(), k.contiguous(), v.contiguous(), scale)
    return out


def _launch(out: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> None:
    batch, heads, positions, d_head = q.shape
    groups = k.shape[1]
    pairs, queries = batch * groups, heads // groups * positions
    settings = launch.attention_settings(pairs * queries, pairs * positions, d_head, q.dtype, launch.part(q.device))
    pairs_per_tile, tiles_per_pair = launch.packing(queries, settings["BLOCK_Q"])
    assert triton is not None  # `require_launchable` has checked it
    tiles = triton.cdiv(pairs, pairs_per_tile) * tiles_per_pair
    with torch.cuda.device_of(out):
        _kernel[(tiles,)](
            out, q, k, v, scale, pairs, heads, positions, queries, pairs_per_tile, tiles_per_pair,
            D=d_head, UPCAST=launch.upcast(q.dtype), **settings,
        )  # fmt: skip


if triton is not None:

    @launch.kernel
    def _kernel(
        out_ptr, q_ptr, k_ptr, v_ptr, scale, n_pairs, n_heads, n_positions, queries, pairs_per_tile, tiles_per_pair,
        D: tl.constexpr, UPCAST: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_REST: tl.constexpr,
    ):  # fmt: skip
        """out[pair, s] = softmax over the pair's own t <= s of scale q . k, times v.

        One program takes `pairs_per_tile` whole (sequence, key/value head) pairs, or one of the `tiles_per_pair` parts of a
        pair with more than BLOCK_Q queries. Rows of q, k and v have one numbering, in which those of a pair are consecutive.
        """
        program = tl.program_id(0)
        pair = (program // tiles_per_pair).to(tl.int64) * pairs_per_tile
        local = program % tiles_per_pair * BLOCK_Q + tl.arange(0, BLOCK_Q)
        of_pair, position = local // queries, local % n_positions
        row_mask = (of_pair < pairs_per_tile) & (pair + of_pair < n_pairs)
        row = pair * queries + local
        q, q_rest, output, output_rest, total, largest = begin(
            q_ptr, row, row_mask, D, BLOCK_Q, BLOCK_D, BLOCK_REST, UPCAST
        )
        for first in range(0, pairs_per_tile * n_positions, BLOCK_K):
            key = first + tl.arange(0, BLOCK_K)
            key_pair = key // n_positions
            key_mask = (key_pair < pairs_per_tile) & (pair + key_pair < n_pairs)
            earlier = (key % n_positions)[None, :] <= position[:, None]
            visible = (of_pair[:, None] == key_pair[None, :]) & earlier
            output, output_rest, total, largest = update(
                output, output_rest, total, largest, q, q_rest, k_ptr, v_ptr, pair * n_positions + key, key_mask, visible, scale,
                D, BLOCK_D, BLOCK_REST, UPCAST,
            )  # fmt: skip
        sequence, head = row // n_positions // n_heads, row // n_positions % n_heads
        row = (sequence * n_positions + position) * n_heads + head
        finish(out_ptr, row, row_mask, output, output_rest, total, D, BLOCK_D, BLOCK_REST)
