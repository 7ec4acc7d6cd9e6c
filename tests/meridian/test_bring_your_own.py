"""Tasks from a file on the command line: every command of the page, the same bytes from any format, what becomes stale."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import meridian
from circuits import circuit as circuit_files
from circuits.circuit import Circuit, Role, head
from circuits.tasks import file
from meridian import in_process, tier_minimums
from results_io import UserError
from tests.circuits.file_rows import FRAMES, as_csv, as_jsonl, ioi_rows
from tests.commandline import ROOT, Outcome, command, started

PAGE = ROOT / "docs" / "bring-your-own.md"
QUICK = (
    "model.device=cpu",
    "measurement.random_circuits=20",
    "measurement.companion_prompts=10",
    "measurement.llc.draws=8",
    "measurement.discovery.stability.resamples=2",
    "measurement.discovery.stability.greedy_resamples=1",
)
DISCOVERED = ("circuit=discovered", "method=AtP")


def commands() -> list[list[str]]:
    """The arguments of every command of the page that runs here: quotes as a shell would take them away."""
    lines = re.findall(r"^    python run\.py (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in lines]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """A folder with the files that the page names, which commands run in."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lay_out(folder: Path) -> None:
    """Write the files that the page names."""
    rows = ioi_rows(40)
    as_csv(rows, folder / "mine.csv")
    as_csv(ioi_rows(45, FRAMES[1:2], seed=8), folder / "other.csv")
    nested = [
        {"prompt": r["clean"], "twin": {"prompt": r["corrupted"]}, "choices": [r["wrong"], r["answer"]], "key": 1}
        for r in rows
    ]
    as_jsonl(nested, folder / "other.jsonl")
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)}).save_to_disk(str(folder / "saved"))
    mib = [
        {
            "prompt": r["clean"],
            "metadata": {"indirect_object": r["answer"], "subject": r["wrong"]},
            "s2_io_flip_counterfactual": {"prompt": r["corrupted"]},
        }
        for r in rows
    ]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(mib)}).save_to_disk(str(folder / "mib_ioi"))
    roles = {"movers": Role((head(2, 0), head(2, 1), head(3, 0), head(3, 1)), evidence="by hand")}
    circuit_files.save(Circuit("mine", "file", "pocket", roles, {"kind": "user"}), folder / "mine.yaml")


def modified(results: Path) -> dict[Path, int]:
    """When each numbered result was written."""
    return {path: path.stat().st_mtime_ns for path in results.rglob("[0-9]*.json")}


def run(*arguments: str) -> Outcome:
    outcome = command(*arguments)
    assert outcome.code == 0, outcome.errors
    return outcome


def documents(results: Path) -> dict[str, bytes]:
    """Every JSON and circuit file below a folder of results, by its name."""
    return {path.name: path.read_bytes() for path in results.rglob("*") if path.suffix in (".json", ".yaml")}


# --- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_that_checks_says_what_the_rows_give(place) -> None:
    checks = [arguments for arguments in commands() if arguments[0] == "check"]
    assert len(checks) == 6
    for arguments in checks:
        outcome = run(*arguments, f"results={place / 'results'}")
        assert "rows: 40 of 40 can be used" in outcome.said, arguments
        assert "tiers: these rows allow tier 1 of 4 at most" in outcome.said
    assert not (place / "results").exists()


@pytest.mark.slow
def test_the_commands_that_measure_end_in_a_certificate_or_a_verdict(place) -> None:
    """Without the slow stages: the whole command is the slow test below."""
    measured = [arguments for arguments in commands() if arguments[0].startswith("task=")]
    assert len(measured) == 3
    companions, own = measured[1], measured[2]
    outcome = run(*companions, *DISCOVERED[1:], *QUICK, "results=results")
    (cross,) = Path("results").rglob("27_cross_task.json")
    tasks = json.loads(cross.read_text())["data"]["tasks"]
    other = file.named(file.rows_sha256(file.read("other.csv")))
    assert sorted(tasks) == sorted(["induction", other]) and len(tasks["induction"]["prompt_id"]) == 10
    assert "reference prompts: 12 of 16 are corrupted twins" in outcome.said
    run(*own, *QUICK, "results=own")
    (battery,) = Path("own").rglob("20_ablation_battery.json")
    found = json.loads(battery.read_text())
    assert found["data"]["circuit"]["task"] == found["subject"]["task"] == file.named(found["subject"]["rows_sha256"])


@pytest.mark.slow
def test_answers_of_several_tokens_are_named_and_scored_either_way(place) -> None:
    rows = [{**row, "answer": f"{row['answer']} gave", "wrong": f"{row['wrong']} to"} for row in ioi_rows(40)]
    as_csv(rows, place / "several.csv")
    asked = ("task=file", "task.path=several.csv")
    told = run("check", *asked).output
    assert "answers or foils of several tokens: 40 rows (line 2, 3, 4" in told and "at which they differ" in told
    assert "all their tokens" in run("check", *asked, "task.metric=sequence").output
    found = {}
    for metric in ("logit_difference", "sequence"):
        own = (f"task.metric={metric}", "circuit=file", "circuit.path=mine.yaml", "calibration=[c11]", *QUICK)
        run(*asked, *own, f"results={metric}")
        (path,) = Path(metric).rglob("01_baseline.json")
        found[metric] = json.loads(path.read_text())["data"]
    assert {name: one["metric"] for name, one in found.items()} == {name: name for name in found}
    first, whole = (found[name]["clean_logit_diff"] for name in ("logit_difference", "sequence"))
    assert len(first) == len(whole) and max(abs(a - b) for a, b in zip(first, whole, strict=True)) > 0.1
    assert found["sequence"]["clean_in_logits"] == pytest.approx(first, abs=1e-3)


@pytest.mark.slow
def test_forty_rows_become_a_certificate_in_the_page_s_one_command_and_in_its_five_lines(place, monkeypatch) -> None:
    (whole,) = [arguments for arguments in commands() if arguments[-1] == "calibration=all"]
    outcome = run(*whole, *QUICK, "results=results")
    (folder,) = {path.parent for path in Path("results").rglob("certificate.json")}
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["tier"] == 1 and certificate["subject"]["rows_sha256"] in outcome.said
    baseline = json.loads((folder / "01_baseline.json").read_text())["data"]
    assert sorted(baseline["row"]) == sorted(set(baseline["row"])) and len(baseline["row"]) == 28
    report = (folder / "report.html").read_text()
    assert "12 of 16 are corrupted twins" in report and certificate["subject"]["rows_sha256"] in report
    companions = json.loads((folder / "17_discriminant_validity.json").read_text())["records"][0]
    assert companions["verdict"] == "insufficient" and companions["needs"] == "2 companions"
    verified = command("verify", f"from={folder}", "task=file", "task.path=mine.csv", "model=pocket")
    assert verified.code == 0 and "prompts: drawn again, the same" in verified.said
    before, times = documents(Path("results")), modified(Path("results"))
    (block,) = re.findall(r"```python\n(.+?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(block.splitlines()) <= 5
    own = meridian.run
    monkeypatch.setattr(meridian, "run", lambda *asked, **given: own(*asked, *QUICK, results="results", **given))
    exec(block, named := {})
    assert named["run"].tier == 1 and named["run"].path.resolve() == folder.resolve()
    assert documents(Path("results")) == before and modified(Path("results")) == times  # the same subject: nothing anew


@pytest.mark.slow
def test_pairs_of_unequal_length_are_measured_where_spans_align_them(place) -> None:
    """The clean prompts are filled before "big" alone, and every other position has its word opposite in both prompts."""
    rows = [{**row, "corrupted": row["corrupted"].replace(" the ", " the big ", 1)} for row in ioi_rows(40)]
    as_csv(rows, place / "unequal.csv")
    asked = ("task=file", "task.path=unequal.csv")
    assert command("check", *asked).code == 2
    told = "alignment: 40 of 40 rows are filled where they differ in length with '<bos>', which the model reads"
    assert told in run("check", *asked, "task.align=spans").output
    mine = ("circuit=file", "circuit.path=mine.yaml", "calibration=[c11]", *QUICK)
    run(*asked, "task.align=spans", *mine, "results=spans")
    (path,) = Path("spans").rglob("01_baseline.json")
    found = json.loads(path.read_text())["data"]
    assert len(found["row"]) == 28 and set(found["template"]) == {
        "rows/16 tokens, filled 8 and nowhere, changed 2 4 8 11"
    }
    for example in found["examples"]:
        apart = [i for i, (a, b) in enumerate(zip(example["clean"], example["corrupted"], strict=True)) if a != b]
        assert apart == [2, 4, 8, 11] and (example["clean"][8], example["corrupted"][8]) == ("<bos>", "big")
        assert example["positions"] == {"changed_first": 2, "end": 15}
    assert (path.parent / "11_bootstrap_stability.json").is_file()


# --- identity --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes_and_stay_fresh_where_the_file_moves(place) -> None:
    """CSV, JSONL and Python; then moved and renamed: nothing is measured anew; with one word edited, all of it is."""
    shown = (*DISCOVERED, "calibration=[c11]", *QUICK)
    run("task=file", "task.path=mine.csv", *shown, "results=a")
    (place / "deep").mkdir()
    lines = as_jsonl(ioi_rows(40), place / "deep" / "anything.jsonl")
    run("task=file", f"task.path={lines}", *shown, "results=b")
    first = documents(Path("a"))
    assert {"01_baseline.json", "20_ablation_battery.json", "11_bootstrap_stability.json", "circuit.yaml"} <= set(first)
    assert documents(Path("b")) == first
    in_process.run(["task=file", "task.path=mine.csv", *shown], "c", show=False)
    assert documents(Path("c")) == first
    shutil.move("mine.csv", "moved.csv")
    times = modified(Path("a"))
    run("task=file", "task.path=moved.csv", *shown, "results=a")
    assert modified(Path("a")) == times
    rows = ioi_rows(40)
    as_csv([{**rows[0], "answer": rows[0]["answer"], "wrong": "Zoe"}, *rows[1:]], place / "moved.csv")
    run("task=file", "task.path=moved.csv", *shown, "results=a")
    assert len(list(Path("a/pocket").iterdir())) == 2  # two files of one name and other content


# --- check -----------------------------------------------------------------------------------------------------------


def test_check_names_every_row_that_is_left_out_by_its_line(place, monkeypatch) -> None:
    rows = ioi_rows(40)
    rows[3] = {**rows[3], "corrupted": rows[3]["corrupted"] + " the"}
    rows[7] = {**rows[7], "wrong": rows[7]["answer"]}
    rows[9] = {**rows[2]}
    rows[12] = {**rows[12], "answer": "Zebedee"}
    as_csv([*rows, *ioi_rows(2, FRAMES[4:5])], place / "bad.csv")
    from circuits import models

    monkeypatch.setattr(models, "identify", lambda settings: pytest.fail("the weights were read"))
    outcome = run("check", "task=file", "task.path=bad.csv", "results=results")
    told = dict(re.findall(r"^line (\d+) \(row \d+\) left out: (.+)$", outcome.output, re.MULTILINE))
    assert told["5"] == "clean has 15 tokens and corrupted 16; reword it"
    assert told["9"].startswith("has the answer ") and told["9"].endswith("which is also its foil; name another foil")
    assert told["11"] == "has the clean prompt of row 3 again; take one of them out"
    assert told["14"] == "answer 'Zebedee' is unknown to the tokenizer; use another word"
    assert sorted(told, key=int) == ["5", "9", "11", "14", "42", "43"]
    assert "is one of 2 rows of template" in told["42"]
    assert "rows: 36 of 42 can be used; 6 left out" in outcome.output
    assert not Path("results").exists()


def test_rows_that_are_left_out_are_never_written_over_the_rows(place) -> None:
    kept = as_csv(ioi_rows(40), place / "rows.csv").read_bytes()
    other = as_csv(ioi_rows(41), place / "other.csv").read_bytes()
    for name in ("./rows.csv", "other.csv"):
        outcome = command(
            "check", "task=file", "task.path=rows.csv", "task.companions=[other.csv]", f"check.left_out={name}"
        )
        assert outcome.code == 2 and "which is read; name another file, as this one would be lost" in outcome.errors
    assert (place / "rows.csv").read_bytes() == kept and (place / "other.csv").read_bytes() == other


@pytest.mark.slow
def test_check_counts_rows_of_one_kind_and_writes_all_of_them_only_if_asked(place) -> None:
    """Of 600 duplicates, 12 unequal pairs and 3 answers that are foils: one line, one line, three lines."""
    rows = ioi_rows(40)
    unequal = [
        {**row, "corrupted": row["corrupted"] + " the" * (1 + at % 3)} for at, row in enumerate(ioi_rows(12, seed=9))
    ]
    foils = [{**row, "wrong": row["answer"]} for row in ioi_rows(3, seed=10)]
    as_csv([*rows, *(rows[at % 40] for at in range(600)), *unequal, *foils], place / "many.csv")
    asked = ("check", "task=file", "task.path=many.csv")
    outcome = run(*asked)
    told = [
        "line 42 (row 41), line 43 (row 42), line 44 (row 43), line 45 (row 44), line 46 (row 45) and 595 more left out: has the "
        "clean prompt of row 1 again; take one of them out, or alike",
        "line 642 (row 641), line 643 (row 642), line 644 (row 643), line 645 (row 644), line 646 (row 645) and 7 more left out: "
        "clean has 15 tokens and corrupted 16; reword it, or alike",
        *(
            f"line {line} (row {line - 1}) left out: has the answer {row['answer']!r}, which is also its foil; name another foil"
            for line, row in enumerate(foils, 654)
        ),
    ]
    places = [outcome.said.index(sentence) for sentence in told]
    assert places == sorted(places) and outcome.said.count("left out: ") == len(told) == 5
    assert {path.name for path in place.iterdir()} >= {"many.csv"} and not (place / "all.txt").exists()
    outcome = run(*asked, "check.left_out=all.txt")
    written = (place / "all.txt").read_text().splitlines()
    assert len(written) == 615 and "all.txt: all 615 rows that are left out" in outcome.said
    assert written[0] == "line 42 (row 41): has the clean prompt of row 1 again; take one of them out"
    assert written[604] == "line 646 (row 645): clean has 15 tokens and corrupted 17; reword it"


@pytest.mark.slow
def test_a_companion_with_the_rows_of_the_task_or_of_another_companion_cannot_serve(place) -> None:
    """Whatever the files are called and written in; the run refuses what the check does."""
    as_jsonl(ioi_rows(40), place / "same.jsonl")
    as_jsonl(ioi_rows(45, FRAMES[1:2], seed=8), place / "twin.jsonl")
    asked = ("task=file", "task.path=mine.csv")
    for named, sentence, refusal in (
        ("same.jsonl", "its rows are those of the task itself", "mine.csv is named as its own companion"),
        ("mine.csv", "its rows are those of the task itself", "mine.csv is named as its own companion"),
        (
            "other.csv,twin.jsonl",
            "its rows are those of other.csv",
            "task.companions names twin.jsonl, which has the rows",
        ),
    ):
        outcome = command("check", *asked, f"task.companions=[{named}]")
        culprit = named.rpartition(",")[2]
        assert outcome.code == 2 and f"companion {culprit} cannot serve: {sentence}" in outcome.said
        outcome = command(*asked, f"task.companions=[{named}]", *DISCOVERED, "results=none")
        assert outcome.code == 2 and outcome.errors.startswith(refusal) and not (place / "none").exists()


@pytest.mark.slow
def test_check_exits_with_two_where_no_run_is_possible(place) -> None:
    as_csv(ioi_rows(3), place / "few.csv")
    outcome = command("check", "task=file", "task.path=few.csv")
    assert (
        outcome.code == 2
        and "No run is possible: none of the 3 rows can be used; line 2 is one of 3 rows" in outcome.said
    )
    assert outcome.output.count("left out: ") == 3
    refused = command("task=file", "task.path=few.csv", "results=results", *DISCOVERED)
    assert refused.code == 2 and refused.errors.startswith("none of the 3 rows can be used")
    assert not Path("results").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("task=file",), "task=file needs task.path, a CSV or JSONL file, or task.dataset, such as task.path=mine.csv"),
        (
            ("task=file", "task.path=mine.csv", "task.dataset=saved"),
            "task=file needs task.path, a CSV or JSONL file, or task.dataset, and",
        ),
        (("task=file", "task.path=none.csv"), "task.path=none.csv does not exist; give a CSV or JSONL file"),
        (
            ("task=file", "task.path=mine.csv", "task.chat=true"),
            "task.chat=true, and this tokenizer has no chat template",
        ),
        (("task=file", "task.path=mine.csv", "task.align=left"), "task.align=left is not done: padding on the right"),
        (
            ("task=file", "task.path=mine.csv", "task.companions=[inductoin]"),
            "task.companions names 'inductoin', which is neither",
        ),
        (("task=file", "task.path=mine.csv", "task.companions=induction"), "task.companions=induction is no"),
        (("task=ioi",), "check is about rows of yours, and task=ioi draws its own; run it with task=file"),
    ],
)
def test_what_check_refuses_the_run_refuses_too_in_one_sentence(place, arguments, sentence) -> None:
    for words in (("check",), ()) if arguments[0] == "task=file" else (("check",),):
        outcome = command(*words, *arguments, "results=results", *(() if words else DISCOVERED))
        assert outcome.code == 2 and outcome.errors.startswith(sentence), outcome.errors
        assert outcome.errors.count("\n") == 1 and not Path("results").exists()


@pytest.mark.slow
def test_larger_wordings_are_of_tasks_that_draw_their_prompts(place) -> None:
    outcome = command("task=file", "task.path=mine.csv", "prompts.templates=more", *DISCOVERED)
    assert outcome.code == 2 and outcome.errors.startswith(
        "prompts.templates=more is for tasks that draw their prompts"
    )


# --- tiers -----------------------------------------------------------------------------------------------------------


def test_tiers_are_those_that_the_calibrations_refuse_to_judge_without() -> None:
    every = tier_minimums.needs(started().settings)
    asked = {(need.tier, need.what): need.least for need in every}
    assert asked == {
        (1, tier_minimums.EVALUATION): 10,
        (1, tier_minimums.CLUSTERS): 2,
        (2, tier_minimums.EVALUATION): 90,
        (3, tier_minimums.EVALUATION): 30,
        (3, tier_minimums.TEMPLATES): 2,
        (3, tier_minimums.SMALLEST): 10,
        (4, tier_minimums.EVALUATION): 255,
        (4, tier_minimums.HELD_OUT): 90,
        (4, tier_minimums.WORDINGS): 6,
        (4, tier_minimums.COMPANIONS): 2,
    }
    have = {
        tier_minimums.EVALUATION: 90,
        tier_minimums.HELD_OUT: 40,
        tier_minimums.TEMPLATES: 2,
        tier_minimums.SMALLEST: 10,
        tier_minimums.WORDINGS: 1,
        tier_minimums.COMPANIONS: 0,
        tier_minimums.CLUSTERS: 90,
    }
    assert tier_minimums.reached(every, have) == 3
    assert tier_minimums.reached(every, {**have, tier_minimums.EVALUATION: 89}) == 1
    assert tier_minimums.reached(every, {**have, tier_minimums.EVALUATION: 9}) == 0
    assert tier_minimums.reached(every, {**have, tier_minimums.TEMPLATES: 1}) == 2
    assert tier_minimums.reached(every, dict.fromkeys(have, 1000)) == 4
    (_, four) = tier_minimums.sentences(every, have, file.SHARES)
    assert four.startswith(
        "tier 4 needs 255 evaluation rows (has 90; S3), 90 held-out rows (has 40; C16, C30), 6 wordings (has 1;"
    )
    assert "so about 330 rows more" in four  # (255 - 90) / .5
    told = tier_minimums.sentences(every, have, file.SHARES, {"name": "quick", "ceiling": 2})
    assert told == [
        "tiers: these rows allow tier 2 of 4 at most; whether it is reached, the verdicts say",
        "preset quick certifies tier 2 at most; leave it out for a higher one",
    ]


def test_a_setting_that_a_gate_reads_changes_what_a_tier_needs() -> None:
    every = tier_minimums.needs(started("calibration.s3.min_prompts=300", "calibration.c17.min_tasks_gate=5").settings)
    asked = {(need.tier, need.what): need.least for need in every}
    assert asked[4, tier_minimums.EVALUATION] == 300 and asked[4, tier_minimums.COMPANIONS] == 4


@pytest.mark.slow
def test_settings_of_rows_are_no_changed_rules_but_for_their_shares() -> None:
    from calibrations import rules

    plain = rules.rules_of(started("task=file", "task.path=a.csv").settings).settings
    chosen = rules.rules_of(
        started(
            "task=file", "task.path=b.csv", "task.companions=[induction]", "task.columns={clean: x}", "task.chat=true"
        ).settings
    ).settings
    assert chosen == plain
    other = rules.rules_of(started("task=file", "task.shares.evaluation=0.6").settings).settings
    assert [key for key in plain if plain[key] != other[key]] == ["task.shares.evaluation"]


def test_a_circuit_of_other_rows_is_refused_with_how_to_ask_it_anyway(place) -> None:
    roles = {"movers": Role((head(2, 0),))}
    circuit_files.save(Circuit("mine", "file-000000000000", "pocket", roles, {"kind": "user"}), place / "old.yaml")
    with pytest.raises(UserError, match=r"write task: file in it to ask it of these rows"):
        in_process.run(
            ["task=file", "task.path=mine.csv", "circuit=file", "circuit.path=old.yaml"], "results", show=False
        )


def test_a_check_names_every_row_that_cannot_be_read(place) -> None:
    lines = (place / "mine.csv").read_text().splitlines()
    lines[3] += ",more"
    lines[7] = "one cell"
    (place / "ragged.csv").write_text("\n".join(lines))
    outcome = command("check", "task=file", "task.path=ragged.csv")
    assert (
        outcome.code == 2
        and "No run is possible: 2 rows cannot be read (line 4 (row 3), line 8 (row 7)); correct" in outcome.output
    )
    assert (
        "line 4 (row 3) left out: has " in outcome.output and "line 8 (row 7) left out: has 1 cells" in outcome.output
    )


@pytest.mark.slow
def test_a_check_refuses_what_the_run_would(place) -> None:
    rows = [{**row, "cluster": "x"} for row in ioi_rows(40)]
    as_csv(rows, place / "one_cluster.csv")
    told = run("check", "task=file", "task.path=one_cluster.csv").output
    assert "these rows allow tier 0 of 4" in told and "2 clusters of evaluation rows (has 1; every interval)" in told
    (place / "bad.csv").write_text("clean,corrupted,answer\n")
    outcome = command("check", "task=file", "task.path=mine.csv", "task.companions=[bad.csv]")
    assert outcome.code == 2 and "name companions that can serve" in outcome.said
    (place / "t5").mkdir()
    shutil.copy(ROOT / "circuits" / "embedded" / "pocket" / "tokenizer.json", place / "t5")
    (place / "t5" / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    outcome = command("check", "task=file", "task.path=mine.csv", "model=local", "model.path=t5")
    assert outcome.code == 2 and "is an encoder-decoder" in outcome.errors


@pytest.mark.slow
def test_what_is_no_circuit_or_no_rows_is_one_sentence_and_leaves_nothing(place) -> None:
    for name, text in {"empty.yaml": "", "empty.json": " ", "note.txt": "a note, of words", "list.json": "[1]"}.items():
        (place / name).write_text(text)
    (place / "records.json").write_text(json.dumps(ioi_rows(40)))
    (place / "folder.json").mkdir()
    rows = ("task=file", "task.path=mine.csv")
    for arguments, sentence in {
        (
            *rows,
            "circuit=random",
        ): "circuit=random draws as many heads as a stored circuit has in each layer, and for rows",
        (*rows, "circuit=stored"): "rows of a file come with no circuit; run with circuit=discovered, which searches",
        (*rows, "circuit=file", "circuit.path=folder.json"): "folder.json is a folder; give the circuit file in it",
        (*rows, "circuit=file", "circuit.path=empty.json"): "empty.json is empty; export the graph again",
        (*rows, "circuit=file", "circuit.path=empty.yaml"): "empty.yaml is not a circuit file (it is empty)",
        (
            *rows,
            "circuit=file",
            "circuit.path=note.txt",
        ): "note.txt is not a circuit file (it holds a str in place of keys",
        (*rows, "circuit=file", "circuit.path=list.json"): "list.json holds a list, and a graph is keys with values",
        (
            "task=file",
            "task.path=folder.json",
            *DISCOVERED,
        ): "task.path=folder.json is a folder; give a CSV or JSONL file",
        (
            "task=file",
            "task.path=note.txt",
            *DISCOVERED,
        ): "note.txt, line 1 has no column clean (it has: a note, of words)",
        (
            "task=file",
            "task.path=records.json",
            *DISCOVERED,
        ): "records.json is one JSON list; write one object a line (JSONL)",
    }.items():
        outcome = command(*arguments, "calibration=[c11]", *QUICK, "results=none")
        assert outcome.code == 2 and outcome.errors.startswith(sentence), (arguments, outcome.errors)
        assert outcome.errors.count("\n") == 1 and not (place / "none").exists()


@pytest.mark.slow
def test_a_graph_of_another_shape_and_a_circuit_file_with_nonsense_are_refused(place) -> None:
    asked = ("task=file", "task.path=mine.csv", "circuit=file", "calibration=[c11]", *QUICK, "results=none")
    node = {"in_graph": True}
    graph = {"cfg": {"n_layers": 12, "n_heads": 12}, "nodes": {"a2.h0": node, "m1": node}, "edges": {}}
    (place / "graph.json").write_text(json.dumps(graph))
    outcome = command(*asked, "circuit.path=graph.json")
    assert outcome.code == 2 and "is a graph of 12 layers x 12 heads, and model pocket has 4 x 8" in outcome.errors
    text = (place / "mine.yaml").read_text()
    for name, (old, new) in {
        "provenance is 'by me'": (re.search(r"provenance:.*", text).group(), "provenance: by me"),
        "has sign 0": ("sign: 1", "sign: 0"),
        "has assigned_by 'zzz'": ("assigned_by: none", "assigned_by: zzz"),
    }.items():
        assert old in text
        (place / "bad.yaml").write_text(text.replace(old, new))
        outcome = command(*asked, "circuit.path=bad.yaml")
        assert outcome.code == 2 and name in outcome.errors, (name, outcome.errors)
    assert not (place / "none").exists()
