"""The main job: five snapshots of pocket made from seeds, the table of their alarms, the site, and the trace of the first."""

from __future__ import annotations

import json

import pytest

import results_io
from meridian import drift_trace
from tests.commandline import command

FEW = ("drift.default_samples=8", "drift.zero_samples=1", "drift.prompt_level=false", "drift.resamples=1000")
FLAGGED = {  # of each later snapshot: what was planted in it, or taken out again. Tuning leaks, so others may be there too
    "c00001000": set(),
    "c00002000": {("refusal", "refusal-boundary")},
    "c00003000": {("refusal", "refusal-boundary"), ("length", "neutral-control")},
    "c00004000": {("length", "neutral-control"), ("silent_update", "neutral-control")},
}


@pytest.mark.slow
def test_the_demo_ends_with_alarms_a_site_and_the_heads_of_the_first_alarm(tmp_path) -> None:
    """With fewer samples than it ships with. The last snapshot is the model itself again, unsaid: exit code 1."""
    done = command("drift", "series=pocket-demo", f"results={tmp_path}", *FEW)
    assert (done.code, done.errors) == (1, "")
    folder = tmp_path / "drift" / "pocket-demo"
    manifests = {path.stem[9:18]: json.loads(path.read_text()) for path in sorted(folder.glob("manifest-*.json"))}
    assert list(manifests) == ["c00000000", *FLAGGED]
    for name, expected in FLAGGED.items():
        alarms = {(one["name"], one["axis"]) for one in manifests[name]["alarms"]}
        assert expected <= alarms and bool(alarms) == bool(expected), name
    refusal = next(one for one in manifests["c00002000"]["alarms"] if one["name"] == "refusal")
    assert refusal["difference"] > 0.9 and manifests["c00000000"]["alarms"] == []
    assert "Alarms" in done.said and (folder / "site" / "index.html").is_file()
    (path,) = folder.glob(f"trace/*/{drift_trace.FILE}")
    traced = drift_trace.read(path)
    assert traced["alarm"] == {
        "snapshot": manifests["c00002000"]["snapshot"],
        "axis": "refusal-boundary",
        "metric": "refusal",
    }
    assert {one["verdict"] for one in traced["named"]} == {"confirmed"} and len(traced["named"]) >= 5
    together, control = traced["together"], traced["control"]
    assert together and control and together["interval"] and together["interval"][0] > 0.5
    assert abs(control["value"]) < 0.1 and traced["control_status"] == "ok"
    assert "20 prompts changed their class" in done.said and "together 0.5" in done.said
    suite = folder / "trace" / path.parent.name / "suite"
    assert (suite / "suite.yaml").is_file() and results_io.read(path)["number"] == "170"
