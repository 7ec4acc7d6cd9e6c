"""Suites, failures and the gate from the command line: files, exit codes, and one sentence for whatever is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import result_types
import results_io
from meridian import commandline
from result_schemas import mismatches
from suites.bridge import stored_pairs
from tests.commandline import SMALL, Outcome, command

SUITE = "a10_padding_pronoun"
NO_HEAD = "measurement.difference.minimum_share=0.9"  # none restores as much: the strongest head restores a quarter
FILES = {
    "110_padding.json",
    "121_likelihood.json",
    "131_taxonomy_coverage.json",
    "132_trace_pairs.json",
    "generations.jsonl",
    "generations.sqlite",
    "report.html",
    "scores.jsonl",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def finished(results) -> Outcome:
    """One small suite on pocket."""
    return command(f"suite={SUITE}", f"results={results}")


@pytest.fixture(scope="module")
def folder(finished, results) -> Path:
    return results / "pocket" / "suites" / SUITE


def refusal(*arguments: str) -> str:
    """The one line that the command ends with; exit code 2."""
    outcome = command(*arguments)
    assert outcome.code == commandline.USER_ERROR == 2
    assert outcome.errors.count("\n") == 1 and "Traceback" not in outcome.errors
    return outcome.errors.strip()


# --- the command line ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["task=failures"], ["task=failures", "circuit=traced"]),
        (["task=failures", "circuit=discovered"], ["task=failures", "circuit=discovered"]),
        (["task=failures", "calibration=c11"], ["task=failures", "select=c11", "circuit=traced"]),
        (["task=failures", "method=atp"], ["task=failures", "circuit.method=atp", "circuit=traced"]),
        (["task=ioi"], ["task=ioi"]),
        (["gate", "baseline=a b", "candidate=c"], ["command=gate", 'baseline="a b"', "candidate=c"]),
        (["suite=all"], ["suite=all"]),
    ],
)
def test_failures_imply_the_traced_circuit(given, passed) -> None:
    assert commandline.arguments(given) == passed


# --- a suite -------------------------------------------------------------------------------------------------------


def test_a_suite_runs_and_leaves_its_files(finished, folder) -> None:
    assert (finished.code, finished.errors) == (0, "")
    assert {path.name for path in folder.iterdir()} == FILES
    assert f"Report {folder / 'report.html'}" in finished.output


def test_the_results_have_the_fields_of_their_types(finished, folder) -> None:
    types = {
        "110": result_types.FailureMode,
        "121": result_types.ChoiceLikelihoods,
        "131": result_types.TaxonomyCoverage,
    }
    for number, data in types.items():
        document = results_io.read(next(folder.glob(f"{number}_*.json")))
        assert list(mismatches(document, result_types.SuitesResult, number)) == []
        assert list(mismatches(document["data"], data, number)) == []
    pairs = results_io.read(stored_pairs.path_of(folder))
    assert list(mismatches(pairs, result_types.TracePairsResult, "132")) == []


def test_the_pairs_on_record_are_those_that_the_summary_counts(finished, folder) -> None:
    document = results_io.read(stored_pairs.path_of(folder))
    (found,) = document["records"]
    assert found["traceable"] + sum(found["rejected"].values()) == found["failures"]
    assert document["n"] == {"failures": found["failures"], "pairs": found["traceable"]}
    mode = results_io.read(folder / "110_padding.json")["data"]["suites"][SUITE]
    assert mode["counts"]["failed"] == found["failures"]
    (row,) = [line.split() for line in finished.output.splitlines() if line.startswith(f"{SUITE}  A10")]
    assert row[2:4] == [str(found["failures"]), str(found["traceable"])]


def test_the_summary_ends_with_the_command_that_goes_on(finished, results) -> None:
    lines = finished.output.splitlines()
    (place,) = [place for place, line in enumerate(lines) if line.startswith("Next: ")]
    assert lines[place] == f"Next: python run.py task=failures calibration=all results={results}"
    assert lines[place + 1] == f"traces the largest group, {SUITE}; task.group=<suite> another"


@pytest.mark.slow
def test_the_same_suite_again_asks_nothing_and_writes_the_same(finished, folder, results) -> None:
    kept = {name: (folder / name).read_bytes() for name in FILES if name.endswith((".json", ".jsonl"))}
    again = command(f"suite={SUITE}", f"results={results}")
    assert again.code == 0 and "0 outputs asked, 300 known before" in again.said
    assert {name: (folder / name).read_bytes() for name in kept} == kept


@pytest.mark.slow
def test_what_cannot_be_a_suite_is_refused(tmp_path) -> None:
    known = len(commandline.choices("suite"))
    assert refusal("suite=q", f"results={tmp_path}") == f"suite=q is unknown; use one of the {known} in configs/suite/"
    assert refusal("suite=a10_paddin_ioi", f"results={tmp_path}").startswith(
        "suite=a10_paddin_ioi is unknown; did you mean a10_padding_ioi"
    )
    assert refusal("suite=file", f"results={tmp_path}") == (
        "suite=file needs suite.path; give the folder that holds suite.yaml and its lock"
    )


@pytest.mark.slow
def test_an_edited_result_is_named_and_written_anew_or_refused(folder, results, tmp_path) -> None:
    own = shutil.copytree(results, tmp_path / "r") / folder.relative_to(results)
    for name in ("110_padding.json", "132_trace_pairs.json"):
        text = (own / name).read_text()
        assert text.count('"kind": "behaviour"') == 1
        (own / name).write_text(text.replace('"kind": "behaviour"', '"kind": "behavior"'))
    edited = "was edited after it was written: its digest is of another content"
    assert refusal("task=failures", f"task.group={SUITE}", f"results={tmp_path / 'r'}") == (
        f"{own / '132_trace_pairs.json'} {edited}; run `python run.py suite={SUITE} results={tmp_path / 'r'}` again"
    )
    outcome = command(f"suite={SUITE}", f"results={tmp_path / 'r'}")
    named = f"{own}: 110_padding.json, 132_trace_pairs.json: each {edited}"
    assert outcome.code == 0 and named in outcome.said
    for name in FILES - {"generations.sqlite"}:
        assert (own / name).read_bytes() == (folder / name).read_bytes()


# --- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_failures_without_a_record_are_refused_with_the_command_that_makes_one(tmp_path) -> None:
    assert refusal("task=failures", f"results={tmp_path}") == (
        f"no failures are on record in {tmp_path}/pocket/suites; run `python run.py suite=all results={tmp_path}` first"
    )
    named = refusal("task=failures", "task.group=a13_distractor_color", f"results={tmp_path}")
    assert named.endswith(f"run `python run.py suite=a13_distractor_color results={tmp_path}` first")


@pytest.mark.slow
def test_a_group_without_failures_is_refused(folder, results) -> None:
    sentence = refusal("task=failures", "task.group=a01_json_extraction", f"results={results}")
    assert sentence == (
        f"task.group=a01_json_extraction has no failures of pocket on record; with traceable ones: {SUITE}"
    )


@pytest.mark.slow
def test_failures_of_other_weights_are_refused(folder, tmp_path) -> None:
    other = tmp_path / "pocket" / "suites" / SUITE
    other.mkdir(parents=True)
    document = results_io.read(stored_pairs.path_of(folder))
    document["subject"]["model"]["weights"] = "f" * 64
    results_io.write(stored_pairs.path_of(other), document)
    assert "are of weights ffffffff, and the model now has" in refusal("task=failures", f"results={tmp_path}")


def test_the_traced_circuit_is_about_failures_alone(tmp_path) -> None:
    assert refusal("circuit=traced", "task=ioi", f"results={tmp_path}") == (
        "circuit=traced is about failures; run it with task=failures, or leave it out"
    )


@pytest.mark.slow
def test_failures_that_no_head_carries_are_traced_and_not_certified(folder, results) -> None:
    outcome = command("task=failures", "calibration=c11", NO_HEAD, f"results={results}")
    assert (outcome.code, outcome.errors) == (0, "")
    assert "so no head is named No component hypothesis, so nothing to certify " in outcome.said
    (traced,) = (results / "pocket" / "failures").rglob("*.json")
    document = results_io.read(traced)
    assert (document["number"], document["named"], document["circuit_sha256"]) == ("141", [], None)
    assert list(mismatches(document, result_types.TraceResult, "141")) == []
    assert document["group"]["suite"] == SUITE and document["group"]["pairs"] >= 20
    assert document["data"]["limits"]["everything"] == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_a_certificate_about_failures_is_folded_again_with_the_verdicts_on_its_heads(folder, tmp_path) -> None:
    own = shutil.copytree(folder, tmp_path / "pocket" / "suites" / SUITE).parents[2]
    few = [one for one in SMALL if one.startswith(("measurement.", "model."))]
    ran = command("task=failures", "calibration=all", *few, f"results={own}")
    (path,) = (own / "pocket" / "failures").rglob("certificate.json")
    assert ran.code == 0 and "on the confirmation half: confirmed" in ran.said
    stored = results_io.read(path)
    walked = command("verify", f"from='{path.parent}'")
    assert walked.code == 0 and f"verdicts: folded again, the same tier ({stored['tier']} of 4)\n" in walked.output
    content = {name: value for name, value in stored.items() if name != results_io.DIGEST}
    content["behaviour"]["carriers"][0]["verdict"] = "refuted"
    results_io.write(path, content)
    walked = command("verify", f"from='{path.parent}'")
    assert walked.code == 1 and f"{path} has another behaviour than its calibrations give" in walked.said


@pytest.mark.slow
def test_what_no_longer_has_a_hypothesis_loses_what_was_concluded_about_it(folder, results) -> None:
    command("task=failures", "calibration=c11", NO_HEAD, f"results={results}")
    (traced,) = (results / "pocket" / "failures").rglob("141_trace.json")
    old = ("certificate.json", "circuit.yaml", "142_carriers.json")
    for name in (*old, "01_baseline.json"):
        (traced.parent / name).write_text("{}")
    kept = traced.read_bytes()
    outcome = command("task=failures", "calibration=c11", NO_HEAD, f"results={results}")
    assert outcome.code == 0 and "No component hypothesis, so nothing to certify\n" in outcome.output
    assert not any((traced.parent / name).exists() for name in old)
    assert (traced.parent / "01_baseline.json").exists() and traced.read_bytes() == kept
    (traced.parent / "01_baseline.json").unlink()


# --- the gate ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_gate_needs_two_folders(folder) -> None:
    assert refusal("gate").startswith("gate needs baseline=; give the folder of a finished suite run")
    assert refusal("gate", f"baseline={folder}").startswith("gate needs candidate=")
    assert "no scores.jsonl" in refusal("gate", f"baseline={folder}", f"candidate={folder.parent}")


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "code", "word"), [(0.05, 3, "inconclusive"), (0.3, 0, "pass")])
def test_a_run_is_as_good_as_itself_where_its_items_can_show_the_margin(margin, code, word, folder) -> None:
    outcome = command("gate", f"baseline={folder}", f"candidate={folder}", f"gate.margin={margin}")
    assert (outcome.code, outcome.errors) == (code, "")
    assert outcome.output.rstrip().endswith(f"verdict: {word}")
    document = results_io.read(folder / "151_regression_gate.json")
    assert (document["verdict"], document["exit_code"]) == (word, code)
    assert {(one["value"], one["p_value"]) for one in document["records"]} == {(0, 1)}
    (folder / "151_regression_gate.json").unlink()


def test_a_run_that_became_worse_fails_the_gate(folder, tmp_path) -> None:
    worse = tmp_path / "worse"
    worse.mkdir()
    shutil.copy(folder / "scores.jsonl", worse)
    lines = [json.loads(line) for line in (worse / "scores.jsonl").read_text().splitlines()]
    for line in lines:
        if line["detection"]["failed"] is False:
            line["detection"]["failed"] = True
            line["outcomes"][0]["correct"] = False
    (worse / "scores.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    outcome = command("gate", f"baseline={folder}", f"candidate={worse}")
    assert (outcome.code, outcome.errors) == (1, "")
    assert outcome.output.rstrip().endswith("verdict: fail")
