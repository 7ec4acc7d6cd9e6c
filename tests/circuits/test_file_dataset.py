"""Rows out of Hugging Face datasets: a folder that save_to_disk wrote or one of files, MIB's columns, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from circuits.tasks import file
from circuits.tasks.file import dataset
from results_io import UserError
from tests.circuits.file_rows import as_jsonl, ioi_rows

datasets = pytest.importorskip("datasets")
MIB_IOI = {
    "clean": "prompt",
    "corrupted": "s2_io_flip_counterfactual.prompt",
    "answer": "metadata.indirect_object",
    "wrong": "metadata.subject",
}
MIB_CHOICES = {
    "clean": "prompt",
    "corrupted": "symbol_counterfactual.prompt",
    "answer": "choices.label[answerKey]",
    "wrong": "symbol_counterfactual.choices.label[symbol_counterfactual.answerKey]",
}


def saved(records: list[dict], folder: Path, **parts: list[dict]) -> Path:
    made = {name: datasets.Dataset.from_list(own) for name, own in {"train": records, **parts}.items()}
    datasets.DatasetDict(made).save_to_disk(str(folder))
    return folder


def test_a_folder_gives_the_rows_of_a_file(tmp_path) -> None:
    rows = ioi_rows(12)
    expected = file.rows_sha256(file.read(rows))
    places = [saved(rows, tmp_path / "saved"), tmp_path / "parquet", tmp_path / "lines"]
    for place in places[1:]:
        place.mkdir()
    datasets.Dataset.from_list(rows).to_parquet(str(places[1] / "train.parquet"))
    as_jsonl(rows, places[2] / "train.jsonl")
    before = sorted(path for path in tmp_path.rglob("*"))
    for place in places:
        found, unread = dataset.read(str(place), None, "train")
        assert file.rows_sha256(found) == expected and unread == {}
    assert sorted(path for path in tmp_path.rglob("*")) == before  # nothing is left beside them


def test_a_single_split_needs_no_name(tmp_path) -> None:
    datasets.Dataset.from_list(ioi_rows(6)).save_to_disk(str(tmp_path / "one"))
    assert len(dataset.read(str(tmp_path / "one"), None, "train")[0]) == 6


def test_the_split_asked_for_is_read(tmp_path) -> None:
    folder = saved(ioi_rows(6), tmp_path / "saved", test=ioi_rows(4, seed=9))
    assert len(dataset.read(str(folder), None, "test")[0]) == 4
    with pytest.raises(UserError, match=r"^task.part=validation is no split of .*saved; use train, test$"):
        dataset.read(str(folder), None, "validation")


def test_mib_s_indirect_objects(tmp_path) -> None:
    records = [
        {
            "prompt": row["clean"],
            "metadata": {"indirect_object": row["answer"], "subject": row["wrong"]},
            "s2_io_flip_counterfactual": {"prompt": row["corrupted"], "choices": ["x"], "answerKey": 0},
        }
        for row in ioi_rows(8)
    ]
    found, _ = dataset.read(str(saved(records, tmp_path / "mib")), None, "train", MIB_IOI)
    assert [row.content for row in found] == [row.content for row in file.read(ioi_rows(8))]


def test_mib_s_choices_are_the_label_at_the_answer_s_place(tmp_path) -> None:
    def asked(letters: list[str], key: int) -> dict:
        return {
            "prompt": f"It is red.\n{letters[0]}. red\n{letters[1]}. blue\nAnswer:",
            "choices": {"label": letters, "text": ["red", "blue"]},
            "answerKey": key,
        }

    records = [{**asked(["A", "B"], 0), "symbol_counterfactual": asked(["M", "K"], 1)}]
    (row,), _ = dataset.read(str(saved(records, tmp_path / "mcqa")), None, "train", MIB_CHOICES)
    assert (row.answers, row.wrong) == (("A",), ("K",))
    assert row.corrupted == "It is red.\nM. red\nK. blue\nAnswer:"


def test_a_record_without_a_counterfactual_is_left_out_with_its_number(tmp_path) -> None:
    """As in MIB's arithmetic, where some have none."""
    records = [
        {
            "prompt": f"{one} plus 4 is",
            "label": one + 4,
            "random_counterfactual": {"prompt": f"{one} plus 2 is", "label": one + 2},
        }
        for one in range(1, 4)
    ]
    records[1]["random_counterfactual"] = None
    columns = {
        "clean": "prompt",
        "corrupted": "random_counterfactual.prompt",
        "answer": "label",
        "wrong": "random_counterfactual.label",
    }
    found, unread = dataset.read(str(saved(records, tmp_path / "sums")), None, "train", columns)
    assert [(row.number, row.answers, row.wrong) for row in found] == [(1, ("5",), ("3",)), (3, ("7",), ("5",))]
    assert list(unread) == [2] and unread[2].reason.startswith("has no corrupted prompt")


def test_what_cannot_be_loaded_is_refused_in_one_sentence(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "empty").mkdir()
    for name in (str(tmp_path / "empty"), "nobody/nothing-of-the-kind"):
        with pytest.raises(UserError) as error:
            dataset.read(name, None, "train")
        sentence = str(error.value)
        assert sentence.startswith(f"task.dataset={name} cannot be loaded (") and "\n" not in sentence
    folder = saved([{"a": "b"}], tmp_path / "other")
    with pytest.raises(
        UserError, match=r"has no column clean \(it has: a\); add it with the prompt that the answer continues"
    ):
        dataset.read(str(folder), None, "train")


def test_without_the_package_one_sentence_says_how_to_get_it(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError) as error:
        dataset.read(str(tmp_path), None, "train")
    assert str(error.value) == (f"task.dataset={tmp_path} needs the package datasets; pip install -e '.[datasets]'")
