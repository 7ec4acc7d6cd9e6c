"""Stage 2: numbered measurements in, one numbered file per calibration out. Pure; never touches a model.

A calibration's file is fresh if the digests of its inputs, its configuration and the code under `calibrations/` have not
changed since it was made. Verdicts come from the evaluation split. The same calibration with the same thresholds is then run
once on the held-out split, and both are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import code_digest
import registries
import results_io
from calibrations import claim_completeness, faithfulness_over_wordings, outside_heads, preconditions
from calibrations.evidence import Evidence
from calibrations.record import Record, overall
from calibrations.registry import CALIBRATIONS, PRECONDITIONS
from node_names import HEADS

ALWAYS_READ = ("01", "20")  # prompts, circuit and what the preconditions need
# their records together are P: what is asked of the claim itself
CLAIM = (preconditions, faithfulness_over_wordings, claim_completeness, outside_heads)
GROUPS_READ = "22"  # groups of claimed heads and heads outside the claim
MULTIPLICITY = "M93"
ABOUT = ("model", "model_sha256", "task", "prompts_sha256", "circuit", "circuit_sha256")  # what a verdict is about
OF_ROWS = "rows_sha256"  # for prompts from a file, also the digest of its rows

Documents = dict[str, Mapping[str, Any]]


def measurements_of(identifiers: Iterable[str]) -> list[str]:
    """The measurement numbers that these calibrations read, in order."""
    needed = {number for identifier in identifiers for number in CALIBRATIONS[identifier].INPUTS}
    return sorted(needed | set(ALWAYS_READ))


def calibrate(folder: Path, identifiers: Iterable[str], config: Mapping[str, Any]) -> Documents:
    """Make the files of these calibrations in `folder` fresh; return their documents by identifier.

    `config` has a section `common` and one per calibration, by lower-case ID. A calibration whose measurement is missing is
    `insufficient: not_run`. Raises UserError without a section, and without measurement 01 or 20.
    """
    missing = [number for number in ALWAYS_READ if results_io.find(folder, number) is None]
    if missing:
        raise results_io.UserError(
            f"{folder} has no measurement {' and '.join(missing)}, which every calibration reads; run.py measures it"
        )
    load = cache(lambda: Evidence.load(folder, config["common"], measurements_of(CALIBRATIONS)))
    about = results_io.read(results_io.required(folder, "20"))["subject"]
    return _made(identifiers, config, load, lambda file: _fresh(folder, file, about))


def judge(evidence: Evidence, identifiers: Iterable[str], config: Mapping[str, Any]) -> Documents:
    """As `calibrate`, but from measurements in memory and without files: documents that hold only records.

    For judging many samples of prompts; `certificate.certify` accepts these documents too.
    """
    return _made(identifiers, config, lambda: evidence, _judged)


def _made(
    identifiers: Iterable[str],
    config: Mapping[str, Any],
    load: Callable[[], Evidence],
    make: Callable[[ResultFile], Mapping[str, Any]],
) -> Documents:
    """The preconditions, then the calibrations in order of their numbers; M93 last, as it reads the others' records."""
    wanted = [identifier for identifier in CALIBRATIONS if identifier in set(identifiers)]
    documents: Documents = {PRECONDITIONS: make(_preconditions_file(config, load))}
    for identifier in wanted:
        if identifier != MULTIPLICITY:
            documents[identifier] = make(_calibration_file(CALIBRATIONS[identifier], config, load))
    if MULTIPLICITY in wanted:
        documents[MULTIPLICITY] = make(_multiplicity_file(documents, config))
    return documents


@dataclass(frozen=True)
class ResultFile:
    """One file to make: its name, the numbers it is made from, its settings, and the judge of a split."""

    number: str
    name: str
    title: str
    inputs: Sequence[str]
    settings: Mapping[str, Any]
    judge: Callable[[str], list[Record]]


def section(config: Mapping[str, Any], identifier: str) -> dict[str, Any]:
    """The common settings, overridden by the calibration's own."""
    return {**config["common"], **config.get(identifier.lower(), {})}


def _calibration_file(module: ModuleType, config: Mapping[str, Any], load: Callable[[], Evidence]) -> ResultFile:
    if module.ID.lower() not in config:
        name = registries.name_of(module)
        raise results_io.UserError(
            f"calibration {module.ID} has no settings; add configs/calibration/{name}.yaml with the section "
            f"{module.ID.lower()}, every threshold with its reason"
        )
    settings = section(config, module.ID)
    inputs = sorted({*module.INPUTS, *ALWAYS_READ})
    return ResultFile(
        module.NUMBER,
        module.NAME,
        module.TITLE,
        inputs,
        settings,
        lambda split: _noted(module, load(), module.calibrate(load().on(split), settings)),
    )


def _noted(module: ModuleType, evidence: Evidence, records: list[Record]) -> list[Record]:
    """The records; for a claim of more than heads, the first notes how the calibration treats MLPs and positions."""
    said = getattr(module, "NODES", None)
    if said is None or not records or not evidence.has("20") or (evidence.heads_only and evidence.scope == HEADS):
        return records
    return [replace(records[0], notes=(*records[0].notes, f"MLPs and positions: {said}")), *records[1:]]


def _preconditions_file(config: Mapping[str, Any], load: Callable[[], Evidence]) -> ResultFile:
    settings = section(config, PRECONDITIONS)
    return ResultFile(
        PRECONDITIONS,
        "preconditions",
        "preconditions",
        (*ALWAYS_READ, GROUPS_READ),
        settings,
        lambda split: [record for part in CLAIM for record in part.records(load().on(split), settings)],
    )


def _multiplicity_file(documents: Documents, config: Mapping[str, Any]) -> ResultFile:
    module, settings = CALIBRATIONS[MULTIPLICITY], section(config, MULTIPLICITY)

    def judge(split: str) -> list[Record]:
        own = (one["records"] if split == "evaluation" else one["data"]["held_out"] for one in documents.values())
        return module.calibrate([record for records in own for record in records], settings)

    inputs = sorted(document["number"] for document in documents.values())
    return ResultFile(module.NUMBER, module.NAME, module.TITLE, inputs, settings, judge)


def _fresh(folder: Path, file: ResultFile, about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The stored document if it is fresh, else a new one, which is written; `about` is the subject of the measurements."""
    path = folder / f"{file.number}_{file.name}.json"
    subject, inputs = _subject(file, about), digests(folder, file.inputs)
    if path.is_file():
        try:
            stored = results_io.read(path)
            if stored["subject"] == results_io.canonical(subject) and stored["inputs_sha256"] == inputs:
                return stored
        except (results_io.UserError, KeyError):
            pass  # unreadable or of another version: made again below
    made = {"kind": "calibration", "subject": subject, "inputs_sha256": inputs, "environment": environment()}
    results_io.write(path, {**_judged(file), **made})
    return results_io.read(path)


def _judged(file: ResultFile) -> dict[str, Any]:
    """The content of a file except its provenance."""
    records = file.judge("evaluation")
    return {
        "number": file.number,
        "id": file.name,
        "subject": dict.fromkeys(ABOUT),
        "n": dict(records[0].n),
        "data": {
            "title": file.title,
            "verdict": overall(records),
            "held_out": [record.to_dict() for record in file.judge("held_out")],
        },
        "records": [record.to_dict() for record in records],
    }


def _subject(file: ResultFile, about: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **{name: about.get(name) for name in ABOUT},
        **({OF_ROWS: about[OF_ROWS]} if OF_ROWS in about else {}),
        "settings": file.settings,
        "judged_by": code_digest.version_of("verdicts"),
    }


def digests(folder: Path, numbers: Iterable[str]) -> dict[str, str]:
    """{number: digest of the file's bytes} of those results that exist."""
    paths = {number: results_io.find(folder, number) for number in numbers}
    return {number: results_io.file_digest(path) for number, path in paths.items() if path}


@cache
def environment() -> dict[str, str]:
    """Versions of the code that judges and of the libraries that it calls."""
    packages = ("numpy", "scipy", "statsmodels", "pingouin", "scikit-learn")
    return {"code_version": code_digest.version_of("verdicts"), **{name: metadata.version(name) for name in packages}}
