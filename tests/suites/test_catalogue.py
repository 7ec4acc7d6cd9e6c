"""The catalogue: every failure mode has a suite, every lock is what its declaration compiles to, sizes suffice for intervals."""

import re
from collections import Counter
from functools import cache

import pytest

from circuits.tasks import lexicon
from scripts import freeze_suites
from suites import declaration, lock, modes
from suites.item import Suite

NAMES = declaration.names()
NATURAL = {
    "A1",
    "A6",
    "A7",
    "A8",
    "A15",
    "A16",
    *(mode for mode in modes.EVERY if mode not in modes.MODES),
}  # instructions in free English, beyond the embedded vocabulary
LONGEST = 60  # words and marks: the embedded model reads 64 tokens, and has to write some
WORDS = re.compile(r"\d\d|\w+|[^\w\s]")


@cache
def load(name) -> Suite:
    """Locks are read by whoever tests one of them, not where tests are collected."""
    return declaration.load(name)


@cache
def readable() -> list[Suite]:
    """The suites of which every prompt is written in the embedded model's words."""
    known = set(lexicon.VOCABULARY)
    suites = [suite for suite in map(load, NAMES) if suite.mode not in NATURAL]
    return [
        suite for suite in suites if all(word in known for item in suite.items for word in WORDS.findall(item.prompt))
    ]


def test_every_mode_has_a_suite_and_the_embedded_model_reads_one_where_it_can():
    shipped = {f"A{number}" for number in range(1, 17)}
    assert {load(name).mode for name in NAMES} == set(modes.EVERY) >= shipped
    assert {suite.mode for suite in readable()} & shipped == shipped - NATURAL


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
def test_the_lock_is_what_the_declaration_compiles_to(name):
    suite = load(name)
    _, _, differs, _ = freeze_suites.freeze(suite.id)
    assert not differs
    assert suite.sha256 == lock.suite_hash(lock.item_hash(item, suite.scorer) for item in suite.items)


@pytest.mark.parametrize("name", NAMES)
def test_a_suite_is_fit_to_be_judged(name):
    suite = load(name)
    assert suite.id.startswith(f"{suite.mode[0].lower()}{int(suite.mode[1:]):02d}_")
    assert len(suite.items) >= max(suite.minimum, 20)
    assert len({(item.system, item.earlier, item.prompt) for item in suite.items}) == len(suite.items)
    assert "generation" in suite.requires and "reads" in suite.requires
    sampled = any(leg.temperature > 0 for leg in suite.legs)
    assert sampled == ("sampling" in suite.requires)
    assert any(item.system for item in suite.items) <= ("chat" in suite.requires)
    named = set(suite.trace.get("positions", ()))
    assert named <= {name for item in suite.items for name in item.spans}
    if modes.EVERY[suite.mode].TRACEABLE == "no":
        assert suite.trace["strategy"] == "none"
    if suite.trace["strategy"] == "none":
        assert suite.trace["reason"]


@pytest.mark.parametrize("name", NAMES)
def test_answers_distractors_and_choices_agree(name):
    suite = load(name)
    for item in suite.items:
        assert not set(item.answers) & set(item.distractors)
        if item.choices:
            assert {*item.answers, *item.distractors} <= set(item.choices)
        if item.variant and item.variant.kind not in ("unanswerable", *{i.template for i in suite.items}):
            assert item.answers == suite.by_id[item.variant.parent].answers


def test_prompts_fit_the_embedded_model():
    for suite in readable():
        longest = max(len(WORDS.findall(item.prompt)) for item in suite.items)
        assert longest + max(leg.max_tokens for leg in suite.legs) <= LONGEST, suite.id


def test_the_whole_catalogue_takes_the_embedded_model_seconds():
    requests = sum(len(suite.items) * sum(leg.samples for leg in suite.legs) for suite in readable())
    assert 1500 <= requests <= 8000  # some 35 s on one core


def test_padded_groups_are_large_enough_to_trace():
    """Per template at least 60 padded prompts of one length, three templates, 300 in all."""
    suite = load("a10_padding_ioi")
    padded = [item for item in suite.items if item.variant]
    groups = Counter((item.template, len(WORDS.findall(item.prompt))) for item in padded)
    assert len(padded) >= 300
    assert len(groups) == 3
    assert min(groups.values()) >= 60


def test_grids_have_ten_items_in_every_cell():
    suite = load("a12_needle_color")
    cells = Counter((item.factors["length"], item.factors["depth"]) for item in suite.items)
    assert len(cells) == 9
    assert min(cells.values()) >= 10


def test_slips_of_letters_and_instructions_are_beyond_the_embedded_vocabulary():
    beyond = set(NAMES) - {suite.id for suite in readable()}
    assert beyond == {
        "a01_json_extraction",
        "a06_asked_for_sources",
        "a07_asked_for_numbers",
        "a08_unanswerable",
        "a09_letter_slips_ioi",
        "a14_injected_order",
        "a15_codeword",
        "a16_invented_matters",
        *(name for name in NAMES if name.startswith(("s", "x"))),
    }
