"""Behavioural p-values are corrected by family and apart from the circuits'."""

from __future__ import annotations

import pytest

import results_io
from calibrations import summary
from tests.result_samples import completed


def store(folder, number, name, records):
    results_io.write(folder / f"{number}_{name}.json", completed(number, id=name, records=records))


def record(metric, p, role="confirmatory", family="B", model="m", suite="s"):
    subject = {"model_fingerprint": model, "suite_hash": suite, "snapshot": None}
    return {"metric_id": metric, "p_value": p, "role": role, "family": family, "subject": subject}


def test_each_family_is_corrected_by_itself_over_confirmatory_records(tmp_path):
    one, two = tmp_path / "a" / "suites", tmp_path / "b" / "suites"
    store(one, "101", "x", [record("B.x", 0.01), record("B.x.mcnemar", 0.0001, role="exploratory")])
    store(one, "102", "y", [record("B.y", None), record("D.y", 0.04, family="D")])
    store(two, "101", "x", [record("B.x", 0.04, model="another")])
    found = summary.behaviour(tmp_path, alpha=0.05)
    assert sorted(found) == ["B", "D"]
    assert found["B"]["tests"] == 2 and found["B"]["without_p"] == 1
    assert found["B"]["adjusted_p"] == pytest.approx({"a/suites: B.x": 0.02, "b/suites: B.x": 0.04})  # BH by hand
    assert found["D"]["adjusted_p"] == pytest.approx({"a/suites: D.y": 0.04})  # not paying for family B


def test_a_suite_in_two_folders_is_one_test(tmp_path):
    found, base = [record("B.x", 0.001), record("B.y", 0.045), record("B.z", 0.06)], tmp_path / "m" / "suites"
    store(base, "101", "x", found)
    store(base / "a_suite", "101", "x", found[:1])
    store(base / "b_suite", "101", "x", [record("B.y", None), record("B.w", None)])
    pooled = summary.behaviour(tmp_path, alpha=0.05)["B"]
    assert (pooled["tests"], pooled["without_p"]) == (3, 1)
    # BH by hand: .001 * 3/1; min(.045 * 3/2, .06) and .06. With .001 twice it would be .001 * 4/2
    adjusted = {"m/suites: B.x": 0.003, "m/suites: B.y": 0.06, "m/suites: B.z": 0.06}
    assert pooled["adjusted_p"] == pytest.approx(adjusted)
    store(base / "c_suite", "101", "x", [record("B.x", 0.001, suite="edited")])
    assert summary.behaviour(tmp_path, alpha=0.05)["B"]["tests"] == 4


def test_two_gates_are_two_tests_and_a_copy_of_one_is_not(tmp_path):
    one = {"metric_id": "R.x", "p_value": 0.01, "role": "confirmatory", "family": "R"}
    for name, digest in (("a", "1"), ("copy", "1"), ("b", "2")):
        document = completed(
            "151", subject={"baseline": "x", "candidate": "y"}, inputs_sha256={"scores": digest}, records=[one]
        )
        results_io.write(tmp_path / name / "151_regression_gate.json", document)
    assert summary.behaviour(tmp_path, alpha=0.05)["R"]["tests"] == 2


def test_no_row_of_drift_can_say_that_it_is_confirmatory(tmp_path):
    # drift corrects its rows where it makes them: they have no family
    for role, reads in (("primary", True), ("exploratory", True), ("confirmatory", False)):
        path = tmp_path / role / "162_refusal.json"
        path.parent.mkdir()
        stored = {"schema_version": results_io.SCHEMA_VERSION, **completed("162", records=[{"role": role, "p": 0.01}])}
        results_io.write(path, stored)
        if reads:
            assert summary.behaviour(path.parent, alpha=0.05) == {}
        else:
            with pytest.raises(results_io.ResultError, match="has not the form of a result 162"):
                summary.behaviour(path.parent, alpha=0.05)


def test_results_of_circuits_are_none_of_its_business(tmp_path):
    results_io.write(tmp_path / "m" / "ioi" / "11_bootstrap.json", {"number": "11", "records": [{"p": 0.5}]})
    assert summary.behaviour(tmp_path, alpha=0.05) == {}
