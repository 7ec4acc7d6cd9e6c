"""The fused backend on a GPU, at GPT-2 small's shape: against the reference backend on the same device and float64 on the CPU.

In IEEE float32 to 1e-4 of the largest logit difference, in float16 and bfloat16 (for screening) to what their rounding allows.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits.circuit import Node
from circuits.engine import DEFAULTS, FusedEngine, LensEngine, philox
from circuits.engine.philox import NoiseStream
from circuits.interventions import Recipe, Sweep, Variant, ablate, denoise, noise
from kernels.choice import Operations
from scripts.benchmarks import subjects

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
LENGTH, PROMPTS = 20, 16
# variants compared with float64: both intact runs, heads of two layers both ways, all sites of layer 5, the half-ablations
CHECKED = [0, 1, 2, 3, 40, 41, *range(77, 80), *range(83, 87)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return subjects.folder_of("gpt2-small", tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def prompts():
    """(scored, reference) random prompts; clean and corrupted differ in their second half."""
    return (
        subjects.random_prompts(PROMPTS, LENGTH, LENGTH // 2, 50257, seed=0),
        subjects.random_prompts(16, LENGTH, LENGTH // 2, 50257, seed=1),
    )


@pytest.fixture(scope="module")
def exact(folder, prompts):
    """Logit differences of some variants on two prompts, in float64 on all cores of the CPU, once for all tests."""
    scored, reference = prompts
    model = load(folder, "cpu", "float64")
    some = replace(sweep(model), variants=tuple(sweep(model).variants[number] for number in CHECKED))
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield LensEngine(model, reference).run(some, scored.select([0, 7])).logit_diff
    torch.set_num_threads(threads)


def sweep(model) -> Sweep:
    """Every fourth head in both directions, sites at single positions, random half-ablations under every recipe."""
    heads, rng = model.heads, np.random.default_rng(0)
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [make([node], f"{make.__name__} {node}") for node in heads[::4] for make in (denoise, noise)]
    for layer in (0, 5, 11):
        variants += [
            denoise([Node(kind, layer)], f"{kind}{layer}", ("middle",)) for kind in ("residual", "attention", "mlp")
        ]
    for number, recipe in enumerate((Recipe("zero"), Recipe("mean"), Recipe("resample"), Recipe("noise"))):
        chosen = [heads[i] for i in sorted(rng.choice(len(heads), len(heads) // 2, replace=False))]
        variants.append(ablate(chosen, recipe, f"half {number}"))
    return Sweep(tuple(variants), probabilities=True)


def load(folder, device: str, dtype: str):
    return subjects.load("gpt2-small", folder, device, dtype).model


@pytest.mark.parametrize("implementation", [None, "reference", "triton"])
def test_float32_equals_float64_and_lens(folder, prompts, exact, implementation) -> None:
    scored, reference = prompts
    model = load(folder, "cuda", "float32")
    fused = FusedEngine(model, reference, operations=Operations(model.device, implementation)).run(sweep(model), scored)
    lens = LensEngine(model, reference).run(sweep(model), scored)
    scale = np.abs(lens.logit_diff).max()
    assert np.abs(fused.logit_diff - lens.logit_diff).max() < 1e-4 * scale
    assert np.abs(fused.logit_diff[CHECKED][:, [0, 7]] - exact).max() < 1e-4 * scale
    assert np.abs(fused.answer_probability / lens.answer_probability - 1).max() < 1e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_as_close_as_its_rounding(folder, prompts, dtype) -> None:
    scored, reference = prompts
    full, half = load(folder, "cuda", "float32"), load(folder, "cuda", dtype)
    expected = FusedEngine(full, reference).run(sweep(full), scored).logit_diff
    found = FusedEngine(half, reference).run(sweep(half), scored).logit_diff
    assert np.abs(found - expected).max() < DEFAULTS["tolerance"][dtype] * np.abs(expected).max()


def test_memory_stays_within_its_bound(folder, prompts) -> None:
    """All 144 heads x 64 prompts x 20 tokens with room for 2 GiB beside the weights, which the plan keeps to within a fifth."""
    model = load(folder, "cuda", "float32")
    scored, reference = subjects.random_prompts(64, LENGTH, 1, 50257, seed=2), prompts[1]
    engine = FusedEngine(model, reference, operations=Operations(model.device, "reference"), memory_mib=2048)
    weights = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    engine.run(Sweep(tuple(denoise([node], str(node)) for node in model.heads)), scored)
    assert torch.cuda.max_memory_allocated() - weights < 1.2 * 2048 * 2**20


def test_noise_is_drawn_by_one_kernel_and_is_the_cpu_s() -> None:
    """To the last place of float32; 12 layers and 4 draws of all heads of GPT-2 small on 64 prompts."""
    ids, streams = [str(row) for row in range(64)], [NoiseStream("attn.hook_z", n % 12, n // 12) for n in range(48)]
    drawn = {at: philox.normal(philox.keys(0, ids, at), streams, LENGTH * 768, torch.float32) for at in ("cuda", "cpu")}
    found = drawn["cuda"].cpu()
    assert float((found - drawn["cpu"]).abs().max()) < 1e-6
    assert float((found != drawn["cpu"]).float().mean()) < 1e-4
