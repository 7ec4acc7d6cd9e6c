"""One pass of suites over a model: asked, recorded, scored, judged, written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results_io import UserError
from suites import applicability, asking, judgement, likelihood, results
from suites.applicability import Applicability
from suites.asking import Asker, no_bar
from suites.execution import scoring as execution
from suites.execution.scoring import Executor, SuiteExecutions
from suites.item import Item, Suite
from suites.judgement import JudgedSuite
from suites.judging import scoring
from suites.judging.scoring import Grader, SuiteGrades
from suites.log import generations
from suites.log.cache import Cache
from suites.log.generations import GenerationLog, RecordedRun
from suites.models import answers
from suites.models.base import ModelUnderTest
from suites.outcome import Case

CACHE_NAME = "generations.sqlite"
CHUNK = 256  # generations between two writes to the disk: what a kill can cost

Note = Callable[[str], Any]


@dataclass(frozen=True)
class SuiteRun:
    """The result of `run`: every suite judged, and how many outputs were newly asked, already known, or failed."""

    model: str
    identity: Mapping[str, Any]
    suites: tuple[JudgedSuite, ...]
    coverage: Mapping[str, Any]
    asked: int
    reused: int
    errors: int
    log: Path


def run(
    suites: Sequence[Suite],
    model: ModelUnderTest,
    folder: Path,
    progress: Callable[[str], Any] | None = None,
    say: Note = print,
    *,
    context: str | None = None,
    seed: int = 0,
    chunk: int = CHUNK,
    cache: Path | None = None,
    grader: Grader | None = None,
    executor: Executor | None = None,
    sla: float | None = None,
) -> SuiteRun:
    """Run every suite on `model`; the record and the results go to `folder` (results/<model>/suites).

    `progress(title)` is a context manager that yields an object with `expect(n)` and `advance(n)` (a progress bar). `context`:
    the deployment context whose failure modes the coverage counts. `cache`: a file shared by runs; None: `folder`'s own.
    `grader` grades the outputs of suites whose scorer is a judge, `executor` runs those of suites whose scorer is code. Without
    them these outputs are neither right nor wrong, and `say` reports that. `sla`: the largest risk for which result 121 looks for
    a threshold of confidence; None: no search.

    A stopped run that is called again continues where it stopped, and its results have the same bytes. UserError for two suites
    with one id, for a record that was changed, and for one that another run is writing.
    """
    _require_distinct(suites)
    folder = Path(folder)
    path = folder / generations.NAME
    execution = getattr(model, "execution", {})  # an endpoint does not report how it computes
    with (
        GenerationLog(path, model.identity, model.name, seed, execution) as log,
        Cache(cache or folder / CACHE_NAME) as store,
    ):
        asker = Asker(model, log, store, chunk)
        recorded = _record(suites, asker, progress or no_bar)
        _report_errors(recorded, say)
        _report_versions(log, say)
        grades = _grades(suites, recorded, grader, say)
        ran = _executions(suites, recorded, executor, say)
        judged = tuple(
            judgement.judge(suite, recorded[suite.id], grades.get(suite.id), ran.get(suite.id)) for suite in suites
        )
        judgement.write(folder / judgement.NAME, judged)
    subject = results.TestedModel(model.name, model.identity, seed)
    coverage = results.coverage(judged, context)
    results.write(folder, judged, subject, context, sla)
    errors = sum(len(one.errors) for one in recorded.values())
    return SuiteRun(model.name, model.identity, judged, coverage, asker.asked, asker.reused, errors, path)


def _record(suites: Sequence[Suite], asker: Asker, progress: Callable[[str], Any]) -> dict[str, RecordedRun]:
    """Ask and record everything; returns the recorded run of every suite, by its id."""
    model, log = asker.model, asker.log
    known = {suite.id: applicability.before_asking(suite, model) for suite in suites}
    for suite in suites:
        if (reason := known[suite.id].reason) is not None:
            log.not_applicable(suite, reason)
    live = [suite for suite in suites if known[suite.id].reason is None]
    for suite in live:
        expected = len(asking.questions(suite, known[suite.id].legs, log.seed))
        log.begin(suite, expected, known[suite.id].facts, len(_with_choices(suite, model)))
    live = _applicable(live, known, asker, progress)
    with progress("suites") as bar:
        asker.ask([one for suite in live for one in asking.questions(suite, known[suite.id].legs, log.seed)], bar)
    _ask_likelihoods(live, asker, progress)
    for suite in live:
        log.finish(log.run_of(suite))
    return {suite.id: log.run_of(suite) for suite in suites}


def _grades(
    suites: Sequence[Suite], recorded: Mapping[str, RecordedRun], grader: Grader | None, say: Note
) -> dict[str, SuiteGrades]:
    """Grades of the suites that a judge scores, by id."""
    by_judge = [suite for suite in suites if scoring.needs_judge(suite) and recorded[suite.id].not_applicable is None]
    if grader is None:
        for suite in by_judge:
            say(
                f"{suite.id} is scored by a judge; give one, judge=endpoint or judge=local, or nothing is right or wrong"
            )
        return {}
    return {suite.id: grader(suite, recorded[suite.id]) for suite in by_judge}


def _executions(
    suites: Sequence[Suite], recorded: Mapping[str, RecordedRun], executor: Executor | None, say: Note
) -> dict[str, SuiteExecutions]:
    """Results of the programs of suites whose scorer runs them, by suite id."""
    of_code = [
        suite for suite in suites if execution.needs_sandbox(suite) and recorded[suite.id].not_applicable is None
    ]
    if executor is None:
        for suite in of_code:
            say(f"{suite.id} is scored by running code, which nothing does here, so nothing is right or wrong")
        return {}
    found = {suite.id: executor(suite, recorded[suite.id]) for suite in of_code}
    for name, one in found.items():
        errors = [ran.error for ran in one.found.values() if ran.error is not None]
        if errors:
            say(
                f"{name}: {len(errors)} of {len(one.found)} programs were not run and are tried again next time: {errors[0]}"
            )
    return found


def _applicable(
    suites: Sequence[Suite], known: Mapping[str, Applicability], asker: Asker, progress: Callable[[str], Any]
) -> list[Suite]:
    """The suites that still apply once their probes are answered. Probes are items of the suite, so nothing is asked twice."""
    log = asker.log
    probes = {suite.id: applicability.probes(suite) for suite in suites}
    asked = [
        question
        for suite in suites
        for question in asking.questions(suite, known[suite.id].legs[:1], log.seed, probes[suite.id])
    ]
    if asked:
        with progress("probes") as bar:
            asker.ask(asked, bar)
    live = []
    for suite in suites:
        run_ = log.run_of(suite)
        reason = applicability.after_probes(suite, _probed(suite, run_, probes[suite.id], known[suite.id]))
        if reason is not None:
            log.not_applicable(suite, reason)
            continue
        if run_.not_applicable is not None:
            log.resume(run_, known[suite.id].facts)
        live.append(suite)
    return live


def _probed(suite: Suite, recorded: RecordedRun, items: Sequence[Item], known: Applicability) -> list[Case]:
    """The probes with their first output, without the items that they were made from."""
    slots = [generations.Slot(item.id, known.legs[0].name, 0) for item in items]
    outputs = [generations.to_generation(recorded.generations[slot]) for slot in slots]
    return [
        Case(item, (judgement.outcome(suite, item, slot, output),))
        for item, slot, output in zip(items, slots, outputs, strict=True)
    ]


def _with_choices(suite: Suite, model: ModelUnderTest) -> list[Item]:
    """The items whose choices are compared by likelihood."""
    return [item for item in suite.items if item.choices] if "logprobs" in model.capabilities else []


def _ask_likelihoods(suites: Sequence[Suite], asker: Asker, progress: Callable[[str], Any]) -> None:
    """Record the likelihoods of every item that has none yet. Chunks are cut from all items, for the reason in `Asker.ask`."""
    model, log = asker.model, asker.log
    wanted = [
        (suite, items[start : start + CHUNK])
        for suite in suites
        for items in [_with_choices(suite, model)]
        for start in range(0, len(items), CHUNK)
    ]
    if not wanted:
        return
    with progress("likelihoods") as bar:
        bar.expect(sum(len(chunk) for _, chunk in wanted))
        for suite, chunk in wanted:
            have = log.run_of(suite).likelihoods
            if any(item.id not in have for item in chunk):
                found = zip(chunk, likelihood.ask(model, chunk), strict=True)
                log.add([log.likelihood(suite, item.id, one) for item, one in found if item.id not in have])
            bar.advance(len(chunk))


def _require_distinct(suites: Sequence[Suite]) -> None:
    ids = Counter(suite.id for suite in suites)
    if not ids:
        raise UserError("no suite was given; name at least one, or suite=all")
    if again := sorted(one for one in ids if ids[one] > 1):
        raise UserError(f"the suite {again[0]} is there {ids[again[0]]} times; name every suite once")


def _report_errors(recorded: Mapping[str, RecordedRun], say: Note) -> None:
    """Report the suites with failed calls, which are left out of every rate."""
    for suite, one in recorded.items():
        if one.errors:
            first = one.generations[one.errors[0]]["error"]
            say(
                f"{suite}: {len(one.errors)} of {len(one.generations)} calls failed and are asked again next time: {first}"
            )


def _report_versions(log: GenerationLog, say: Note) -> None:
    """Report if an endpoint's version changed, in this run or since an earlier one in the folder.

    The outputs may then come from more than one model.
    """
    own = [run_ for run_ in log.runs.values() if run_.started["model_fingerprint"] == log.fingerprint]
    lines = [line for run_ in own for line in run_.generations.values() if line["error"] is None]
    if (change := answers.change_of_version(line["reported"] for line in lines)) is not None:
        say(change)
