"""Stage 2: numbered measurements in, one numbered file per calibration out. Pure; never touches a model.

A calibration's file is fresh if its inputs' digests, its configuration and the code under `calibrations/` are those it was
made from. Verdicts come from the evaluation split; the same calibration with the same thresholds is then run once
on the held-out split, and both are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import registries
import results_io
from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.record import Record, overall
from calibrations.registry import CALIBRATIONS, PRECONDITIONS

ALWAYS_READ = ("01", "20")  # prompts, circuit and what the preconditions need
MULTIPLICITY = "M93"
ABOUT = ("model", "model_sha256", "task", "prompts_sha256", "circuit", "circuit_sha256")  # what a verdict is about

Documents = dict[str, Mapping[str, Any]]


def measurements_of(identifiers: Iterable[str]) -> list[str]:
    """The measurement numbers that these calibrations read, in order."""
    needed = {number for identifier in identifiers for number in CALIBRATIONS[identifier].INPUTS}
    return sorted(needed | set(ALWAYS_READ))


def calibrate(folder: Path, identifiers: Iterable[str], config: Mapping[str, Any]) -> Documents:
    """Make the files of these calibrations in `folder` fresh; return their documents by identifier.

    `config` has a section `common` and one per calibration (lower-case id; UserError without). Measurements that do not
    exist make the calibrations that read them `insufficient: not_run`; only 01 and 20 have to be there (UserError). M93
    comes last, as it reads the others' records.
    """
    missing = [number for number in ALWAYS_READ if results_io.find(folder, number) is None]
    if missing:
        raise results_io.UserError(
            f"{folder} has no measurement {' and '.join(missing)}, which every calibration reads; run.py measures it"
        )
    wanted = [identifier for identifier in CALIBRATIONS if identifier in set(identifiers)]
    load = cache(lambda: Evidence.load(folder, config["common"], _all_numbers()))
    documents: Documents = {PRECONDITIONS: _fresh(folder, _preconditions_task(config, load))}
    for identifier in wanted:
        if identifier != MULTIPLICITY:
            documents[identifier] = _fresh(folder, _calibration_task(CALIBRATIONS[identifier], config, load))
    if MULTIPLICITY in wanted:
        documents[MULTIPLICITY] = _fresh(folder, _multiplicity_task(documents, config))
    return documents


def judge(evidence: Evidence, identifiers: Iterable[str], config: Mapping[str, Any]) -> Documents:
    """As `calibrate`, from measurements in memory and without files: documents with records alone.

    For judging many samples of prompts; `certificate.certify` folds them as it folds the others.
    """
    wanted = [identifier for identifier in CALIBRATIONS if identifier in set(identifiers)]
    documents: Documents = {PRECONDITIONS: _judged(_preconditions_task(config, lambda: evidence))}
    for identifier in wanted:
        if identifier != MULTIPLICITY:
            documents[identifier] = _judged(_calibration_task(CALIBRATIONS[identifier], config, lambda: evidence))
    if MULTIPLICITY in wanted:
        documents[MULTIPLICITY] = _judged(_multiplicity_task(documents, config))
    return documents


class Task:
    """One file to make: where, from what, and how."""

    def __init__(
        self,
        number: str,
        name: str,
        title: str,
        inputs: Iterable[str],
        config: Mapping[str, Any],
        judge: Callable[[str], list[Record]],
    ) -> None:
        self.number, self.name, self.title = number, name, title
        self.inputs, self.config, self.judge = sorted(set(inputs)), config, judge


def section(config: Mapping[str, Any], identifier: str) -> dict[str, Any]:
    """A calibration's own settings over the common ones."""
    return {**config["common"], **config.get(identifier.lower(), {})}


def _calibration_task(module: ModuleType, config: Mapping[str, Any], load: Callable[[], Evidence]) -> Task:
    if module.ID.lower() not in config:
        name = registries.name_of(module)
        raise results_io.UserError(
            f"calibration {module.ID} has no settings; add configs/calibration/{name}.yaml with the section "
            f"{module.ID.lower()}, every threshold with its reason"
        )
    settings = section(config, module.ID)
    inputs = (*module.INPUTS, *ALWAYS_READ)
    return Task(
        module.NUMBER,
        module.NAME,
        module.TITLE,
        inputs,
        settings,
        lambda split: module.calibrate(load().on(split), settings),
    )


def _preconditions_task(config: Mapping[str, Any], load: Callable[[], Evidence]) -> Task:
    settings = section(config, PRECONDITIONS)
    return Task(
        PRECONDITIONS,
        "preconditions",
        "preconditions",
        ALWAYS_READ,
        settings,
        lambda split: preconditions.records(load().on(split), settings),
    )


def _multiplicity_task(documents: Documents, config: Mapping[str, Any]) -> Task:
    module, settings = CALIBRATIONS[MULTIPLICITY], section(config, MULTIPLICITY)
    stored = {"evaluation": "records", "held_out": "held_out"}

    def judge(split: str) -> list[Record]:
        others = [record for document in documents.values() for record in _records(document, stored[split])]
        return module.calibrate(others, settings)

    inputs = [document["number"] for document in documents.values()]
    return Task(module.NUMBER, module.NAME, module.TITLE, inputs, settings, judge)


def _records(document: Mapping[str, Any], place: str) -> list[Mapping[str, Any]]:
    return document["records"] if place == "records" else document["data"]["held_out"]


def _fresh(folder: Path, task: Task) -> Mapping[str, Any]:
    """The stored document if it is fresh, otherwise a new one, written."""
    path = folder / f"{task.number}_{task.name}.json"
    subject, inputs = _subject(folder, task), _digests(folder, task.inputs)
    if path.is_file():
        try:
            stored = results_io.read(path)
            if stored["subject"] == results_io.canonical(subject) and stored["inputs_sha256"] == inputs:
                return stored
        except (results_io.UserError, KeyError):
            pass  # unreadable or of another version: made again below
    made = {"kind": "calibration", "subject": subject, "inputs_sha256": inputs, "environment": environment()}
    results_io.write(path, {**_judged(task), **made})
    return results_io.read(path)


def _judged(task: Task) -> dict[str, Any]:
    """What a task's document says, whatever it was made from."""
    records = task.judge("evaluation")
    return {
        "number": task.number,
        "id": task.name,
        "subject": dict.fromkeys(ABOUT),
        "n": dict(records[0].n),
        "data": {
            "title": task.title,
            "verdict": overall(records),
            "held_out": [record.to_dict() for record in task.judge("held_out")],
        },
        "records": [record.to_dict() for record in records],
    }


def _subject(folder: Path, task: Task) -> dict[str, Any]:
    battery = results_io.find(folder, "20")
    about = results_io.read(battery)["subject"] if battery else {}
    return {**{name: about.get(name) for name in ABOUT}, "settings": task.config, "judged_by": code_digest()}


def _digests(folder: Path, numbers: Iterable[str]) -> dict[str, str]:
    paths = {number: results_io.find(folder, number) for number in numbers}
    return {number: results_io.file_digest(path) for number, path in paths.items() if path}


@cache
def code_digest() -> str:
    """Version and a digest of the code that judges, so that a changed rule never meets an old verdict."""
    sources = [*sorted(Path(__file__).parent.rglob("*.py")), Path(results_io.__file__)]
    return f"{results_io.VERSION}+{results_io.sha256([path.read_text() for path in sources])[:12]}"


@cache
def environment() -> dict[str, str]:
    """Versions of the code that judges and of the libraries that it calls."""
    packages = ("numpy", "scipy", "statsmodels", "pingouin", "scikit-learn")
    return {"code_version": code_digest(), **{name: metadata.version(name) for name in packages}}


def _all_numbers() -> list[str]:
    return measurements_of(CALIBRATIONS)
