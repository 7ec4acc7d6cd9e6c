"""Prompts of the published circuits, tokenized: lengths, alignment, single-token answers, splits, templates."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest

from circuits import circuit as circuit_files
from circuits import models
from circuits import prompts as prompt_sets
from circuits.tasks.published import BUILDERS
from results_io import UserError
from tests.circuits import published_draws as draws

NAMES = (
    "ioi",
    "greater_than",
    "induction",
    "docstring",
    "gendered_pronoun",
    "acronym",
    "copy_suppression",
    "subject_verb_agreement",
)
CHANGED = {
    ("ioi", "abc"): {"io", "s1", "s2"},
    ("ioi", "random_name"): {"s2"},
    ("ioi", "name_swap"): {"s2"},
    ("greater_than", "01"): {"yy"},
    ("induction", "other_next"): {"first_next"},
    ("docstring", "random_answer"): {"c_def"},
    ("docstring", "random_doc"): {"a_doc", "b_doc"},
    ("docstring", "random_def_doc"): {"a_def", "b_def", "a_doc", "b_doc"},
    ("gendered_pronoun", "other_gender"): {"name"},
    ("acronym", "third_word"): {"w3"},
    ("acronym", "all_words"): {"w1", "w2", "w3"},
    ("copy_suppression", "other_word"): {"listed"},
    ("copy_suppression", "answer_listed"): {"listed"},
    ("subject_verb_agreement", "subject_number"): {"subject"},
    ("subject_verb_agreement", "other_subject"): {"subject"},
    ("successor", "other_start"): {"first", "second", "third"},
}  # induction/other_words changes the whole first reading, see below
LENGTHS = {
    "ioi": (13, 19),
    "greater_than": (11, 14),
    "induction": (13, 28),
    "docstring": (47, 50),
    "gendered_pronoun": (10, 13),
    "acronym": (7, 12),
    "copy_suppression": (8, 12),
    "subject_verb_agreement": (5, 9),
    "successor": (10, 13),
}  # tokens of the shortest and the longest template in GPT-2, without BOS
PUBLISHED = models.PUBLISHED / "gpt2"  # of GPT-2 small; the docstring circuit is another model's
every_way = pytest.mark.parametrize(("name", "corruption"), draws.WAYS)
every_draw = pytest.mark.parametrize(("kind", "name", "corruption"), draws.DRAWS)


def token_at(offsets: list[tuple[int, int]], span: tuple[int, int]) -> int:
    """Index of the last token that overlaps the span."""
    return max(i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0])


def encode(kind: str, texts: list[str]) -> list:
    return draws.tokenizer(kind).backend_tokenizer.encode_batch(texts, add_special_tokens=False)


def test_the_registry_holds_the_eight_tasks() -> None:
    assert tuple(name for name in BUILDERS if name in NAMES) == NAMES
    assert set(draws.WAYS) == set(CHANGED) | {("induction", "other_words")}
    defaults = {name: draws.task("whole_words", name).corruption for name in NAMES}
    assert defaults["ioi"] == "abc" and defaults["greater_than"] == "01" and defaults["docstring"] == "random_answer"
    for name, module in BUILDERS.items():
        task = draws.task("whole_words", name)
        assert task.name == name == module.NAME
        assert task.corruption == next(iter(module.CORRUPTIONS))
        assert task.bos and task.vocabulary is draws.vocabulary("whole_words")


def test_companions_are_the_four_other_tasks_that_share_least() -> None:
    """None shares the mechanism, and none left out shares fewer heads of the published circuits."""
    mechanism = (
        {"ioi", "copy_suppression"}, {"ioi", "induction"}, {"docstring", "induction"}, {"docstring", "copy_suppression"},
    )  # fmt: skip
    heads = {path.stem: set(circuit_files.load(path).heads) for path in PUBLISHED.glob("*.yaml")}
    assert set(heads) == set(NAMES) - {"docstring"}
    for name in NAMES:
        companions = draws.task("whole_words", name).companions
        assert len(set(companions)) == len(companions) == 4
        assert set(companions) < set(NAMES) - {name}
        allowed = [other for other in NAMES if other != name and {name, other} not in mechanism]
        assert set(companions) <= set(allowed)
        shared = {other: len(heads[name] & heads[other]) for other in allowed if name in heads and other in heads}
        most = max((shared.get(companion, 0) for companion in companions), default=0)
        assert all(count >= most for other, count in shared.items() if other not in companions), (name, shared)


def test_an_unknown_corruption_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"unknown corruption 'abd' of task ioi: expected one of abc, random_name, name"
    ):
        BUILDERS["ioi"].build(draws.vocabulary("whole_words"), "abd")


@pytest.mark.sampled(12)
@every_draw
def test_splits_are_full_distinct_and_disjoint(kind, name, corruption) -> None:
    drawn = draws.splits(kind, name, corruption)
    assert {split: len(examples) for split, examples in drawn.items()} == draws.SIZES
    texts = [example.clean for examples in drawn.values() for example in examples]
    assert len(set(texts)) == len(texts) == 1160
    for split, examples in drawn.items():
        assert {prompt_sets.split_of(example) for example in examples} == {split}
    assert all(example.clean != example.corrupted for examples in drawn.values() for example in examples)


@pytest.mark.parametrize("name", NAMES)
def test_no_prompt_is_in_two_splits_of_different_seeds(name) -> None:
    task, where = draws.task("whole_words", name), defaultdict(set)
    for seed in range(3):
        for split, examples in prompt_sets.draw_examples(task, {"discovery": 60, "evaluation": 60}, seed).items():
            for example in examples:
                where[example.clean].add(split)
    assert max(map(len, where.values())) == 1


@pytest.mark.sampled(12)
@every_draw
def test_pairs_are_aligned_and_differ_at_the_named_positions_only(kind, name, corruption) -> None:
    task, examples = draws.task(kind, name, corruption), draws.examples(kind, name, corruption)
    lengths, positions = defaultdict(set), defaultdict(set)
    sides = [encode(kind, [getattr(example, side) for example in examples]) for side in ("clean", "corrupted")]
    for example, clean, corrupted in zip(examples, *sides, strict=True):
        assert len(clean.ids) == len(corrupted.ids)
        assert draws.tokenizer(kind).unk_token_id not in clean.ids + corrupted.ids
        assert tuple(example.positions) == task.roles
        at = {role: token_at(clean.offsets, span) for role, span in example.positions.items()}
        assert at["end"] == len(clean.ids) - 1
        differing = {i for i, pair in enumerate(zip(clean.ids, corrupted.ids, strict=True)) if len(set(pair)) > 1}
        if (name, corruption) in CHANGED:
            assert differing == {at[role] for role in CHANGED[name, corruption]}
        else:
            length, repeated = BUILDERS["induction"].REPEATED[example.template]
            assert differing == set(range(len(clean.ids) - repeated - length, len(clean.ids) - repeated))
        lengths[example.template].add(len(clean.ids))
        positions[example.template].add(tuple(at.values()))
    assert max(len(found) for found in lengths.values()) == 1
    assert max(len(found) for found in positions.values()) == 1
    shortest, *_, longest = sorted(length for found in lengths.values() for length in found)
    if kind == "gpt2":
        assert (shortest, longest) == LENGTHS[name]


@pytest.mark.sampled(4)
@every_draw
def test_answers_and_foils_are_one_token_each_in_the_whole_text(kind, name, corruption) -> None:
    examples = random.Random(0).sample(draws.examples(kind, name, corruption), 40)
    texts, before = [], []
    for example in examples:
        clean = draws.vocabulary(kind).ids(example.clean)
        assert example.answers and example.wrong and not set(example.answers) & set(example.wrong)
        for word in example.answers + example.wrong:
            texts.append(example.clean + example.joint + word)
            before.append(clean)
    for encoded, clean in zip(encode(kind, texts), before, strict=True):
        assert encoded.ids[:-1] == clean
        assert encoded.ids[-1] != draws.tokenizer(kind).unk_token_id


@pytest.mark.sampled(4)
@every_draw
def test_the_prompt_set_accepts_every_example(kind, name, corruption) -> None:
    task, examples = draws.task(kind, name, corruption), draws.splits(kind, name, corruption)["held_out"]
    tokenizer = draws.tokenizer(kind)
    prompts = prompt_sets.tokenize(task, examples, tokenizer, "held_out")
    assert len(prompts) == 200
    assert set(prompts.clean[:, 0].tolist()) == {tokenizer.bos_token_id}
    answers = [tokenizer.decode(int(ids[0])).strip() for ids in prompts.answers]
    assert answers == [example.answers[0] for example in examples]


@pytest.mark.sampled(4)
@every_way
def test_templates_are_equally_frequent_and_clusters_plentiful(name, corruption) -> None:
    examples = draws.examples("whole_words", name, corruption)
    labels = draws.task("whole_words", name, corruption).templates
    for split, drawn in draws.splits("whole_words", name, corruption).items():
        templates = Counter(example.template for example in drawn)
        assert set(templates) == set(labels)
        each = draws.SIZES[split] // len(labels)
        assert set(templates.values()) <= {each, each + 1}, templates
    clusters = Counter(example.cluster for example in examples)
    entropy = -sum(count / len(examples) * math.log(count / len(examples)) for count in clusters.values())
    assert math.exp(entropy) > (90 if name == "gendered_pronoun" else 300)  # effective number of sampling units


@pytest.mark.parametrize("name", NAMES)
def test_examples_follow_from_the_seed(name) -> None:
    task = draws.task("whole_words", name)

    def draw(seed: int) -> list:
        rng = random.Random(seed)
        return [task.sample(rng) for _ in range(20)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
