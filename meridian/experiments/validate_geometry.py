"""How far the geometric metrics can be trusted: bias, coverage, false positives and power on outputs of known truth.

A cell is a metric in one condition, repeated on synthetic outputs. Then come two fine-tunes of pocket. One answers one
persona's prompts differently: PSS must find it, and PIS must not change. The other moves every answer: ODS must find it.

    python run.py experiment=validate_geometry
    python -m meridian.experiments.validate_geometry [results/validate_geometry]     writes the page's tables from these results
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import code_digest
import results_io
from circuits.measure import is_fresh
from meridian import generated_parts
from meridian.experiments import geometry_cells
from suites.geometry.trace import UNDECIDED
from suites.statistics import proportions

if TYPE_CHECKING:
    from meridian.context import RunContext

NUMBER, FILE = "V7", "V7_validate_geometry.json"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "geometry.md"
NOTES = {
    "mean_pis": " (percentile bootstrap, not shipped)",
    "pis_tails": " (wordings with t3 of one scale on all axes, for which the interval is not calibrated)",
}
CODE, PLANTS, MEANS = "geometric cells", "planted geometry", "geometric means"  # in code_digest.CODE


def run(context: RunContext) -> None:
    """Make every missing cell, then the planted fine-tunes and heads; write V7 and print a summary of the tables."""
    settings, folder = context.settings["experiment"], context.experiment_folder("validate_geometry")
    cells = geometry_cells.conditions(settings)
    with context.reporter.counting("cells of known truth") as bar:
        bar.expect(len(cells))
        rows = []
        for cell in cells:
            rows.append(_row(cell, settings, folder / "cells"))
            bar.advance(1)
    plants = {} if settings["only"] else _plants(settings, folder / "cells")
    results_io.write(folder / FILE, document(rows, plants, settings))
    for line in sentences(rows, settings):
        context.reporter.say(line)


def _plants(settings: Mapping[str, Any], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of the fine-tunes (`planted`) and of the planted heads (`heads`), stored like cells."""
    from meridian.experiments import geometry_means, geometry_plants

    found = {}
    makers = (
        ("planted", geometry_plants.fine_tuned, PLANTS),
        ("heads", geometry_plants.planted_heads, PLANTS),
        ("means", geometry_means.rows, MEANS),
    )
    for name, make, code in makers:
        subject = {name: dict(settings[name]), "seed": settings["seed"], "code": code_digest.version_of(code)}
        path = folder / f"{name}.json"
        if not is_fresh(path, subject):
            results_io.write(path, {"subject": subject, "rows": make(settings)})
        found[name] = results_io.read(path)["rows"]
    return found


def _row(cell: Mapping[str, Any], settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    kept = {name: settings[name] for name in ("repetitions", "few_repetitions", "resamples", "seed", "tau")}
    subject = {"cell": dict(cell), "settings": kept, "code": code_digest.version_of(CODE)}
    path = folder / f"{results_io.sha256(dict(cell))[:16]}.json"
    if not is_fresh(path, subject):
        results_io.write(path, {"subject": subject, "row": geometry_cells.measured(cell, settings)})
    return results_io.read(path)["row"]


# --- the result and the page ------------------------------------------------------------------------------------------


def document(
    rows: Sequence[Mapping[str, Any]], plants: Mapping[str, Sequence[Mapping[str, Any]]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The numbered result."""
    return {
        "number": NUMBER,
        "id": "validate_geometry",
        "kind": "experiment",
        "records": [],
        "subject": {
            "experiment": "validate_geometry",
            "settings": dict(settings),
            "measured_by": code_digest.version_of(CODE),
        },
        "n": {"cells": len(rows)},
        "data": {
            "rows": list(rows),
            "planted": plants.get("planted", []),
            "heads": plants.get("heads", []),
            "means": plants.get("means", []),
        },
    }


def at_minimum(rows: Sequence[Mapping[str, Any]], metric: str) -> list[Mapping[str, Any]]:
    """The cells of a metric at its shipped minimum of wordings, outputs, constructs, prompts or cases."""
    key, least = geometry_cells.SMALLEST[metric]
    return [
        row for row in rows
        if row["metric"] == metric and row[key] == (geometry_cells.PAIRS if row.get("paired") else least)
        and row["estimate"] is not None
    ]  # fmt: skip


def sentences(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[str]:
    """A summary of the cells by metric: coverage at the minimum, and false positives."""
    low, high = settings["band"]
    found, tests = [], sum(row["effect"] == 0 and bool(row["rejected"]) for row in rows)
    for metric in dict.fromkeys(row["metric"] for row in rows):
        covered = [row["coverage"] for row in at_minimum(rows, metric) if row["coverage"]]
        inside = sum(low <= one["share"] <= high for one in covered)
        reaching = sum(one["low"] <= high and one["high"] >= low for one in covered)
        if covered:
            ends = f"{min(o['share'] for o in covered):.3f} to {max(o['share'] for o in covered):.3f}"
            found.append(
                f"{metric}{NOTES.get(metric, '')}: coverage {ends} at its minimum, "
                f"{inside} of {len(covered)} cells in [{low}, {high}], {reaching} with their own interval"
            )
        null = [row["rejected"] for row in rows if row["metric"] == metric and row["effect"] == 0 and row["rejected"]]
        if null:
            around = sum(one["low"] <= settings["alpha"] <= one["high"] for one in null)
            together = sum(_holds(one, settings["alpha"], 1 - (1 - settings["alpha"]) ** (1 / tests)) for one in null)
            mean = np.mean([one["share"] for one in null])
            found.append(
                f"{metric}: false positives {mean:.3f} on average, {around} of {len(null)} intervals hold .05, and {together} of "
                f"those that hold for all {tests} null cells at once"
            )
    return found


def _holds(share: Mapping[str, float], alpha: float, error: float) -> bool:
    """Whether the Wilson interval of a share with this chance of missing it holds alpha."""
    count = int(share["n"])
    bounds = proportions.wilson(round(share["share"] * count), count, 1 - error).bounds
    return bounds.low <= alpha <= bounds.high


def coverage_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, by metric and dimension at the shipped minimum: both numbers beside the truth, coverage by noise, false
    positives."""
    header = (
        "metric",
        "at",
        "axes",
        "true",
        "published",
        "estimate",
        "coverage, normal",
        "coverage, t3",
        "coverage, t3 wordings",
        "false positives",
    )
    lines = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        own, key = at_minimum(rows, metric), geometry_cells.SMALLEST[metric][0]
        for paired, axes in dict.fromkeys((row.get("paired", False), row.get("axes")) for row in own):
            every = [row for row in own if (row.get("paired", False), row.get("axes")) == (paired, axes)]
            name, least = f"{metric}, pairs" if paired else metric, every[0][key]
            cells = [row for row in every if row.get("wording", "normal") == "normal"]
            shown = [row for row in cells if row.get("noise", "normal") == "normal" and row["effect"] == 1.0]
            shown = shown or cells or every
            first = shown[0]
            numbers = ["–" if first[k] is None else f"{first[k]:.3f}" for k in ("truth", "published", "estimate")]
            spread = [
                _range([r["coverage"] for r in cells if r.get("noise", "normal") == kind]) for kind in ("normal", "t3")
            ]
            spread.append(_range([r["coverage"] for r in every if r.get("wording", "normal") != "normal"]))
            null = _range([r["rejected"] for r in cells if r["effect"] == 0])
            lines.append([name, f"{least} {key}", "–" if axes is None else str(axes), *numbers, *spread, null])
    return generated_parts.table(header, lines)


def few_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: PIS with fewer wordings than an interval needs, and with one draw, at effect 1 of normal noise."""
    own = [row for row in rows if row["metric"] == "pis" and row["noise"] == "normal" and row["effect"] in (0, 1)]
    own = [row for row in own if row["wordings"] < geometry_cells.SMALLEST["pis"][1] or row["draws"] == 1]
    lines = [
        [
            f"{row['wordings']} wordings of {row['draws']}",
            *(str(row["axes"]), f"{row['truth']:.3f}", f"{row['published']:.3f}"),
            row["status"].replace("_", " ") if row["estimate"] is None else f"{row['estimate']:.3f}",
            "–" if row["rejected"] is None or row["effect"] else f"{row['rejected']['share']:.3f}",
        ]
        for row in own
    ]
    return generated_parts.table(("pis at", "axes", "true", "published", "estimate", "false positives"), lines)


def power_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: share of p-values below alpha by effect, under normal noise, at the shipped minimum and above."""
    effects = sorted({row["effect"] for row in rows if row["rejected"]})
    lines = []
    for metric in dict.fromkeys(row["metric"] for row in rows if row["rejected"] and row["metric"] not in NOTES):
        key = geometry_cells.SMALLEST[metric][0]
        own = [row for row in rows if row["metric"] == metric and row.get("noise", "normal") == "normal"]
        own = [
            row for row in own
            if row.get("axes", 2) in (2, 16) and row.get("draws", 5) == 5 and row.get("wording", "normal") == "normal"
        ]  # fmt: skip
        for kind in dict.fromkeys((*_condition(row), row[key]) for row in own):
            same = [row for row in own if (*_condition(row), row[key]) == kind]
            cells, (paired, each, axes, size) = {row["effect"]: row["rejected"] for row in same}, kind
            if not any(cells.get(effect) for effect in effects if effect):
                continue  # only its false positives were counted
            shares = ["–" if cells.get(e) is None else f"{cells[e]['share']:.2f}" for e in effects]
            name = f"{metric}, pairs" if paired else f"{metric}, {each} a topic" if each > 1 else metric
            lines.append([name, f"{size} {key}", "–" if axes is None else str(axes), *shares])
    return generated_parts.table(("metric", "at", "axes", *(f"effect {e:g}" for e in effects)), lines)


def _condition(row: Mapping[str, Any]) -> tuple[bool, int, int | None]:
    """(whether outputs are paired, how many issues or constructs a topic has, the axes)."""
    return row.get("paired", False), row.get("cluster", 1), row.get("axes")


def planted_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: each metric on the intact model, and its change with interval and reading for each fine-tune."""
    names = {
        "ods": "ODS, squared",
        "pis": "PIS, tau²",
        "pss": "PSS, squared: persona",
        "pss_other": "PSS, squared: other",
        "ow": "OW",
    }
    names = {name: title for name, title in names.items() if name in rows[0]}  # OW is newer than some stored rows
    lines = []
    for place, row in enumerate(rows):
        cells = [f"{row[name]:.3f}" if place == 0 else _changed(row, name) for name in names]
        lines.append([row["model"], *cells, ", ".join(row["found"]) or "–"])
    return generated_parts.table(("model", *names.values(), "changed"), lines)


def _changed(row: Mapping[str, Any], name: str) -> str:
    mean, low, high = row["changes"][name]
    return f"{mean:+.3f} [{low:+.3f}, {high:+.3f}] {row['read'][name]}"


def heads_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: how many planted heads are named first of their kind, what they were read as, and which further heads appear.

    For shams: in how many every head is named as in the intact model, and in how many none moves anything otherwise.
    """
    names = {
        "persona": "answers a persona otherwise (trait)",
        "wording": "spreads the wordings (method)",
        "sham": "sham: words of no prompt (none)",
        "position": "writes one answer always (trait)",
    }
    lines = [
        ["pocket as it is", "–", "–", "–", "–", *(", ".join(found) or "none" for found in _known(row))]
        for row in rows
        if row["plant"] == "intact"
    ]
    for kind, name in names.items():
        own = [row for row in rows if row["plant"] == kind]
        if own:
            right = f"{sum(row['right'] for row in own)} of {len(own)}"
            if kind == "sham":
                right += f"; in {sum(not row['otherwise'] for row in own)} no head moves anything otherwise"
            read_as = _counted(row["kind"] or "none" for row in own)
            heads = str(len({row["head"] for row in own}))
            first = (
                f"{sum(row['otherwise'][:1] == [row['head']] for row in own)} of {len(own)}" if kind != "sham" else "–"
            )
            lines.append([name, heads, right, first, read_as, _further(own, False), _further(own, True)])
    header = (
        "planted head (its kind)",
        "heads",
        "right",
        "first of what moves otherwise",
        "the planted head is read as",
    )
    return generated_parts.table((*header, "further heads with a kind", "further undecided heads"), lines)


def _known(intact: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(the heads that have a kind in the intact model, those that are undecided)."""
    named = intact["named"]
    return [head for kind, heads in named.items() if kind != UNDECIDED for head in heads], named[UNDECIDED]


def _counted(found: Iterable[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(found).most_common())


def _further(rows: Sequence[Mapping[str, Any]], undecided: bool) -> str:
    """How many plants have further heads (undecided ones, or ones with a kind), and how often each head occurs."""
    found = [
        [
            head if undecided else f"{head} {kind}"
            for head, kind in row["further"].items()
            if (kind == UNDECIDED) == undecided
        ]
        for row in rows
    ]
    heads = [head for own in found for head in own]
    if not heads:
        return "none"
    kinds = "" if undecided else f" ({_counted(head.split()[1] for head in heads)})"
    return f"{len(heads)} in {sum(map(bool, found))} of {len(rows)}{kinds}: {_counted(heads)}"


def means_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: coverage of the mean over constructs with both bootstraps, by number of topics."""
    header = ("constructs", "topics", "percentile (not shipped)", "studentised (shipped)")
    lines = [
        [str(row["constructs"]), str(row["topics"]), f"{row['percentile']:.3f}", f"{row['studentised']:.3f}"]
        for row in rows
    ]
    return generated_parts.table(header, lines)


def _range(found: Sequence[Mapping[str, float] | None]) -> str:
    shares = [one["share"] for one in found if one]
    if not shares:
        return "–"
    return f"{min(shares):.3f}" if min(shares) == max(shares) else f"{min(shares):.3f} to {max(shares):.3f}"


def parts(found: Mapping[str, Any]) -> dict[str, str]:
    """{marker: the text between the page's markers}."""
    rows, settings = found["data"]["rows"], found["subject"]["settings"]
    return {
        "geometry summary": "\n".join(f"- {line}" for line in sentences(rows, settings)),
        "geometry coverage": coverage_table(rows),
        "geometry few": few_table(rows),
        "geometry power": power_table(rows),
        "geometry planted": planted_table(found["data"]["planted"]),
        "geometry heads": heads_table(found["data"]["heads"]),
        "geometry means": means_table(found["data"]["means"]),
    }


def update(results: Path, page: Path = PAGE) -> None:
    """Copy the experiment's result beside the page, and rewrite the page's tables.

    A run of some metrics alone (`experiment.only`) replaces their rows only; the other rows and the plants stay.
    """
    generated_parts.update(page, parts(generated_parts.keep(page, results / FILE, merged)))


def merged(kept: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The kept result, with the rows of `found` for the metrics it has. `measured_by`: the code that made each metric's rows."""
    new, old = (list(dict.fromkeys(row["metric"] for row in one["data"]["rows"])) for one in (found, kept))
    order = [name for name in geometry_cells.MAKERS if name in {*new, *old}]
    sources = {name: found if name in new else kept for name in order}
    rows = [row for name in order for row in sources[name]["data"]["rows"] if row["metric"] == name]
    by = {name: _measured_by(sources[name], name) for name in order}
    return {
        **kept,
        "subject": {**kept["subject"], "measured_by": by},
        "n": {"cells": len(rows)},
        "data": {**kept["data"], "rows": rows},
    }


def _measured_by(document: Mapping[str, Any], metric: str) -> str:
    code = document["subject"]["measured_by"]
    return code if isinstance(code, str) else code[metric]


if __name__ == "__main__":
    update(Path(sys.argv[1] if len(sys.argv) > 1 else "results/validate_geometry"))
