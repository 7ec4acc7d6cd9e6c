"""People's labels: which of two answers they prefer, or how they grade one, by item and rater."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibrations.statistics import Insufficient, krippendorff_alpha
from results_io import UserError
from suites import bounded_text, lock
from suites.estimate import Estimate, missing
from suites.judging.answers import AnswerPair, Asked
from suites.statistics import judging

TEXTS = ("question", "a", "b")
KEYS = {"item", "human", "rater", *TEXTS, "cluster", "authors"}


@dataclass(frozen=True)
class Labels:
    """`by_item` {item: {rater: label}}; `pairs`: of the items whose texts are in the file; `sha256`: of the file's content.

    `clusters` {item: its sampling unit}: of the items for which the file names one.
    """

    by_item: Mapping[str, Mapping[str, str]]
    pairs: Mapping[str, AnswerPair]
    sha256: str
    clusters: Mapping[str, str] = field(default_factory=dict)

    @property
    def majority(self) -> dict[str, str]:
        """For each item, the label that more than half of its raters gave; items without a majority are left out."""
        found = {item: Counter(given.values()).most_common(1)[0] for item, given in self.by_item.items()}
        return {item: label for item, (label, count) in found.items() if 2 * count > len(self.by_item[item])}


@dataclass(frozen=True)
class People:
    """The agreement of people with each other. `pairs` {(rater, rater): kappa}; `ceiling`: a warning if they agree too little."""

    raters: tuple[str, ...]
    fleiss: Estimate
    alpha: Estimate
    pairs: Mapping[tuple[str, str], Estimate] = field(default_factory=dict)
    ceiling: str = ""


def read(path: Path, labels: Sequence[str]) -> Labels:
    """Labels from JSON lines {"item", "human", "rater"}, with "question", "a" and "b" if the texts do not come from runs.

    UserError for a missing file, a line of another form, a label outside the scale, an item that a rater labelled twice or that
    has two different texts or clusters, and two items with the same texts in no common cluster: they are one piece of evidence.
    """
    if path.is_dir():
        raise UserError(f"labels={path} is a folder; give a file of JSON lines with item, human and rater")
    if not path.is_file():
        raise UserError(f"labels={path} is not there; give a file of JSON lines with item, human and rater")
    by_item: dict[str, dict[str, str]] = {}
    pairs: dict[str, AnswerPair] = {}
    items: dict[tuple[str, ...], str] = {}
    clusters: dict[str, str] = {}
    text = bounded_text.given(path, "give a file of JSON lines in UTF-8, with item, human and rater")
    lines = [line for line in text.split("\n") if line.strip()]
    for number, line in enumerate(lines, 1):
        where = f"line {number} of {path}"
        data = _parsed(line, where)
        given = by_item.setdefault(data["item"], {})
        rater = data.get("rater", "1")
        if not data["human"].strip():
            raise UserError(f"{where} has no label yet; write one of {', '.join(labels)} as human")
        if data["human"] not in labels:
            raise UserError(
                f"{where} has the label {data['human']!r}; expected one of {', '.join(labels)}: map it to one"
            )
        if rater in given:
            raise UserError(f"{where}: the rater {rater} labelled {data['item']} twice; keep one of the lines")
        given[rater] = data["human"]
        if "cluster" in data and clusters.setdefault(data["item"], data["cluster"]) != data["cluster"]:
            raise UserError(
                f"{where}: {data['item']} has another cluster than before; give the same one in all its lines"
            )
        if any(key in data for key in TEXTS):
            pair = _pair(data, where)
            if pairs.setdefault(data["item"], pair) != pair:
                raise UserError(
                    f"{where}: {data['item']} has other texts than before; give every pair an item of its own"
                )
            first = items.setdefault(_said(pair), data["item"])
            together = "cluster" in data and clusters.get(first) == data["cluster"]  # a cluster counts once
            if first != data["item"] and not together:
                raise UserError(
                    f"{where}: {data['item']} has the question and the answers of {first}; label every pair once, as one item"
                )
    if not by_item:
        raise UserError(f"labels={path} has no labels; write a line for each labelled pair")
    return Labels(by_item, pairs, lock.digest(lines), clusters)


def template(pairs: Sequence[AnswerPair], n: int, seed: int) -> str:
    """JSON lines of `n` random pairs with an empty label for people to fill in. Each pair has a random order.

    Of pairs with the same question and answers, white space aside, one may be drawn. UserError for more pairs than there are.
    """
    pairs = list({_said(pair): pair for pair in reversed(pairs)}.values())[::-1]
    if n > len(pairs):
        raise UserError(
            f"judge.sample={n} is more than the {len(pairs)} pairs of the two runs that differ; ask for fewer, or run a larger "
            "suite"
        )
    rng = np.random.default_rng(seed)
    lines = []
    for place in sorted(rng.choice(len(pairs), n, replace=False).tolist()):
        pair = pairs[place]
        shown = (pair.b, pair.a) if rng.random() < 0.5 else (pair.a, pair.b)
        texts = {"question": pair.asked.text, "a": shown[0], "b": shown[1]}
        lines.append({"item": pair.id, "human": "", "rater": "", **texts, "cluster": pair.asked.cluster})
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def agreement(labels: Labels, scale: Sequence[str], point: float = judging.POINT) -> People:
    """Fleiss' kappa over items that all raters labelled, Krippendorff's nominal alpha over all, and Cohen's kappa per rater pair.

    `ceiling` warns if the upper end of every pair's kappa is at most `point`, since a judge cannot be expected to agree better
    than people. Not applicable with one rater.
    """
    raters = tuple(sorted({rater for given in labels.by_item.values() for rater in given}))
    if len(raters) < 2:
        none = missing("not_applicable", "one rater; how far people agree is not known", "kappa", len(labels.by_item))
        return People(raters, none, none, ceiling="one rater: how far people agree is not known")
    full = [list(given.values()) for given in labels.by_item.values() if len(given) == len(raters)]
    counts = [[given.count(label) for label in scale] for given in full]
    fleiss = judging.panel_agreement(counts) if counts else missing("undefined", "no item has all raters", "kappa")
    table = np.array([[_place(given.get(rater), scale) for given in labels.by_item.values()] for rater in raters])
    kappas = {pair: _kappa(labels, pair, scale) for pair in itertools.combinations(raters, 2)}
    tops = [one.ci.high for one in kappas.values() if one.ci is not None]
    ceiling = (
        f"people agree too little: the upper end of their kappa is {max(tops):.3f}, not above {point}"
        if tops and max(tops) <= point
        else ""
    )
    return People(raters, fleiss, _alpha(table, len(labels.by_item)), kappas, ceiling)


def _kappa(labels: Labels, raters: tuple[str, str], scale: Sequence[str]) -> Estimate:
    first, second = ([given.get(rater) for given in labels.by_item.values()] for rater in raters)
    return judging.judge_agreement(first, second, scale).kappa


def _alpha(table: np.ndarray, items: int) -> Estimate:
    try:
        return Estimate(float(krippendorff_alpha(table, "nominal")), "alpha", items)
    except Insufficient as reason:
        return missing("undefined", str(reason), "alpha", items)


def _place(label: str | None, scale: Sequence[str]) -> float:
    return float("nan") if label is None else float(list(scale).index(label))


def _said(pair: AnswerPair) -> tuple[str, ...]:
    """The question and both answers in any order, with any spaces between words."""
    question, a, b = (" ".join(text.split()) for text in (pair.asked.text, pair.a, pair.b))
    return question, *sorted((a, b))


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        data = bounded_text.value(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}); write an object with item, human and rater") from None
    if not isinstance(data, dict) or not all(isinstance(data.get(key), str) for key in ("item", "human")):
        raise UserError(
            f'{where} lacks item or human; expected texts, such as {{"item": "q1", "human": "A", "rater": "kim"}}'
        )
    for key in ("rater", "cluster"):
        if key in data and not isinstance(data[key], str):
            raise UserError(f"{where} has the {key} {data[key]!r}; expected a text: put it in quotes")
    if unknown := sorted(set(data) - KEYS):
        raise UserError(f"{where} has the key {unknown[0]!r}; use some of {', '.join(sorted(KEYS))}")
    return data


def _pair(data: Mapping[str, Any], where: str) -> AnswerPair:
    if absent := [key for key in TEXTS if not isinstance(data.get(key), str)]:
        raise UserError(f"{where} lacks {absent[0]}; give question, a and b, or none of them")
    authors = data.get("authors")
    if authors is not None and (
        not isinstance(authors, list) or len(authors) != 2 or not all(isinstance(one, str) for one in authors)
    ):
        raise UserError(f"{where} has the authors {authors!r}; expected the names of who wrote a and b")
    asked = Asked(data["question"], lock.digest([data["item"], data["question"]]), data.get("cluster", data["item"]))
    return AnswerPair(data["item"], asked, data["a"], data["b"], None if authors is None else (authors[0], authors[1]))
