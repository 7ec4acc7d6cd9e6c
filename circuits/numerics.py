"""Precision and determinism of torch during a run: set by the run, recorded in its results, restored afterwards.

Products of float32 are IEEE float32, never TF32, whatever the caller has set. On a CUDA device torch uses deterministic
algorithms where it has them, and cuBLAS a workspace of fixed size, which makes its products repeatable. Without a deterministic
algorithm torch warns and continues; the only such case here are the gradients of PyTorch's attention.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

WORKSPACE, SIZE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"  # the larger of the two that PyTorch names as repeatable

DETERMINISTIC: Any = torch.utils.deterministic  # the attribute is missing from the type stubs


@contextlib.contextmanager
def pinned(device: str | None) -> Iterator[None]:
    """Context with the module's settings for a run on `device` ("cpu", "cuda:1"; None: a GPU if there is one).

    All settings are restored at the end. The workspace has to be set before CUDA starts, so enter this context before a model is
    loaded. A workspace that the caller has set is kept.
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
            DETERMINISTIC.fill_uninitialized_memory = False  # filling memory costs time and has no use here
        yield
    finally:
        held.put_back()
        if on_cuda and workspace is None:
            os.environ.pop(WORKSPACE, None)


def describe() -> dict[str, Any]:
    """The current settings as JSON data; results store them in their environment."""
    return {
        "tf32": "tf32" in _precisions().values(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cublas_workspace": os.environ.get(WORKSPACE),
    }


def tf32_products() -> bool:
    """True if torch computes float32 matrix products on CUDA in TF32."""
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
        if (now.deterministic, now.warn_only) != held:  # the call imports torch's compiler, which takes two seconds
            torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        DETERMINISTIC.fill_uninitialized_memory = self.fill


def _backends() -> dict[str, Any]:
    """The torch backends that multiply in float32, each with its own precision setting."""
    backends: Any = torch.backends
    return {
        "matmul": backends.cuda.matmul,
        "conv": backends.cudnn.conv,
        "rnn": backends.cudnn.rnn,
        "cpu": backends.mkldnn.matmul,
    }


def _precisions() -> dict[str, str]:
    return {name: backend.fp32_precision for name, backend in _backends().items()}
