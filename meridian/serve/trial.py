"""A question to a loaded model about one typed prompt: which heads to ablate, patch or keep. Progress is reported."""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self, cast

import meridian
from calibrations.claimed_nodes import names
from meridian import ranges
from meridian.figures.intervals import finite
from meridian.run_folder import RunFolder
from results_io import UserError

if TYPE_CHECKING:
    from meridian.lab import Direction, Lab

KINDS = ("ablate", "patch", "keep")
DIRECTIONS: Mapping[Direction, str] = {  # of patching, and what goes where
    "denoising": "clean into corrupted",
    "noising": "corrupted into clean",
}
EVERY = "every head"
PROMPTS = 8  # prompts that the lab draws; unused, because the typed prompt replaces them
TEXTS = ("run", "kind", "prompt", "answer", "foil", "heads", "recipe", "direction", "corrupted")
HALF = re.compile("[\ud800-\udfff]")
NODE = re.compile(r"([lm]\d+(?:h\d+)?)(@.+)?", re.IGNORECASE)
TOGETHER = "+"  # between names that are taken together
LIBRARIES = "loading the libraries; the first question takes up to a minute, the next ones do not"
LONGEST = 20_000  # characters of a text in a question

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class TrialQuestion:
    """A question from the page. `heads`: names separated by commas, a role, "circuit" or "every head".

    `recipe` is not for patching, and `direction` is for patching alone.
    """

    run: str
    kind: str
    prompt: str
    answer: str
    foil: str
    heads: str = EVERY
    recipe: str = "zero"
    direction: str = "denoising"
    corrupted: str = ""

    @classmethod
    def read(cls, sent: Any) -> Self:
        """The question in `sent`. UserError for an unknown kind, and for a field that is not text, too long or not valid text."""
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
    """A study's progress, reported as {"done", "total"}."""

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
    """The loaded models, one for each run. Only one question is answered at a time."""

    labs: dict[str, Lab] = field(default_factory=dict)
    alone: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, run: RunFolder, question: TrialQuestion, tell: Tell) -> dict[str, Any]:
        """The answer: a row of `label` and `estimate` for each set of heads, and D and C of the intact model.

        `tell` is called with the progress. UserError as for `Lab.prompt` and the lab's questions.
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
            tell({"doing": LIBRARIES})
            importlib.import_module("transformer_lens.model_bridge")  # most of the time that the first question takes
            tell({"doing": f"loading {run.certificate['subject']['model']}"})
            self.labs[name] = _load(run)
        return self.labs[name]


def _load(run: RunFolder) -> Lab:
    """A lab with the run's model, task and claim, roles included. UserError if the model cannot be found by its name."""
    from circuits.circuit import Circuit, Role, parse_node

    subject = run.certificate["subject"]
    roles = {role: Role.of(map(parse_node, names(spec))) for role, spec in run.circuit["roles"].items()}
    claim = Circuit("the run's claim", subject["task"], subject["model"], roles, {"kind": "user"})
    return meridian.explore(subject["task"], subject["model"], claim, prompts=PROMPTS)


def groups_in(text: str) -> list[list[str]]:
    """The groups of names in a list divided by commas, or by spaces where all words are heads or MLPs ("l2h1 M3").

    Names joined by `+` are one group; any other name is a group of its own. Heads and MLPs may be written in small letters.
    """
    found = []
    for one in filter(None, (part.strip() for part in text.split(","))):
        words = re.sub(r"\s*\+\s*", TOGETHER, one).split()
        every_node = all(NODE.fullmatch(name) for word in words for name in word.split(TOGETHER))
        groups = words if every_node else [one]
        found += [[_node(name.strip()) for name in group.split(TOGETHER) if name.strip()] for group in groups]
    return [group for group in found if group]


def _node(name: str) -> str:
    """A head's or an MLP's name as the model has it; any other name as it is."""
    found = NODE.fullmatch(name)
    return name if found is None else f"{found[1].upper()}{found[2] or ''}"


def _asked(lab: Lab, question: TrialQuestion) -> Any:
    groups = groups_in(question.heads)
    every = groups in ([], [[EVERY]])
    if question.kind == "keep":
        if every:
            raise UserError(
                f"keep only takes heads together, and {EVERY} leaves none out; name some, a role, or circuit"
            )
        return lab.keep_only([name for group in groups for name in group], question.recipe)
    asked: dict[str, Any] = {TOGETHER.join(group): group for group in groups}
    if every:
        asked = {str(head): head for head in lab.model.heads}
    if question.kind == "ablate":
        return lab.ablate(asked, question.recipe)
    return lab.patch(asked, cast("Direction", question.direction or "denoising"))
