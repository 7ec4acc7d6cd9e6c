"""One sweep on several devices: the same numbers, whoever computed which variant. Here all devices are the CPU."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from circuits.devices import devices_of
from circuits.engine import FusedEngine, LensEngine, choose, memory
from circuits.engine.sharded import ShardedEngine
from circuits.engine.sources import Sources
from circuits.interventions import Recipe
from results_io import UserError
from tests.circuits import toy

CPU = torch.device("cpu")
HOOK = "blocks.1.attn.hook_z"


@pytest.fixture(scope="module")
def engines(load, reference):
    """engines(architecture, n): (one device, n of them)"""

    def make(architecture: str, n: int):
        alone = FusedEngine(load(architecture), reference)
        return alone, ShardedEngine(FusedEngine(load(architecture), reference), [CPU] * n)

    return cache(make)


@pytest.fixture(scope="module")
def sweep(load):
    return toy.sweep_of(load("gpt2"))


@pytest.mark.sampled(6)
@pytest.mark.every_architecture
@pytest.mark.parametrize("n", [2, 3, 40])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_the_numbers_are_those_of_one_device(architecture, n, engines, scored) -> None:
    """Forty are more than there are variants, so that some have nothing to do."""
    alone, together = engines(architecture, n)
    sweep = toy.sweep_of(alone.model)
    counted: list[int] = []
    found, expected = together.run(sweep, scored, counted.append), alone.run(sweep, scored)
    for field in ("logit_diff", "answer_probability", "foil_probability"):
        values = getattr(expected, field)
        assert np.abs(getattr(found, field) - values).max() < 1e-5 * np.abs(values).max(), field
    assert np.array_equal(found.correct, expected.correct)
    assert (found.names, found.sweep_sha256, found.prompts_sha256) == (
        expected.names,
        expected.sweep_sha256,
        expected.prompts_sha256,
    )
    assert sum(counted) == len(sweep) * len(scored)


def test_every_device_runs_its_share_on_weights_of_its_own_and_paths_run_on_the_first(engines, sweep) -> None:
    _, together = engines("gpt2", 3)
    shares = together._shares(sweep)
    assert sorted(number for share in shares for number in share) == list(range(len(sweep)))
    assert [len(share) for share in shares] == [10, 9, 9]  # the path with rows of its own is one more on the first
    assert [variant.name for variant in sweep.variants].index("to a query") in shares[0]
    assert together.describe()["devices"] == ["cpu"] * 3
    decoders = {id(engine.decoder) for engine in (together, *together.replicas)}
    assert len(decoders) == 3


def test_devices_work_at_the_same_time(engines, sweep, scored, monkeypatch) -> None:
    """Each waits for the others before it begins; one after the other, the first would wait in vain."""
    _, together = engines("gpt2", 3)
    barrier, run = threading.Barrier(3, timeout=60), FusedEngine.run

    def together_with_the_others(self, *args):
        barrier.wait()
        return run(self, *args)

    monkeypatch.setattr(FusedEngine, "run", together_with_the_others)
    assert together.run(sweep, scored.select([0])).logit_diff.shape == (len(sweep), 1)


def test_no_replica_touches_the_weights_of_the_first(load, reference, scored, sweep) -> None:
    """If a replica's weights are spoilt, its share of the numbers is, and no other."""
    together = ShardedEngine(FusedEngine(load("gpt2"), reference), [CPU] * 2)
    expected = together.run(sweep, scored).logit_diff
    replica = together.replicas[0]
    replica.decoder = replace(replica.decoder, unembedding=replica.decoder.unembedding * 2)
    found = together.run(sweep, scored).logit_diff
    own = together._shares(sweep)[1]
    rest = [number for number in range(len(sweep)) if number not in own]
    assert np.array_equal(found[rest], expected[rest])
    assert (np.abs(found[own] - expected[own]).max(1) > 1e-3).all()


def test_other_reference_prompts_reach_every_device(engines, sweep, scored, reference) -> None:
    alone, together = engines("gpt2", 3)
    rows = [[row for row, own in enumerate(reference.templates) if own == name] for name in set(reference.templates)]
    half = reference.select(sorted(row for own in rows for row in own[:5]))  # five of each template's six
    assert np.abs(alone.on(half).run(sweep, scored).logit_diff - alone.run(sweep, scored).logit_diff).max() > 1e-3
    found, expected = together.on(half).run(sweep, scored), alone.on(half).run(sweep, scored)
    assert np.abs(found.logit_diff - expected.logit_diff).max() < 1e-4


def test_a_replica_puts_in_place_what_is_on_its_own_device(load, reference, scored) -> None:
    """On the meta device nothing from elsewhere can be mixed in. What the reference prompts gave is moved there once."""
    together = ShardedEngine(FusedEngine(load("gpt2"), reference), [CPU, torch.device("meta")])
    (replica,) = together.replicas
    moved = together._reference_of(replica)
    assert together._reference_of(replica) is moved and together._reference_of(together) is together.reference
    sources = Sources(scored.select([0, 3]), moved, replica.on_device)
    recipes = (Recipe("zero"), Recipe("zero_raw"), Recipe("mean"), Recipe("mean", pooled=True), Recipe("resample"))
    noises = (Recipe("noise"), Recipe("noise", draw=1, scale=0.5), Recipe("noise", additive=True), Recipe("patch"))
    for recipe in (*recipes, *noises):
        expected = Sources(scored.select([0, 3]), together.reference, together.on_device).get(HOOK, recipe)
        found = sources.get(HOOK, recipe)
        assert (found.device.type, found.shape, found.dtype) == ("meta", expected.shape, expected.dtype), recipe


def test_replicas_on_one_device_divide_its_room(load, reference) -> None:
    alone = FusedEngine(load("gpt2"), reference, memory_mib=90)
    room, together = alone.room, ShardedEngine(alone, [CPU] * 3)
    assert [engine.room for engine in (together, *together.replicas)] == [room // 3] * 3
    allowances = {id(engine.allowance) for engine in (together, *together.replicas)}
    assert len(allowances) == 3


def test_a_replica_has_the_room_of_its_own_device(load, reference, monkeypatch) -> None:
    rooms = {"cpu": 900, "meta": 500}
    monkeypatch.setattr(memory, "room", lambda device, memory_mib, memory_share: rooms[device.type])
    together = ShardedEngine(FusedEngine(load("gpt2"), reference), [CPU, torch.device("meta"), CPU])
    assert [engine.room for engine in (together, *together.replicas)] == [450, 500, 450]


@pytest.mark.slow
def test_the_setting_chooses_it_with_parity_proved_on_all(load, reference, scored) -> None:
    one = choose({**toy.ENGINE, "name": "fused", "devices": 2}, load("gpt2"), reference, scored)
    assert isinstance(one, ShardedEngine) and len(one.replicas) == 1
    assert one.describe()["why"] == "parity with lens within 0.0001"
    for devices in (None, 1, ["cpu"]):
        one = choose({**toy.ENGINE, "name": "fused", "devices": devices}, load("gpt2"), reference, scored)
        assert type(one) is FusedEngine
    assert type(choose({**toy.ENGINE, "name": "lens"}, load("gpt2"), reference, scored)) is LensEngine


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            0,
            "engine.devices=0 is no number of cpu devices, of which there are as many as copies fit the memory; use 1 to 1024",
        ),
        (10**12, "engine.devices=1000000000000 is no number of cpu devices"),
        (-2, "engine.devices=-2 is no number of cpu devices"),
        (True, "engine.devices=True is neither a number nor a list of devices; use 2 or [cuda:0,cuda:1]"),
        (1.5, "engine.devices=1.5 is neither a number nor a list of devices"),
        ("two", "engine.devices=two is neither a number nor a list of devices"),
        ([], "engine.devices=[] is neither a number nor a list of devices"),
        (
            ["cpu", "cuda:99"],
            "engine.devices names cuda:99, which is not on this machine; name devices that are, or leave it out",
        ),
        (["cpu", "grün"], "engine.devices names grün, which is not on this machine"),
        (["grün"], "engine.devices names grün, which is not on this machine"),
        (
            ["meta", "cpu"],
            "engine.devices=['meta', 'cpu'] begins with meta and the model is on cpu; name the model's own",
        ),
    ],
)
def test_what_is_no_list_of_devices_is_refused(asked, sentence) -> None:
    with pytest.raises(UserError) as refused:
        devices_of(asked, CPU)
    assert str(refused.value).startswith(sentence) and "\n" not in str(refused.value)


def test_the_reference_backend_shares_nothing_out(load, reference, scored) -> None:
    with pytest.raises(UserError, match=r"engine.devices=2 shares out sweeps of the fused backend; use engine=fused"):
        choose({**toy.ENGINE, "name": "lens", "devices": 2}, load("gpt2"), reference, scored)
