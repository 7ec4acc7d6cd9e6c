"""Packed attention against a loop over single queries; sequences in one tile must not see each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import launch, packed_attention
from tests.kernels.operands import FLOAT16, FLOAT32, checked, double, error, normal

kernel, reference = checked(packed_attention.packed_attention), checked(packed_attention.reference)

# sequences B, heads H, groups G, positions S, width D
SHAPES = [
    (5, 4, 2, 5, 24),
    (1, 1, 1, 1, 8),
    (3, 2, 2, 20, 80),
    (2, 6, 2, 30, 16),
    (9, 1, 1, 7, 8),
    (2, 2, 1, 64, 16),
]


def operands(shape: tuple, dtype: torch.dtype = torch.float32) -> tuple:
    batch, heads, groups, positions, d_head = shape
    return (
        normal(batch, heads, positions, d_head, seed=0, dtype=dtype),
        normal(batch, groups, positions, d_head, seed=1, dtype=dtype),
        normal(batch, groups, positions, d_head, seed=2, dtype=dtype),
        d_head**-0.5,
    )


def loop(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """The formula, one query at a time."""
    batch, heads, positions, d_head = q.shape
    out = torch.zeros(batch, positions, heads, d_head, dtype=q.dtype)
    share = heads // k.shape[1]
    for b in range(batch):
        for h in range(heads):
            for s in range(positions):
                weights = torch.exp(scale * k[b, h // share, : s + 1] @ q[b, h, s])
                out[b, s, h] = weights @ v[b, h // share, : s + 1] / weights.sum()
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_reference_are_the_loop(shape):
    arguments = operands(shape)
    expected = loop(*double(arguments))
    assert error(reference(*double(arguments)), expected) < 1e-14
    assert error(reference(*arguments), expected) < FLOAT32
    assert error(kernel(*arguments), expected) < FLOAT32


def test_float16_sums_in_float32():
    arguments = operands(SHAPES[0], torch.float16)
    assert error(kernel(*arguments), loop(*double(arguments))) < FLOAT16


def test_the_first_position_sees_only_itself():
    q, k, v, scale = operands(SHAPES[0])
    assert torch.equal(kernel(q, k, v, scale)[:, 0], v[:, :, 0].repeat_interleave(2, 1))


def test_sequences_in_one_tile_and_later_positions_do_not_leak():
    q, k, v, scale = operands(SHAPES[4])
    out = kernel(q, k, v, scale)
    k, v = k.clone(), v.clone()
    k[3], v[3] = 9.0, 9.0
    k[:, :, -1], v[:, :, -1] = 5.0, 5.0
    changed = kernel(q, k, v, scale)
    kept = [row for row in range(9) if row != 3]
    assert torch.equal(changed[kept, :-1], out[kept, :-1])
    assert not torch.equal(changed[3], out[3]) and not torch.equal(changed[0, -1], out[0, -1])


def test_one_sequence_alone_is_the_same_as_among_others():
    q, k, v, scale = operands(SHAPES[4])
    out = kernel(q, k, v, scale)
    alone = torch.cat([kernel(q[i : i + 1], k[i : i + 1], v[i : i + 1], scale) for i in range(9)])
    assert error(alone, out) < FLOAT32


@pytest.mark.parametrize(
    ("queries", "block", "packing"),
    [(20, 64, (3, 1)), (5, 64, (12, 1)), (64, 64, (1, 1)), (65, 64, (1, 2)), (192, 64, (1, 3)), (1, 16, (16, 1))],
)
def test_tiles_hold_whole_pairs_or_parts_of_one(queries, block, packing):
    assert launch.packing(queries, block) == packing


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, lambda a: a[:, :, :-1], "k .* has S = 4, but q has S = 5"),
        (2, lambda a: a[:4], "v .* has B = 4"),
        (0, lambda a: a[0], r"q has shape \[4, 5, 24\]"),
        (0, lambda a: a[:, :3], "3 query heads cannot share 2"),
        (2, lambda a: a.half(), "v is torch.float16 and q torch.float32"),
        (0, lambda a: a.double(), "use the reference"),
    ],
)
def test_what_does_not_fit_is_refused(place, change, message):
    arguments = list(operands(SHAPES[0]))
    arguments[place] = change(arguments[place])
    with pytest.raises(ValueError, match=message):
        packed_attention.packed_attention(*arguments)


def test_long_sequences_are_left_to_the_reference():
    arguments = operands((1, 1, 1, 65, 8))
    with pytest.raises(ValueError, match="65 positions do not pack"):
        kernel(*arguments)
    assert error(reference(*double(arguments)), loop(*double(arguments))) < 1e-14
