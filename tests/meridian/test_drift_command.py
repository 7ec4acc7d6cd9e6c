"""`run.py drift`: what is refused, and an own series of local checkpoints from the first snapshot to the trace."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from meridian import drift_series
from meridian.training import tuning
from suites.drift import corpus, embeddings, pocket_prompts, series_record
from suites.log import chain
from suites.models.local import LocalModel
from suites.modes import embedding
from tests.commandline import command
from tests.suites.test_drift_analysis import line, week

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": "float32"}
TUNING = {"steps": 60, "rate": 3e-4, "batch": 32, "documents": 320}


@pytest.mark.sampled(12)
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


def test_a_week_in_which_the_endpoint_is_down_is_a_gap_on_the_site(tmp_path) -> None:
    results = tmp_path / "results"
    model = ("model=endpoint", "model.base_url=http://127.0.0.1:9/v1", "model.name=prod", "model.retries=0")
    done = command("drift", "series=prod", *model, f"results={results}")
    assert (done.code, done.errors) == (3, "")
    lines = chain.read(results / "drift" / "prod" / series_record.NAME)
    assert [line["kind"] for line in lines] == ["gap"]
    page = (results / "drift" / "prod" / "site" / "gaps.html").read_text()
    assert f"Report {results / 'drift' / 'prod' / 'report.html'}" in done.output
    assert lines[0]["snapshot"] in page and "127.0.0.1:9" in page and "a gap" in done.output


@pytest.mark.slow
def test_only_a_retired_prompt_is_revealed_and_what_was_committed_stays(tmp_path) -> None:
    """A prompt that the last snapshot asked is kept; one that it did not ask is published with its salt."""
    rows = [{**one, "salt": f"{n:064x}"} for n, one in enumerate(pocket_prompts.draw("of a test", 10))]
    old, kept = (f"{rows[n]['id']}@1" for n in (0, 1))
    path, folder = tmp_path / "old.yaml", tmp_path / "results" / "drift" / "prod"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    committed = corpus.commitments(path)["commitments"]
    with chain.Writer(folder / series_record.NAME) as writer:
        for name, keys in (("2026-W22", (old, kept)), ("2026-W23", (kept,))):
            asked = [line(name, key.removesuffix("@1"), 0) for key in keys]
            week(writer, name, asked, commitments={key: committed[key] for key in keys})
    common = ("drift", "series=prod", "do=reveal", f"drift.held_out={path}", f"results={tmp_path / 'results'}")
    refused = command(*common, f"snapshot={kept}")
    assert refused.code == 2 and "is not retired" in refused.errors
    assert not list(folder.glob("revealed-*"))
    assert command(*common, f"snapshot={old}").code == 0
    (published,) = folder.glob("revealed-*")
    found = json.loads(published.read_text())
    assert found["salt"] == rows[0]["salt"] and found["hmac_sha256"] == committed[old]["hmac_sha256"]
    rows[0]["prompt"] = "another question"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    assert "is not what was committed to" in command(*common, f"snapshot={old}").errors


def test_texts_that_a_kill_left_without_vectors_get_them_by_the_next_command(tmp_path, monkeypatch) -> None:
    """The snapshot was finished and its texts were not embedded yet: taking it again is refused and embeds them."""
    folder = tmp_path / "drift" / "prod"
    with chain.Writer(folder / series_record.NAME) as writer:
        week(writer, "2026-W22", [line("2026-W22", "p0", n, text) for n, text in enumerate(("red", "red", "blue"))])
    monkeypatch.setattr(embeddings, "identity", lambda: {"weights_sha256": "first"})
    monkeypatch.setattr(embedding, "embedder", lambda: lambda texts: np.ones((len(texts), 2)))
    assert (drift_series.embed(folder), drift_series.embed(folder)) == (2, 0)


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
