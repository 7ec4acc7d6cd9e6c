"""The larger grammars of wordings: how many, distinct, aligned, and the default ones as they were."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import cache

import pytest

import results_io
from circuits import prompts, tasks
from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import gendered_pronoun, greater_than, induction, ioi, lexicon, subject_verb_agreement
from circuits.tasks.base import Task
from circuits.tasks.example import SLOT, Example, frame_of
from circuits.tasks.published import BUILDERS
from circuits.tasks.wordings import crossed, extended
from results_io import UserError
from tests.circuits import published_draws as draws

FEWEST = 40
EMBEDDED = {
    module.TASK.name: module for module in (ioi, greater_than, subject_verb_agreement, gendered_pronoun, induction)
}
FRAMES = {"ioi": 42, "greater_than": 48, "subject_verb_agreement": 42, "gendered_pronoun": 44, "induction": 44}
PUBLISHED_FRAMES = {
    "ioi": 42,
    "greater_than": 40,
    "induction": 42,
    "docstring": 42,
    "gendered_pronoun": 40,
    "acronym": 40,
    "copy_suppression": 40,
    "subject_verb_agreement": 44,
}
SIZES = {"discovery": 200, "groups": 40, "evaluation": 400, "held_out": 200, "reference": 360}
BEFORE = {
    "ioi": "5e4bd725126ecd1d",
    "greater_than": "7f51adb8b5d8501c",
    "subject_verb_agreement": "603294a1397a054d",
    "gendered_pronoun": "b8aab8da62689fba",
    "induction": "13911e2cb7f535f6",
}  # sha256 of the default prompts before there were larger grammars
EVERY = [("pocket", name) for name in FRAMES] + [(kind, name) for kind in draws.TOKENIZERS for name in PUBLISHED_FRAMES]
everywhere = pytest.mark.parametrize(("kind", "name"), EVERY)


@cache
def tokenizer(kind: str):
    return build_tokenizer() if kind == "pocket" else draws.tokenizer(kind)


@cache
def task(kind: str, name: str) -> Task:
    return tasks.get(name, None if kind == "pocket" else draws.vocabulary(kind), templates="more")


@cache
def drawn(kind: str, name: str) -> dict[str, list[Example]]:
    """Three examples of every template."""
    found: dict[str, list[Example]] = defaultdict(list)
    more, rng = task(kind, name), random.Random(0)
    while len(found) < len(more.templates) or min(map(len, found.values())) < 3:
        example = more.sample(rng)
        found[example.template].append(example)
    return {template: found[template][:3] for template in more.templates}


@pytest.mark.sampled(4)
@everywhere
def test_there_are_forty_frames_and_each_is_another_text(kind, name) -> None:
    """The default templates are among them, and draws of all of them hardly ever coincide."""
    templates = task(kind, name).templates
    assert len(set(templates)) == len(templates)
    frames = {frame_of(template) for template in templates}
    assert len(frames) == (FRAMES if kind == "pocket" else PUBLISHED_FRAMES)[name] >= FEWEST
    own = tasks.TASKS[name] if kind == "pocket" else BUILDERS[name].build(draws.vocabulary(kind))
    shown = own.templates or {own.sample(random.Random(seed)).template for seed in range(300)}
    assert set(shown) < set(templates)
    assert set(drawn(kind, name)) == set(templates)
    texts = [example.clean for examples in drawn(kind, name).values() for example in examples]
    assert len(set(texts)) > 0.99 * len(texts)


@pytest.mark.parametrize(
    "module", [*(EMBEDDED[name] for name in FRAMES), *BUILDERS.values()], ids=lambda module: module.__name__
)
def test_no_two_frames_are_the_same_text(module) -> None:
    assert len(set(module.MORE.values())) == len(module.MORE) >= FEWEST
    for text in filter(lambda one: isinstance(one, str), module.MORE.values()):
        assert text == text.strip() and "  " not in text.replace("    ", "")  # a docstring is indented by four


@pytest.mark.sampled(4)
@everywhere
def test_prompts_are_aligned_and_every_role_is_where_it_says(kind, name) -> None:
    """Pairs of one length, one length and one place of each role for a template, single-token answers, known words."""
    more, own = task(kind, name), tokenizer(kind)
    for template, examples in drawn(kind, name).items():
        made = prompts.tokenize(
            more, examples, own, "evaluation"
        )  # refuses unequal pairs and answers of several tokens
        assert len(made.lengths) == 1 and own.unk_token_id not in (made.clean[:, 1:].flatten().tolist())
        for role, where in made.positions.items():
            assert len(set(where.tolist())) == 1, (template, role)
            for row, example in enumerate(examples):
                said = example.clean[slice(*example.positions[role])]
                token = own.decode([int(made.clean[row, where[row]])]).strip()
                assert token and said.endswith(token), (template, role, said, token)
        assert made.positions["end"].tolist() == made.end.tolist()
        assert (made.clean != made.corrupted).any(1).all()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FRAMES)
def test_splits_have_every_template_equally_often(name) -> None:
    more = task("pocket", name)
    for split, examples in prompts.draw_examples(more, SIZES, seed=0).items():
        counts = [[example.template for example in examples].count(template) for template in more.templates]
        assert sum(counts) == SIZES[split] and max(counts) - min(counts) <= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FRAMES)
def test_default_prompts_are_the_same_to_the_byte(name) -> None:
    for chosen in (tasks.get(name), tasks.get(name, templates="default")):
        examples = prompts.draw_examples(chosen, SIZES, seed=0)
        found = {split: [vars(example) for example in split_examples] for split, split_examples in examples.items()}
        assert results_io.sha256(found)[:16] == BEFORE[name]


def test_words_of_the_embedded_grammars_are_pockets() -> None:
    for name in set(FRAMES) - {"induction"}:
        for text in EMBEDDED[name].MORE.values():
            written = SLOT.sub(" ", text).replace(",", " ").replace(".", " ").split()
            assert set(written) <= set(lexicon.VOCABULARY), (name, text)


def test_a_wrong_value_and_a_task_without_a_larger_grammar_are_refused() -> None:
    with pytest.raises(UserError, match=r"^prompts.templates=mroe is unknown; use default or more$"):
        tasks.get("ioi", templates="mroe")
    alone = Task("alone", "Alone", lambda rng: None, ("end",), ())
    tasks.TASKS["alone"] = alone
    try:
        with pytest.raises(
            UserError, match=r"^prompts.templates=more: task alone has no larger grammar of wordings; leave"
        ):
            tasks.get("alone", templates="more")
        assert tasks.get("alone").sample is alone.sample
    finally:
        del tasks.TASKS["alone"]


def test_parts_are_crossed_and_texts_that_stand_already_are_left_out() -> None:
    made = crossed({"a": "A ", "b": "B "}, {"x": "x", "y": "y"}, {"": "."})
    assert made == {"a_x": "A x.", "a_y": "A y.", "b_x": "B x.", "b_y": "B y."}
    assert extended({"first": "A y."}, made) == {"first": "A y.", "a_x": "A x.", "b_x": "B x.", "b_y": "B y."}
    with pytest.raises(ValueError, match=r"^two wordings are called 'a_x': 'other' and 'A x\.'; rename a part of one$"):
        extended({"a_x": "other"}, made)
    assert [frame_of(label) for label in ("when_went/ABBA", "when_went/BABA", "repeat_6")] == ["when_went"] * 2 + [
        "repeat_6"
    ]
