"""A folder of suites' results and a run on failures as tables and figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import results_io
from meridian import paper
from meridian.figures import behaviour, plotly
from meridian.finished_run import FinishedRun
from meridian.run_folder import RunFolder
from meridian.suite_folder import SuiteFolder
from results_io import UserError
from tests.result_samples import completed


def record(rate: float, low: float, high: float, passed: bool | None) -> dict:
    ci = {"low": low, "high": high}
    name = "B.padding.a10.failure_rate"
    return {"metric_id": name, "suite": "a10", "n": 40, "value": rate, "ci": ci, "threshold": 0.1, "passed": passed}


def write_suite(folder: Path, *records: dict) -> SuiteFolder:
    suites = {"a10": {"worst": [{"item": "i1", "prompt": "asked", "output": "said"}]}}
    data = {"mode": "A10", "title": "Padding sensitivity", "suites": suites}
    results_io.write(folder / "110_padding.json", completed("110", data=data, records=list(records)))
    return SuiteFolder(folder)


def test_rates_are_the_stored_ones_and_the_figure_has_their_gate(tmp_path) -> None:
    other = {**record(0.5, 0.4, 0.6, None), "metric_id": "B.padding.a10.failure_rate_over_clusters"}
    found = write_suite(tmp_path, record(0.35, 0.22, 0.5, False), other)
    assert found.rates.loc["a10", ["rate", "low", "high", "gate", "n"]].tolist() == [0.35, 0.22, 0.5, 0.1, 40]
    assert len(found.rates) == 1 and found.failures["output"].tolist() == ["said"]
    figure = found.figure.figure
    assert figure.rows[0].below == 0.1 and figure.rows[0].verdict == "fail"
    assert figure == behaviour.failure_rates(found.documents)  # the report's own
    assert (figure.rows[0].low, figure.rows[0].high) == (0.22, 0.5)


def test_half_of_a_character_in_an_answer_is_written_out(tmp_path) -> None:
    suites = {"a10\udfff": {"worst": [{"item": "i1", "prompt": "asked", "output": "half \ud800", "span": [0, 3]}]}}
    data = {"mode": "A10", "title": "Padding sensitivity", "suites": suites}
    results_io.write(tmp_path / "110_padding.json", completed("110", data=data))
    (found,) = SuiteFolder(tmp_path).failures.to_dict("records")
    assert (found["suite"], found["output"], found["span"]) == ("a10\\udfff", "half \\ud800", [0, 3])
    SuiteFolder(tmp_path).failures.to_csv(tmp_path / "failures.csv")


@pytest.mark.parametrize(
    ("changes", "distrust", "verdict"),
    [
        ({"passed": True}, None, "pass"),
        ({"passed": False}, None, "fail"),
        ({"passed": None}, None, "inconclusive"),
        ({"passed": None, "ci": None, "n": 7}, None, "insufficient"),  # too few cases for an interval
        ({"passed": None}, "kappa below its target", "insufficient"),
        ({"passed": None, "threshold": None}, None, None),  # no gate, so nothing was judged
    ],
)
def test_a_verdict_is_that_of_the_gate(tmp_path, changes, distrust, verdict) -> None:
    suites = {"a10": {"worst": [], "gate": {"failure_rate": 0.1, "passed": None, "distrust": distrust}}}
    made = {**record(0.08, 0.02, 0.2, None), **changes}
    data = {"mode": "A10", "title": "Padding", "suites": suites}
    results_io.write(tmp_path / "110_padding.json", completed("110", data=data, records=[made]))
    (row,) = SuiteFolder(tmp_path).figure.figure.rows
    assert row.verdict == verdict and row.below == made["threshold"]
    shown = json.dumps(plotly.specification(SuiteFolder(tmp_path).figure.figure)).lower()
    assert "nan" not in shown


def test_without_a_rate_there_is_no_figure(tmp_path) -> None:
    with pytest.raises(UserError, match="so there is no rate"):
        _ = write_suite(tmp_path).figure


def test_carriers_in_the_report_name_the_level_of_their_simultaneous_intervals(tmp_path) -> None:
    named = [{"head": "L1H0", "restored": 0.5, "low": 0.3, "high": 0.7}]
    about = {"group": {"suite": "a10", "pairs": 30}, "subject": {"settings": {"difference": {"level": 0.8}}}}
    results_io.write(tmp_path / "141_trace.json", completed("141", named=named, **about))
    judged = [{"head": "L1H0", "restored": 0.4, "interval": [0.2, 0.6], "verdict": "refuted"}]
    results_io.write(tmp_path / "142_carriers.json", completed("142", records=judged))
    (figure,) = behaviour.failure_carriers(RunFolder(tmp_path))
    assert figure.level == 0.8 and "80% interval, simultaneous over all heads" in figure.caption
    ends = [(row.estimate, row.low, row.high, row.verdict) for row in figure.rows]
    assert ends == [(0.5, 0.3, 0.7, None), (0.4, 0.2, 0.6, "fail")]


def test_carriers_are_framed_on_one_half_and_judged_on_the_other(tmp_path) -> None:
    named = [{"head": "L1H0", "restored": 0.5, "low": 0.3, "high": 0.7}]
    traced = {
        "data": {"heads": {"names": ["L0H0", "L0H1", "L1H0", "L1H1"], "restored": [0.1, None, 0.5, -0.2]}},
        "named": named,
        "group": {"suite": "a10"},
    }
    results_io.write(tmp_path / "141_trace.json", completed("141", **traced))
    judged = [{"head": "L1H0", "restored": 0.4, "interval": [0.2, 0.6], "verdict": "confirmed"}]
    results_io.write(tmp_path / "142_carriers.json", completed("142", records=judged))
    found = FinishedRun(tmp_path).carriers
    assert found.figure.values == ((0.1, None), (0.5, -0.2)) and found.figure.marked == ((1, 0),)
    assert found.table["half"].tolist() == ["discovery", "confirmation"]
    assert found.table.loc[1, ["estimate", "low", "high", "verdict"]].tolist() == [0.4, 0.2, 0.6, "confirmed"]


def test_risk_against_coverage_is_drawn_from_121_with_what_holds_the_sla(tmp_path) -> None:
    """Risks at the smallest stored coverage that is large enough; the caption names the suites whose threshold holds."""
    curve = {"threshold": [0.7, None], "coverage": [0.5, 1.0], "risk": [0.1, 0.3]}
    thresholds = {
        "a10": {"status": "ok", "reason": "", "threshold": 0.72, "holds": True},
        "a11": {"status": "insufficient_data", "reason": "too few"},
    }
    data = {"risk_coverage": {"a10": curve}, "sla": 0.05, "threshold": thresholds}
    results_io.write(tmp_path / "121_likelihood.json", completed("121", data=data))
    (figure,) = behaviour.of_suites(tmp_path)
    assert figure.x[:2] == ("0.05", "0.10") and figure.x[-1] == "1.00" and len(figure.x) == 20
    (series,) = figure.series
    assert (series.label, series.y) == ("a10", (0.1,) * 10 + (0.3,) * 10)
    assert "A risk of 0.05" in figure.caption and "a10 above 0.72. Result 121" in figure.caption
    results_io.write(tmp_path / "131_taxonomy_coverage.json", completed("131"))
    settings = {"formats": ["svg"], "tables": [], "only": None, "width": "single", "titles": True, "theme": "light"}
    assert paper.write_suites(tmp_path, settings).figures == ["risk_coverage"]
    assert (tmp_path / "figures" / "risk_coverage.svg").stat().st_size > 1000
