"""Weights & Biases: configuration, progress, verdicts, tables, figures and the results as a versioned artifact.

A run's id follows from its folder, the weights and a random word that stays in the results folder. A run that resumes after a
kill therefore resumes in W&B too, the same circuit measured twice is one run with two versions of its artifact, and two results
folders never share a run.
"""

from __future__ import annotations

import fnmatch
import netrc
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import wandb
from filelock import FileLock

import results_io
from calibrations.certificate_row import rows_of
from calibrations.rules import Standing
from calibrations.tier_words import tier_name
from calibrations.worst_groups import COMPLETENESS, OUTSIDE, WorstGroups
from meridian import figures, report, tables
from meridian.figures import plotly
from meridian.figures.values import Figure
from meridian.run_folder import RunFolder
from meridian.trackers.base import FollowedRun, Tracker

FOLDER = "wandb"  # below results/
ID_LENGTH = 16
NAME_LENGTH = 120  # W&B allows 128 characters in names of runs and artifacts
TAG_LENGTH = 64  # the longest tag that W&B allows; a longer one would end the tracking
SALT = "salt.txt"  # below results/wandb
HOSTED = "https://api.wandb.ai"
MODES = ("online", "offline")
ALL = "all"  # a value of tracker.figures
PRIVATE = "private"  # in place of the host's name
CODES = {"pass": 1, "inconclusive": 0, "insufficient": 0, "fail": -1}  # a verdict as a number, for colours and sorting


class WeightsAndBiases(Tracker):
    """One W&B run for each model and task."""

    def __init__(self, settings: Mapping[str, Any], results: Path, say: Callable[[str], Any]) -> None:
        self.settings, self.folder, self.say = settings, results / FOLDER, say
        self.mode: Any = mode(settings["mode"], say)
        self.run: wandb.Run | None = None
        self.pairs, self.told = 0, float("-inf")

    def begin(self, subject: FollowedRun) -> None:
        """Start the run, or resume it if its folder and weights were followed before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("WANDB_DATA_DIR", str(self.folder.resolve()))  # where copies of artifacts wait for a sync
        self.subject = subject
        self.run = wandb.init(
            project=self.settings["project"],
            entity=self.settings["entity"],
            dir=str(self.folder.parent),
            id=results_io.sha256([salt(self.folder), subject.name, subject.model_sha256])[:ID_LENGTH],
            name=subject.name[:NAME_LENGTH],
            group=(self.settings["group"] or "")[:NAME_LENGTH] or None,
            tags=tags([subject.model, subject.task, *self.settings["tags"]]),
            job_type="suites" if subject.task == "suites" else "circuit",
            config={**without_folders(subject.config), "model_sha256": subject.model_sha256},
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            reinit="finish_previous",
            settings=wandb.Settings(
                silent=True,
                console="off",
                host=PRIVATE,
                x_disable_meta=True,  # leaves out program, arguments, folders, interpreter, user and host
                disable_git=True,  # leaves out the repository's address and uncommitted changes
                disable_code=True,
            ),
        )

    @property
    def begun(self) -> wandb.Run:
        """The W&B run. RuntimeError if none has begun."""
        if self.run is None:
            raise RuntimeError("no W&B run has begun")
        return self.run

    def progress(self, measurement: str, done: int, total: int, rate: float) -> None:
        """Log a point every few seconds, and one at the end of each measurement."""
        if self.run is None or (done < total and time.monotonic() - self.told < self.settings["progress_seconds"]):
            return
        self.told = time.monotonic()
        self.run.log(
            {
                "progress/measurement": measurement,
                "progress/share": done / total if total else 1.0,
                "progress/pairs": done,
                "progress/pairs_per_second": rate,
            }
        )

    def judged(self, certificate: Mapping[str, Any]) -> None:
        """Put `C11/verdict`, `C11/estimate`, ... and the tier into the run's summary."""
        self.begun.summary.update(summary(certificate))

    def finished(self, run: RunFolder) -> None:
        """Log faithfulness by recipe, tables and figures, and the whole folder as a versioned artifact."""
        self.begun.summary.update(faithfulness(run))
        shown = {f"table/{name}": interactive(table.frame) for name, table in tables.of(run).items()}
        drawn = {
            f"figure/{name}": wandb.Plotly(plotly.draw(figure))
            for name, figure in chosen(figures.of(run), self.settings).items()
        }
        self.begun.log({**shown, **drawn})
        self._artifact(
            "certificate", [*sorted(run.path.glob("*.json")), run.path / "circuit.yaml", run.path / report.NAME]
        )

    def asked(self, folder: Path) -> None:
        """Put failure rates into the summary, and log the suites' numbered results as a versioned artifact."""
        found = sorted(folder.glob("1??_*.json"))
        for path in found:
            for record in results_io.read(path).get("records", ()):
                if record.get("suite") and record.get("value") is not None:
                    self.begun.summary[f"{record['suite']}/{record['metric_id']}"] = record["value"]
        self._artifact("behaviour", [*found, folder / "scores.jsonl"])

    def end(self, failed: bool) -> None:
        """Close the run and print where it is."""
        if self.run is None:
            return
        place, url = self.run.settings.sync_dir, self.run.url if self.mode == "online" else None
        self.run.finish(exit_code=int(failed))
        self.run = None
        if self.mode != "disabled":
            self.say(f"W&B {url}" if url else f"W&B offline run; upload it with: wandb sync {place}")

    def _artifact(self, kind: str, paths: list[Path]) -> None:
        artifact = wandb.Artifact(artifact_name(self.subject.name, kind), type=kind)
        for path in paths:
            if path.is_file():
                artifact.add_file(str(path))
        self.begun.log_artifact(artifact)


def chosen(found: Mapping[str, Figure], settings: Mapping[str, Any]) -> dict[str, Figure]:
    """All figures, or by default those that match a pattern of `first_figures` (with *), in the order of the report."""
    patterns = ["*"] if settings["figures"] == ALL else settings["first_figures"]
    return {name: figure for name, figure in found.items() if any(fnmatch.fnmatch(name, one) for one in patterns)}


def without_folders(config: Any) -> Any:
    """The configuration with only the last part of every absolute path, so that it does not reveal this machine's folders."""
    if isinstance(config, Mapping):
        return {name: without_folders(value) for name, value in config.items()}
    if isinstance(config, list):
        return [without_folders(value) for value in config]
    if isinstance(config, str) and Path(config).expanduser().is_absolute():
        return Path(config).name
    return config


def faithfulness(run: RunFolder) -> dict[str, Any]:
    """Summary entries about faithfulness; only those that are reportable.

    - `faithfulness/<recipe>` and the ends of its 90 % interval, for every recipe;
    - the band that the gate requires, and the deciding recipe, whose interval has the least room in the band;
    - `random_circuits/median` and `random_circuits/largest`.
    """
    stored, null = run.companions("P.faithfulness"), run.companions("P.random_circuits")
    found = {
        f"random_circuits/{name}": null[key]
        for name, key in (("median", "random_median"), ("largest", "random_maximum"))
        if key in null
    }
    intervals = run.recipe_intervals
    for recipe, (low, high) in intervals.items():
        estimate = stored["by_method"][recipe].get("faithfulness")
        found[f"faithfulness/{recipe}"] = estimate
        found |= {f"faithfulness/{recipe}_low": low, f"faithfulness/{recipe}_high": high}
    if not intervals:
        return found
    least, most = (run.settings[f"faithfulness_{end}"] for end in ("low", "high"))
    room = {name: min(intervals[name][0] - least, most - intervals[name][1]) for name in stored["recipes"]}
    found |= {"faithfulness/band_low": least, "faithfulness/band_high": most}
    return found | {"P.faithfulness/recipe": min(room, key=lambda name: room[name])}


def interactive(frame: pd.DataFrame) -> wandb.Table:
    """The frame as a W&B table, with gaps for missing values."""
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    return wandb.Table(columns=list(frame), data=rows, allow_mixed_types=True)


def artifact_name(subject: str, kind: str) -> str:
    """ "pocket-ioi-certificate" for "pocket/ioi". W&B allows only ASCII letters and digits, "-", "_" and "."."""
    plain = (letter if (letter.isascii() and letter.isalnum()) or letter in "-_." else "_" for letter in subject)
    name = "".join("-" if old == "/" else new for old, new in zip(subject, plain, strict=True))
    return f"{name[: NAME_LENGTH - len(kind) - 1]}-{kind}"


def tags(words: Iterable[Any]) -> list[str]:
    """Each word once, cut to the length that W&B allows."""
    return [word for word in dict.fromkeys(str(word)[:TAG_LENGTH] for word in words) if word]


def salt(folder: Path) -> str:
    """A random word, made once and kept in `folder`, so that the same name in two results folders means two runs."""
    path = folder / SALT
    with FileLock(folder / f".{SALT}.lock"):  # a multirun may begin several runs at once
        if not path.exists():
            results_io.write_text(path, secrets.token_hex(16) + "\n")
        return path.read_text(encoding="utf-8").strip()


def mode(asked: str | None, say: Callable[[str], Any]) -> str:
    """ "online", "offline" or "disabled": as asked, else as in WANDB_MODE, else online only if there is a login.

    Raises UserError if another word was asked for. Another word in WANDB_MODE is reported and replaced by offline, because it
    must not end a run.
    """
    known = (*MODES, "disabled")
    if asked and asked not in known:
        raise results_io.UserError(f"tracker.mode={asked} is unknown; use {' or '.join(MODES)}")
    given = os.environ.get("WANDB_MODE", "")
    chosen = asked or given or ("online" if logged_in() else "offline")
    if chosen not in known:
        say(f"WANDB_MODE={given} is none of {', '.join(known)}; W&B stays offline")
        chosen = "offline"
    if given not in known and "WANDB_MODE" in os.environ:
        os.environ["WANDB_MODE"] = chosen  # W&B reads it too, and raises for an unknown word
    return chosen


def logged_in() -> bool:
    """True if there is an API key, in the environment or where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", HOSTED)).hostname
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(path).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def summary(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the dashboard's columns: for each calibration, verdict, published verdict, estimate and 90 % interval.

    For each precondition, verdict and estimate; for P.completeness and P.outside also the worst group with its numbers.
    """
    found: dict[str, Any] = {name: certificate[name] for name in ("tier", "ceiling")}
    found |= {"tier_name": tier_name(certificate), "rules": "\n".join(Standing.read(certificate).lines)}
    preconditions, *rows = rows_of(certificate)
    for row in rows:
        found |= {f"{row.id}/verdict": row.verdict, f"{row.id}/verdict_code": CODES.get(row.verdict)}
        if metric := row.decided_by:
            low, high = metric.interval
            found |= {
                f"{row.id}/published": metric.published_verdict,
                f"{row.id}/estimate": metric.estimate,
                f"{row.id}/low": low,
                f"{row.id}/high": high,
            }
    for metric in preconditions.metrics:
        found |= {f"{metric.metric}/verdict": metric.verdict, f"{metric.metric}/estimate": metric.estimate}
    groups = WorstGroups.read(certificate)
    for group in groups.claimed[:1]:
        found |= {f"{COMPLETENESS}/heads": group.heads_text, f"{COMPLETENESS}/recipe": group.recipe_text}
        found |= {f"{COMPLETENESS}/inc": group.incompleteness, f"{COMPLETENESS}/published_score": group.published_score}
        found |= {
            f"{COMPLETENESS}/circuit_loses": group.lost_by_circuit,
            f"{COMPLETENESS}/model_loses": group.lost_by_model,
        }
    for group in groups.outside[:1]:
        found |= {f"{OUTSIDE}/heads": group.heads_text, f"{OUTSIDE}/side": group.side_text}
        found |= {f"{OUTSIDE}/recipe": group.recipe_text, f"{OUTSIDE}/share": group.share}
    return found
