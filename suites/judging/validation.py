"""182 judge_agreement: may a judge be deployed? Its kappa with people, how far people agree, and its biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from results_io import UserError
from shown_progress import Progress
from suites.judging import bias, labels, limits, pairs
from suites.judging.answers import AnswerPair, Answers
from suites.judging.bias import Bias
from suites.judging.judge import ALONE, Judge, JudgeQuestion
from suites.judging.judgement_record import JudgementRecord
from suites.judging.labels import Labels, People
from suites.statistics import judging
from suites.statistics.judging import JudgeAgreement, Pairwise

NUMBER, ID = "182", "judge_agreement"
NO_MAJORITY = "no majority of raters"


@dataclass(frozen=True)
class Validation:
    """`agreement`: with the majority of `people`. `found`: verdicts in both orders, for a judge of pairs. `cases`: number of
    pairs or answers on which biases must be measured. `unread`: labelled ones whose verdict could not be read, of `asked`;
    `most`: the largest share of them. `laxer`: limits that refuse fewer judges than those that ship.
    `deploy`: whether there are no `reasons` against it."""

    agreement: JudgeAgreement
    people: People
    bias: Bias | None
    found: Pairwise | None
    excluded: Mapping[str, int]
    labels_sha256: str
    cases: int = 0
    unread: int = 0
    asked: int = 0
    most: float = 1.0
    laxer: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons against deploying the judge."""
        found = [] if self.agreement.deploy else [self.agreement.reason]
        if self.unread > self.most * self.asked:
            found.append(
                f"{self.unread} of {self.asked} labelled verdicts could not be read, more than {self.most:.0%}"
            )
        if self.bias is not None:
            found += [f"biased: {kind}" for kind in self.bias.found]
            if (measured := self.bias.jbs[bias.OVERALL].estimate.n) < self.cases:
                of = "answers" if self.found is None else "pairs"
                found.append(f"biases were looked for on {measured} {of} of {self.cases}")
            if self.found is None and (lifted := self.bias.jbs[bias.INJECTION].estimate.n) < bias.FEWEST_LIFTED:
                found.append(
                    f"an injection was looked for on {lifted} answers without the best grade of {bias.FEWEST_LIFTED}: label more "
                    "answers that do not pass, or raise judge.bias.cases"
                )
        return (*found, *self.laxer)

    @property
    def deploy(self) -> bool:
        return not self.reasons


def of_pairs(
    judge: Judge,
    given: Labels,
    pool: Mapping[str, AnswerPair],
    record: JudgementRecord,
    bar: Progress,
    settings: Mapping[str, Any],
    seed: int,
) -> Validation:
    """Validate a judge of pairs against labels. `pool`: the pair of each labelled item; the file's own texts take precedence.

    The judge's verdict merges both orders. UserError for a labelled item without a pair.
    """
    known = {**pool, **given.pairs}
    if absent := [item for item in given.by_item if item not in known]:
        raise UserError(
            f"the labelled item {absent[0]} has no texts; give question, a and b in its line, or the runs as a=, b= and suite="
        )
    asked = [known[item] for item in given.by_item]
    judged = pairs.judge_all(judge, asked, record, bar)
    people = given.majority
    said = {pair.id: verdict.merged for pair, verdict in zip(judged.pairs, judged.verdicts, strict=True)}
    clusters = {item: known[item].asked.cluster for item in people} | dict(given.clusters)
    agreement = _agreement(said, people, list(judge.rubric.labels), clusters, seed)
    readable = [
        pair
        for pair, verdict in zip(judged.pairs, judged.verdicts, strict=True)
        if None not in (verdict.original, verdict.swapped)
    ]
    cases = bias.chosen(readable, settings["bias"]["cases"], seed)
    own = bias.own_texts(judged.pairs, judged.verdicts, people, judge.name, seed)
    units = [pair.asked.cluster for pair in judged.pairs]
    labelled = [given.clusters.get(pair.id, unit) for pair, unit in zip(judged.pairs, units, strict=True)]
    place = bias.places(judged.verdicts, labelled, seed)
    jbs = bias.measure(judge, cases, record, bar)
    excluded = {**judged.excluded, NO_MAJORITY: len(given.by_item) - len(people)}
    return Validation(
        agreement,
        labels.agreement(given, list(judge.rubric.labels)),
        bias.summarise(jbs, settings["bias"], own, place),
        judging.pairwise(judged.verdicts, judged.length_gaps, seed=seed, clusters=units),
        {reason: count for reason, count in excluded.items() if count},
        given.sha256,
        settings["bias"]["cases"],
        *_unread(said, settings),
    )


def of_grades(
    judge: Judge,
    given: Labels,
    answers: Answers,
    record: JudgementRecord,
    bar: Progress,
    settings: Mapping[str, Any],
    seed: int,
) -> Validation:
    """Validate a judge of single answers against labels on the same scale, and look for biases on some of the answers.

    UserError for a labelled item without an answer.
    """
    if absent := [item for item in given.by_item if item not in answers.texts]:
        raise UserError(
            f"the labelled item {absent[0]} has no answer in the run of {answers.name}; label items that it answered"
        )
    said = grades(judge, answers, list(given.by_item), record, bar)
    people = given.majority
    lost = len(given.by_item) - len(people)
    clusters = {item: answers.asked[item].cluster for item in people} | dict(given.clusters)
    agreement = _agreement(said, people, list(judge.rubric.labels), clusters, seed)
    found = labels.agreement(given, list(judge.rubric.labels))
    cases = settings["bias"]["cases"]
    readable = [item for item in given.by_item if said.get(item) is not None]
    passed = [item for item in readable if judge.rubric.passed(people.get(item))]
    others = [item for item in readable if item not in passed]
    # drawn by people's labels, since an injection can only lift an answer
    least = min(cases, max(bias.FEWEST_LIFTED, cases // 2))
    drawn = bias.until_lifted(others, said, judge.rubric.best, least, cases, seed)
    drawn += bias.chosen(passed, cases - len(drawn), seed)
    chosen = questions(answers, drawn)
    biases = bias.summarise(bias.measure_alone(judge, chosen, record, bar), settings["bias"])
    excluded = {NO_MAJORITY: lost} if lost else {}
    return Validation(agreement, found, biases, None, excluded, given.sha256, cases, *_unread(said, settings))


def _unread(said: Mapping[str, str | None], settings: Mapping[str, Any]) -> tuple[int, int, float, tuple[str, ...]]:
    unread = sum(one is None for one in said.values())
    return unread, len(said), settings["most_invalid"], limits.laxer(settings)


def questions(answers: Answers, items: Sequence[str]) -> list[JudgeQuestion]:
    """The question of every item: its text, and the run's answer alone."""
    return [
        JudgeQuestion(item, answers.asked[item].hash, answers.asked[item].text, (answers.texts[item],), ALONE)
        for item in items
    ]


def grades(
    judge: Judge, answers: Answers, items: Sequence[str], record: JudgementRecord, bar: Progress
) -> dict[str, str | None]:
    """The label of every answer; None if it was unreadable. An item whose call failed is left out."""
    found = judge.ask(questions(answers, items), record, bar)
    return {item: one.verdict for item, one in zip(items, found, strict=True) if one.error is None}


def _agreement(
    said: Mapping[str, str | None],
    people: Mapping[str, str],
    scale: Sequence[str],
    clusters: Mapping[str, str],
    seed: int,
) -> JudgeAgreement:
    shared = [item for item in people if item in said]
    verdicts, theirs = [said[item] for item in shared], [people[item] for item in shared]
    return judging.judge_agreement(verdicts, theirs, scale, clusters=[clusters[item] for item in shared], seed=seed)
