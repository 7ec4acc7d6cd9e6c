"""How precisely and how repeatably torch computes during a run: set by the run, recorded in its results, put back afterwards.

Products of float32 are IEEE float32, never TF32, whatever the caller has set. On a CUDA device torch takes deterministic
algorithms where it has them, and cuBLAS a workspace of fixed size, with which its products repeat. Without a deterministic
algorithm torch warns and goes on; the gradients of PyTorch's attention are the one such case here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

WORKSPACE, SIZE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # the larger of the two that PyTorch names as repeatable

DETERMINISTIC: Any = torch.utils.deterministic  # whose attribute stands in no type stub


@contextlib.contextmanager
def pinned(device: str | None) -> Iterator[None]:
    """Set what the module says for a run on `device` ("cpu", "cuda:1"; None: a GPU if there is one), and put all back at the end.

    The workspace has to be set before CUDA starts, so enter this before a model is loaded. One that the caller has set stays.
    """
    on_cuda = device.startswith("cuda") if device else torch.cuda.is_available()
    held = _Held.now()
    workspace = os.environ.get(WORKSPACE)
    try:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        if on_cuda:
            os.environ.setdefault(WORKSPACE, SIZE)
            torch.use_deterministic_algorithms(True, warn_only=True)
            DETERMINISTIC.fill_uninitialized_memory = False  # a write to all memory, for nothing here
        yield
    finally:
        held.put_back()
        if on_cuda and workspace is None:
            os.environ.pop(WORKSPACE, None)


def describe() -> dict[str, Any]:
    """What holds now, as JSON data; results keep it in their environment."""
    return {
        "tf32": "tf32" in _precisions().values(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cublas_workspace": os.environ.get(WORKSPACE),
    }


def tf32_products() -> bool:
    """Whether torch's float32 matrix products on CUDA are computed in TF32."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


@dataclass(frozen=True)
class _Held:
    """The settings of torch that `pinned` changes; `precision` is None if the caller has mixed torch's old and new names."""

    precision: str | None
    precisions: dict[str, str]
    deterministic: bool
    warn_only: bool
    fill: bool

    @classmethod
    def now(cls) -> _Held:
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:
            precision = None
        return cls(
            precision,
            _precisions(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            DETERMINISTIC.fill_uninitialized_memory,
        )

    def put_back(self) -> None:
        if self.precision is not None:
            torch.set_float32_matmul_precision(self.precision)
        for name, value in self.precisions.items():
            _backends()[name].fp32_precision = value
        now, held = _Held.now(), (self.deterministic, self.warn_only)
        if (now.deterministic, now.warn_only) != held:  # the call imports torch's compiler, two seconds
            torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        DETERMINISTIC.fill_uninitialized_memory = self.fill


def _backends() -> dict[str, Any]:
    """Whatever multiplies in float32, each with a precision of its own."""
    backends: Any = torch.backends
    return {
        "matmul": backends.cuda.matmul,
        "conv": backends.cudnn.conv,
        "rnn": backends.cudnn.rnn,
        "cpu": backends.mkldnn.matmul,
    }


def _precisions() -> dict[str, str]:
    return {name: backend.fp32_precision for name, backend in _backends().items()}
