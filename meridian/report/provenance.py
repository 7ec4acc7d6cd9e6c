"""The provenance of a run: prompts, recipes, seeds, settings, versions, and the digest of every result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import results_io
from calibrations import claimed_nodes
from meridian.figures.names import human
from meridian.run_folder import RunFolder

Told = list[tuple[str, str]]  # (name, value in words)
NO_VERSION = {"engine", "seeds", "revision", "device", "dtype", "code_version"}  # of the environment; shown elsewhere


def view(run: RunFolder) -> dict[str, Any]:
    """The values for the record's part of the page's template. They contain no folder, machine or time.

    `files`: (name, kind, code version, SHA-256) of every numbered result. `roles`: (role, heads, evidence).
    """
    paths = sorted(path for path in run.path.glob("*_*.json") if path.name != "circuit_search.json")
    documents = {path.name: document for path in paths if "number" in (document := results_io.read(path))}
    return {
        "facts": _facts(run),
        "prompts": [_prompt(example) for example in run.require("01")["data"]["examples"]],
        "recipes": _recipes(run),
        "versions": _versions(documents),
        "settings": _settings(documents),
        "roles": [
            (
                role.replace("_", " "),
                ", ".join(claimed_nodes.names(spec)),
                human(spec.get("evidence") or ""),
            )
            for role, spec in run.circuit["roles"].items()
        ],
        "files": [
            (
                name,
                document["kind"],
                document.get("environment", {}).get("code_version", ""),
                results_io.file_digest(run.path / name),
            )
            for name, document in documents.items()
        ],
    }


def _facts(run: RunFolder) -> Told:
    subject, baseline, provenance = run.certificate["subject"], run.require("01"), run.circuit["provenance"]
    environment, accuracy = baseline["environment"], sorted(baseline["data"]["accuracy"].items())
    told = {
        "task": subject["task"],
        "model": subject["model"],
        "weights (SHA-256)": subject["model_sha256"],
        "revision": environment.get("revision"),
        "prompts (SHA-256)": subject["prompts_sha256"],
        "rows (SHA-256)": subject.get("rows_sha256"),
        "circuit": subject["circuit"],
        "circuit (SHA-256)": subject["circuit_sha256"],
        "provenance": provenance["kind"],
        "source": provenance.get("source"),
        "metric": run.evidence.metric,
        "seeds": ", ".join(f"{name} {seed}" for name, seed in sorted(environment.get("seeds", {}).items())),
        "device": environment.get("device"),
        "dtype": environment.get("dtype"),
        "backend": environment.get("engine", {}).get("backend"),
        "why this backend": environment.get("engine", {}).get("why"),
        "accuracy": ", ".join(f"{split.replace('_', '-')} {share:.1%}" for split, share in accuracy),
    }
    told = [(name, str(value)) for name, value in told.items() if value not in (None, "")]
    return told + _of_rows(baseline["data"].get("source"))


def _of_rows(source: Mapping[str, Any] | None) -> Told:
    """For prompts from a file: what was chosen for the rows ("splits: ..."), and the rows that were left out."""
    if source is None:
        return []
    notes = [note.partition(": ") for note in source["notes"]]
    out = [f"row {row} {reason}" for row, reason in source["left_out"].items()]
    return [*((name, value) for name, _, value in notes), *([("rows left out", "; ".join(out))] if out else [])]


def _prompt(example: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens of the clean and the corrupted prompt, the answers, and {token's place: names of its positions}."""
    names: dict[int, list[str]] = {}
    for name, place in example.get("positions", {}).items():
        for index in place if isinstance(place, list) else [place]:
            names.setdefault(index, []).append(name)
    answers = {side: ", ".join(example.get(side, ())) for side in ("answers", "wrong")}
    positions = {index: human(", ".join(own)) for index, own in names.items()}
    return {"clean": example["clean"], "corrupted": example["corrupted"], **answers, "positions": positions}


def _recipes(run: RunFolder) -> Told:
    """Each ablation method, its recipe as stored in 20, and its number of draws."""
    draws: dict[str, set[int]] = {}
    recipes = {}
    for condition in run.require("20")["data"]["conditions"]:
        method = condition["method"].replace("_", " ")
        draws.setdefault(method, set()).add(condition["draw"])
        recipes[method] = re.sub(r", draw \d+$", "", str(condition["recipe"]))
    return [
        (method, recipe + (f", {len(draws[method])} draws" if len(draws[method]) > 1 else ""))
        for method, recipe in sorted(recipes.items())
    ]


def _versions(documents: Mapping[str, Mapping[str, Any]]) -> Told:
    found: dict[str, set[str]] = {}
    for document in documents.values():
        for name, value in document.get("environment", {}).items():
            if name not in NO_VERSION:
                found.setdefault(name, set()).add(_plainly(value))
    return [(name, ", ".join(sorted(values))) for name, values in sorted(found.items())]


def _plainly(value: Any) -> str:
    """A value of the environment in words; a mapping as "tf32 no, deterministic yes", without unset parts."""
    if isinstance(value, Mapping):
        return ", ".join(f"{human(name)} {_plainly(part)}" for name, part in value.items() if part is not None)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _settings(documents: Mapping[str, Mapping[str, Any]]) -> Told:
    return [
        (
            f"{document['number']} {document['id'].replace('_', ' ')}",
            json.dumps(settings, sort_keys=True, ensure_ascii=False),
        )
        for document in documents.values()
        if (settings := document.get("subject", {}).get("settings"))
    ]
