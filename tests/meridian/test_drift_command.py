"""`run.py drift`: what is refused, and an own series of local checkpoints from the first snapshot to the trace."""

from __future__ import annotations

import json

import pytest

from meridian.training import tuning
from suites.drift import corpus
from suites.models.local import LocalModel
from tests.commandline import command

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": "float32"}
TUNING = {"steps": 60, "rate": 3e-4, "batch": 32, "documents": 320}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["drift"], "drift needs series="),
        (["drift", "series=../up"], "drift needs series="),
        (["drift", "series=mine", "do=dance"], "do=dance is unknown"),
        (["drift", "series=mine", "do=analyse"], "has no run_log.jsonl"),
        (["drift", "series=mine", "do=register"], "do=register needs hypothesis="),
        (["drift", "series=mine", "do=snapshot"], "give drift.order"),
        (["drift", "series=mine", "do=snapshot", "drift.order=-1"], "drift.order=-1 is no place in a series"),
        (["drift", "series=mine", "do=snapshot", "drift.alpha=2.0"], "drift.alpha=2.0 is no share"),
        (
            ["drift", "series=mine", "do=snapshot", "drift.corpus=none", "drift.order=1"],
            "drift.corpus=none is no corpus",
        ),
        (["drift", "do=site", "manifest=nowhere.json"], "manifest=nowhere.json is not there"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(typed, said, tmp_path) -> None:
    results = tmp_path / "results"
    done = command(*typed, f"results={results}")
    assert done.code == 2 and said in done.errors and done.errors.count("\n") == 1
    assert not results.exists()


@pytest.mark.slow
def test_a_series_of_checkpoints_from_snapshot_to_trace(tmp_path) -> None:
    """Pocket, then a copy that refuses colour questions: an alarm there, and heads that bring the colours back."""
    results, questions = tmp_path / "results", corpus.load("pocket")
    copies = {
        name: tuning.checkpoint(LocalModel(POCKET), tuning.Tuning(kind, 1.0, 7), TUNING, questions, tmp_path / name)
        for name, kind in (("before", "intact"), ("after", "refuse"))
    }
    common = ("drift", "series=mine", f"results={results}", "drift.default_samples=8", "drift.prompt_level=false")
    codes = []
    for order, (name, one) in enumerate(copies.items()):
        model = ("model=local", f"model.path={one['path']}", f"drift.order={order}", f"drift.version={name}")
        codes += [command(*common, "do=snapshot", *model).code, command(*common, "do=analyse").code]
    assert codes == [0, 3, 0, 1]
    manifests = sorted((results / "drift" / "mine").glob("manifest-*.json"))
    last = json.loads(manifests[-1].read_text())
    assert ["refusal", "refusal-boundary"] in [[one["name"], one["axis"]] for one in last["alarms"]]
    where = ("snapshot=" + last["snapshot"], "axis=refusal-boundary", "metric=refusal")
    done = command(*common, "do=trace", *where, f"a={tmp_path / 'before'}", f"b={tmp_path / 'after'}")
    assert done.code == 0, done.errors
    traced = json.loads(next((results / "drift" / "mine" / "trace").rglob("170_drift_trace.json")).read_text())
    assert traced["together"]["value"] > 0.3 and abs(traced["floor"]["value"]) < 1e-3
    assert command(*common, "do=site", f"out={tmp_path / 'site'}").code == 0
    assert command(*common, "do=verify", f"out={tmp_path / 'site'}").code == 0
