"""Whether the results of a folder are unchanged since they were written, and what its certificate was made from.

`announce` serves a run that makes results again, and `made_from` serves the certificate; `meridian.verification` uses both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import results_io
from calibrations import calibrate
from meridian.run_folder import CERTIFICATE, NUMBERED
from results_io import UserError

DISCOVERY, CIRCUIT = "discovery.json", "circuit.yaml"
UNNUMBERED = (CERTIFICATE, DISCOVERY)


def announce(folder: Path, say: Callable[[str], Any]) -> None:
    """Name the results of a folder that are not as they were written, one line for each reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in faults(folder).items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        each = "each" if len(names) > 1 else "it"
        say(f"{folder}: {', '.join(names)}: {each} {reason}; not used, and made again where this run reads it")


def faults(folder: Path) -> dict[str, str]:
    """{name of a result: what is wrong with it}, sorted by name; includes results that are gone but listed in the certificate."""
    paths = [*folder.glob(NUMBERED), *(path for name in UNNUMBERED if (path := folder / name).is_file())]
    found = {path.name: reason for path in paths if (reason := results_io.fault(path))}
    if CERTIFICATE not in found:
        found |= {f"result {number}": "is gone since certificate.json was made from it" for number in _gone(folder)}
    if DISCOVERY not in found and not _is_the_one_found(folder):
        found[CIRCUIT] = "is not the circuit that the search wrote"
    return dict(sorted(found.items()))


def require_named(folder: Path) -> None:
    """Raises UserError, before anything is measured, for a numbered file that no run can read or make again under its name."""
    for path in sorted(folder.glob(NUMBERED)):
        if (reason := misnamed(path)) is not None:
            raise UserError(f"{path} {reason}")


def misnamed(path: Path) -> str | None:
    """Why a numbered file does not stand under the name of its result, and what to do; None if it does."""
    number = path.name.partition("_")[0]
    expected = _name_of(number)
    if expected is None:
        if (reason := results_io.fault(path)) is not None:
            return f"{reason}, and no result has the number {number}; take it away"
        document = results_io.read(path)
        expected = f"{document.get('number')}_{document.get('id')}.json"
    return None if path.name == expected else f"is not named as its result, {expected}; rename it or take it away"


def _name_of(number: str) -> str | None:
    """The file of a measurement or calibration; None for any other number."""
    from calibrations.registry import CALIBRATIONS, PRECONDITIONS
    from circuits import measure

    if number in measure.MEASUREMENTS:
        return measure.path_of(Path(), number).name
    names = {PRECONDITIONS: "preconditions"} | {module.NUMBER: module.NAME for module in CALIBRATIONS.values()}
    return f"{number}_{names[number]}.json" if number in names else None


def made_from(folder: Path, asked: Sequence[str]) -> dict[str, Any]:
    """What a certificate says about its origin, in addition to its subject (weights, prompts, circuit).

    `inputs_sha256`: {number: digest of the file's bytes} for every numbered result in the folder; calibrations have the same for
    their inputs. `asked`: the settings that differ from the default run, which are needed to draw the same prompts again.
    """
    numbers = sorted(path.name.partition("_")[0] for path in folder.glob(NUMBERED))
    return {"inputs_sha256": calibrate.digests(folder, numbers), "asked": list(asked)}


def _gone(folder: Path) -> list[str]:
    path = folder / CERTIFICATE
    listed = results_io.read(path).get("inputs_sha256", {}) if path.is_file() else {}
    return [number for number in listed if results_io.find(folder, number) is None]


def _is_the_one_found(folder: Path) -> bool:
    note, path = folder / DISCOVERY, folder / CIRCUIT
    return not note.is_file() or (path.is_file() and results_io.read(note).get("found") == results_io.file_digest(path))
