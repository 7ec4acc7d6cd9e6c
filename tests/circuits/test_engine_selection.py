"""Which backend a study gets, and that a fused one that is wrong is found out."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from transformers import PhiConfig, PhiForCausalLM

from circuits import study as studies
from circuits import tasks
from circuits.circuit import head
from circuits.engine import DEFAULTS, FusedEngine, LensEngine, choose, decoder, selection
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measure import Plan, measure
from circuits.models import UnsupportedArchitectureError
from results_io import UserError
from shown_progress import NoProgress
from tests.circuits import toy

CONFIGS = Path(__file__).parents[2] / "configs"


def ask(model, reference, scored, name="auto", **change):
    return choose({**toy.ENGINE, "name": name, **change}, model, reference, scored)


# --- what is chosen ---------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["auto", "fused"])
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_the_toys_are_run_fused(architecture, name, load, reference, scored) -> None:
    engine = ask(load(architecture), reference, scored, name)
    assert type(engine) is FusedEngine
    described = engine.describe()
    assert described["backend"] == "fused"
    assert described["why"] == "parity with lens within 0.0001"
    assert described["kernels"] == {} or set(map(tuple, described["kernels"].values())) == {("reference",)}


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", "1e-06"), ("bfloat16", "0.1")])
def test_parity_is_asked_as_closely_as_the_dtype_allows(dtype, tolerance, load, reference, scored) -> None:
    engine = ask(load("gpt2", dtype), reference, scored)
    assert engine.describe()["why"] == f"parity with lens within {tolerance}"
    assert type(engine) is FusedEngine


def test_lens_is_taken_where_it_is_asked_for(model, reference, scored, monkeypatch) -> None:
    monkeypatch.setattr(selection, "prove_parity", lambda *_: pytest.fail("nothing to compare"))
    engine = ask(model, reference, scored, "lens", rows_per_forward=77)
    assert type(engine) is LensEngine
    assert engine.rows_per_forward == 77
    drawn = "Philox4x32-10, Box-Muller"
    assert engine.describe() == {"backend": "lens", "why": "asked for", "kernels": {}, "random": drawn}


def test_settings_reach_the_fused_engine(model, reference, scored) -> None:
    engine = ask(model, reference, scored, "fused", memory_mib=3, tokens_per_block=99, rows_per_forward=11)
    assert engine.room == engine.allowance.now == 3 * 2**20
    assert (engine.tokens_per_block, engine.rows_per_forward) == (99, 11)


def test_another_name_is_refused_with_the_known_ones(model, reference, scored) -> None:
    with pytest.raises(UserError, match=r"engine.name=fast is unknown; use one of auto, fused, lens"):
        ask(model, reference, scored, "fast")


# --- a decoder that is wrong ------------------------------------------------------------------------------------

SPOILED = {
    "scale": lambda one: replace(one, scale=1.1 * one.scale),
    "activation": lambda one: replace(one, activation=torch.nn.functional.relu),
    "SiLU in place of GELU": lambda one: replace(one, activation=torch.nn.functional.silu),
    "norm": lambda one: replace(one, centred=False, eps=0.1),
    "positions": lambda one: replace(one, positions=one.positions.roll(1, 0)),
    "one bias of the last MLP": lambda one: replace(
        one, layers=(*one.layers[:-1], replace(one.layers[-1], mlp_out_bias=one.layers[-1].mlp_out_bias.roll(1)))
    ),
    "heads in another order": lambda one: replace(
        one, layers=(replace(one.layers[0], output=one.layers[0].output.flip(0)), *one.layers[1:])
    ),
    "unembedding": lambda one: replace(one, unembedding=one.unembedding.roll(1, 0)),
    "not a number": lambda one: replace(one, unembedding=one.unembedding * float("nan")),
}


@pytest.fixture(params=SPOILED)
def spoiled(request, monkeypatch):
    """Every decoder is made wrong in one way."""
    make = decoder.of
    monkeypatch.setattr(decoder, "of", lambda model: SPOILED[request.param](make(model)))


@pytest.mark.slow
def test_auto_falls_back_and_says_why_and_fused_refuses(spoiled, model, reference, scored) -> None:
    engine = ask(model, reference, scored)
    assert type(engine) is LensEngine
    why = engine.describe()["why"]
    assert why.startswith("the fused backend's numbers for toy/gpt2 differ from the reference backend's by ")
    assert why.endswith("; use engine=lens")
    with pytest.raises(UserError, match=r"toy/gpt2 differ from the reference backend's by .*; use engine=lens"):
        ask(model, reference, scored, "fused")


def test_a_fallback_gives_the_reference_backend_s_numbers(model, reference, scored, monkeypatch) -> None:
    sweep = Sweep((Variant("clean"), ablate([head(0, 1)], Recipe("mean"), "a")))
    expected = LensEngine(model, reference).run(sweep, scored)
    make = decoder.of
    monkeypatch.setattr(decoder, "of", lambda model: SPOILED["scale"](make(model)))
    found = ask(model, reference, scored).run(sweep, scored)
    assert np.array_equal(found.logit_diff, expected.logit_diff)


@pytest.mark.slow
def test_a_difference_below_the_tolerance_is_none(model, reference, scored, monkeypatch) -> None:
    make = decoder.of
    monkeypatch.setattr(decoder, "of", lambda model: replace(make(model), scale=(1 + 1e-3) * make(model).scale))
    strict, lenient = (ask(model, reference, scored, tolerance={"float32": tolerance}) for tolerance in (1e-5, 1.0))
    assert (type(strict), type(lenient)) == (LensEngine, FusedEngine)
    assert lenient.why == "parity with lens within 1"


# --- models that are no such decoder ----------------------------------------------------------------------------


def test_an_architecture_that_is_not_written_down_is_run_by_the_reference_backend(tmp_path, reference, scored) -> None:
    ids = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False}
    sizes = {"vocab_size": toy.VOCABULARY, "hidden_size": toy.D_MODEL, "num_attention_heads": toy.N_HEADS}
    network = PhiForCausalLM(PhiConfig(**ids, **sizes, num_hidden_layers=2, intermediate_size=64))
    model = toy.load(toy.save(toy.randomise(network, 0).eval(), tmp_path / "phi"))
    engine = ask(model, reference, scored)
    assert type(engine) is LensEngine
    assert "toy/phi cannot be run fused, as it is no pre-norm decoder" in engine.describe()["why"]
    with pytest.raises(UnsupportedArchitectureError, match="toy/phi cannot be run fused"):
        ask(model, reference, scored, "fused")
    assert issubclass(UnsupportedArchitectureError, UserError)


def test_a_layer_whose_heads_write_nothing_is_no_reason_to_refuse(tmp_path, reference, scored) -> None:
    """Its hooks are dead in both backends; what is alive is compared."""
    network = toy.build("gpt2")
    with torch.no_grad():
        network.transformer.h[1].attn.c_proj.weight.zero_()
    engine = ask(toy.load(toy.save(network, tmp_path / "dead")), reference, scored, "fused")
    assert engine.why == "parity with lens within 0.0001"


# --- probes -----------------------------------------------------------------------------------------------------


def test_probes_have_as_many_lengths_as_there_are(scored) -> None:
    rows = selection._of_different_lengths(scored)
    lengths = set(scored.end.tolist())
    assert len(rows) == len(set(rows)) == selection.PROBES
    assert len(set(scored.end[rows].tolist())) == min(len(lengths), selection.PROBES)
    assert selection._of_different_lengths(scored.select([0])) == [0]
    assert len(selection._of_different_lengths(scored.select([0, 1, 2, 3, 4]))) == selection.PROBES


# --- one check for one model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["auto", "lens"])
def test_other_reference_prompts_keep_the_backend_without_a_new_check(
    name, model, reference, scored, sets, monkeypatch
) -> None:
    engine = ask(model, reference, scored, name)
    monkeypatch.setattr(selection, "prove_parity", lambda *_: pytest.fail("checked again"))
    other = engine.on(sets("greater_than")["reference"])
    assert type(other) is type(engine)
    assert other.why == engine.why
    assert other.describe()["backend"] == engine.describe()["backend"]
    assert (other.reference.prompts.task, engine.reference.prompts.task) == ("greater_than", "ioi")
    assert engine.reference.prompts is reference
    prompts = sets("greater_than")["evaluation"]
    sweep = Sweep((Variant("clean"), ablate([head(0, 1)], Recipe("mean"), "a")))
    found = other.run(sweep, prompts).logit_diff
    expected = LensEngine(model, other.reference.prompts).run(sweep, prompts).logit_diff
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_companion_task_is_run_on_the_same_backend(make_study, monkeypatch) -> None:
    study = make_study()
    monkeypatch.setattr(selection, "prove_parity", lambda *_: pytest.fail("checked again"))
    other = studies.companion(study, "greater_than", 4)
    assert type(other.engine) is type(study.engine) is FusedEngine
    assert other.engine.reference.prompts.task == "greater_than"


# --- what results say -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_result_names_the_backend_and_its_numbers_do_not_depend_on_it(folder, tmp_path) -> None:
    results = {}
    for name in ("auto", "lens"):
        plan = Plan(
            model_settings={"name": "toy", "kind": "local", "path": str(folder("gpt2")), "device": "cpu"},
            task=tasks.get("ioi"),
            sizes=toy.SIZES,
            seed=0,
            settings=toy.SETTINGS,
            engine={**toy.ENGINE, "name": name},
        )
        measure(plan, tmp_path / name, ["01"], lambda title: nullcontext(NoProgress()))
        (path,) = (tmp_path / name).rglob("01*.json")
        results[name] = json.loads(path.read_text())
    engines = {name: result["environment"]["engine"] for name, result in results.items()}
    assert {name: engine["backend"] for name, engine in engines.items()} == {"auto": "fused", "lens": "lens"}
    assert {name: engine["why"] for name, engine in engines.items()} == {
        "auto": "parity with lens within 0.0001",
        "lens": "asked for",
    }
    fused, lens = (_numbers(results[name]["data"]) for name in ("auto", "lens"))
    assert len(fused) == len(lens) > 20
    assert fused == pytest.approx(lens, rel=1e-4, abs=1e-4)


def _numbers(data: Any) -> list[float]:
    """All numbers of a result, in order."""
    if isinstance(data, dict | list):
        parts = data.values() if isinstance(data, dict) else data
        return [number for part in parts for number in _numbers(part)]
    return [float(data)] if isinstance(data, int | float) else []


NO_ROOM = [("tokens_per_block", -1), ("tokens_per_block", "x")]
NO_ROOM += [("memory_mib", value) for value in (0, -3, "x", True, float("nan"), float("inf"))]
NO_SHARE = [("memory_share", value) for value in (0, 1.01, -0.5, "x", True, None, float("nan"))]


@pytest.mark.parametrize(("name", "value"), NO_ROOM + NO_SHARE)
def test_no_room_is_refused_by_name(name, value, model, reference, scored) -> None:
    reason = "is no room for anything; use a number" if name != "memory_share" else "is no share of a GPU's free memory"
    with pytest.raises(UserError, match=rf"engine.{name}={value} {reason}"):
        choose({**toy.ENGINE, name: value}, model, reference, scored)


def test_settings_without_a_name_are_refused(model, reference, scored) -> None:
    settings = {key: value for key, value in toy.ENGINE.items() if key != "name"}
    with pytest.raises(UserError, match=r"engine\.name=None is unknown; use one of auto, fused, lens"):
        choose(settings, model, reference, scored)


def test_the_defaults_are_those_of_the_configuration() -> None:
    assert OmegaConf.to_container(OmegaConf.load(CONFIGS / "engine" / "common.yaml")) == dict(DEFAULTS)


# --- kernels and products -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["auto", "fused", "lens"])
@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("kernels", "cutlass", "engine.kernels=cutlass is unknown; use one of auto, reference, triton"),
        ("kernels", None, "engine.kernels=None is unknown; use one of auto, reference, triton"),
        ("products", "tf32", "engine.products=tf32 is unknown; use one of ieee, tf32x3, auto"),
        ("products_tolerance", 0, "engine.products_tolerance=0 is no share .*; use a number above 0"),
        ("products_tolerance", "a", "engine.products_tolerance=a is no share .*; use a number above 0"),
    ],
)
def test_another_kernel_or_product_is_refused(setting, value, sentence, name, model, reference, scored) -> None:
    with pytest.raises(UserError, match=sentence):
        ask(model, reference, scored, name, **{setting: value})


def test_what_only_a_gpu_can_do_is_refused_elsewhere(model, reference, scored, monkeypatch) -> None:
    with pytest.raises(
        UserError, match=r"engine.products=tf32x3 needs a CUDA device and the model is on cpu; use ieee"
    ):
        ask(model, reference, scored, products="tf32x3")
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(UserError, match=r"engine.kernels=triton needs a CUDA device"):
        ask(model, reference, scored, kernels="triton")


def test_a_record_names_what_ran(model, reference, scored) -> None:
    described = ask(model, reference, scored, kernels="reference", products="auto").describe()
    assert described["implementations"]["packed_attention"] == {"every signature": "reference"}
    assert len(described["implementations"]) == 4
    assert described["float32_products"] == "ieee" and described["attention"] == "float32"
    assert described["products_because"] == "tf32x3 is for float32 on a CUDA device"
