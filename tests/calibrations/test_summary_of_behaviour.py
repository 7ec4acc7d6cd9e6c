"""Behavioural p-values are corrected by family and apart from the circuits'."""

from __future__ import annotations

import pytest

import results_io
from calibrations import summary


def store(folder, number, name, records):
    results_io.write(folder / f"{number}_{name}.json", {"number": number, "id": name, "records": records})


def record(metric, p, role="confirmatory", family="B"):
    return {"metric_id": metric, "p_value": p, "role": role, "family": family}


def test_each_family_is_corrected_by_itself_over_confirmatory_records(tmp_path):
    one, two = tmp_path / "a" / "suites", tmp_path / "b" / "suites"
    store(one, "101", "x", [record("B.x", 0.01), record("B.x.mcnemar", 0.0001, role="exploratory")])
    store(one, "102", "y", [record("B.y", None), record("D.y", 0.04, family="D")])
    store(two, "101", "x", [record("B.x", 0.04)])
    found = summary.behaviour(tmp_path, alpha=0.05)
    assert sorted(found) == ["B", "D"]
    assert found["B"]["tests"] == 2 and found["B"]["without_p"] == 1
    assert found["B"]["adjusted_p"] == pytest.approx({"a/suites: B.x": 0.02, "b/suites: B.x": 0.04})  # BH by hand
    assert found["D"]["adjusted_p"] == pytest.approx({"a/suites: D.y": 0.04})  # not paying for family B


def test_results_of_circuits_are_none_of_its_business(tmp_path):
    results_io.write(tmp_path / "m" / "ioi" / "11_bootstrap.json", {"number": "11", "records": [{"p": 0.5}]})
    assert summary.behaviour(tmp_path, alpha=0.05) == {}
