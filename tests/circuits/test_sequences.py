"""Answers of several tokens: which logits are read, and log-probabilities of whole sequences against brute force."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits import prompts as prompt_sets
from circuits import study as studies
from circuits import tasks
from circuits.circuit import Node, head
from circuits.engine import choose
from circuits.interventions import Recipe, Sweep, Variant, ablate, noise
from circuits.measurements import activation_patching, baseline, direct_logit_attribution
from circuits.sequences import SequenceRows
from circuits.tasks import Example, Task
from results_io import UserError
from tests.circuits import hook_loop, toy

SIZES = {"evaluation": 6, "held_out": 2, "discovery": 4, "groups": 2, "reference": 120}
TAILS = ("went", "to the", "gave a", "store")  # words that follow the name: sequences of two and three tokens
HEADS = (head(0, 1), head(1, 2))
RECIPES = {
    "zero": Recipe("zero"),
    "mean": Recipe("mean"),
    "resample": Recipe("resample", draw=1),
    "pooled": Recipe("mean", pooled=True),
    "noise": Recipe("noise", draw=1),
}
VARIANTS = (
    Variant("clean"),
    Variant("corrupted", base="corrupted"),
    noise(HEADS, "noised"),
    *(ablate(HEADS, recipe, name) for name, recipe in RECIPES.items()),
    ablate([Node("mlp", 1)], Recipe("mean"), "mlp"),
)


def several(example: Example) -> Example:
    """The same prompt with answers and a foil that go on after the name; how is decided by its text."""
    rng = random.Random(example.clean)
    first, second, third = (rng.choice(TAILS[:2]), rng.choice(TAILS[2:]), rng.choice(TAILS))
    answers = tuple(f"{word} {tail}" for word in example.answers for tail in (first, second))
    return replace(example, answers=answers, wrong=tuple(f"{word} {third}" for word in example.wrong))


@pytest.fixture(scope="module")
def task() -> Task:
    ioi = tasks.get("ioi")
    rng_sample = ioi.sample
    assert rng_sample is not None
    return replace(ioi, sample=lambda rng: several(rng_sample(rng)), templates=(), metric="sequence")


@pytest.fixture(scope="module")
def study(task, load):
    return studies.prepare(load("gpt2"), few_templates(task), SIZES, 0, toy.ENGINE, settings=toy.SETTINGS)


def few_templates(task: Task) -> Task:
    """Prompts of one template, so that every length of a sequence has its reference prompts."""
    draw = task.sample
    assert draw is not None
    kept = draw(random.Random(0)).template

    def sample(rng: random.Random) -> Example:
        while (drawn := draw(rng)).template != kept:
            continue
        return drawn

    return replace(task, sample=sample)


def of_whole_sequences(loop, variant, prompts, reference) -> np.ndarray:
    """Mean log-probability of the answers minus that of the foils: one forward pass over each whole sequence."""
    found = []
    for row, sequences in enumerate(prompts.sequences):
        sides = []
        for side in ("answers", "wrong"):
            sums = []
            for ids in getattr(sequences, side):
                own = whole(prompts, [row], [ids])
                chosen = []  # the first of each reference prompt that is long enough stands for answers and foils alike
                for at, held in enumerate(reference.sequences):
                    long = [other for other in (*held.answers, *held.wrong) if len(other) >= len(ids)]
                    chosen += [(at, long[0][: len(ids)])] if long else []
                loop.reference = whole(reference, [at for at, _ in chosen], [other for _, other in chosen])
                loop._intact.clear()
                sums.append(log_probability(loop, variant, own, ids))
            sides.append(np.mean(sums))
        found.append(sides[0] - sides[1])
    return np.array(found)


def whole(prompts, rows, ids):
    """Prompts followed by all but the last token of a sequence each."""
    some = prompts.select(rows)
    longest = max(len(one) - 1 for one in ids)
    clean, corrupted = (torch.nn.functional.pad(t, (0, longest)) for t in (some.clean, some.corrupted))
    for at, one in enumerate(ids):
        for tokens in (clean, corrupted):
            for step, token in enumerate(one[:-1]):
                tokens[at, int(some.end[at]) + 1 + step] = token
    return replace(some, clean=clean, corrupted=corrupted, end=some.end + torch.tensor([len(one) - 1 for one in ids]))


@torch.no_grad()
def log_probability(loop, variant, prompts, ids) -> float:
    tokens = loop._tokens(prompts, 0, variant.base)
    with ExitStack() as stack:
        for item in variant.interventions:
            for node in item.nodes:
                stack.enter_context(loop._hook(node, loop._edit(node, item, prompts, 0)))
        log_p = loop.model(tokens[None]).logits[0].log_softmax(-1)
    return sum(float(log_p[len(tokens) - len(ids) + step, token]) for step, token in enumerate(ids))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["lens", "fused"])
def test_sequences_are_scored_as_one_pass_over_each_would(study, plain, backend) -> None:
    engine = choose(backend, study.model, study.engine.reference.prompts, study.prompts)
    found = replace(study, engine=engine, done={}).run(Sweep(VARIANTS))
    assert engine.describe()["backend"] == backend
    loop = hook_loop.HookLoop(plain("gpt2"), "gpt2", toy.N_HEADS, study.engine.reference.prompts)
    lengths = {len(ids) for s in study.prompts.sequences for ids in (*s.answers, *s.wrong)}
    assert lengths == {2, 3}
    for variant, row in zip(VARIANTS, found.logit_diff, strict=True):
        if variant.name in ("pooled", "noise"):  # of all rows, see below
            continue
        expected = of_whole_sequences(loop, variant, study.prompts, study.engine.reference.prompts)
        assert np.abs(row - expected).max() < 2e-4, variant.name
    assert np.abs(found.row("clean") - found.row("zero")).max() > 0.1


@pytest.mark.slow
def test_pooled_means_and_noise_are_over_every_row(study, plain) -> None:
    variants = tuple(v for v in VARIANTS if v.name in ("pooled", "noise"))
    found = study.run(Sweep(variants))
    rows = SequenceRows(study.prompts)
    some = [at for at, row in enumerate(rows.rows) if row.prompt in (0, 3)]
    reference = SequenceRows(study.engine.reference.prompts, reference=True).expanded
    loop = hook_loop.HookLoop(plain("gpt2"), "gpt2", toy.N_HEADS, reference)
    expanded = rows.expanded
    assert rows.prompts is study.prompts and expanded.without_foils.all()
    log_p = {}
    for at in some:
        one = expanded.select([at])
        for variant in variants:
            log_p[variant.name, at] = log_probability(loop, variant, one, (int(one.answers[0, 0]),))
    for variant in variants:
        for prompt in (0, 3):
            sums: dict[tuple, float] = {}
            for at in some:
                row = rows.rows[at]
                if row.prompt == prompt:
                    key = (row.side, row.number)
                    sums[key] = sums.get(key, 0.0) + log_p[variant.name, at]
            sides = [np.mean([v for (side, _), v in sums.items() if side == name]) for name in ("answers", "wrong")]
            assert abs(found.row(variant.name)[prompt] - (sides[0] - sides[1])) < 2e-4


@pytest.mark.slow
def test_of_one_token_it_is_the_logit_difference(load) -> None:
    both = [
        studies.prepare(load("gpt2"), tasks.get("ioi", metric=metric), toy.SIZES, 0, toy.ENGINE, settings=toy.SETTINGS)
        for metric in ("sequence", "logit_difference")
    ]
    sweep = Sweep((Variant("clean"), ablate(HEADS, Recipe("mean"), "mean"), ablate(HEADS, Recipe("resample"), "donor")))
    sequence, logits = (study.run(replace(sweep, probabilities=True)) for study in both)
    assert np.abs(sequence.logit_diff[0] - logits.logit_diff[0]).max() < 1e-4
    assert np.array_equal(sequence.correct, logits.correct)
    assert sequence.answer_probability is not None and logits.answer_probability is not None
    assert np.abs(sequence.answer_probability - logits.answer_probability).max() < 1e-6
    assert np.abs(both[0].run(sweep, in_logits=True).logit_diff - logits.logit_diff).max() < 1e-5


@pytest.mark.slow
def test_measurements_run_on_it(study) -> None:
    found = baseline.measure(study)
    assert found["metric"] == "sequence" and study.task.quantity == "log-probability difference"
    answers, foils = np.asarray(found["answer_probability"]), np.asarray(found["foil_probability"])
    assert ((answers > 0) & (answers < 1)).all() and np.array_equal(np.asarray(found["correct"]), answers > foils)
    assert np.isfinite(np.asarray(activation_patching.measure(study)["noising"])).all()
    assert np.isfinite(np.asarray(direct_logit_attribution.measure(study)["attribution"])).all()


def tokenized(task: Task, tokenizer, **words) -> prompt_sets.PromptSet:
    draw = tasks.get("ioi").sample
    assert draw is not None
    example = draw(random.Random(3))
    return prompt_sets.tokenize(task, [replace(example, **words)], tokenizer, "evaluation")


def test_logits_are_those_of_the_first_token_that_differs(tokenizer) -> None:
    task = replace(tasks.get("ioi"), several_tokens=True)
    one = tokenized(task, tokenizer, answers=("John",), wrong=("Mary",))
    two = tokenized(task, tokenizer, answers=("went to John",), wrong=("went to Mary gave",))
    ids = tokenizer("went to John Mary gave", add_special_tokens=False)["input_ids"]
    assert two.clean.tolist()[0] == one.clean.tolist()[0] + ids[:2]
    assert two.corrupted.tolist()[0] == one.corrupted.tolist()[0] + ids[:2]
    assert int(two.end) == int(one.end) + 2 == int(two.positions["end"])
    assert (two.answers.tolist(), two.wrong.tolist()) == ([[ids[2]]], [[ids[3]]])
    assert two.sequences[0].answers == ((ids[2],),) and two.sequences[0].wrong == ((ids[3], ids[4]),)


@pytest.mark.parametrize(
    ("answers", "wrong", "sentence"),
    [
        (("went to",), ("went to Mary",), "'went to' is the beginning of every other answer and foil"),
        (("John",), ("John",), "'John' is the beginning of every other"),
        (("John gave", "Mary"), ("John to",), "begins with the same token as one of its foils"),
        (("zzzz",), ("Mary",), "does not continue"),
        (("",), ("Mary",), "does not continue"),
    ],
)
def test_words_without_a_token_that_tells_them_apart_are_refused(tokenizer, answers, wrong, sentence) -> None:
    with pytest.raises(UserError, match=sentence):
        tokenized(replace(tasks.get("ioi"), metric="sequence"), tokenizer, answers=answers, wrong=wrong)


def test_without_leave_an_answer_of_two_tokens_is_refused(tokenizer) -> None:
    with pytest.raises(UserError, match="'John gave' is 2 tokens"):
        tokenized(tasks.get("ioi"), tokenizer, answers=("John gave",), wrong=("Mary",))


@pytest.mark.parametrize("backend", ["lens", "fused"])
def test_a_prompt_without_foils_is_compared_with_the_whole_vocabulary(study, plain, backend) -> None:
    engine = choose(backend, study.model, study.engine.reference.prompts, study.prompts)
    prompts = study.prompts.select([0, 1, 2])
    mixed = replace(prompts, wrong=torch.where(torch.tensor([[True], [False], [True]]), -1, prompts.wrong))
    found = engine.run(Sweep((Variant("clean"),), probabilities=True), mixed)
    logits = engine.end_logits(prompts)
    answers = np.array(
        [float(row.log_softmax(-1)[ids].mean()) for row, ids in zip(logits, prompts.answers, strict=True)]
    )
    difference = engine.run(Sweep((Variant("clean"),)), prompts).logit_diff[0]
    assert np.abs(found.logit_diff[0] - np.array([answers[0], difference[1], answers[2]])).max() < 1e-4
