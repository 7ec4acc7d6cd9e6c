"""The whole examination: on every architecture, and on what is wrong on purpose."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import results_io
from circuits import models, tasks
from circuits.measure import Plan
from meridian import doctor
from meridian.doctor import parity, rates
from tests.circuits import toy

SIZES = {"evaluation": 8, "held_out": 4, "discovery": 6, "reference": 150}


def plan_of(folder, load, architecture: str = "gpt2", **changed) -> Plan:
    """A plan whose model is loaded already, with the pocket's tokenizer."""
    settings = {"name": "toy", "kind": "local", "path": str(folder(architecture)), "device": "cpu", "dtype": "float32"}
    parts = {
        "model_settings": settings,
        "task": tasks.get("ioi"),
        "sizes": SIZES,
        "seed": 0,
        "settings": toy.SETTINGS,
        "engine": toy.ENGINE,
    }
    plan = Plan(**{**parts, **changed})
    vars(plan)["model"] = load(architecture)
    return plan


def printed(report: doctor.Report) -> str:
    console = Console(file=io.StringIO(), width=160)
    doctor.show(report, console)
    return console.file.getvalue()


@pytest.fixture(autouse=True, scope="module")
def quick() -> Iterator[None]:
    """Speed is not what these tests are about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rates, "SECONDS", 0.0)
        yield


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def reports(folder, load, quick, said) -> dict[str, doctor.Report]:
    return {name: doctor.examine_model(plan_of(folder, load, name), said.append) for name in toy.ARCHITECTURES}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_every_architecture_is_healthy_and_described(architecture, reports) -> None:
    report = reports[architecture]
    own, plain = report.architecture, toy.build(architecture)
    assert report.healthy
    assert report.parity.verdict == parity.SAME
    assert own.n_layers == plain.config.num_hidden_layers
    assert own.n_key_value_heads == (2 if architecture in ("llama", "qwen2") else 4)
    assert (own.n_heads, own.d_model, own.d_vocabulary, own.context) == (4, 32, 1024, 48)
    assert own.parameters == sum(parameter.numel() for parameter in plain.parameters())
    assert own.positions == ("learned" if architecture == "gpt2" else "rotary")
    assert own.norm == ("RMS norm" if architecture in ("llama", "qwen2") else "layer norm")
    assert not own.tied
    assert (own.dtype, own.device, own.attention, own.backend) == ("float32", "cpu", "eager", "fused")


@pytest.mark.slow
def test_the_report_is_json_and_printed_whole(reports) -> None:
    report = reports["gpt2"]
    document = json.loads(results_io.dumps(report.to_dict()))
    assert document["healthy"] is True
    assert document["faults"] == []
    assert document["parity"]["comparisons"][0]["agrees"] is True
    assert document["estimate"]["pairs"] == sum(item["pairs"] for item in document["estimate"]["items"])
    text = printed(report)
    for part in ("Model", "Parity", "Tokens of one ioi prompt", "Self-tests", "Cost of task=ioi", "Verdict"):
        assert part in text
    assert text.rstrip().endswith("healthy")
    assert "not healthy" not in text


def test_steps_are_announced(reports, said) -> None:
    own = said[: len(said) // len(toy.ARCHITECTURES)]
    assert own[0].startswith("loading toy (3 layers x 4 heads")
    assert own[1:3] == ["reading a prompt", "self-tests on repeated random tokens"]
    assert own[-2:] == ["comparing forward passes in float32", "comparing forward passes in float64"]


@pytest.mark.slow
def test_a_missing_bos_token_is_a_fault_and_the_rest_is_examined_without_it(folder, load, tokenizer) -> None:
    plan = plan_of(folder, load)
    bare = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>", eos_token="<bos>")
    assert bare.bos_token_id is None
    vars(plan)["model"] = replace(plan.model, tokenizer=bare)
    report = doctor.examine_model(plan)
    assert not report.healthy
    assert len(report.faults) == 1
    assert "this tokenizer has none; run with task.bos=false" in report.faults[0]
    assert report.tokens.places[0].clean[1] != "<bos>"
    assert not report.tokens.bos_wanted
    assert report.self_tests.unavailable == "the tokenizer has no BOS token, with which the random sequences begin"
    assert report.parity.verdict == parity.SAME
    assert "not healthy: 1 thing wrong" in printed(report)


@pytest.mark.slow
def test_a_published_score_that_is_missed_is_a_fault(folder, load, reports) -> None:
    ranking = {one.score: one.heads for one in reports["gpt2"].self_tests.rankings}
    expected = {
        "induction": {"top": 1, "heads": [ranking["induction"][0]]},
        "previous_token": {"top": 1, "heads": [ranking["previous_token"][1]]},
    }
    plan = plan_of(folder, load)
    report = doctor.examine_model(replace(plan, model_settings={**plan.model_settings, "self_tests": expected}))
    assert [fact.met for fact in report.self_tests.expectations] == [True, False]
    assert report.faults == (
        f"{ranking['previous_token'][1]} not in the top 1 by previous token score, as published for this model; check that "
        "the weights are those of toy",
    )
    text = printed(report)
    assert "in the top 1 by induction score: pass" in text
    assert f"in the top 1 by previous token score: fail ({ranking['previous_token'][1]} missing)" in text


@pytest.mark.slow
def test_a_wrong_bridge_is_unhealthy_and_says_so(folder, load, monkeypatch) -> None:
    loaded = models.load

    def spoiled(settings, *say):
        model = loaded(settings, *say)
        with torch.no_grad():
            model.bridge.blocks[1].mlp.out.weight.mul_(1.5)
        return model

    plan = plan_of(folder, load)
    vars(plan).pop("model")
    monkeypatch.setattr(models, "load", spoiled)
    report = doctor.examine_model(plan)
    assert not report.healthy
    assert report.parity.verdict == parity.OTHER
    assert "first at block 1; do not trust results" in report.faults[0]
