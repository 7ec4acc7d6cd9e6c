"""A model whose layers are on two devices gives the numbers of one device, and no operation meets tensors of both.

The devices are logical (`logical_devices`), as this machine may have one. Loading, folding and hooks are those of a real run:
transformers and accelerate place the weights by `model.device_map`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import results_io
from circuits import devices, models, narrow_weights, tasks
from circuits import study as studies
from circuits.devices import blocks_of, modules_of, spread_over
from circuits.engine import LensEngine, choose, decoder, gim, gradients
from circuits.engine.gradients import GradientEngine, Method
from circuits.measurements import MEASUREMENTS
from circuits.measurements import local_learning_coefficient as llc
from circuits.models import Model
from circuits.study import Study
from results_io import UserError
from suites.models.base import Request
from suites.models.local import LocalModel
from tests import commandline
from tests.circuits import families, toy
from tests.circuits.logical_devices import KIND, LogicalDevices

NAMES = [f"{KIND}:0", f"{KIND}:1"]
TWO = tuple(map(torch.device, NAMES))
POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": None, "dtype": "float32"}


@pytest.fixture
def two_devices() -> Iterator[LogicalDevices]:
    with LogicalDevices() as mode:
        yield mode


@pytest.fixture(scope="module")
def spread(folder) -> Callable[[str], Model]:
    """spread(architecture): the random model on two devices; to be called under `two_devices`."""
    return cache(lambda architecture: toy.load(folder(architecture), device_map=NAMES))


def study_of(model: Model, engine: str) -> Study:
    return studies.prepare(model, tasks.get("ioi"), toy.SIZES, 0, {**toy.ENGINE, "name": engine})


def differ(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference over the largest value."""
    return float(np.nanmax(np.abs(found - expected)) / np.nanmax(np.abs(expected)))


# --- the check itself ------------------------------------------------------------------------------------------------


def test_tensors_of_two_devices_do_not_meet(two_devices) -> None:
    first, second = (torch.arange(3.0, device=device) for device in TWO)
    assert (first.device, second.device, (first + 1).cpu().tolist()) == (*TWO, [1.0, 2.0, 3.0])
    for wrong in (lambda: first + second, lambda: first[torch.tensor([0])] @ second[:1], lambda: first + torch.ones(3)):
        with pytest.raises(RuntimeError, match="got tensors on"):
            wrong()
    before = two_devices.moves
    moved = second.to(TWO[0])
    assert (first + moved).cpu().tolist() == [
        0.0,
        2.0,
        4.0,
    ] and two_devices.moves == before + 2  # one of them to the CPU


def test_a_number_on_the_cpu_may_enter_element_wise_operations_only(two_devices) -> None:
    """As on CUDA, where it may neither be written into nor be stacked, indexed by or looked up."""
    some, table, ids = (torch.ones(shape, device=TWO[0]) for shape in (3, (3, 2), 2))
    number, index, ids = torch.tensor(2.0), torch.tensor(0), ids.long()
    some[ids], table[0, :] = number, number
    allowed = (some * number, torch.where(some > 1, some, number), some.masked_fill(some > 1, number))
    assert {one.device for one in allowed} == {TWO[0]} and some.tolist() == [1.0, 2.0, 1.0]
    for wrong in (
        lambda: number.add_(some[0]),
        lambda: torch.stack([some[0], number]),
        lambda: torch.nn.functional.embedding(index, table),
        lambda: table.index_select(0, index),
        lambda: torch.searchsorted(some, number),
        lambda: some.index_put_((ids,), some[:2].to(TWO[1])),
    ):
        with pytest.raises(RuntimeError, match="got tensors on"):
            wrong()


def test_the_cpus_generator_draws_for_the_cpu_alone(two_devices) -> None:
    ones = torch.ones(3, device=TWO[0])
    for wrong in (
        lambda: torch.randn(3, device=TWO[0], generator=torch.Generator()),
        lambda: ones.normal_(generator=torch.Generator()),
        lambda: torch.multinomial(ones, 1, generator=torch.Generator()),
    ):
        with pytest.raises(RuntimeError, match=f"got a generator of cpu for tensors on {TWO[0]}"):
            wrong()
    assert torch.randn(3, generator=torch.Generator()).device.type == "cpu"


# --- where weights are -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "count", "sizes"), [(12, 2, [6, 6]), (7, 3, [3, 2, 2]), (2, 3, [1, 1, 0]), (5, 1, [5])]
)
def test_blocks_are_consecutive_and_equal_to_one_layer(layers: int, count: int, sizes: list[int]) -> None:
    some = [torch.device("cuda", index) for index in range(count)]
    found = blocks_of(layers, some)
    assert found == sorted(found, key=lambda device: device.index)
    assert sorted(map(found.count, some), reverse=True) == sizes


@pytest.mark.parametrize("family", families.RUN)
def test_every_weight_of_every_family_belongs_to_one_module_of_the_map(family: str, tmp_path) -> None:
    folder = families.save(family, tmp_path)
    found = modules_of(folder, families.LAYERS, TWO)
    with torch.device("meta"):
        plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    where = {}
    for name, weight in plain.named_parameters(remove_duplicate=False):
        own = {device for module, device in found.items() if name == module or name.startswith(f"{module}.")}
        assert len(own) == 1, (name, own)
        where.setdefault(id(weight), own).update(own)
    assert all(len(own) == 1 for own in where.values())  # tied weights have one device
    assert set(found.values()) == set(NAMES)


def test_a_loaded_model_is_where_the_map_says(two_devices) -> None:
    model = models.load({**POCKET, "device_map": NAMES})
    assert (model.device, model.devices) == (TWO[0], TWO)
    assert [block.attn.W_Q.device for block in model.bridge.blocks] == [TWO[0], TWO[0], TWO[1], TWO[1]]
    assert (model.bridge.W_U.device, model.bridge.ln_final.weight.device) == TWO
    tokens = torch.randint(0, 50, (3, 9))
    expected = models.load({**POCKET, "device": "cpu"}).bridge(tokens, return_type="logits")
    found = model.bridge(tokens.to(model.device), return_type="logits").cpu()
    assert torch.equal(found, expected)


def test_of_more_devices_than_layers_the_last_have_nothing(folder, load, two_devices, monkeypatch) -> None:
    """The final norm is with the last layer, whose stream it reads; each of three layers' devices needs room for a third."""
    room: dict[torch.device, int] = {}
    monkeypatch.setattr(
        "circuits.runnable.require_room", lambda count, dtype, device, name: room.update({device: count})
    )
    some = [f"{KIND}:{index}" for index in range(5)]
    model = toy.load(folder("gpt2"), device_map=some)
    assert [str(block.attn.W_Q.device) for block in model.bridge.blocks] == some[:3]
    assert list(map(str, model.devices)) == some[:3] and str(model.bridge.ln_final.weight.device) == some[2]
    assert list(map(str, room)) == some[:3]
    tokens = torch.randint(0, 50, (3, 9))
    found = model.bridge(tokens.to(model.device), return_type="logits").cpu()
    assert torch.equal(found, load("gpt2").bridge(tokens, return_type="logits"))


# --- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["fused", "lens"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "gemma2"])
def test_a_sweep_gives_the_numbers_of_one_device(
    architecture, engine, load, spread, reference, scored, two_devices
) -> None:
    """Of every recipe, on nodes and on paths, and of both backends; the fused one has proved its parity on both devices."""
    expected = choose({**toy.ENGINE, "name": engine}, load(architecture), reference, scored)
    found = choose({**toy.ENGINE, "name": engine}, spread(architecture), reference, scored)
    assert found.describe()["backend"] == engine and found.describe()["devices"] == NAMES
    assert "devices" not in expected.describe()
    sweep, before = toy.sweep_of(found.model), two_devices.moves
    if architecture == "gemma2":  # whose attention output passes a norm, so that edits of paths are refused
        sweep = replace(sweep, variants=tuple(one for one in sweep.variants if not one.on_paths))
    own, other = found.run(sweep, scored), expected.run(sweep, scored)
    for field in ("logit_diff", "answer_probability", "foil_probability"):
        assert differ(getattr(own, field), getattr(other, field)) < 1e-5, field
    assert two_devices.moves > before


@pytest.mark.parametrize("engine", ["fused", "lens"])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_weights_of_16_bits_are_spread_too(architecture, engine, load, folder, reference, scored, two_devices) -> None:
    """As large models are run: folded, widened and multiplied on the device of each layer."""
    kept = "float32_over_bfloat16"
    model = toy.load(folder(architecture), kept, NAMES)
    assert (model.precision, model.devices) == (kept, TWO)
    weights = narrow_weights.plain(model.bridge.blocks[1].attn.o.weight)
    assert (weights.device, weights.dtype) == (TWO[1], torch.bfloat16)
    found, expected = (
        choose({**toy.ENGINE, "name": engine}, one, reference, scored) for one in (model, load(architecture, kept))
    )
    sweep = toy.sweep_of(model)
    if architecture == "gemma3":  # whose attention output passes a norm, so that edits of paths are refused
        sweep = replace(sweep, variants=tuple(one for one in sweep.variants if not one.on_paths))
    assert differ(found.run(sweep, scored).logit_diff, expected.run(sweep, scored).logit_diff) < 1e-5


@pytest.mark.parametrize("family", sorted(families.RUN.keys() - {"Mixtral"}))  # a CPU has no histogram of int32
@torch.no_grad()
def test_every_family_gives_the_numbers_of_one_device(family: str, tmp_path, two_devices) -> None:
    folder = families.save(family, tmp_path)
    one, two = toy.load(folder), toy.load(folder, device_map=NAMES)
    tokens, stream = torch.randint(0, 50, (3, 9)), torch.randn(4, toy.D_MODEL)
    assert torch.equal(two.bridge(tokens.to(two.device)).cpu(), one.bridge(tokens))
    assert torch.equal(two.logits_of(stream.to(two.device)).cpu(), one.logits_of(stream))


@pytest.mark.parametrize("modified", [False, True])
def test_gradients_of_the_models_own_modules_are_those_of_one_device(
    modified: bool, load, spread, scored, two_devices, monkeypatch
) -> None:
    """Of edges, whose streams are read at hook points in front of a block. `modified`: with GIM's backward pass."""
    monkeypatch.setattr(gradients, "_push_forward", pushed_forward)
    backward = gim.BackwardPass() if modified else None
    own, other = (
        GradientEngine(model, backward=backward).edge_scores(scored.select(range(4)), "clean", "eap").mean
        for model in (spread("gpt2"), load("gpt2"))
    )
    assert differ(own, other) < 1e-5


def pushed_forward(norm: gradients.Norm, stream: torch.Tensor, change: torch.Tensor) -> torch.Tensor:
    """As `gradients._push_forward` by two backward passes; torch's forward mode crashes on a tensor that is no plain one."""
    with torch.enable_grad():
        at = stream.detach().requires_grad_()
        found = norm(at)
        upstream = torch.zeros_like(found).requires_grad_()
        (pulled,) = torch.autograd.grad(found, at, upstream, create_graph=True)
        return torch.stack([torch.autograd.grad(pulled, upstream, one, retain_graph=True)[0] for one in change])


def test_gradients_are_those_of_one_device(load, spread, scored, two_devices) -> None:
    found, expected = (GradientEngine(model, decoder=decoder.of(model)) for model in (spread("gpt2"), load("gpt2")))
    some = scored.select(range(4))
    cases: tuple[tuple[Method, int], ...] = (("eap", 1), ("eap_ig_inputs", 2))
    for method, steps in cases:
        own, other = (engine.edge_scores(some, "clean", method, steps).mean for engine in (found, expected))
        assert differ(own, other) < 1e-5, method
    own, other = (engine.node_effects(some, "clean") for engine in (found, expected))
    assert max(differ(own[kind].plain, other[kind].plain) for kind in own) < 1e-5


@pytest.mark.parametrize("engine", ["fused", "lens"])
@torch.no_grad()
def test_losses_of_displaced_heads_are_those_of_one_device(engine: str, load, spread, two_devices) -> None:
    """Of a head of each layer, from the weights and by the model's own blocks."""
    studied = [study_of(model, engine) for model in (load("gpt2"), spread("gpt2"))]
    for layer in range(load("gpt2").n_layers):
        found = []
        for study in studied:
            prompts = study.prompts.select(range(8))
            losses = llc.LayerLosses(study, prompts, layer, llc.matrix_units(study.model))
            minimum = llc.answer_loss(study.engine.end_logits(prompts), prompts.answers).to(study.model.device)
            losses.require_faithful(minimum, 1e-4)
            drawn = torch.randn(2, losses.n_parameters, generator=torch.Generator().manual_seed(0)) / 4
            rows = torch.tensor([[0, 3, 5], [7, 1, 2]]).to(study.model.device)
            of = losses.of_heads([0, 1])
            found.append(of(drawn.to(study.model.device), rows, torch.arange(2, device=rows.device)).cpu().numpy())
        assert differ(found[1], found[0]) < 1e-5, layer
        assert np.abs(found[0] - found[0][0, 0]).max() > 1e-3  # losses differ, so that equal ones say something


@pytest.mark.parametrize("kind", ["zero", "mean"])
def test_a_plain_model_answers_as_on_one_device_with_heads_silenced_too(kind: str, two_devices) -> None:
    """As suites run it; the silenced heads are on both devices."""
    said, texts = [], ["Tom went to the store with Mary ."]
    for where in ({"device": "cpu"}, {"device_map": NAMES}):
        silenced = {"heads": ["L0H1", "L3H2"], "kind": kind, "reference": texts if kind == "mean" else []}
        model = LocalModel({**POCKET, **where, "intervention": silenced})
        request = Request("Then , Tom and Mary went to the store . Tom gave a book to", max_tokens=4)
        said.append(model.generate([request])[0].text)
        logprobs = model.loglikelihood([(request.prompt, " Mary"), (request.prompt, " Tom")])
        said.append([round(one.logprob, 4) for one in logprobs])
    assert said[:2] == said[2:] and len({*said[1]}) == 2


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"device_map": 0}, "model.device_map=0 is no number of cpu devices"),
        ({"device_map": "two"}, "model.device_map=two is neither a number nor a list of devices"),
        (
            {"device_map": ["cpu", "cuda:99"]},
            "model.device_map names cuda:99, which is not on this machine; name devices that are, or leave it out",
        ),
        (
            {"device_map": ["meta", "cpu"]},
            "model.device_map=['meta', 'cpu'] begins with meta and model.device is cpu; name the same device first",
        ),
        (
            {"device_map": ["cpu", "meta"]},
            "model.device_map=['cpu', 'meta'] has cpu and meta, devices of two kinds; name devices of one kind",
        ),
    ],
)
def test_what_is_no_map_is_refused(settings, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        models.load({**POCKET, "device": "cpu", **settings})
    assert str(refused.value).startswith(sentence) and "\n" not in str(refused.value)


def test_one_device_named_twice_is_one() -> None:
    assert spread_over({"device": "cpu", "device_map": ["cpu", "cpu"]}) == (torch.device("cpu"),)
    assert models.load({**POCKET, "device": "cpu", "device_map": 2}).devices == (torch.device("cpu"),)


def test_a_model_built_in_memory_is_not_spread(two_devices) -> None:
    settings = {"name": "planted", "kind": "planted", "variant": "sound", "device": None, "device_map": NAMES}
    with pytest.raises(UserError, match="spreads a model that is read from a folder, and planted is built in memory"):
        models.load(settings)


def test_a_spread_model_is_not_copied_too(spread, reference, scored, two_devices) -> None:
    with pytest.raises(
        UserError, match=f"engine.devices=2 copies a model and model.device_map spreads one over {NAMES[0]}"
    ):
        choose({**toy.ENGINE, "name": "fused", "devices": 2}, spread("gpt2"), reference, scored)


def test_room_is_that_of_the_smallest_device(spread, reference, monkeypatch, two_devices) -> None:
    model, room = spread("gpt2"), {TWO[0]: 7 * 2**20, TWO[1]: 5 * 2**20}
    monkeypatch.setattr("circuits.engine.memory.room", lambda device, **_: room[device])
    asked: list[tuple[int, torch.device]] = []
    monkeypatch.setattr(
        "circuits.runnable.require_room", lambda count, dtype, device, name: asked.append((count, device))
    )
    assert LensEngine(model, reference).room == 5 * 2**20
    models.load({**POCKET, "device_map": NAMES})
    layer = 192 * 4 * 192 + 4 * 192 + 2 * 192 * 384 + 384 + 192 + 4 * 192  # attention, feed-forward, two norms
    assert asked == [
        (2 * layer + (680 + 64) * 192, TWO[0]),
        (2 * layer + 2 * 192, TWO[1]),
    ]  # embeddings; the final norm
    assert devices.device_of({"device": NAMES[1]}) == NAMES[1]


# --- a whole run -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(2400)  # every operation of the second run is looked at in Python
def test_a_whole_run_gives_the_numbers_of_one_device(tmp_path, two_devices, monkeypatch) -> None:
    """Every measurement of the main job on pocket, spread over two devices. LLC is drawn by chains that amplify rounding."""
    whole = commandline.command(*commandline.SMALL, f"results={tmp_path / 'whole'}")
    load = models.load
    monkeypatch.setattr(
        models, "load", lambda settings, *rest: load({**settings, "device": None, "device_map": NAMES}, *rest)
    )
    halves = commandline.command(*commandline.SMALL, f"results={tmp_path / 'halves'}")
    assert (whole.code, halves.code) == (0, 0), halves.errors
    compared = 0
    for number, module in MEASUREMENTS.items():
        found, expected = (
            dict(numbers_in(results_io.read(next((tmp_path / name).rglob(f"{number}_{module.ID}.json")))["data"]))
            for name in ("halves", "whole")
        )
        assert found.keys() == expected.keys(), number
        worst = max((abs(found[place] - expected[place]) for place in expected), default=0.0)
        assert worst < (1e-4 if number != "10" else 0.05), number
        compared += len(expected)
    assert compared > 100_000


def numbers_in(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """(place, number) of every decimal number in JSON data."""
    if isinstance(value, float):
        yield place, value
    for name, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from numbers_in(part, f"{place}/{name}")
