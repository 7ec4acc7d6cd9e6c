"""The logit difference against torch's own norms, and against logits over a vocabulary."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import logit_difference
from tests.kernels.operands import FLOAT32, checked, double, error, normal, whole

kernel, reference = checked(logit_difference.logit_difference), checked(logit_difference.reference)
EPS = 1e-5

# states U, prompts n, d_model M, variants V
SHAPES = [(3, 2, 24, 5), (1, 1, 1, 1), (2, 5, 192, 3), (4, 1, 768, 6)]


def operands(shape: tuple, centred: bool, dtype: torch.dtype = torch.float32) -> tuple:
    states, prompts, d_model, variants = shape
    return (
        normal(states, prompts, d_model, seed=0, dtype=dtype) + 2,
        normal(prompts, d_model, seed=1),
        normal(prompts, seed=2),
        whole(variants, low=0, high=states, seed=3),
        EPS,
        centred,
    )


def loop(x: Tensor, directions: Tensor, bias: Tensor, parent: Tensor, eps: float, centred: bool) -> Tensor:
    """torch's norm of one row at a time, dotted with the direction."""
    norm = functional.layer_norm if centred else functional.rms_norm
    rows = [
        [norm(x[state, i], x.shape[-1:], eps=eps) @ directions[i] + bias[i] for i in range(len(bias))]
        for state in parent.tolist()
    ]
    return torch.tensor(rows, dtype=x.dtype)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernel_and_reference_are_the_loop(shape, centred):
    arguments = operands(shape, centred)
    expected = loop(*double(arguments))
    assert reference(*double(arguments)).dtype == torch.float64
    assert error(reference(*double(arguments)), expected) < 1e-13
    for function in (kernel, reference):
        result = function(*arguments)
        assert result.dtype == torch.float32
        assert error(result, expected) < FLOAT32


@pytest.mark.parametrize("centred", [True, False])
def test_half_precision_states_are_computed_in_float32(centred):
    arguments = operands(SHAPES[2], centred, torch.float16)
    expected = loop(*double(arguments))
    for function in (kernel, reference):
        assert function(*arguments).dtype == torch.float32
        assert error(function(*arguments), expected) < FLOAT32


def test_it_is_the_difference_of_two_logits():
    """Gain and offset of the norm folded into the direction: answer minus foil of the whole unembedding."""
    x, gain, offset = normal(3, 4, 24, seed=0), normal(24, seed=1), normal(24, seed=2)
    unembedding = normal(50, 24, seed=3)
    answer, foil = torch.tensor([3, 1, 4, 9]), torch.tensor([2, 7, 1, 8])
    logits = functional.layer_norm(x.double(), (24,), gain.double(), offset.double(), EPS) @ unembedding.double().T
    expected = torch.stack([logits[:, i, answer[i]] - logits[:, i, foil[i]] for i in range(4)], 1)
    direction = unembedding[answer] - unembedding[foil]
    parent = torch.arange(3, dtype=torch.int32)
    result = kernel(x, direction * gain, direction @ offset, parent, EPS, True)
    assert error(result, expected) < FLOAT32


def test_centring_removes_a_constant_and_the_scale_cancels():
    x, *rest = operands(SHAPES[2], True)
    out = kernel(x, *rest)
    assert error(kernel(x + 3, *rest), out) < 1e-5  # the constant costs x some of its last digits
    assert error(kernel(x * 1024, *rest), out) < 1e-5  # eps is no longer seen


def test_an_unknown_parent_is_refused_or_marked(monkeypatch):
    x, directions, bias, parent, *rest = operands(SHAPES[0], True)
    expected = kernel(x, directions, bias, parent, *rest)
    parent[2] = 3
    for function in (kernel, reference):
        with pytest.raises(ValueError, match="parent holds 3 and there are 3 to name"):
            function(x, directions, bias, parent, *rest)
    monkeypatch.setattr(logit_difference.launch, "require_indices", lambda *_: None)
    out = kernel(x, directions, bias, parent, *rest)
    assert out[2].isnan().all()
    assert torch.equal(out[[0, 1, 3, 4]], expected[[0, 1, 3, 4]])


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda a: a[0], r"x has shape \[2, 24\]"),
        (1, lambda a: a[:, :-1], "directions .* has M = 23, but x has M = 24"),
        (2, lambda a: a[:-1], "bias .* has n = 1"),
        (1, lambda a: a.half(), "directions is torch.float16; pass float32"),
        (3, lambda a: a.long().float(), "parent is torch.float32"),
        (0, lambda a: a.double(), "use the reference"),
    ],
)
def test_what_does_not_fit_is_refused(place, change, message):
    arguments = list(operands(SHAPES[0], True))
    arguments[place] = change(arguments[place])
    with pytest.raises(ValueError, match=message):
        logit_difference.logit_difference(*arguments)


def test_rows_too_wide_are_refused():
    with pytest.raises(ValueError, match="d_model is 65537"):
        logit_difference.calculate_settings(65537)
