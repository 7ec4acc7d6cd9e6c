"""Random operands for the kernel tests, and how far two results lie apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from beartype import beartype
from jaxtyping import jaxtyped
from torch import Tensor

FLOAT32 = 1e-6  # tiny sums in fp32: a few rounding steps of 6e-8
FLOAT16 = 2.0**-9  # two roundings of the result, each half a step of 2^-10


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    """Standard normal, drawn in fp32 where it is used and then rounded to `dtype`."""
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed), device=device).to(dtype)


def whole(*shape: int, low: int, high: int, seed: int, device: str = "cpu") -> Tensor:
    """int32 in [low, high)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(device)


def double(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments with floating tensors in float64."""
    return tuple(a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments)


def error(result: Tensor, expected: Tensor) -> float:
    """Largest |result - expected| over the largest |expected|."""
    assert result.shape == expected.shape
    return float((result.double() - expected.double()).abs().max() / expected.double().abs().max())


def checked(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` with its annotated shapes and types checked at every call."""
    return jaxtyped(typechecker=beartype)(function)
