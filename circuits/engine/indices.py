"""Whole numbers that a pass needs on its device, sent there in one asynchronous copy.

A copy from pageable memory makes the host wait for the GPU's queue; one from pinned memory does not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

ALIGNED = 4  # numbers, 16 bytes of int32: every array starts as aligned as a separate tensor would


class ArraySpan(NamedTuple):
    """The place of one array among all the numbers."""

    start: int
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.start + int(np.prod(self.shape, dtype=np.int64))


class Indices:
    """Arrays of whole numbers: `add` them all, `send` them to a device, then read them as tensors there."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []
        self._length = 0
        self._sent: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def add(self, numbers: np.ndarray) -> ArraySpan:
        place = ArraySpan(self._length, numbers.shape)
        padding = np.zeros(-numbers.size % ALIGNED, np.int64)
        self._parts += [numbers.astype(np.int64, copy=False).ravel(), padding]
        self._length += numbers.size + len(padding)
        return place

    def send(self, device: torch.device) -> None:
        """Read from `device` from now on; the numbers are copied there once."""
        if device not in self._sent:
            self._parts = [np.concatenate(self._parts)] if self._parts else [np.zeros(0, np.int64)]
            long = on_device(torch.from_numpy(self._parts[0]), device)
            self._sent[device] = long, long.to(torch.int32)
        self._long, self._short = self._sent[device]

    def long(self, place: ArraySpan) -> Int[Tensor, ...]:
        """As int64, for torch's indexing."""
        return self._long[place.start : place.stop].view(place.shape)

    def short(self, place: ArraySpan) -> Int[Tensor, ...]:
        """As int32, for the kernels."""
        return self._short[place.start : place.stop].view(place.shape)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`, by an asynchronous copy."""
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)
