"""The gate's judged metrics: only of a judge that was validated, equal in both runs, and with missing verdicts as losses."""

from __future__ import annotations

import io
import json
import shutil
from types import SimpleNamespace

import pytest
from rich.console import Console

import results_io
from results_io import UserError
from suites import gate, runner
from suites.estimate import Estimate, Interval
from suites.gate import RunScores, ScoredItem
from suites.item import Item
from suites.judging import answers, for_gate, grades, judge, judgement_record, pairs, passport, results, rubric
from suites.judging.judgement_record import JudgementRecord
from suites.models.base import Generation
from suites.statistics import bootstrap
from tests.result_samples import completed
from tests.suites.scripted import ScriptedModel, suite

N = 200
ASKED = suite([Item(f"i{k}", f"Question {k}?") for k in range(N)])
SETTINGS = {"most_invalid": 0.05, "most_flips": 0.2}


class Bar:
    def expect(self, pairs):
        pass

    def advance(self, pairs):
        pass


class Reader:
    """Passes and prefers what says "good"; an answer that says "mumble" gets no verdict."""

    capabilities = frozenset({"generation"})

    def __init__(self, name="reader"):
        self.name, self.identity = name, {"weights": name}

    def generate(self, requests, done):
        return [Generation(self.said(request.prompt), "stop") for request in requests]

    def said(self, prompt):
        shown = [part.partition("\n</")[0] for part in prompt.split("<answer")[1:]]
        if any("mumble" in part for part in shown):
            return "hm"
        good = ["good" in part for part in shown]
        if len(good) == 1:
            return f"Verdict: {'pass' if good[0] else 'fail'}"
        return f"Verdict: {'tie' if good[0] == good[1] else 'A' if good[0] else 'B'}"


def opened(name, model="reader"):
    return judge.open_judge(Reader(model), rubric.load(name), "text", 16)


def workshop(tmp_path):
    """run(name, texts): a run of 200 items; graded(name), compared(): by a judge; deploy(rubric): its passport."""

    def run(name, *counts, weights=None):
        said = [text for text, count in counts for _ in range(count)]
        script = {f"Question {k}?": said[k * 7 % N] for k in range(N)}
        runner.run(
            [ASKED],
            ScriptedModel(script, name=name, identity={"weights": weights or name}),
            tmp_path / name,
            say=lambda line: None,
        )

    def graded(name, by="correctness", model="reader", own=False):
        one, told = opened(by, model), answers.of_run(tmp_path / name, ASKED)
        with JudgementRecord(tmp_path / "judging" / judgement_record.NAME) as kept:
            found = grades.grade(one, told, kept, Bar(), SETTINGS)
        grades.write(tmp_path / name, one, told, found, own)
        return found

    def compared():
        one, runs = opened("preference"), [answers.of_run(tmp_path / name, ASKED) for name in "ab"]
        found, _ = answers.pairs(*runs)
        with JudgementRecord(tmp_path / "judging" / judgement_record.NAME) as kept:
            judged = pairs.judge_all(one, found, kept, Bar())
        results.pairwise(
            tmp_path / "judging",
            one,
            runs,
            judged,
            pairs.compare(judged, SETTINGS, ["judge not validated"], 0),
            SETTINGS,
            0,
        )

    def deploy(by, deployed=True, identity=None):
        one = opened(by)
        about = {"judge": one.fingerprint, "rubric": {"name": by, "sha256": one.rubric.sha256}}
        about |= {"deploy": deployed, "reason": "" if deployed else "kappa is 0.1", "identity": identity or {}}
        passport.write(tmp_path / "judging" / one.rubric.name, completed("judge_passport", **about))

    def verdict(metric):
        folders = tmp_path / "a", tmp_path / "b"
        judged = for_gate.collect(*folders, tmp_path / "judging")
        return gate.compare(*map(gate.read, folders), {"metrics": [metric]}, judged)

    return SimpleNamespace(run=run, graded=graded, compared=compared, deploy=deploy, verdict=verdict, folder=tmp_path)


@pytest.fixture
def made(tmp_path):
    return workshop(tmp_path)


@pytest.fixture(scope="module")
def grade_once(tmp_path_factory):
    """The candidate lost a fifth, by a judge that may be deployed."""
    found = workshop(tmp_path_factory.mktemp("graded"))
    found.run("a", ("good", 180), ("bad", 20))
    found.run("b", ("good", 140), ("bad", 60))
    for name in "ab":
        found.graded(name)
    found.deploy("correctness")
    return found.folder


@pytest.fixture
def graded(grade_once, tmp_path):
    shutil.copytree(grade_once, tmp_path, dirs_exist_ok=True)
    return workshop(tmp_path)


def test_grades_decide_once_their_judge_is_validated(made):
    made.run("a", ("good", 180), ("bad", 20))
    made.run("b", ("good", 140), ("bad", 60))
    assert made.verdict(gate.GRADED).metrics[0].reasons == (gate.UNGRADED,)
    assert (made.graded("a").rate.value, made.graded("b").rate.value) == (0.9, 0.7)
    open_ = made.verdict(gate.GRADED)
    assert (open_.verdict, open_.metrics[0].reasons) == ("inconclusive", ("judge not validated",))
    made.deploy("correctness", False)
    assert made.verdict(gate.GRADED).metrics[0].reasons == ("judge refused: kappa is 0.1",)
    made.deploy("correctness")
    found = made.verdict(gate.GRADED)
    assert found.verdict == "fail" and found.metrics[0].delta.value == pytest.approx(-0.2)
    console = Console(file=io.StringIO(), width=200)
    gate.show(found, console)
    assert "verdict: fail" in console.file.getvalue()
    assert gate.document(found)["records"][0]["metric_id"] == "R.forbidden.judged_pass_rate"


def test_a_baseline_of_which_too_little_was_read_decides_nothing(made):
    """11 of 200 without a grade are 5.5 %: they leave both analyses, and may be the hard ones."""
    made.run("a", ("good", 189), ("mumble", 11))
    made.run("b", ("good", 200))
    for name in "ab":
        made.graded(name)
    made.deploy("correctness")
    found = made.verdict(gate.GRADED)
    assert (found.verdict, found.metrics[0].reasons) == ("inconclusive", (for_gate.UNGRADED,))
    made.run("c", ("good", 190), ("mumble", 10))
    made.graded("c")
    judged = for_gate.collect(made.folder / "c", made.folder / "b", made.folder / "judging")
    runs = map(gate.read, (made.folder / "c", made.folder / "b"))
    assert gate.compare(*runs, {"metrics": [gate.GRADED]}, judged).verdict == "pass"


def rewritten(folder, change, sealed=True):
    """Write judged.jsonl again with what `change` makes of its lines, sealed anew as their writer would."""
    path = folder / grades.NAME
    lines = change([{**json.loads(line)} for line in path.read_text().splitlines()])
    if sealed:
        whole = results_io.sha256({line["item_id"]: line["label"] for line in lines})
        lines = [{**line, grades.WHOLE: whole} for line in lines]
        lines = [{key: value for key, value in line.items() if key != grades.SEAL} for line in lines]
        lines = [{**line, grades.SEAL: results_io.sha256(line)} for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def edited(place, **keys):
    return lambda lines: [{**line, **(keys if k == place else {})} for k, line in enumerate(lines)]


def without(*keys):
    return lambda lines: [{key: value for key, value in line.items() if key not in keys} for line in lines]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edited(20, passed=True), r"line 21 of .* was edited after it was written"),
        (edited(20, sha256=None), "line 21 of .* is no grade: its sha256 is missing"),
        (without("sha256"), "line 1 of .* is no grade: its sha256 is missing"),
        (lambda lines: [*lines, lines[3]], "line 201 of .* is a second grade of i3 of forbidden"),
        (lambda lines: lines[1:], "the grades of forbidden are not those that were written: lines are missing"),
    ],
)
def test_an_edited_grade_is_refused(graded, change, said):
    rewritten(graded.folder / "b", change, sealed=False)
    with pytest.raises(UserError, match=f"{said}.*; grade the run again"):
        graded.verdict(gate.GRADED)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("passed", one) for one in ("no", 1, [])),
        *(("suite_id", ["x"]), ("judge", {}), ("rubric", []), ("answers", [1]), ("item_id", 7), ("label", 5)),
        *(("own", "yes"), ("item_hash", None), ("cluster", 1)),
    ],
)
def test_a_grade_of_another_form_is_refused(tmp_path, key, value):
    line = {**dict.fromkeys(grades.FORM, "x"), "label": "pass", "passed": True, key: value}
    for text, said in (
        (json.dumps(line), f"its {key} is missing or of another type"),
        (json.dumps({**line, key: None}).replace("null", "NaN"), "its .* is missing or of another type"),
        (json.dumps({**line, key: True if key in ("passed", "own") else "x", "more": 1}), "it has the key 'more'"),
        ("[]", "its value is missing"),
    ):
        (tmp_path / grades.NAME).write_text(f"{text}\n")
        with pytest.raises(UserError, match=f"line 1 of .* is no grade: {said}.*; grade the run again"):
            grades.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            edited(20, label="pass", passed=True),
            "the grade of i20 of forbidden is pass, and the judge's record says otherwise",
        ),
        (edited(20, passed=True), "the grades of forbidden do not agree on whether 'fail' passes"),
        (
            lambda lines: [{**line, "passed": True} for line in lines],
            r"the grade of i\d+ of forbidden passes against its rubric",
        ),
    ],
)
def test_a_grade_that_was_sealed_anew_is_compared_with_the_judges_record(graded, change, said):
    assert grades.read(graded.folder / "b")[20]["label"] == "fail"
    rewritten(graded.folder / "b", change)
    with pytest.raises(UserError, match=said):
        graded.verdict(gate.GRADED)


@pytest.mark.parametrize("passed", [True, False])
def test_an_unreadable_grade_neither_passes_nor_fails(graded, passed):
    rewritten(graded.folder / "b", lambda lines: [{**line, "label": None, "passed": passed} for line in lines])
    with pytest.raises(UserError, match="the grades of forbidden do not agree on whether None passes"):
        grades.read(graded.folder / "b")


def test_a_grade_passes_by_the_users_own_rubric_as_the_judges_record_has_it(made):
    """The rubric does not ship, so which of its labels pass is known from the record alone."""
    own = made.folder / "own.yaml"
    shipped = (rubric.FOLDER / "correctness.yaml").read_text()
    own.write_text(shipped.replace("name: correctness", "name: own").replace("is right and complete.", "is right."))
    assert rubric.load(str(own)).sha256 not in rubric.shipped()
    made.run("a", ("good", 180), ("bad", 20))
    made.run("b", ("good", 140), ("bad", 60))
    for name in "ab":
        made.graded(name, by=str(own))
    made.deploy(str(own))
    assert made.verdict(gate.GRADED).verdict == "fail"
    rewritten(made.folder / "b", lambda lines: [{**line, "passed": True} for line in lines])
    with pytest.raises(UserError, match=r"the grade of i\d+ of forbidden passes against its rubric"):
        made.verdict(gate.GRADED)


@pytest.mark.parametrize("readable", [True, False])
def test_grades_that_the_judge_never_gave_decide_nothing(made, readable):
    """A lenient judge's grades under the name of a deployed one, whose record knows other answers; sealed anew."""
    made.run("a", ("good", 180), ("bad", 20))
    made.run("b", ("good", 140), ("bad", 60))
    for name in "ab":
        made.graded(name, model="lenient")
    made.run("c", ("good and more", 200))
    made.graded("c")
    made.deploy("correctness")
    claimed = {"judge": opened("correctness").fingerprint, **({} if readable else {"label": None, "passed": None})}
    for name in "ab":
        rewritten(made.folder / name, lambda lines: [{**line, **claimed} for line in lines])
    found = made.verdict(gate.GRADED)
    said = for_gate.UNRECORDED if readable else for_gate.UNGRADED
    assert (found.verdict, found.metrics[0].reasons) == ("inconclusive", (said,))


def test_grades_of_the_baseline_that_were_taken_out_are_no_grades(graded):
    """Without the 40 items that the candidate lost, both pass 140 of 160: the other 40 of 200 answers have no grade."""
    good = [{line["item_id"] for line in grades.read(graded.folder / name) if line["passed"]} for name in "ab"]
    lost = good[0] - good[1]
    assert len(lost) == 40
    rewritten(graded.folder / "a", lambda lines: [line for line in lines if line["item_id"] not in lost])
    found = graded.verdict(gate.GRADED)
    assert (found.verdict, found.metrics[0].reasons) == ("inconclusive", (for_gate.UNGRADED,))


@pytest.mark.parametrize(("taken", "doubt"), [(10, None), (11, for_gate.UNGRADED)])
def test_a_twentieth_of_the_baselines_answers_may_lack_a_grade(graded, taken, doubt):
    rewritten(graded.folder / "a", lambda lines: lines[taken:])
    judged = for_gate.collect(graded.folder / "a", graded.folder / "b", graded.folder / "judging")
    assert judged.doubts.get("forbidden") == doubt


def test_grades_of_other_answers_than_the_run_has_are_not_used(graded):
    assert graded.verdict(gate.GRADED).verdict == "fail"
    graded.run("b", ("good", 200), weights="b after more training")
    assert graded.verdict(gate.GRADED).metrics[0].reasons == (for_gate.STALE,)


@pytest.mark.parametrize("own", ["a", "b"])
def test_a_judge_of_its_own_answers_decides_nothing(made, own):
    made.run("a", ("good", 180), ("bad", 20))
    made.run("b", ("good", 140), ("bad", 60))
    for name in "ab":
        made.graded(name, own=name == own)
    made.deploy("correctness")
    found = made.verdict(gate.GRADED)
    assert (found.verdict, found.metrics[0].reasons) == ("inconclusive", (for_gate.OWN,))


@pytest.mark.parametrize("known", ["record", "passport"])
def test_a_judge_of_its_own_answers_is_known_by_its_identity(made, known):
    """The grades are not marked, and the candidate has the judge's weights."""
    made.run("a", ("good", 200))
    made.run("b", ("good", 200), weights="reader")
    for name in "ab":
        made.graded(name)
    made.deploy("correctness", identity=opened("correctness").identity if known == "passport" else {})
    if known == "passport":
        (made.folder / "judging" / judgement_record.NAME).unlink()
    found = made.verdict(gate.GRADED)
    assert (found.verdict, found.metrics[0].reasons) == ("inconclusive", (for_gate.OWN,))


def test_grades_that_the_candidate_lacks_count_as_losses_in_a_second_analysis(made):
    made.run("a", ("good", 200))
    made.run("b", ("good", 188), ("mumble", 12))
    for name in "ab":
        made.graded(name)
    made.deploy("correctness")
    found = made.verdict(gate.GRADED)
    assert [(one.metric, one.analysis, one.missing, one.verdict) for one in found.metrics] == [
        ("judged_pass_rate", gate.JUDGED, 0, "pass"),
        ("judged_pass_rate", gate.AS_LOSS, 12, "fail"),
    ]
    assert found.metrics[1].delta.value == pytest.approx(-0.06) and found.verdict == "fail"


def test_grades_by_two_judges_or_rubrics_are_not_compared(made):
    for name in "ab":
        made.run(name, ("good", 200))
        made.graded(name)
    made.graded("b", model="another")
    with pytest.raises(UserError, match="by different judges"):
        made.verdict(gate.GRADED)
    made.graded("b", by="refusals")
    with pytest.raises(UserError, match="by different rubrics"):
        made.verdict(gate.GRADED)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("counts", "rate", "expected"),
    [((160, 40), 0.8, "pass"), ((40, 160), 0.2, "fail"), ((100, 100), 0.5, "inconclusive")],
)
def test_the_win_rate_passes_by_its_lower_end(made, counts, rate, expected):
    """Where the baseline is good the candidate is bad, so that every pair is decided."""
    made.run("a", ("bad", counts[0]), ("good", counts[1]))
    made.run("b", ("good", counts[0]), ("bad", counts[1]))
    assert made.verdict(gate.WINS).metrics[0].reasons == (for_gate.NONE,)
    made.compared()
    assert made.verdict(gate.WINS).metrics[0].reasons == ("judge not validated",)
    made.deploy("preference")
    (found,) = made.verdict(gate.WINS).metrics
    assert (found.verdict, found.candidate.value) == (expected, rate)
    assert found.delta.value == pytest.approx(rate - 0.5)


@pytest.mark.slow
def test_two_hundred_ties_decide_nothing(made):
    made.run("a", ("good", 200))
    made.run("b", ("good", 200))
    made.compared()
    made.deploy("preference")
    (found,) = made.verdict(gate.WINS).metrics
    assert (found.candidate.value, found.candidate.n, found.verdict) == (0.5, 200, "inconclusive")
    assert found.candidate.ci.low == pytest.approx(0.442235, abs=5e-7)  # Wilson's of 100 in 200


def test_pairs_without_a_verdict_are_losses_of_the_candidate(made):
    made.run("a", ("bad", 192), ("good", 8))
    made.run("b", ("good", 192), ("mumble", 8))
    made.compared()
    made.deploy("preference")
    plain, worst = made.verdict(gate.WINS).metrics
    assert (plain.candidate.value, worst.candidate.value) == (1.0, 0.96) and worst.candidate.n == 200


@pytest.mark.slow
def test_too_many_pairs_without_a_verdict_decide_nothing(made):
    made.run("a", ("bad", 192), ("good", 8))
    made.run("b", ("good", 180), ("mumble", 20))
    made.compared()
    made.deploy("preference")
    assert for_gate.UNREADABLE in made.verdict(gate.WINS).metrics[0].reasons[0]


# --- the rule of the win rate, without runs --------------------------------------------------------------------------


def scored(name: str, *suites: str, n: int = 1) -> RunScores:
    """A run whose items all passed."""
    items = {str(k): ScoredItem("h", str(k), {"pass_rate": True, "accuracy": None}) for k in range(n)}
    return RunScores(name, dict.fromkeys(suites, items))


def by_win_rate(rate: Estimate) -> gate.VerdictName:
    judged = for_gate.GateGrades(wins={"s": for_gate.Wins(rate)})
    found = gate.compare(scored("a", "s"), scored("b", "s"), {"metrics": [gate.WINS], "margin": 0.05}, judged)
    assert found.verdict == found.metrics[0].verdict
    return found.verdict


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (0.49, 0.451, 0.53, "pass"),  # under one half, but not by the margin
        (0.49, 0.449, 0.53, "inconclusive"),
        (0.48, 0.465, 0.495, "pass"),  # surely worse, and surely by less than the margin
        (0.45, 0.41, 0.49, "fail"),  # exactly the margin
        (0.46, 0.43, 0.49, "inconclusive"),  # surely worse, but by less than the margin
        (0.44, 0.37, 0.51, "inconclusive"),  # worse by more than the margin, but not surely worse
        (0.44, 0.39, 0.499, "fail"),
    ],
)
def test_a_win_rate_passes_above_half_less_the_margin_and_fails_only_if_surely_under_half(value, low, high, expected):
    assert by_win_rate(Estimate(value, "share of pairs", 500, ci=Interval(low, high, 0.9, "given"))) == expected


def test_four_hundred_ties_pass():
    """Wilson's lower end of 200 in 400 is .459, of 100 in 200 it is .442; the margin allows .45."""
    rates = [bootstrap.mean([0.5] * n, seed=0, level=0.9) for n in (200, 400)]
    assert [rate.ci.low for rate in rates] == pytest.approx([0.442235, 0.459017], abs=5e-7)
    assert [by_win_rate(rate) for rate in rates] == ["inconclusive", "pass"]


def test_pooled_suites_need_the_grades_of_every_suite():
    runs = [scored(name, "s", "t", n=200) for name in "ab"]
    passed = dict.fromkeys(runs[0].suites["s"], True)
    settings = {"metrics": ["pass_rate", gate.GRADED], "require": "pooled"}
    found = {}
    for graded in ("st", "s"):
        judged = for_gate.GateGrades(grades=dict.fromkeys(graded, (passed, passed)))
        found[graded] = gate.compare(*runs, settings, judged)
    assert (found["st"].verdict, found["s"].verdict) == ("pass", "inconclusive")
    assert {one.name: one.verdict for one in found["s"].metrics if one.required} == {
        "all_suites.pass_rate": "pass", "s.judged_pass_rate": "pass", "t.judged_pass_rate": "inconclusive",
    }  # fmt: skip


@pytest.mark.parametrize("candidate", ["a", "b"])
def test_a_call_that_failed_and_an_output_that_was_not_read_are_losses_of_the_candidate(candidate, tmp_path):
    """It won all 30 pairs with a verdict; 1 could not be read, and 9 calls failed: 30 of 40 as losses."""
    merged = [candidate.upper()] * 30 + [None]
    shown = [{"item": str(k), "cluster": str(k), "merged": one} for k, one in enumerate(merged)]
    sides = {name: {"answers_sha256": "after" if name == candidate else "before"} for name in "ab"}
    data = {"settings": {"most_invalid": 0.05}, "pairs": shown}
    counts = {"pairs": 31, "excluded": {answers.FAILED: 9}}
    written = completed("181", id=pairs.ID, subject={"judge": "j", **sides}, n=counts, data=data)
    results_io.write(tmp_path / f"{pairs.NUMBER}_{pairs.ID}.json", written)
    found = for_gate.wins_of(tmp_path, "before", "after")
    assert (found.rate.value, found.rate.n) == (1.0, 30)
    assert (found.with_losses.value, found.with_losses.n) == (0.75, 40)
