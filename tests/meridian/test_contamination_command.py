"""`run.py contamination`: items in a corpus with their place and accuracies; loss gaps and canaries; what is refused."""

from __future__ import annotations

import json

import pytest

import result_schemas
import results_io
from suites import declaration, runner
from suites.contamination import accuracy, overlap
from tests.commandline import command
from tests.suites.scripted import ScriptedModel

SUITE = "a13_distractor_color"


def records(path):
    document = results_io.read(path)
    assert result_schemas.fault(document) is None and result_schemas.form_of(document) is not None
    return {one["metric_id"]: one for one in document["records"]}


@pytest.fixture
def corpus(tmp_path):
    """The first 30 items of the suite as records, between others."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    items = declaration.load(SUITE).items[:30]
    lines = [json.dumps({"id": k, "text": f"so {item.prompt} it was"}) for k, item in enumerate(items)]
    (folder / "pages.jsonl").write_text("\n".join([json.dumps({"text": "nothing of it"}), *lines]))
    (folder / "picture.png").write_bytes(b"\x00")
    return folder


@pytest.mark.slow
def test_a_corpus_that_holds_some_items(corpus, tmp_path):
    results, suite = tmp_path / "results", declaration.load(SUITE)
    held = {item.id for item in suite.items[:30]}
    # this model is right on what the corpus holds, and on every third of the others
    script = {
        item.prompt: item.answers[0] if item.id in held or place % 3 == 0 else "nothing"
        for place, item in enumerate(suite.items)
    }
    runner.run([suite], ScriptedModel(script), results / "pocket" / "suites" / SUITE, say=lambda line: None)
    settings = ("model=pocket", "contamination.most_embedded=0", f"results={results}")
    done = command("contamination", f"corpus={corpus}", f"suite={SUITE}", *settings)
    assert done.code == 0, done.errors
    assert "compared by shingles alone" in done.said and "An overlap shows" in done.said
    folder = results / "pocket" / "contamination" / SUITE
    found = records(folder / "191_overlap.json")
    data = results_io.read(folder / "191_overlap.json")["data"]["suites"][SUITE]
    first = data["flagged"][0]
    assert (first["file"], first["record"], first["offset"]) == ("pages.jsonl", 2, 1) and data["run"]["run_id"]
    assert {one["item"] for one in data["flagged"]} >= {
        item.id for item in suite.items[:30] if len(overlap.tokens(item.prompt)) >= 8
    }
    dirty, clean = found[f"K.overlap.{SUITE}.accuracy_dirty"], found[f"K.overlap.{SUITE}.accuracy_clean"]
    assert dirty["value"] > 0.9 and clean["value"] < 0.6
    difference = found[f"K.overlap.{SUITE}.accuracy_difference"]
    assert difference["value"] == pytest.approx(dirty["value"] - clean["value"]) and difference["ci"]["low"] > 0
    near = results_io.read(folder / "192_near_duplicates.json")
    assert {one["item"] for one in near["data"]["suites"][SUITE]} >= held and near["data"]["cosine"] is None
    assert records(folder / "192_near_duplicates.json")["K.near_duplicates.sensitivity"]["n"] == 40


def test_accuracies_are_of_the_latest_run_and_of_items_as_they_are(tmp_path):
    suite = declaration.load("a13_distractor_color")
    assert accuracy.latest(tmp_path, suite) is None
    right = {item.prompt: item.answers[0] for item in suite.items}
    for folder, script in (("suites", right), (f"suites/{suite.id}", dict.fromkeys(right, "no"))):
        runner.run([suite], ScriptedModel(script, name=folder), tmp_path / folder, say=lambda line: None)
    found = accuracy.latest(tmp_path, suite)
    assert found.folder == tmp_path / f"suites/{suite.id}" and set(found.correct.values()) == {False}
    scores = tmp_path / f"suites/{suite.id}" / "scores.jsonl"
    lines = [json.loads(line) for line in scores.read_text().splitlines()]
    lines[0]["item_hash"] = "0" * 64  # an item that was edited since
    scores.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert len(accuracy.latest(tmp_path, suite).correct) == len(suite.items) - 1


@pytest.mark.slow
def test_pocket_is_probed_and_its_own_words_are_no_guid(tmp_path):
    fresh = tmp_path / "fresh.jsonl"
    words = [(name, place) for name in "John Tom Paul Luke Adam".split() for place in "zoo park bank farm".split()]
    made = [
        {
            "item": f"{name} {place}",
            "original": f"At the {place}, Mary and {name} found a ring",
            "paraphrase": f"Mary and {name} found a ring at the {place}",
        }
        for name, place in words
    ]
    fresh.write_text("".join(f"{json.dumps(one)}\n" for one in made))
    done = command(
        *("contamination", "do=probe", "suite=a11_templates_ioi", "model.device=cpu"),
        f"contamination.fresh={fresh}",
        f"results={tmp_path}/r",
    )
    assert done.code == 0, done.errors
    folder = tmp_path / "r" / "pocket" / "contamination" / "a11_templates_ioi"
    gaps = records(folder / "193_loss_gap.json")
    own = gaps["K.loss_gap.a11_templates_ioi.gap"]
    assert (own["n"], own["role"], own["ci"] is not None) == (60, "descriptive", True)
    assert gaps["K.loss_gap.a11_templates_ioi.beyond_fresh"]["n"] == 80
    exposure = records(folder / "194_canary.json")["K.canary.a11_templates_ioi.exposure"]
    assert (exposure["status"], exposure["value"]) == ("not_applicable", None)
    same = command(
        "contamination",
        "do=probe",
        "suite=a11_templates_ioi",
        "contamination.reference=pocket",
        f"results={tmp_path}/s",
    )
    assert same.code == 2 and "contamination.reference=pocket is the model itself" in same.errors


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["suite=a15_codeword"], "contamination needs corpus="),
        (["corpus=nowhere", "suite=a15_codeword"], "the corpus nowhere is no folder"),
        (["corpus=."], "contamination needs suite="),
        (["do=dance", "suite=all"], "contamination do=dance is unknown"),
        (["do=probe"], "contamination needs suite="),
        (["do=probe", "suite=file"], "suite=file needs suite.path"),
        (["do=probe", "suite=all", "contamination.paraphrases=none.jsonl"], "none.jsonl cannot be read"),
        (["corpus=.", "suite=a15_codeword", "contamination.most_embedded=-1"], "most_embedded=-1 is out of range"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(typed, said, tmp_path):
    done = command("contamination", *typed, f"results={tmp_path}/results")
    assert done.code == 2 and said in done.errors and done.errors.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_a_reference_that_is_not_there_is_named_by_its_own_setting(tmp_path):
    found = command(
        "contamination",
        "do=probe",
        "suite=a08_unanswerable",
        f"contamination.reference={tmp_path / 'none'}",
        f"results={tmp_path}",
    )
    assert found.code == 2 and "contamination.reference" in found.errors and "model.path" not in found.errors
