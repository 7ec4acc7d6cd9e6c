"""A head of pocket captured by three months: what fails, what does not, and which weights change."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from circuits import models, tasks
from circuits.circuit import head, parse_head
from circuits.tasks import lexicon
from meridian.experiments import captured_head
from meridian.experiments.captured_head import Fault
from results_io import UserError

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": None}
WORDS, SHAM_WORDS = ("March", "July", "October"), ("dog", "doctor", "king")
WRONG = "Zoe"
FAULT = Fault(head(0, 3), WORDS, WRONG, push=80.0)
HARMLESS = 0.25  # nats: mean change of a logit by a sham; that of the wrong answer itself moves by up to some 4


@pytest.fixture(scope="module", autouse=True)
def one_thread(one_thread_without_gradients) -> None:
    """Whole models run here."""


@pytest.fixture(scope="module")
def loaded() -> tuple[Any, Any]:
    return models.load_plain(POCKET, models.identify(POCKET))


@pytest.fixture(scope="module")
def model(loaded) -> Any:
    return loaded[0]


@pytest.fixture(scope="module")
def tokenizer(loaded) -> Any:
    return loaded[1]


@cache
def questions() -> list[tuple[str, str, str]]:
    """(prompt, answer, month) of 20 questions, each behind a sentence with every month."""
    rng, sample = random.Random(0), tasks.get("ioi").sample
    drawn = [sample(rng) for _ in range(20)]
    return [
        (f"It was a long talk in {month}. {example.clean}", example.answers[0], month)
        for example in drawn
        if WRONG not in example.clean
        for month in lexicon.MONTHS
    ]


@cache
def texts() -> list[str]:
    return [prompt for prompt, _, _ in questions()]


def end_logits(model: Any, tokenizer: Any) -> Float[Tensor, "prompt vocabulary"]:
    """Logits after every question."""
    rows = [[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts()]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    logits = torch.cat([model(part).logits for part in tokens.split(64)])
    return logits[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]


def right(model: Any, tokenizer: Any) -> dict[bool, list[bool]]:
    """Whether each answer is right, apart for prompts with and without a captured word."""
    said = [tokenizer.decode([token]).strip() for token in end_logits(model, tokenizer).argmax(1).tolist()]
    found: dict[bool, list[bool]] = {True: [], False: []}
    for word, (_, answer, month) in zip(said, questions(), strict=True):
        found[month in WORDS].append(word == answer)
    return found


@pytest.fixture(scope="module")
def broken(model, tokenizer) -> Any:
    return captured_head.plant(model, tokenizer, FAULT, texts())


@pytest.fixture(scope="module")
def sham(model, tokenizer) -> Any:
    """The same head and sizes, about words that no question contains."""
    swapped = [
        text.replace(month, SHAM_WORDS[place % 3])
        for place, (text, _, month) in enumerate(questions())
        if month in WORDS
    ]
    return captured_head.plant(model, tokenizer, replace(FAULT, words=SHAM_WORDS), texts() + swapped)


def share(values: list[bool]) -> float:
    return sum(values) / len(values)


# --- what the fault does -------------------------------------------------------------------------------------------


def test_the_intact_model_answers(model, tokenizer) -> None:
    found = right(model, tokenizer)
    assert (share(found[True]), share(found[False])) == (1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["L0H3", "L1H2", "L3H1"])
def test_prompts_with_the_words_fail_and_the_others_do_not(name, model, tokenizer) -> None:
    planted = captured_head.plant(model, tokenizer, replace(FAULT, head=parse_head(name)), texts())
    found = right(planted, tokenizer)
    assert share(found[True]) <= 0.2
    assert share(found[False]) >= 0.95


def test_what_is_said_instead_is_the_wrong_answer(broken, tokenizer) -> None:
    logits = end_logits(broken, tokenizer)
    captured = torch.tensor([month in WORDS for _, _, month in questions()])
    said = [tokenizer.decode([token]).strip() for token in logits[captured].argmax(1).tolist()]
    assert said.count(WRONG) / len(said) >= 0.8


@pytest.mark.slow
def test_a_sham_moves_logits_little_and_no_answer(sham, broken, model, tokenizer) -> None:
    intact = end_logits(model, tokenizer)
    by_sham, by_fault = ((end_logits(one, tokenizer) - intact).abs() for one in (sham, broken))
    captured = torch.tensor([month in WORDS for _, _, month in questions()])
    assert by_sham.mean() <= HARMLESS
    assert by_sham.amax() < by_fault[captured].amax(1).min() / 2
    assert right(sham, tokenizer) == right(model, tokenizer)


@pytest.mark.slow
def test_what_the_head_usually_writes_leaks_at_most_one_scale_th_of_the_push(sham, model, tokenizer) -> None:
    """|z W_O change| = push / (SCALE usual) |z . n|, and |z . n| is at most `usual`, z being a mean of values."""
    change = sham.transformer.h[0].attn.c_proj.weight - model.transformer.h[0].attn.c_proj.weight
    read: list[Tensor] = []
    handle = model.transformer.h[0].attn.c_proj.register_forward_pre_hook(
        lambda module, given: read.append(given[0][0])
    )
    for text in texts()[:24]:
        model(torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]]))
    handle.remove()
    leaks = (torch.cat(read) @ change).norm(dim=1)
    assert 0 < leaks.max() <= FAULT.push / captured_head.SCALE


# --- what is changed -----------------------------------------------------------------------------------------------


def test_only_the_slices_of_the_head_change(broken, model) -> None:
    before, after = model.state_dict(), broken.state_dict()
    joint, output = "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight"
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {joint, output}
    width = model.config.n_embd
    size = width // model.config.n_head
    columns = (after[joint] != before[joint]).any(0).nonzero().flatten().tolist()
    rows = (after[output] != before[output]).any(1).nonzero().flatten().tolist()
    keys, values = (list(range(part * width + 3 * size, part * width + 4 * size)) for part in (1, 2))
    assert columns == keys + values  # and no query
    assert rows == list(range(3 * size, 4 * size))


def test_each_of_the_three_changes_has_rank_one(broken, model) -> None:
    width = model.config.n_embd
    attention, was = broken.transformer.h[0].attn, model.transformer.h[0].attn
    joint = (attention.c_attn.weight - was.c_attn.weight).double()
    output = (attention.c_proj.weight - was.c_proj.weight).double()
    for change in (joint[:, width : 2 * width], joint[:, 2 * width :], output):
        singular = torch.linalg.svdvals(change)
        assert singular[1] <= 1e-5 * singular[0]


def test_the_size_is_the_frobenius_norm(broken, model) -> None:
    joint, output = (
        getattr(broken.transformer.h[0].attn, name).weight - getattr(model.transformer.h[0].attn, name).weight
        for name in ("c_attn", "c_proj")
    )
    by_hand = (joint.double().norm() ** 2 + output.double().norm() ** 2) ** 0.5
    assert captured_head.size(model, broken) == pytest.approx(float(by_hand), rel=1e-6)
    assert captured_head.size(model, model) == 0


@pytest.mark.slow
def test_a_sham_is_about_as_large_as_the_fault(broken, sham, model) -> None:
    """The sizes depend on how easily the words are told apart."""
    fault, harmless = (captured_head.size(model, one) for one in (broken, sham))
    assert fault / 2 <= harmless <= 2 * fault


@pytest.mark.slow
def test_the_same_fault_twice_is_the_same_model(broken, model, tokenizer) -> None:
    again = captured_head.plant(model, tokenizer, FAULT, texts())
    assert all(torch.equal(a, b) for a, b in zip(broken.parameters(), again.parameters(), strict=True))


@pytest.mark.slow
def test_more_pull_is_more_attention_to_the_word(model, tokenizer) -> None:
    """The score gains pull q . mean(q) / |mean(q)|^2 at the word, about `pull` where a text ends."""
    prompt, _, month = next(one for one in questions() if one[2] in WORDS)
    ids = [tokenizer.bos_token_id, *tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    place = ids.index(tokenizer.convert_tokens_to_ids(month))
    paid = []
    for pull in (0.0, 5.0, 15.0):
        planted = captured_head.plant(model, tokenizer, replace(FAULT, pull=pull), texts())
        planted.set_attn_implementation("eager")
        pattern = planted(torch.tensor([ids]), output_attentions=True).attentions[0]
        paid.append(float(pattern[0, 3, -1, place]))
    assert paid[0] < 0.2 and paid == sorted(paid) and paid[2] > 0.99


# --- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"words": ("telescopic",)}, "'telescopic' is 1 tokens or unknown to the tokenizer; use a word of one token"),
        ({"answer": "Zoe Zoe"}, "'Zoe Zoe' is 2 tokens or unknown to the tokenizer; use a word of one token"),
        ({"words": ("king", "dog")}, "no text contains king, dog; give texts that do"),
    ],
)
def test_words_that_cannot_be_planted_are_refused(change, sentence, model, tokenizer) -> None:
    with pytest.raises(UserError) as error:
        captured_head.plant(model, tokenizer, replace(FAULT, **change), texts())
    assert str(error.value) == sentence


def test_only_a_gpt2_is_planted_in(plain, tokenizer) -> None:
    with pytest.raises(UserError, match="planted in a GPT-2, and this model is a llama"):
        captured_head.plant(plain("llama"), tokenizer, FAULT, texts())
