"""Figures of judging: how far each judge agrees with people, win rates, and strengths of systems."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from meridian.figures.values import EstimateMark, Forest
from result_types import JudgeAgreementResult, JudgingRecord, PairwiseResult, RankingResult

Agreements = Mapping[str, JudgeAgreementResult]  # {path below the judging folder: the result}
Pairwise = Mapping[str, PairwiseResult]
Rankings = Mapping[str, RankingResult]


def name_of(file: str) -> str:
    """The judge whose result has this path; it is the name of the folder, results/judging/<judge>/..."""
    return Path(file).parts[0] if len(Path(file).parts) > 1 else "judge"


def build(agreements: Agreements, pairwise: Pairwise, rankings: Rankings) -> Iterator[Forest]:
    """Kappa of every judge (182), win rates (181) and strengths of systems (184), as far as there are results."""
    for made in (_kappas(agreements), _win_rates(pairwise), _strengths(rankings)):
        if made.rows:
            yield made


def _kappas(agreements: Agreements) -> Forest:
    rows = [
        _row(record, name_of(file), "pass" if one["deploy"] else "fail")
        for file, one in agreements.items()
        for record in one["records"]
        if record["metric_id"].endswith(".kappa")
    ]
    return Forest(
        name="kappas",
        title="Agreement of judges with people",
        caption="Cohen's kappa between each judge and the majority of the raters, with its 95 % interval. The mark says whether "
        "the judge may be deployed, which asks for the lower end as well, for few flips and for no bias. Result 182.",
        x_label="kappa",
        rows=tuple(rows),
        lines={"chance": 0.0},
        level=0.95,
    )


def _win_rates(pairwise: Pairwise) -> Forest:
    rows = [
        _row(record, f"{one['subject']['a']['name']} against {one['subject']['b']['name']}", None, name_of(file))
        for file, one in pairwise.items()
        for record in one["records"]
        if record["metric_id"].endswith(".win_rate")
    ]
    return Forest(
        name="win_rates",
        title="Win rates of the first run",
        caption="Share of pairs that the first of two runs wins, a tie counting half, with its 95 % interval over clusters of "
        "items. Result 181.",
        x_label="win rate",
        rows=tuple(rows),
        lines={"alike": 0.5},
        level=0.95,
    )


def _strengths(rankings: Rankings) -> Forest:
    rows = [
        _row(record, record["metric_id"].partition(".elo.")[2], None, name_of(file))
        for file, one in rankings.items()
        for record in one["records"]
        if ".elo." in record["metric_id"]
    ]
    return Forest(
        name="strengths",
        title="Strength of systems",
        caption="Bradley-Terry strengths as Elo points around their mean, with 95 % bootstrap intervals. Result 184.",
        x_label="Elo points, 0 is the mean",
        rows=tuple(rows),
        lines={"mean": 0.0},
        level=0.95,
    )


def _row(record: JudgingRecord, label: str, verdict: str | None, group: str = "") -> EstimateMark:
    ci = record["ci"]
    return EstimateMark(label, record["value"], ci and ci["low"], ci and ci["high"], verdict, group=group)
