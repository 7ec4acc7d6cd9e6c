"""All certified circuits of a folder of results in one table: as CSV beside summary.json, and printed when a multirun ends.

Everything in the table is also in summary.json. Rows are in the order of the folders' names, whichever run ended first.
"""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

import interruption
import results_io
import shown_text
from calibrations import summary
from calibrations.claims_tried import ClaimsTried
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing
from meridian import config_files, locks

FILE = "summary.csv"
ABOUT = ("model", "task", "seed", "variant")
JUDGED = ("tier", "tier_name", "of", "ceiling", "rules", "faithfulness", "low", "high", "p", "p_corrected", "survives")
LETTERS = {"pass": "p", "fail": "F", "inconclusive": "?", "insufficient": "-", "not run": "."}
LEGEND = (
    f"Verdicts in the order {' '.join(CALIBRATIONS)}: p pass, F fail, ? inconclusive, - insufficient, . not run; "
    "kept: faithfulness under mean ablation; p* is the certificate's p-value corrected over all rows"
)
IN_PLACE_OF_A_RUN = ("command", "suite", "experiment")
CRASHED = 1  # exit code of a job that left a traceback


def pool(results: Path, config: Mapping[str, Any], say: Any) -> dict[str, Any]:
    """Write summary.json and summary.csv of a folder of results under a lock; return the content of summary.json.

    `config` is the calibration section of the configuration. `say` is called if the lock is held by another process.
    """
    with locks.held(results, results / "summary.json", say):
        pooled = results_io.read(summary.summarise(results, config))
        results_io.write_text(results / FILE, to_csv(rows(pooled)))
    if pooled["left_out"]:
        folders = ", ".join(pooled["left_out"])
        say(
            f"Left out of summary.json: the certificates in {folders}, of an older version without a digest; repeat their runs"
        )
    return pooled


def rows(pooled: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each certificate of summary.json, in its order: ABOUT, JUDGED and the verdict of every calibration.

    `rules` is "released 0.3", "changed" or "unknown"; `low` and `high` are the 95 % interval of faithfulness under mean ablation;
    `p` is the p-value of the certificate. `p_corrected` is the same p-value after the Benjamini-Yekutieli correction over all
    circuits. `survives` says whether the corrected one is significant.
    """
    over = pooled["multiplicity"]["companions"]["circuits"]
    return [_row(entry, over[key]) for key, entry in pooled["circuits"].items()]


def _row(entry: Mapping[str, Any], corrected: Mapping[str, Any]) -> dict[str, Any]:
    ratio = entry["faithfulness"] or {}
    low, high = ratio.get("ci95") or (None, None)
    return {
        "model": entry["subject"]["model"],
        "task": entry["subject"]["task"],
        **{name: entry[name] for name in ("seed", "variant", "tier", "tier_name", "of", "ceiling")},
        "rules": Standing.read(entry).word,
        **{"faithfulness": ratio.get("estimate"), "low": low, "high": high},
        **{"p": corrected["p"], "p_corrected": corrected["by"], "survives": corrected["survives"]},
        **{name: entry["verdicts"].get(name, "not run") for name in CALIBRATIONS},
    }


def to_csv(table: Iterable[Mapping[str, Any]]) -> str:
    """The rows as CSV with a header; unknown values are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*ABOUT, *JUDGED, *CALIBRATIONS), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: shown_text.cell(value) for name, value in row.items()} for row in table)
    return text.getvalue()


def show(pooled: Mapping[str, Any], console: Console) -> None:
    """Print the rows as a table with a word of one letter for each verdict; below it, the claims tried and the global M93.

    A * after a tier means that it was reached under unreleased rules.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in (*ABOUT, "tier", "ceiling", "kept [95 %]", "p*"):
        folds = name in ABOUT and name != "seed"
        table.add_column(name, justify="left" if name in ABOUT else "right", overflow="fold", no_wrap=not folds)
    table.add_column("verdicts", no_wrap=True)
    for row in rows(pooled):
        about = ["" if row[name] is None else str(row[name]) for name in ABOUT]
        tier = "none" if row["tier"] is None else f"{row['tier']} of {row['of']}"
        tier += "" if row["rules"].startswith("released") else " *"
        p = "" if row["p_corrected"] is None else f"{row['p_corrected']:.2g}"
        told = (*about, tier, str(row["ceiling"]), _ratio(row), p, "".join(LETTERS[row[c]] for c in CALIBRATIONS))
        table.add_row(*map(Text, told))
    console.print(table, highlight=False)
    sentence = summary.sentence(pooled["multiplicity"])
    claims = (one.sentence for one in map(ClaimsTried.read, pooled["claims"]))
    for line in (LEGEND, *claims, sentence[0].upper() + sentence[1:]):
        console.print(shown_text.folded(line), highlight=False, markup=False, soft_wrap=True)


def _ratio(row: Mapping[str, Any]) -> str:
    if row["faithfulness"] is None:
        return "not reportable"
    interval = "" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row['faithfulness']:.2f}{interval}"


class JobEnded(Exception):
    """Raised when a job of a multirun ends with a code other than 0; Hydra re-raises the first one after all jobs.

    `args`: the exit code, and the sentence of a refusal ("" if the job was not refused).
    """

    @property
    def code(self) -> int:
        return self.args[0]

    @property
    def reason(self) -> str:
        return self.args[1]


class EndedJob(JobReturn):
    """What Hydra keeps of a job that ended with JobEnded. JobReturn itself prints which job failed before it raises the error."""

    @property
    def return_value(self) -> Any:
        raise self._return_value


class AtTheEnd(Callback):
    """Pools the results once more after the last job of a multirun, and shows the table.

    Hydra calls `on_multirun_end` only if no job failed. If one failed, `commandline.guarded` calls `finish`. Of a job that ended
    without a crash, Hydra prints no line of its own.
    """

    running: DictConfig | None = None  # the configuration of the multirun that this process leads

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        AtTheEnd.running = config

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        ended = job_return._return_value
        if isinstance(ended, JobEnded) and ended.code != CRASHED:
            job_return.__class__ = EndedJob

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        finish()


def finish() -> None:
    """Pool and show the results of the multirun that this process leads. Does nothing without a multirun or a certificate."""
    config, AtTheEnd.running = AtTheEnd.running, None
    if config is None or any(config.get(name) for name in IN_PLACE_OF_A_RUN):
        return
    results = Path(config.results)
    if not any(results.rglob("certificate.json")):
        return
    with interruption.caught():  # so that Ctrl-C removes half-written files
        _finish(results, config)


def _finish(results: Path, config: DictConfig) -> None:
    calibration = config_files.plain(config.calibration)
    console = Console(width=shown_text.WIDTH)
    pooled = pool(results, calibration, functools.partial(console.print, highlight=False, markup=False))
    show(pooled, console)
    written = f"{results / FILE} and {results / 'summary.json'}"
    console.print(
        f"{len(pooled['circuits'])} certificates pooled in {written}", highlight=False, markup=False, soft_wrap=True
    )
