"""`run.py compare` of two snapshots of drift: the differences, the heads of the trace between them, and what is refused."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

import results_io
from meridian import drift_comparison, drift_trace
from results_io import UserError
from suites.drift import series_record
from suites.log import chain
from tests.commandline import command
from tests.result_samples import completed
from tests.suites.test_drift_analysis import SETTINGS, analysed, grid, line, longer, plain, week

WEIGHTS = {"2026-W22": "a" * 64, "2026-W23": "b" * 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A series of two weeks; the second is 10 tokens longer. Between their weights stands a trace."""
    own = tmp_path_factory.mktemp("results") / "drift" / "prod"
    with chain.Writer(own / series_record.NAME) as writer:
        for name, tokens in (("2026-W22", plain), ("2026-W23", longer)):
            week(writer, name, grid(name, tokens))
    analysed(own)
    return own


def compared(*typed, results):
    done = command("compare", *typed, f"results={results}", "drift.default_samples=6")
    written = list(results.rglob("comparison.json"))
    return done, [results_io.read(path) for path in written]


def test_two_snapshots_of_one_series_differ_by_what_their_tokens_do(folder, tmp_path) -> None:
    sides = [f"{side}={folder / f'manifest-{name}.json'}" for side, name in zip("ab", WEIGHTS, strict=True)]
    done, (document,) = compared(*sides, results=tmp_path / "results")
    assert (done.code, done.errors) == (0, "")
    rows = {row["name"]: row for row in document["records"]}
    assert (rows["length"]["before"], rows["length"]["difference"], rows["length"]["rejected"]) == (22.5, 10.0, True)
    reach = 1.959964 * rows["length"]["detail"]["standard_error"]
    assert (rows["length"]["low"], rows["length"]["high"]) == pytest.approx((10 - reach, 10 + reach), abs=1e-6)
    assert (rows["refusal"]["difference"], rows["refusal"]["p"], rows["refusal"]["low"]) == (0.0, 1.0, None)
    assert "+10.000 [+9" in done.output and "No trace between these two is on record" in done.output
    assert [document["subject"][side]["snapshot"] for side in "ab"] == list(WEIGHTS)


def between(a, b):
    return drift_comparison.compare(str(a), str(b), SETTINGS, 0)[1]


def test_the_folder_of_a_series_is_its_last_snapshot_and_another_series_may_stand_beside(folder, tmp_path) -> None:
    other = tmp_path / "drift" / "other"
    with chain.Writer(other / series_record.NAME) as writer:
        week(writer, "2026-W40", grid("2026-W40", plain))
    document = between(folder, other)
    assert document["subject"]["a"]["snapshot"] == "2026-W23" and document["id"] == "drift_comparison"
    assert next(row["difference"] for row in document["records"] if row["name"] == "length") == -10.0
    with pytest.raises(UserError, match="are both the snapshot 2026-W22"):
        between(folder / "manifest-2026-W22.json", folder / "manifest-2026-W22.json")


def with_weights(folder, own):
    """A copy of the series whose snapshots are of local weights, with a trace between them."""
    lines = [
        {key: value for key, value in one.items() if key != "seq"} for one in chain.read(folder / series_record.NAME)
    ]
    for one in lines:
        if one["kind"] == series_record.STARTED:
            one["model"]["identity"] = {"kind": "local", "weights": WEIGHTS[one["snapshot"]]}
    with chain.Writer(own / series_record.NAME) as writer:
        writer.append(lines)
    part = {"a": 0.2, "b": 0.0, "interval": [0.1, 0.3]}
    traced = {
        "alarm": {"snapshot": "2026-W23", "axis": "neutral-control", "metric": "length"},
        "subject": dict(zip("ab", WEIGHTS.values(), strict=True)),
        "named": [{"head": "L1H2"}],
        "together": {"value": 0.6, "interval": None},
        "control": None,
        "compared": [{"head": "L1H2", "became": "lost", **part}, {"head": "L0H3", "became": "gained", **part}],
    }
    results_io.write(own / "trace" / "one" / drift_trace.FILE, completed("170", **traced))
    return [own / f"manifest-{name}.json" for name in WEIGHTS]


def test_heads_are_those_of_the_trace_between_the_same_weights_in_this_direction(folder, tmp_path) -> None:
    before, after = with_weights(folder, tmp_path / "drift" / "prod")
    document, output = between(before, after), io.StringIO()
    drift_comparison.show(document, Console(file=output, width=200))
    assert document["heads"][0]["named"] == ["L1H2"] and len(document["heads"]) == 1
    assert "lost: L1H2 +0.20 -> +0.00" in output.getvalue() and "gained: L0H3" in output.getvalue()
    assert between(after, before)["heads"] == []


def test_what_cannot_be_compared_is_refused(folder, tmp_path) -> None:
    strange = tmp_path / "drift" / "strange"
    with chain.Writer(strange / series_record.NAME) as writer:
        week(writer, "2026-W40", [line("2026-W40", f"q{p}", s) for p in range(12) for s in range(6)])
        week(
            writer,
            "2026-W41",
            [line("2026-W41", f"p{p}", s, prompt_hash="another") for p in range(12) for s in range(6)],
        )
        week(writer, "2026-W42", grid("2026-W42", plain), markers=["never"])
    named = {number: strange / f"manifest-2026-W{number}.json" for number in (40, 41, 42, 43)}
    for b, said in (
        (folder, "a and b are both the snapshot 2026-W23"),
        (named[40], "2026-W23 and 2026-W40 have no prompt in common"),
        (named[41], "2026-W23 and 2026-W41 were asked other texts as p0@1"),
        (named[42], "a refusal begins with ['no'] in 2026-W23"),
        (named[43], "is about no finished snapshot; those of"),
        (tmp_path / "manifest-2026-W22.json", "has no run_log.jsonl, where the outputs are"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            between(folder, b)


@pytest.mark.slow
def test_a_snapshot_beside_a_run_is_one_sentence_and_writes_nothing(folder, tmp_path) -> None:
    results = tmp_path / "results"
    for a, b in ((folder, tmp_path), (tmp_path, folder)):
        done, written = compared(f"a={a}", f"b={b}", results=results)
        assert (done.code, written, done.errors.count("\n")) == (2, [], 1)
        assert f"{tmp_path} is not a series of drift and the other side is one" in done.errors
    assert not results.exists()
