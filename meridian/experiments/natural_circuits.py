"""Circuits of a trained model: the tier of each task's stored circuit, of one found by each method, and of random heads.

Nothing is planted here, so the right tier is unknown. The table shows the certificate's tier for each natural circuit, and what
blocks its next tier. Every row is a run of the main job, whose folder is kept below results/natural_circuits.

    python run.py experiment=natural_circuits
    python -m meridian.experiments.natural_circuits [results/natural_circuits]     writes the page's table from these results
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import code_digest
import results_io
from calibrations import calibrate
from circuits import devices, discovery
from meridian import generated_parts, in_process
from meridian.experiments import processes
from meridian.experiments.validation.page import PAGE
from results_io import UserError

if TYPE_CHECKING:
    from meridian.context import RunContext

FILE = "V8_natural_circuits.json"


def claims(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """The claims about each task, by name, with the settings that choose them. UserError for an unknown method."""
    methods = config["methods"] or list(discovery.METHODS)
    if unknown := [name for name in methods if name not in discovery.METHODS]:
        raise UserError(f"experiment.methods names {unknown[0]!r}; use some of {', '.join(discovery.METHODS)}")
    found = {name: ["circuit=discovered", f"circuit.method={name}"] for name in methods}
    drawn = {f"random {seed}": ["circuit=random", f"circuit.seed={seed}"] for seed in config["random_seeds"]}
    return {"stored": ["circuit=stored"], **found, **drawn}


def run(context: RunContext) -> None:
    """Certify every claim about every task, write V8 below results/natural_circuits, print the table's sentences.

    Tasks run in parallel. Claims about one task run in sequence, because they share measurements.
    """
    config, folder = context.settings["experiment"], context.experiment_folder("natural_circuits")
    asked, device = claims(config), context.settings["model"].get("device")
    own = [f"model={config['model']}", *([f"model.device={device}"] if device else []), *config["settings"]]
    workers = None if devices.device_of(context.settings["model"]) == "cpu" else 1
    rows: dict[str, list[dict[str, Any]]] = {}
    with context.reporter.counting("tasks certified") as bar:
        bar.expect(len(config["tasks"]))
        work = [(certified, task, asked, own, folder / config["model"]) for task in config["tasks"]]
        for place, found in processes.results(work, workers):
            rows[config["tasks"][place]] = found
            bar.advance(1)
    ordered = [row for task in config["tasks"] for row in rows[task]]
    results_io.write(folder / FILE, document(ordered, config))
    for line in sentences(ordered):
        context.reporter.say(line)


def certified(task: str, asked: Mapping[str, Sequence[str]], own: Iterable[str], results: Path) -> list[dict[str, Any]]:
    """The certificate of every claim about one task in short; for a refused claim, the reason."""
    torch.set_num_threads(1)
    return [
        {"task": task, "claim": name, **_short([f"task={task}", *own, *chosen], results)}
        for name, chosen in asked.items()
    ]


def _short(settings: Sequence[str], results: Path) -> dict[str, Any]:
    try:
        run = in_process.run(settings, results, False)
    except UserError as reason:
        return {"tier": None, "refused": str(reason)}
    certificate, battery = run.certificate, run.document("20")
    assert battery is not None  # every certificate reads it
    tier = certificate["tier"] or 0
    return {
        "heads": len({tuple(pair) for role in battery["data"]["circuit"]["roles"].values() for pair in role["heads"]}),
        "tier": tier,
        "tier_name": certificate["tier_name"],
        "ceiling": certificate["ceiling"],
        "faithfulness": certificate["headline"]["faithfulness"],
        "blocked_by": certificate["blocking"].get(str(tier + 1), []),
    }


def document(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> dict[str, Any]:
    """The numbered result: every claim with its tier and what blocks the next one."""
    return {
        "number": "V8",
        "id": "natural_circuits",
        "kind": "experiment",
        "records": [],
        "environment": calibrate.environment(),
        "subject": {
            "experiment": "natural_circuits",
            "settings": dict(config),
            "judged_by": code_digest.version_of("verdicts"),
        },
        "n": {"claims": len(rows)},
        "data": {"claims": list(rows)},
    }


def sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How many claims of each kind reach each tier."""
    lines, judged = [], [row for row in rows if row["tier"] is not None]
    for kind in ("stored", "discovered", "random"):
        tiers = Counter(row["tier"] for row in judged if _kind(row["claim"]) == kind)
        if tiers:
            reached = ", ".join(f"{count} at tier {tier}" for tier, count in sorted(tiers.items(), reverse=True))
            lines.append(f"{kind}: {reached}")
    refused = [f"{row['task']}, {row['claim']}: {row['refused']}" for row in rows if row["tier"] is None]
    return [*lines, *refused, f"different tiers: {len({row['tier'] for row in judged})}"]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: every claim, its size, its tier, and the first gate that blocks the next tier, with its reason."""
    header = ("task", "claim", "heads", "tier", "blocks the next", "because")
    lines = []
    for row in rows:
        if row["tier"] is None:
            lines.append([row["task"], row["claim"], "–", "–", "–", row["refused"]])
            continue
        gate = row["blocked_by"][0] if row["blocked_by"] else None
        metric = gate["metric"] if gate else "–"
        lines.append([row["task"], row["claim"], str(row["heads"]), str(row["tier"]), metric, _because(gate)])
    return generated_parts.table(header, lines)


def _because(gate: Mapping[str, Any] | None) -> str:
    """The gate's first reason, and what would settle it."""
    if gate is None:
        return "–"
    reason = str(gate["reason"] or gate["verdict"]).split("; ")[0].replace("|", "\\|")
    return reason + (f" (needs {gate['needs']})" if gate["needs"] else "")


def _kind(claim: str) -> str:
    return "random" if claim.startswith("random") else "stored" if claim == "stored" else "discovered"


def update(results: Path, page: Path = PAGE) -> None:
    """Copy the experiment's result beside the page, and rewrite the page's table."""

    def content(data: Mapping[str, Any]) -> str:
        rows = data["claims"]
        return generated_parts.listed(sentences(rows), table(rows))

    generated_parts.update_with_result(page, "natural circuits", results / FILE, content)


if __name__ == "__main__":
    update(Path(sys.argv[1] if len(sys.argv) > 1 else "results/natural_circuits"))
