"""What a run will measure, counted beforehand, against what its progress bars count; and what the cost is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from circuits.interventions import Sweep, denoise
from circuits.measurements import MEASUREMENTS
from circuits.models import UnsupportedArchitectureError
from circuits.study import Study
from meridian.doctor import estimate, rates, work
from meridian.doctor.rates import Throughput
from tests.circuits import toy

IN_SWEEPS = ("01", "02", "03", "05", "06", "07", "08", "10", "19", "20", "21", "22", "24", "27", "28")
OTHERWISE = {
    "corruption": {"strategy": "noise", "noise_scale": 3.0, "draws": 3, "seed": 0},
    "mediation": {"onward": False},
    "battery": {"circuit": ["mean", "noise"], "without": ["resample"]},
    "attribution_patching": {**toy.SETTINGS["attribution_patching"], "gradient_dropping": False, "steps": 1},
    "scrubbing": {"draws": 3, "seed": 0, "prompts": 30},
    "path_patching": {"prompts": 2, "discovery_prompts": 30, "most_edges": 3000, "edge_share": 0.02, "edge_sizes": [1]},
    "site_prompts": 50,
    "draws": 3,
}


class Count:
    def __init__(self) -> None:
        self.expected = self.done = 0

    def expect(self, pairs: int) -> None:
        self.expected += pairs

    def advance(self, pairs: int) -> None:
        self.done += pairs


def counted(study: Study, numbers) -> dict[str, Count]:
    """What the progress of every measurement says, measured in order with sweeps shared as in a run."""
    study, found = replace(study, done={}), {}
    for number in numbers:
        found[number] = Count()
        MEASUREMENTS[number].measure(replace(study, progress=found[number]))
    return found


def estimated(study: Study, number: str) -> int:
    return sum(one.pairs for one in work.of(study) if one.number == number)


@pytest.fixture(scope="module")
def first(make_study) -> tuple[Study, dict[str, Count]]:
    return make_study(), counted(make_study(), IN_SWEEPS)


@pytest.mark.slow
@pytest.mark.parametrize("number", IN_SWEEPS)
def test_every_measurement_is_counted_exactly_or_bounded(number, first) -> None:
    study, found = first
    bounds = {one.bound for one in work.of(study) if one.number == number}
    count = found[number]
    if number == "22":
        assert bounds == {"at most"}
        assert count.done <= estimated(study, number) <= 2 * count.done
    elif number == "10":
        assert bounds == {"at least"}
        assert count.expected == estimated(study, number) <= count.done
    else:
        assert bounds <= {"exact"}
        assert count.done == count.expected == estimated(study, number)


@pytest.mark.slow
def test_the_whole_is_within_five_per_cent(first) -> None:
    study, found = first
    total = sum(count.done for count in found.values())
    assert sum(one.pairs for one in work.of(study) if one.number in IN_SWEEPS) == pytest.approx(total, rel=0.05)


def test_what_is_not_counted_reports_no_progress(make_study) -> None:
    rest = [n for n, module in MEASUREMENTS.items() if n not in IN_SWEEPS and not hasattr(module, "pairs")]
    assert rest == ["04", "09", "25", "26"]
    assert all(count.done == 0 for count in counted(make_study(), ("04", "25")).values())


@pytest.mark.slow
@pytest.mark.parametrize("number", ["05", "06", "08", "20", "24", "28"])
def test_other_settings_and_grouped_query_attention_are_counted_too(number, make_study) -> None:
    study = make_study("qwen2")
    circuit = replace(toy.circuit(), roles={name: role for name, role in toy.circuit().roles.items() if name != "late"})
    study = replace(study, circuit=circuit, settings={**toy.SETTINGS, **OTHERWISE}, done={})
    if number == "05":
        counted_alone = counted(study, ("02", "05"))  # which pays for the heads that 05 reads
        assert counted_alone["02"].done == estimated(study, "02")
        assert counted_alone["05"].done == estimated(study, "05") == 0
    else:
        assert counted(study, (number,))[number].done == estimated(study, number)


def test_work_grows_with_heads_and_prompts_as_it_should(make_study) -> None:
    shape = replace(
        work.RunSize.of(make_study()), heads=144, layers=12, evaluation=400, held_out=200, roles=5, companions=4
    )
    settings = {**toy.SETTINGS, "site_prompts": 100, "companions": 4, "companion_prompts": 100}
    found = {one.number: one.pairs for one in work._patching(shape, settings)}
    assert found["02"] == 290 * 600 + (2 + 3 * 12 * 5) * 100
    assert found["21"] == 145 * 600
    assert found["05"] == 144 * 600
    assert found["27"] == 4 * 146 * 100


def test_companions_are_counted_as_they_are_measured(make_study) -> None:
    """None without companions, none for the task itself or one that is named twice, and of a file only the rows that it has."""
    study = make_study()
    file = replace(study.task, name="file-x", given={"evaluation": (None,) * 7})

    def pairs(named: tuple[str, ...], **settings: int) -> int:
        task = replace(study.task, companions=named, others={"file-x": file})
        shape = work.RunSize.of(replace(study, task=task))
        settings = {**toy.SETTINGS, "companions": 4, "companion_prompts": 50, **settings}
        return {one.number: one.pairs for one in work._patching(shape, settings)}["27"]

    runs = 2 + len(study.model.heads)
    assert pairs(()) == 0
    assert pairs(("induction",)) == pairs(("induction", "induction", study.task.name)) == runs * 50
    assert pairs(("file-x",)) == runs * 7
    assert pairs(("induction", "file-x")) == pairs(("file-x", "induction")) == runs * 57
    assert pairs(("file-x", "induction"), companions=1) == runs * 7
    assert pairs(("file-x", "induction"), companion_prompts=5) == runs * 10


def test_an_unknown_circuit_is_assumed_and_said_to_be(make_study) -> None:
    study = replace(make_study(task="ioi"), circuit=None)
    found, assumed = work.with_circuit(study, None)
    assert assumed
    assert len(found.circuit.heads) == round(12 * 26 / 144) == 2
    known, assumed = work.with_circuit(study, toy.circuit())
    assert not assumed
    assert known.circuit == toy.circuit()


@pytest.fixture
def fixed(monkeypatch):
    """Ten pairs a second of everything."""

    def measure(study, todo, say):
        return {one.kind: Throughput(one.kind, 20, 2, 2.0) for one in todo}, {}

    monkeypatch.setattr(rates, "measure", measure)


@pytest.mark.slow
def test_minutes_are_pairs_over_rate_and_the_longest_are_named(first, fixed) -> None:
    study, _ = first
    found = estimate.estimate(study, study.circuit, lambda step: None)
    assert found.minutes == pytest.approx(found.pairs / 10 / 60)
    by_number = {}
    for one in found.items:
        by_number[one.number] = by_number.get(one.number, 0) + one.pairs
    longest = sorted(by_number, key=by_number.get, reverse=True)[: estimate.DOMINANT]
    assert [line[:2] for line in found.advice] == longest
    share = by_number[longest[0]] / found.pairs
    assert f"is {share:.0%} of it; shrink it with {work.SHRINK[longest[0]]}" in found.advice[0]
    assert set(work.SHRINK) == set(IN_SWEEPS)


@pytest.mark.slow
def test_memory_is_that_of_the_weights_and_what_is_stored(first, fixed) -> None:
    study, _ = first
    memory = estimate.estimate(study, study.circuit, lambda step: None).memory
    weights = sum(p.numel() for p in study.model.bridge.parameters()) * 4 / 2**20
    assert memory.weights == pytest.approx(weights)
    assert (memory.room, memory.rows_per_forward) == (64, study.engine.rows_per_forward)
    every_head = Sweep(tuple(denoise([head], str(head)) for head in study.model.heads), probabilities=True)
    assert memory.sweep == study.engine.planned(every_head, study.prompts) / 2**20
    assert 0 < memory.sweep <= memory.room
    names = [
        f"blocks.{layer}.{name}" for layer in range(3) for name in ("attn.hook_z", "hook_attn_out", "hook_mlp_out")
    ]
    stored = study.engine.activations(study.prompts, "clean", tuple(names))
    assert memory.activations == sum(values.numel() * 4 for values in stored.values()) / 2**20
    assert memory.peak > memory.weights


def test_speed_is_measured_of_every_kind_of_work(first, monkeypatch) -> None:
    study, said = first[0], []
    monkeypatch.setattr(rates, "SECONDS", 0.0)
    found, left_out = rates.measure(study, work.of(study), said.append)
    assert not left_out
    assert set(found) == set(work.KINDS)
    assert said == [f"timing {kind}" for kind in found]
    assert {rate.prompts for rate in found.values()} == {rates.FEWEST_PROMPTS}
    assert found["heads"].pairs == 4 * 2 * len(study.model.heads)
    assert found["chains"].pairs == 2 * 2 * 4 * 3 * 4  # passes, layers, heads, chains, rows
    assert all(rate.per_second > 0 for rate in found.values())


def test_prompts_are_doubled_until_it_takes_long_enough(first, monkeypatch) -> None:
    study, sizes = first[0], []
    monkeypatch.setattr(rates, "SECONDS", 1e9)
    rate = rates._timed("heads", lambda prompts: sizes.append(len(prompts)) or 10 * len(prompts), study)
    assert sizes == [1, 4, 8, 16, 20]  # as many evaluation prompts as there are
    assert (rate.pairs, rate.prompts) == (200, 20)


def test_work_that_the_architecture_does_not_allow_is_left_out_with_the_reason(first, monkeypatch) -> None:
    def refuse(study):
        raise UnsupportedArchitectureError("its heads share what they read")

    monkeypatch.setattr(rates, "SECONDS", 0.0)
    monkeypatch.setattr(rates, "_paths", refuse)
    study = first[0]
    found = estimate.estimate(study, study.circuit, lambda step: None)
    assert found.left_out == {"paths": "its heads share what they read"}
    assert {one.kind for one in found.items} == set(work.KINDS) - {"paths"}
    assert found.pairs == sum(one.pairs for one in work.of(study) if one.kind != "paths")
