"""A run's precision is its own, and the caller's comes back."""

from __future__ import annotations

import os

import pytest
import torch

from circuits import numerics

BACKENDS = torch.backends


def state() -> tuple:
    return (
        {name: own.fp32_precision for name, own in numerics._backends().items()},
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        os.environ.get(numerics.WORKSPACE),
    )


@pytest.fixture(autouse=True)
def as_before():
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.allow_tf32 = True
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_the_callers_settings_come_back(precision, device, monkeypatch):
    monkeypatch.delenv(numerics.WORKSPACE, raising=False)
    torch.set_float32_matmul_precision(precision)
    before = state()
    with numerics.pinned(device):
        on_cuda = device != "cpu"
        assert torch.get_float32_matmul_precision() == "highest" and not BACKENDS.cuda.matmul.allow_tf32
        assert numerics.describe() == {
            "tf32": False, "deterministic": on_cuda, "cublas_workspace": ":4096:8" if on_cuda else None
        }  # fmt: skip
    assert state() == before and torch.get_float32_matmul_precision() == precision


def test_they_come_back_after_an_error_and_by_torchs_new_names_too():
    BACKENDS.cuda.matmul.fp32_precision = "tf32"
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = state()
    with pytest.raises(KeyError), numerics.pinned("cuda"):
        assert not numerics.tf32_products()
        raise KeyError
    assert state() == before and numerics.tf32_products()


def test_a_workspace_that_the_caller_chose_stays(monkeypatch):
    monkeypatch.setenv(numerics.WORKSPACE, ":16:8")
    with numerics.pinned("cuda"):
        assert numerics.describe()["cublas_workspace"] == ":16:8"
    assert os.environ[numerics.WORKSPACE] == ":16:8"
