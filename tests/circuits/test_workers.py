"""Work side by side in threads: the same numbers as one after the other, whatever the number of threads."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from circuits.engine import FusedEngine, LensEngine, fused
from circuits.engine.gradients import GradientEngine
from circuits.engine.workers import run_parallel, worker_count
from circuits.interventions import Recipe, Sweep, Variant, ablate, denoise, noise, patch_paths
from tests.circuits import toy

CPU = torch.device("cpu")


@pytest.fixture
def threads():
    """threads(n) sets torch's threads; they are put back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_results_come_in_order_from_several_threads(threads) -> None:
    threads(3)
    seen = set()

    def work(item: int) -> list[int]:
        seen.add(threading.get_ident())
        assert torch.get_num_threads() == 1
        time.sleep(0.02 * (4 - item % 4))
        return [item, -item]

    found = list(run_parallel(work, range(8), CPU))
    assert found == [sign * item for item in range(8) for sign in (1, -1)]
    assert 1 < len(seen) <= 3
    assert threading.get_ident() not in seen
    assert torch.get_num_threads() == 3


def test_one_thread_and_other_devices_take_the_plain_way(threads) -> None:
    threads(1)
    here = threading.get_ident()
    assert list(run_parallel(lambda item: [threading.get_ident()], range(2), CPU)) == [here, here]
    threads(2)
    assert worker_count(CPU) == 2
    assert worker_count(torch.device("cuda")) == 1
    assert list(run_parallel(lambda item: [threading.get_ident()], range(2), torch.device("meta"))) == [here, here]


def test_a_single_item_keeps_torch_s_own_threads(threads) -> None:
    threads(2)
    assert list(run_parallel(lambda item: [torch.get_num_threads()], [0], CPU)) == [2]


@pytest.mark.parametrize(
    ("sizes", "n_threads", "expected"), [([7], 2, [3, 4]), ([7], 4, [1, 2, 2, 2]), ([1], 4, [1]), ([5, 2], 2, [2, 5])]
)
def test_buckets_are_halved_until_every_thread_has_one(sizes, n_threads, expected) -> None:
    rows = iter(range(100))
    buckets = [[next(rows) for _ in range(size)] for size in sizes]
    found = fused._shared(buckets, n_threads)
    assert sorted(map(len, found)) == expected
    assert sorted(row for bucket in found for row in bucket) == list(range(sum(sizes)))


def test_an_error_reaches_the_caller_and_the_threads_are_put_back(threads) -> None:
    threads(2)
    begun = []

    def work(item: int) -> list[int]:
        begun.append(item)
        time.sleep(0.01)
        if item == 1:
            raise torch.OutOfMemoryError("one")
        return [item]

    with pytest.raises(torch.OutOfMemoryError, match="one"):
        list(run_parallel(work, range(50), CPU))
    assert len(begun) < 50
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("wanted", [True, False])
def test_threads_inherit_whether_gradients_are_wanted(wanted, threads) -> None:
    threads(2)
    with torch.set_grad_enabled(wanted):
        assert list(run_parallel(lambda item: [torch.is_grad_enabled()], range(4), CPU)) == [wanted] * 4


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_a_sweep_s_numbers_do_not_depend_on_threads(architecture, load, reference, scored, threads) -> None:
    """A fresh engine each time: what it finds out about the model on the way, it must find out once."""
    model = load(architecture)
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [make([node], f"{make.__name__} {node}") for node in model.heads for make in (denoise, noise)]
    variants += [ablate(model.heads[:5], Recipe(kind), kind) for kind in ("zero", "mean", "resample", "noise")]
    variants += [patch_paths([edge], Recipe("zero"), str(edge)) for edge in model.graph.edges[::9]]
    sweep = Sweep(tuple(variants))
    threads(1)
    alone = FusedEngine(model, reference).run(sweep, scored)
    threads(4)
    for _ in range(6):
        done: list[int] = []
        engine = FusedEngine(model, reference)
        together = engine.run(sweep, scored, done.append)
        assert np.abs(together.logit_diff - alone.logit_diff).max() < 1e-5 * np.abs(alone.logit_diff).max()
        assert sum(done) == len(sweep) * len(scored)


def test_gradients_do_not_depend_on_threads(load, reference, scored, threads) -> None:
    model = load("llama")
    decoder = FusedEngine(model, reference).decoder
    found = []
    for count in (1, 3):
        threads(count)
        engine = GradientEngine(model, decoder=decoder)
        edges = np.nan_to_num(engine.edge_scores(scored, "corrupted", "eap").mean)
        found.append((engine.head_effects(scored, "corrupted").plain, edges))
    for one, other in zip(*found, strict=True):
        assert np.abs(one - other).max() < 1e-5 * np.abs(one).max()


def test_threads_that_read_one_model_by_hooks_take_turns(threads, model, scored, reference) -> None:
    """A source of patches may be another engine's hooks (two checkpoints): sets of other lengths, read at the same time."""
    engine = LensEngine(model, reference)
    parts = [scored.select([row]) for row in range(6)]
    assert len({int(one.end[0]) for one in parts}) > 1
    alone = [engine.activations(one, "clean", ("blocks.0.attn.hook_z",)) for one in parts]
    threads(3)

    def read(row: int) -> list[torch.Tensor]:
        return [engine.activations(parts[row], "clean", ("blocks.0.attn.hook_z",))["blocks.0.attn.hook_z"]]

    for _ in range(10):
        for found, expected in zip(run_parallel(read, range(6), CPU), alone, strict=True):
            assert torch.equal(found, expected["blocks.0.attn.hook_z"])
