"""Is a head that was broken on purpose found from the failures that it causes, and no head where nothing is broken?

For every fault, the head is captured (`meridian.experiments.captured_head`). The suite is run on the copy, and the regression
gate compares it with the intact model's run. Failures become pairs, the trace names heads on the discovery half, and the
calibrations judge the hypothesis on the confirmation half. For every sham, the same is done with a change that no prompt
triggers. On a suite that the intact model fails anyway, it is also tested whether the sham's own head is then named.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import code_digest
import results_io
from calibrations import calibrate, certificate, registry
from circuits import difference, models
from circuits.circuit import Node
from circuits.measure import Plan, is_fresh, measure
from circuits.measurements import MEASUREMENTS
from circuits.tasks import lexicon
from meridian.experiments import captured_head, processes
from meridian.experiments.captured_head import Fault
from shown_progress import NoProgress
from suites import declaration, gate, runner
from suites.bridge import confirmation, hypothesis, pairing, task
from suites.bridge.pair import SuitePairs
from suites.judgement import JudgedSuite
from suites.models import open_model
from suites.statistics import proportions

if TYPE_CHECKING:
    from meridian.context import RunContext

NUMBER = "V3"
READ = ("experiment", "measurement", "calibration", "certificate", "engine", "seed")  # sections that a row depends on


@dataclass(frozen=True)
class FaultyCopy:
    """One changed copy of the model. A sham has a `twin`: a fault of the same head and size whose words do occur in prompts."""

    name: str
    fault: Fault
    twin: Fault | None = None

    @property
    def sham(self) -> bool:
        return self.twin is not None


def run(context: RunContext) -> None:
    """Plant, run, trace, judge; print the table and write V3_planted_faults.json."""
    settings = context.settings["experiment"]
    folder = context.experiment_folder(settings["name"])
    config = {**context.settings, "model": dict(context.model_settings)}
    copies = draw_copies(settings, models.identify(config["model"]).heads)
    intact = trace_intact(config, folder)
    context.reporter.say(
        f"intact: {intact['rate']:.1%} of items fail; named on {settings['control']}: {intact['named'] or 'none'}"
    )
    tasks = [(trace_copy, copy, config, folder) for copy in copies]
    rows: dict[int, dict[str, Any]] = {}
    with context.reporter.bar("planted faults") as bar:
        bar.expect(len(tasks))
        for place, row in processes.results(tasks):
            rows[place] = row
            bar.advance(1)
    found = [rows[place] for place in sorted(rows)]
    document = {"id": settings["name"], "number": NUMBER, "settings": settings, "intact": intact, "rows": found}
    document["rates"] = rates(found, settings, intact)
    document["code"] = code_digest.version_of("planted faults")
    results_io.write(folder / f"{NUMBER}_{settings['name']}.json", document)
    for line in table(document):
        context.reporter.say(line)


def draw_copies(settings: Mapping[str, Any], heads: Sequence[Node]) -> list[FaultyCopy]:
    """The faults, then the shams, with random words and answers. Heads are drawn without replacement until all are used."""
    rng = random.Random(f"planted faults {settings['seed']}")

    def faults(count: int) -> list[Fault]:
        found, order = [], []
        for _ in range(count):
            order = order or rng.sample(list(heads), len(heads))
            months = tuple(rng.sample(list(lexicon.MONTHS), settings["words"]))
            found.append(Fault(order.pop(), months, rng.choice(lexicon.NAMES), settings["pull"], settings["push"]))
        return found

    copies = [FaultyCopy(f"fault_{number:02d}", fault) for number, fault in enumerate(faults(settings["faults"]))]
    for number, twin in enumerate(faults(settings["shams"])):
        words = tuple(rng.sample(list(settings["sham_words"]), settings["words"]))
        copies.append(FaultyCopy(f"sham_{number:02d}", replace(twin, words=words), twin))
    return copies


def trace_intact(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The intact model: its failure rate on the suite, and the heads that carry its failures on the control suite."""
    settings = config["experiment"]
    judged, _ = _run_suite(settings["suite"], config["model"], folder / "intact")
    _, group = _run_suite(settings["control"], config["model"], folder / "intact" / "control")
    named = [carrier.head for carrier in _carriers(group, config, config["model"])] if group.traceable else []
    return {"rate": judged.estimates["failure_rate"].value, "pairs_of_control": len(group.pairs), "named": named}


def trace_copy(copy: FaultyCopy, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """One copy from weights to verdict. Its row is kept in row.json, so a stopped run continues with the next copy."""
    path = folder / copy.name / "row.json"
    settings = config["experiment"]
    subject = {
        "copy": asdict(copy),
        "configuration": {name: config[name] for name in READ},
        "weights": models.identify(config["model"]).sha256,
        "suites": {name: declaration.load(name).sha256 for name in (settings["suite"], settings["control"]) if name},
        "code": code_digest.version_of("planted faults"),
        "gate": results_io.sha256(gate.DEFAULTS.read_bytes()),
    }
    if not is_fresh(path, subject):
        row = _row(copy, config, folder)
        results_io.write(path, {"subject": subject, "row": row})
    return results_io.read(path)["row"]


def _row(copy: FaultyCopy, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The findings for one copy. Its weights are deleted afterwards, as the seed can remake them."""
    settings, own = config["experiment"], folder / copy.name
    model = _planted(copy, config, own / "model")
    try:
        judged, group = _run_suite(settings["suite"], model, own)
        verdict = gate.compare(gate.read(folder / "intact"), gate.read(own), gate.defaults())
        row = {
            "name": copy.name,
            "sham": copy.sham,
            "fault": {**asdict(copy.fault), "head": str(copy.fault.head)},
            "size": model["size"],
            "rate": judged.estimates["failure_rate"].value,
            "gate": verdict.verdict,
            "failures": group.failures,
            "pairs": len(group.pairs),
        }
        row |= _traced(group, config, model, own) if group.traceable else {"named": [], "tier": None}
        if copy.sham and settings["control"]:
            _, natural = _run_suite(settings["control"], model, own / "control")
            carried = _carriers(natural, config, model) if natural.traceable else []
            row |= {"pairs_of_control": len(natural.pairs), "named_on_control": [carrier.head for carrier in carried]}
        return row
    finally:
        shutil.rmtree(own / "model", ignore_errors=True)


def _planted(copy: FaultyCopy, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The copy as a Hugging Face folder, and the configuration that names it."""
    identity = models.identify(config["model"])
    plain, tokenizer = models.load_plain(config["model"], identity)
    texts = [item.prompt for item in declaration.load(config["experiment"]["suite"]).items]
    if copy.sham:  # must not respond to other words of the control suite either
        texts += [item.prompt for item in declaration.load(config["experiment"]["control"]).items]
        texts = texts[::4]  # each text is run on its own, several times
        texts += _with_words(texts, copy.fault.words)
    broken = captured_head.plant(plain, tokenizer, copy.fault, texts)
    if copy.twin is not None:
        size = captured_head.size(plain, captured_head.plant(plain, tokenizer, copy.twin, texts))
        broken = captured_head.padded(plain, broken, tokenizer, copy.fault.head, texts, size)
    broken.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    size = captured_head.size(plain, broken)
    return {"kind": "local", "name": copy.name, "path": str(folder), "device": "cpu", "dtype": None, "size": size}


def _with_words(texts: Sequence[str], words: Sequence[str]) -> list[str]:
    """The texts that have a month, with one of `words` in its place, so that the detector can learn the words."""
    changed = []
    for number, text in enumerate(texts):
        month = next((name for name in lexicon.MONTHS if name in text.split(".")[0].split()), None)
        if month:
            changed.append(text.replace(month, words[number % len(words)], 1))
    return changed


def _run_suite(name: str, model: Mapping[str, Any], folder: Path) -> tuple[JudgedSuite, SuitePairs]:
    """Run one suite on a model; returns the judged suite and its failures as pairs."""
    opened = open_model(model)
    found = runner.run([declaration.load(name)], opened, folder, None, _nothing)
    return found.suites[0], pairing.group(found.suites[0], opened)


def _nothing(sentence: str) -> None:
    """Says nothing."""


def _plan(group: SuitePairs, config: Mapping[str, Any], model: Mapping[str, Any]) -> Plan:
    search, measurement = config["experiment"]["search"], config["measurement"]
    stability = {**measurement["discovery"]["stability"], "greedy_resamples": search["greedy_resamples"]}
    discovery = {**measurement["discovery"], "prompts": search["prompts"], "stability": stability}
    settings = {**measurement, "discovery": discovery}
    return Plan(
        model, task.build(group, None), config["experiment"]["prompts"], int(config["seed"]), settings, config["engine"]
    )


def _carriers(group: SuitePairs, config: Mapping[str, Any], model: Mapping[str, Any]) -> list[hypothesis.Carrier]:
    """The heads named by the trace of the discovery half; the rest of the circuit is not searched for."""
    study = _plan(group, config, model).study
    return hypothesis.carriers(difference.trace(study, study.discovery), config["measurement"]["difference"])


def _traced(group: SuitePairs, config: Mapping[str, Any], model: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Named heads, their confirmation and the certificate's tier."""
    plan = _plan(group, config, model)
    found = hypothesis.propose(plan, group, folder, _silent, "auto")
    named = found.document["named"]
    row = {"named": [one["head"] for one in named], "restored": [one["restored"] for one in named], "tier": None}
    if found.circuit is None or not config["experiment"]["certified"]:
        return row
    plan.circuit = found.circuit
    numbers = [number for number in MEASUREMENTS if number not in config["experiment"]["left_out"]]
    measure(plan, folder, numbers, _silent, None, _nothing)
    documents = calibrate.calibrate(folder, list(registry.CALIBRATIONS), config["calibration"])
    measured, settings = _measured(folder), config["measurement"]["difference"]
    gated = confirmation.gated(documents, config["certificate"], row["named"], measured, settings)
    folded = certificate.certify(*gated)
    results_io.write(folder / "certificate.json", folded)
    return row | {
        "tier": folded["tier"],
        "circuit": [str(node) for node in found.circuit.heads],
        "blocking": {level: [gate["metric"] for gate in gates] for level, gates in folded["blocking"].items()},
        **confirmations(folder, row["named"], settings),
    }


def _measured(folder: Path) -> dict[str, Any]:
    return {number: results_io.read(results_io.required(folder, number)) for number in confirmation.NEEDED}


def confirmations(folder: Path, named: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Verdicts of the confirmation half on the named heads and, as a control, on an unnamed head (the folder's name is the seed).

    A certificate whose named head is refuted stays at tier 0, whatever the calibrations say of its circuit.
    """
    measured = _measured(folder)
    heads = [str(Node("head", *head)) for head in measured["01"]["data"]["heads"]]
    wrong = random.Random(folder.name).choice([head for head in heads if head not in named])
    found = confirmation.confirm([*named, wrong], measured, settings)
    verdicts = [one["verdict"] for one in found]
    return {"confirmed": verdicts[:-1], "wrong_head": wrong, "wrong_head_verdict": verdicts[-1]}


class _silent:
    """A progress bar that shows nothing, as a context manager."""

    def __init__(self, title: str) -> None:
        self.bar = NoProgress()

    def __enter__(self) -> NoProgress:
        return self.bar

    def __exit__(self, *error: object) -> None: ...


def rates(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], intact: Mapping[str, Any]) -> dict[str, Any]:
    """Every rate with its 95 % Wilson interval."""
    faults, shams = ([row for row in rows if row["sham"] is kind] for kind in (False, True))
    least = settings["supported_from"]

    def share(over: Sequence[Mapping[str, Any]], holds: Any) -> dict[str, Any]:
        hits = sum(bool(holds(row)) for row in over)
        estimate = proportions.wilson(hits, len(over))
        ci = estimate.ci
        return {"k": hits, "n": len(over), "value": estimate.value, "ci95": [ci.low, ci.high] if ci else None}

    def first(row: Mapping[str, Any]) -> bool:
        return row["named"][:1] == [row["fault"]["head"]]

    def confirmed(row: Mapping[str, Any]) -> bool:
        return first(row) and row.get("confirmed", [""])[0] == "confirmed"

    judged = [row for row in faults if row.get("confirmed")]
    controlled = [row for row in shams if row.get("pairs_of_control", 0) >= task.MINIMUM_PAIRS]
    known = set(intact["named"])
    return {
        "faults that the gate fails": share(faults, lambda row: row["gate"] == "fail"),
        "faults with enough pairs to trace": share(faults, lambda row: row["pairs"] >= task.MINIMUM_PAIRS),
        "faults whose head is named first": share(faults, first),
        "faults with another head named as well": share(faults, lambda row: len(row["named"]) > 1),
        "faults whose head is named first and confirmed on the other half": share(faults, confirmed),
        f"faults whose head is confirmed, certificate of tier {least} or more": share(
            faults, lambda row: confirmed(row) and (row["tier"] or 0) >= least
        ),
        "faults of which a head that was not named would be confirmed": share(
            judged, lambda row: row["wrong_head_verdict"] == "confirmed"
        ),
        "shams that the gate fails": share(shams, lambda row: row["gate"] == "fail"),
        "shams with a head named": share(shams, lambda row: row["named"]),
        "shams with enough pairs to trace": share(shams, lambda row: row["pairs"] >= task.MINIMUM_PAIRS),
        "shams with enough pairs to trace on the control suite": share(
            [row for row in shams if "pairs_of_control" in row], lambda row: row in controlled
        ),
        "shams traced on the control suite with a head named that the intact model does not name": share(
            controlled, lambda row: set(row["named_on_control"]) - known
        ),
        "of these, where it is the head that was changed": share(
            [row for row in controlled if row["fault"]["head"] not in known],
            lambda row: row["fault"]["head"] in row["named_on_control"],
        ),
    }


def table(document: Mapping[str, Any]) -> list[str]:
    """One line per copy, then the rates."""
    lines = []
    for row in document["rows"]:
        named = ", ".join(row["named"]) or "none"
        lines.append(
            f"{row['name']}  {row['fault']['head']}  size {row['size']:.1f}  fails {row['rate']:.1%}  gate {row['gate']}  "
            f"pairs {row['pairs']}  named {named}  tier {row['tier']}"
        )
    for name, rate in document["rates"].items():
        ci = rate["ci95"]
        shown = f" [{ci[0]:.3f}, {ci[1]:.3f}]" if ci else ""
        lines.append(f"{name}: {rate['k']} of {rate['n']}{shown}")
    return lines
