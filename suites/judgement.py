"""From recorded outputs to verdicts: scored, judged by the suite's mode, summarised. Needs the record and the suite, no model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import results_io
from suites import lock, modes, scorers
from suites.estimate import Estimate, missing
from suites.execution import scoring
from suites.execution.scoring import SuiteExecutions
from suites.item import Item, Suite
from suites.judging.scoring import SuiteGrades
from suites.likelihood import ChoiceScores
from suites.log import chain, generations
from suites.log.generations import RecordedRun, Slot
from suites.models.base import Generation
from suites.modes import rates
from suites.outcome import UNCHANGED, Case, Detection, Outcome
from suites.statistics import proportions

NAME = "scores.jsonl"
RATE = "failure_rate"
VERDICT_FROM = 20  # cases; with fewer the interval is too wide to print, so they get no verdict


@dataclass(frozen=True)
class JudgedSuite:
    """One suite after a run. `reason` says why it does not apply; it then has no cases and no estimates.

    `cases` are in the order of the suite's items; `estimates` by name, "failure_rate" first; `likelihoods` by item id, for items
    with choices if the model gives log-probabilities. `environments`: those in which its outputs were generated. `grades`: a
    judge's, if the scorer is a judge. `executions`: results of its outputs run as programs, if the scorer runs them.
    """

    suite: Suite
    applies: bool
    reason: str = ""
    cases: tuple[tuple[Case, Detection], ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    likelihoods: Mapping[str, ChoiceScores] = field(default_factory=dict)
    dropped_legs: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""
    environments: tuple[Mapping[str, Any], ...] = ()
    grades: SuiteGrades | None = None
    executions: SuiteExecutions | None = None

    @property
    def failures(self) -> list[tuple[Case, Detection]]:
        """The cases that failed, in the order of the suite's items."""
        return [(case, found) for case, found in self.cases if found.failed is True]

    @property
    def counts(self) -> dict[str, int]:
        """Number of cases that failed, passed, ended in an error, or have no verdict of the mode ("unknown")."""
        names: dict[bool | None, str] = {True: "failed", False: "passed"}
        counts = Counter(
            names.get(found.failed, "error" if found.subtype == "error" else "unknown") for _, found in self.cases
        )
        return {kind: counts[kind] for kind in ("failed", "passed", "unknown", "error")}


def judge(
    suite: Suite,
    recorded: RecordedRun,
    grades: SuiteGrades | None = None,
    executions: SuiteExecutions | None = None,
) -> JudgedSuite:
    """Every case of one recorded run with its detection, and the mode's estimates.

    The interval of the failure rate allows for clustered cases. With a gate, the rate also has the p-value of "not below the
    gate". Over fewer than `suite.minimum` cases the rate is insufficient; its counts stay in `detail`. `grades` are needed for a
    suite that a judge scores, `executions` for one whose scorer runs code; without them outputs are neither right nor wrong.
    """
    run_id, environments = recorded.run_id, tuple(recorded.environments)
    if recorded.not_applicable is not None:
        return JudgedSuite(suite, False, recorded.not_applicable, run_id=run_id, environments=environments)
    mode = modes.EVERY[suite.mode]
    unchanged = frozenset(recorded.facts.get("unchanged", ()))
    judged = tuple((case, _detect(mode, case, suite, unchanged)) for case in cases(suite, recorded, grades, executions))
    estimates = mode.summarise(judged, suite.parameters)
    estimates = {**estimates, RATE: _with_verdict(rates.clustered(estimates[RATE], judged), suite)}
    likelihoods = {item: generations.to_scores(line) for item, line in sorted(recorded.likelihoods.items())}
    dropped = recorded.facts.get("legs_dropped", {})
    return JudgedSuite(
        suite, True, "", judged, estimates, likelihoods, dropped, run_id, environments, grades, executions
    )


def derive(path: Path, suites: Iterable[Suite]) -> list[JudgedSuite]:
    """Judge suites again from a log alone, for example after a detector was corrected.

    UserError if the log lacks one of the suites, holds an incomplete run of it, or was changed.
    """
    runs = generations.read(path)
    found = []
    for suite in suites:
        run = generations.latest(path, suite, runs)
        executions = scoring.recorded(Path(path).parent, suite, run) if scoring.needs_sandbox(suite) else None
        found.append(judge(suite, run, executions=executions))
    return found


def cases(
    suite: Suite,
    recorded: RecordedRun,
    grades: SuiteGrades | None = None,
    executions: SuiteExecutions | None = None,
) -> Iterator[Case]:
    """One case for each item, in order. The case of a variant refers to the case of its parent item."""
    outputs: dict[str, list[tuple[Slot, Mapping[str, Any]]]] = {item.id: [] for item in suite.items}
    for slot, line in recorded.generations.items():
        outputs[slot.item].append((slot, line))
    order = {leg.name: place for place, leg in enumerate(suite.legs)}
    made: dict[str, Case] = {}

    def case(item: Item) -> Case:
        if item.id not in made:
            parent = case(suite.by_id[item.variant.parent]) if item.variant else None
            lines = sorted(outputs[item.id], key=lambda pair: (order[pair[0].leg], pair[0].sample))
            outcomes = tuple(
                outcome(suite, item, slot, generations.to_generation(line), grades, executions) for slot, line in lines
            )
            made[item.id] = Case(item, outcomes, parent)
        return made[item.id]

    for item in suite.items:
        yield case(item)


def outcome(
    suite: Suite,
    item: Item,
    slot: Slot,
    generation: Generation,
    grades: SuiteGrades | None = None,
    executions: SuiteExecutions | None = None,
) -> Outcome:
    """One output, scored. A failed call is never scored as wrong. `confidence` = exp(logprob), the probability of the output."""
    if generation.error is not None:
        return Outcome(slot.leg, slot.sample, "", "error", generation.error)
    correct = scorers.score(suite.scorer, item, generation.text) if grades is None else grades.passed.get(slot)
    ran = None if executions is None else executions.found.get(slot)
    return Outcome(
        slot.leg,
        slot.sample,
        generation.text,
        generation.finish,
        correct=correct if ran is None else ran.passed,
        tests=None if ran is None or ran.error is not None else ran.tests,
        tokens=generation.tokens_out,
        confidence=None if generation.logprob is None else min(1.0, math.exp(generation.logprob)),
    )


def write(path: Path, judged: Sequence[JudgedSuite]) -> None:
    """scores.jsonl: one canonical line a case, replaced as a whole. The same record and code give the same bytes."""
    lines = (chain.canonical_line(results_io.canonical(line)) for suite in judged for line in lines_of(suite))
    results_io.write_text(path, "".join(f"{line}\n" for line in lines))


def lines_of(judged: JudgedSuite) -> Iterator[dict[str, Any]]:
    """What scores.jsonl says of one suite."""
    suite = judged.suite
    asked = {"legs": [asdict(leg) for leg in suite.legs], "parameters": suite.parameters}
    by = judged.grades and {"judge": judged.grades.judge, "rubric": judged.grades.rubric}
    ran = judged.executions and {"sandbox": dict(judged.executions.sandbox)}
    settings = lock.digest({**asked, **({"judge": by} if by else {}), **(ran or {})})
    for case, found in judged.cases:
        yield {
            "suite_id": judged.suite.id,
            "suite_hash": judged.suite.sha256,
            "run_id": judged.run_id,
            "item_id": case.item.id,
            "item_hash": lock.item_hash(case.item, suite.scorer),
            "settings_hash": settings,  # how it was asked and judged: only runs with the same hash are comparable
            "cluster": case.cluster,
            "outcomes": [
                {
                    "leg": one.leg,
                    "sample_index": one.sample,
                    "correct": one.correct,
                    "confidence": None if one.confidence is None else {"value": one.confidence, "kind": "softmax"},
                    "error": one.error,
                    **({} if one.tests is None else {"tests": dict(one.tests)}),
                }
                for one in case.outcomes
            ],
            **({"judge": {**by, "doubt": judged.grades.doubt}} if judged.grades and by else {}),
            **(ran or {}),
            "detection": {"mode": judged.suite.mode, **asdict(found)},
        }


def _detect(mode: modes.Mode, case: Case, suite: Suite, unchanged: frozenset[str]) -> Detection:
    if case.item.id in unchanged:
        return Detection(None, "verified", UNCHANGED, subtype="not_applicable")
    return mode.detect(case, suite.parameters)


def _with_verdict(rate: Estimate, suite: Suite) -> Estimate:
    """The failure rate with the p-value of its gate, used by pooled corrections; insufficient below the suite's minimum."""
    if suite.gate is not None and rate.n >= VERDICT_FROM:
        rate = proportions.below(rate, suite.gate["failure_rate"])
    if rate.status != "ok" or rate.n >= suite.minimum:
        return rate
    reason = f"{rate.n} judged cases, the suite asks for {suite.minimum}"
    detail = {**rate.detail, "share_seen": rate.value}
    return missing("insufficient_data", reason, rate.unit, rate.n, excluded=rate.excluded, detail=detail)
