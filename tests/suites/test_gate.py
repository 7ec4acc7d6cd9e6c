"""The regression gate: its rule, its refusals, and its error rates by simulation."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import results_io
import shown_text
from meridian.commands import gate as gate_command
from meridian.context import RunContext
from meridian.reporter import Reporter
from results_io import UserError
from suites import declaration, gate, runner
from suites.gate import RunScores, ScoredItem
from suites.models import open_model
from suites.statistics import proportions
from tests.commandline import command as run_py

MARGIN, ALPHA = 0.05, 0.05


def run(name: str, passed: list[bool | None], clusters: list[str] | None = None, suite: str = "s") -> RunScores:
    """A run of one suite whose item i passed or not."""
    labels = clusters or [str(i) for i in range(len(passed))]
    items = {
        str(i): ScoredItem("h", cluster, {"pass_rate": one, "accuracy": None})
        for i, (one, cluster) in enumerate(zip(passed, labels, strict=True))
    }
    return RunScores(name, {suite: items})


def pair(both: int, only_a: int, only_b: int, neither: int) -> tuple[RunScores, RunScores]:
    """Baseline and candidate with these four cells."""
    cells = [(True, True)] * both + [(True, False)] * only_a + [(False, True)] * only_b + [(False, False)] * neither
    return run("a", [a for a, _ in cells]), run("b", [b for _, b in cells])


def verdict(both: int, only_a: int, only_b: int, neither: int, **settings: object) -> gate.GateVerdict:
    return gate.compare(*pair(both, only_a, only_b, neither), settings)


def test_identical_runs_pass_once_they_have_the_items() -> None:
    assert verdict(400, 0, 0, 100).verdict == "pass"
    small = verdict(90, 0, 0, 10)
    assert (small.verdict, small.exit_code) == ("inconclusive", 3)
    assert small.metrics[0].detectable.value == pytest.approx(0.0767, abs=5e-5)
    assert "about 155 items" in small.metrics[0].reasons[0]
    assert gate.power.items_for_paired(MARGIN, MARGIN).value == 155
    assert [verdict(n, 0, 0, 0).verdict for n in (154, 155)] == ["inconclusive", "pass"]


def test_a_significant_loss_of_the_margin_fails() -> None:
    found = verdict(400, 50, 10, 40)
    metric = found.metrics[0]
    assert (found.verdict, found.exit_code) == ("fail", 1)
    assert metric.delta.value == pytest.approx(-0.08)
    assert metric.adjusted_p == metric.delta.p_value < 1e-6


def test_a_significant_loss_below_the_margin_does_not_fail() -> None:
    found = verdict(1840, 50, 10, 100)  # lost .02 of 2000, p < 1e-6
    assert found.metrics[0].delta.p_value < 1e-6
    assert found.verdict == "pass"


def test_a_loss_of_exactly_the_margin_counts() -> None:
    found = verdict(370, 20, 0, 10)
    assert found.metrics[0].delta.value == pytest.approx(-0.05)
    assert found.verdict == "fail"


def test_a_loss_that_is_not_significant_is_no_pass_either() -> None:
    found = verdict(20, 8, 3, 9)
    assert found.metrics[0].delta.value == pytest.approx(-0.125)
    assert found.metrics[0].delta.p_value == pytest.approx(0.2266, abs=5e-5)
    assert found.verdict == "inconclusive"


def test_not_excluding_the_margin_is_inconclusive_even_with_items_enough() -> None:
    found = verdict(650, 55, 20, 175)  # lost .039 of 900
    assert found.metrics[0].detectable.value < MARGIN
    assert found.metrics[0].delta.ci.low < -MARGIN
    assert found.verdict == "inconclusive"
    assert "not excluded" in found.metrics[0].reasons[0]


def test_the_floor_holds_whatever_the_baseline_had() -> None:
    assert verdict(400, 0, 0, 100, floor=0.81).verdict == "fail"
    assert verdict(400, 0, 0, 100, floor=0.80).verdict == "pass"
    assert verdict(400, 0, 0, 100, floors={"s": 0.9}).verdict == "fail"
    assert verdict(4, 0, 0, 1, floor=1).verdict == "fail"  # what must not happen at all needs no number of items
    assert verdict(5, 0, 0, 0, floor=1).verdict == "inconclusive"


def test_the_margin_of_a_suite_replaces_the_common_one() -> None:
    assert verdict(370, 20, 0, 10, margins={"s": 0.15}).verdict == "pass"


def test_benjamini_hochberg_runs_over_all_metrics() -> None:
    a, b = pair(200, 22, 8, 70)
    alone = gate.compare(a, b).metrics[0]
    assert alone.adjusted_p == pytest.approx(0.01612, abs=5e-5) == alone.delta.p_value
    quiet = {f"q{i}": run("", [True] * 400).suites["s"] for i in range(9)}
    crowd = gate.compare(RunScores("a", {**a.suites, **quiet}), RunScores("b", {**b.suites, **quiet}))
    assert crowd.metrics[0].adjusted_p == pytest.approx(10 * alone.adjusted_p)
    assert alone.delta.value == pytest.approx(-14 / 300)


def test_items_are_matched_by_hash() -> None:
    a, b = pair(400, 0, 0, 100)
    edited = dict(b.suites["s"])
    for i in range(40):
        edited[str(i)] = ScoredItem("edited", str(i), {"pass_rate": False, "accuracy": None})
    found = gate.compare(a, RunScores("b", {"s": edited}))
    assert (found.metrics[0].delta.n, found.verdict) == (460, "pass")
    for i in range(51):
        edited[str(i)] = ScoredItem("edited", str(i), {"pass_rate": False, "accuracy": None})
    with pytest.raises(UserError, match="share 90% of the items of s; expected at least 90%"):
        gate.compare(a, RunScores("b", {"s": edited}))


def excused(run_: RunScores) -> RunScores:
    """The same run, every verdict that is missing that of a failed call."""
    items = {name: replace(item, excused=item.outcomes["pass_rate"] is None) for name, item in run_.suites["s"].items()}
    return RunScores(run_.name, {"s": items})


def test_failed_calls_are_dropped_and_too_many_are_no_pass() -> None:
    passed = [True] * 400
    few = gate.compare(run("a", passed), excused(run("b", [None] * 40 + [True] * 360)))
    assert few.metrics[0].delta.excluded == {"not judged in both runs": 40}
    assert (few.verdict, len(few.metrics)) == ("pass", 1)
    many = gate.compare(run("a", passed), excused(run("b", [None] * 41 + [True] * 359)))
    assert many.verdict == "inconclusive"
    assert "no verdict on 41 of the 400" in many.metrics[0].reasons[0]


def test_a_missing_verdict_is_a_loss_in_a_second_analysis_and_the_worse_counts() -> None:
    """A9 to A11 have no verdict where the original is wrong: a candidate that lost the ability was inconclusive, or passed."""
    found = gate.compare(run("a", [True] * 400), run("b", [None] * 80 + [True] * 320))
    judged, as_loss = found.metrics
    assert (judged.analysis, judged.delta.n, judged.verdict) == ("judged_in_both", 320, "inconclusive")
    assert (as_loss.analysis, as_loss.delta.n, as_loss.missing, as_loss.verdict) == ("missing_as_loss", 400, 80, "fail")
    assert as_loss.delta.value == -0.2 and as_loss.delta.ci.high < -MARGIN
    assert found.exit_code == 1
    assert as_loss.reasons == ("lost 0.200, margin 0.05 (adjusted p = 1.7e-24), 80 missing verdicts counted as losses",)
    records = gate.document(found)["records"]
    assert [record["metric_id"] for record in records] == ["R.s.pass_rate", "R.s.pass_rate.missing_as_loss"]
    assert [record["missing_as_loss"] for record in records] == [0, 80]
    # under the margin neither analysis fails, and a floor is one of observed rates
    few = gate.compare(run("a", [True] * 400), run("b", [None] * 2 + [True] * 398), {"floor": 1})
    assert [(one.delta.value, one.verdict) for one in few.metrics] == [(0.0, "pass"), (-0.005, "pass")]


def test_accuracy_is_compared_by_default() -> None:
    assert gate.defaults()["metrics"] == ["pass_rate", "accuracy"]
    a = {str(i): ScoredItem("h", str(i), {"pass_rate": True, "accuracy": i < 300}) for i in range(400)}
    b = {str(i): ScoredItem("h", str(i), {"pass_rate": True, "accuracy": i < 240}) for i in range(400)}
    assert gate.compare(RunScores("a", {"s": a}), RunScores("b", {"s": b})).verdict == "fail"


def test_a_suite_that_vanished_is_not_passed() -> None:
    a, b = pair(400, 0, 0, 100)
    found = gate.compare(RunScores("a", {**a.suites, "t": a.suites["s"]}), b)
    assert (found.verdict, found.reasons) == ("inconclusive", ("t is missing in b",))
    with pytest.raises(UserError, match="no suite in common"):
        gate.compare(a, RunScores("b", {"t": b.suites["s"]}))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"margn": 0.1}, "no setting 'margn'"),
        ({"margin": 5}, "margin is 5"),
        ({"floors": {"s": 80}}, "floors.s is 80"),
        ({"metrics": ["auroc"]}, "metrics names auroc"),
        ({"metrics": []}, "metrics names nothing"),
        ({"alpha": True}, "alpha is True"),
        ({"minimum_items": 0}, "minimum_items is 0"),
        ({"floors": {"t": 0.5}}, "floors names 't'"),
        ({"require": "most"}, "require is most"),
        ({"margins": None}, "margins is None; expected shares by suite id"),
        ({"floors": None}, "floors is None"),
        ({"floors": [0.8]}, "floors is "),
        ({"margins": 0.1}, "margins is 0.1"),
        ({"floors": {"s": None}}, "floors.s is None"),
        ({"floors": {5: 0.5, "t": 0.5}}, "floors names"),
        ({"metrics": None}, "metrics is None"),
        ({"metrics": "accuracy"}, "metrics is accuracy; expected a list"),
        ({"metrics": [["accuracy"]]}, "metrics names"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        gate.compare(*pair(10, 1, 1, 10), settings)


def test_accuracy_is_compared_where_there_is_a_scorer() -> None:
    a = {str(i): ScoredItem("h", str(i), {"pass_rate": True, "accuracy": i < 300}) for i in range(400)}
    b = {str(i): ScoredItem("h", str(i), {"pass_rate": True, "accuracy": i < 240}) for i in range(400)}
    found = gate.compare(RunScores("a", {"s": a}), RunScores("b", {"s": b}), {"metrics": ["pass_rate", "accuracy"]})
    assert [(one.metric, one.verdict) for one in found.metrics] == [("pass_rate", "pass"), ("accuracy", "fail")]
    assert found.metrics[1].delta.value == pytest.approx(-0.15)


def _many(n_suites: int, only_a: int, name: str = "b") -> tuple[RunScores, RunScores]:
    """Suites of 40 items of which the first one loses `only_a`."""
    right, lost = run("a", [True] * 40).suites["s"], run("b", [False] * only_a + [True] * (40 - only_a)).suites["s"]
    names = [f"s{i}" for i in range(n_suites)]
    return RunScores("a", dict.fromkeys(names, right)), RunScores(name, {**dict.fromkeys(names, right), "s0": lost})


def test_names_of_foreign_runs_are_no_markup() -> None:
    baseline, candidate = _many(2, 0, "org/model[bold]")
    shown = gate.compare(baseline, replace(candidate, suites={"s0": candidate.suites["s0"]}))
    console = Console(file=io.StringIO(), width=200)
    gate.show(replace(shown, reasons=(*shown.reasons, "s9 is missing in org/model[/x]")), console)
    text = console.file.getvalue()
    assert "org/model[bold] against a" in text and "s9 is missing in org/model[/x]" in text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *(
            ({table: {"all_suites": 0.1}}, f"{table} names 'all_suites', .* or set require to pooled")
            for table in gate.TABLES
        ),
        (
            {"metrics": [gate.WINS], "floors": {"s": 0.5}},
            r"floors names 's', and no metric .*win_rate.* has such a one",
        ),
        (
            {"metrics": [gate.WINS], "floor": 0.5},
            r"floor is 0.5, and no metric of the gate \(win_rate_against_baseline\) has one",
        ),
        ({"metrics": ["accuracy", gate.WINS], "floors": {"s": 0.5}}, "floors names 's'"),  # there is no scorer
        ({"metrics": [gate.GRADED], "require": "pooled", "margins": {"all_suites": 0.1}}, "margins names 'all_suites'"),
    ],
)
def test_a_margin_or_floor_that_no_metric_has_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        verdict(400, 0, 0, 100, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        *({"require": "pooled", table: {"all_suites": 0.1, "s": 0.1}} for table in gate.TABLES),
        {"metrics": ["pass_rate", gate.WINS], "floors": {"s": 0.5}, "floor": 0.4},
        {"metrics": [gate.WINS], "margins": {"s": 0.1}},
        {"metrics": [gate.GRADED], "margins": {"s": 0.1}, "floors": {"s": 0.5}},
    ],
)
def test_margins_and_floors_that_apply_are_taken(settings: dict[str, object]) -> None:
    assert verdict(400, 0, 0, 100, **settings).settings["margins"] == settings.get("margins", {})


@pytest.mark.parametrize(("p", "doubts"), [(0.049, 0), (0.051, 1), (0.09, 1)])
def test_a_loss_is_excluded_at_alpha(p: float, doubts: int) -> None:
    one = verdict(400, 0, 0, 100).metrics[0]
    assert len(gate._doubts(replace(one, noninferiority_p=p), gate.defaults())) == doubts


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("margins", [{}, {"s02_codeword_families": 0.1}])
def test_the_table_cuts_nothing_and_breaks_names_at_their_joints(width: int, margins: dict[str, float]) -> None:
    passed = {"a10_padding_ioi_month": 0.9, "s02_codeword_families": 0.6}
    sides = [
        {
            name: {
                str(i): ScoredItem(
                    "h", str(i), {"pass_rate": i < 200 * share, "accuracy": None if i < lost else i < 150}
                )
                for i in range(200)
            }
            for name, share in passed.items()
        }
        for lost in (0, 20)
    ]
    found = gate.compare(RunScores("a", sides[0]), RunScores("b", sides[1]), {"margins": margins, "require": "pooled"})
    console = Console(file=io.StringIO(), width=width)
    gate.show(found, console)
    text = console.file.getvalue()
    table = text[text.index("suite ") : text.index("* can fail")].splitlines()
    assert sum(row.rstrip().endswith(" *") for row in table) == 6  # three rows for each of two suites
    names = [row.split()[0] for row in table[1:] if row.strip() and row[0] not in " 0123456789"]
    assert set(names) <= {
        *("all_suites", "all_suites.", "accuracy", "accuracy.", "missing_as_loss"),
        *("a10_padding_", "ioi_month", "ioi_month.", "s02_codeword_", "families", "families."),
    }  # fmt: skip
    assert all(f"[{one.delta.bounds.low:+.2f}, {one.delta.bounds.high:+.2f}]" in text for one in found.metrics)
    assert ("margin  shows" in text) is (bool(margins) and width > 80)


def test_runs_with_a_suffix_of_their_own_are_told_to_leave_it_out() -> None:
    a, b = ({"s02_codeword_families_gcg": {"x": ScoredItem(f"{one}", "x", {"pass_rate": True})}} for one in "ab")
    with pytest.raises(
        UserError, match=r"have a suffix that was made for one model; run a and b both without suite\.gcg\.optimise"
    ):
        gate.compare(RunScores("a", a), RunScores("b", b))


def test_many_small_suites_pass_together_or_not_at_all() -> None:
    pooled = {"require": "pooled"}
    assert gate.compare(*_many(10, 0)).verdict == "inconclusive"
    together = gate.compare(*_many(10, 0), pooled)
    assert together.verdict == "pass"
    assert [(one.suite, one.delta.n, one.verdict) for one in together.metrics[:2]] == [
        ("all_suites", 400, "pass"),
        ("s0", 40, "inconclusive"),
    ]
    console = Console(file=io.StringIO(), width=200)
    gate.show(together, console)
    rows = console.file.getvalue().splitlines()
    assert sum(row.rstrip(" │").endswith("inconclusive *") for row in rows) == 10  # of suites that need not pass
    assert not any("all_suites" in row and "*" in row for row in rows)
    assert max(map(len, rows)) <= shown_text.WIDTH
    assert gate.compare(*_many(3, 0), pooled).verdict == "inconclusive"  # 120 items show .064 at best
    one_broken = gate.compare(*_many(10, 16), pooled)
    assert [one.suite for one in one_broken.metrics if one.verdict == "fail"] == ["s0"]
    assert one_broken.metrics[0].delta.value == pytest.approx(-0.04)
    assert one_broken.verdict == "fail"


def _draw(rng: np.random.Generator, n: int, gain: float, loss: float) -> tuple[RunScores, RunScores]:
    kinds = rng.choice(4, size=n, p=[0.7 - loss, loss, gain, 0.3 - gain])
    return pair(*(int((kinds == kind).sum()) for kind in range(4)))


def _rates(n: int, gain: float, loss: float, repeats: int = 300, seed: int = 0) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    found = [gate.compare(*_draw(rng, n, gain, loss)).verdict for _ in range(repeats)]
    return {name: found.count(name) / repeats for name in gate.EXIT_CODES}


@pytest.mark.slow
def test_a_candidate_worse_by_the_margin_rarely_passes() -> None:
    # The edge of the null: a true loss of .05, items enough (psi .15: 469). At most alpha, 2 standard errors allowed.
    at_margin = _rates(600, gain=0.05, loss=0.10)
    assert at_margin["pass"] <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / 300) ** 0.5
    assert _rates(600, gain=0.04, loss=0.14, repeats=100)["pass"] == 0


@pytest.mark.slow
def test_a_candidate_as_good_rarely_fails_and_usually_passes() -> None:
    rates = _rates(800, gain=0.08, loss=0.08)
    assert rates["fail"] <= ALPHA
    assert rates["pass"] >= 0.8


def test_few_items_never_pass_what_they_cannot_show() -> None:
    assert _rates(100, gain=0.05, loss=0.10, repeats=100)["pass"] == 0


def _clustered(
    rng: np.random.Generator, loss: float, n_clusters: int = 60, size: int = 10
) -> tuple[RunScores, RunScores]:
    """All items of a cluster change together: with probability .1 + loss for the worse and .1 for the better."""
    change = rng.choice([-1, 0, 1], size=n_clusters, p=[0.1 + loss, 0.8 - loss, 0.1])
    a = np.where(change == -1, True, np.where(change == 1, False, rng.random(n_clusters) < 0.7))
    b = np.where(change == 0, a, change == 1)
    labels = [str(i) for i in range(n_clusters) for _ in range(size)]
    sides = (np.repeat(side, size).tolist() for side in (a, b))
    return tuple(run(name, side, labels) for name, side in zip("ab", sides, strict=True))


@pytest.mark.slow
def test_items_that_change_together_count_as_one() -> None:
    rng = np.random.default_rng(1)
    equal = [gate.compare(*_clustered(rng, 0.0)) for _ in range(200)]
    assert sum(one.verdict == "fail" for one in equal) / 200 <= ALPHA
    assert np.mean([one.metrics[0].design_effect for one in equal]) == pytest.approx(10, rel=0.02)
    # McNemar over items would take 600 of them for independent and call most of these differences significant.
    assert np.mean([one.metrics[0].delta.p_value < ALPHA for one in equal]) > 0.4
    worse = [gate.compare(*_clustered(rng, 0.06)).verdict for _ in range(200)]
    assert worse.count("pass") / 200 <= ALPHA


def test_identical_clustered_runs_are_worth_their_clusters() -> None:
    labels = [str(i // 5) for i in range(1000)]
    found = gate.compare(run("a", [True] * 1000, labels), run("b", [True] * 1000, labels)).metrics[0]
    assert found.design_effect == 5
    assert found.delta.ci == gate.paired.score_interval(gate.paired.Cells(200, 0, 0, 0), 0.9)
    assert found.verdict == "pass"


def _write_run(folder: Path, failed: list[bool], **extra: str) -> Path:
    folder.mkdir(parents=True)
    lines = [
        {
            "suite_id": "s",
            "suite_hash": "x",
            "item_id": f"i{i}",
            "outcomes": [{"correct": not one}],
            "detection": {"failed": one},
            **extra,
        }
        for i, one in enumerate(failed)
    ]
    (folder / "scores.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def command(baseline: object, candidate: object, console: Console | None = None, **settings: object) -> int:
    """`run.py gate` behind the command line, where a UserError becomes exit code 2."""
    given = {"baseline": baseline, "candidate": candidate, "gate": {**gate.defaults(), **settings}}
    return gate_command.command(RunContext(given, (), (), (), Reporter(console or Console(quiet=True)), False))


def test_the_command_has_an_exit_code_for_every_outcome(tmp_path: Path) -> None:
    good = _write_run(tmp_path / "old" / "suites", [False] * 400)
    same = _write_run(tmp_path / "same" / "suites", [False] * 400)
    bad = _write_run(tmp_path / "bad" / "suites", [True] * 40 + [False] * 360)
    small = _write_run(tmp_path / "small" / "suites", [False] * 50)
    console = Console(width=100, force_terminal=False, record=True)
    codes = [command(str(a), str(b), console) for a, b in ((good, same), (good, bad), (small, small))]
    assert codes == [0, 1, 3]
    with pytest.raises(UserError, match="share 12% of the items of s"):
        command(str(good), str(small))  # 50 of 400 items
    with pytest.raises(UserError, match=r"has no scores\.jsonl"):
        command(str(good), str(tmp_path))
    shown = console.export_text()
    assert "lost 0.100, margin 0.05" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_whatever_cannot_be_read_or_written_is_refused_and_is_no_failure(tmp_path: Path) -> None:
    """By a UserError: any other exception ends with 1, which a pipeline takes for the verdict."""
    good = _write_run(tmp_path / "good", [False] * 400)
    latin = _write_run(tmp_path / "latin", [False] * 400)
    (latin / "scores.jsonl").write_bytes((latin / "scores.jsonl").read_bytes() + '{"a": "\xe9"}\n'.encode("latin-1"))
    with pytest.raises(UserError, match=r"line 401 of .* is not JSON in UTF-8"):
        command(good, latin)
    binary = _write_run(tmp_path / "binary", [False])
    (binary / "scores.jsonl").write_bytes(bytes(range(256)))
    for folder in (binary, 5, ["a"], tmp_path / ("x" * 300)):
        with pytest.raises(UserError):
            command(good, folder)
    (good / "151_regression_gate.json").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        command(good, good)


def test_a_score_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _write_run(tmp_path / "a", [False])

    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("read_bytes", "is_file"):  # the file, then its folder
        monkeypatch.setattr(Path, name, refused)
        with pytest.raises(UserError, match=r"cannot be read .Permission denied"):
            gate.read(folder)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"detection": {"failed": "no"}}, "verdict 'no'"),
        ({"outcomes": [{"correct": 1}]}, "verdict 1"),
        ({"item_id": ["i"]}, r"name \['i'\]"),
        ({"suite_id": {}}, "name {}"),
        ({"cluster": 5}, "name 5"),
        ({"detection": []}, "lacks"),
    ],
)
def test_a_line_of_another_kind_is_refused(change: dict, said: str) -> None:
    line = {"suite_id": "s", "suite_hash": "x", "item_id": "i", "outcomes": [{"correct": True}]}
    with pytest.raises(UserError, match=f"line 1 of the scores of m .*{said}"):
        gate.of_lines("m", [{**line, "detection": {"failed": False}, **change}])


def test_effect_and_reproducibility_stand_beside_the_test(tmp_path: Path) -> None:
    record = gate.document(verdict(400, 50, 10, 40))["records"][0]  # .90 before, .82 after
    assert record["effect"] == {
        "name": "Cohen's h",
        "value": pytest.approx(2 * (math.asin(0.82**0.5) - math.asin(0.9**0.5))),
    }
    assert record["reproducibility"] == {
        "value": pytest.approx(440 / 500),
        "unit": "share of items",
        "n": 500,
        "successes": 440,
        "metric_difference": pytest.approx(0.08),
        "reproducible": False,
    }
    same = gate.document(verdict(400, 10, 10, 80))["records"][0]
    assert (same["effect"]["value"], same["reproducibility"]["reproducible"]) == (0, True)
    few = gate.document(verdict(5, 0, 0, 0))["records"][0]
    assert (few["effect"], few["reproducibility"]) == (None, None)


def test_the_result_file_is_canonical(tmp_path: Path) -> None:
    a = gate.read(_write_run(tmp_path / "old" / "suites", [False] * 400))
    b = gate.read(_write_run(tmp_path / "new" / "suites", [True] * 40 + [False] * 360))
    assert (a.name, b.name) == ("old", "new")
    path = gate.write(gate.compare(a, b), tmp_path)
    first = path.read_bytes()
    assert path.name == "151_regression_gate.json"
    assert gate.write(gate.compare(a, b), tmp_path).read_bytes() == first
    document = results_io.read(path)
    record = document["records"][0]
    assert (document["verdict"], document["exit_code"]) == ("fail", 1)
    assert (record["metric_id"], record["value"], record["passed"]) == (f"R.{record['suite']}.pass_rate", -0.1, False)
    assert document["inputs_sha256"]["baseline"] == results_io.file_digest(tmp_path / "old" / "suites" / "scores.jsonl")
    assert [document["inputs_sha256"]["candidate"]] == [b.sha256]


def test_line_separators_in_an_output_end_no_line(tmp_path: Path) -> None:
    """scores.jsonl is UTF-8 with LF line ends; JSON leaves U+2028 and U+0085 in a text as they are."""
    folder = tmp_path / "odd" / "suites"
    folder.mkdir(parents=True)
    found = {"failed": True, "evidence": "says 'one\u2028two\u0085three'"}
    line = {"suite_id": "s", "suite_hash": "x", "item_id": "i", "outcomes": [{"correct": None}], "detection": found}
    (folder / "scores.jsonl").write_bytes(f"{json.dumps(line, ensure_ascii=False)}\n".encode() * 2)
    assert gate.read(folder).suites["s"]["i"].outcomes == {"pass_rate": False, "accuracy": None}


def test_the_rates_of_both_runs_count_dependent_items_as_fewer(tmp_path: Path) -> None:
    lines = [
        {
            "suite_id": "s",
            "suite_hash": "x",
            "item_id": f"i{i}",
            "cluster": f"c{i // 4}",
            "outcomes": [{"correct": None}],
            "detection": {"failed": i < 80},
        }
        for i in range(400)
    ]
    run = gate.of_lines("m", lines)
    found = gate.compare(run, run).metrics[0].candidate  # 100 clusters, of which 20 fail as a whole
    of_clusters = proportions.wilson(80, 100).ci
    assert (found.value, found.n) == (0.8, 400)
    assert (found.ci.low, found.ci.high) == pytest.approx((of_clusters.low, of_clusters.high), abs=1e-12)


def test_items_have_their_own_hash_where_the_scores_say_it(tmp_path: Path) -> None:
    a = gate.read(_write_run(tmp_path / "a", [False] * 400, suite_hash="1", item_hash="same"))
    b = gate.read(_write_run(tmp_path / "b", [False] * 400, suite_hash="2", item_hash="same"))
    assert gate.compare(a, b).verdict == "pass"
    c = gate.read(_write_run(tmp_path / "c", [False] * 400, suite_hash="2"))
    with pytest.raises(UserError, match="share 0%"):
        gate.compare(a, c)


def test_a_broken_score_file_is_named_by_line(tmp_path: Path) -> None:
    folder = _write_run(tmp_path / "a", [False])
    (folder / "scores.jsonl").write_text('{"suite_id": "s"}\n')
    with pytest.raises(UserError, match="line 1 of the scores of a lacks 'outcomes'"):
        gate.read(folder)
    (folder / "scores.jsonl").write_text("{\n")
    with pytest.raises(UserError, match=r"line 1 of .* is not JSON"):
        gate.read(folder)


@pytest.mark.slow
def test_a_head_silenced_that_the_ability_rests_on_fails_the_gate(tmp_path: Path) -> None:
    """Without L0H6 pocket gets most originals wrong, on which A11 has no verdict: the pass rate alone was inconclusive."""
    suites = declaration.load_all(["a11_templates_color"])
    for name, intervention in (("intact", None), ("silenced", {"heads": ["L0H6"]})):
        model = open_model({"name": "pocket", "kind": "embedded", "path": "pocket", "intervention": intervention})
        runner.run(suites, model, tmp_path / name)
    before, after = (gate.read(tmp_path / name) for name in ("intact", "silenced"))
    judged, as_loss = gate.compare(before, after, {"metrics": ["pass_rate"]}).metrics
    assert (judged.analysis, judged.verdict) == (gate.JUDGED, "inconclusive")
    assert (as_loss.analysis, as_loss.verdict) == (gate.AS_LOSS, "fail") and as_loss.missing > 20
    found = gate.compare(before, after)
    (accuracy,) = [one for one in found.metrics if one.metric == "accuracy"]
    assert accuracy.delta.number < -0.2 and accuracy.verdict == "fail"
    assert found.exit_code == 1


def test_margins_by_suite_are_set_on_the_command_line(tmp_path: Path) -> None:
    for name, lost in (("a", 0), ("b", 30)):
        (folder := tmp_path / name).mkdir()
        lines = [
            {
                **{"suite_id": "a13_distractor_color", "suite_hash": "h", "item_id": str(k)},
                **{
                    "outcomes": [{"correct": None, "error": None}],
                    "detection": {"failed": k < lost, "tier": "verified"},
                },
            }
            for k in range(600)
        ]
        (folder / "scores.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    given = ("gate", f"baseline={tmp_path / 'a'}", f"candidate={tmp_path / 'b'}", "gate.metrics=[pass_rate]")
    told = {margin: run_py(*given, f"gate.margins={{a13_distractor_color: {margin}}}") for margin in (0.04, 0.1)}
    assert (told[0.04].code, told[0.1].code) == (1, 0), (told[0.04].errors, told[0.1].errors)
    assert "lost 0.050, margin 0.04" in told[0.04].output
    floors = run_py(*given, "gate.floors={a13_distractor_color: 0.96}", "gate.margin=0.1")
    assert floors.code == 1 and "0.950 is under the floor of 0.96" in floors.output
    refused = run_py(*given, "gate.margins={nosuch: 0.1}")
    assert refused.code == 2 and "margins names 'nosuch', which the baseline did not run" in refused.errors


def test_refusal_j_without_a_suite_of_refusals_is_refused() -> None:
    with pytest.raises(UserError, match="no suite that both runs share judges refusals; run s01_refusals on both"):
        verdict(400, 0, 0, 100, metrics=["pass_rate", "refusal_j"])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"floor": 0.5}, r"floor is 0.5, and no metric of the gate \(refusal_j\) has one"),
        ({"floors": {"s": 0.5}}, r"floors names 's', and no metric of the gate \(refusal_j\) has such a one"),
    ],
)
def test_j_is_no_rate_and_has_no_floor(settings: dict[str, object], said: str) -> None:
    def of_refusals(one: RunScores) -> RunScores:
        asked = {name: replace(item, refusals=gate.SETS[int(name) % 2]) for name, item in one.suites["s"].items()}
        return replace(one, suites={"s": asked})

    before, after = map(of_refusals, pair(400, 0, 0, 100))
    assert gate.compare(before, after, {"metrics": [gate.REFUSAL_J]}).metrics[0].delta.value == 0
    with pytest.raises(UserError, match=said):
        gate.compare(before, after, {"metrics": [gate.REFUSAL_J], **settings})
    rated = gate.compare(before, after, {"metrics": ["pass_rate", gate.REFUSAL_J], **settings})
    assert {one.metric: one.floor for one in rated.metrics} == {"pass_rate": 0.5, gate.REFUSAL_J: None}
