"""Rows dealt to splits: none is empty where rows are few, every template has its means, and no scored prompt is in them."""

from __future__ import annotations

import random

import pytest

from circuits import prompts as prompt_sets
from circuits import study as studies
from circuits.engine.sources import MINIMUM_REFERENCE_PROMPTS
from circuits.tasks import file
from circuits.tasks.file import COMPANION_SHARES, Options
from results_io import UserError
from tests.circuits import toy
from tests.circuits.file_rows import FRAMES, as_csv, as_jsonl, ioi_rows

SIZES = {"discovery": 200, "groups": 40, "evaluation": 400, "held_out": 200, "reference": 360}
SCORED = ("evaluation", "held_out")


def sizes(task) -> dict[str, int]:
    return {name: len(examples) for name, examples in task.given.items()}


def rows_used(task) -> list[int]:
    return [task.source.row_of[example.id] for name in ("discovery", *SCORED) for example in task.given[name]]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (40, {"discovery": 8, "evaluation": 20, "held_out": 8, "reference": 16}),
        (100, {"discovery": 20, "evaluation": 50, "held_out": 20, "reference": 10}),
        (7, {"discovery": 1, "evaluation": 3, "held_out": 1, "reference": 5}),
    ],
)
def test_shares_of_few_and_of_many_rows(tokenizer, count, expected) -> None:
    task = file.load(ioi_rows(count), tokenizer)
    assert sizes(task) == expected
    used = rows_used(task)
    assert len(set(used)) == len(used)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("count", [5, 6, 8, 12, 17, 25, 33, 61])
@pytest.mark.parametrize("frames", [1, 2, 3])
def test_no_scored_prompt_is_in_the_means_and_every_template_has_enough(tokenizer, count, frames) -> None:
    task = file.load(ioi_rows(count * frames, FRAMES[:frames]), tokenizer)
    scored = {example.clean for name in SCORED for example in task.given[name]}
    references = [example.clean for example in task.given["reference"]]
    assert len(set(references)) == len(references) and not scored & set(references)
    assert not {example.clean for example in task.given["discovery"]} & scored
    for template in {example.template for examples in task.given.values() for example in examples}:
        assert sum(example.template == template for example in task.given["reference"]) >= MINIMUM_REFERENCE_PROMPTS
    assert all(sizes(task)[name] for name in ("discovery", *SCORED))


def test_the_order_of_the_rows_changes_no_split(tokenizer) -> None:
    rows = ioi_rows(50, FRAMES[:2])
    shuffled = random.Random(0).sample(rows, len(rows))
    first, second = (file.load(given, tokenizer) for given in (rows, shuffled))
    for name in first.given:
        assert {example.clean for example in first.given[name]} == {example.clean for example in second.given[name]}
    assert first.name != second.name  # their row numbers differ


def test_a_column_decides_where_there_is_one(tokenizer) -> None:
    names = ("discovery", "evaluation", "evaluation", "held_out", "reference")
    rows = [{**row, "split": names[place % 5]} for place, row in enumerate(ioi_rows(50))]
    task = file.load(rows, tokenizer)
    assert sizes(task) == {"discovery": 10, "evaluation": 20, "held_out": 10, "reference": 10}
    for name in task.given:
        unscored = name == "reference"  # whose answers nobody reads
        assert unscored or all(
            rows[task.source.row_of[example.id] - 1]["split"] == name for example in task.given[name]
        )
    assert "by the column split" in "".join(task.source.notes)
    with pytest.raises(UserError, match=r"^none of the 50 rows that can be used has the split held_out; give some of"):
        file.load([{**row, "split": row["split"].replace("held_out", "evaluation")} for row in rows], tokenizer)


def test_without_reference_rows_the_twins_of_discovery_rows_serve(tokenizer) -> None:
    names = ("discovery", "evaluation", "held_out")
    rows = [{**row, "split": names[place % 3]} for place, row in enumerate(ioi_rows(30))]
    task = file.load(rows, tokenizer)
    corrupted = {row["corrupted"] for row in rows if row["split"] == "discovery"}
    assert {example.clean for example in task.given["reference"]} == corrupted and len(corrupted) == 10
    (said,) = [note for note in task.source.notes if note.startswith("reference")]
    assert said == "reference prompts: 10 of 10 are corrupted twins of reference and discovery rows, as rows are few"


def test_a_twin_has_the_roles_of_the_same_tokens(tokenizer) -> None:
    """Names of other lengths stand in the corrupted prompt, so its characters are others."""
    task = file.load([{**row, "role.io": row["answer"]} for row in ioi_rows(20)], tokenizer)
    clean = prompt_sets.tokenize(task, task.given["evaluation"], tokenizer, "evaluation")
    means = prompt_sets.tokenize(task, task.given["reference"], tokenizer, "reference")
    for role in task.roles:
        assert set(means.positions[role].tolist()) == set(clean.positions[role].tolist()), role


def test_a_twin_that_is_a_scored_prompt_is_no_reference_prompt(tokenizer) -> None:
    """Of rows that are each other's corrupted prompts, as singular and plural are, only the clean ones can serve."""
    rows = ioi_rows(12)
    both = [
        *rows,
        *(
            {**row, "clean": row["corrupted"], "corrupted": row["clean"], "answer": "Mary", "wrong": "John"}
            for row in rows
        ),
    ]
    task = file.load(both, tokenizer)
    scored = {example.clean for name in SCORED for example in task.given[name]}
    assert not scored & {example.clean for example in task.given["reference"]}
    assert len(task.given["reference"]) >= MINIMUM_REFERENCE_PROMPTS


def test_a_template_with_too_few_rows_is_left_out_and_the_others_stay(tokenizer) -> None:
    rows = [*ioi_rows(20), *ioi_rows(3, FRAMES[3:4])]
    task = file.load(rows, tokenizer)
    assert sorted(task.source.left_out) == [21, 22, 23]
    (why,) = set(task.source.left_out.values())
    assert why.startswith("is one of 3 rows of template 'rows/") and why.endswith(
        "', too few for the 5 reference prompts that its means need beside a row to score; add rows like it"
    )
    assert len(rows_used(task)) + 2 == 20


def test_a_column_that_names_no_reference_rows_is_told_so(tokenizer) -> None:
    """There are rows enough, under another name; nobody is asked for more."""
    rows = [{**row, "split": "evaluation" if place else "reference"} for place, row in enumerate(ioi_rows(40))]
    with pytest.raises(UserError) as refused:
        file.load(rows, tokenizer)
    assert str(refused.value).endswith(
        "is one of 40 rows of template 'rows/15 tokens, changed 2 4 10', whose rows of split reference give 2 of the 5 reference "
        "prompts that its means need; give more of them the split reference"
    )


@pytest.mark.parametrize("count", [1, 2, 4])
def test_too_few_rows_for_any_run_are_refused_in_one_sentence(tokenizer, count) -> None:
    with pytest.raises(UserError) as error:
        file.load(ioi_rows(count), tokenizer)
    sentence = str(error.value)
    assert "\n" not in sentence and sentence.startswith(
        (f"none of the {count} rows can be used; line 1 is", f"{count} of the {count} rows")
    )


def test_a_companion_gives_most_of_its_rows_to_be_scored(tokenizer) -> None:
    task = file.load(ioi_rows(60), tokenizer, options=Options(shares=COMPANION_SHARES))
    assert sizes(task) == {"discovery": 3, "evaluation": 45, "held_out": 3, "reference": 9}


# --- the task --------------------------------------------------------------------------------------------------------


def test_the_same_rows_from_anywhere_are_the_same_task(tokenizer, tmp_path) -> None:
    rows = ioi_rows(40)
    (tmp_path / "elsewhere").mkdir()
    table, lines = as_csv(rows, tmp_path / "a.csv"), as_jsonl(rows, tmp_path / "elsewhere" / "b.jsonl")
    first = file.load(table, tokenizer)
    assert file.load(lines, tokenizer) == first == file.load(rows, tokenizer) == file.load(file.read(rows), tokenizer)
    assert first.name == f"file-{first.source.sha256[:12]}"
    assert first.source.sha256 == file.rows_sha256(file.read(rows))
    edited = file.load([{**rows[0], "answer": "Zoe"}, *rows[1:]], tokenizer)
    assert edited.name != first.name


def test_row_numbers_reach_every_prompt(tokenizer) -> None:
    rows = ioi_rows(40)
    task = file.load(rows, tokenizer)
    prompts = prompt_sets.tokenize(task, task.given["evaluation"], tokenizer, "evaluation")
    assert len(prompts) == 20 and sorted(task.source.row_of.values()) == list(range(1, 41))
    for prompt_id, example in zip(prompts.ids, task.given["evaluation"], strict=True):
        assert rows[task.source.row_of[prompt_id] - 1]["clean"] == example.clean


@pytest.mark.slow
def test_a_study_is_prepared_from_forty_rows(tokenizer, load) -> None:
    task = file.load(ioi_rows(40), tokenizer)
    study = studies.prepare(load("gpt2"), task, SIZES, seed=0, engine=toy.ENGINE, settings=toy.SETTINGS)
    assert (len(study.prompts), len(study.discovery), study.groups) == (28, 8, None)
    other = file.load(ioi_rows(60, FRAMES[1:2], seed=6), tokenizer, options=Options(shares=COMPANION_SHARES))
    own = file.load(ioi_rows(40), tokenizer, companions=[other.name], others={other.name: other})
    study = studies.prepare(load("gpt2"), own, SIZES, seed=0, engine=toy.ENGINE, settings=toy.SETTINGS)
    beside = studies.companion(study, other.name, 100)
    assert (len(beside.prompts.rows_of("evaluation")), len(beside.prompts.rows_of("held_out"))) == (45, 1)


def test_foils_that_no_row_names_are_left_out_or_chosen(tokenizer) -> None:
    rows = [{name: value for name, value in row.items() if name != "wrong"} for row in ioi_rows(40)]
    with pytest.raises(
        UserError, match=r"^none of the 40 rows can be used; line 1 has no foil, and task.foil=none chooses none"
    ):
        file.load(rows, tokenizer)
    named = file.load(
        [{**row, "corrupted_answer": "Mary" if row["answer"] != "Mary" else "Anna"} for row in rows], tokenizer
    )
    assert {example.wrong for example in named.given["evaluation"]} <= {("Mary",), ("Anna",)}
    assert "foils: the column corrupted_answer" in named.source.notes
    chosen = file.load(rows, tokenizer, foils=lambda pairs: ["Zoe" if place else None for place, _ in enumerate(pairs)])
    assert {example.wrong for example in chosen.given["evaluation"]} == {("Zoe",)}
    assert chosen.source.left_out == {1: "has no foil, and none of the model's likely words is one token after it"}


def test_a_label_of_a_million_characters_is_cut_in_sentences(tokenizer) -> None:
    rows = [{**row, "template": "t" * 1_000_000} for row in ioi_rows(40)]
    found = file.examine(file.read(rows), file.PromptTokenizer(tokenizer, Options()))
    assert any("templates: 1, by the column template; tttt" in note for note in found.notes)
    few = file.examine(file.read(rows[:3]), file.PromptTokenizer(tokenizer, Options()))
    assert few.rejected and few.lacking is not None
    assert max(map(len, [*found.notes, *(one.reason for one in few.rejected), few.lacking])) < 500
