"""Products that are not IEEE are taken only if the model's logit differences agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from circuits.engine.products import Products


def run_with(products: Products):
    generator = torch.Generator().manual_seed(0)
    x, weights = (torch.randn(6, 8, generator=generator) for _ in range(2))

    def run() -> np.ndarray:
        with torch.no_grad():
            return products(x, weights).numpy()

    return run


@pytest.mark.parametrize(("error", "taken"), [(0.0, True), (5e-6, True), (2e-5, False), (float("nan"), False)])
def test_an_inexact_implementation_is_refused(error, taken):
    products = Products()
    run = run_with(products)
    expected = run()
    agreed = products.adopt("tf32x3", lambda x, w, b: functional.linear(x, w, b) * (1 + error), run, 1e-5)
    assert agreed is taken and products.name == ("tf32x3" if taken else "ieee")
    assert np.array_equal(run(), expected) is (not taken or error == 0)
    if not taken:
        assert "of the largest logit difference, and at most 1e-05 is allowed" in products.why


def test_one_that_raises_is_refused():
    products = Products()

    def broken(x, w, b):
        raise RuntimeError("no such tile\nand more")

    assert not products.adopt("tf32x3", broken, run_with(products), 1e-5)
    assert products.name == "ieee" and "failed (RuntimeError: no such tile)" in products.why
    run_with(products)()


def test_gradients_are_ieee():
    products = Products()
    assert products.adopt("tf32x3", functional.linear, run_with(products), 1e-5)
    products._other = None if products._other is None else (lambda *_: pytest.fail("a kernel has no gradient"))
    weights = torch.ones(3, 4, requires_grad=True)
    products(torch.ones(2, 4), weights).sum().backward()
    assert weights.grad is not None and torch.equal(weights.grad, torch.full((3, 4), 2.0))
