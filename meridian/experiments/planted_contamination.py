"""How many repetitions does it take to find contamination, and how often is it claimed where there is none?

Every copy of the embedded model is tuned in one pass over ordinary documents with n repetitions of 20 items and a canary. It is
then examined like any model under test: 191 on the folder of its documents, 193 relative to fresh items and to the untuned model,
194, and the accuracy on planted and on other items. Copies with no planted items are asked about many sets of items.

    python run.py experiment=planted_contamination
    python -m meridian.experiments.planted_contamination [results/planted_contamination]     writes the page's table
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import code_digest
import results_io
from circuits import models
from circuits.measure import is_fresh
from meridian import drift_demo, generated_parts
from meridian.experiments import processes
from meridian.training import repeated
from suites.contamination import canary, loss_gap, overlap
from suites.contamination.overlap import Overlap
from suites.estimate import Estimate
from suites.models.local import LocalModel
from suites.statistics import proportions

if TYPE_CHECKING:
    from meridian.context import RunContext

NUMBER = "V9"
FILE = f"{NUMBER}_planted_contamination.json"
PAGE = Path(__file__).parents[2] / "docs" / "contamination.md"
HOW_MANY = ("copies", "clean_copies", "workers")  # settings that change how much is done, not what
DETECTORS = ("fresh", "reference", "both", "canary", "accuracy")


def run(context: RunContext) -> None:
    """Tune and ask every copy; print the rates and write V9_planted_contamination.json."""
    settings = context.settings["experiment"]
    folder = context.experiment_folder(settings["name"], *(f"experiment.{name}" for name in HOW_MANY))
    tasks = [
        (rows_of, repetitions, number, settings, folder)
        for number in range(
            max(settings["copies"], settings["clean_copies"])
        )  # in turn, so that the first copies cover all doses
        for repetitions in settings["repetitions"]
        if number < settings["copies" if repetitions else "clean_copies"]
    ]
    found: dict[int, list[dict[str, Any]]] = {}
    with context.reporter.bar("planted contamination") as bar:
        bar.expect(len(tasks))
        for place, rows in processes.results(tasks, settings["workers"]):
            found[place] = rows
            bar.advance(1)
    rows = [row for place in sorted(found) for row in found[place]]
    code = code_digest.version_of("planted contamination")
    data = {"rows": rows, "rates": rates(rows, settings), "settings": dict(settings), "code": code}
    path = folder / FILE
    results_io.write(path, {"id": settings["name"], "number": NUMBER, "data": data})
    for line in lines(data["rates"]):
        context.reporter.say(line)
    context.reporter.say(f"Result {path}")


def rows_of(repetitions: int, number: int, settings: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The rows of one copy; they are made unless already stored for these settings, weights and code."""
    path = folder / f"copy-{repetitions:02d}-{number:02d}.json"  # not a numbered result
    subject = {
        "copy": [repetitions, number],
        "settings": results_io.canonical({key: value for key, value in settings.items() if key not in HOW_MANY}),
        "weights": models.identify(drift_demo.POCKET).sha256,
        "code": code_digest.version_of("planted contamination"),
    }
    if not is_fresh(path, subject):
        results_io.write(path, {"subject": subject, "rows": measured(repetitions, number, settings)})
    return results_io.read(path)["rows"]


def measured(repetitions: int, number: int, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each set of items that the copy is asked about.

    A copy with repetitions is asked about its planted set; one without, about `clean_sets` sets that it never read.
    """
    pocket, copied = LocalModel(drift_demo.POCKET), LocalModel(drift_demo.POCKET)
    name = f"{settings['seed']}-{repetitions}-{number}"
    planted = [*(fact.text for fact in repeated.facts(name, settings["items"])), repeated.canary(name).line]
    texts = repeated.documents(planted, repetitions, settings["ordinary"], hash_of(name))
    copied.model = repeated.tuned(pocket, texts, settings)
    sets = [name] if repetitions else [f"{name}/{place}" for place in range(settings["clean_sets"])]
    return [asked(copied, pocket, own, repetitions, number, texts, settings) for own in sets]


def hash_of(name: str) -> int:
    """A seed computed from a name."""
    return int(results_io.sha256(name)[:8], 16)


def asked(
    copied: LocalModel,
    pocket: LocalModel,
    name: str,
    repetitions: int,
    number: int,
    texts: Sequence[str],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Results 191, 193 and 194 for one set, and the accuracy on its items and on as many fresh ones."""
    facts = repeated.facts(name, settings["items"])
    fresh = repeated.facts(f"fresh {name}", settings["items"])
    seed = hash_of(name)
    gap = loss_gap.measure(copied, [one.pair for one in facts], pocket, [one.pair for one in fresh], seed)
    exposure = canary.measure(copied, repeated.canary(name), seed, repeated.secrets, settings["alternatives"])
    flagged = overlap_with(texts, facts)
    accuracy = compared(copied, facts, fresh)
    return {
        "set": name,
        "repetitions": repetitions,
        "copy": number,
        "flagged": flagged,
        "gap": gap.gap.number,
        "fresh": _test(gap.beyond_fresh),
        "reference": _test(gap.beyond_reference),
        "both": _test(gap.beyond_both),
        "canary": _test(exposure),
        "accuracy": accuracy,
    }


def overlap_with(texts: Sequence[str], facts: Sequence[repeated.TaughtFact]) -> float | None:
    """Result 191: the share of the facts that a copy's documents contain."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "documents.txt").write_text("\n".join(texts), encoding="utf-8")
        return overlap.overlap({fact.id: fact.text for fact in facts}, folder).flagged.value


def compared(
    model: LocalModel, facts: Sequence[repeated.TaughtFact], fresh: Sequence[repeated.TaughtFact]
) -> dict[str, Any]:
    """Accuracy by likelihood on each set, and whether the interval of the difference lies above 0."""
    items, right = [], {}
    for dirty, group in ((True, facts), (False, fresh)):
        pairs = [(fact.prompt, f" {choice}") for fact in group for choice in fact.choices]
        found = iter(model.loglikelihood(pairs))
        for fact in group:
            said = {choice: next(found).logprob for choice in fact.choices}
            items.append(Overlap(fact.id, 14, 13, 1, int(dirty)))
            right[fact.id] = max(said, key=lambda choice: said[choice]) == fact.answer
    both = overlap.clean_and_dirty(items, right)
    above = both.difference.bounds.low > 0
    return {
        "clean": both.clean.number,
        "dirty": both.dirty.number,
        "difference": both.difference.number,
        "found": above,
    }


def _test(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else {"value": estimate.value, "p": estimate.p_value}


# --- rates ------------------------------------------------------------------------------------------------------------


def rates(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """{repetitions: how often each detector fires at alpha, and means}; the intervals treat a copy's sets as one cluster."""
    found: dict[str, dict[str, Any]] = {}
    for repetitions in settings["repetitions"]:
        own = [row for row in rows if row["repetitions"] == repetitions]
        clusters = [str(row["copy"]) for row in own]
        cells: dict[str, Any] = {"n": len(own), "copies": len(set(clusters))}
        for name in DETECTORS:
            fired = [
                bool(row["accuracy"]["found"]) if name == "accuracy" else row[name]["p"] <= settings["alpha"]
                for row in own
            ]
            rate = proportions.clustered(fired, clusters)
            cells[name] = {"k": sum(fired), "n": len(fired), "ci95": rate.ci and [rate.ci.low, rate.ci.high]}
        cells["flagged"] = _mean([row["flagged"] for row in own])
        cells["exposure"] = _mean([row["canary"]["value"] for row in own])
        cells["gap_beyond_fresh"] = _mean([row["fresh"]["value"] for row in own])
        cells |= {f"accuracy_{side}": _mean([row["accuracy"][side] for row in own]) for side in ("clean", "dirty")}
        found[str(repetitions)] = cells
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def lines(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line for each number of repetitions."""
    return [
        f"{repetitions} repetitions: " + ", ".join(f"{name} {cell(own[name])}" for name in DETECTORS)
        for repetitions, own in found.items()
    ]


def cell(rate: Mapping[str, Any]) -> str:
    """ "9 of 10 [.60, .98]"."""
    ends = rate["ci95"]
    return f"{rate['k']} of {rate['n']}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")


def table(data: Mapping[str, Any]) -> str:
    """Detections by repetitions, for the documentation."""
    header = (
        *("repetitions", "191: items in the documents", "193 beyond fresh items", "193 beyond the untuned model"),
        *("193 beyond both", "194 canary", "mean exposure, bits", "accuracy planted / other", "difference above 0"),
    )
    rows = [
        [
            *(repetitions, f"{100 * own['flagged']:.0f} %", cell(own["fresh"]), cell(own["reference"])),
            *(cell(own["both"]), cell(own["canary"]), f"{own['exposure']:.1f}"),
            *(f"{own['accuracy_dirty']:.2f} / {own['accuracy_clean']:.2f}", cell(own["accuracy"])),
        ]
        for repetitions, own in sorted(data["rates"].items(), key=lambda one: int(one[0]))
    ]
    return generated_parts.table(header, rows)


def update(results: Path, page: Path = PAGE) -> None:
    """Copy the result beside the page and write its table into the page."""
    generated_parts.update_with_result(page, "planted contamination", results / FILE, table)


if __name__ == "__main__":
    update(Path(sys.argv[1] if len(sys.argv) > 1 else "results/planted_contamination"))
