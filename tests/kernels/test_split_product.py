"""The linear map in two TF32 parts. The interpreter multiplies in full float32, so it shows the indexing alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from kernels.split_product import split_product
from tests.kernels.operands import FLOAT32, error, normal


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "bias"), [(1, 1, 1, True), (33, 24, 40, True), (5, 70, 65, False)]
)
def test_it_is_the_linear_map(rows, inputs, outputs, bias):
    x, weights = normal(rows, inputs, seed=0), normal(outputs, inputs, seed=1)
    b = normal(outputs, seed=2) if bias else None
    assert (
        error(
            split_product(x, weights, b), functional.linear(x.double(), weights.double(), b.double() if bias else None)
        )
        < FLOAT32
    )
    assert torch.equal(split_product(x[None], weights, b)[0], split_product(x, weights, b))


def test_no_rows_give_no_rows():
    assert split_product(torch.zeros(0, 3, 8), torch.zeros(5, 8)).shape == (0, 3, 5)


def test_other_dtypes_and_shapes_are_refused():
    with pytest.raises(ValueError, match=r"x is torch.float16; pass float32"):
        split_product(torch.zeros(2, 8).half(), torch.zeros(5, 8).half())
    with pytest.raises(ValueError, match=r"weights .* has K = 7"):
        split_product(torch.zeros(2, 8), torch.zeros(5, 7))
