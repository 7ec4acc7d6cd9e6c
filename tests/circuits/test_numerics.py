"""A run's precision is its own, and the caller's comes back."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from circuits import numerics
from circuits.circuit import Node, head
from circuits.engine import FusedEngine
from circuits.engine.gradients import GradientEngine
from circuits.interventions import Recipe, Sweep, Variant, ablate, noise
from circuits.measurements import local_learning_coefficient
from tests.circuits import toy

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


# --- what has no deterministic algorithm on CUDA ----------------------------------------------------------------

ATTENTION = "_scaled_dot_product_"  # its gradients add to the same places in any order
UNREPEATABLE = {  # of torch's documentation of `use_deterministic_algorithms`: those that warn, as far as they could occur here
    *("bincount", "cumsum", "histc", "kthvalue", "median", "nanmedian", "put_", "scatter_reduce", "_embedding_bag"),
    *("_ctc_loss_backward", "grid_sampler_2d_backward", "nll_loss2d_forward", "upsample_bilinear2d_backward"),
}


class Dispatched(TorchDispatchMode):
    """Collects the operations that compute with floating-point numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in tree_leaves((args, kwargs))):
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    @property
    def unrepeatable(self) -> set[str]:
        gradients = {name for name in self.names if name.startswith(ATTENTION) and name.endswith("_backward")}
        return (self.names & UNREPEATABLE) | gradients


def test_only_the_gradients_of_attention_are_not_repeatable(study) -> None:
    """Of what the engine, its gradients and the chains of 10 dispatch. Other atomic sums have deterministic twins in torch."""
    prompts, engine = study.prompts.select([0, 1, 2]), FusedEngine(study.model, study.engine.reference.prompts)
    recipes = (Recipe("zero"), Recipe("mean"), Recipe("resample"), Recipe("noise"))
    made = [ablate([node], one, f"{node} {one}") for node in (head(0, 1), Node("mlp", 1)) for one in recipes]
    made.append(noise([head(1, 0)], "at s2", ("s2",)))
    with Dispatched() as of_engine:
        engine.run(Sweep((Variant("clean"), *made), probabilities=True), prompts)
    with Dispatched() as of_gradients:
        GradientEngine(study.model, decoder=engine.decoder).node_effects(prompts, "clean")
    with Dispatched() as of_chains:
        local_learning_coefficient.measure(replace(study, settings={**study.settings, "llc": toy.SETTINGS["llc"]}))
    assert not of_engine.unrepeatable and not of_chains.unrepeatable
    assert {"_softmax_backward_data", "mm"} <= of_chains.names and "index_select" in of_engine.names
    assert of_gradients.unrepeatable and all(name.startswith(ATTENTION) for name in of_gradients.unrepeatable)
