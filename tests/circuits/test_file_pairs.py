"""Rows as tokenizers of several families read them: the space before the answer, roles, alignment, chat, and what is left out."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from circuits import prompts as prompt_sets
from circuits.tasks import file
from circuits.tasks.file import Options, PromptTokenizer, pairs
from results_io import UserError
from tests.circuits import family_tokenizers, gpt2_tokenizer

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "Russia": "Moscow",
}
needs_merges = pytest.mark.skipif(gpt2_tokenizer.merges() is None, reason="GPT-2's merges file is absent")
every_family = pytest.mark.parametrize("kind", family_tokenizers.KINDS)


@cache
def family(kind: str):
    return family_tokenizers.build(kind)


def made(records, tokenizer, longest=None, **options):
    """(pairs, rejected rows) of records."""
    rows = file.read(records)
    return pairs.read(rows, PromptTokenizer(tokenizer, Options.of(options), longest))


def one(record, tokenizer, **options) -> Any:
    """The pair of one record, or why there is none."""
    kept, rejected = made([record], tokenizer, **options)
    return kept[0] if kept else rejected[0].reason


def capitals(frames=("The capital of {} is", "So the capital of {} is")) -> list[dict]:
    names = list(CAPITALS)
    return [
        {
            "clean": frame.format(country),
            "corrupted": frame.format(other),
            "answer": CAPITALS[country],
            "wrong": CAPITALS[other],
        }
        for frame in frames
        for country in names
        for other in names
        if other != country
    ]


def ibis(name: str, second: str, others: tuple[str, str]) -> dict:
    frame = "{} and {} went to the store, {} gave a drink to"
    return {
        "clean": frame.format(name, second, second),
        "corrupted": frame.format(*others, others[1]),
        "answer": name,
        "wrong": second,
    }


MARY = ibis("Mary", "John", ("Anna", "Paul"))


# --- one file, every family ------------------------------------------------------------------------------------------


@needs_merges
@every_family
def test_one_file_works_on_every_family(kind) -> None:
    """The tokens of a pair are the tokenizer's own of prompt and answer together."""
    tokenizer, records = family(kind), capitals()
    distinct = [record for place, record in enumerate(records) if place % 5 == 0]  # every clean prompt once
    kept, rejected = made(distinct, tokenizer)
    assert (len(kept), len(rejected)) == (12, 0)
    for pair, record in zip(kept, distinct, strict=True):
        start = [] if kind == "qwen" else [tokenizer.bos_token_id]
        whole = start + tokenizer(f"{record['clean']} {record['answer']}", add_special_tokens=False)["input_ids"]
        assert [*pair.clean, whole[-1]] == whole
        assert pair.joint == " "


@needs_merges
@every_family
def test_the_space_is_the_tokenizer_s_own(kind) -> None:
    """GPT-2 and SentencePiece write " 7" as one token; Llama-3 and Qwen a space, then the digit: the prompt ends in the space."""
    pair = one({"clean": "2 plus 5 is", "corrupted": "2 plus 3 is", "answer": "7", "wrong": "5"}, family(kind))
    apart = kind in ("llama3", "qwen")
    assert (pair.texts[0], pair.joint) == (("2 plus 5 is ", "") if apart else ("2 plus 5 is", " "))
    whole = family(kind)("2 plus 5 is 7", add_special_tokens=False)["input_ids"]
    (answer,) = prompt_sets.Encoder(family(kind)).continuation(pair.texts[0], pair.joint, "7")
    assert [*pair.clean, answer][-len(whole) :] == whole


@needs_merges
@pytest.mark.parametrize(
    ("clean", "answer"), [("gave it to", "Mary"), ("gave it to ", "Mary"), ("gave it to", " Mary")]
)
def test_wherever_the_space_is_written_it_is_the_same_prompt(clean, answer) -> None:
    corrupted = clean.replace("gave", "took")
    pair = one({"clean": clean, "corrupted": corrupted, "answer": answer, "wrong": "John"}, family("gpt2"))
    assert (pair.texts, pair.joint, pair.answers) == (("gave it to", "took it to"), " ", ("Mary",))


@needs_merges
def test_no_space_after_an_opening_bracket_or_where_the_file_says_so() -> None:
    code = {"clean": "f = [3] # y(", "corrupted": "f = [4] # y(", "answer": "x", "wrong": "y"}
    assert one(code, family("gpt2")).joint == ""
    assert one(code, family("gpt2"), space=True).joint == " "
    assert one({**MARY, "answer": ",", "wrong": "."}, family("gpt2"), space=False).joint == ""
    mixed = one({**MARY, "clean": MARY["clean"] + " "}, family("gpt2"))
    assert mixed == "ends in a space in its clean prompt and not in the corrupted one; end both alike"


def test_the_embedded_models_read_it_too(tokenizer) -> None:
    pair = one(MARY, tokenizer)
    words = tokenizer.convert_ids_to_tokens(list(pair.clean))
    assert " ".join(words[1:]) == "Mary and John went to the store , John gave a drink to"
    assert pair.changed == (1, 3, 9)
    assert pair.positions == {"changed_first": (0, 4), "end": (51, 53)}
    assert pair.template == "rows/14 tokens, changed 1 3 9" and pair.cluster == "John Mary"


# --- what is left out ------------------------------------------------------------------------------------------------


@needs_merges
def test_a_row_that_cannot_be_used_says_why() -> None:
    gpt2 = family("gpt2")
    reasons = {
        "clean has 14 tokens and corrupted 15; reword it": {**MARY, "corrupted": MARY["corrupted"] + " to"},
        "has an answer or a foil that all the others begin with, so no token tells them apart; name another foil": {
            **MARY,
            "answer": "Mary Jane",
            "wrong": "Mary",
        },
        "has an answer that begins with the same token as a foil, while not all of them do; name another foil": {
            **MARY,
            "answer": ["Mary Jane", "John"],
            "wrong": "Mary Ann",
        },
        "has the answer 'Mary', which is also its foil; name another foil": {**MARY, "wrong": ["John", "Mary"]},
        "has the same tokens in the clean and in the corrupted prompt; change what the answer depends on": {
            **MARY,
            "corrupted": MARY["clean"],
        },
    }
    for reason, record in reasons.items():
        assert one(record, gpt2) == reason
    kept, rejected = made([MARY, {**MARY, "answer": "Kate"}, MARY], gpt2)
    assert (
        len(kept) == 1
        and [r.reason for r in rejected] == ["has the clean prompt of row 1 again; take one of them out"] * 2
    )
    assert made([MARY], gpt2, longest=13)[1][0].reason == "has 14 tokens, and the model reads at most 13; shorten it"
    assert made([MARY], gpt2, longest=14)[1] == []


@needs_merges
def test_answers_of_several_tokens_are_read_up_to_where_they_differ() -> None:
    gpt2 = family("gpt2")
    pair = one({**MARY, "answer": "New York", "wrong": "New Jersey"}, gpt2)
    assert (pair.shared, pair.several) == (1, True) and pair.template.startswith("rows/15 tokens")
    apart = one({**MARY, "answer": "Mary Jane", "wrong": "John"}, gpt2)
    assert (apart.shared, apart.several) == (0, True) and apart.template.startswith("rows/14 tokens")
    assert one({**MARY, "answer": "New York", "wrong": "New Jersey"}, gpt2, longest=14) == (
        "has 15 tokens, and the model reads at most 14; shorten it"
    )
    long = one({**MARY, "answer": "New York City", "wrong": "John"}, gpt2, metric="sequence")
    assert long.template == f"{apart.template}/answers of 3" and apart.template.count("/") == 1
    assert one(MARY, gpt2, metric="sequence").template == one(MARY, gpt2).template
    city = {**MARY, "answer": "New York City", "wrong": "John"}
    assert one(city, gpt2, longest=14).shared == 0
    assert one(city, gpt2, longest=14, metric="sequence") == "has 16 tokens, and the model reads at most 14; shorten it"


def test_words_that_the_tokenizer_does_not_know(tokenizer) -> None:
    assert (
        one({**MARY, "answer": "Zebedee"}, tokenizer)
        == "answer 'Zebedee' is unknown to the tokenizer; use another word"
    )
    examined = file.examine(
        file.read([{**MARY, "clean": "Zork " + MARY["clean"], "corrupted": "Zork " + MARY["corrupted"]}]),
        PromptTokenizer(tokenizer, Options()),
    )
    assert pairs.unknown_words(pairs.read(examined.rows, examined.reader)[0], examined.reader) == 1


# --- roles -----------------------------------------------------------------------------------------------------------


@needs_merges
@every_family
def test_roles_are_the_last_token_of_their_span(kind) -> None:
    pair = one({**MARY, "roles": {"io": "Mary", "s2": [30, 34]}}, family(kind))
    assert tuple(pair.positions) == ("io", "s2", "changed_first", "end")
    task = file.load(capitals_with_roles(), family(kind))
    prompts = prompt_sets.tokenize(task, task.given["evaluation"], family(kind), "evaluation")
    for row in range(len(prompts)):
        words = {
            role: family(kind).decode([int(prompts.clean[row, at[row]])]).strip()
            for role, at in prompts.positions.items()
        }
        assert words["country"] in CAPITALS and words["end"] == "is" == words["verb"]
        assert words["changed_first"] == words["country"]
    assert torch.equal(prompts.positions["end"], prompts.end)


def capitals_with_roles() -> list[dict]:
    records = [
        record
        for place, record in enumerate(capitals(("The capital of {} is", "A capital of {} is", "In {} it is")))
        if place % 5 == 0
    ]
    return [
        {
            **record,
            "template": "one",
            "roles": {"country": record["clean"].split()[-2 if "capital" in record["clean"] else 1], "verb": "is"},
        }
        for record in records
    ]


def test_a_role_where_no_token_stands_is_refused(tokenizer) -> None:
    gap = MARY["clean"].index(" ")
    assert (
        one({**MARY, "roles": {"gap": [gap, gap + 1]}}, tokenizer)
        == "has the role gap at ' ', where no token stands; name a word"
    )


def test_a_prompt_that_ends_in_space_of_no_token_has_its_end_at_the_last_token(tokenizer) -> None:
    pair = one({**MARY, "clean": MARY["clean"] + "\n", "corrupted": MARY["corrupted"] + "\n"}, tokenizer)
    assert pair.positions["end"] == (51, 53)


# --- templates and clusters ------------------------------------------------------------------------------------------


@needs_merges
def test_templates_are_lengths_and_changes_or_the_column_divided_by_length() -> None:
    long, short = "The large capital of {} is", "The capital of {} is"
    records = [record for place, record in enumerate(capitals((short, long))) if place % 5 == 0]
    kept, _ = made(records, family("gpt2"))
    assert {pair.template for pair in kept} == {"rows/6 tokens, changed 4", "rows/7 tokens, changed 5"}
    kept, _ = made([{**record, "template": "capital"} for record in records], family("gpt2"))
    assert {pair.template for pair in kept} == {"capital/6 tokens", "capital/7 tokens"}
    kept, _ = made([{**record, "template": "capital"} for record in records[:6]], family("gpt2"))
    assert {pair.template for pair in kept} == {"capital"}


def test_a_swap_of_answer_and_foil_is_the_same_cluster(tokenizer) -> None:
    kept, _ = made(
        [MARY, ibis("John", "Mary", ("Tom", "Kate")), {**ibis("Sara", "Tom", ("Kate", "Dan")), "cluster": "c"}],
        tokenizer,
    )
    assert [pair.cluster for pair in kept] == ["John Mary", "John Mary", "c"]


# --- pairs of unequal length -----------------------------------------------------------------------------------------


@needs_merges
@every_family
def test_align_right_fills_the_shorter_prompt_on_its_left(kind) -> None:
    """The filler is a token that the model reads, so every position of the shorter prompt moves by the difference."""
    tokenizer = family(kind)
    record = {
        "clean": "Then Mary gave it to",
        "corrupted": "Then Mary Ann Lee gave it to",
        "answer": "John",
        "wrong": "Tom",
    }
    assert one(record, tokenizer).startswith("clean has ")
    pair, plain = (
        one(record, tokenizer, align="right"),
        [tokenizer(record[side], add_special_tokens=False)["input_ids"] for side in ("clean", "corrupted")],
    )
    filler = tokenizer.convert_tokens_to_ids("<|endoftext|>" if kind in ("gpt2", "qwen") else tokenizer.bos_token)
    start = [] if kind == "qwen" else [tokenizer.bos_token_id]
    gap = len(plain[1]) - len(plain[0])
    assert gap == 2 and pair.filled == ((len(start), len(start) + 1), ())
    assert list(pair.clean) == [*start, filler, filler, *plain[0]]
    assert list(pair.corrupted) == [*start, *plain[1]]
    assert f", filled {len(start)}-{len(start) + 1} and nowhere" in pair.template


def test_align_right_on_the_embedded_models(tokenizer) -> None:
    record = {**MARY, "corrupted": "Then " + MARY["corrupted"]}
    pair = one(record, tokenizer, align="right")
    words = tokenizer.convert_ids_to_tokens(list(pair.clean))
    assert (
        words[:3] == [tokenizer.bos_token, tokenizer.bos_token, "Mary"] and len(pair.clean) == len(pair.corrupted) == 15
    )


def tokens(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


ANN = {
    "clean": "Then Mary gave a ball to",
    "corrupted": "Then Mary Ann Lee gave a ball to",
    "answer": "John",
    "wrong": "Tom",
}


@needs_merges
@every_family
def test_align_spans_fills_where_the_prompts_differ_so_that_words_on_either_side_correspond(kind) -> None:
    tokenizer = family(kind)
    pair = one(ANN, tokenizer, align="spans")
    plain = [tokens(tokenizer, ANN[side]) for side in ("clean", "corrupted")]
    start, filler = len(pair.clean) - len(plain[1]), pair.clean[pair.filled[0][0]]
    assert pair.filled == ((start + 2, start + 3), ())
    assert list(pair.clean) == [*pair.clean[:start], *plain[0][:2], filler, filler, *plain[0][2:]]
    assert list(pair.corrupted[start:]) == plain[1]
    assert pair.changed == (start + 2, start + 3)  # all other positions hold the same token in both prompts
    right = one(ANN, tokenizer, align="right")
    assert len(right.changed) > len(pair.changed) and right.clean != pair.clean
    assert ", filled" in pair.template and pair.texts[0].endswith("gave a ball to")


BIGGER = {
    "clean": "Then the big dog saw Mary and it ran to",
    "corrupted": "Then the very big old cat saw Mary Ann and it ran to",
    "answer": "John",
    "wrong": "Tom",
    "roles": {"animal": "the big dog", "name": "Mary", "verb": "ran"},
    "corrupted_roles": {"animal": "the very big old cat", "name": "Mary Ann"},
}


@needs_merges
@every_family
def test_roles_named_in_both_prompts_end_at_one_position(kind) -> None:
    """By brute force: the last token of each role has the same place in both token lists, and so has every word outside roles."""
    tokenizer = family(kind)
    unnamed = one({**BIGGER, "roles": None, "corrupted_roles": None}, tokenizer, align="spans")
    assert len(unnamed.filled[0]) == 3 and len(unnamed.changed) == 4  # big is matched with big, Mary with Mary
    pair = one(BIGGER, tokenizer, align="spans")
    assert len(pair.clean) == len(pair.corrupted) and len(pair.filled[0]) == 3 and pair.filled[1] == ()
    offsets = PromptTokenizer(tokenizer, Options()).offsets(pair.texts[0])
    start = len(pair.clean) - len(offsets)
    for role, words in (("animal", ("dog", "cat")), ("name", ("Mary", "Ann")), ("verb", ("ran", "ran"))):
        first, last = pair.positions[role]
        assert pair.texts[0][first:last].split()[-1] == words[0]
        place = start + max(i for i, (a, b) in enumerate(offsets) if a < last and b > first)
        assert [tokenizer.decode([side[place]]).strip() for side in (pair.clean, pair.corrupted)] == list(words)
    assert [tokenizer.decode([token]).strip() for token in pair.clean if token in pair.corrupted][-3:] == [
        "it",
        "ran",
        "to",
    ]
    assert all(
        pair.clean[place] == pair.corrupted[place]
        for place in range(start + 6, len(pair.clean))
        if place not in pair.changed
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"clean": "So Ann saw Tom run to", "corrupted": "So Bob saw Eve saw Dan run to"},
            "differs in length and its tokens can be matched in several ways (6 and 8 tokens); name the words",
        ),
        (
            {"corrupted": "Then Mary gave a ball to them"},
            "would end in a filler in its clean prompt; let both end in the same",
        ),
        (
            {"roles": {"who": "Mary", "what": "ball"}, "corrupted_roles": {"who": "Lee", "what": "Ann"}},
            "has the role what inside another one, or in another order in the corrupted prompt; reword it",
        ),
    ],
)
@needs_merges
def test_what_no_filler_aligns_is_refused_by_row(change, reason) -> None:
    assert one({**ANN, **change}, family("gpt2"), align="spans").startswith(reason)


@needs_merges
def test_a_role_at_another_position_of_the_corrupted_prompt_is_told() -> None:
    """Both have six tokens, but John is the fourth of one and the second of the other: patching would exchange other words."""
    record = {
        "clean": "Then Mary saw John run to",
        "corrupted": "Then John Ann Lee ran to",
        "answer": "Bob",
        "wrong": "Tom",
        "roles": {"name": "John"},
        "corrupted_roles": {"name": "John"},
    }
    tokenizer = family("gpt2")
    told = "has the role name at token 4 of its clean prompt and at 2 of the corrupted one, which patching would not exchange"
    assert one(record, tokenizer).startswith(told) and one(record, tokenizer, align="right").startswith(told)
    pair = one(record, tokenizer, align="spans")
    assert pair.filled == ((5, 6), (2, 3)) and pair.clean[4] == pair.corrupted[4]


def test_align_spans_on_the_embedded_models(tokenizer) -> None:
    record = {**MARY, "corrupted": MARY["corrupted"].replace(" store", " big store")}
    assert tokenizer.unk_token_id not in tokens(tokenizer, record["corrupted"])
    pair = one(record, tokenizer, align="spans")
    words = [tokenizer.convert_ids_to_tokens(list(side)) for side in (pair.clean, pair.corrupted)]
    (place,) = pair.filled[0]
    assert (words[0][place], words[1][place], pair.filled[1]) == (tokenizer.bos_token, "big", ())
    assert words[0][place:][1:] == ["John" if word == "Paul" else word for word in words[1][place + 1 :]]


def test_the_same_prompt_with_other_fillers_is_a_duplicate(tokenizer) -> None:
    longer = {**MARY, "corrupted": MARY["corrupted"].replace(" store", " big store")}
    kept, rejected = made([MARY, longer], tokenizer, align="spans")
    assert len(kept) == 1 and rejected[0].reason == "has the clean prompt of row 1 again; take one of them out"


# --- chat ------------------------------------------------------------------------------------------------------------


@needs_merges
def test_chat_puts_prompts_into_the_template_and_moves_their_roles() -> None:
    tokenizer = family("qwen")
    pair = one({**MARY, "roles": {"io": "Mary"}}, tokenizer, chat=True)
    assert pair.texts[0] == f"<|im_start|>user\n{MARY['clean']}<|im_end|>\n<|im_start|>assistant\n"
    assert pair.texts[0][slice(*pair.positions["io"])] == "Mary"
    assert pair.joint == "" and pair.clean[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    trimmed = one(
        {**MARY, "clean": " " + MARY["clean"], "corrupted": " " + MARY["corrupted"], "roles": {"io": "Mary"}},
        tokenizer,
        chat=True,
    )
    assert trimmed.texts[0][slice(*trimmed.positions["io"])] == "Mary"


@needs_merges
def test_what_a_tokenizer_lacks_is_refused_in_one_sentence() -> None:
    for options, sentence in (
        (
            {"chat": True},
            "task.chat=true, and this tokenizer has no chat template; leave it out, or use a chat model's",
        ),
    ):
        with pytest.raises(UserError) as error:
            PromptTokenizer(family("gpt2"), Options.of(options))
        assert str(error.value) == sentence
    with pytest.raises(
        UserError, match=r"^task.bos=true, and this tokenizer has no BOS token; leave it out, or run with"
    ):
        PromptTokenizer(family("qwen"), Options.of({"bos": True}))
    assert (
        PromptTokenizer(family("qwen"), Options()).bos is False
        and PromptTokenizer(family("llama3"), Options()).bos is True
    )
    assert PromptTokenizer(family("gpt2"), Options.of({"bos": False})).start == ()


def test_a_space_on_one_side_alone_is_named_as_tokenizers_read_it_differently(tokenizer) -> None:
    """A CSV file with a space after each separator has one before every cell but the first."""
    record = {
        "clean": "Mary and John gave it to",
        "corrupted": "Anna and Paul gave it to",
        "answer": "Mary",
        "wrong": "John",
    }
    assert one({**record, "corrupted": " " + record["corrupted"]}, tokenizer) == (
        "begins with '' in its clean prompt and with ' ' in the corrupted one; begin both alike"
    )
    assert one({**record, "wrong": "John "}, tokenizer) == (
        "has the answer or foil 'John ', which ends in a space that the model would have to say; take it away"
    )


def test_a_prompt_that_is_a_book_is_left_out_before_it_is_read(tokenizer, monkeypatch) -> None:
    reader = PromptTokenizer(tokenizer, Options(align="spans"), 64)
    book = {"clean": "Mary " * 10_000, "corrupted": "Anna " * 10_000, "answer": "Mary", "wrong": "John"}
    with monkeypatch.context() as patched:
        patched.setattr(reader, "ids", lambda text: pytest.fail("the book was tokenized"))
        (rejected,) = pairs.read(file.read([book]), reader)[1]
    assert (
        rejected.reason
        == "has 50,000 characters in its clean prompt, and the model reads at most 64 tokens; shorten it"
    )
    chapter = {**book, "clean": "Mary " * 1000, "corrupted": "Anna " * 1001}  # whose tokens are not matched one by one
    (rejected,) = pairs.read(file.read([chapter]), reader)[1]
    assert "tokens, and the model reads at most 64; shorten it" in rejected.reason
