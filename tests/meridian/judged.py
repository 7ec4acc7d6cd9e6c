"""A finished run judged on few templates with several prompts a cluster, so that every interval and verdict exists."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import results_io
from calibrations import calibrate, certificate
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing

RULES = Path(__file__).parents[2] / "configs" / "certificate" / "tiers.yaml"
SMALL = {  # what the calibrations ask for, at the size of the small run
    "bootstrap_resamples": 200, "bootstrap_resamples_p": 999, "permutations": 999,
    "min_prompts": 10, "minimum_prompts": 10, "minimum_prompts_per_batch": 10, "minimum_subsample": 10,
    "minimum_group_prompts": 10,
}  # fmt: skip
NAMES = 17  # name sets, shared by the prompts


def judged(finished: Path, target: Path) -> Path:
    """A copy of the run `finished` at `target`: two templates, each name set several prompts; all judged again."""
    shutil.copytree(finished, target)
    edit(target, "01", _regroup)
    documents = {name: results_io.read(results_io.find(target, module.NUMBER)) for name, module in CALIBRATIONS.items()}
    documents["common"] = results_io.read(results_io.find(target, "P"))
    settings = {name.lower(): document["subject"]["settings"] for name, document in documents.items()}
    config = {
        name: {**own, **{key: value for key, value in SMALL.items() if key in own}} for name, own in settings.items()
    }
    again = calibrate.calibrate(target, CALIBRATIONS, config)
    stored = results_io.read(target / "certificate.json")
    folded = certificate.certify(again, yaml.safe_load(RULES.read_text()), Standing.read(stored))
    results_io.write(target / "certificate.json", {**folded, "headline": stored["headline"]})
    return target


def edit(folder: Path, number: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the document of result `number` in place."""
    path = results_io.find(folder, number)
    document = results_io.read(path)
    change(document)
    results_io.write(path, document)


def _regroup(document: dict[str, Any]) -> None:
    data = document["data"]
    data["template"] = ["first" if template < "so" else "second" for template in data["template"]]
    data["cluster"] = [f"names {place % NAMES}" for place in range(len(data["template"]))]
