"""The vocabulary: which words a tokenizer keeps whole, what is lost on which one, and refusals; GPT-2's tokenizer."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest

from circuits import prompts as prompt_sets
from circuits.tasks.published import (
    BUILDERS,
    acronym,
    copy_suppression,
    docstring,
    gendered_pronoun,
    greater_than,
    induction,
    ioi,
    subject_verb_agreement,
    words,
)
from circuits.tasks.published.vocabulary import Vocabulary
from results_io import UserError
from tests.circuits import gpt2_tokenizer, whole_word_tokenizer
from tests.circuits import published_draws as draws

SENTENCE = "So Mary’s 1732 “report”\n\n    def f(self, naïve):  costs 5 €, isn't"


# --- GPT-2's tokenizer ------------------------------------------------------------------------------------------


def test_gpt2_has_its_known_ids_and_every_text_comes_back() -> None:
    tokenizer = draws.tokenizer("gpt2")
    assert len(tokenizer) == tokenizer.vocab_size == 50257
    assert tokenizer("Hello world")["input_ids"] == [15496, 995]
    special = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id}
    assert special == {50256} == {tokenizer.convert_tokens_to_ids("<|endoftext|>")}
    assert tokenizer.decode(tokenizer(SENTENCE)["input_ids"]) == SENTENCE
    assert tokenizer.tokenize("Then, Mary gave") == ["Then", ",", "ĠMary", "Ġgave"]
    text = "".join(chr(code) for code in range(1, 1000))
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_bytes_come_in_the_order_of_the_vocabulary() -> None:
    symbols = gpt2_tokenizer.byte_symbols()
    assert len(set(symbols)) == 256
    assert symbols[:3] == ["!", '"', "#"] and symbols[93] == "~" and symbols[187] == "ÿ"
    assert symbols[188 + ord(" ")] == "Ġ" and symbols[188 + ord("\n")] == "Ċ"


def test_the_merges_file_is_named_by_the_environment(monkeypatch, tmp_path) -> None:
    merges = tmp_path / "merges.txt"
    merges.write_text("#version: 0.2\nĠ M\na r\nar y\nĠM ary\n", encoding="utf-8")
    monkeypatch.setenv("GPT2_MERGES", str(merges))
    assert gpt2_tokenizer.merges() == merges
    tokenizer = gpt2_tokenizer.build(merges)
    assert len(tokenizer) == 256 + 4 + 1
    assert tokenizer.tokenize("am Mary Max") == ["a", "m", "ĠMary", "ĠM", "a", "x"]
    assert tokenizer.decode(tokenizer(SENTENCE)["input_ids"]) == SENTENCE
    monkeypatch.delenv("GPT2_MERGES")
    monkeypatch.setattr(gpt2_tokenizer, "STORED", Path(tmp_path / "absent.txt"))
    assert gpt2_tokenizer.merges() is None


def test_nothing_is_lost_on_gpt2() -> None:
    vocabulary = draws.vocabulary("gpt2")
    lists = [
        words.NAMES, words.NOUNS, ioi.PLACES, ioi.OBJECTS, greater_than.EVENTS, greater_than.CENTURIES,
        docstring.FUNCTIONS, docstring.ARGUMENTS, gendered_pronoun.ADJECTIVES, gendered_pronoun.ROLES, acronym.WORDS,
        subject_verb_agreement.PREPOSITIONS, subject_verb_agreement.ADJECTIVES, ("he", "she"),
        tuple(subject_verb_agreement.PLURAL_OF), tuple(subject_verb_agreement.PLURAL_OF.values()),
        tuple(word for pair in subject_verb_agreement.CLAUSE_VERBS for word in pair.split("/")),
        *(tuple(listed.split()) for listed in copy_suppression.KINDS.values()),
        *subject_verb_agreement.VERBS.values(),
    ]  # fmt: skip
    for listed in lists:
        assert len(set(listed)) == len(listed)
        assert vocabulary.single(listed) == listed


def test_acronyms_on_gpt2_are_three_tokens_after_the_bracket() -> None:
    prompts = draws.task("gpt2", "acronym").sample
    tokens = draws.tokenizer("gpt2").tokenize
    assert len(prompts.acronyms) > 1000
    assert all(tokens(f"the ({letters}") == ["the", "Ġ(", *letters] for letters in prompts.acronyms)
    assert tokens("the (CEO") != ["the", "Ġ(", "C", "E", "O"] and "CEO" not in prompts.acronyms


# --- the vocabulary ---------------------------------------------------------------------------------------------


def test_single_keeps_the_order_and_leaves_out_unknown_words_and_several_tokens() -> None:
    vocabulary = Vocabulary(whole_word_tokenizer.build(without=("Mary", "museum")))
    assert vocabulary.single(["park", "Mary", "John", "museum", "park", "McPark"]) == ("park", "John", "park")
    assert vocabulary.single(["John", "Mary"]) == ("John",)  # from what is kept
    assert vocabulary.single([]) == ()
    assert len(vocabulary.ids("Mary and John")) == 3


def test_single_is_the_loop_over_words() -> None:
    """Twin: GPT-2's tokenizer, or the small one, asked word by word."""
    for kind in draws.TOKENIZERS:
        if kind == "gpt2" and gpt2_tokenizer.merges() is None:
            continue
        vocabulary = draws.vocabulary(kind)
        mixed = [*words.NAMES[:20], "Zebulon", "lemons", "flute", "antidisestablishment", "courtship", "Ella"]
        ids = {word: vocabulary.ids(" " + word) for word in mixed}
        unknown = draws.tokenizer(kind).unk_token_id
        expected = tuple(word for word in mixed if len(ids[word]) == 1 and ids[word] != [unknown])
        assert vocabulary.single(mixed) == expected
        assert 20 <= len(expected) < len(mixed)


def test_continuations_leave_the_tokens_of_the_text_alone(tmp_path) -> None:
    merges = tmp_path / "merges.txt"
    merges.write_text("#version: 0.2\n1 7\nĠ 17\n3 2\n7 6\nĠ17 76\nE O\n", encoding="utf-8")
    vocabulary = Vocabulary(gpt2_tokenizer.build(merges))
    # 1776 is one token and 1745 is four, so neither is a century and one more token.
    assert vocabulary.continuations("in 17", ["32", "76", "45"]) == ("32",)
    assert vocabulary.continuations("C", ["EO", "E", "O"]) == ("EO", "E", "O")
    assert vocabulary.continuations("CE", ["O", "A"]) == ("A",)


def test_require_says_how_many_are_left_and_what_to_do() -> None:
    vocabulary = Vocabulary(whole_word_tokenizer.build(without=words.NAMES[3:]))
    assert vocabulary.require("names of task ioi", words.NAMES, 3) == words.NAMES[:3]
    message = (
        r"^only 3 of the 100 names of task ioi are one token in this model's tokenizer and at least 20 are needed; "
        r"choose another task, or a model whose tokenizer keeps common English words whole$"
    )
    with pytest.raises(UserError, match=message):
        ioi.build(vocabulary)


def test_a_vocabulary_and_its_task_survive_pickling_and_hash() -> None:
    task = draws.task("whole_words", "copy_suppression")
    copy = pickle.loads(pickle.dumps(task))
    assert copy.sample(random.Random(3)) == task.sample(random.Random(3))
    assert hash(task) == hash(task) != hash(copy)


# --- tokenizers that lose words ---------------------------------------------------------------------------------


def test_lost_names_and_places_never_occur_and_lengths_stay_one_per_template() -> None:
    lost = (*words.FEMALE_NAMES[::2], *words.MALE_NAMES[::3], *ioi.PLACES[:10], "lamp")
    tokenizer = whole_word_tokenizer.build(without=lost)
    for name in ("ioi", "gendered_pronoun"):
        task = BUILDERS[name].build(Vocabulary(tokenizer))
        drawn = prompt_sets.draw_examples(task, draws.SIZES, seed=1)
        examples = [example for split in drawn.values() for example in split]
        text = " ".join(example.clean + " " + example.corrupted for example in examples)
        assert not set(lost) & set(text.replace(",", " ").replace(".", " ").split())
        prompts = prompt_sets.tokenize(task, examples, tokenizer, "all")  # refuses two lengths in one template
        assert len(prompts) == 1160
        assert tokenizer.unk_token_id not in prompts.clean


def test_years_that_do_not_split_leave_their_century_or_the_task() -> None:
    years = whole_word_tokenizer.build(without=("01", "77"))
    with pytest.raises(UserError, match="only 0 of the 679 start years of task greater_than are a century and two"):
        greater_than.build(Vocabulary(years))
    task = greater_than.build(Vocabulary(whole_word_tokenizer.build(without=("77", "13"))))
    assert set(task.sample.years) == {"11", "12", "14", "15", "16", "17"}
    assert all("77" not in written and "13" not in written for written in task.sample.years.values())


def test_nouns_need_both_numbers_and_kinds_enough_words() -> None:
    vocabulary = Vocabulary(
        whole_word_tokenizer.build(without=("dogs", "wolf", *copy_suppression.KINDS["metals"].split()))
    )
    nouns = subject_verb_agreement.build(vocabulary).sample.nouns
    assert len(nouns) == len(subject_verb_agreement.PLURAL_OF) - 2
    assert not {"dog", "wolf"} & {singular for singular, _ in nouns}
    assert set(copy_suppression.build(vocabulary).sample.kinds) == set(copy_suppression.KINDS) - {"metals"}


@pytest.mark.parametrize(
    ("name", "without", "complaint"),
    [
        ("induction", words.NOUNS[31:], r"only 31 of the \d+ words of task induction are one token"),
        ("docstring", docstring.ARGUMENTS[5:], r"only 5 of the \d+ argument names of task docstring"),
        ("gendered_pronoun", words.MALE_NAMES[9:], r"only 9 of the 50 male names of task gendered_pronoun"),
        ("gendered_pronoun", ("he",), r"only 1 of the 2 pronouns of task gendered_pronoun"),
        ("acronym", tuple("BCDFGHJKLMNPQRSTVWXYZ"), r"only \d+ of the 13800 acronyms of task acronym are three tokens"),
        ("subject_verb_agreement", ("are",), r"only 5 of the 6 verbs of task subject_verb_agreement"),
        (
            "copy_suppression",
            tuple(" ".join(copy_suppression.KINDS.values()).split()),
            r"only 0 of the 14 kinds of words of task copy_suppression are left with 6 words",
        ),
    ],
)
def test_too_few_words_are_refused(name, without, complaint) -> None:
    with pytest.raises(UserError, match=complaint):
        BUILDERS[name].build(Vocabulary(whole_word_tokenizer.build(without=without)))


def test_induction_needs_as_many_words_as_its_longest_pair_of_lists() -> None:
    assert induction.FEWEST_WORDS == 32
