"""The whole program on a random checkpoint of every model family: natural-language prompts, no behaviour, no tier.

The checkpoints carry a byte-level tokenizer that keeps the published tasks' words whole. GPT-2 small's own shape runs with
GPT-2's own tokenizer where its list of merges is at hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as token_models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import results_io
from circuits import circuit as circuit_files
from circuits import models
from circuits.circuit import Circuit, Role, head
from circuits.measurements import MEASUREMENTS
from tests.circuits import gpt2_tokenizer, toy, whole_word_tokenizer
from tests.commandline import Outcome, command

END_OF_TEXT = "<|endoftext|>"
SMALL = (
    "task=ioi",
    "calibration=all",
    "model.device=cpu",
    *(f"prompts.{name}={size}" for name, size in {"evaluation": 30, "held_out": 8, "discovery": 12}.items()),
    "prompts.reference=150",
)
TINY = (
    *("measurement.regardless=true", "measurement.random_circuits=4", "measurement.draws=1"),
    *("measurement.site_prompts=3", "measurement.attention_prompts=6", "measurement.companions=2"),
    *("measurement.companion_prompts=4", "measurement.repeated_tokens.sequences=4", "measurement.ocse.permutations=19"),
    *("measurement.ocse.nearest_neighbour.permutations=19", "measurement.ocse.bootstrap.permutations=19"),
    *("measurement.ocse.bootstrap.refits=3", "measurement.attribution_patching.prompts=3"),
    *("measurement.attribution_patching.steps=1", "measurement.llc.prompts=6", "measurement.llc.batch=3"),
    *("measurement.llc.draws=4", "measurement.llc.burn_in=2", "measurement.llc.pilot=2", "measurement.llc.chains=2"),
    *("measurement.scrubbing.draws=1", "measurement.scrubbing.prompts=3", "measurement.minimality.discovery_prompts=4"),
    *("measurement.path_patching.prompts=3", "measurement.path_patching.discovery_prompts=4"),
)
SEEDS = {"gemma3": 1}  # with seed 0 it prefers the name said once on 63 % of these prompts, which passes for the task
LEFT_OUT = {"qwen2": set(), "gemma2": {"03", "05", "07", "08", "09", "24", "28"}}


def natural_tokenizer(bos: bool = True) -> PreTrainedTokenizerFast:
    """A byte-level BPE with as many merges as it takes for the published tasks' words to be single tokens."""
    backend = Tokenizer(token_models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8000,
        min_frequency=1,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(whole_word_tokenizer.pieces(), trainer)
    begin = {"bos_token": END_OF_TEXT} if bos else {}
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END_OF_TEXT, unk_token=END_OF_TEXT, **begin)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Callable[..., Path]:
    """checkpoint(family, bos): a folder with random weights, a natural-language tokenizer and a circuit file."""

    @cache
    def make(family: str, bos: bool = True) -> Path:
        folder = tmp_path_factory.mktemp("checkpoints") / family
        tokenizer = natural_tokenizer(bos)
        ids = {"bos_token_id": 0, "eos_token_id": 0}
        network = toy.build(family, SEEDS.get(family, 0), vocab_size=len(tokenizer), **ids)
        with models.quiet():
            network.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        roles = {"early": Role((head(0, 1),), ordinal=1), "late": Role((head(1, 0), head(1, 3)), ordinal=4)}
        provenance = {"kind": "user", "source": "a test", "split": "none"}
        circuit_files.save(Circuit("small", "ioi", family, roles, provenance), folder / "claim.yaml")
        return folder

    return make


def run(folder: Path, results: Path, *rest: str) -> Outcome:
    return command(
        "model=local",
        f"model.path={folder}",
        "circuit=file",
        f"circuit.path={folder / 'claim.yaml'}",
        f"results={results}",
        *SMALL,
        *rest,
    )


def certificate_in(results: Path) -> tuple[Path, dict]:
    (path,) = results.rglob("certificate.json")
    return path.parent, json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("family", toy.FAMILIES)
def test_a_random_checkpoint_is_not_shown_to_do_the_task(family, checkpoint, tmp_path) -> None:
    outcome = run(checkpoint(family), tmp_path)
    assert (outcome.code, outcome.errors) == (0, "")
    folder, certificate = certificate_in(tmp_path)
    assert folder.parent == tmp_path / family / "ioi"
    assert certificate["tier"] is None
    assert certificate["tier_name"] in ("the behaviour is absent", "the behaviour is not shown")
    assert f"No tier: {certificate['tier_name']}" in outcome.said
    written = {path.name[:2] for path in folder.glob("*.json")} & set(MEASUREMENTS)
    assert written == {"01", "20"}
    baseline = results_io.read(results_io.find(folder, "01"))
    example = baseline["data"]["examples"][0]
    assert example["bos"] == END_OF_TEXT and example["clean"].count(END_OF_TEXT) == 1
    assert all(len(example[side]) == 1 for side in ("answers", "wrong"))
    assert baseline["environment"]["revision"] is None
    assert baseline["n"]["templates"] == 30


@pytest.mark.slow
@pytest.mark.parametrize("family", LEFT_OUT)
def test_regardless_everything_is_measured_or_left_out_with_a_reason(family, checkpoint, tmp_path) -> None:
    """Qwen 2 with a tokenizer that has no BOS token, Gemma 2 with all its peculiarities."""
    bos = () if family != "qwen2" else ("task.bos=false",)
    outcome = run(checkpoint(family, family != "qwen2"), tmp_path, *TINY, *bos)
    assert (outcome.code, outcome.errors) == (0, "")
    folder, certificate = certificate_in(tmp_path)
    assert certificate["tier"] is None
    written = {path.name[:2] for path in folder.glob("*.json")} & set(MEASUREMENTS)
    assert written == set(MEASUREMENTS) - LEFT_OUT[family]
    said = {line[:2] for line in outcome.output.splitlines() if line[2:].startswith(" left out: ")}
    assert said == LEFT_OUT[family]
    example = results_io.read(results_io.find(folder, "01"))["data"]["examples"][0]
    assert (END_OF_TEXT in example["clean"]) == (family != "qwen2")


def test_a_tokenizer_without_bos_ends_in_the_sentence_that_says_so(checkpoint, tmp_path) -> None:
    outcome = run(checkpoint("qwen2", False), tmp_path)
    assert outcome.code == 2
    assert outcome.errors.strip() == (
        "task ioi begins its prompts with a BOS token and this tokenizer has none; run with task.bos=false"
    )
    assert not list(tmp_path.rglob("certificate.json"))


@pytest.mark.slow
@pytest.mark.skipif(gpt2_tokenizer.merges() is None, reason="GPT-2's list of merges is not here")
def test_gpt2_small_s_shape_at_random_has_its_published_circuit_and_no_tier(tmp_path) -> None:
    """12 layers x 12 heads, narrow, with the real tokenizer: model=gpt2 model.path=<folder>."""
    tokenizer = gpt2_tokenizer.build(gpt2_tokenizer.merges())
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    shape = {"n_layer": 12, "n_head": 12, "n_embd": 24, "n_positions": 128}
    torch.manual_seed(1)
    with models.quiet():
        GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **shape, **ids)).save_pretrained(tmp_path / "gpt2r")
        tokenizer.save_pretrained(tmp_path / "gpt2r")
    results = tmp_path / "results"
    outcome = command("model=gpt2", f"model.path={tmp_path / 'gpt2r'}", f"results={results}", *SMALL)
    assert (outcome.code, outcome.errors) == (0, "")
    folder, certificate = certificate_in(results)
    assert folder.parent == results / "gpt2" / "ioi"
    assert certificate["tier"] is None and f"No tier: {certificate['tier_name']}" in outcome.said
    assert "circuit: stored, 26 of 144 heads" in outcome.said
    battery = results_io.read(results_io.find(folder, "20"))["data"]
    assert len(battery["circuit"]["roles"]) == 7
