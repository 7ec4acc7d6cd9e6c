"""One folder of numbered results as data, for reports, figures, tables, trackers and notebooks."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import node_names
import results_io
from calibrations import calibrate, preconditions
from calibrations.certificate_row import CertificateRow, rows_of
from calibrations.evidence import Evidence
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing
from calibrations.statistics import percentile_interval
from meridian import ranges
from result_types import RATES, EstimateRecord, FailureMode, FailureModeResult
from results_io import UserError

CERTIFICATE = "certificate.json"
NUMBERED = "[0-9A-Z]*_*.json"  # files of numbered results
GEOMETRY, POSITION = "geometry", "171"  # folder of a model's geometry, and its first result
SUITES = "suites"  # folder of a model's behavioural suites, beside those of its tasks
DEPTH = 4  # folders of results below results/ that are looked through: results/<model>/<task>/<variant> and one more
NEEDED = (*calibrate.ALWAYS_READ, calibrate.PRECONDITIONS)


def below(folder: Path, name: str, depth: int = DEPTH) -> Iterator[Path]:
    """The files of this name, or of this pattern, in `folder` and at most `depth` folders below it, in order.

    Folders that cannot be read are left out, and links to folders are not followed.
    """
    for root, _, files in _walk(folder, depth):
        yield from (root / file for file in sorted(fnmatch.filter(files, name)))


def folders_below(folder: Path, name: str, depth: int = DEPTH) -> Iterator[Path]:
    """As `below`, but the folders of this name, and links to folders."""
    for root, folders, _ in _walk(folder, depth):
        yield from (root / one for one in fnmatch.filter(folders, name))


def _walk(folder: Path, depth: int) -> Iterator[tuple[Path, list[str], list[str]]]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        yield Path(root), list(folders), files
        if len(Path(root).relative_to(folder).parts) >= depth:
            folders.clear()


def certified(path: str | Path) -> Path:
    """The folder `path`. UserError if it does not exist or has no certificate."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{path} is not a folder; give that of a finished run, for example results/pocket/ioi")
    if not (folder / CERTIFICATE).is_file():
        if os.path.lexists(folder / CERTIFICATE):
            raise UserError(f"{folder / CERTIFICATE} is not a file; delete it and run the command of that folder again")
        runs = sorted(str(found.parent) for found in below(folder, CERTIFICATE) if found.is_file())
        remedy = f"use {runs[0]}" if runs else "run python run.py task=ioi calibration=all first"
        raise UserError(f"{path} has no {CERTIFICATE}, which a run with calibration=all ends with; {remedy}")
    return folder


def not_as_certified(folder: Path, certificate: Mapping[str, Any]) -> str | None:
    """The first result in a folder that the certificate was not made from, in words; None if there is none.

    It may have been swapped, copied from another run under this name, or added later, or the certificate belongs to another
    folder. A certificate of an older version lists no digests, so its results are not checked. ResultError for an edited result.
    """
    listed = certificate.get("inputs_sha256")
    if listed is None:
        return None
    seen: set[str] = set()
    for path in sorted(folder.glob(NUMBERED)):
        number = path.name.partition("_")[0]
        if number in seen:
            results_io.find(folder, number)  # raises for two results with one number
        seen.add(number)
        if number not in listed:
            return f"holds {path.name}, which {CERTIFICATE} does not list"
        if results_io.file_digest(path) != listed[number]:
            results_io.read(path)
            return f"holds another {path.name} than certificate.json was made from"
    return None


@dataclass(frozen=True)
class RunFolder:
    """The results of one run in `path` (results/<model>/<task>[/<variant>]). Nothing is measured or judged here."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The folder of a finished run.

        UserError if it does not exist, if it has no certificate, or if prompts (01), circuit (20) or preconditions (P) are
        missing. Everything else may be missing.
        """
        folder = certified(path)
        lacking = [number for number in NEEDED if results_io.find(folder, number) is None]
        if lacking:
            raise UserError(
                f"{path} lacks result {' and '.join(lacking)}, which everything else is about; repeat the run that it is of"
            )
        return cls(folder)

    @classmethod
    def open_as_certified(cls, path: str | Path) -> Self:
        """As `open`, for output that is shown to others: UserError also for a result that the certificate was not made from."""
        run = cls.open(path)
        if problem := not_as_certified(run.path, run.certificate):
            raise UserError(f"{path} {problem}; repeat the run that it is of")
        return run

    @cached_property
    def certificate(self) -> Mapping[str, Any]:
        """certificate.json: tier, blocking gates, one row per calibration, headline."""
        return results_io.read(self.path / CERTIFICATE)

    @cached_property
    def rows(self) -> Sequence[CertificateRow]:
        """The rows of the certificate: the preconditions, then every calibration."""
        return rows_of(self.certificate)

    @property
    def tier(self) -> int | None:
        """The tier reached; None if the model is not shown to do the task."""
        return self.certificate["tier"]

    @property
    def rules(self) -> Standing:
        """Whether its certificate's rules are released ones, and what differs: `word`, `differences`."""
        return Standing.read(self.certificate)

    def document(self, number: str) -> Mapping[str, Any] | None:
        """Result `number` ("02" or "2", "11", "E1b", "P") as stored; None if it is missing."""
        path = results_io.find(self.path, f"{number:0>2}" if str(number).isdigit() else number)
        if path is None:
            return None
        stat = path.stat()
        key = (path.name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if key not in self._read:
            self._read[key] = results_io.read(path)
        return self._read[key]

    @cached_property
    def _read(self) -> dict[tuple[str, int, int, int], Mapping[str, Any]]:
        """The documents read so far; figures and tables request some of them a hundred times."""
        return {}

    def require(self, number: str) -> Mapping[str, Any]:
        """Result `number` as stored. UserError if it is missing."""
        document = self.document(number)
        if document is None:
            raise UserError(f"{self.path} lacks result {number}; repeat the run that it is of")
        return document

    def data(self, number: str) -> Mapping[str, Any] | None:
        """The data of result `number`; None if it is missing."""
        document = self.document(number)
        return None if document is None else document["data"]

    def calibration(self, identifier: str) -> Mapping[str, Any] | None:
        """The document of a calibration by its ID ("C11"), or of the preconditions ("P"); None if it was not made."""
        known = {name: module.NUMBER for name, module in CALIBRATIONS.items()} | {"P": "P"}
        name = next((name for name in known if name.casefold() == str(identifier).casefold()), None)
        if name is None:
            raise UserError(f"calibration {identifier!r} is unknown; use one of {', '.join(known)}")
        return self.document(known[name])

    def record(self, metric: str) -> Mapping[str, Any] | None:
        """The stored record of a metric ("P.faithfulness"), companions included; None if its calibration was not run."""
        document = self.calibration(metric.partition(".")[0])
        records = [] if document is None else document["records"]
        return next((record for record in records if record["metric"] == metric), None)

    def companions(self, metric: str) -> Mapping[str, Any]:
        """The companions of a metric, which are numbers beside its verdict; empty if it was not run."""
        return (self.record(metric) or {}).get("companions", {})

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The common section of the calibration configuration that the verdicts were made with."""
        return self.require(calibrate.PRECONDITIONS)["subject"]["settings"]

    @cached_property
    def recipe_intervals(self) -> Mapping[str, tuple[float, float]]:
        """{ablation recipe: the 90 % interval of faithfulness that P.faithfulness was judged by}; empty if not reportable.

        These are intervals of the percentile bootstrap over clusters, drawn again. The record stores only the one of the primary
        recipe, and Fieller's intervals, which differ.
        """
        if "by_method" not in self.companions("P.faithfulness"):
            return {}
        draws = preconditions.recipe_draws(self.evidence, self.settings)
        return {method: percentile_interval(values, 0.90) for method, values in draws.items()}

    @cached_property
    def evidence(self) -> Evidence:
        """All measurements of the run, restricted to the evaluation split."""
        return Evidence.load(self.path, self.settings, calibrate.measurements_of(CALIBRATIONS))

    @property
    def metric(self) -> str:
        """The quantity in which every effect is measured ("logit difference"), read from 01 only: `evidence` reads all files."""
        return Evidence({"01": self.require("01")}, {}).metric

    @property
    def circuit(self) -> Mapping[str, Any]:
        """The claim: name, roles {role: {heads, ordinal, sign, ...}}, provenance."""
        return self.evidence.circuit

    @property
    def suite_folders(self) -> tuple[Path, ...]:
        """The folders where the suites' results of the run's model may be; they need not exist."""
        task = self.path.resolve()
        return task.parent / SUITES, task.parent.parent / SUITES

    @property
    def suites(self) -> Mapping[str, FailureModeResult]:
        """{number: result} of failure modes (101 on) of the same weights, from `suites` beside the run's task.

        Empty if there are none. A run is in results/<model>/<task> or in a variant's folder below; a model's name may contain one
        slash, as planted/sound does.
        """
        return self._suites[1]

    @property
    def suites_folder(self) -> Path | None:
        """The folder of the results in `suites`; None if there are none."""
        return self._suites[0]

    @cached_property
    def _suites(self) -> tuple[Path | None, Mapping[str, FailureModeResult]]:
        weights = self.certificate["subject"]["model_sha256"]
        for folder in self.suite_folders:
            documents = suite_documents(folder).items()
            if found := {n: d for n, d in documents if d["subject"]["identity"].get("weights") == weights}:
                return folder, found
        return None, {}

    @property
    def geometry_folder(self) -> Path | None:
        """The folder `geometry` beside the run's task if it has results (171 on) of the same weights; else None."""
        weights = self.certificate["subject"]["model_sha256"]
        for folder in (place.with_name(GEOMETRY) for place in self.suite_folders):
            path = results_io.find(folder, POSITION)
            if path is not None and results_io.read(path)["subject"]["identity"].get("weights") == weights:
                return folder
        return None


class FailureHead(NamedTuple):
    """A head named as a carrier of failures, with the share of the difference that it restores on one half of the pairs."""

    head: str  # "L2H1"
    half: str  # "discovery", on which it was named, or "confirmation"
    estimate: float
    low: float | None
    high: float | None
    verdict: str | None  # on the confirmation half: confirmed, refuted or undecided


def carriers_of(run: RunFolder) -> list[FailureHead]:
    """The named heads of a run on failures (141), then their results on the confirmation half (142); empty for other runs.

    UserError for a name that is not a head's.
    """
    named = (run.document("141") or {"named": ()})["named"]
    judged = (run.document("142") or {"records": ()})["records"]
    found = [FailureHead(one["head"], "discovery", one["restored"], one["low"], one["high"], None) for one in named]
    for one in judged:
        low, high = one["interval"] or (None, None)
        found.append(FailureHead(one["head"], "confirmation", one["restored"], low, high, one["verdict"]))
    if wrong := next((one.head for one in found if node_names.read(one.head) is None), None):
        raise UserError(f"{run.path} names {ranges.shown(wrong)!r}, which is not a head; repeat the run that it is of")
    return found


def failure_rates(documents: Mapping[str, FailureModeResult]) -> Iterator[tuple[FailureMode, EstimateRecord]]:
    """(the data of its failure mode, its record) for every failure rate that has a value."""
    for document in documents.values():
        for record in document["records"]:
            if record["metric_id"].endswith(".failure_rate") and record["value"] is not None:
                yield document["data"], record


def suite_documents(folder: Path) -> dict[str, FailureModeResult]:
    """{number: result} of the behavioural suites in `folder`, for the results that exist."""
    paths = {number: results_io.find(folder, number) for number in RATES}
    return {number: cast(FailureModeResult, results_io.read(path)) for number, path in paths.items() if path}
