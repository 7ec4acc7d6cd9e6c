"""What the run was made from: prompts, recipes, seeds, settings, versions, and the digest of every result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import results_io
from meridian.run_folder import RunFolder


@dataclass(frozen=True)
class Prompt:
    """One example: tokens of the clean and of the corrupted prompt, its answers and its named positions."""

    clean: tuple[str, ...]
    corrupted: tuple[str, ...]
    answers: str
    wrong: str
    positions: Mapping[int, str]  # token: names of the positions that stand there


@dataclass(frozen=True)
class File:
    """One result: where, what, by which code, and the digest of its bytes."""

    name: str
    number: str
    kind: str
    version: str
    digest: str


@dataclass(frozen=True)
class Record:
    facts: tuple[tuple[str, str], ...]
    prompts: tuple[Prompt, ...]
    recipes: tuple[tuple[str, str], ...]
    versions: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]
    roles: tuple[tuple[str, str, str], ...]
    files: tuple[File, ...]


def view(run: RunFolder) -> Record:
    """The record of `run`. It names no folder, no machine and no time."""
    documents = _documents(run)
    return Record(
        facts=tuple(_facts(run)),
        prompts=tuple(_prompt(example) for example in run.data("01")["examples"]),
        recipes=tuple(_recipes(run)),
        versions=tuple(_versions(documents)),
        settings=tuple(_settings(documents)),
        roles=tuple(_roles(run)),
        files=tuple(_files(run, documents)),
    )


def _documents(run: RunFolder) -> dict[str, Mapping[str, Any]]:
    """Every numbered result by file name, in order of name."""
    paths = sorted(path for path in run.path.glob("*_*.json") if path.name != "circuit_search.json")
    return {path.name: document for path in paths if "number" in (document := results_io.read(path))}


def _facts(run: RunFolder) -> list[tuple[str, str]]:
    subject, baseline = run.certificate["subject"], run.document("01")
    provenance = run.circuit["provenance"]
    environment = baseline["environment"]
    told = {
        "task": subject["task"],
        "model": subject["model"],
        "weights (SHA-256)": subject["model_sha256"],
        "revision": environment.get("revision"),
        "prompts (SHA-256)": subject["prompts_sha256"],
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
        "accuracy": ", ".join(
            f"{split.replace('_', '-')} {x:.1%}" for split, x in sorted(baseline["data"]["accuracy"].items())
        ),
    }
    return [(name, str(value)) for name, value in told.items() if value not in (None, "")]


def _prompt(example: Mapping[str, Any]) -> Prompt:
    names: dict[int, list[str]] = {}
    for name, place in example.get("positions", {}).items():
        for index in place if isinstance(place, list) else [place]:
            names.setdefault(index, []).append(name)
    return Prompt(
        tuple(example["clean"]),
        tuple(example["corrupted"]),
        ", ".join(example.get("answers", ())),
        ", ".join(example.get("wrong", ())),
        {index: ", ".join(own) for index, own in names.items()},
    )


def _recipes(run: RunFolder) -> list[tuple[str, str]]:
    """Ablation method, the recipe behind it as 20 stored it, and how many draws of it there are."""
    draws: dict[str, set[int]] = {}
    recipes = {}
    for condition in run.data("20")["conditions"]:
        method = condition["method"].replace("_", " ")
        draws.setdefault(method, set()).add(condition["draw"])
        recipes[method] = re.sub(r", draw \d+$", "", str(condition["recipe"]))
    return [
        (method, recipe + (f", {len(draws[method])} draws" if len(draws[method]) > 1 else ""))
        for method, recipe in sorted(recipes.items())
    ]


def _versions(documents: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    skipped = {"engine", "seeds", "revision", "device", "dtype", "code_version"}
    found: dict[str, set[str]] = {}
    for document in documents.values():
        for name, value in document.get("environment", {}).items():
            if name not in skipped:
                found.setdefault(name, set()).add(str(value))
    return [(name, ", ".join(sorted(values))) for name, values in sorted(found.items())]


def _settings(documents: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    told = []
    for document in documents.values():
        settings = document.get("subject", {}).get("settings")
        if settings:
            values = json.dumps(settings, sort_keys=True, ensure_ascii=False)
            told.append((f"{document['number']} {document['id'].replace('_', ' ')}", values))
    return told


def _roles(run: RunFolder) -> list[tuple[str, str, str]]:
    return [
        (
            role.replace("_", " "),
            ", ".join(f"L{layer}H{head}" for layer, head in spec["heads"]),
            str(spec.get("evidence") or ""),
        )
        for role, spec in run.circuit["roles"].items()
    ]


def _files(run: RunFolder, documents: Mapping[str, Mapping[str, Any]]) -> list[File]:
    return [
        File(
            name,
            document["number"],
            document["kind"],
            document.get("environment", {}).get("code_version", ""),
            results_io.file_digest(run.path / name),
        )
        for name, document in documents.items()
    ]
