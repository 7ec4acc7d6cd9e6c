"""Models, tasks and circuits handed over as objects: the numbers of the command line, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import meridian
import results_io
from circuits import circuit as circuit_files
from circuits import models, tasks
from circuits.given import GivenModel
from circuits.models import EMBEDDED
from meridian.run_folder import CERTIFICATE
from results_io import UserError
from tests.commandline import SMALL

POCKET = EMBEDDED / "pocket"
FEW = (*(text for text in SMALL if not text.startswith(("task=", "model="))), "calibration=[c11]")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(POCKET)


@pytest.fixture
def network() -> Any:
    with models.quiet():
        return AutoModelForCausalLM.from_pretrained(POCKET)


@pytest.fixture(scope="module")
def by_folder(tmp_path_factory) -> meridian.FinishedRun:
    circuit = POCKET / "circuits" / "ioi.yaml"
    return meridian.run(*FEW, model=POCKET, task="ioi", circuit=circuit, results=tmp_path_factory.mktemp("folder"))


def numbers(run: Any) -> dict[str, Any]:
    """What was measured and judged, without who it was measured on."""
    found = {}
    for path in sorted(run.path.glob("[0-9]*.json")):
        document = results_io.read(path)
        found[path.name] = document.get("data") or document["records"]
    return found


def bridge_of(network: Any, tokenizer: Any) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    with models.quiet():
        return TransformerBridge.boot_transformers("pocket", hf_model=network, tokenizer=copy.deepcopy(tokenizer))


class LanguageModel:
    """What nnsight's class of this name shows: the model as `_module`, and a proxy for every other name."""

    def __init__(self, network: Any, tokenizer: Any) -> None:
        self._module, self.tokenizer = network, tokenizer

    def __getattr__(self, name: str) -> object:
        return object()


@pytest.mark.slow
def test_an_object_gives_the_numbers_of_its_folder_and_stays_as_it_was(by_folder, network, tokenizer, tmp_path) -> None:
    before = {name: value.clone() for name, value in network.state_dict().items()}
    claim = circuit_files.load(POCKET / "circuits" / "ioi.yaml")
    run = meridian.run(
        *FEW, model=network.train(), tokenizer=tokenizer, task=tasks.get("ioi"), circuit=claim, results=tmp_path
    )
    assert numbers(run) == numbers(by_folder) and len(numbers(run)) > 2
    assert run.path.is_relative_to(tmp_path / "pocket" / "ioi")
    assert list(network.state_dict()) == list(before) and network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert not (run.path / CERTIFICATE).exists()  # one calibration is no certificate


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [bridge_of, LanguageModel])
def test_what_wraps_a_model_is_unwrapped(wrap, by_folder, network, tokenizer, tmp_path) -> None:
    plain = GivenModel.of(network, tokenizer)
    expected = plain.sha256
    wrapped = wrap(network, tokenizer)
    assert GivenModel.of(wrapped, tokenizer).sha256 == expected
    circuit = POCKET / "circuits" / "ioi.yaml"
    run = meridian.run(*FEW, model=wrapped, tokenizer=tokenizer, task="ioi", circuit=circuit, results=tmp_path)
    assert numbers(run) == numbers(by_folder)


def test_nnsight_s_own_class_is_unwrapped(network, tokenizer) -> None:
    nnsight = pytest.importorskip("nnsight")
    given = GivenModel.of(nnsight.LanguageModel(network, tokenizer=tokenizer))
    assert given.network is network and given.sha256 == GivenModel.of(network, tokenizer).sha256


@pytest.mark.slow
def test_a_lab_on_an_object_gives_the_numbers_of_the_name(network, tokenizer) -> None:
    heads = ["L2H1", "L0H0"]
    few: dict[str, Any] = {"circuit": heads, "prompts": 12, "settings": ("prompts.reference=150", "model.device=cpu")}
    lab = meridian.explore("ioi", network, tokenizer=tokenizer, **few)
    named = meridian.explore("ioi", "pocket", **few)
    tables = [one.ablate("L2H1").table for one in (lab, named)]
    assert tables[0].equals(tables[1])
    assert lab.model.identity.kind == "object" and lab.model.sha256 != named.model.sha256


def test_the_identity_follows_weights_configuration_and_tokenizer(network, tokenizer) -> None:
    sha256 = GivenModel.of(network, tokenizer).sha256
    assert GivenModel.of(copy.deepcopy(network), copy.deepcopy(tokenizer)).sha256 == sha256
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["unheard"])
    assert GivenModel.of(network, other).sha256 != sha256
    changed = copy.deepcopy(network)
    changed.config.layer_norm_epsilon *= 2
    assert GivenModel.of(changed, tokenizer).sha256 != sha256
    with torch.no_grad():
        next(network.parameters())[0, 0] += 1e-3
    assert GivenModel.of(network, tokenizer).sha256 != sha256


def refusal(*settings: str, **given: Any) -> str:
    with pytest.raises(UserError) as refused:
        meridian.run(*FEW, *settings, **given)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_processed_bridge_is_refused(network, tokenizer) -> None:
    bridge = bridge_of(network, tokenizer)
    with models.quiet():
        bridge.enable_compatibility_mode(disable_warnings=True)
    assert refusal(model=bridge).startswith("this TransformerBridge is processed already")


def test_other_objects_are_refused_in_a_sentence(network, tokenizer, tmp_path) -> None:
    assert refusal(model=3) == (
        "model is a int; give a name, a folder, a Hugging Face causal language model, a TransformerBridge or nnsight's "
        "LanguageModel"
    )
    assert refusal(model=network) == "GPT2LMHeadModel comes without a tokenizer; give it as tokenizer="
    assert refusal("model=pocket", model=network, tokenizer=tokenizer).startswith("model is given twice")
    assert refusal(model="pocket", tokenizer=tokenizer).startswith("tokenizer= goes with a model that is an object")
    assert refusal(model="pocket", task=3).startswith("task is a int; give a name, a file")
    network.config.quantization_config = {"quant_method": "gptq"}
    assert "its weights are quantised (gptq)" in refusal(model=network, tokenizer=tokenizer)
    with torch.device("meta"):
        nothing = type(network)(network.config.__class__(n_embd=32, n_head=4, n_layer=2, vocab_size=64))
    assert "are not in memory (meta device)" in refusal(model=nothing, tokenizer=tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("circuit", [["L2H0", "L2H1"], POCKET / "circuits" / "ioi.yaml"])
def test_a_model_that_cannot_be_run_ends_in_its_reason_and_leaves_nothing(
    circuit, network, tokenizer, tmp_path, monkeypatch
) -> None:
    """As one whose hooked form is another function: no "left out", no "has no measurement 01", no file."""
    monkeypatch.setattr(models, "PARITY", dict.fromkeys(models.PARITY, -1.0))
    about: dict[str, Any] = {"model": network, "tokenizer": tokenizer, "task": "ioi", "circuit": circuit}
    reason = "cannot be run: its log-probabilities in TransformerLens differ from plain Hugging Face's by "
    assert reason in refusal(results=tmp_path / "new", **about)
    assert not (tmp_path / "new").exists()
    (tmp_path / "old" / "claims").mkdir(parents=True)
    (tmp_path / "old" / "claims" / "another.yaml").write_text("kept")
    assert reason in refusal(results=tmp_path / "old", **about)
    left = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [Path("old/claims/another.yaml")]


def test_a_claim_that_the_model_has_not_is_refused_before_anything_is_written(network, tokenizer, tmp_path) -> None:
    said = refusal(model=network, tokenizer=tokenizer, task="ioi", circuit=["L9H6"], results=tmp_path / "r")
    assert said.startswith("circuit 'named heads' names head L9H6, but model 'pocket' has layers 0-3")
    assert not (tmp_path / "r").exists()


def test_a_file_of_prompt_pairs_is_left_to_the_task_that_reads_files(monkeypatch) -> None:
    from meridian import in_process

    asked = in_process._task_settings(Path("mine.csv"))
    assert asked == (["task=file", "task.path=mine.csv"], None)
    assert in_process._task_settings("greater_than") == (["task=greater_than"], None)


@pytest.mark.slow
def test_a_model_object_is_asked_of_a_file_of_rows(tmp_path) -> None:
    """As its folder is: the same rows, the same numbers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from circuits.models import EMBEDDED
    from tests.circuits.file_rows import as_csv, ioi_rows

    path = tmp_path / "rows.csv"
    as_csv(ioi_rows(40), path)
    network = AutoModelForCausalLM.from_pretrained(EMBEDDED / "pocket")
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "pocket")
    asked = ("calibration=[c11]", "model.device=cpu", "measurement.random_circuits=20")
    about = {"task": path, "circuit": ["L2H0", "L2H1"]}
    given = meridian.run(*asked, model=network, tokenizer=tokenizer, results=tmp_path / "given", **about)
    named = meridian.run(*asked, model="pocket", results=tmp_path / "named", **about)
    one, other = (run.document("20")["data"]["logit_diff"] for run in (given, named))
    assert one == other and len(one) > 20


@pytest.mark.slow
def test_a_task_of_rows_is_judged_by_the_rules_of_its_file(tmp_path, tokenizer) -> None:
    """No setting differs from what the same rows from a file are under, so the certificate has the same bytes."""
    from calibrations import rules
    from circuits.tasks import file
    from meridian.in_process import _Asked, started
    from tests.circuits.file_rows import as_csv, ioi_rows

    rows, shares = ioi_rows(40), {"discovery": 0.3, "evaluation": 0.5, "held_out": 0.1, "reference": 0.1}
    as_csv(rows, path := tmp_path / "rows.csv")

    def standing(task: Any, *settings: str) -> Any:
        asked = _Asked.of(settings, model="pocket", task=task, circuit=None, tokenizer=None)
        with started(asked.settings) as made:
            found = asked.put_into(made)
            return rules.standing(found.settings, found.settings["task"]["name"]), found.tasks()

    for options, typed in (
        ({}, ()),
        ({"bos": False}, ("task.bos=false",)),
        ({"metric": "sequence"}, ("task.metric=sequence",)),
        ({"shares": shares}, tuple(f"task.shares.{name}={share}" for name, share in shares.items())),
    ):
        task = file.load(rows, tokenizer, options=file.Options.of(options))
        assert standing(task) == standing(path, *typed), options
    assert standing(task)[0] != standing(path)[0]


def test_a_task_object_is_certified_under_its_own_settings(tmp_path) -> None:
    from dataclasses import replace

    from circuits import tasks

    ioi = replace(tasks.get("ioi"), metric="probability_difference")
    with pytest.raises(UserError, match="the Task is called 'ioi', as one that ships, and is another"):
        meridian.run(task=ioi, results=tmp_path)
    mine = replace(ioi, name="mine")
    with pytest.raises(
        UserError, match=r"task\.metric=sequence says something of the task, which is given as an object"
    ):
        meridian.run("task.metric=sequence", task=mine, results=tmp_path)
