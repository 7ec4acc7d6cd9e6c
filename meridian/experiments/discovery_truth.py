"""How well each discovery method recovers a circuit that is known, by construction or by training.

A row is a method on a model. The method ranks on the discovery prompts, and the stopping rule cuts the ranking on the same
prompts; CPR and CMD are measured on other prompts (evaluation). Ranking and set are judged separately. The set is also
compared with the one that faithfulness alone would have chosen.

    python run.py experiment=discovery_truth
    python -m meridian.experiments.discovery_truth [results/discovery_truth]     writes the page's tables from these results
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

import code_digest
import results_io
from circuits import discovery, models, planted, tasks
from circuits import study as studies
from circuits.circuit import Circuit, Node
from circuits.discovery import curve
from circuits.discovery.nested import Nested
from circuits.discovery.stopping import Stopping, head_order
from circuits.measure import is_fresh
from circuits.study import Study
from meridian import generated_parts, overrides
from results_io import UserError

if TYPE_CHECKING:
    from meridian.context import RunContext

NUMBER, FILE = "V5", "V5_discovery_truth.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-well-is-a-circuit-found.md"
SET, RANKING = ("precision", "recall"), ("r_precision", "auroc", "cpr", "cmd")
HEADINGS = {"r_precision": "R-precision", "auroc": "AUROC", "cpr": "CPR", "cmd": "CMD", "seconds": "seconds"}


def run(context: RunContext) -> None:
    """Make every missing row, write V5 below results/discovery_truth, and print a summary of the table."""
    settings, folder = context.settings["experiment"], context.experiment_folder("discovery_truth")
    unknown = [name for name in settings["methods"] if name not in discovery.METHODS]
    if unknown:
        raise UserError(f"experiment.methods names {unknown[0]!r}; use some of {', '.join(discovery.METHODS)}")
    names = subjects(settings)
    with context.reporter.counting("methods on known circuits") as bar:
        bar.expect(len(names) * len(settings["methods"]))
        rows = []
        for name, kind in names.items():
            for row in rows_of(name, kind, context, folder / "rows"):
                rows.append(row)
                bar.advance(1)
    results_io.write(folder / FILE, document(rows, context))
    for line in sentences(rows):
        context.reporter.say(line)


def subjects(settings: Mapping[str, Any]) -> dict[str, str]:
    """{model: its kind}, in the order of the configuration. UserError for a model that does not exist."""
    known = {name: kind for kind, names in settings["circuits"].items() for name in names}
    only = settings["only"] or known
    if missing := [name for name in only if name not in known]:
        raise UserError(f"experiment.only names {missing[0]!r}, which is not listed; use some of {', '.join(known)}")
    return {name: known[name] for name in known if name in set(only)}


def rows_of(name: str, kind: str, context: RunContext, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of one model, which is loaded only when a missing row is first needed."""
    settings, study = context.settings["experiment"], None
    for method in settings["methods"]:
        path, subject = folder / f"{name}_{method}.json", _subject(name, method, context)
        if not is_fresh(path, subject):
            study = study or prepared(name, kind, context)
            results_io.write(
                path,
                {"subject": subject, "row": row(study, truth_of(name, kind, study.model.circuits), method, settings)},
            )
        yield {"model": name, "kind": kind, **results_io.read(path)["row"]}


def _subject(name: str, method: str, context: RunContext) -> dict[str, Any]:
    """What a row is about."""
    settings = context.settings["experiment"]
    return {
        "model": name,
        "method": method,
        "settings": {key: settings[key] for key in ("task", "seed", "prompts", "most_heads", "most_edges")},
        "measurement": context.settings["measurement"],
        "code": code_digest.version_of("measurements"),
    }


def prepared(name: str, kind: str, context: RunContext) -> Study:
    """The study of one model: built in memory, or the trained one that ships."""
    settings = context.settings["experiment"]
    configured = {"name": f"planted/{name}", "kind": "planted", "variant": name, "seed": 0, "dtype": "float32"}
    if kind == "trained":
        configured = dict(overrides.group("model", f"planted/{name}"))
    model = models.load({**configured, "device": context.settings["model"].get("device")})
    return studies.prepare(
        model,
        tasks.get(settings["task"]),
        settings["prompts"],
        settings["seed"],
        context.settings["engine"],
        settings=context.settings["measurement"],
    )


def truth_of(name: str, kind: str, stored: Mapping[str, Circuit]) -> tuple[Node, ...]:
    """All heads that do the task or take it over; for a trained model, those of its shipped circuit (`stored`, by task)."""
    return stored["ioi"].heads if kind == "trained" else planted.truth(name).heads


def row(study: Study, truth: tuple[Node, ...], method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """How many of the true heads a method recovers, or why it was not run."""
    own, heads = study.settings["discovery"], study.model.heads
    found: dict[str, Any] = {"method": method, "heads": len(heads), "true": [str(node) for node in truth]}
    if reason := _too_large(study, method, settings):
        return {**found, "left_out": reason}
    start = time.perf_counter()
    try:
        ranking = discovery.METHODS[method].rank(study, study.discovery)
        nested = Nested(study, study.discovery, ranking)
        order = nested.order
        ranked = time.perf_counter()
        ending = Stopping(nested, own).ending(curve.sizes(nested.total, own["shares"]))
    except UserError as error:
        return {**found, "left_out": str(error)}
    seconds = {"ranking": ranked - start, "stopping": time.perf_counter() - ranked}
    chosen, faithful = (
        ranking.heads(ranking.members(order[:size])) for size in (ending.size, ending.smallest_faithful)
    )
    by_head = head_order(nested)
    elsewhere = Nested(study, study.prompts, replace(ranking, order=lambda weights: order, scores=None))
    return {
        **found,
        "left_out": None,
        "unit": ranking.unit,
        "order": [str(node) for node in by_head[: len(truth) + 5]],
        "set": [str(node) for node in chosen],
        "complete": ending.complete,
        **discovery.recovery(chosen, by_head, truth),
        "by_faithfulness": {key: discovery.recovery(faithful, by_head, truth)[key] for key in SET},
        **areas(elsewhere, own["shares"]),
        "seconds": seconds,
    }


def _too_large(study: Study, method: str, settings: Mapping[str, Any]) -> str | None:
    most = {"heads": settings["most_heads"].get(method), "edges": settings["most_edges"].get(method)}
    there = {"heads": len(study.model.heads), "edges": len(study.model.graph.edges)}
    for unit, limit in most.items():
        if limit is not None and there[unit] > limit:
            return f"{there[unit]:,} {unit}, and it is asked of at most {limit:,} here"
    return None


def areas(nested: Nested, shares: Sequence[float]) -> dict[str, float]:
    """CPR and CMD of the circuits at MIB's shares, on the prompts of `nested`."""
    sizes = sorted(set(curve.sizes(nested.total, shares)))
    f, real = nested.faithfulness(sizes), np.array(sizes) / nested.total
    return {"cpr": float(curve.performance(real, f)), "cmd": float(curve.distance(real, f))}


# --- the result -----------------------------------------------------------------------------------------------------


def document(rows: Sequence[Mapping[str, Any]], context: RunContext) -> dict[str, Any]:
    """The numbered result."""
    return {
        "number": NUMBER,
        "id": "discovery_truth",
        "kind": "experiment",
        "records": [],
        "subject": {
            "experiment": "discovery_truth",
            "settings": context.settings["experiment"],
            "discovery": context.settings["measurement"]["discovery"],
            "measured_by": code_digest.version_of("measurements"),
        },
        "n": {"rows": len(rows)},
        "data": {"rows": list(rows), "means": means(rows)},
    }


def measured(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in rows if one["left_out"] is None]


def means(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """{method: the mean of each number}, over the models that every method ran on."""
    there, known = _models_by_method(rows), measured(rows)
    shared = set.intersection(*there.values()) if there else set()
    return {
        method: {
            "models": len(shared),
            **{key: fmean(one[key] for one in own) for key in (*SET, *RANKING)},
            **{f"{key}_by_faithfulness": fmean(one["by_faithfulness"][key] for one in own) for key in SET},
            "seconds": fmean(sum(one["seconds"].values()) for one in own),
        }
        for method in there
        if (own := [one for one in known if one["method"] == method and one["model"] in shared])
    }


def _models_by_method(rows: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for one in measured(rows):
        found.setdefault(one["method"], set()).add(one["model"])
    return found


def sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The effect of the stopping rule: how many sets equal the true heads, with it and with faithfulness alone."""
    known = measured(rows)
    exact = sum(one["precision"] == one["recall"] == 1 for one in known)
    before = sum(one["by_faithfulness"]["precision"] == one["by_faithfulness"]["recall"] == 1 for one in known)
    perfect = sum(one["r_precision"] == 1 for one in known)
    return [
        f"rankings with all true heads first: {perfect} of {len(known)}",
        f"sets that are exactly the true heads: {exact} of {len(known)}; by faithfulness alone {before}",
        *(f"{one['method']} was not asked of {one['model']}: {one['left_out']}" for one in rows if one["left_out"]),
    ]


# --- the page -------------------------------------------------------------------------------------------------------


def summary_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: one row per method with the mean of every number."""
    header = ("method", "models", "precision", "recall", *HEADINGS.values())
    lines = []
    for method, own in means(rows).items():
        sets = [f"{own[f'{key}_by_faithfulness']:.2f} → {own[key]:.2f}" for key in SET]
        numbers = [f"{own[key]:.2f}" for key in RANKING]
        lines.append([method, str(own["models"]), *sets, *numbers, f"{own['seconds']:.1f}"])
    return generated_parts.table(header, lines)


def model_table(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Markdown: every method on one model."""
    header = ("method", "heads found", "precision", "recall", *HEADINGS.values())
    lines = []
    for one in measured(own for own in rows if own["model"] == name):
        sets = [f"{one['by_faithfulness'][key]:.2f} → {one[key]:.2f}" for key in SET]
        numbers = ["–" if one[key] is None else f"{one[key]:.2f}" for key in RANKING]
        size = f"{len(one['set'])}" if one["complete"] else f"{len(one['set'])} (not complete)"
        lines.append([one["method"], size, *sets, *numbers, f"{sum(one['seconds'].values()):.1f}"])
    return generated_parts.table(header, lines)


def parts(found: Mapping[str, Any]) -> dict[str, str]:
    """The texts between the page's markers."""
    rows = found["data"]["rows"]
    titles = {
        one["model"]: f"{one['model'].replace('_', ' ')}: {len(one['true'])} of {one['heads']} heads" for one in rows
    }
    return {
        "summary": "\n".join(f"- {line}" for line in sentences(rows)),
        "methods": summary_table(rows),
        "models": "\n\n".join(f"### {title}\n\n{model_table(rows, name)}" for name, title in titles.items()),
    }


def update(results: Path, page: Path = PAGE) -> None:
    """Copy the experiment's result beside the page, and rewrite the page's tables."""
    generated_parts.update(page, parts(generated_parts.keep(page, results / FILE)))


if __name__ == "__main__":
    update(Path(sys.argv[1] if len(sys.argv) > 1 else "results/discovery_truth"))
