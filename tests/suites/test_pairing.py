"""Failures become pairs: every reason to reject one reached and counted, the assignment against brute force, texts and tokens."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers import models as token_models
from transformers import PreTrainedTokenizerFast

from circuits import prompts as prompt_sets
from circuits import tasks
from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import Task
from suites.bridge import pairing, task
from suites.bridge.pair import MINIMUM_PAIRS, SuitePairs, TracePair
from suites.item import Item, ItemVariant, SamplingLeg
from suites.judgement import JudgedSuite
from suites.models import encoding
from suites.models.base import Generation, Request
from suites.outcome import Case, Detection, Outcome
from tests.suites import scripted

MONTHS = ("January", "February", "April", "June", "August", "November", "December", "May")


class Answers:
    """A model that says what a script says, by prompt; `margin` is that of its next token, nats."""

    capabilities = frozenset({"generation", "activations"})

    def __init__(self, tokenizer: Any = None) -> None:
        self.encoding = encoding.of_tokenizer(tokenizer or build_tokenizer())
        self.tokenizer = self.encoding.tokenizer
        self.script: dict[str, tuple[str, float]] = {}
        self.asked: list[Request] = []

    def generate(self, requests: Sequence[Request], done: Callable[[int], Any]) -> list[Generation]:
        self.asked += requests
        return [self._generation(self.script[request.prompt][0]) for request in requests]

    def _generation(self, text: str) -> Generation:
        tokens = tuple(self.encoding.tokens(text, bos=False))
        return Generation(text, "stop", tokens=tokens, tokens_out=len(tokens))

    def next_logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        return [self._logits(list(row)) for row in rows]

    def _logits(self, row: list[int]) -> torch.Tensor:
        for prompt, (text, margin) in self.script.items():
            ids = self.encoding.prompt(prompt)
            said = self.encoding.tokens(text, bos=False)
            if row[: len(ids)] == ids and said[: len(row) - len(ids)] == row[len(ids) :]:
                logits = torch.zeros(len(self.tokenizer))
                logits[said[len(row) - len(ids)]] = margin
                return logits
        raise AssertionError(f"not a prompt of the script: {self.tokenizer.decode(row)}")


class World:
    """Questions with variants, what was recorded of each, and the model that said it. `before`, `after`: of every prompt."""

    def __init__(self, tokenizer: Any = None, before: str = "", after: str = "") -> None:
        self.model, self.cases = Answers(tokenizer), []
        self.count, self.before, self.after = 0, before, after

    def question(
        self, name: str, passing: int = 1, failing: int = 1, right: bool = True, template: str = "t", **how: Any
    ) -> None:
        """An original (shorter than its variants) with variants of equal length that pass or fail.

        `passes`, `fails`: outputs; `again`: of the failing ones when run anew; `margin` of the failing ones.
        """
        number, self.count = self.count, self.count + 1
        names = tasks.lexicon.NAMES
        first, second = names[2 * number % len(names)], names[(2 * number + 1) % len(names)]
        question = f"When {first} and {second} went to the store, {first} gave a ring to"
        prompt = f"{self.before}{question}{self.after}"
        passes, fails = how.get("passes", second), how.get("fails", first)
        parent = Item(
            name, prompt, answers=(passes,), template=template, cluster=name, spans=self._spans(prompt, first, second)
        )
        original = self._case(parent, passes if right else fails, right, None)
        for place, good in enumerate([True] * passing + [False] * failing):
            text = f"{self.before}It was a long talk in {MONTHS[place]}. {question}{self.after}"
            spans = self._spans(text, first, second)
            item = replace(parent, id=f"{name}-{place}", prompt=text, spans=spans, variant=ItemVariant("filler", name))
            self._case(item, passes if good else fails, good, original)
            if not good:
                self.model.script[text] = (how.get("again", fails), how.get("margin", 6.0))

    @staticmethod
    def _spans(text: str, first: str, second: str) -> dict[str, tuple[int, int]]:
        start = text.index("When")
        places = {"s1": (text.index(first, start), first), "io": (text.index(second, start), second)}
        places["s2"] = (text.index(first, places["io"][0]), first)
        return {role: (at, at + len(word)) for role, (at, word) in places.items()}

    def _case(self, item: Item, text: str, right: bool, parent: Case | None) -> Case:
        case = Case(item, (Outcome("greedy", 0, text, correct=right, tokens=len(text.split())),), parent)
        failed = None if parent is None else not right
        self.cases.append((case, Detection(failed, "verified", reason="an original" if failed is None else "")))
        self.model.script[item.prompt] = (text, 6.0)
        return case

    def judged(self, **changes: Any) -> JudgedSuite:
        declared = {"mode": "A10", "trace": {"strategy": "sibling_filler", "related": ["ioi"]}, **changes}
        suite = scripted.suite([case.item for case, _ in self.cases], **declared)
        return JudgedSuite(suite, True, "", tuple(self.cases))

    def group(self, **changes: Any) -> SuitePairs:
        return pairing.group(self.judged(**changes), self.model)


def read(model: Answers, text: str) -> list[str]:
    return model.tokenizer.convert_ids_to_tokens(model.encoding.tokens(text))


# --- every reason --------------------------------------------------------------------------------------------------


@cache
def world_of_every_reason() -> World:
    world = World()
    world.question("good", passing=6)
    world.question("lonely", passing=0, right=False)
    world.question("longer than its original", passing=0)
    world.question("says something else now", again="Zoe")
    world.question("says the same", passes="Tom", fails="Tom")
    world.question("weak", margin=0.49)
    world.question("two for one", failing=2)
    world.question("unknown word", fails="<unk>")
    world.question("rare template", template="u")
    for place in range(6):
        world.question(f"own {place}", template="v", passing=2 if place < 4 else 1)
    return world


def test_every_reason_is_reached_exactly_once() -> None:
    world = world_of_every_reason()
    group = world.group()
    assert group.rejected == {
        "without a passing twin": 1,
        "without a passing twin of the same length": 1,
        "not reproduced at temperature 0": 1,
        "without a diverging token": 1,
        "weak (below 0.5 nats)": 1,
        "with a twin that another failure has": 1,
        "not the same tokens when written as text": 1,
        "kept as reference prompts": 1,
        "of a template with too few prompts": 1,
    }
    assert group.failures == 16
    assert len(group.pairs) + sum(group.rejected.values()) == group.failures
    assert [pair.source for pair in group.pairs][:2] == ["good-6", "two for one-1"]
    assert [pair.source for pair in group.pairs][2:] == [f"own {place}-{2 if place < 4 else 1}" for place in range(5)]
    assert len({pair.partner for pair in group.pairs}) == len(group.pairs)
    assert group.related == ("ioi",) and group.bos


def test_references_are_of_the_templates_of_pairs_and_in_none_of_them() -> None:
    group = world_of_every_reason().group()
    used = {text for pair in group.pairs for text in (pair.clean, pair.corrupted)}
    assert not used & {one.text for one in group.references}
    by_template = [one.template for one in group.references]
    assert {name: by_template.count(name) for name in set(by_template)} == {"t of 23 tokens": 9, "v of 23 tokens": 5}


def test_the_first_reason_counts() -> None:
    """Weak and of a rare template: weak."""
    world = World()
    world.question("a", template="u", margin=0.1)
    assert world.group().rejected == {"weak (below 0.5 nats)": 1}


@pytest.mark.parametrize(("margin", "pairs"), [(0.5, 1), (0.49, 0)])
def test_half_a_nat_is_enough(margin, pairs) -> None:
    world = World()
    world.question("a", passing=6, margin=margin)
    assert len(world.group().pairs) == pairs


def test_logit_differences_are_those_of_both_runs() -> None:
    world = World()
    world.question("a", passing=6, margin=2.5)
    (pair,) = world.group().pairs
    assert (pair.clean_logit_diff, pair.corrupted_logit_diff) == (6.0, -2.5)


def test_everything_is_asked_again_once_at_temperature_0() -> None:
    world = World()
    world.question("a", passing=6)
    world.group()
    assert len(world.model.asked) == 7 and len({request.prompt for request in world.model.asked}) == 7
    assert {request.temperature for request in world.model.asked} == {0.0}
    assert {(request.max_tokens, request.stop) for request in world.model.asked} == {(SamplingLeg().max_tokens, ())}


def test_prompts_are_asked_again_under_the_limits_of_their_own_leg() -> None:
    world = World()
    world.question("a", passing=6)
    legs = (SamplingLeg("short", max_tokens=1, stop=("!",)), SamplingLeg("greedy", max_tokens=3, stop=("\n", ".")))
    for place, (case, found) in enumerate(world.cases):
        if case.item.id == "a-6":
            outcomes = (replace(case.first, leg="short"),)
            world.cases[place] = (replace(case, outcomes=outcomes), found)
    assert len(world.group(legs=legs).pairs) == 1
    asked = {request.prompt: (request.max_tokens, request.stop) for request in world.model.asked}
    failing = next(case.item.prompt for case, _ in world.cases if case.item.id == "a-6")
    assert asked.pop(failing) == (1, ("!",))
    assert set(asked.values()) == {(3, ("\n", "."))}


@pytest.mark.parametrize("again", ["John.", "John ", "Jo", "John Will"])
def test_an_output_that_only_begins_alike_is_not_reproduced(again) -> None:
    world = World()
    world.question("a", passing=6, fails="John", again=again)
    assert world.group().rejected == {"not reproduced at temperature 0": 1}


# --- what cannot be traced at all ----------------------------------------------------------------------------------


def test_an_endpoint_shows_no_activations() -> None:
    world = World()
    world.question("a", passing=6, failing=2)
    world.model.capabilities = frozenset({"generation", "logprobs"})
    group = world.group()
    assert group.rejected == {
        "not traceable (an endpoint, or a model with an intervention: its activations are out of reach)": 2
    }
    assert (group.pairs, group.references, world.model.asked) == ((), (), [])
    assert "0 of 2 failures traceable; others: 2 not traceable" in group.sentence


@pytest.mark.parametrize("mode", ["A4", "A6", "A7"])
def test_modes_without_a_counterfactual_token_are_not_traceable(mode) -> None:
    world = World()
    world.question("a", passing=6)
    (reason,) = world.group(mode=mode).rejected
    assert reason.startswith("not traceable (")


def test_a_suite_may_ask_for_no_pairs() -> None:
    world = World()
    world.question("a", passing=6)
    assert world.group(trace={"strategy": "none"}).rejected == {"not traceable by design": 1}


# --- the assignment ------------------------------------------------------------------------------------------------


def run(name: str, ids: Sequence[int]) -> Any:
    return pairing._Run(Case(Item(name, ""), ()), "", list(ids))


def best_by_hand(distance: Mapping[tuple[int, int], int], failing: int, passing: int) -> tuple[int, int]:
    """(pairs, total distance) of the best assignment: all of them are tried."""
    found = []
    places = [*range(passing), *[None] * failing]
    for choice in set(itertools.permutations(places, failing)):
        pairs = [(row, column) for row, column in enumerate(choice) if (row, column) in distance]
        found.append((-len(pairs), sum(distance[pair] for pair in pairs)))
    return min(found)


@pytest.mark.parametrize("seed", range(25))
def test_the_assignment_is_the_largest_and_of_those_the_cheapest(seed) -> None:
    rng = random.Random(seed)
    failing = [run(f"f{row}", [rng.randrange(3) for _ in range(6)]) for row in range(rng.randint(1, 4))]
    passing = [run(f"p{column}", [rng.randrange(3) for _ in range(6)]) for column in range(rng.randint(1, 4))]
    drafts = [pairing._Draft(one, other) for one in failing for other in passing if rng.random() < 0.6]
    chosen = pairing._assigned(drafts)
    distance = {
        (failing.index(draft.failing), passing.index(draft.passing)): sum(
            a != b for a, b in zip(draft.failing.ids, draft.passing.ids, strict=True)
        )
        for draft in drafts
    }
    own = [(failing.index(draft.failing), passing.index(draft.passing)) for draft in chosen]
    assert len({row for row, _ in own}) == len({column for _, column in own}) == len(own)
    assert (-len(own), sum(distance[pair] for pair in own)) == best_by_hand(distance, len(failing), len(passing))


# --- texts, tokens, positions --------------------------------------------------------------------------------------


def test_a_pair_as_text() -> None:
    world = World()
    world.question("a", passing=6)
    (pair,) = world.group().pairs
    assert pair.clean == "It was a long talk in January. When John and Tom went to the store, John gave a ring to"
    assert pair.corrupted == pair.clean.replace("January", MONTHS[6])
    assert (pair.answer, pair.wrong, pair.joint) == ("Tom", "John", " ")
    assert (pair.source, pair.cluster, pair.strategy) == ("a-6", "a", "sibling_filler")
    tokens = read(world.model, pair.clean)
    assert pair.changed == (tokens.index("January"),) * 2
    spans = {role: pair.clean[start:end] for role, (start, end) in pair.positions.items()}
    assert spans == {"s1": "John", "io": "Tom", "s2": "John", "difference": "January", "end": "o"}
    assert pair.positions["s1"][0] < pair.positions["io"][0] < pair.positions["s2"][0]


def test_what_two_token_outputs_share_becomes_part_of_both_texts() -> None:
    world = World()
    for place in range(11):
        world.question(str(place), passes="Frank Will", fails="Frank Jane")
    group = world.group()
    assert group.rejected == {"kept as reference prompts": 5}
    for pair in group.pairs:
        assert pair.clean.endswith("gave a ring to Frank") and pair.corrupted.endswith("gave a ring to Frank")
        assert (pair.answer, pair.wrong) == ("Will", "Jane")
        assert pair.clean[slice(*pair.positions["end"])] == "k"
        assert pair.template == "t of 24 tokens, 1 of them said"


def test_longer_prompts_are_no_references_for_pairs_that_end_in_said_tokens() -> None:
    """As many tokens, of which the last is the prompt's own: not the same positions."""
    world = World()
    world.question("a", passes="Frank Will", fails="Frank Jane")
    world.question("b", passing=6, failing=0)
    for place, (case, found) in enumerate(world.cases):
        item = case.item
        if item.id.startswith("b-"):
            longer = replace(item, prompt=item.prompt.replace("a long", "a very long"))
            world.cases[place] = (replace(case, item=longer), found)
    assert world.group().rejected == {"of a template with too few prompts": 1}


def test_pairs_are_equally_long_and_positions_point_at_their_words_once_tokenized() -> None:
    world = world_of_every_reason()
    group = world.group()
    prompts = prompt_sets.tokenize(
        task.build(group, None), [task._example(pair) for pair in group.pairs], world.model.tokenizer, "discovery"
    )
    for place, pair in enumerate(group.pairs):
        clean, corrupted = (read(world.model, text) for text in (pair.clean, pair.corrupted))
        assert len(clean) == len(corrupted) == int(prompts.end[place]) + 1
        differ = [i for i, (a, b) in enumerate(zip(clean, corrupted, strict=True)) if a != b]
        assert pair.changed == (differ[0], differ[-1])
        words = {role: clean[int(where[place])] for role, where in prompts.positions.items()}
        (answer,), (wrong,) = (
            world.model.tokenizer.convert_ids_to_tokens(ids[place]) for ids in (prompts.answers, prompts.wrong)
        )
        assert (answer, wrong) == (pair.answer, pair.wrong)
        assert words == {"s1": wrong, "io": answer, "s2": wrong, "difference": clean[differ[-1]], "end": "to"}
        assert prompts.positions["s1"][place] < prompts.positions["s2"][place]


def test_a_prompt_with_two_ids_is_in_one_pair_and_no_reference() -> None:
    """Reference prompts must be outside of the scored ones, and no two pairs may share a run."""
    world = World()
    world.question("a", passing=6)
    world.question("b", passing=1, failing=2)
    case, found = next(one for one in world.cases if one[0].item.id == "b-0")
    world.cases.append((replace(case, item=replace(case.item, id="b-again")), found))
    group = world.group()
    assert [pair.source for pair in group.pairs] == ["a-6", "b-1"]
    assert group.rejected == {"with a twin that another failure has": 1}
    used = {text for pair in group.pairs for text in (pair.clean, pair.corrupted)}
    assert not used & {one.text for one in group.references}


# --- byte-level tokens and chat templates --------------------------------------------------------------------------


BOS = "<|begin|>"
TEMPLATES = {
    "writes BOS": "{{ bos_token }}user: {{ messages[0]['content'] }}\nassistant:",
    "writes none": "user: {{ messages[0]['content'] }}\nassistant:",
    "trims": "{{ bos_token }}user: {{ messages[0]['content'] | trim }}\nassistant:",
}


@cache
def byte_level(template: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE whose words, each with the space before it, are single tokens; with a chat template or without."""
    backend = Tokenizer(token_models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=3000, min_frequency=1, special_tokens=[BOS], initial_alphabet=alphabet, show_progress=False
    )
    words = "It was a long talk in When and went to the store gave ring user assistant".split()
    backend.train_from_iterator([f" {word}" for word in (*words, *MONTHS, *tasks.lexicon.NAMES)], trainer)
    found = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=BOS, unk_token=BOS)
    found.chat_template = TEMPLATES[template] if template else None
    return found


def spans_of(pair: TracePair) -> dict[str, str]:
    return {role: pair.clean[start:end] for role, (start, end) in pair.positions.items()}


def test_a_wanted_word_and_a_said_sign_are_paired_as_they_were_written() -> None:
    """The word's token begins with a space and the sign's does not, so that no joint but none fits both."""
    world = World(byte_level())
    world.question("a", passing=6, passes=" Mary", fails=".")
    (pair,) = world.group().pairs
    assert (pair.answer, pair.wrong, pair.joint) == (" Mary", ".", "")
    prompts = tokenized(world)
    tokens = world.model.tokenizer.convert_ids_to_tokens([int(prompts.answers[0, 0]), int(prompts.wrong[0, 0])])
    assert tokens == ["ĠMary", "."]


def test_two_byte_level_words_are_joined_by_a_space() -> None:
    world = World(byte_level())
    world.question("a", passing=6, passes=" Tom", fails=" John")
    (pair,) = world.group().pairs
    assert (pair.answer, pair.wrong, pair.joint) == ("Tom", "John", " ")


def test_two_signs_are_joined_by_nothing() -> None:
    world = World(byte_level())
    world.question("a", passing=6, passes="!", fails=".")
    (pair,) = world.group().pairs
    assert (pair.answer, pair.wrong, pair.joint) == ("!", ".", "")


def tokenized(world: World) -> prompt_sets.PromptSet:
    """The pairs of a world as a study of the task reads them."""
    group = world.group()
    examples = [task._example(pair) for pair in group.pairs]
    built = Task(
        name=task.NAME, title="", sample=None, roles=tuple(group.pairs[0].positions), companions=(), bos=group.bos
    )
    return prompt_sets.tokenize(built, examples, world.model.tokenizer, "discovery")


@pytest.mark.parametrize(
    ("template", "before", "after"),
    [
        ("writes BOS", "", ""),
        ("writes none", "", ""),
        ("trims", "", ""),
        ("trims", " \n ", "  \n"),
        ("writes BOS", " ", " "),
    ],
)
def test_under_a_chat_template_spans_point_at_their_words(template, before, after) -> None:
    world = World(byte_level(template), before, after)
    world.question("a", passing=6, passes=" Tom", fails=" John")
    group = world.group()
    (pair,) = group.pairs
    failing = next(case.item for case, _ in world.cases if case.item.id == pair.source)
    assert group.bos is False  # a template writes what BOS it wants
    assert pair.corrupted == world.model.encoding.rendered(failing.prompt) and pair.clean.endswith("\nassistant:")
    spans = {role: text.strip() for role, text in spans_of(pair).items()}
    assert spans == {"s1": "John", "io": "Tom", "s2": "John", "difference": "January", "end": ":"}
    assert pair.positions["s1"][0] < pair.positions["io"][0] < pair.positions["s2"][0]


@pytest.mark.parametrize("template", [None, *TEMPLATES])
def test_a_study_reads_the_tokens_that_the_suite_asked_with(template) -> None:
    world = World(byte_level(template), " " if template == "trims" else "")
    world.question("a", passing=6, passes=" Tom", fails=" John")
    prompts, (pair,) = tokenized(world), world.group().pairs
    items = {case.item.id: case.item for case, _ in world.cases}
    for row, source in ((prompts.clean, pair.partner), (prompts.corrupted, pair.source)):
        assert row[0].tolist() == world.model.encoding.prompt(items[source].prompt)
    words = world.model.tokenizer.convert_ids_to_tokens(prompts.clean[0].tolist())
    found = {role: words[int(where[0])] for role, where in prompts.positions.items()}
    end = ":" if template else "Ġto"
    assert found == {"s1": "ĠJohn", "io": "ĠTom", "s2": "ĠJohn", "difference": "ĠJanuary", "end": end}
    assert words[int(prompts.positions["difference"][0])] == words[pair.changed[1]]
    assert (words[0] == BOS) is (template != "writes none") and words.count(BOS) <= 1


def test_words_at_other_places_name_no_position() -> None:
    """As many tokens, and the same words in another order: a position would show one word here and another there."""
    world = World()
    world.question("a", passing=1)
    world.question("b", passing=6)
    for place, (case, found) in enumerate(world.cases):
        if case.item.id == "a-1":
            spans = dict(case.item.spans)
            spans["s1"], spans["io"] = spans["io"], spans["s1"]
            world.cases[place] = (replace(case, item=replace(case.item, spans=spans)), found)
    group = world.group()
    assert len(group.pairs) == 2 and group.rejected == {}
    assert all(set(pair.positions) == {"s2", "difference", "end"} for pair in group.pairs)


def test_a_case_whose_call_failed_is_neither_twin_nor_reference() -> None:
    world = World()
    world.question("a", passing=7)
    place = next(i for i, (case, _) in enumerate(world.cases) if case.item.id == "a-0")
    case, _ = world.cases[place]
    failed = replace(case.first, text="", finish="error", error="timeout", correct=None)
    world.cases[place] = (replace(case, outcomes=(failed,)), Detection(None, "verified", reason="timeout"))
    group = world.group()
    (pair,) = group.pairs
    assert pair.partner == "a-1"
    assert case.item.prompt not in {one.text for one in group.references}
    assert case.item.prompt not in {request.prompt for request in world.model.asked}


# --- the group as data ---------------------------------------------------------------------------------------------


def group_of(count: int, failures: int | None = None) -> SuitePairs:
    world = World()
    world.question("a", passing=6)
    group = world.group()
    pairs = tuple(replace(group.pairs[0], source=str(place)) for place in range(count))
    return replace(group, pairs=pairs, failures=failures or count)


def test_fewer_than_twenty_pairs_are_an_anecdote() -> None:
    few, enough = group_of(MINIMUM_PAIRS - 1), group_of(MINIMUM_PAIRS)
    assert (few.traceable, enough.traceable) == (False, True)
    assert "19 of 19 failures traceable (fewer than 20: an anecdote)" in few.sentence
    assert "anecdote" not in enough.sentence


def test_the_sentence_names_the_reasons_the_most_frequent_first() -> None:
    group = replace(group_of(20, failures=26), rejected={"weak": 1, "without a passing twin": 3, "aligned": 2})
    assert group.sentence.endswith(
        "(A10): 20 of 26 failures traceable; others: 3 without a passing twin, 2 aligned, 1 weak"
    )


def test_groups_come_back_from_json_as_they_were() -> None:
    group = world_of_every_reason().group()
    assert SuitePairs.from_dict(json.loads(json.dumps(group.to_dict()))) == group
    assert isinstance(group.pairs[0], TracePair)
