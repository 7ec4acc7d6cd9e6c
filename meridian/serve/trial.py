"""A question to a loaded model about one typed prompt: what is ablated, patched or kept, told while it is worked on."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import meridian
from calibrations.claimed_nodes import names
from meridian import ranges
from meridian.figures.intervals import finite
from meridian.run_folder import RunFolder
from results_io import UserError

if TYPE_CHECKING:
    from meridian.lab import Lab

KINDS = ("ablate", "patch", "keep")
EVERY = "every head"
PROMPTS = 8  # that the lab draws and nobody looks at: the typed prompt takes their place
TEXTS = ("run", "kind", "prompt", "answer", "foil", "heads", "recipe", "corrupted")
HALF = re.compile("[\ud800-\udfff]")
LONGEST = 20_000  # characters of a text that is sent

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TrialQuestion:
    """What was asked on the page. `heads`: names divided by commas, a role, "circuit" or "every head"."""

    run: str
    kind: str
    prompt: str
    answer: str
    foil: str
    heads: str = EVERY
    recipe: str = "zero"
    corrupted: str = ""

    @classmethod
    def read(cls, sent: Any) -> Self:
        """UserError for what is no question: another kind, or a field that is no text."""
        if not isinstance(sent, Mapping) or any(not isinstance(sent.get(name, ""), str) for name in TEXTS):
            raise UserError(f"a question holds the texts {', '.join(TEXTS)}; send these")
        if any(len(sent.get(name, "")) > LONGEST for name in TEXTS):
            raise UserError(f"a text of the question has more than {LONGEST} characters; shorten it")
        if any(HALF.search(sent.get(name, "")) for name in TEXTS):
            raise UserError("a text of the question has half of a character (a surrogate); write the whole of it")
        question = cls(**{name: sent.get(name, "") for name in TEXTS})
        if question.kind not in KINDS:
            raise UserError(f"the question {ranges.shown(question.kind)!r} is unknown; use {', '.join(KINDS)}")
        return question


@dataclass(frozen=True)
class ToldProgress:
    """A study's progress, told as {"done", "total"}."""

    tell: Tell
    counts: dict[str, int] = field(default_factory=lambda: {"done": 0, "total": 0})

    def expect(self, pairs: int) -> None:
        self.counts["total"] += pairs
        self.tell(dict(self.counts))

    def advance(self, pairs: int) -> None:
        self.counts["done"] += pairs
        self.tell(dict(self.counts))


@dataclass
class Trials:
    """Models that were loaded, one for each run, and one question at a time."""

    labs: dict[str, Lab] = field(default_factory=dict)
    alone: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, run: RunFolder, question: TrialQuestion, tell: Tell) -> dict[str, Any]:
        """The answer: a row of `label`, `estimate` for each set of heads, and D and C of the intact model.

        `tell` hears what is being done. UserError as `Lab.prompt` and its questions.
        """
        with self.alone:
            lab = self._lab(run, question.run, tell)
            lab = replace(lab, study=replace(lab.study, progress=ToldProgress(tell)))
            one = lab.prompt(question.prompt, question.answer, question.foil, question.corrupted or None)
            intact = one.logit_difference()
            found = _asked(one, question)
            rows = [
                {"label": str(label), "estimate": finite(value)} for label, value in found.table["estimate"].items()
            ]
            shown = one.texts(1).iloc[0]
            return {
                "title": found.figure.title,
                "caption": found.figure.caption,
                "rows": rows,
                "clean": float(intact.table["estimate"].iloc[0]),
                "corrupted": float(intact.table["estimate"].iloc[1]),
                "pair": shown["corrupted"].removeprefix(one.prompts.bos or "").strip(),
                "wording": one.prompts.templates[0],
                "unit": "share of D" if question.kind == "keep" else "nats",
            }

    def _lab(self, run: RunFolder, name: str, tell: Tell) -> Lab:
        if name not in self.labs:
            tell({"doing": f"loading {run.certificate['subject']['model']}"})
            self.labs[name] = _load(run)
        return self.labs[name]


def _load(run: RunFolder) -> Lab:
    """The run's model and task with its claim, by the names of its roles. UserError if no name finds the model any more."""
    from circuits.circuit import Circuit, Role, parse_node

    subject = run.certificate["subject"]
    roles = {role: Role.of(map(parse_node, names(spec))) for role, spec in run.circuit["roles"].items()}
    claim = Circuit("the run's claim", subject["task"], subject["model"], roles, {"kind": "user"})
    return meridian.explore(subject["task"], subject["model"], claim, prompts=PROMPTS)


def _asked(lab: Lab, question: TrialQuestion) -> Any:
    named = [name.strip() for name in question.heads.split(",") if name.strip()]
    every = named in ([], [EVERY])
    if question.kind == "keep":
        return lab.keep_only("circuit" if every else named, question.recipe)
    asked: dict[str, Any] = {str(head): head for head in lab.model.heads} if every else {name: name for name in named}
    return lab.patch(asked) if question.kind == "patch" else lab.ablate(asked, question.recipe)
