"""A model under test on a GPU says what it says on the CPU."""

from __future__ import annotations

import pytest
import torch

from suites import declaration
from suites.models.base import Request
from suites.models.local import LocalModel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "dtype": None}


@pytest.fixture(scope="module")
def both() -> tuple[LocalModel, LocalModel]:
    return tuple(LocalModel({**POCKET, "device": device}) for device in ("cpu", "cuda"))


def test_greedy_outputs_are_the_same(both):
    items = declaration.load("a12_needle_color").items[:120]
    requests = [Request(item.prompt, max_tokens=4) for item in items]
    here, there = (model.generate(requests, lambda count: None) for model in both)
    assert sum(a.tokens == b.tokens for a, b in zip(here, there, strict=True)) >= 119  # a tie may round either way


def test_likelihoods_agree(both):
    items = declaration.load("a12_needle_color").items[:60]
    pairs = [(item.prompt, f" {choice}") for item in items for choice in item.choices]
    here, there = (model.loglikelihood(pairs) for model in both)
    assert max(abs(a.logprob - b.logprob) for a, b in zip(here, there, strict=True)) < 1e-3
