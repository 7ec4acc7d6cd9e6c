"""One folder of numbered results, as data: what reports, figures, tables, trackers and notebooks read."""

from __future__ import annotations

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
NUMBERED = "[0-9A-Z]*_*.json"  # results that have a number
GEOMETRY, POSITION = "geometry", "171"  # folder of a model's geometry, and its first result
SUITES = "suites"  # folder of a model's behavioural suites, beside those of its tasks
NEEDED = (*calibrate.ALWAYS_READ, calibrate.PRECONDITIONS)


def certified(path: str | Path) -> Path:
    """The folder `path`. UserError if there is none or no certificate in it."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"{path} is not a folder; give that of a finished run, for example results/pocket/ioi")
    if not (folder / CERTIFICATE).is_file():
        below = sorted(str(found.parent) for found in folder.rglob(CERTIFICATE))
        remedy = f"use {below[0]}" if below else "run python run.py task=ioi calibration=all first"
        raise UserError(f"{path} has no {CERTIFICATE}, which a run with calibration=all ends with; {remedy}")
    return folder


def not_as_certified(folder: Path, certificate: Mapping[str, Any]) -> str | None:
    """The first result in a folder that is not one its certificate was made from, in words; None if all are.

    One that was swapped, taken from another run under this name, or put there later; or the certificate is of another folder.
    A certificate of an older version lists no digests, and nothing is said of its results. ResultError for one that was edited.
    """
    listed = certificate.get("inputs_sha256")
    if listed is None:
        return None
    seen: set[str] = set()
    for path in sorted(folder.glob(NUMBERED)):
        number = path.name.partition("_")[0]
        if number in seen:
            results_io.find(folder, number)  # which refuses two of one number
        seen.add(number)
        if number not in listed:
            return f"holds {path.name}, which {CERTIFICATE} does not list"
        if results_io.file_digest(path) != listed[number]:
            results_io.read(path)
            return f"holds another {path.name} than certificate.json was made from"
    return None


@dataclass(frozen=True)
class RunFolder:
    """What one run left in `path` (results/<model>/<task>[/<variant>]). Nothing is measured or judged here."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The folder of a finished run. UserError if there is none, if the run made no certificate, or if prompts (01), circuit
        (20) or preconditions (P) are gone: all else can be left out.
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
        """As `open`, for what others are shown: UserError also for a result that the certificate was not made from."""
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
        """Whether the rules of its certificate are released ones, or what differs: `word`, `differences`."""
        return Standing.read(self.certificate)

    def document(self, number: str) -> Mapping[str, Any] | None:
        """Result `number` ("02" or "2", "11", "E1b", "P") as stored; None if it is not there."""
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
        """The documents read so far; figures and tables ask for some of them a hundred times."""
        return {}

    def require(self, number: str) -> Mapping[str, Any]:
        """Result `number` as stored. UserError if it is not there."""
        document = self.document(number)
        if document is None:
            raise UserError(f"{self.path} lacks result {number}; repeat the run that it is of")
        return document

    def data(self, number: str) -> Mapping[str, Any] | None:
        """The data of result `number`; None if it is not there."""
        document = self.document(number)
        return None if document is None else document["data"]

    def calibration(self, identifier: str) -> Mapping[str, Any] | None:
        """The document of a calibration by its ID ("C11"), or of the preconditions ("P"); None if it was not made."""
        known = {name: module.NUMBER for name, module in CALIBRATIONS.items()} | {"P": "P"}
        if identifier not in known:
            raise UserError(f"calibration {identifier!r} is unknown; use one of {', '.join(known)}")
        return self.document(known[identifier])

    def record(self, metric: str) -> Mapping[str, Any] | None:
        """All that is stored of one metric ("P.faithfulness"), companions included; None if its calibration was not run."""
        document = self.calibration(metric.partition(".")[0])
        records = [] if document is None else document["records"]
        return next((record for record in records if record["metric"] == metric), None)

    def companions(self, metric: str) -> Mapping[str, Any]:
        """The companions of a metric: numbers beside its verdict; none if it was not run."""
        return (self.record(metric) or {}).get("companions", {})

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The common section of the calibration configuration that the verdicts were made with."""
        return self.require(calibrate.PRECONDITIONS)["subject"]["settings"]

    @cached_property
    def recipe_intervals(self) -> Mapping[str, tuple[float, float]]:
        """{ablation recipe: 90 % interval of faithfulness that P.faithfulness was judged by}; none if it is not reportable.

        The percentile bootstrap over clusters, drawn again: the record stores that of the primary recipe alone, and beside it
        Fieller's intervals, which differ.
        """
        if "by_method" not in self.companions("P.faithfulness"):
            return {}
        draws = preconditions.recipe_draws(self.evidence, self.settings)
        return {method: percentile_interval(values, 0.90) for method, values in draws.items()}

    @cached_property
    def evidence(self) -> Evidence:
        """All measurements of the run, seen through the evaluation split."""
        return Evidence.load(self.path, self.settings, calibrate.measurements_of(CALIBRATIONS))

    @property
    def metric(self) -> str:
        """What every effect is measured in, in words ("logit difference"): from 01 alone, as `evidence` reads everything."""
        return Evidence({"01": self.require("01")}, {}).metric

    @property
    def circuit(self) -> Mapping[str, Any]:
        """The claim: name, roles {role: {heads, ordinal, sign, ...}}, provenance."""
        return self.evidence.circuit

    @property
    def suite_folders(self) -> tuple[Path, ...]:
        """Where results of suites of the run's model may lie; they need not exist."""
        task = self.path.resolve()
        return task.parent / SUITES, task.parent.parent / SUITES

    @property
    def suites(self) -> Mapping[str, FailureModeResult]:
        """Results of failure modes (101 on) of the same weights, by number: those in `suites` beside the run's task.

        Empty if there are none. A run lies in results/<model>/<task> or one variant below; a model's name may hold one slash, as
        planted/sound.
        """
        return self._suites[1]

    @property
    def suites_folder(self) -> Path | None:
        """Where the results of `suites` lie; None without."""
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
        """Where results of geometry (171 on) of the same weights lie, in `geometry` beside the run's task; None without."""
        weights = self.certificate["subject"]["model_sha256"]
        for folder in (place.with_name(GEOMETRY) for place in self.suite_folders):
            path = results_io.find(folder, POSITION)
            if path is not None and results_io.read(path)["subject"]["identity"].get("weights") == weights:
                return folder
        return None


class FailureHead(NamedTuple):
    """A head named as one that carries failures, on one half of the pairs: share of the difference that it restores."""

    head: str  # "L2H1"
    half: str  # discovery, on which it was named, or confirmation
    estimate: float
    low: float | None
    high: float | None
    verdict: str | None  # confirmed, refuted or undecided, on the confirmation half


def carriers_of(run: RunFolder) -> list[FailureHead]:
    """The named heads of a run on failures (141), then what the confirmation half says of them (142); else none.

    UserError for a name that is no head's.
    """
    named = (run.document("141") or {"named": ()})["named"]
    judged = (run.document("142") or {"records": ()})["records"]
    found = [FailureHead(one["head"], "discovery", one["restored"], one["low"], one["high"], None) for one in named]
    for one in judged:
        low, high = one["interval"] or (None, None)
        found.append(FailureHead(one["head"], "confirmation", one["restored"], low, high, one["verdict"]))
    if wrong := next((one.head for one in found if node_names.read(one.head) is None), None):
        raise UserError(f"{run.path} names {ranges.shown(wrong)!r}, which is no head; repeat the run that it is of")
    return found


def failure_rates(documents: Mapping[str, FailureModeResult]) -> Iterator[tuple[FailureMode, EstimateRecord]]:
    """Every failure rate in the results of suites that has a value: (the data of its failure mode, its record)."""
    for document in documents.values():
        for record in document["records"]:
            if record["metric_id"].endswith(".failure_rate") and record["value"] is not None:
                yield document["data"], record


def suite_documents(folder: Path) -> dict[str, FailureModeResult]:
    """The results of behavioural suites in `folder`, by number, those that are there."""
    paths = {number: results_io.find(folder, number) for number in RATES}
    return {number: cast(FailureModeResult, results_io.read(path)) for number, path in paths.items() if path}
