"""181 pairwise: two models' answers to the same items, each pair judged in both orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shown_progress import Progress
from suites.judging.answers import FAILED, AnswerPair
from suites.judging.judge import ORIGINAL, SWAPPED_ORDER, Judge, Judgement, JudgeQuestion
from suites.judging.judgement_record import JudgementRecord
from suites.statistics import judging
from suites.statistics.judging import PairVerdict, Pairwise

NUMBER, ID = "181", "pairwise"


@dataclass(frozen=True)
class JudgedPairs:
    """The pairs without a failed call, with the judge's verdicts in both orders. `excluded`: pairs left out, by reason."""

    pairs: tuple[AnswerPair, ...]
    verdicts: tuple[PairVerdict, ...]
    excluded: Mapping[str, int] = field(default_factory=dict)

    @property
    def length_gaps(self) -> list[float]:
        """Characters of A minus characters of B, for every pair."""
        return [float(len(pair.a) - len(pair.b)) for pair in self.pairs]


@dataclass(frozen=True)
class PairwiseComparison:
    """A against B by one judge. `verdict`: "A", "B", or "none" with `reasons`; `exploratory`: why it may decide nothing."""

    found: Pairwise
    verdict: str
    reasons: tuple[str, ...]
    exploratory: tuple[str, ...]


def questions(pair: AnswerPair) -> tuple[JudgeQuestion, JudgeQuestion]:
    """The pair in the order A, B and in the order B, A."""
    asked, authors = pair.asked, pair.authors
    shown = JudgeQuestion(pair.id, asked.hash, asked.text, (pair.a, pair.b), ORIGINAL, authors)
    other = None if authors is None else (authors[1], authors[0])
    return shown, replace(shown, texts=(pair.b, pair.a), order=SWAPPED_ORDER, authors=other)


def judge_all(judge: Judge, pairs: Sequence[AnswerPair], record: JudgementRecord, bar: Progress) -> JudgedPairs:
    """Every pair in both orders. A pair with a failed call is left out and asked again next time."""
    asked = [one for pair in pairs for one in questions(pair)]
    found = judge.ask(asked, record, bar)
    both = list(zip(found[::2], found[1::2], strict=True))
    kept = [(pair, said) for pair, said in zip(pairs, both, strict=True) if all(one.error is None for one in said)]
    lost = len(pairs) - len(kept)
    return JudgedPairs(
        tuple(pair for pair, _ in kept),
        tuple(_merged(*said) for _, said in kept),
        {FAILED: lost} if lost else {},
    )


def _merged(first: Judgement, second: Judgement) -> PairVerdict:
    """The two judgements as one verdict. The judge itself has repeated unreadable outputs."""
    said: dict[str, Any] = {ORIGINAL: first.verdict, SWAPPED_ORDER: second.verdict}
    return judging.judged_in_both_orders(lambda shown, _: said[shown], ORIGINAL, SWAPPED_ORDER)


def compare(
    judged: JudgedPairs, settings: Mapping[str, Any], exploratory: Sequence[str], seed: int
) -> PairwiseComparison:
    """Which of the two is better, by the bootstrap interval of the win rate over clusters of items.

    No verdict if more than the share `most_invalid` of the pairs is unreadable, or if the interval is missing or contains 1/2. If
    the flip rate's lower end is above `most_flips`, the order decides many pairs, and the comparison is exploratory.
    """
    clusters = [pair.asked.cluster for pair in judged.pairs]
    found = judging.pairwise(judged.verdicts, judged.length_gaps, seed=seed, clusters=clusters)
    reasons, doubts = [], list(exploratory)
    invalid, n = found.counts["invalid"], len(judged.verdicts)
    if n and invalid > settings["most_invalid"] * n:
        reasons.append(f"{invalid} of {n} pairs could not be read, more than {settings['most_invalid']:.0%}")
    if found.flip_rate.ci is not None and found.flip_rate.ci.low > settings["most_flips"]:
        doubts.append("the judge has no opinion on many pairs: the order decides")
    if found.win_rate.ci is None:
        reasons.append(found.win_rate.reason or f"{found.win_rate.n} pairs are too few for an interval")
    elif found.win_rate.ci.low <= 0.5 <= found.win_rate.ci.high:
        reasons.append("the interval of the win rate holds one half")
    verdict = "none" if reasons else "A" if found.win_rate.number > 0.5 else "B"
    return PairwiseComparison(found, verdict, tuple(reasons), tuple(doubts))
