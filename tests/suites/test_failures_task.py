"""The task made of failures: its splits, its prompts on pocket, and what is refused before any of it."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from circuits import models, tasks
from circuits import prompts as prompt_sets
from circuits import study as studies
from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import lexicon
from results_io import UserError
from suites.bridge import stored_pairs, task
from suites.bridge.pair import ReferencePrompt, SuitePairs, TracePair

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": None}
SIZES = {"discovery": 200, "evaluation": 400, "held_out": 200, "reference": 360}
COMMAND = "python run.py suite=all"
LABEL = "t of 23 tokens"


def texts(cluster: int, member: int) -> tuple[str, str, dict[str, tuple[int, int]], str, str]:
    """A prompt pair about two names (the cluster): clean, corrupted, positions, answer, wrong."""
    first, second = lexicon.NAMES[2 * cluster], lexicon.NAMES[2 * cluster + 1]
    place = lexicon.PLACES[member]
    clean, corrupted = (
        f"It was a long talk in {month}. When {first} and {second} went to the {place}, {first} gave a ring to"
        for month in ("May", "June")
    )
    at = clean.index(second)
    spans = {"io": (at, at + len(second)), "difference": (22, 25), "end": (len(clean) - 1, len(clean))}
    return clean, corrupted, spans, second, first


def pair(cluster: int, member: int) -> TracePair:
    clean, corrupted, spans, answer, wrong = texts(cluster, member)
    return TracePair(
        source=f"{cluster}-{member}",
        partner=f"{cluster}-{member}-passing",
        strategy="sibling_filler",
        template=LABEL,
        cluster=str(cluster),
        clean=clean,
        corrupted=corrupted,
        answer=answer,
        wrong=wrong,
        joint=" ",
        changed=(7, 7),
        positions=spans,
        clean_logit_diff=3.0,
        corrupted_logit_diff=-2.0,
    )


def group(sizes: Sequence[int], suite: str = "a", failures: int | None = None) -> SuitePairs:
    """One pair for each member of clusters of these sizes, and six references."""
    pairs = tuple(pair(cluster, member) for cluster, size in enumerate(sizes) for member in range(size))
    spare = [texts(cluster, 19) for cluster in range(6)]
    references = tuple(ReferencePrompt(clean, LABEL, "spare", spans) for clean, _, spans, _, _ in spare)
    return SuitePairs(suite, "A10", "Padding", failures or len(pairs), pairs, references, {}, related=("ioi",))


# --- splits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_clusters_stay_together_and_shares_are_near_a_half_a_third_and_a_sixth(seed) -> None:
    """A split is filled until it is furthest below its share, so it is off by at most about the largest cluster."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(8, 20))]
    given = task.split(group(sizes))
    clusters = {name: {one.cluster for one in given[name]} for name in task.SHARES}
    assert sum(map(len, clusters.values())) == len(set.union(*clusters.values())) == len(sizes)
    assert sum(len(given[name]) for name in task.SHARES) == sum(sizes)
    for name, share in task.SHARES.items():
        assert abs(len(given[name]) - share * sum(sizes)) <= max(sizes)


def test_sixty_single_pairs_are_thirty_twenty_and_ten() -> None:
    given = task.split(group([1] * 40 + [2] * 10))
    assert {name: len(given[name]) for name in task.SHARES} == {"discovery": 30, "evaluation": 20, "held_out": 10}


def test_the_split_depends_on_the_clusters_and_not_on_the_order_of_pairs() -> None:
    given = group([2] * 20)
    shuffled = replace(given, pairs=tuple(random.Random(0).sample(given.pairs, len(given.pairs))))
    first, again, other = (task.split(one) for one in (given, given, shuffled))
    assert first == again
    for name in task.SHARES:
        assert {one.clean for one in first[name]} == {one.clean for one in other[name]}


def test_references_are_none_of_the_scored_prompts() -> None:
    given = task.split(group([3] * 10))
    scored = {text for name in task.SHARES for one in given[name] for text in (one.clean, one.corrupted)}
    assert len(given["reference"]) == 6
    assert not scored & {one.clean for one in given["reference"]}


# --- on pocket -----------------------------------------------------------------------------------------------------


def test_every_pair_is_tokenized_as_it_says() -> None:
    tokenizer = build_tokenizer()
    built = task.build(group([2] * 15), None)
    assert built.roles == ("io", "difference", "end") and built.sample is None
    assert "ioi" not in built.companions and set(built.companions) == set(tasks.names(None)) - {"ioi"}
    assert sum(len(built.given[split]) for split in task.SHARES) == 30
    for split in built.given:
        drawn = prompt_sets.draw_examples(built, SIZES, seed=0)[split]
        prompts = prompt_sets.tokenize(built, drawn, tokenizer, split)
        assert prompts.end.tolist() == [22] * len(prompts)
        for place, example in enumerate(drawn):
            words = tokenizer.convert_ids_to_tokens(prompts.clean[place].tolist())
            found = {role: words[int(where[place])] for role, where in prompts.positions.items()}
            assert (found["difference"], found["end"]) == ("May", "to")
            assert tokenizer.convert_ids_to_tokens(prompts.wrong[place].tolist()) == list(example.wrong)
            if split != "reference":  # whose answer is only their template's
                assert [found["io"]] == tokenizer.convert_ids_to_tokens(prompts.answers[place].tolist())


@pytest.mark.slow
def test_a_study_of_failures_is_prepared_and_smaller_sizes_take_the_first() -> None:
    built = task.build(group([2] * 15), None)
    model = models.load(POCKET)
    study = studies.prepare(model, built, SIZES, seed=0)
    sizes = {name: len(built.given[name]) for name in task.SHARES}
    assert len(study.discovery) == sizes["discovery"] and sum(sizes.values()) == 30
    assert len(study.prompts.rows_of("evaluation")) == sizes["evaluation"]
    assert len(study.prompts.rows_of("held_out")) == sizes["held_out"]
    assert not set(study.discovery.clusters) & set(study.prompts.clusters)
    few = studies.prepare(model, built, {**SIZES, "discovery": 4}, seed=0)
    assert few.discovery.ids == study.discovery.ids[:4]
    assert few.prompts.ids == study.prompts.ids


# --- refusals ------------------------------------------------------------------------------------------------------


def refusal(groups: list[SuitePairs], name: str | None) -> str:
    with pytest.raises(UserError) as error:
        task.choose(groups, name, "pocket")
    sentence = str(error.value)
    assert "\n" not in sentence and ". " not in sentence
    return sentence


def test_the_largest_group_is_chosen_unless_one_is_named() -> None:
    small, large = group([2] * 10, "small"), group([2] * 12, "large")
    assert task.choose([large, small], None, "pocket") is large
    assert task.choose([large, small], "small", "pocket") is small


def test_an_unknown_group_is_refused_with_those_there_are() -> None:
    groups = [group([2] * 10, "b"), replace(group([1], "empty"), pairs=()), group([2] * 10, "c")]
    assert refusal(groups, "d") == ("task.group=d has no failures of pocket on record; with traceable ones: b, c")
    assert refusal([], "d").endswith("with traceable ones: none")


def test_no_traceable_failure_is_refused() -> None:
    none = replace(group([1], failures=7), pairs=(), rejected={"without a passing twin": 7})
    assert refusal([none], None) == (
        "no failure of pocket can be traced: a (A10): 0 of 7 failures traceable; others: 7 without a passing twin; run other "
        "suites with suite=all, or another model"
    )
    assert refusal([], None).startswith("no failure of pocket can be traced; run")


def test_an_anecdote_is_refused() -> None:
    sentence = refusal([group([1] * 19)], "a")
    assert sentence.startswith("a (A10): 19 of 19 failures traceable (fewer than 20: an anecdote); at least 20 pairs")


@pytest.mark.parametrize("sizes", [[20], [10, 10]])
def test_pairs_of_too_few_clusters_for_three_splits_are_refused(sizes) -> None:
    with pytest.raises(UserError) as error:
        task.build(group(sizes), None)
    assert str(error.value) == (
        f"a: its 20 pairs are of {len(sizes)} clusters, too few for discovery, evaluation, held_out; run the suite with more "
        "distinct items"
    )


# --- the record ----------------------------------------------------------------------------------------------------


def test_the_record_gives_back_what_was_written(tmp_path: Path) -> None:
    groups = [group([2] * 10, "a", failures=25), group([1] * 3, "b")]
    path = stored_pairs.write(tmp_path, groups, {"weights": "1234567890"}, {"a": "00"})
    assert path.name == "132_trace_pairs.json"
    assert stored_pairs.read(tmp_path, "1234567890", COMMAND) == groups


def test_suites_run_alone_add_to_those_of_all(tmp_path: Path) -> None:
    everything, own = [group([2] * 10, "a"), group([1] * 3, "b")], [group([2] * 11, "c")]
    stored_pairs.write(tmp_path, everything, {"weights": "w"}, {})
    stored_pairs.write(tmp_path / "c", own, {"weights": "w"}, {})
    assert sorted(stored_pairs.read(tmp_path, "w", COMMAND), key=lambda one: one.suite) == everything + own


def test_of_a_suite_that_was_run_twice_the_newer_run_counts(tmp_path: Path) -> None:
    for folder, pairs, time in ((tmp_path, 10, 2_000), (tmp_path / "a", 11, 1_000)):
        path = stored_pairs.write(folder, [group([2] * pairs, "a")], {"weights": "w"}, {})
        os.utime(path, (time, time))
    assert [len(one.pairs) for one in stored_pairs.read(tmp_path, "w", COMMAND)] == [20]


def test_suites_run_alone_need_no_run_of_all(tmp_path: Path) -> None:
    own = [group([2] * 11, "a")]
    stored_pairs.write(tmp_path / "a", own, {"weights": "w"}, {})
    assert stored_pairs.read(tmp_path, "w", COMMAND) == own


def test_pairs_of_other_weights_are_left_out(tmp_path: Path) -> None:
    stored_pairs.write(tmp_path, [group([2] * 10, "a")], {"weights": "old"}, {})
    stored_pairs.write(tmp_path / "a", [group([2] * 11, "a")], {"weights": "new"}, {})
    assert [len(one.pairs) for one in stored_pairs.read(tmp_path, "new", COMMAND)] == [22]


def test_pairs_of_other_weights_alone_are_refused(tmp_path: Path) -> None:
    stored_pairs.write(tmp_path, [group([2] * 10)], {"weights": "abcdefghij"}, {})
    with pytest.raises(UserError) as error:
        stored_pairs.read(tmp_path, "0123456789", COMMAND)
    assert str(error.value) == (
        f"the failures in {stored_pairs.path_of(tmp_path)} are of weights abcdefgh, and the model now has 01234567; "
        f"run `{COMMAND}` again"
    )


def test_no_record_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        stored_pairs.read(tmp_path, "w", COMMAND)
    assert str(error.value) == f"no failures are on record in {tmp_path}; run `{COMMAND}` first"
