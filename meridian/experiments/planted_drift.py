"""Does drift find what was planted, where it was planted, and nothing where nothing was planted?

Each copy of the embedded model gives a series of two snapshots, the model and then the copy, with their versions declared. A row
lists the alarms. Planted refusals are traced as well: heads are named on one half of the prompts; on the other half, the trace
gives what they restore together, and what the same heads of a null-tuned copy restore. Null-tuned copies do differ from the
model, so their alarms are reported separately, as harmless updates that alarm.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scipy import stats

import code_digest
import results_io
from circuits import models
from circuits.measure import is_fresh
from meridian import drift_demo, drift_series, drift_trace, generated_parts
from meridian.experiments import processes
from meridian.training import tuning
from suites.drift import analysis, corpus, embeddings, series_record, snapshot
from suites.drift.corpus import BOUNDARY, NEUTRAL
from suites.models.local import LocalModel
from suites.modes import embedding
from suites.statistics import proportions

if TYPE_CHECKING:
    from meridian.context import RunContext

NUMBER = "V6"
NULLS: tuple[tuning.Kind, ...] = ("intact", "bfloat16", "null")
FAULTS: tuple[tuning.Kind, ...] = ("refuse", "short", "semantic")
RIGHT = {"refuse": ("refusal", BOUNDARY), "short": ("length", NEUTRAL), "semantic": ("centroid", NEUTRAL)}
LIMIT = 0.05  # the largest acceptable rate of false alarms
PAGE = Path(__file__).parents[2] / "docs" / "drift.md"


@dataclass(frozen=True)
class TunedCopy:
    """One copy: its name, and how it is made."""

    name: str
    tuning: tuning.Tuning


def copies(settings: Mapping[str, Any]) -> list[TunedCopy]:
    """Every copy, with the kinds in turn, so that the first copies cover all kinds."""
    kinds: list[tuple[tuning.Kind, float, int]] = []
    for kind in NULLS:
        kinds.append((kind, 0.0, int(settings["nulls"])))
    for kind in FAULTS:
        for size in settings["shares"]:
            kinds.append((kind, float(size), int(settings["faults"])))
    found = []
    for turn in range(max(count for *_, count in kinds)):
        for place, (kind, share, count) in enumerate(kinds):
            if turn < count:
                seed = 1000 * int(settings["seed"]) + 20 * turn + place + 1
                found.append(
                    TunedCopy(f"{kind}_{share:g}_{turn:02d}".replace(".", "_"), tuning.Tuning(kind, share, seed))
                )
    return found[: settings["most"]] if settings["most"] else found


def run(context: RunContext) -> None:
    """Make, ask, test and trace every copy; print the rates and write V6_planted_drift.json."""
    settings = context.settings["experiment"]
    folder = context.experiment_folder(settings["name"], "experiment.most", "experiment.workers")
    config = {"drift": context.settings["drift"], "experiment": settings, "engine": context.settings["engine"]["name"]}
    tasks = [(row_of, copy, config, folder) for copy in copies(settings)]
    rows: dict[int, dict[str, Any]] = {}
    with context.reporter.bar("planted drift") as bar:
        bar.expect(len(tasks))
        for place, row in processes.results(tasks, settings["workers"]):
            rows[place] = row
            bar.advance(1)
    found = [rows[place] for place in sorted(rows)]
    code = code_digest.version_of("planted drift")
    data = {"rows": found, "rates": rates(found, settings), "settings": dict(settings), "code": code}
    path = folder / f"{NUMBER}_{settings['name']}.json"
    results_io.write(path, {"id": settings["name"], "number": NUMBER, "data": data})
    for line in lines(data["rates"]):
        context.reporter.say(line)
    context.reporter.say(
        f"Result {path}; `python -m scripts.docs` shows it on docs/drift.md once it is in docs/validation/"
    )


def row_of(copy: TunedCopy, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The row of one copy; it is made unless already stored for these settings, weights and code."""
    path = folder / copy.name / "row.json"
    subject = {
        "copy": {"name": copy.name, **asdict(copy.tuning)},
        "drift": results_io.canonical(config["drift"]),
        "traced": config["experiment"]["traced"],
        "weights": models.identify(drift_demo.POCKET).sha256,
        "code": code_digest.version_of("planted drift"),
    }
    if not is_fresh(path, subject):
        shutil.rmtree(folder / copy.name, ignore_errors=True)  # remains of an unfinished copy are of no use
        results_io.write(path, {"subject": subject, "row": _row(copy, config, folder / copy.name)})
    return results_io.read(path)["row"]


def _row(copy: TunedCopy, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Two snapshots, their tests and, for planted refusals, the trace. The weights are deleted, as the seed can remake them."""
    settings = {**config["drift"], "prompt_level": False, "snapshot": None}
    questions, own = corpus.load(settings["corpus"]), folder / copy.name
    pocket = LocalModel(drift_demo.POCKET)
    later = tuning.checkpoint(pocket, copy.tuning, settings["tuning"], questions, folder / "checkpoint")
    for order, model in ((0, pocket), (1, LocalModel(later))):
        declared = {**settings, "order": order, "version": str(order)}
        taken = snapshot.take(model, questions, own, declared, seed=copy.tuning.seed)
        rows = list(series_record.read(own / series_record.NAME).snapshots[taken.id].rows.values())
        embeddings.fill(folder / embeddings.NAME, rows, embedding.embedder)
    manifest = analysis.analyse(own, drift_series.analysed_by(settings), copy.tuning.seed)
    tests = [one for one in manifest["records"] if one["level"] == "axis"]
    row = {
        "name": copy.name,
        **asdict(copy.tuning),
        "alarms": [[one["name"], one["axis"]] for one in manifest["alarms"]],
        "p": {f"{one['name']} {one['axis']}": one["p"] for one in tests},
        "change": {f"{one['name']} {one['axis']}": one.get("difference") for one in tests},
    }
    if copy.tuning.kind == "refuse" and config["experiment"]["traced"]:
        row["trace"] = _traced(own, folder, manifest["snapshot"], later, settings, questions, config["engine"])
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    return row


def _traced(
    series: Path,
    folder: Path,
    identifier: str,
    later: Mapping[str, Any],
    settings: Mapping[str, Any],
    questions: corpus.Corpus,
    engine: str,
) -> dict[str, Any]:
    """What the named heads restore together on the confirmation half, and the control; `reason` if no head is named."""
    alarm = drift_trace.Alarm(identifier, BOUNDARY, "refusal")
    keys = drift_trace.changed(series, alarm, questions)
    if not keys:
        return {"prompts": 0, "named": [], "together": None, "control": None, "reason": "no prompt changed its class"}
    paths = {"a": drift_demo.POCKET, "b": later}
    opened = {side: LocalModel(one) for side, one in paths.items()}
    texts = drift_trace.answered(opened, questions, drift_trace.asked_on(series, alarm, questions))
    changes = [one for one in texts if one.before != one.after]
    found = drift_trace.across(paths, opened, changes, questions, settings["trace"], engine)
    control = drift_trace.null_control(folder, later, found, settings, opened, changes, questions, engine)
    names = [one["head"] for one in found["named"]]
    rest = {key: found[key] for key in ("together", "ceiling", "floor", "reason", "halves", "compared")}
    return {"prompts": len(keys), "named": names, "control": control, **rest}


# --- rates ------------------------------------------------------------------------------------------------------------


def rates(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every rate with its 95 % Wilson interval; for false alarms also the p-value of "the rate is at most .05"."""

    def share(over: Sequence[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], Any]) -> dict[str, Any]:
        hits = sum(bool(holds(row)) for row in over)
        found = proportions.wilson(hits, len(over))
        ci = [found.ci.low, found.ci.high] if found.ci else None
        return {"k": hits, "n": len(over), "value": found.value, "ci95": ci}

    def kind(name: str, size: float | None = None) -> list[Mapping[str, Any]]:
        return [row for row in rows if row["kind"] == name and (size is None or row["share"] == size)]

    found: dict[str, dict[str, Any]] = {}
    for name in ("intact", "bfloat16"):
        own = share(kind(name), lambda row: row["alarms"])
        p = stats.binom.sf(own["k"] - 1, own["n"], LIMIT) if own["n"] else None
        found[f"false alarms, {name}"] = {**own, "p_above_limit": None if p is None else float(p)}
    found["null-tuned: harmless updates that alarm"] = share(kind("null"), lambda row: row["alarms"])
    for name in FAULTS:
        for size in settings["shares"]:
            own = kind(name, float(size))
            found[f"{name}, share {size:g}: an alarm"] = share(own, lambda row: row["alarms"])
            alarmed = [row for row in own if row["alarms"]]
            found[f"{name}, share {size:g}: the right metric and axis among the flagged"] = share(
                alarmed, lambda row, name=name: list(RIGHT[name]) in row["alarms"]
            )
    traced = [row for row in rows if row.get("trace")]
    for size in settings["shares"]:
        own = [row for row in traced if row["share"] == float(size)]
        said = f"planted refusals of share {size:g} whose named heads restore >= {settings['restores']:g}"
        said += f", control below {settings['control_below']:g}"
        found[said] = share(own, lambda row: restores(row["trace"], settings))
    return found


def restores(trace: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether the named heads restore enough on the other half, and those of the null-tuned copy almost nothing."""
    if trace["together"] is None or trace["control"] is None:
        return False
    enough = trace["together"]["value"] >= settings["restores"]
    return enough and abs(trace["control"]["value"]) < settings["control_below"]


def lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per rate."""
    return [f"{name}: {cell(rate)}" for name, rate in found.items()]


def cell(rate: Mapping[str, Any]) -> str:
    """ "9 of 10 [.60, .98]"."""
    ends = rate["ci95"]
    return f"{rate['k']} of {rate['n']}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def table(data: Mapping[str, Any]) -> str:
    """The rates for the documentation."""
    return generated_parts.table(
        ("what", "copies, with 95 % Wilson interval"), [[n, cell(r)] for n, r in data["rates"].items()]
    )


def update(results: Path, page: Path = PAGE) -> None:
    """Copy the result beside the page and write its table into the page. `results`: the folder of V6_planted_drift.json."""
    generated_parts.update_with_result(page, "planted drift", results / f"{NUMBER}_planted_drift.json", table)


if __name__ == "__main__":
    update(Path(sys.argv[1] if len(sys.argv) > 1 else "results/planted_drift"))
