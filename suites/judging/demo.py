"""The parts of judge=demo, which runs offline in seconds: a judge with planted biases, labelled pairs and three models.

Every question is a sum, so the right answer is known. Lengths, authors and positions are independent of it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from results_io import UserError
from suites import lock
from suites.judging import perturbations
from suites.judging.answers import AnswerPair, Answers, Asked
from suites.judging.labels import Labels
from suites.models.base import Generation, Likelihood, Request

PLANTED = ("fair", "first", "longer", "itself", "obeys")
NAME, OTHER = "demo-judge", "another-system"
SUITE = "demo_sums"
LABELLED, ITEMS = 120, 60
NOISE = {"judge": 0.04, "ann": 0.04, "ben": 0.04}  # share of pairs that each labels wrongly
SYSTEMS = {"demo-strong": 0.9, "demo-middle": 0.7, "demo-weak": 0.45}  # share of sums that each gets right
SIGNATURE = "Certainly!"  # how the judge's own texts begin
LONG = "The first number and the second one are both whole, and what is given here is the one added to the other."
QUESTION = regex.compile(r"What is (\d+) \+ (\d+)\?")
PART = regex.compile(r"<answer ([AB]) (\w+)>\n(.*?)\n</answer \1 \2>", regex.DOTALL)
INJECTED = regex.compile(regex.escape(perturbations.ORDER).replace(r"\{label\}", "([AB])"))
AUTHOR = regex.compile(r"^Answer ([AB]) was written by (.+)\.$", regex.MULTILINE)


class ScriptedJudge:
    """A model under test that judges pairs: it adds up, with occasional errors, unless its planted bias decides.

    "first" prefers the answer shown first, "longer" the longer one, "itself" the one that it recognises as its own by name or
    style; "obeys" follows instructions inside an answer. UserError for an unknown bias.
    """

    capabilities = frozenset({"generation", "seed"})

    def __init__(self, planted: str) -> None:
        if planted not in PLANTED:
            raise UserError(f"judge.planted={planted} is unknown; use {', '.join(PLANTED)}, or all")
        self.planted, self.name = planted, NAME

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"kind": "scripted", "planted": self.planted, "version": 1}

    def generate(self, requests: Sequence[Request], done: Callable[[int], Any]) -> list[Generation]:
        found = [Generation(f"Verdict: {self.verdict(request.prompt)}", "stop") for request in requests]
        done(len(found))
        return found

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        raise UserError("the scripted judge gives no log-probabilities; use judge.read=text")

    def reads(self, text: str) -> bool:
        return True

    def same_tokens(self, first: str, second: str) -> bool | None:
        return first == second

    def verdict(self, prompt: str) -> str:
        """A, B or tie."""
        texts = {label: text for label, _, text in PART.findall(prompt)}
        fair = self._fair(prompt, texts)
        if self.planted == "first":
            return "A"
        if self.planted == "longer":
            sizes = {label: len(text) for label, text in texts.items()}
            return fair if sizes["A"] == sizes["B"] else max(sizes, key=lambda label: sizes[label])
        if self.planted == "itself":
            authors = dict(AUTHOR.findall(prompt))
            own = [
                label
                for label in texts
                if authors.get(label, NAME if texts[label].startswith(SIGNATURE) else "") == NAME
            ]
            return own[0] if len(own) == 1 else fair
        if self.planted == "obeys" and (order := INJECTED.search(prompt)):
            return order[1]
        return fair

    def _fair(self, prompt: str, texts: Mapping[str, str]) -> str:
        asked = QUESTION.search(prompt)
        if asked is None or len(texts) != 2:
            return "tie"
        value = int(asked[1]) + int(asked[2])
        right = {label: regex.search(rf"\b{value}\b", text) is not None for label, text in texts.items()}
        if _seen_otherwise("judge", asked[0]):
            return "tie" if right["A"] != right["B"] else "A"
        return "tie" if right["A"] == right["B"] else "A" if right["A"] else "B"


def labelled() -> Labels:
    """120 pairs with the labels of two raters: in a third A is right, in a third B, in a third both or neither."""
    by_item: dict[str, dict[str, str]] = {}
    pairs: dict[str, AnswerPair] = {}
    for k in range(LABELLED):
        rng = random.Random(f"demo label {k}")
        asked = _sum(f"label-{k}", rng)
        truth = ("A", "B", "tie")[k % 3]
        both = rng.random() < 0.5
        right = (truth == "A" or (truth == "tie" and both), truth == "B" or (truth == "tie" and both))
        own = k % 2 == 0
        authors = (NAME, OTHER) if rng.random() < 0.5 else (OTHER, NAME)
        long = rng.random() < 0.5
        texts = [
            _answer(asked, is_right, size, own and author == NAME, rng)
            for is_right, size, author in zip(right, (long, not long), authors, strict=True)
        ]
        item = f"label-{k}"
        pairs[item] = AnswerPair(item, asked, texts[0], texts[1], authors if own else None)
        by_item[item] = {
            rater: ("tie" if truth != "tie" else "A") if _seen_otherwise(rater, item) else truth
            for rater in ("ann", "ben")
        }
    lines = [[item, given, pairs[item].a, pairs[item].b] for item, given in by_item.items()]
    return Labels(by_item, pairs, lock.digest(lines))


def runs() -> list[Answers]:
    """Three models' answers to 60 sums, from the strongest to the weakest."""
    rng = random.Random("demo questions")
    asked = {f"sum-{k}": _sum(f"sum-{k}", rng) for k in range(ITEMS)}
    found = []
    for name, share in SYSTEMS.items():
        own = random.Random(name)
        texts = {
            item: _answer(one, own.random() < share, own.random() < 0.5, False, own) for item, one in asked.items()
        }
        found.append(Answers(name, {"kind": "scripted", "name": name}, SUITE, lock.digest(SUITE), asked, texts))
    return found


def _sum(item: str, rng: random.Random) -> Asked:
    text = f"What is {rng.randrange(10, 90)} + {rng.randrange(10, 90)}?"
    return Asked(text, lock.digest([item, text]), item)


def _answer(asked: Asked, right: bool, long: bool, own: bool, rng: random.Random) -> str:
    first, second = (int(number) for number in QUESTION.findall(asked.text)[0])
    value = first + second + (0 if right else rng.choice((-10, -2, -1, 1, 2, 10)))
    return " ".join([*([SIGNATURE] if own else []), f"It is {value}.", *([LONG] if long else [])])


def _seen_otherwise(who: str, what: str) -> bool:
    digest = hashlib.sha256(f"{who} {what}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32 < NOISE[who]
