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
from tests.suites.test_drift_analysis import begun, line, week

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
        (["drift", "series=mine", "do=snapshot", "drift.alpha=2.0"], "drift.alpha=2.0 is not a share"),
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


# --- one corpus, and what is published of it --------------------------------------------------------------------------

FACTS = "factual-stability"


def natural_series(folder, second="The capital is Kyoto.", **identity) -> None:
    """Two weeks of three facts of the corpus natural at temperature 0; in the second week the first answer may be another."""
    asked = corpus.load("natural")
    public = [{**prompt.frozen, "hash": prompt.hash, "answer": prompt.answer} for prompt in asked.prompts]
    facts = [prompt for prompt in asked.prompts if prompt.axis == FACTS][:3]
    with chain.Writer(folder / series_record.NAME) as writer:
        for name, first in (("2026-W22", "The capital is Tokyo."), ("2026-W23", second)):
            said = (first, "The symbol of gold is Au.", "A hexagon has 6 sides.")
            rows = [
                line(name, prompt.id, sample, text, axis=FACTS, leg=leg, prompt_hash=prompt.hash)
                for prompt, text in zip(facts, said, strict=True)
                for leg in ("default", "zero")
                for sample in range(2)
            ]
            week(writer, name, rows, name="natural", markers=[], public=public, not_applicable={}, n=len(rows))


def traced(tmp_path, *more):
    asked = ("series=prod", "do=trace", "snapshot=2026-W23", f"axis={FACTS}", "metric=length")
    return command("drift", *asked, f"results={tmp_path}", *more)


def test_a_trace_asks_the_corpus_that_the_series_recorded(tmp_path) -> None:
    """Nothing was typed, and the default is pocket: Tokyo became Kyoto all the same. An endpoint's trace ends there."""
    natural_series(tmp_path / "drift" / "prod")
    done = traced(tmp_path)
    assert (done.code, done.errors) == (3, "")
    assert "1 prompts changed their class" in done.output and "fact-00@1: right -> wrong: The" in done.output
    assert "no activations" in done.output
    refused = traced(tmp_path, "drift.corpus=pocket")
    assert refused.code == 2 and refused.errors.count("\n") == 1
    assert "drift.corpus=pocket is not natural, which the series prod was asked" in refused.errors
    assert traced(tmp_path, "drift.corpus=natural").code == 3


def test_a_trace_of_what_did_not_change_ends_with_exit_code_3(tmp_path) -> None:
    """Other words around the same fact are no change of class."""
    natural_series(tmp_path / "drift" / "prod", "It is Tokyo, the capital.")
    done = traced(tmp_path)
    assert (done.code, done.errors) == (3, "") and "No output at temperature 0" in done.output


def test_manifests_name_the_corpus_of_the_series_and_are_enough_for_its_site(tmp_path) -> None:
    folder = tmp_path / "drift" / "prod"
    natural_series(folder)
    common = ("drift", "series=prod", f"results={tmp_path}", "drift.resamples=1000")
    assert command(*common, "do=analyse").code == 3  # three prompts are too few for a test
    manifest = json.loads((folder / "manifest-2026-W23.json").read_text())
    assert (manifest["settings"]["corpus"], manifest["subject"]["corpus"]["name"]) == ("natural", "natural")
    assert command(*common, "do=analyse", "drift.corpus=pocket").code == 2
    assert command(*common, "do=site", f"out={tmp_path / 'site'}").code == 0
    public = tmp_path / "site" / "data" / "2026-W23" / "manifest.json"
    done = command(
        "drift", "do=site", f"manifest={public}", f"out={tmp_path / 'again'}", f"results={tmp_path / 'none'}"
    )
    assert (done.code, done.errors) == (0, "") and not (tmp_path / "none").exists()
    for name in ("index.html", "methodology.html", f"axis-{FACTS}.html", "data/2026-W23/metrics.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "site" / name).read_bytes(), name
    damaged = tmp_path / "manifest.json"
    damaged.write_text(public.read_text()[:-200])
    refused = command("drift", "do=site", f"manifest={damaged}", f"out={tmp_path / 'never'}")
    assert refused.code == 2 and "is not JSON" in refused.errors and not (tmp_path / "never").exists()


def test_what_is_revealed_is_published_and_what_is_still_asked_is_not(tmp_path) -> None:
    """W22 asks both prompts, W23 the second alone, and W24 is killed after its header: the second is still kept."""
    rows = [{**one, "salt": f"{n:064x}"} for n, one in enumerate(pocket_prompts.draw("of a test", 10))]
    old, kept = (rows[n]["id"] for n in (0, 1))
    path, folder = tmp_path / "held-out.yaml", tmp_path / "drift" / "prod"
    path.write_text(yaml.safe_dump({"prompts": rows}))
    of_corpus = {"name": "mine", "commitments": corpus.commitments(path)["commitments"], "held_out": len(rows)}
    with chain.Writer(folder / series_record.NAME) as writer:
        for name, asked in (("2026-W22", (old, kept)), ("2026-W23", (kept,))):
            week(writer, name, [line(name, one, 0, split="held_out") for one in asked], **of_corpus)
        writer.append([begun("2026-W24", **of_corpus)])
    common = ("drift", "series=prod", f"results={tmp_path}", f"drift.held_out={path}", "drift.resamples=1000")
    refused = command(*common, "do=reveal", f"snapshot={kept}@1")
    assert refused.code == 2 and f"{kept}@1 is not retired" in refused.errors
    assert command(*common, "do=reveal", f"snapshot={old}@1").code == 0
    assert (
        command(*common, "do=analyse").code == 3 and command(*common, "do=site", f"out={tmp_path / 'site'}").code == 0
    )
    (shown,) = json.loads((tmp_path / "site" / "data" / "revealed.json").read_text())
    assert shown["prompt"]["messages"] == [{"role": "user", "content": rows[0]["prompt"]}]
    assert shown["salt"] == rows[0]["salt"] and "data/revealed.json" in (tmp_path / "site" / "index.html").read_text()
    again = ("drift", "do=site", f"manifest={tmp_path}/site/data/2026-W23/manifest.json", f"out={tmp_path / 'again'}")
    assert command(*again, f"results={tmp_path / 'none'}").code == 0
    public = [(tmp_path / one / "data" / "revealed.json").read_bytes() for one in ("site", "again")]
    assert public[0] == public[1]
    (stored,) = folder.glob("revealed-*.json")
    stored.write_text(stored.read_text().replace(rows[0]["prompt"], rows[1]["prompt"]))
    forged = command(*common, "do=site", f"out={tmp_path / 'site'}")
    assert forged.code == 2 and "is not what was committed to" in forged.errors


@pytest.mark.slow
def test_a_snapshot_whose_last_line_a_kill_tore_is_resumed_by_the_command(tmp_path) -> None:
    folder = tmp_path / "drift" / "mine"
    few = ("drift.default_samples=1", "drift.zero_samples=1")
    asked = ("drift", "series=mine", "do=snapshot", "model=pocket", "drift.order=1", *few, f"results={tmp_path}")
    assert command(*asked).code == 0
    content = (folder / series_record.NAME).read_bytes()
    (folder / series_record.NAME).write_bytes(content[: len(content) // 2])
    done = command(*asked)
    assert (done.code, done.errors) == (0, "") and "120 outputs, 0 failed" in done.said
    assert [one["kind"] for one in chain.read(folder / series_record.NAME)].count("recovery") == 1
