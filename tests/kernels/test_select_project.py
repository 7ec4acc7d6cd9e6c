"""The select-and-project kernel and its reference against a loop over children, rows and heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import select_project
from tests.kernels.operands import FLOAT16, FLOAT32, checked, double, error, normal, whole

kernel, reference = checked(select_project.select_project), checked(select_project.reference)

# parents U, children C, rows R, heads H, width D, d_model M, sources K, bias
SHAPES = [
    (3, 5, 7, 3, 24, 40, 2, True),
    (1, 1, 1, 1, 8, 24, 1, True),
    (2, 4, 33, 2, 80, 192, 3, False),
    (2, 3, 5, 4, 64, 70, 0, True),
    (1, 2, 65, 2, 16, 65, 1, False),
]


def operands(shape: tuple, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    parents, children, rows, heads, d_head, d_model, n_sources, bias = shape
    return (
        normal(parents, rows, heads, d_head, seed=0, dtype=dtype),
        normal(n_sources, rows, heads, d_head, seed=1, dtype=dtype),
        whole(children, heads, low=-1, high=n_sources, seed=2),
        whole(children, low=0, high=parents, seed=3),
        normal(heads, d_head, d_model, seed=4, dtype=dtype) / (heads * d_head) ** 0.5,
        normal(d_model, seed=5, dtype=dtype) if bias else None,
        normal(parents, rows, d_model, seed=6, dtype=dtype),
    )  # fmt: skip


def loop(
    z: Tensor, sources: Tensor, pick: Tensor, parent: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor
) -> Tensor:
    """The formula, one head of one row at a time."""
    out = torch.zeros(len(parent), *residual.shape[1:], dtype=z.dtype)
    for child, state in enumerate(parent.tolist()):
        for row in range(z.shape[1]):
            out[child, row] = residual[state, row]
            if bias is not None:
                out[child, row] += bias
            for head, source in enumerate(pick[child].tolist()):
                x = z[state, row, head] if source < 0 else sources[source, row, head]
                out[child, row] += x @ weight[head]
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_copies_and_the_gather_of_other_devices_give_the_same_bits(shape, monkeypatch):
    copied = reference(*operands(shape))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.equal(reference(*operands(shape)), copied)


@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_reference_are_the_loop(shape):
    arguments = operands(shape)
    expected = loop(*double(arguments))
    assert error(reference(*double(arguments)), expected) < 1e-14
    assert error(reference(*arguments), expected) < FLOAT32
    assert error(kernel(*arguments), expected) < FLOAT32


def test_float16_accumulates_in_float32():
    arguments = operands(SHAPES[0], torch.float16)
    result = kernel(*arguments)
    assert result.dtype == torch.float16
    assert error(result, loop(*double(arguments))) < FLOAT16


def test_no_head_picked_is_the_plain_projection_of_the_parent():
    z, sources, pick, parent, weight, bias, residual = operands(SHAPES[0])
    out = kernel(z, sources, torch.full_like(pick, -1), parent, weight, bias, residual)
    plain = residual + torch.einsum("urhd,hdm->urm", z, weight) + bias
    assert error(out, plain[parent]) < FLOAT32


def test_every_head_picked_forgets_the_parents_heads():
    z, sources, pick, parent, weight, bias, residual = operands(SHAPES[0])
    arguments = (sources, torch.ones_like(pick), parent, weight, bias, residual)
    assert torch.equal(kernel(z, *arguments), kernel(torch.full_like(z, float("nan")), *arguments))
    plain = residual[parent] + torch.einsum("rhd,hdm->rm", sources[1], weight) + bias
    assert error(kernel(z, *arguments), plain) < FLOAT32


def test_children_do_not_depend_on_each_other():
    z, sources, pick, parent, weight, bias, residual = operands(SHAPES[0])
    order = torch.tensor([3, 0, 4, 2, 1])
    out = kernel(z, sources, pick, parent, weight, bias, residual)
    assert torch.equal(kernel(z, sources, pick[order], parent[order], weight, bias, residual), out[order])


def test_strided_operands_give_the_same():
    arguments = operands(SHAPES[0])
    strided = [a.transpose(0, -1).contiguous().transpose(0, -1) if a.ndim > 1 else a for a in arguments]
    assert not strided[0].is_contiguous()
    assert torch.equal(kernel(*strided), kernel(*arguments))


def test_a_pick_of_no_source_or_a_parent_of_no_state_is_refused():
    z, sources, pick, parent, weight, bias, residual = operands(SHAPES[0])
    for function in (kernel, reference):
        with pytest.raises(ValueError, match="pick holds 2 and there are 2 to name"):
            function(z, sources, torch.full_like(pick, 2), parent, weight, bias, residual)
        with pytest.raises(ValueError, match="parent holds -1 and there are 3 to name"):
            function(z, sources, pick, torch.full_like(parent, -1), weight, bias, residual)


def test_the_kernel_marks_what_it_cannot_refuse(monkeypatch):
    """On a GPU nobody looks at the values: rows of an unknown parent or pick are NaN, the others right."""
    z, sources, pick, parent, weight, bias, residual = operands(SHAPES[0])
    expected = kernel(z, sources, pick, parent, weight, bias, residual)
    monkeypatch.setattr(select_project.launch, "require_indices", lambda *_: None)
    wrong_pick, wrong_parent = pick.clone(), parent.clone()
    wrong_pick[1, 2], wrong_parent[3] = 2, 3
    out = kernel(z, sources, wrong_pick, wrong_parent, weight, bias, residual)
    assert out[[1, 3]].isnan().all()
    assert torch.equal(out[[0, 2, 4]], expected[[0, 2, 4]])
    picked = torch.tensor([[0, -1, -1], [-1, -1, -1]], dtype=torch.int32)
    nothing = reference(z, sources[:0], picked, parent[:2], weight, bias, residual)
    assert nothing[0].isnan().all() and not nothing[1].isnan().any()


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (1, lambda a: a[:, :, :2], "sources .* has H = 2, but z has H = 3"),
        (2, lambda a: a[:, :2], "pick .* has H = 2"),
        (3, lambda a: a[:4], "parent .* has C = 4"),
        (4, lambda a: a[:, :, 0], r"weight has shape \[3, 24\]"),
        (5, lambda a: a[:-1], "bias .* has M = 39"),
        (6, lambda a: a[:, :-1], "residual .* has R = 6"),
        (0, lambda a: a.double(), "float64 .* use the reference"),
        (4, lambda a: a.half(), "weight is torch.float16 and z torch.float32"),
        (2, lambda a: a.float(), "pick is torch.float32; pass int32"),
    ],
)
def test_what_does_not_fit_is_refused(place, change, message):
    arguments = list(operands(SHAPES[0]))
    arguments[place] = change(arguments[place])
    with pytest.raises(ValueError, match=message):
        select_project.select_project(*arguments)


def test_a_gradient_is_refused_rather_than_lost():
    arguments = operands(SHAPES[1])
    arguments[0].requires_grad_()
    with pytest.raises(ValueError, match="z requires a gradient"):
        kernel(*arguments)
    with torch.no_grad():
        kernel(*arguments)


@pytest.mark.parametrize(("d_head", "block"), [(8, 16), (24, 32), (64, 32), (80, 16), (96, 32)])
def test_head_widths_are_cut_with_little_padding(d_head, block):
    settings = select_project.calculate_settings(1280, d_head, 768, torch.float32)
    assert settings["BLOCK_D"] == block
