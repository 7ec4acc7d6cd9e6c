"""A planted model in a folder is the model that was built, to transformers and to the project."""

from __future__ import annotations

import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from circuits import models, planted
from circuits.prompts import PromptSet, tokenize
from circuits.tasks import TASKS
from scripts import plant

VARIANT, SEED = "backup", 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    written = tmp_path_factory.mktemp("planted") / VARIANT
    assert plant.main([VARIANT, "--out", str(written), "--seed", str(SEED)]) == 0
    return written


@pytest.fixture(scope="module")
def built():
    return planted.build(VARIANT, SEED)


def prompts(tokenizer) -> PromptSet:
    rng = random.Random(0)
    return tokenize(TASKS["ioi"], [TASKS["ioi"].sample(rng) for _ in range(24)], tokenizer, split="evaluation")


def logit_difference(scored: PromptSet, logits: torch.Tensor) -> torch.Tensor:
    row = torch.arange(len(scored))
    last = logits[row, scored.end]
    return last[row, scored.answers[:, 0]] - last[row, scored.wrong[:, 0]]


@torch.no_grad()
def test_transformers_reads_the_same_function(folder, built):
    scored = prompts(built.tokenizer)
    there = AutoModelForCausalLM.from_pretrained(folder).eval()
    gap = (there(scored.clean).logits - built.model(scored.clean).logits).abs().max()
    assert gap <= 1e-6
    assert all(parameter.dtype == torch.float32 for parameter in there.parameters())


@torch.no_grad()
def test_the_project_reads_the_same_model_tokens_and_claims(folder, built):
    settings = {"name": "mine", "kind": "local", "path": str(folder), "device": "cpu", "dtype": "float32"}
    there = models.load(settings)
    assert dict(there.circuits) == built.circuits
    scored, ours = prompts(there.tokenizer), prompts(built.tokenizer)
    assert torch.equal(scored.clean, ours.clean)
    theirs = logit_difference(scored, there.bridge(scored.clean))
    torch.testing.assert_close(theirs, logit_difference(ours, built.model(ours.clean).logits), atol=1e-3, rtol=0)
    in_memory = models.load({**settings, "kind": "planted", "variant": VARIANT, "seed": SEED})
    torch.testing.assert_close(theirs, logit_difference(ours, in_memory.bridge(ours.clean)), atol=1e-5, rtol=0)


def test_the_truth_is_printed_and_not_in_the_folder(tmp_path, capsys):
    assert plant.main(["missing_head", "--out", str(tmp_path / "new")]) == 0
    told = planted.truth("missing_head")
    printed = capsys.readouterr().out
    assert told.pathology in printed and "L3H0" in printed
    written = [path for path in (tmp_path / "new").rglob("*") if path.suffix in (".json", ".yaml")]
    assert len(written) >= 7
    assert not any(told.pathology in path.read_text() for path in written)
    assert "L3H0" not in (tmp_path / "new" / "circuits" / "ioi.yaml").read_text()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert plant.main(["sound", "--out", str(tmp_path)]) == 2
    assert "is not empty; name a new or an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert plant.main(["sound", "--out", str(tmp_path / "notes.txt")]) == 2


def test_an_unknown_variant_is_refused_and_writes_nothing(tmp_path, capsys):
    assert plant.main(["perfect", "--out", str(tmp_path / "new")]) == 2
    assert "unknown planted variant 'perfect': expected one of sound" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
