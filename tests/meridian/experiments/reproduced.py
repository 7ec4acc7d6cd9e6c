"""What tests of the reproductions share: a random model of GPT-2 small's shape, and a planted one on its prompts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import results_io
from circuits import models, tasks
from circuits import study as studies
from circuits.embedded.tokenizer import build_tokenizer
from circuits.models import Model
from circuits.study import Study
from meridian import overrides
from meridian.experiments.reproduction import ReproducedRow
from tests.commandline import Outcome, command

LAYERS, HEADS, WIDTH, POSITIONS = 12, 12, 48, 48
SIZES = {"discovery": 20, "evaluation": 40, "held_out": 8, "reference": 200}
ENGINE: dict[str, Any] = {
    "rows_per_forward": 512,
    "memory_mib": 64,
    "tokens_per_block": 512,
    "tolerance": {"float64": 1e-6, "float32": 1e-4},
}


def save_random(folder: Path) -> Path:
    """12 layers x 12 heads with the embedded models' tokenizer: the published heads exist, and do nothing."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, n_positions=POSITIONS, **ids
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)  # at the size that training starts from, logits would hardly differ
    with models.quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def reproduce(name: str, folder: Path, *settings: str) -> tuple[Outcome, dict[str, Any]]:
    """`python run.py experiment=NAME` into a folder: what it said, and its result.

    By the reference backend: to prove the other one on twelve layers takes longer than all else.
    """
    outcome = command(f"experiment={name}", f"results={folder}", "engine=lens", *settings)
    assert outcome.code == 0, outcome.errors
    (path,) = folder.glob(f"**/R_{name}.json")
    return outcome, results_io.read(path)


def assert_rows(rows: Iterable[ReproducedRow], expected: Iterable[tuple[str, float, float | str | None]]) -> None:
    """Every row's quantity, our value and the published one, in their order."""
    rows, expected = list(rows), list(expected)
    assert [(row.quantity, row.paper) for row in rows] == [(quantity, paper) for quantity, _, paper in expected]
    for row, (quantity, ours, _) in zip(rows, expected, strict=True):
        assert row.ours.value == pytest.approx(ours), quantity


def settings_of(name: str) -> dict[str, Any]:
    """The experiment's configuration as it ships."""
    return overrides.group("experiment", name)


@cache
def _sound() -> Model:
    return models.load({"name": "planted/sound", "kind": "planted", "variant": "sound", "device": "cpu"})


@cache
def planted(task: str = "ioi", engine: str = "auto") -> Study:
    """The sound planted model on a task's prompts, with its own circuit."""
    model = _sound()
    return studies.prepare(model, tasks.get(task), SIZES, 0, {**ENGINE, "name": engine}, circuit=model.circuits[task])
