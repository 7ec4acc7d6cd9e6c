"""Lines of JSON that somebody gives: half a character, deep nesting and endless numbers are one sentence in every reader."""

from __future__ import annotations

import json

import pytest

from results_io import UserError
from suites import bounded_text
from suites.contamination import loss_gap, overlap
from suites.harness import lm_eval_samples
from suites.judging import labels
from suites.shadow import traffic

PAIR = {"item": "a", "original": "the red hill", "paraphrase": "the hill red"}
LABEL = {"item": "a", "human": "A", "rater": "kim"}
REQUEST = {"id": "a", "prompt": "Hi?", "answer": "Hi.", "time": "2026-05-04T10:00:00Z"}
READERS = {
    "corpus": (lambda path: list(overlap.records(path, path.open(encoding="utf-8"))), {"text": "a b c"}, "text"),
    "pairs": (loss_gap.read, PAIR, "original"),
    "labels": (lambda path: labels.read(path, ["A", "B"]), LABEL, "item"),
    "traffic": (traffic.read, REQUEST, "prompt"),
    "samples": (lm_eval_samples.read, {"doc": {}, "target": "0"}, "target"),
}
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "bad", ['"\\ud800 one two three"', "1" * 5000, DEEP], ids=["half a character", "digits", "deep"]
)
def test_every_reader_refuses_it_in_one_sentence(reader, bad, tmp_path):
    read, line, key = READERS[reader]
    path = tmp_path / "samples_x_2026.jsonl"
    path.write_text(json.dumps({**line, key: "HERE"}).replace('"HERE"', bad) + "\n")
    with pytest.raises(UserError) as refused:
        read(path)
    said = str(refused.value)
    assert str(path) in said and "\n" not in said and len(said) < 500
    said.encode()  # what is said can be printed


def test_whole_characters_beyond_the_first_plane_are_read():
    assert bounded_text.value('{"a": "\\ud83d\\ude00"}') == {"a": "😀"}
    assert bounded_text.value('{"a": "\\\\ud800"}') == {"a": "\\ud800"}  # a backslash and five letters
    with pytest.raises(ValueError, match="half a character"):
        bounded_text.value('{"\\ud800": 1}')


def test_a_time_that_no_clock_shows_is_refused(tmp_path):
    (path := tmp_path / "t.jsonl").write_text(json.dumps({**REQUEST, "time": "0001-01-01T00:00:00+14:00"}) + "\n")
    with pytest.raises(UserError, match="is before or after all that a clock shows"):
        traffic.read(path)


@pytest.mark.parametrize("target", ["I am not sure", "(((((", "-1", "[0, -1]"])
def test_a_target_that_is_no_choice_is_no_index(target):
    with pytest.raises(
        (ValueError, IndexError), match=r"the target .* (is no index and no choice|is no whole number from 0 on)"
    ):
        lm_eval_samples._indices(target, ("yes", "no"))
    assert lm_eval_samples._indices("[0, 1]", ("yes", "no")) == [0, 1]


def test_pairs_have_names_of_their_own(tmp_path):
    (path := tmp_path / "p.jsonl").write_text(f"{json.dumps(PAIR)}\n" * 2)
    with pytest.raises(UserError, match="line 2 has the item 'a' again"):
        loss_gap.read(path)


@pytest.mark.parametrize("text", ["", "  \n ... \n"])
def test_a_corpus_without_words_is_no_evidence(text, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match="holds no words in 1 files"):
        overlap.overlap({"x": " ".join(f"w{k}" for k in range(20))}, tmp_path)
