"""Prompt sets: aligned pairs, single-token answers, disjoint splits, named positions; and what is refused."""

from __future__ import annotations

import itertools
import random
from dataclasses import fields, replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from circuits import prompts as prompt_sets
from circuits import tasks
from circuits.embedded.tokenizer import build_tokenizer
from circuits.prompts import PADDING, PromptSet
from circuits.tasks.base import Task
from circuits.tasks.example import Example
from results_io import UserError

SIZES = {"discovery": 30, "evaluation": 40, "held_out": 20, "reference": 30}
MARY = Example(
    clean="Mary and John went to the store. John gave a drink to",
    corrupted="Anna and Tom went to the store. Paul gave a drink to",
    answers=("Mary",),
    wrong=("John",),
    template="plain",
    cluster="John Mary",
    positions={"io": (0, 4), "s2": (33, 37), "end": (51, 53)},
    factors={"order": "ABBA"},
)


class PanicException(BaseException):
    """As the one of the tokenizers library, which no module exports."""


def task_of(*examples: Example, bos: bool = True) -> Task:
    """A task that draws only these examples."""
    return Task("example", "An example", lambda rng: rng.choice(examples), ("io", "s2", "end"), (), bos=bos)


def tokenize(*examples: Example, tokenizer, bos: bool = True) -> PromptSet:
    return prompt_sets.tokenize(task_of(*examples, bos=bos), examples, tokenizer, "evaluation")


def assert_same(first: PromptSet, second: PromptSet) -> None:
    for field in fields(PromptSet):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name == "positions":
            assert {role: where.tolist() for role, where in one.items()} == {
                role: where.tolist() for role, where in other.items()
            }
        elif isinstance(one, torch.Tensor):
            assert torch.equal(one, other), field.name
        elif field.name != "split":
            assert one == other, field.name


# --- tokenizing ---------------------------------------------------------------------------------------------


def test_one_prompt_token_by_token(tokenizer) -> None:
    prompts = tokenize(MARY, tokenizer=tokenizer)
    words = tokenizer.convert_ids_to_tokens(prompts.clean[0].tolist())
    assert " ".join(words) == f"{tokenizer.bos_token} Mary and John went to the store . John gave a drink to"
    assert prompts.end.tolist() == [13]
    assert {role: int(where[0]) for role, where in prompts.positions.items()} == {"io": 1, "s2": 9, "end": 13}
    assert tokenizer.convert_ids_to_tokens(prompts.answers[0].tolist()) == ["Mary"]
    assert tokenizer.convert_ids_to_tokens(prompts.wrong[0].tolist()) == ["John"]
    assert prompts.bos == tokenizer.bos_token
    assert (prompts.clean != prompts.corrupted).nonzero()[:, 1].tolist() == [1, 3, 9]


def test_without_bos_everything_moves_one_to_the_left(tokenizer) -> None:
    with_bos, without = (tokenize(MARY, tokenizer=tokenizer, bos=bos) for bos in (True, False))
    assert torch.equal(without.clean, with_bos.clean[:, 1:])
    assert without.end.tolist() == [12]
    assert all(int(without.positions[role]) == int(with_bos.positions[role]) - 1 for role in with_bos.positions)
    assert without.bos is None


def test_a_span_of_several_tokens_stands_for_its_last_one(tokenizer) -> None:
    spans = {
        "everyone": (0, 13),
        "part of a word": (2, 3),
        "end": (51, 53),
    }  # "Mary and John", the r of "Mary"
    prompts = tokenize(replace(MARY, positions=spans), tokenizer=tokenizer)
    assert {role: int(where[0]) for role, where in prompts.positions.items()} == {
        "everyone": 3,
        "part of a word": 1,
        "end": 13,
    }


@pytest.mark.parametrize("name", tasks.TASKS)
def test_the_token_at_a_role_is_the_last_word_of_its_span(name, tokenizer) -> None:
    task, rng = tasks.get(name), random.Random(3)
    examples = [task.sample(rng) for _ in range(80)]
    prompts = prompt_sets.tokenize(task, examples, tokenizer, "evaluation")
    assert tuple(prompts.positions) == task.roles
    for row, example in enumerate(examples):
        for role, (start, stop) in example.positions.items():
            token = tokenizer.convert_ids_to_tokens(int(prompts.clean[row, prompts.positions[role][row]]))
            assert example.clean[start:stop].endswith(token), (example.clean, role, token)
    assert torch.equal(prompts.positions["end"], prompts.end)


def test_ioi_positions_hold_the_names(sets) -> None:
    prompts = sets("ioi")["evaluation"]
    rows = torch.arange(len(prompts))
    at = {role: prompts.clean[rows, where] for role, where in prompts.positions.items()}
    assert torch.equal(at["io"], prompts.answers[:, 0])
    assert torch.equal(at["s1"], prompts.wrong[:, 0])
    assert torch.equal(at["s2"], prompts.wrong[:, 0])
    assert torch.equal(prompts.positions["s1_plus_1"], prompts.positions["s1"] + 1)
    assert (prompts.positions["s1"] < prompts.positions["s2"]).all()


def test_rows_are_padded_on_the_right_and_answers_with_minus_one(tokenizer, sets) -> None:
    prompts = sets("greater_than")["evaluation"]
    assert len(set(prompts.end.tolist())) > 1
    beyond = torch.arange(prompts.clean.shape[1])[None] > prompts.end[:, None]
    for tokens in (prompts.clean, prompts.corrupted):
        assert ((tokens == tokenizer.pad_token_id) == beyond).all()
    for ids in (prompts.answers, prompts.wrong):
        real = (ids != PADDING).sum(1)
        assert len(set(real.tolist())) > 1
        assert all(
            (row[:count] >= 0).all() and (row[count:] == PADDING).all() for row, count in zip(ids, real, strict=True)
        )
    years = (prompts.answers >= 0).sum(1) + (prompts.wrong >= 0).sum(1)
    assert set(years.tolist()) == {98}  # every two-digit year but 00 and 01


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"corrupted": "Anna and Tom went to the big store. Paul gave a drink to"},
            r"'Mary and John .*' has 14 tokens and its corrupted twin 'Anna and Tom .*' has 15",
        ),
        ({"answers": ("Mary Anna",)}, r"answer 'Mary Anna' is 2 tokens"),
        ({"wrong": ("1732",)}, r"foil '1732' is 2 tokens"),
        ({"answers": ("Zebulon",)}, r"answer 'Zebulon' is unknown to the tokenizer; use another"),
        ({"wrong": ("Mary Mary",)}, r"foil 'Mary Mary' is 2 tokens; expected 1"),
        ({"answers": ("Mary", "John")}, r"an answer of 'Mary and .*' is also one of its foils"),
    ],
)
def test_a_bad_row_is_refused_and_named(change, complaint, tokenizer) -> None:
    bad = replace(MARY, **change)
    with pytest.raises(UserError, match=complaint):
        tokenize(MARY, bad, tokenizer=tokenizer)


def test_prompts_of_one_template_must_be_equally_long(tokenizer) -> None:
    longer = replace(
        MARY,
        clean="Mary and John went to the big store. John gave a drink to",
        corrupted="Anna and Tom went to the big store. Paul gave a drink to",
    )
    with pytest.raises(UserError, match=r"template 'plain' has prompts of 14 and 15 tokens \('Mary .* big store"):
        tokenize(MARY, longer, tokenizer=tokenizer)
    assert tokenize(MARY, replace(longer, template="big"), tokenizer=tokenizer).end.tolist() == [13, 14]


def test_no_prompts_are_refused(tokenizer) -> None:
    with pytest.raises(UserError, match="no evaluation prompts for task example; ask for at least one"):
        tokenize(tokenizer=tokenizer)


# --- drawing and splits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", tasks.TASKS)
def test_splits_are_full_distinct_and_disjoint(name, seed) -> None:
    drawn = prompt_sets.draw_examples(tasks.get(name), SIZES, seed)
    assert {split: len(examples) for split, examples in drawn.items()} == SIZES
    texts = {split: {example.clean for example in examples} for split, examples in drawn.items()}
    assert {split: len(each) for split, each in texts.items()} == SIZES
    for first, second in itertools.combinations(texts.values(), 2):
        assert not first & second
    for split, examples in drawn.items():
        assert {prompt_sets.split_of(example) for example in examples} == {split}


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_held_out_prompt_is_held_out_in_every_claim(name) -> None:
    """Claims of other seeds and other counts, and of other tasks, which read evaluation prompts of this one (27)."""
    claims = [
        *((SIZES, seed) for seed in range(3)),
        ({**SIZES, "evaluation": 400, "held_out": 200, "groups": 40}, 0),
        ({**SIZES, "evaluation": 7, "held_out": 300, "discovery": 3}, 3),
        ({**SIZES, "evaluation": 100, "held_out": 1, "discovery": 1, "groups": 0}, 4),  # as circuits.study.companion
    ]
    draws = [prompt_sets.draw_examples(tasks.get(name), sizes, seed) for sizes, seed in claims]
    pooled = {split: {e.clean for drawn in draws for e in drawn[split]} for split in SIZES}
    assert len(pooled["evaluation"]) > 450 and len(pooled["held_out"]) > 300
    for first, second in itertools.combinations(pooled.values(), 2):
        assert not first & second


def test_draws_repeat_for_a_seed_and_a_larger_draw_continues_a_smaller_one() -> None:
    task = tasks.get("ioi")
    small, again, other = (prompt_sets.draw_examples(task, SIZES, seed) for seed in (0, 0, 1))
    large = prompt_sets.draw_examples(task, {**SIZES, "evaluation": 90, "held_out": 1}, 0)
    assert small == again
    assert small["evaluation"] == large["evaluation"][:40]
    assert not {e.clean for e in small["evaluation"]} & {e.clean for e in other["evaluation"]}


def test_shares_of_the_splits() -> None:
    task, rng = tasks.get("ioi"), random.Random(0)
    found = [prompt_sets.split_of(task.sample(rng)) for _ in range(4000)]
    for split, share in {"discovery": 0.30, "evaluation": 0.35, "held_out": 0.20, "reference": 0.15}.items():
        assert found.count(split) / len(found) == pytest.approx(share, abs=0.03)  # 4 standard errors


def test_asking_for_more_prompts_than_there_are_is_refused() -> None:
    split = prompt_sets.split_of(MARY)
    task = task_of(MARY, replace(MARY, corrupted="Anna and Tom went to the store. Kate gave a drink to"))
    assert prompt_sets.draw_examples(task, {split: 1}, 0)[split][0].clean == MARY.clean
    with pytest.raises(UserError, match=rf"task example yields only 1 distinct {split} prompts of the 2 asked for"):
        prompt_sets.draw_examples(task, {split: 2}, 0)


def test_sets_that_share_a_prompt_are_refused(sets) -> None:
    evaluation, held_out = sets("ioi")["evaluation"], sets("ioi")["held_out"]
    evaluation.require_disjoint(held_out)
    mixed = replace(prompt_sets.join(held_out, evaluation.select([3, 5])), split="mixed")
    with pytest.raises(UserError, match=r"2 prompts stand in both the evaluation and the mixed set of ioi"):
        evaluation.require_disjoint(mixed)


def test_a_template_of_another_length_in_the_other_set_is_refused(sets) -> None:
    evaluation, reference = sets("greater_than")["evaluation"], sets("greater_than")["reference"]
    evaluation.require_same_lengths(reference)
    other = replace(reference, end=reference.end - 1)
    with pytest.raises(UserError, match=r"template 'began_ended' has \d+ tokens in the evaluation set and \d+ in the"):
        evaluation.require_same_lengths(other)


# --- selecting and joining ----------------------------------------------------------------------------------


def test_select_and_join_round_trip(sets) -> None:
    first, second = sets("greater_than")["evaluation"], sets("greater_than")["held_out"]
    both = prompt_sets.join(first, second)
    assert len(both) == len(first) + len(second)
    assert both.rows_of("evaluation") == list(range(len(first)))
    assert both.rows_of("held_out") == list(range(len(first), len(both)))
    for part, split in ((first, "evaluation"), (second, "held_out")):
        picked = both.select(both.rows_of(split))
        width, answers, wrong = part.clean.shape[1], part.answers.shape[1], part.wrong.shape[1]
        assert (picked.answers[:, answers:] == PADDING).all() and (picked.wrong[:, wrong:] == PADDING).all()
        assert_same(replace(picked, answers=picked.answers[:, :answers], wrong=picked.wrong[:, :wrong]), part)
        assert picked.clean.shape[1] == width


def test_select_permutes_and_trims_padding(sets) -> None:
    prompts = sets("ioi")["evaluation"]
    order = torch.randperm(len(prompts), generator=torch.Generator().manual_seed(0)).tolist()
    back = torch.argsort(torch.tensor(order)).tolist()
    assert_same(prompts.select(order).select(back), prompts)
    shortest = int(prompts.end.argmin())
    one = prompts.select([shortest])
    assert one.clean.shape == (1, int(prompts.end[shortest]) + 1)
    assert one.ids == (prompts.ids[shortest],)
    assert len(prompts.select([])) == 0


def test_identity_is_the_rows_and_their_order(sets) -> None:
    prompts = sets("ioi")["evaluation"]
    assert prompts.select(range(len(prompts))).sha256 == prompts.sha256
    assert prompts.select(reversed(range(len(prompts)))).sha256 != prompts.sha256
    assert len(set(prompts.ids)) == len(prompts)


@pytest.mark.parametrize(("size", "counts"), [(7, [2, 2, 3]), (6, [2, 2, 2]), (2, [0, 1, 1]), (0, [0, 0, 0])])
def test_a_split_has_every_template_equally_often(size, counts) -> None:
    places, rng = prompt_sets.Places(size, ("a", "b", "c")), random.Random(0)
    taken = [label for label in rng.choices("abc", weights=(8, 1, 1), k=400) if places.take(label)]
    assert sorted(taken.count(label) for label in "abc") == counts
    assert prompt_sets.Places(size, ()).take("a") is (size > 0)


def test_an_answer_may_continue_the_last_word() -> None:
    tokenizer = build_tokenizer()
    encode = prompt_sets.Encoder(tokenizer)
    assert encode.continuation("The war lasted from 1732 to 17", "", "45") == tokenizer("45")["input_ids"]
    assert encode.continuation("Mary gave a drink to", " ", "John") == tokenizer("John")["input_ids"]
    assert encode.continuation("Mary gave a drink to", "", "day") == []  # "today" is another word, or none
    pairs = BPE({"a": 0, "b": 1, "c": 2, "ab": 3}, [("a", "b")])  # "a" and "bc" make "ab" and "c"
    merging = prompt_sets.Encoder(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(pairs)))
    assert merging.continuation("a", "", "c") == [2] and merging.continuation("a", "", "bc") == []


def test_a_task_with_bos_needs_a_tokenizer_with_one() -> None:
    tokenizer = build_tokenizer()
    tokenizer.bos_token = None
    task = tasks.get("ioi")
    examples = [task.sample(random.Random(0))]
    with pytest.raises(UserError, match=r"task ioi begins its prompts with a BOS token .* run with task.bos=false"):
        prompt_sets.tokenize(task, examples, tokenizer, "evaluation")
    without = prompt_sets.tokenize(tasks.get("ioi", bos=False), examples, tokenizer, "evaluation")
    assert without.bos is None
    assert without.clean[0].tolist() == tokenizer(examples[0].clean)["input_ids"]


@pytest.mark.parametrize("span", [(5, 5), (200, 210)])
def test_a_role_without_a_token_is_refused(span, tokenizer) -> None:
    with pytest.raises(UserError, match="the tokenizer has no token for '', which is io in 'Mary and John went"):
        tokenize(replace(MARY, positions={"io": span}), tokenizer=tokenizer)


@pytest.mark.parametrize("raised", [Exception("WordLevel error: Missing [UNK] token"), PanicException("called it")])
def test_a_text_that_the_tokenizer_fails_at_is_refused(raised) -> None:
    def fails(text: str, **options) -> None:
        raise raised

    why = r" \(WordLevel error: Missing \[UNK\] token\)" if isinstance(raised, Exception) else ""
    with pytest.raises(UserError, match=f"^the tokenizer cannot encode 'Mary'{why}; reword it$"):
        prompt_sets.Encoder(fails)("Mary")


def test_ctrl_c_while_a_text_is_encoded_is_no_fault_of_the_text() -> None:
    def stopped(text: str, **options) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prompt_sets.Encoder(stopped)("Mary")
