"""Every baseline gives the reference backend's numbers, so what is timed is the same work."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from circuits.circuit import Node, head
from circuits.engine.lens import LensEngine
from circuits.interventions import Intervention, Recipe, Sweep, Variant, ablate, denoise, noise
from circuits.prompts import CHANGED
from scripts.benchmarks import baselines, comparison, engines, subjects, workloads
from scripts.benchmarks.comparison import Machine, TimingBudget
from scripts.benchmarks.plain import PlainModel
from tests.circuits import toy

LENGTH = 9


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    torch.set_num_threads(1)
    folder = toy.save(toy.build("gpt2"), tmp_path_factory.mktemp("models") / "gpt2")
    return subjects.load("toy", folder, "cpu", "float32")


@pytest.fixture(scope="module")
def reference():
    return subjects.random_prompts(6, LENGTH, 1, toy.VOCABULARY, seed=1)


@pytest.fixture(scope="module")
def prompts():
    return subjects.random_prompts(3, LENGTH, 4, toy.VOCABULARY, seed=2)


@pytest.fixture(scope="module")
def sweep():
    """Every recipe the workloads use, every kind of node, positions, several layers at once, and nothing at all."""
    some = [head(0, 1), head(1, 2), head(1, 3), head(2, 0)]
    recipes = [Recipe("zero"), Recipe("mean"), Recipe("mean", pooled=True), Recipe("resample"), Recipe("noise", draw=1)]
    recipes += [Recipe("zero_raw")]
    two = (Intervention((head(1, 0),), Recipe("zero")), Intervention((head(1, 0),), Recipe("mean"), ("last",)))
    return Sweep(
        (
            ablate([], Recipe("zero"), "intact"),
            Variant("corrupted", base="corrupted"),
            *(ablate(some, recipe, str(recipe)) for recipe in recipes),
            *(denoise([node], f"denoise {node}") for node in some),
            noise(some, "noise at changed", (CHANGED,)),
            *(denoise([Node(kind, 1)], kind, ("middle",)) for kind in workloads.SITES),
            denoise([Node("mlp", 2)], "last mlp", ("last",)),
            Variant("two steps", two),
        )
    )


@pytest.fixture(scope="module")
def expected(subject, reference, sweep, prompts):
    return LensEngine(subject.model, reference).run(sweep, prompts).logit_diff


@pytest.mark.parametrize("baseline", [baselines.HookLoop, baselines.ExpertLoop, baselines.NnsightTraces])
def test_baseline_equals_the_reference_backend(baseline, subject, reference, sweep, prompts, expected):
    found = baseline(subject, reference)(sweep, prompts)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert np.ptp(expected, axis=0).min() > 0.1  # the variants do differ


def test_nnsight_gives_the_same_in_traces_of_one_variant(subject, reference, sweep, prompts):
    together = baselines.NnsightTraces(subject, reference)(sweep, prompts)
    apart = baselines.NnsightTraces(subject, reference, rows_per_trace=1)(sweep, prompts)
    np.testing.assert_allclose(together, apart, rtol=1e-5, atol=1e-5)


def test_one_by_one_equals_all_at_once(subject, reference, sweep, prompts, expected):
    engine = LensEngine(subject.model, reference)
    found = baselines.OneByOne(lambda part, rows: engine.run(part, rows).logit_diff)(sweep, prompts)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_yardstick_equals_a_float64_lens_engine(subject, reference, sweep, prompts):
    """The toy's weights fold without rounding, so two float64 implementations agree to the last digits."""
    lens = LensEngine(toy.load(subject.folder, "float64"), reference).run(sweep, prompts).logit_diff
    plain = PlainModel.load(subject.folder, "cpu", torch.float64)
    exact = baselines.Exact(plain, reference)(sweep, prompts)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, lens, rtol=0, atol=1e-10)


def test_prompts_differ_where_they_should(prompts):
    differs = prompts.clean != prompts.corrupted
    assert not differs[:, :4].any()
    assert differs[:, 4:].all()
    assert (prompts.answers != prompts.wrong).all()
    assert (prompts.clean[:, 0] == subjects.BOS).all()
    assert int(torch.cat([prompts.clean, prompts.corrupted])[:, 1:].min()) > subjects.BOS


def test_prompts_depend_on_the_seed_alone():
    first, again = (subjects.random_prompts(4, 6, 2, 100, seed=3) for _ in range(2))
    assert first.sha256 == again.sha256
    assert first.sha256 != subjects.random_prompts(4, 6, 2, 100, seed=4).sha256
    with pytest.raises(ValueError, match="first_changed=6"):
        subjects.random_prompts(4, 6, 6, 100, seed=3)


def test_a_comparison_has_a_checked_row_for_every_engine(subject):
    """All engines within rounding of float64, and no count below the floor."""
    machine = Machine("cpu", "CPU (test)", 1, "float32", gemm=1e9, datasheet=None)
    budget = TimingBudget(prompts=2, length=6, variants_fused=12, variants_slow=3, checked=4, repeats=1)
    exact = PlainModel.load(subject.folder, "cpu", torch.float64)
    found = comparison.compare(subject, exact, workloads.get("all-heads patching"), engines.ENGINES, budget, machine)
    rows = found.records
    # on a CPU nothing is timed to choose a kernel
    assert found.candidates == []
    assert [row.engine for row in rows] == list(engines.ENGINES)
    assert [row.variants_timed for row in rows] == [3] * 5 + [12]
    assert max(row.max_abs_difference for row in rows) < 1e-3
    assert min(row.over_floor for row in rows) >= 1
    assert rows[0].times_hook_loop == 1


def test_half_precision_logits_are_subtracted_in_float32(prompts):
    """95 and 0.0703125 are bfloat16 numbers; their difference is none."""
    logits = torch.zeros(len(prompts), toy.VOCABULARY, dtype=torch.bfloat16)
    logits.scatter_(1, prompts.answers[:, :1], 95.0)
    logits.scatter_(1, prompts.wrong[:, :1], 0.0703125)
    found = baselines.logit_difference(logits, prompts)
    assert found.dtype == torch.float32
    assert found.tolist() == [95.0 - 0.0703125] * len(prompts)  # in bfloat16 it would be 95
