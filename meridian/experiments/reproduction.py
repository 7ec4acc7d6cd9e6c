"""What all experiments reproduce_* share: the model that they are about, parts that are measured once, one table.

A reproduction measures parts (per-prompt numbers, each written to the result file when it is done), makes rows of them
(published value, ours with a 95 % interval over prompts, what could explain a gap) and prints these as one table.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import results_io
from calibrations import calibrate
from circuits import claims, models
from circuits.circuit import Circuit
from circuits.engine import LensEngine
from circuits.measure import Plan
from circuits.prompts import PromptSet
from circuits.study import Study
from code_digest import code_digest
from meridian import commandline, overrides
from meridian.experiments.estimates import PromptEstimate, PromptSample
from results_io import UserError
from shown_progress import Progress

if TYPE_CHECKING:
    from meridian.context import RunContext

NUMBER = "R"  # of the results
DITTO = "″"
ONLY_SHOWN = ("title", "source", "paper", "recipe_differences", "bootstrap")  # settings that no measured part reads
COLUMNS = ("quantity", "paper", "ours [95 % interval]", "inside?", "recipe differences that could explain a gap")


@dataclass(frozen=True)
class ReproducedRow:
    """One line of the table: a quantity, what was published and what was found.

    `paper` is a number, compared with the interval, or words; `holds` is the comparison for words (None: undecided).
    `percent`: shown times 100. `gap` says which differences of recipe could explain a gap. `size`: the published number has
    no sign, so the interval may hold it with either sign.
    """

    quantity: str
    ours: PromptEstimate
    paper: float | str | None = None
    percent: bool = False
    gap: str = ""
    holds: bool | None = None
    size: bool = False

    @property
    def inside(self) -> bool | None:
        """Whether the published number lies in our interval, or the published statement holds."""
        if isinstance(self.paper, (int, float)):
            held = self.ours.holds(float(self.paper))
            return held or self.ours.holds(-float(self.paper)) if self.size else held
        return self.holds

    def cells(self) -> tuple[str, ...]:
        paper = self.paper if isinstance(self.paper, str) else self._number(self.paper)
        paper = f"|{paper}|" if self.size and isinstance(self.paper, (int, float)) else paper
        inside = {True: "yes", False: "no", None: "-"}[self.inside]
        return (self.quantity, paper, self._ours(), inside, self.gap)

    def to_dict(self) -> dict[str, Any]:
        return {
            "quantity": self.quantity,
            "paper": self.paper,
            "percent": self.percent,
            "ours": self.ours.to_dict(),
            "inside": self.inside,
            "recipe_differences": self.gap,
        }

    def _ours(self) -> str:
        ours = self.ours
        if ours.value is None:
            return f"not defined: {ours.reason}"
        if ours.low is None:
            return (
                f"{self._number(ours.value)} (no interval: {ours.reason})" if ours.reason else self._number(ours.value)
            )
        return f"{self._number(ours.value)} [{self._number(ours.low)}, {self._number(ours.high)}]"

    def _number(self, value: float | None) -> str:
        if value is None:
            return "-"
        if self.percent:
            return f"{100 * value:.1f} %"
        return f"{value:.3f}" if 0 < abs(value) < 0.1 else f"{value:.2f}"


def positive(quantity: str, ours: PromptEstimate, paper: str, **rest: Any) -> ReproducedRow:
    """A published statement that a difference is positive: it holds if the whole interval is."""
    return ReproducedRow(quantity, ours, paper, holds=None if ours.sign is None else ours.sign > 0, **rest)


class Reproduction:
    """One experiment on one model: its settings, its plan, and the parts measured so far.

    The configuration's model is the one that the command line names, otherwise the experiment's own; its prompts are the
    experiment's. Parts of an earlier run about the same subject are read, not measured again; `about` adds to the subject.
    `drawn`: whether the prompts are drawn from the task, so that task.bos is about them. UserError for typed settings that
    nothing would read.
    """

    circuit: Circuit  # from `claim` on

    def __init__(
        self, context: RunContext, task: str, about: Mapping[str, Any] | None = None, drawn: bool = True
    ) -> None:
        self.settings = context.settings["experiment"]
        refuse_unread(context.typed, self.settings["name"], task if drawn else None)
        own = {"model": model_settings(context), "prompts": dict(self.settings["prompts"])}
        self.context = replace(context, settings={**context.settings, **own})
        self.name = self.settings["name"]
        self.plan: Plan = self.context.plan(task)
        identity = self.plan.identity
        folder = context.experiment_folder(self.name) / identity.name.replace("/", "_")
        self.path = folder / f"{NUMBER}_{self.name}.json"
        self.subject = results_io.canonical({**self._subject(), **(about or {})})
        self.data = self._read()

    @property
    def identity(self) -> models.Identity:
        return self.plan.identity

    @cached_property
    def study(self) -> Study:
        """The model on the experiment's prompts, with the circuit that the configuration names."""
        return replace(self.plan.study, circuit=self.plan.circuit)

    def claim(self) -> None:
        """Take the circuit that the configuration names; UserError if the model has none for the task."""
        reporter = self.context.reporter
        self.circuit = self.plan.circuit = claims.resolve(
            self.plan, self.context.settings["circuit"], self.path.parent, reporter.bar, reporter.say
        )
        self.subject = results_io.canonical({**self.subject, "circuit": self.circuit.to_dict()})
        self.data = self._read()

    def part(self, name: str, measure: Callable[[Study], Mapping[str, Any]]) -> Any:
        """What `measure` finds of the study, kept as `measure` keeps it."""
        return self.measure(name, lambda bar: measure(replace(self.study, progress=bar)))

    def measure(self, name: str, measure: Callable[[Progress], Any]) -> Any:
        """What `measure` finds, as plain data; measured once and kept in the result file from then on."""
        if name not in self.data:
            with self.context.reporter.bar(name) as bar:
                found = measure(bar)
            self.data[name] = results_io.canonical(found)
            self._write([])
        return self.data[name]

    def finish(self, rows: Iterable[ReproducedRow], sentences: Iterable[str] = ()) -> None:
        """Write the rows, and print the table and what has to be said with it."""
        rows = list(rows)
        self._write(rows)
        reporter = self.context.reporter
        title = f"{self.settings['title']} ({self.settings['source']}) on {self.identity.describe()}"
        reporter.console.print(table(title, rows))
        for sentence in sentences:
            reporter.say(sentence)
        reporter.say(f"Results {self.path}")

    def _subject(self) -> dict[str, Any]:
        """What the parts are about: model, prompts and code as of a measurement, and what they read of the experiment."""
        return {
            **self.plan.subject("01"),
            "experiment": measured_settings(self.settings),
            "seed": self.context.seed,
            "reproduced_by": code_digest(sources(self.name))[:12],
        }

    def _read(self) -> dict[str, Any]:
        """The parts of an earlier run about this very subject."""
        try:
            stored = results_io.read(self.path)
            return dict(stored["data"]) if stored["subject"] == self.subject else {}
        except (FileNotFoundError, UserError, KeyError):
            return {}

    def _write(self, rows: Sequence[ReproducedRow]) -> None:
        document = {
            "number": NUMBER,
            "id": self.name,
            "kind": "experiment",
            "subject": self.subject,
            "records": [],
            "inputs_sha256": {},
            "environment": calibrate.environment(),
            "experiment": results_io.canonical(self.settings),
            "data": self.data,
            "rows": [row.to_dict() for row in rows],
        }
        results_io.write(self.path, document)


def table(title: str, rows: Sequence[ReproducedRow]) -> Table:
    """The table of a reproduction; a remark that repeats that of the line above is left out."""
    found = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for column in COLUMNS:
        found.add_column(column, no_wrap=column == "inside?")
    before = ""
    for row in rows:
        *cells, gap = row.cells()
        found.add_row(*cells, DITTO if gap and gap == before else gap)
        before = gap
    return found


def refuse_unread(given: Sequence[str], name: str, task: str | None) -> None:
    """UserError for a typed setting that an experiment would overwrite or never read: its prompts and its task are its own.

    `task`: the one whose prompts it draws, with or without BOS as typed; None if it makes its prompts itself.
    """
    whose = f"draws prompts of its own task, {task}" if task else "makes its own prompts"
    for typed in given:
        text = typed.lstrip("+~")
        key = text.partition("=")[0]
        if key == "prompts.templates":
            raise UserError(f"{text} is not read: {name} {whose}; leave it out")
        if key.partition(".")[0] == "prompts":
            raise UserError(f"{text} is not read: {name} has its own numbers of prompts; use experiment.{text}")
        if key.partition(".")[0] == "task" and not (task and key == "task.bos"):
            raise UserError(f"{text} is not read: {name} {whose}; leave it out")


def measured_settings(settings: Any) -> Any:
    """The settings, at any depth, without those that only affect words, published numbers and intervals."""
    if isinstance(settings, Mapping):
        return {key: measured_settings(value) for key, value in settings.items() if key not in ONLY_SHOWN}
    return [measured_settings(one) for one in settings] if isinstance(settings, list) else settings


def sources(name: str) -> list[Path]:
    """The files of meridian.experiments that an experiment is made of: its module and what that imports, at any depth."""
    found: set[Path] = set()
    left = [name]
    while left:
        path = Path(__file__).with_name(f"{left.pop()}.py")
        if path in found or not path.is_file():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == __package__:
                left += [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{__package__}."):
                left.append(str(node.module).removeprefix(f"{__package__}."))
    return sorted(found)


def model_settings(context: RunContext) -> dict[str, Any]:
    """The model section: that of the command line, or else the experiment's own model with the settings typed for it.

    UserError if the experiment names a model that has no configuration.
    """
    keys = [overrides.setting(text) for text in context.typed]
    if "model" in keys:
        return dict(context.settings["model"])
    name, known = context.settings["experiment"]["model"], commandline.choices("model")
    if name not in known:
        raise UserError(f"experiment.model={name} is no model; use one of {', '.join(known)}")
    typed = [
        text if text.startswith("~") else f"++{text.lstrip('+')}"
        for text, key in zip(context.typed, keys, strict=True)
        if key.startswith("model.")
    ]
    return overrides.group("model", name, typed)


def sample_of(settings: Mapping[str, Any], prompts: PromptSet) -> PromptSample:
    """The prompts as sampling units: those of one cluster go together."""
    return PromptSample(tuple(prompts.clusters), **settings["bootstrap"])


def corrupted_reference(study: Study, per_template: int | None = None) -> LensEngine:
    """The study's engine with the corrupted reference prompts in place of the clean ones.

    Means and donors then come from the distribution that the corruption draws from (ABC: three unrelated names), as in
    Wang et al. (2022). `per_template` keeps the first so many of each template.
    """
    return _on_corrupted(study.engine, per_template)


@lru_cache(maxsize=1)  # one at a time: its activations on the reference prompts take gigabytes
def _on_corrupted(engine: LensEngine, per_template: int | None) -> LensEngine:
    prompts = engine.reference.prompts
    kept: dict[str, list[int]] = {}
    for row, template in enumerate(prompts.templates):
        kept.setdefault(template, []).append(row)
    rows = sorted(row for own in kept.values() for row in own[:per_template])
    chosen = prompts.select(rows)
    return engine.on(replace(chosen, clean=chosen.corrupted, corrupted=chosen.clean))


def absence(difference: PromptEstimate, correct: float, name: str, task: str) -> list[str]:
    """A sentence if the model does not do the task, so that nobody takes the rest for a failed reproduction."""
    if difference.sign == 1 and correct > 0.5:
        return []
    return [
        f"{name} does not do {task}: it prefers the answer in {100 * correct:.1f} % of the prompts. The published numbers "
        "are about a model that does, so no row says anything about the circuit."
    ]
