"""The shipped settings of one calibration as the tests see them, and ways to alter synthetic documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

CONFIGS = Path(__file__).parents[2] / "configs" / "calibration"
FEWER = {"permutations": 999}  # speed; the floor of a p-value is then .001


def config_of(key: str) -> dict[str, Any]:
    """The section `key` ("c11") of configs/calibration/*.yaml merged over the common section."""
    common = yaml.safe_load((CONFIGS / "common.yaml").read_text())["common"]
    sections = [yaml.safe_load(path.read_text()) for path in sorted(CONFIGS.glob("*.yaml"))]
    own = next((section[key] for section in sections if key != "common" and key in section), {})
    if not own and key != "common":
        raise KeyError(f"no configs/calibration/*.yaml has the top-level key {key!r}")
    return {**common, **own, **FEWER}


def shuffled(documents: dict[str, dict], seed: int = 7) -> dict[str, dict]:
    """The same prompts stored in another order, in every document."""
    old = np.random.default_rng(seed).permutation(len(documents["01"]["data"]["prompt_id"]))
    place = np.argsort(old)  # where each old row is now
    result = {number: {**document, "data": dict(document["data"])} for number, document in documents.items()}
    for number, fields, axis in (
        ("01", None, 0), ("02", None, 0), ("03", None, 0), ("05", None, 0), ("08", None, 0),
        ("20", ("logit_diff",), 1), ("21", ("effect",), 0), ("22", ("effect", "role_effect"), 1),
        ("24", ("everything_relevant",), 0), ("24", ("nothing_relevant", "scrubbed"), 1), ("26", ("output_norm",), 0),
    ):  # fmt: skip
        data = result[number]["data"] if number in result else {}
        for name in fields or data if data else ():
            if isinstance(data[name], list) and np.shape(data[name])[axis : axis + 1] == (len(old),):
                data[name] = np.take(np.asarray(data[name]), old, axis=axis).tolist()
    greedy = result["22"]["data"]["greedy"]
    result["22"]["data"]["greedy"] = {**greedy, "effect": np.take(greedy["effect"], old, axis=1).tolist()}
    for name in ("completeness", "outside"):
        if name in result["22"]["data"]:
            section = result["22"]["data"][name]
            rows = place[np.asarray(section["prompt_index"])]
            result["22"]["data"][name] = {**section, "prompt_index": rows.tolist()}
    baseline = result["01"]["data"]
    baseline["factors"] = {name: [values[i] for i in old] for name, values in baseline["factors"].items()}
    stored = result["20"]["data"]["random_circuits"]
    rows = place[np.asarray(stored["prompt_index"])]
    result["20"]["data"]["random_circuits"] = {**stored, "prompt_index": rows.tolist()}
    return result


def set_intact(documents: dict[str, dict], subset: str, values, methods: tuple[str, ...] = ()) -> dict[str, dict]:
    """Replace the logit difference [prompt] of one subset, under `methods` (default: all), in place."""
    data = documents["20"]["data"]
    for row, condition in enumerate(data["conditions"]):
        if condition["subset"] == subset and (not methods or condition["method"] in methods):
            data["logit_diff"][row] = list(values)
    return documents


def clean_of(documents: dict[str, dict]) -> np.ndarray:
    """D [prompt] in stored order."""
    return np.asarray(documents["01"]["data"]["clean_logit_diff"])
