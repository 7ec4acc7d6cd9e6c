"""Every row of docs/families.json by a tiny random model of the family: it runs with plain Hugging Face's numbers, or is refused.

`python -m tests.circuits.test_family_table` writes the rows anew, and the table of docs/real-models.md with them.
"""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from circuits import models, runnable, tasks
from circuits import study as studies
from circuits.circuit import Circuit, Role, head
from circuits.engine.scores import gather
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import MEASUREMENTS
from circuits.models import UnsupportedArchitectureError
from circuits.study import Study
from meridian import generated_parts
from results_io import UserError
from scripts import families as page
from tests.circuits import families, toy

pytestmark = pytest.mark.every_architecture

STORED = {row["family"]: row for row in json.loads(page.FACTS.read_text())}
SIZES = {**toy.SIZES, "evaluation": 12, "held_out": 4}
NUMBERS = re.compile(r" \(relative difference [^)]*\)| by \d[^;]*(?=;)")  # of these random weights
REMOVED = ((0, 1), (1, 2))  # heads


def study_of(folder: Path) -> Study:
    """A study of the model in a folder, in float32, on the engine that auto chooses, with a circuit."""
    roles = {"early": Role((head(0, 1),), ordinal=1), "late": Role((head(1, 0), head(1, 3)), ordinal=4)}
    circuit = Circuit("small", "ioi", "toy", roles, {"kind": "user", "source": "tests", "split": "none"})
    rest: dict[str, Any] = {"circuit": circuit, "settings": toy.SETTINGS}
    return studies.prepare(toy.load(folder), tasks.get("ioi"), SIZES, seed=0, engine=toy.ENGINE, **rest)


def engine_of(study: Study) -> str:
    """The backend, with why where it is the reference one."""
    found = study.engine.describe()
    why = found["why"].partition(", as ")[2].partition(";")[0] or "the fused backend's numbers differ"
    return found["backend"] if found["backend"] == "fused" else f"lens: {why}"


def left_out(study: Study) -> dict[str, str]:
    """{number: the reason that a run gives} of the measurements that this architecture does not allow."""
    found = {}
    for number, module in MEASUREMENTS.items():
        try:
            module.measure(study)
        except UnsupportedArchitectureError as reason:
            sentence = str(reason).replace(f"model {study.model.name}", "it").replace(study.model.name, "it")
            found[number] = NUMBERS.sub("", sentence)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """made(family): (folder, study)"""

    @cache
    def make(family: str) -> tuple[Path, Study]:
        folder = families.save(family, tmp_path_factory.mktemp("families") / families.RUN[family][0])
        return folder, study_of(folder)

    return make


def test_every_family_has_a_row() -> None:
    assert set(STORED) == {*families.RUN, *families.REFUSED}


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("family", families.RUN)
def test_its_logits_are_hugging_face_s(family, made) -> None:
    folder, study = made(family)
    tokens = torch.randint(0, toy.VOCABULARY, (3, 12), generator=torch.Generator().manual_seed(0))
    expected = toy.plain(folder, torch.float32)(tokens, use_cache=False).logits.log_softmax(-1)
    found = study.model.bridge(tokens, return_type="logits").log_softmax(-1)
    assert float((found - expected).abs().max()) < 1e-4
    assert float(expected.std()) > 0.3  # a model that says something
    assert engine_of(study) == STORED[family]["engine"]


@pytest.mark.sampled(9)
@torch.no_grad()
@pytest.mark.parametrize("family", families.RUN)
def test_taking_a_head_out_is_setting_its_output_weights_to_zero(family, made) -> None:
    """By the engine that a run uses, against the plain model with the same columns of W_O gone."""
    folder, study = made(family)
    heads = [head(*place) for place in REMOVED]
    sweep = Sweep((Variant("clean"), *(ablate([node], Recipe("zero_raw"), str(node)) for node in heads)))
    found = study.run(sweep).logit_diff
    prompts, expected = study.prompts, []
    for place in (None, *REMOVED):
        plain = toy.plain(folder, torch.float32)
        if place is not None:
            families.without_head(plain, family, *place)
        at_end = plain(prompts.clean, use_cache=False).logits[torch.arange(len(prompts)), prompts.end]
        answers, foils = gather(at_end, prompts.answers), gather(at_end, prompts.wrong)
        expected.append((torch.nanmean(answers, 1) - torch.nanmean(foils, 1)).numpy())
    assert np.abs(found - np.stack(expected)).max() < 1e-3
    assert np.abs(found[1:] - found[:1]).max(1).min() > 0.02  # each of these heads does something


@pytest.mark.slow
@pytest.mark.parametrize("family", families.RUN)
def test_what_is_left_out_and_why(family, made) -> None:
    assert left_out(made(family)[1]) == STORED[family]["left_out"]


@pytest.mark.parametrize("family", families.REFUSED)
def test_a_family_that_cannot_be_run_is_refused_before_its_weights_are_read(family, tmp_path, monkeypatch) -> None:
    kind, changes = families.REFUSED[family]
    families.configuration(kind, changes).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights: reading them would be another refusal")
    monkeypatch.setattr(models, "_bridge", None)
    with pytest.raises(UserError) as refused:
        models.load({"name": "mine", "kind": "local", "path": str(tmp_path), "device": "cpu"})
    assert str(refused.value) == f"model {tmp_path} cannot be run: {STORED[family]['refused']}"
    assert "\n" not in str(refused.value)


def test_the_page_shows_these_rows() -> None:
    assert generated_parts.part(page.PAGE, page.PART) == page.table(list(STORED.values()))


def rows() -> list[dict[str, Any]]:
    """The rows as measured now."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        for family, (kind, *_) in families.RUN.items():
            study = study_of(families.save(family, Path(place) / kind))
            found.append({"family": family, "engine": engine_of(study), "left_out": left_out(study)})
    for family, (kind, changes) in families.REFUSED.items():
        found.append({"family": family, "refused": runnable.refusal(families.configuration(kind, changes))})
    return found


if __name__ == "__main__":
    page.write(rows())
