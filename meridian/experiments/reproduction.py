"""What all experiments reproduce_* share: choosing the model, measuring each part once, and printing one table.

A reproduction measures parts: per-prompt numbers that are written to the result file as soon as they are done. From these it
makes rows (the published value, ours with a 95 % interval over prompts, and what could explain a gap) and prints one table.
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
ONLY_SHOWN = ("title", "source", "paper", "recipe_differences", "bootstrap")  # settings that no measurement depends on
COLUMNS = ("quantity", "paper", "ours [95 % interval]", "inside?", "recipe differences that could explain a gap")


@dataclass(frozen=True)
class ReproducedRow:
    """One line of the table: a quantity, what was published and what was found.

    `paper` is a number to compare with the interval, or a statement in words; `holds` says whether the statement holds (None:
    undecided). `percent`: whether values are shown times 100. `gap` names differences of recipe that could explain a gap.
    `size`: the published number has no sign, so it counts as inside the interval with either sign.
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
        """Whether the published number lies in our interval, or the published statement holds; None if undecided."""
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
    """A published statement that a difference is positive; it holds if the whole interval is positive."""
    return ReproducedRow(quantity, ours, paper, holds=None if ours.sign is None else ours.sign > 0, **rest)


class Reproduction:
    """One experiment on one model: its settings, its plan, and the parts measured so far.

    The model is the one that the command line names, otherwise the experiment's own; the prompts are the experiment's own. Parts
    that an earlier run measured on the same subject are read instead of measured again. `about`: further entries of the subject.
    `drawn`: whether the prompts are drawn from the task, so that task.bos applies to them. UserError for typed settings that
    nothing would read.
    """

    circuit: Circuit  # set by `claim`

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
        """The part `name`: what the function `measure` returns for the study, stored as by the method `measure`."""
        return self.measure(name, lambda bar: measure(replace(self.study, progress=bar)))

    def measure(self, name: str, measure: Callable[[Progress], Any]) -> Any:
        """What the function `measure` returns, as plain data. It is called once; later calls read the result file."""
        if name not in self.data:
            with self.context.reporter.bar(name) as bar:
                found = measure(bar)
            self.data[name] = results_io.canonical(found)
            self._write([])
        return self.data[name]

    def finish(self, rows: Iterable[ReproducedRow], sentences: Iterable[str] = ()) -> None:
        """Write the rows, and print the table and the sentences."""
        rows = list(rows)
        self._write(rows)
        reporter = self.context.reporter
        title = f"{self.settings['title']} ({self.settings['source']}) on {self.identity.describe()}"
        reporter.console.print(table(title, rows))
        for sentence in sentences:
            reporter.say(sentence)
        reporter.say(f"Results {self.path}")

    def _subject(self) -> dict[str, Any]:
        """The subject of the parts: model, prompts and code as for a measurement, and the settings of the experiment they use."""
        return {
            **self.plan.subject("01"),
            "experiment": measured_settings(self.settings),
            "seed": self.context.seed,
            "reproduced_by": code_digest(sources(self.name))[:12],
        }

    def _read(self) -> dict[str, Any]:
        """The parts of an earlier run on exactly this subject; empty without one."""
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
    """The table of a reproduction; a remark is left out if it repeats the one above."""
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
    """UserError for a typed setting that the experiment `name` would overwrite or never read, as it has its own prompts and task.

    `task`: the task whose prompts it draws, for which task.bos may be typed; None if it makes its own prompts.
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
    """The settings without ONLY_SHOWN (at any depth), which affect only words, published numbers and intervals."""
    if isinstance(settings, Mapping):
        return {key: measured_settings(value) for key, value in settings.items() if key not in ONLY_SHOWN}
    return [measured_settings(one) for one in settings] if isinstance(settings, list) else settings


def sources(name: str) -> list[Path]:
    """The files of meridian.experiments that an experiment uses: its module and all modules it imports, at any depth."""
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
    """The model section: that of the command line, or else that of the experiment's own model, with any typed model.* settings.

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
    """The prompts as a sample whose sampling units are the prompts' clusters."""
    return PromptSample(tuple(prompts.clusters), **settings["bootstrap"])


def corrupted_reference(study: Study, per_template: int | None = None) -> LensEngine:
    """The study's engine with the corrupted reference prompts in place of the clean ones.

    Means and donors then come from the distribution that the corruption draws from (ABC: three unrelated names), as in
    Wang et al. (2022). `per_template`: keep only this many prompts of each template, the first ones.
    """
    return _on_corrupted(study.engine, per_template)


@lru_cache(maxsize=1)  # only one, because its activations on the reference prompts take gigabytes
def _on_corrupted(engine: LensEngine, per_template: int | None) -> LensEngine:
    prompts = engine.reference.prompts
    kept: dict[str, list[int]] = {}
    for row, template in enumerate(prompts.templates):
        kept.setdefault(template, []).append(row)
    rows = sorted(row for own in kept.values() for row in own[:per_template])
    chosen = prompts.select(rows)
    return engine.on(replace(chosen, clean=chosen.corrupted, corrupted=chosen.clean))


def absence(difference: PromptEstimate, correct: float, name: str, task: str) -> list[str]:
    """A sentence if the model does not do the task, so that readers do not mistake the rows for a failed reproduction."""
    if difference.sign == 1 and correct > 0.5:
        return []
    return [
        f"{name} does not do {task}: it prefers the answer in {100 * correct:.1f} % of the prompts. The published numbers "
        "are about a model that does, so no row says anything about the circuit."
    ]
