"""One bad sequence spoils no other: NaN and infinity stay in the rows that see them, in kernels and references."""

from __future__ import annotations

import shutil

import pytest
import torch

from kernels import choice
from kernels.split_product import split_product
from tests.kernels import test_logit_difference as of_logits
from tests.kernels import test_select_project as of_heads
from tests.kernels.operands import normal

BAD = [float("nan"), float("inf"), -float("inf")]


def both(operation):
    module = choice.MODULES[operation]
    return module.reference, getattr(module, operation)


def same(one, other, rows):
    return torch.equal(one[rows], other[rows])


@pytest.mark.sampled(9)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("d_head", [8, 80])  # in one part and in two
def test_packed_attention(which, bad, d_head):
    operands = {name: normal(9, 2, 7, d_head, seed=seed) for seed, name in enumerate("qkv")}
    spoilt = {name: x.clone() for name, x in operands.items()}
    spoilt[which][4, :, 3, d_head - 1] = bad
    others = [row for row in range(9) if row != 4]
    for function in both("packed_attention"):
        before, after = function(*operands.values(), 0.3), function(*spoilt.values(), 0.3)
        assert same(after, before, others)
        if (
            which != "q" or function is not choice.MODULES["packed_attention"].reference
        ):  # PyTorch gives a NaN query numbers
            assert not after[4].isfinite().all()


@pytest.mark.parametrize("bad", BAD)
def test_earlier_positions_do_not_see_it_in_the_kernel(bad):
    q, k, v = (normal(3, 1, 12, 24, seed=seed) for seed in range(3))
    _, kernel = both("packed_attention")
    before = kernel(q, k, v, 0.3)
    v = v.clone()
    v[1, 0, 5, 0] = bad
    after = kernel(q, k, v, 0.3)
    assert torch.equal(after[1, :5], before[1, :5])
    assert not after[1, 5:].isfinite().all(-1).any()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("which", ["k", "v", "prefix_v"])
def test_suffix_attention(which, bad):
    own = {name: normal(5, 2, 2, 4, 24, seed=seed) for seed, name in enumerate(["q", "k", "v"])}
    prefix = {name: normal(2, 2, 3, 24, seed=seed) for seed, name in enumerate(["prefix_k", "prefix_v"], 3)}
    operands = own | prefix
    spoilt = {name: x.clone() for name, x in operands.items()}
    if which == "prefix_v":
        spoilt[which][1, 0, 1, 2] = bad  # of the second prompt: all its variants see it
    else:
        spoilt[which][3, 1, 0, 1, 2] = bad
    for function in both("suffix_attention"):
        before, after = function(*operands.values(), 0.3), function(*spoilt.values(), 0.3)
        assert torch.equal(after[:, 0], before[:, 0])
        if which != "prefix_v":
            assert same(after, before, [0, 1, 2, 4])
        if which != "k" or bad != -float("inf"):  # these queries give such a key a weight of 0
            assert not after[3, 1].isfinite().all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", [0, 1, 6])  # z, sources, residual
def test_select_project_keeps_it_in_its_row(place, bad):
    arguments = list(of_heads.operands((3, 5, 7, 3, 24, 40, 2, True)))
    spoilt = list(arguments)
    spoilt[place] = arguments[place].clone()
    spoilt[place][:, 2] = bad
    others = [row for row in range(7) if row != 2]
    for function in both("select_project"):
        before, after = function(*arguments), function(*spoilt)
        assert torch.equal(after[:, others], before[:, others])
        assert not after[:, 2].isfinite().all()


@pytest.mark.parametrize("bad", BAD)
def test_a_source_that_is_not_picked_is_not_seen(bad):
    z, sources, pick, *rest = of_heads.operands((3, 5, 7, 3, 24, 40, 2, True))
    pick = torch.where(pick == 1, -1, pick)
    spoilt = sources.clone()
    spoilt[1] = bad
    for function in both("select_project"):
        assert torch.equal(function(z, spoilt, pick, *rest), function(z, sources, pick, *rest))


@pytest.mark.parametrize("bad", BAD)
def test_logit_difference(bad):
    x, *rest = of_logits.operands((3, 4, 40, 5), True)
    spoilt = x.clone()
    spoilt[:, 2, 7] = bad
    for function in both("logit_difference"):
        before, after = function(x, *rest), function(spoilt, *rest)
        assert torch.equal(after[:, [0, 1, 3]], before[:, [0, 1, 3]])
        assert not after[:, 2].isfinite().any()


@pytest.mark.parametrize("bad", BAD)
def test_the_split_product_keeps_it_in_its_row(bad):
    x, weights, bias = normal(9, 24, seed=0), normal(40, 24, seed=1), normal(40, seed=2)
    spoilt = x.clone()
    spoilt[4, 7] = bad
    before, after = split_product(x, weights, bias), split_product(spoilt, weights, bias)
    assert same(after, before, [row for row in range(9) if row != 4])
    assert not after[4].isfinite().all()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")
def test_what_torch_compiles_does_as_the_reference_does(monkeypatch):
    """The tests above, of the compiled candidate alone; a shape takes it some ten seconds."""
    compiled = {name: functions[choice.COMPILED] for name, functions in choice.default_candidates().items()}
    torch._dynamo.reset()
    monkeypatch.setitem(globals(), "both", lambda operation: [compiled[operation]])
    nan = float("nan")
    test_packed_attention("v", nan, 8)
    test_suffix_attention("v", nan)
    test_suffix_attention("prefix_v", nan)
    for place in (0, 1, 6):
        test_select_project_keeps_it_in_its_row(place, nan)
    test_a_source_that_is_not_picked_is_not_seen(nan)
    test_logit_difference(nan)
