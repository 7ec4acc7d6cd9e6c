"""Suffix attention against a loop over single queries, and against ordinary attention over the whole sequence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import suffix_attention
from tests.kernels.operands import FLOAT16, FLOAT32, checked, double, error, normal

kernel, reference = checked(suffix_attention.suffix_attention), checked(suffix_attention.reference)

# variants U, prompts n, heads H, groups G, suffix S, prefix P, width D
SHAPES = [
    (3, 2, 4, 2, 5, 7, 24),
    (1, 1, 1, 1, 1, 1, 8),
    (5, 2, 2, 2, 1, 0, 16),
    (7, 1, 6, 2, 1, 40, 8),
    (2, 1, 6, 1, 30, 70, 16),
    (3, 1, 2, 1, 20, 0, 80),
    (70, 1, 1, 1, 1, 3, 64),
]


def operands(shape: tuple, dtype: torch.dtype = torch.float32) -> tuple:
    variants, prompts, heads, groups, suffix, prefix, d_head = shape
    return (
        normal(variants, prompts, heads, suffix, d_head, seed=0, dtype=dtype),
        normal(variants, prompts, groups, suffix, d_head, seed=1, dtype=dtype),
        normal(variants, prompts, groups, suffix, d_head, seed=2, dtype=dtype),
        normal(prompts, groups, prefix, d_head, seed=3, dtype=dtype),
        normal(prompts, groups, prefix, d_head, seed=4, dtype=dtype),
        d_head**-0.5,
    )


def loop(q: Tensor, k: Tensor, v: Tensor, prefix_k: Tensor, prefix_v: Tensor, scale: float) -> Tensor:
    """The formula, one query at a time."""
    variants, prompts, heads, suffix, d_head = q.shape
    out = torch.zeros(variants, prompts, suffix, heads, d_head, dtype=q.dtype)
    share = heads // k.shape[2]
    for u in range(variants):
        for i in range(prompts):
            for h in range(heads):
                for s in range(suffix):
                    keys = torch.cat([prefix_k[i, h // share], k[u, i, h // share, : s + 1]])
                    values = torch.cat([prefix_v[i, h // share], v[u, i, h // share, : s + 1]])
                    weights = torch.exp(scale * keys @ q[u, i, h, s])
                    out[u, i, s, h] = weights @ values / weights.sum()
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_reference_are_the_loop(shape):
    arguments = operands(shape)
    expected = loop(*double(arguments))
    assert error(reference(*double(arguments)), expected) < 1e-14
    assert error(reference(*arguments), expected) < FLOAT32
    assert error(kernel(*arguments), expected) < FLOAT32


def test_it_is_ordinary_attention_over_the_whole_sequence():
    variants, prompts, heads, groups, suffix, prefix, d_head = 3, 2, 4, 2, 5, 7, 24
    q, k, v, prefix_k, prefix_v, scale = operands((variants, prompts, heads, groups, suffix, prefix, d_head))
    whole_k = torch.cat([prefix_k.expand(variants, -1, -1, -1, -1), k], 3).flatten(0, 1)
    whole_v = torch.cat([prefix_v.expand(variants, -1, -1, -1, -1), v], 3).flatten(0, 1)
    whole_q = torch.cat([torch.zeros(variants, prompts, heads, prefix, d_head), q], 3).flatten(0, 1)
    out = functional.scaled_dot_product_attention(
        whole_q, whole_k, whole_v, is_causal=True, scale=scale, enable_gqa=True
    )
    out = out[:, :, prefix:].view(variants, prompts, heads, suffix, d_head).transpose(2, 3)
    assert error(kernel(q, k, v, prefix_k, prefix_v, scale), out) < FLOAT32


def test_float16_sums_in_float32():
    arguments = operands(SHAPES[0], torch.float16)
    expected = loop(*double(arguments))
    assert error(kernel(*arguments), expected) < FLOAT16
    assert error(reference(*arguments), expected) < 2 * FLOAT16


def test_scores_far_above_and_below_zero_do_not_overflow():
    q, k, v, prefix_k, prefix_v, _ = operands(SHAPES[0])
    arguments = (30 * q, k, v, prefix_k, prefix_v, 1.0)
    scores = torch.einsum("uihsd,igpd->uihsgp", 30 * q, prefix_k)
    assert scores.max() > 300 and scores.min() < -300
    expected = reference(*double(arguments))
    assert error(kernel(*arguments), expected) < 1e-4  # fp32 scores of 500 are off by 3e-5 and enter an exponential
    assert error(reference(*arguments), expected) < 1e-4


def test_equal_keys_average_the_values():
    q, k, v, prefix_k, prefix_v, scale = operands(SHAPES[0])
    out = kernel(q, torch.zeros_like(k), v, torch.zeros_like(prefix_k), prefix_v, scale)
    last = (prefix_v.sum(2)[None] + v.sum(3)) / (prefix_v.shape[2] + v.shape[3])
    assert error(out[:, :, -1], last.repeat_interleave(2, 2)) < FLOAT32


def test_variants_and_later_positions_do_not_leak():
    q, k, v, prefix_k, prefix_v, scale = operands(SHAPES[0])
    out = kernel(q, k, v, prefix_k, prefix_v, scale)
    k, v = k.clone(), v.clone()
    k[1], v[1] = 9.0, 9.0
    k[:, :, :, -1], v[:, :, :, -1] = 5.0, 5.0
    changed = kernel(q, k, v, prefix_k, prefix_v, scale)
    assert torch.equal(changed[[0, 2], :, :-1], out[[0, 2], :, :-1])
    assert not torch.equal(changed[1], out[1]) and not torch.equal(changed[0, :, -1], out[0, :, -1])


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, lambda a: a[:, :, :, :-1], "k .* has S = 4, but q has S = 5"),
        (2, lambda a: a[:2], "v .* has U = 2"),
        (3, lambda a: a[None], r"prefix_k has shape \[1, 2, 2, 7, 24\]"),
        (4, lambda a: a[:, :, :-1], "prefix_v .* has P = 6"),
        (0, lambda a: a[:, :, :3], "3 query heads cannot share 2"),
        (0, lambda a: a.double(), "use the reference"),
    ],
)
def test_what_does_not_fit_is_refused(place, change, message):
    arguments = list(operands(SHAPES[0]))
    arguments[place] = change(arguments[place])
    with pytest.raises(ValueError, match=message):
        suffix_attention.suffix_attention(*arguments)


def test_heads_too_wide_are_refused():
    with pytest.raises(ValueError, match="heads are 264 wide"):
        kernel(*operands((1, 1, 1, 1, 1, 1, 264)))
