"""Suffix attention: many variants of a prompt attend over their shared clean prefix and over their own suffix.

    out[u, i, s, h] = softmax over (p < P, t <= s) of scale q[u, i, h, s] . (prefix_k[i, g, p], k[u, i, g, t])
                      times (prefix_v[i, g, p], v[u, i, g, t]),        g = h // (H / G)

U variants, n prompts, H query heads, G key/value heads (consecutive query heads share one), S suffix positions, P prefix
positions, D head width. Before the first changed position every variant equals the clean run, so the clean keys and values
serve all variants without copies.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import launch

try:
    import triton
    import triton.language as tl

    from kernels.online_softmax import begin, finish, update
except ImportError:
    triton = None

OPERATION = "suffix_attention"
ARGUMENTS = "q k v prefix_k prefix_v scale".split()
LAYOUTS = {"q": "U n H S D", "k": "U n G S D", "v": "U n G S D", "prefix_k": "n G P D", "prefix_v": "n G P D"}


def reference(
    q: Float[Tensor, "variant prompt head position d_head"],
    k: Float[Tensor, "variant prompt group position d_head"],
    v: Float[Tensor, "variant prompt group position d_head"],
    prefix_k: Float[Tensor, "prompt group prefix d_head"],
    prefix_v: Float[Tensor, "prompt group prefix d_head"],
    scale: float,
) -> Float[Tensor, "variant prompt position head d_head"]:
    """The module's formula in torch: variants are folded into the query axis for the prefix, with one softmax over both parts.

    Takes any floating dtype; the softmax is in float32 at least.
    """
    variants, prompts, heads, positions, d_head = q.shape
    groups, prefix = prefix_k.shape[1], prefix_k.shape[2]
    queries = heads // groups * positions
    own_q = (q * scale).reshape(variants, prompts, groups, queries, d_head)  # scaled first: float16 could overflow
    folded = own_q.permute(1, 2, 0, 3, 4).reshape(prompts, groups, variants * queries, d_head)
    on_prefix = folded @ prefix_k.transpose(-1, -2)
    on_prefix = on_prefix.view(prompts, groups, variants, queries, prefix).permute(2, 0, 1, 3, 4)
    later = torch.ones(positions, positions, dtype=torch.bool, device=q.device).triu(1).repeat(heads // groups, 1)
    on_own = (own_q @ k.transpose(-1, -2)).masked_fill(later, float("-inf"))
    scores = torch.cat([on_prefix, on_own], -1)
    pattern = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    folded = pattern[..., :prefix].permute(1, 2, 0, 3, 4).reshape(prompts, groups, variants * queries, prefix)
    z = (folded @ prefix_v).view(prompts, groups, variants, queries, d_head).permute(2, 0, 1, 3, 4)
    z = z + pattern[..., prefix:] @ v
    return z.reshape(variants, prompts, heads, positions, d_head).transpose(2, 3).contiguous()


def suffix_attention(
    q: Float[Tensor, "variant prompt head position d_head"],
    k: Float[Tensor, "variant prompt group position d_head"],
    v: Float[Tensor, "variant prompt group position d_head"],
    prefix_k: Float[Tensor, "prompt group prefix d_head"],
    prefix_v: Float[Tensor, "prompt group prefix d_head"],
    scale: float,
) -> Float[Tensor, "variant prompt position head d_head"]:
    """The module's formula in one Triton kernel, with scores and sums in fp32 and no stored scores.

    Raises ValueError for shapes that do not fit, heads wider than launch.LARGEST_HEAD, or a dtype other than float32, float16
    and bfloat16.
    """
    values = {"q": q, "k": k, "v": v, "prefix_k": prefix_k, "prefix_v": prefix_v}
    sizes = launch.require_shapes(OPERATION, LAYOUTS, values)
    launch.require_heads(OPERATION, sizes["H"], sizes["G"], sizes["D"])
    launch.require_launchable(OPERATION, values)
    out = torch.empty(*(sizes[axis] for axis in "UnSHD"), dtype=q.dtype, device=q.device)
    if out.numel():
        _launch(out, *(item.contiguous() for item in values.values()), scale=scale)
    return out


def _launch(out: Tensor, q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, scale: float) -> None:
    variants, prompts, heads, positions, d_head = q.shape
    groups, prefix = prefix_k.shape[1], prefix_k.shape[2]
    queries = heads // groups * positions
    settings = launch.attention_settings(
        variants * queries, max(variants * positions, prefix), d_head, q.dtype, launch.part(q.device)
    )
    variants_per_tile, tiles_per_variant = launch.packing(queries, settings["BLOCK_Q"])
    assert triton is not None  # `require_launchable` has checked it
    tiles = triton.cdiv(variants, variants_per_tile) * tiles_per_variant
    with torch.cuda.device_of(out):
        _kernel[(prompts * groups * tiles,)](
            out, q, k, v, prefix_k, prefix_v, scale,
            variants, prompts, heads, groups, positions, prefix, queries, variants_per_tile, tiles_per_variant, tiles,
            D=d_head, UPCAST=launch.upcast(q.dtype), **settings,
        )  # fmt: skip


if triton is not None:

    @launch.kernel
    def _kernel(
        out_ptr, q_ptr, k_ptr, v_ptr, prefix_k_ptr, prefix_v_ptr, scale,
        n_variants, n_prompts, n_heads, n_groups, n_positions, n_prefix,
        queries, variants_per_tile, tiles_per_variant, tiles,
        D: tl.constexpr, UPCAST: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
        BLOCK_REST: tl.constexpr,
    ):  # fmt: skip
        """out[u, s] = softmax over the prefix and the variant's own t <= s of scale q . k, times v.

        One program takes one (prompt, key/value head) and `variants_per_tile` whole variants of it, or one of the
        `tiles_per_variant` parts of one variant. All see the prefix; a block-diagonal causal mask separates their own keys.
        """
        program = tl.program_id(0)
        prompt, group = program // tiles // n_groups, program // tiles % n_groups
        variant = (program % tiles // tiles_per_variant).to(tl.int64) * variants_per_tile
        local = program % tiles_per_variant * BLOCK_Q + tl.arange(0, BLOCK_Q)
        of_variant, query = local // queries, local % queries
        head, position = group * (n_heads // n_groups) + query // n_positions, query % n_positions
        row_mask = (of_variant < variants_per_tile) & (variant + of_variant < n_variants)
        pair = (variant + of_variant) * n_prompts + prompt
        row = (pair * n_heads + head) * n_positions + position
        q, q_rest, output, output_rest, total, largest = begin(
            q_ptr, row, row_mask, D, BLOCK_Q, BLOCK_D, BLOCK_REST, UPCAST
        )
        prefix = (prompt.to(tl.int64) * n_groups + group) * n_prefix
        for first in range(0, n_prefix, BLOCK_K):
            key = first + tl.arange(0, BLOCK_K)
            visible = row_mask[:, None] & (key < n_prefix)[None, :]
            output, output_rest, total, largest = update(
                output, output_rest, total, largest, q, q_rest, prefix_k_ptr, prefix_v_ptr, prefix + key, key < n_prefix,
                visible, scale,
                D, BLOCK_D, BLOCK_REST, UPCAST,
            )  # fmt: skip
        for first in range(0, variants_per_tile * n_positions, BLOCK_K):
            key = first + tl.arange(0, BLOCK_K)
            key_variant = key // n_positions
            key_mask = (key_variant < variants_per_tile) & (variant + key_variant < n_variants)
            earlier = (key % n_positions)[None, :] <= position[:, None]
            visible = (of_variant[:, None] == key_variant[None, :]) & earlier
            key_pair = ((variant + key_variant) * n_prompts + prompt) * n_groups + group
            output, output_rest, total, largest = update(
                output, output_rest, total, largest, q, q_rest, k_ptr, v_ptr, key_pair * n_positions + key % n_positions,
                key_mask, visible, scale, D, BLOCK_D, BLOCK_REST, UPCAST,
            )  # fmt: skip
        finish(
            out_ptr,
            (pair * n_positions + position) * n_heads + head,
            row_mask,
            output,
            output_rest,
            total,
            D,
            BLOCK_D,
            BLOCK_REST,
        )
