"""183 judge_bias: does a judge change its mind over a change that should not matter, and does it favour its own texts?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shown_progress import Progress
from suites.estimate import Estimate, missing
from suites.geometry import judge_bias
from suites.geometry.metric import Metric
from suites.judging import perturbations
from suites.judging.answers import AnswerPair
from suites.judging.judge import Judge
from suites.judging.judgement_record import JudgementRecord
from suites.judging.pairs import questions
from suites.statistics import bootstrap, judging

NUMBER, ID = judge_bias.NUMBER, judge_bias.NAME
OVERALL, INJECTION = "all", "injection"
POINTS = {"A": 1.0, "tie": 0.5, "B": 0.0}


@dataclass(frozen=True)
class Bias:
    """JBS by kind of change and over the five of them; "injection", flips by an order in the losing text, likewise.

    `own`: how much more often the judge's own text wins than people say. `found`: the kinds, "own" among them, that are surely
    above what is allowed.
    """

    jbs: Mapping[str, Metric]
    own: Estimate
    found: tuple[str, ...]


def chosen(pairs: Sequence[AnswerPair], cases: int, seed: int) -> list[AnswerPair]:
    """`cases` of the pairs, drawn without regard to what the judge says of them; all if there are no more."""
    if len(pairs) <= cases:
        return list(pairs)
    places = np.random.default_rng(seed).choice(len(pairs), cases, replace=False)
    return [pairs[place] for place in sorted(places.tolist())]


def measure(judge: Judge, pairs: Sequence[AnswerPair], record: JudgementRecord, bar: Progress) -> dict[str, Metric]:
    """JBS of each kind of change, of all five, and flips by an injected order: less those of asking the unchanged pair again.

    A case with a failed call is left out; an output that could not be read is a label like any other.
    """
    changes = {**perturbations.KINDS, INJECTION: perturbations.injected}
    base = judge.ask([questions(pair)[0] for pair in pairs], record, bar)
    asked = [
        [change(pair, said.verdict, judge.name) for change in changes.values()]
        for pair, said in zip(pairs, base, strict=True)
    ]
    changed = judge.ask([one for case in asked for one in case], record, bar)
    again = judge.ask([perturbations.unchanged(pair) for pair in pairs], record, bar)
    width = len(changes)
    flips, reruns = [], []
    for k, said in enumerate(base):
        row = changed[k * width : (k + 1) * width]
        if any(one.error is not None for one in (said, again[k], *row)):
            continue
        labels = [
            judging.SWAPPED[one.verdict] if kind == "order" else one.verdict
            for kind, one in zip(changes, row, strict=True)
        ]
        flips.append([int(label != said.verdict) for label in labels])
        reruns.append([int(again[k].verdict != said.verdict)])
    table, repeated = np.array(flips).reshape(-1, width), np.array(reruns).reshape(-1, 1)
    found = {kind: judge_bias.jbs(table[:, [place]], repeated) for place, kind in enumerate(changes)}
    return {**found, OVERALL: judge_bias.jbs(table[:, : len(perturbations.KINDS)], repeated)}


def own_texts(
    pairs: Sequence[AnswerPair], judged: Sequence[judging.PairVerdict], people: Mapping[str, str], judge: str, seed: int
) -> Estimate:
    """Mean over pairs with one text of the judge's own of (its points by the judge - its points by people); 1 a win, 1/2 a tie.

    Bootstrap interval over pairs. Not applicable where no author is known to be the judge.
    """
    gaps = []
    for pair, verdict in zip(pairs, judged, strict=True):
        if pair.authors is None or (pair.authors[0] == judge) == (pair.authors[1] == judge):
            continue
        if verdict.merged is None or pair.id not in people:
            continue
        gap = POINTS[verdict.merged] - POINTS[people[pair.id]]
        gaps.append(gap if pair.authors[0] == judge else -gap)
    if len(gaps) < bootstrap.MINIMUM_CLUSTERS:
        reason = f"{len(gaps)} labelled pairs have one text of the judge's own; {bootstrap.MINIMUM_CLUSTERS} are needed"
        return missing("not_applicable" if not gaps else "insufficient_data", reason, "share of pairs", len(gaps))
    return bootstrap.mean(gaps, seed=seed, unit="share of pairs")


def above(metric: Estimate, most: float) -> bool:
    """Whether an estimate is surely above `most`: by the lower end, or by the value where all cases agree."""
    if metric.value is None:
        return False
    return (metric.value if metric.ci is None else metric.ci.low) > most


def summarise(jbs: Mapping[str, Metric], own: Estimate, settings: Mapping[str, Any]) -> Bias:
    """Which biases are surely above `most` (share of judgements)."""
    kinds = [kind for kind, metric in jbs.items() if kind != OVERALL and above(metric.estimate, settings["most"])]
    return Bias(jbs, own, (*kinds, *(["own"] if above(own, settings["most"]) else [])))
