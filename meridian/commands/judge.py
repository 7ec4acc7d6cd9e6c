"""`run.py judge`: compare two runs with a judge, grade one, rank several, or validate the judge."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results_io
from meridian import overrides
from meridian.context import RunContext
from results_io import UserError

if TYPE_CHECKING:
    from shown_progress import Progress
    from suites.item import Suite
    from suites.judging.answers import AnswerPair, Answers
    from suites.judging.judge import Judge
    from suites.judging.judgement_record import JudgementRecord
    from suites.judging.labels import Labels
    from suites.judging.pairs import JudgedPairs
    from suites.judging.scoring import Grader, SuiteGrades
    from suites.log.generations import RecordedRun
    from suites.models.base import ModelUnderTest

FOLDER, DEMO = "judging", "demo"
DEFAULT_RUBRICS = {"grade": "correctness"}  # of steps that the default rubric, which is for pairs, does not serve
DRAWN = ("pairs", "validate", "rank")  # steps whose results the page of all judges shows
DONE, REFUSED, NOT_ENOUGH = 0, 1, 3  # exit codes
OF_JUDGING = (
    *("rubric", "read", "max_tokens", "self", "most_invalid", "most_flips", "alpha", "resamples", "half_wins", "bias"),
    *("planted", "sample"),
)  # settings that are not the model's


def command(context: RunContext) -> int:
    """Do what `do` names: pairs, grade, validate, rank or sample.

    Exit code 0; for validate also 1 if the judge may not be deployed; 3 without a verdict. UserError for wrong settings.
    """
    steps: Mapping[str, Callable[[RunContext], int]] = {
        "pairs": compare,
        "grade": grade,
        "validate": validate,
        "rank": rank,
        "sample": sample,
    }
    asked = context.settings["do"]
    if asked not in steps:
        wrong = "is missing" if asked is None else f"is {asked}"
        raise UserError(f"judge needs do=, which {wrong}; use {', '.join(steps)}")
    if context.settings.get("judge") is None:
        raise UserError("judge needs judge=; use judge=endpoint, judge=local or judge=demo")
    code = steps[asked](context)
    if asked in DRAWN:
        from meridian.report import pages

        with context.alone(context.results / FOLDER, "report"):  # if two end at once, the later one reads both results
            pages.write(context.results / FOLDER, context.reporter.say)
    return code


def compare(context: RunContext) -> int:
    """Result 181: run a compared with run b, every pair in both orders."""
    from suites.judging import answers, demo, pairs, results, summary

    _require_nothing_given(context, "a", "b")
    runs = demo.runs()[:: len(demo.SYSTEMS) - 1] if _is_demo(context) else runs_of(context, ("a", "b"))
    found, lost = answers.pairs(*runs)
    names, code = answers.named_apart(runs), DONE
    for judge in judges(context, "pairs"):
        exploratory = doubts(context, judge, runs)
        with record_of(context, judge) as (folder, record, bar):
            judged = pairs.judge_all(judge, found, record, bar)
        judged = _also_lost(judged, lost)
        one = pairs.compare(judged, context.settings["judge"], exploratory, context.seed)
        below = folder / folder_of_runs(runs)
        path = results.pairwise(below, judge, runs, judged, one, context.settings["judge"], context.seed)
        summary.show_comparison(folder.name, (names[0], names[1]), one, context.reporter.console)
        context.reporter.say(f"Results {path}")
        code = max(code, DONE if one.verdict != "none" else NOT_ENOUGH)
    return code


def grade(context: RunContext) -> int:
    """Grade every answer of run a by the rubric; the grades are written beside the run, where the gate reads them."""
    from suites.judging import grades, results, summary

    if _is_demo(context):
        raise UserError("judge=demo judges pairs alone; grade with judge=local or judge=endpoint")
    (run,) = runs_of(context, ("a",))
    (judge,) = judges(context, "grade")
    exploratory = doubts(context, judge, [run])
    with record_of(context, judge) as (folder, record, bar):
        found = grades.grade(judge, run, record, bar, context.settings["judge"])
    path = grades.write(Path(context.settings["a"]), judge, run, found, results.SELF in exploratory)
    summary.show_grades(folder.name, run.name, found.rate, found.reasons, exploratory, context.reporter.console)
    context.reporter.say(f"Grades {path}")
    return NOT_ENOUGH if found.reasons or found.rate.value is None else DONE


def validate(context: RunContext) -> int:
    """Results 182 and 183: the judge compared with human labels; its passport says whether it may be deployed."""
    from suites.judging import results, summary, validation

    _require_nothing_given(context, "labels", "a")
    found: dict[str, validation.Validation] = {}
    kind = "pairs" if _is_demo(context) else None
    for judge in judges(context, kind):
        given, pool, run = _labelled(context, judge)
        with record_of(context, judge) as (folder, record, bar):
            settings = context.settings["judge"]
            if run is not None:
                one = validation.of_grades(judge, given, run, record, bar, settings, context.seed)
            else:
                one = validation.of_pairs(judge, given, pool, record, bar, settings, context.seed)
            results.agreement(folder, judge, one, context.seed)
            path = results.passport_of(folder, judge, one, record)
        found[folder.name] = one
        context.reporter.say(f"Results {path.parent} ({path.name}, 182, 183)")
    summary.show_validations(found, context.reporter.console)
    if _is_demo(context) and len(found) > 1:
        return DONE if all(one.deploy is name.startswith(f"{DEMO}-fair") for name, one in found.items()) else REFUSED
    return DONE if all(one.deploy for one in found.values()) else REFUSED


def rank(context: RunContext) -> int:
    """Result 184: several runs of one suite, ranked by comparing every pair of runs."""
    from suites.judging import demo, ranking, results, summary

    _require_nothing_given(context, "runs")
    runs, code = demo.runs() if _is_demo(context) else _listed(context), DONE
    for judge in judges(context, "pairs"):
        exploratory = doubts(context, judge, runs)
        with record_of(context, judge) as (folder, record, bar):
            found = ranking.rank(judge, runs, record, bar, context.settings["judge"], context.seed)
        below = folder / folder_of_runs(runs)
        path = results.ranked(below, judge, runs, found, exploratory, context.settings["judge"], context.seed)
        summary.show_ranking(folder.name, found, exploratory, context.reporter.console)
        context.reporter.say(f"Results {path}")
        code = max(code, DONE if next(iter(found.ranking.strengths.values())).value is not None else NOT_ENOUGH)
    return code


def sample(context: RunContext) -> int:
    """Draw pairs of runs a and b at random for people to label, and write them to the file `labels`."""
    from suites.judging import answers, labels, rubric

    if rubric.load(context.settings["judge"]["rubric"]).kind == "grade":
        raise UserError(
            "judge do=sample draws pairs of two runs; for a judge of single answers write the lines yourself, each with item, "
            "human and rater"
        )
    if not context.settings["labels"]:
        raise UserError(
            "judge do=sample needs labels=; give the file that it writes, for example labels=to_label.jsonl"
        )
    path = Path(context.settings["labels"])
    if path.exists():
        raise UserError(f"labels={path} is there already; give another name, so that no labels are lost")
    found, _ = answers.pairs(*runs_of(context, ("a", "b")))
    text = labels.template(found, context.settings["judge"]["sample"], context.seed)
    results_io.write_text(path, text)
    context.reporter.say(
        f"{path}: {text.count(chr(10))} pairs; write A, B or tie as human, a name as rater, one line for each rater"
    )
    return DONE


def judges(context: RunContext, kind: str | None) -> list[Judge]:
    """The judge that the settings name; for the demo, all that were asked for. UserError for a rubric of another kind."""
    from suites.judging import demo, judge, rubric
    from suites.models import open_model

    settings = context.settings["judge"]
    name = settings["rubric"]
    if kind in DEFAULT_RUBRICS and "judge.rubric" not in map(overrides.setting, context.typed):
        name = DEFAULT_RUBRICS[kind]
    chosen = rubric.load(name)
    if kind is not None and chosen.kind != kind:
        raise UserError(
            f"judge.rubric={name} is one of {chosen.kind}, and do={context.settings['do']} needs one of {kind}; use another"
        )
    if settings["kind"] == DEMO:
        planted = demo.PLANTED if settings["planted"] == "all" else (settings["planted"],)
        models: list[Any] = [demo.ScriptedJudge(one) for one in planted]
    else:
        given = _model_settings(settings)
        with overrides.called({"model": "judge", **{name: f"judge.{name}" for name in given}}):
            models = [open_model(given)]
    return [judge.open_judge(model, chosen, settings["read"], settings["max_tokens"]) for model in models]


def grader(context: RunContext, candidate: ModelUnderTest) -> Grader:
    """The grader for suites whose scorer is a judge.

    UserError for the demo judge, and if the judge is the candidate itself, unless judge.self=true.
    """
    from suites.judging import judge as judging
    from suites.judging import passport, results, scoring

    if _is_demo(context):
        raise UserError("judge=demo judges pairs alone; grade with judge=local or judge=endpoint")
    (opened,) = judges(context, "grade")
    own = judging.refuse_itself(opened, {candidate.name: candidate.identity}, context.settings["judge"]["self"])

    def graded(suite: Suite, run: RecordedRun) -> SuiteGrades:
        one = scoring.with_rubric(opened, suite)
        doubt = passport.why_not(context.results / FOLDER, one.fingerprint, one.rubric.sha256)
        with record_of(context, one) as (_, record, bar):
            return scoring.grade(one, suite, run, record, bar, results.SELF if own and doubt is None else doubt)

    return graded


def folder_of(context: RunContext, judge: Judge) -> Path:
    """results/judging/<judge>: its record, passport and results 182 and 183. Another rubric has a folder of its own."""
    settings = context.settings["judge"]
    demo = f"{DEMO}-{judge.model.identity.get('planted')}"
    name = demo if settings["kind"] == DEMO else judge.name.replace("/", "_")
    own = "" if judge.rubric.name == default_rubric(settings["kind"]) else f",rubric={judge.rubric.name}"
    return context.results / FOLDER / overrides.folder_name(f"{name}{own}")


@functools.cache
def default_rubric(kind: str) -> str:
    """The default rubric of a judge of this kind."""
    return overrides.group("judge", kind)["rubric"]


def folder_of_runs(runs: Sequence[Answers]) -> str:
    """<suite>-<models>-<digest of their answers>: another run of the same models has another folder."""
    digest = results_io.sha256([run.sha256 for run in runs])[:8]
    return (
        overrides.folder_name("-".join([runs[0].suite, *(run.name.replace("/", "_") for run in runs)]))[:120]
        + f"-{digest}"
    )


@contextlib.contextmanager
def record_of(context: RunContext, judge: Judge) -> Iterator[tuple[Path, JudgementRecord, Progress]]:
    """A context that yields (the judge's folder, its record, a progress bar) while no other process works there."""
    from suites.judging import judgement_record

    folder = folder_of(context, judge)
    with (
        context.alone(folder),
        judgement_record.JudgementRecord(folder / judgement_record.NAME) as opened,
        context.reporter.counting("judgements") as bar,
    ):
        yield folder, opened, bar


def doubts(context: RunContext, judge: Judge, runs: Sequence[Answers]) -> list[str]:
    """Why no decision may rest on the judge's verdicts on these runs.

    UserError for a judge that is itself a candidate, unless judge.self=true.
    """
    from suites.judging import judge as judging
    from suites.judging import passport, results

    own = judging.refuse_itself(judge, {run.name: run.identity for run in runs}, context.settings["judge"]["self"])
    reason = passport.why_not(context.results / FOLDER, judge.fingerprint, judge.rubric.sha256)
    return [*([reason] if reason else []), *([results.SELF] if own else [])]


def runs_of(context: RunContext, names: Sequence[str]) -> list[Answers]:
    """The runs of the suite asked for, in the folders that the settings `names` give."""
    from suites.judging import answers

    if absent := [name for name in names if not context.settings[name]]:
        raise UserError(
            f"judge do={context.settings['do']} needs {absent[0]}=; give the folder of a suite run, results/<model>/suites"
        )
    suite = _suite(context)
    _require_apart([context.settings[name] for name in names])
    return [answers.of_run(Path(context.settings[name]), suite) for name in names]


def _listed(context: RunContext) -> list[Answers]:
    from suites.judging import answers

    folders = context.settings["runs"]
    if not isinstance(folders, list) or len(folders) < 2:
        raise UserError(f"runs={folders} is no list of two or more; give folders of suite runs: runs=[DIR,DIR,DIR]")
    suite = _suite(context)
    _require_apart(folders)
    return [answers.of_run(Path(str(folder)), suite) for folder in folders]


def _require_apart(folders: Sequence[Any]) -> None:
    """UserError for a run given twice: it ties with itself on every item."""
    resolved = [Path(str(folder)).resolve() for folder in folders]
    if twice := [folder for place, folder in enumerate(folders) if resolved[place] in resolved[:place]]:
        raise UserError(f"{twice[0]} is given twice; give the folders of different runs")


def _suite(context: RunContext) -> Suite:
    """The one suite asked for."""
    from suites import declaration

    asked = context.settings.get("suite")
    if asked is None or asked["name"] == "all":
        raise UserError("judge needs the suite that the runs answered; give one, for example suite=a14_injected_order")
    if asked["name"] == "file" and not asked.get("path"):
        raise UserError("suite=file needs suite.path; give the folder that holds suite.yaml and its lock")
    return declaration.load(asked["path"] if asked["name"] == "file" else asked["name"])


def _require_nothing_given(context: RunContext, *names: str) -> None:
    """UserError if judge=demo is asked to read what it brings itself."""
    given = [name for name in names if context.settings.get(name)]
    if _is_demo(context) and given:
        raise UserError(f"judge=demo brings its own texts and labels and does not read {given[0]}=; leave it out")


def _labelled(context: RunContext, judge: Judge) -> tuple[Labels, Mapping[str, AnswerPair], Answers | None]:
    """(labels, pairs by item, the run that was graded): the material for validating a judge."""
    from suites.judging import answers, demo, labels

    if _is_demo(context):
        return demo.labelled(), {}, None
    if not context.settings["labels"]:
        raise UserError("judge do=validate needs labels=; give a file of JSON lines with item, human and rater")
    given = labels.read(Path(context.settings["labels"]), list(judge.rubric.labels))
    if judge.rubric.kind == "grade":
        (run,) = runs_of(context, ("a",))
        doubts(context, judge, [run])
        return given, {}, run
    if set(given.pairs) >= set(given.by_item):
        return given, {}, None
    runs = runs_of(context, ("a", "b"))
    doubts(context, judge, runs)
    found, _ = answers.pairs(*runs)
    return given, {pair.id: pair for pair in found}, None


def _also_lost(judged: JudgedPairs, lost: Mapping[str, int]) -> JudgedPairs:
    """The judged pairs, with the pairs that were `lost` earlier added to the counts of excluded ones."""
    names = {*judged.excluded, *lost}
    return replace(judged, excluded={name: judged.excluded.get(name, 0) + lost.get(name, 0) for name in names})


def _model_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in settings.items() if name not in OF_JUDGING}
    if found["kind"] == "local" and found["name"] == "local" and found["path"]:
        found["name"] = Path(found["path"]).resolve().name
    return found


def _is_demo(context: RunContext) -> bool:
    return context.settings["judge"]["kind"] == DEMO
