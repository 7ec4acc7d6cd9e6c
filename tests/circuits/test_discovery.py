"""Backward pruning against brute force, and role labels from hand-made facts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import results_io
from circuits import models, tasks
from circuits import study as studies
from circuits.circuit import Node, head
from circuits.discovery import discover, greedy, resampling, roles, search
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import MEASUREMENTS, attention, direct_logit_attribution
from circuits.study import Study
from circuits.tasks import Task
from results_io import UserError
from tests.circuits import hook_loop, toy

TASK = "greater_than"  # the random model happens to get some prompts right, and its heads happen to help there
SIZES = {"evaluation": 1, "held_out": 1, "discovery": 8, "reference": 30}
SETTINGS = {
    "prompts": 200,
    "greedy_heads": 64,
    "warn_above": 1e6,
    "clusters": 10,
    "tolerance": 0.1,
    "direct_share": 0.05,
    "attention": 0.3,
    "shares": [0.1, 0.5, 1.0],
    "seed": 0,
    "resamples": 200,
    "stability": {"resamples": 10, "greedy_resamples": 1, "bar": 0.8, "bar_resamples": 100},
    "atp": {"base": "clean"},
    "eap_ig": {"steps": 2},
    **toy.SEARCH,
}
MEAN = Recipe("mean")


@pytest.fixture(scope="module")
def able(model) -> Study:
    drawn = studies.prepare(model, tasks.get(TASK), {**SIZES, "discovery": 40}, seed=0, engine=toy.ENGINE)
    sweep = Sweep((Variant("clean"), ablate(model.heads, MEAN, "empty")))
    clean, empty = drawn.engine.run(sweep, drawn.discovery).logit_diff
    right = np.flatnonzero((clean > 0) & (clean > empty))[: SIZES["discovery"]]
    return with_settings(replace(drawn, discovery=drawn.discovery.select(right.tolist())))


@pytest.fixture(scope="module")
def truth(able, plain) -> hook_loop.HookLoop:
    """Brute force on the plain model."""
    return hook_loop.HookLoop(plain("gpt2"), "gpt2", toy.N_HEADS, able.engine.reference.prompts)


def with_settings(study: Study, **changed) -> Study:
    return replace(study, settings={**toy.SETTINGS, "discovery": {**SETTINGS, **changed}})


@pytest.fixture(scope="module")
def path(able) -> list[tuple[tuple[Node, ...], float]]:
    return list(greedy.prune(able, able.discovery))


# --- pruning -------------------------------------------------------------------------------------------------------


def test_the_path_begins_with_all_heads_at_one_and_leaves_out_one_at_a_time(path, able) -> None:
    assert path[0] == (able.model.heads, 1.0)
    assert [len(kept) for kept, _ in path] == list(range(12, 0, -1))
    assert all(set(after) < set(before) for (before, _), (after, _) in pairwise(path))
    assert all(list(kept) == sorted(kept) for kept, _ in path)


def test_faithfulness_along_the_path_equals_brute_force(path, able, truth) -> None:
    steps = [path[i] for i in (0, 1, 5, 9, 11)]
    outside = [[node for node in able.model.heads if node not in kept] for kept, _ in steps]
    limits = (Variant("clean"), ablate(able.model.heads, MEAN, "empty"))
    variants = (*limits, *(ablate(nodes, MEAN, str(len(nodes))) for nodes in outside))
    clean, empty, *kept = truth.run(variants, able.discovery).logit_diff.sum(1)
    assert [theta for _, theta in steps] == pytest.approx([(F - empty) / (clean - empty) for F in kept], abs=1e-4)
    assert max(abs(theta - 1) for _, theta in steps) > 0.01  # there is something to be wrong about


def test_each_step_leaves_out_the_head_whose_loss_keeps_it_closest_to_one(path, able) -> None:
    clean, empty = totals(able)
    for (kept, _), (after, theta) in list(pairwise(path))[:4]:
        outside = [node for node in able.model.heads if node not in kept]
        variants = tuple(ablate([*outside, node], MEAN, str(node)) for node in kept)
        kept_whole = able.run(Sweep(variants), able.discovery).logit_diff.astype(float).sum(1)
        distance = np.abs((kept_whole - empty) / (clean - empty) - 1)
        assert set(kept) - set(after) == {kept[int(distance.argmin())]}
        assert abs(theta - 1) == pytest.approx(distance.min(), abs=1e-5)


def test_only_as_many_prompts_as_asked_for_are_used(able, path) -> None:
    few = list(greedy.prune(able, able.discovery.select(range(4))))
    kept, theta = few[3]
    clean, empty, some = totals(able, [node for node in able.model.heads if node not in kept], size=4)
    assert theta == pytest.approx((some - empty) / (clean - empty), abs=1e-4)
    assert theta != pytest.approx(path[3][1], abs=1e-3)


def totals(study: Study, *outside: list[Node], size: int = 8) -> list[float]:
    """Summed logit difference of the intact model, with every head ablated, and with each of `outside` ablated."""
    variants = [Variant("clean"), ablate(study.model.heads, MEAN, "empty")]
    variants += [ablate(nodes, MEAN, str(i)) for i, nodes in enumerate(outside)]
    prompts = study.discovery.select(range(size))
    return study.run(Sweep(tuple(variants)), prompts).logit_diff.astype(float).sum(1).tolist()


@pytest.mark.slow
def test_scored_prompts_are_never_looked_at(able, monkeypatch) -> None:
    engine = type(able.engine)
    splits, run, activations = set(), engine.run, engine.activations

    def spy_run(self, sweep, prompts, advance=None):
        splits.update(prompts.splits)
        return run(self, sweep, prompts, advance)

    def spy_activations(self, prompts, base, hooks):
        splits.update(prompts.splits)
        return activations(self, prompts, base, hooks)

    monkeypatch.setattr(engine, "run", spy_run)
    monkeypatch.setattr(engine, "activations", spy_activations)
    discover(able)
    sequences = {str(i) for i in range(toy.SETTINGS["repeated_tokens"]["sequences"])}  # random tokens have no split
    assert splits - sequences <= {"discovery", "reference"} and "discovery" in splits


def test_a_model_that_lacks_the_metric_of_the_task_is_told_which_metric(model) -> None:
    task = replace(tasks.get("induction"), metric="probability_difference")
    study = with_settings(studies.prepare(model, task, SIZES, seed=0, engine=toy.ENGINE))
    clean, empty = (total / 8 for total in totals(study))
    with pytest.raises(UserError, match=rf"\(mean probability difference {clean:.2f} \[.*{empty:.2f} without any head"):
        discover(study)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("task", ["induction", "subject_verb_agreement"])
def test_a_model_that_does_not_do_the_task_by_its_heads_has_no_circuit(model, task) -> None:
    study = with_settings(studies.prepare(model, tasks.get(task), SIZES, seed=0, engine=toy.ENGINE))
    clean, empty = (total / 8 for total in totals(study))
    with pytest.raises(UserError) as raised:
        discover(study)
    found = re.fullmatch(
        rf"model toy/gpt2 does not do task {task} \(mean logit difference {clean:.2f} \[(\S+), (\S+)\] on 8 discovery "
        rf"prompts, {empty:.2f} without any head\), so there is no circuit to find",
        str(raised.value),
    )
    low, high = map(float, found.groups())
    assert low <= clean <= high
    assert clean < 0 if task == "induction" else 0 < clean < empty


class Counted:
    """A Progress that adds up what it is told."""

    def __init__(self) -> None:
        self.expected, self.done = [], 0

    def expect(self, pairs: int) -> None:
        self.expected.append(pairs)

    def advance(self, pairs: int) -> None:
        self.done += pairs


@pytest.mark.slow
@pytest.mark.parametrize(("resamples", "prunings"), [(1, 2), (3, 5)])
def test_all_prunings_of_a_search_are_announced_once_and_are_no_more_than_that(able, resamples, prunings) -> None:
    stability = {**SETTINGS["stability"], "greedy_resamples": resamples}
    study = replace(with_settings(able, clusters=2, stability=stability), progress=Counted(), done={})
    ranking = greedy.rank(study, study.discovery)
    counts = resampling.cluster_counts(study.discovery.clusters, resamples, 0) if resamples > 1 else []
    half = resampling.half(study.discovery.clusters, 0)
    for weights in (np.ones(8), half, ~half, *counts):
        ranking.order(np.asarray(weights, float))
    bound = prunings * 79 * 8  # 2 + 12 + 11 + ... + 2 variants
    assert study.progress.expected == [bound] and greedy.pairs(12, 8, study.settings["discovery"]) == bound
    assert 0.5 * bound < study.progress.done <= bound
    if resamples == 1:
        assert study.progress.done == bound
    found = replace(with_settings(able, clusters=2, stability=stability), progress=Counted(), done={})
    discover(found)
    assert found.progress.expected.count(bound) == 1


def test_prompts_that_count_nothing_are_not_run(able) -> None:
    weights = np.array([1.0, 0, 2, 0, 0, 1, 0, 1])
    study = replace(able, progress=Counted(), done={})
    weighted = list(greedy.prune(study, able.discovery, weights))
    assert study.progress.done == 79 * 4
    again = list(greedy.prune(able, able.discovery.select([0, 2, 2, 5, 7])))
    assert [kept for kept, _ in weighted] == [kept for kept, _ in again]
    assert [theta for _, theta in weighted] == pytest.approx([theta for _, theta in again], abs=1e-4)


# --- the circuit that is made of the path --------------------------------------------------------------------------


@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.1, 0.5, 100.0])
def test_by_faithfulness_alone_the_circuit_is_the_smallest_within_the_tolerance(able, path, tolerance) -> None:
    found = discover(with_settings(able, tolerance=tolerance, completeness=toy.BY_FAITHFULNESS))
    expected, theta = min(((k, t) for k, t in path if abs(t - 1) <= tolerance), key=lambda step: len(step[0]))
    assert found.heads == expected
    assert found.provenance["discovery_faithfulness"] == pytest.approx(theta, abs=1e-4)
    if tolerance == 0.0:
        assert found.heads == able.model.heads
    if tolerance == 100.0:
        assert len(found.heads) == 1


@pytest.mark.slow
def test_provenance_says_how_it_was_found(able, path) -> None:
    found = discover(able)
    assert (found.name, found.task, found.model) == (f"{TASK} greedy", TASK, "toy/gpt2")
    provenance = found.provenance
    assert (provenance["kind"], provenance["split"]) == ("discovered", "discovery")
    assert (provenance["seed"], provenance["tolerance"], provenance["model_sha256"]) == (0, 0.1, able.model.sha256)
    assert provenance["prompts"] == 8  # all that the split has, of the 200 asked for
    assert provenance["faithfulness_by_size"] == {str(len(kept)): round(theta, 4) for kept, theta in path}
    assert discover(able) == found
    assert discover(with_settings(able, prompts=5)).provenance["prompts"] == 5
    assert provenance["scored_on"] == {
        "discovery_faithfulness, head_faithfulness, faithfulness_by_size, incompleteness": search.CHOOSERS,
        "cross_fitted_faithfulness, cpr, cmd": "prompts that did not rank: circuits ranked on one half of the clusters, "
        "scored on the other, both pooled",
    }
    assert provenance["jaccard"] is None and provenance["jaccard_untested"] == "the settings leave it out"


def test_few_prompts_are_those_of_the_lowest_hash_whatever_order_they_were_drawn_in(able) -> None:
    lowest = sorted(range(8), key=able.discovery.ids.__getitem__)[:5]
    backwards = replace(able, discovery=able.discovery.select(range(7, -1, -1)))
    found = discover(with_settings(backwards, prompts=5))
    expected = dict(greedy.prune(able, able.discovery.select(lowest)))
    by_size = {str(len(kept)): theta for kept, theta in expected.items()}
    assert found.provenance["faithfulness_by_size"] == pytest.approx(by_size, abs=2e-4)


def test_every_kept_head_has_exactly_one_role(able) -> None:
    found = discover(with_settings(able, tolerance=0.0))
    named = [node for role in found.roles.values() for node in role.heads]
    assert sorted(named) == list(able.model.heads)


@pytest.mark.slow
def test_a_planted_circuit_is_found_head_by_head() -> None:
    settings = {"name": "planted/sound", "kind": "planted", "variant": "sound", "seed": 0, "device": "cpu"}
    sizes = {"evaluation": 1, "held_out": 1, "discovery": 2, "reference": 160}
    model = models.load(settings)
    study = with_settings(studies.prepare(model, tasks.get("greater_than"), sizes, seed=0, engine=toy.ENGINE))
    found, planted = discover(study), model.circuits["greater_than"]
    assert found.heads == planted.heads
    assert found.provenance["discovery_faithfulness"] == pytest.approx(1, abs=0.01)
    assert {name: role.heads for name, role in found.roles.items()} == {
        "previous_token": planted.roles["previous_token"].heads,
        "answer_promoter": planted.roles["later_year"].heads,
    }


# --- labels --------------------------------------------------------------------------------------------------------


def facts(direct=0.0, between: Mapping | None = None, knockout=0.0, **scores) -> dict:
    weak = {("end", "io"): 0.1, ("end", "s2"): 0.2, ("s2", "s1"): 0.15}
    repeated = dict.fromkeys(roles.SCORES, 0.05)
    return {"direct": direct, "between": {**weak, **(between or {})}, "knockout": knockout, **repeated, **scores}


@pytest.mark.parametrize(
    ("found", "name", "step", "evidence"),
    [
        (facts(direct=0.2), "answer_promoter", 4, "direct effect +0.20 of D"),
        (facts(direct=0.05), "answer_promoter", 4, "direct effect +0.05 of D"),
        (facts(direct=-0.05), "answer_suppressor", 4, "direct effect -0.05 of D"),
        (
            facts(direct=0.3, between={("end", "io"): 0.9}, induction=0.9),
            "answer_promoter",
            4,
            "direct effect +0.30 of D",
        ),
        (facts(between={("end", "s2"): 0.8}), "end_reader_of_s2", 2, "attention end->s2 0.80"),
        (facts(between={("end", "io"): 0.3}), "end_reader_of_io", 2, "attention end->io 0.30"),
        (facts(between={("end", "io"): 0.4, ("end", "s2"): 0.5}), "end_reader_of_s2", 2, "attention end->s2 0.50"),
        (facts(between={("end", "io"): 0.35, ("s2", "s1"): 0.9}), "end_reader_of_io", 2, "attention end->io 0.35"),
        (facts(between={("s2", "s1"): 0.9}), "s2_reader_of_s1", 1, "attention s2->s1 0.90"),
        (facts(between={("s2", "s1"): 0.3}, previous_token=0.9), "s2_reader_of_s1", 1, "attention s2->s1 0.30"),
        (facts(direct=0.0499, previous_token=0.6), "previous_token", 1, "previous_token score 0.60"),
        (facts(duplicate_token=0.5, induction=0.4), "duplicate_token", 1, "duplicate_token score 0.50"),
        (facts(induction=0.3), "induction", 1, "induction score 0.30"),
        (
            facts(direct=-0.03, induction=0.29),
            "unlabelled",
            None,
            "largest named attention end->s2 0.20, direct effect -0.03 of D",
        ),
    ],
)
def test_the_first_rule_that_holds_gives_the_label(found, name, step, evidence) -> None:
    assert roles.label(found, SETTINGS) == (name, step, evidence)


def test_thresholds_are_those_of_the_settings() -> None:
    strict = {**SETTINGS, "direct_share": 0.5, "attention": 0.95}
    assert roles.label(facts(direct=0.2, between={("end", "io"): 0.9}), strict)[0] == "unlabelled"


@pytest.fixture
def assigned(able, monkeypatch) -> Callable[[dict], dict]:
    def assign(table: dict) -> dict:
        monkeypatch.setattr(roles, "_facts", lambda study, heads: table)
        return roles.assign(able, table)

    return assign


def test_heads_are_grouped_by_label_and_sign_in_order_of_processing(assigned) -> None:
    found = assigned(
        {
            head(2, 0): facts(direct=0.3),
            head(2, 1): facts(direct=-0.2),
            head(2, 3): facts(direct=0.1, knockout=-0.2),
            head(1, 0): facts(between={("end", "s2"): 0.8}),
            head(1, 1): facts(between={("end", "s2"): 0.6}, knockout=-0.06),
            head(1, 2): facts(),
            head(0, 0): facts(previous_token=0.7),
            head(0, 1): facts(previous_token=0.9, knockout=-0.05),
        }
    )
    assert {name: (role.heads, role.ordinal, role.sign, role.assigned_by) for name, role in found.items()} == {
        "previous_token": ((head(0, 0), head(0, 1)), 1, 1, "function"),
        "end_reader_of_s2": ((head(1, 0),), 2, 1, "function"),
        "end_reader_of_s2_opposing": ((head(1, 1),), 2, -1, "function"),
        "answer_promoter": ((head(2, 0),), 4, 1, "function"),
        "answer_promoter_opposing": ((head(2, 3),), 4, -1, "function"),
        "answer_suppressor": ((head(2, 1),), 4, -1, "function"),
        "unlabelled": ((head(1, 2),), None, 1, "none"),
    }
    assert [role.ordinal for role in found.values()] == [1, 2, 2, 4, 4, 4, None]
    assert found["previous_token"].evidence == "L0H0 previous_token score 0.70; L0H1 previous_token score 0.90"


def test_the_facts_are_those_of_the_measurements(able, truth) -> None:
    heads = (head(0, 2), head(1, 1), head(2, 3))
    found = roles._facts(able, heads)
    assert list(found) == list(heads)
    prompts = able.discovery
    variants = (Variant("clean"), *(ablate([node], MEAN, str(node)) for node in heads))
    clean, *without = truth.run(variants, prompts).logit_diff.mean(1)
    direct = direct_logit_attribution.attribute(able, prompts)["attribution"].mean(0).numpy()
    between = attention.between_positions(able, prompts)
    repeated = attention.repeated_token_scores(able)
    for node, ablated in zip(heads, without, strict=True):
        column = node.layer * toy.N_HEADS + node.index
        assert found[node]["knockout"] == pytest.approx((clean - ablated) / clean, abs=1e-4)
        assert found[node]["direct"] == pytest.approx(direct[column] / clean, abs=1e-4)
        pairs = {pair for pair in between if pair[0] != pair[1]}
        assert found[node]["between"] == {pair: pytest.approx(float(between[pair][column])) for pair in pairs}
        for name in roles.SCORES:
            assert found[node][name] == pytest.approx(float(repeated[name][column]))


# --- tasks that name no position but the last ------------------------------------------------------------------------


def at_the_end_alone(task: Task) -> Task:
    """The same prompts with their last position named and no other."""
    assert task.sample is not None
    drawn = task.sample

    def sample(rng):
        example = drawn(rng)
        return replace(example, positions={"end": example.positions["end"]})

    return replace(task, sample=sample, roles=("end",))


@pytest.mark.slow
def test_a_task_that_names_the_last_position_alone_has_its_circuit_found_and_labelled(model, able) -> None:
    drawn = studies.prepare(
        model, at_the_end_alone(tasks.get(TASK)), {**SIZES, "discovery": 40}, seed=0, engine=toy.ENGINE
    )
    places = [drawn.discovery.ids.index(one) for one in able.discovery.ids]
    study = with_settings(replace(drawn, discovery=drawn.discovery.select(places)))
    found, expected = roles.assign(study, model.heads), roles.assign(able, model.heads)
    heads_of = {node: name for name, role in found.items() for node in role.heads}
    named = {node: name for name, role in expected.items() for node in role.heads}
    assert len(heads_of) == len(model.heads)
    for node, name in heads_of.items():  # the same label, but for heads that read a position which is no longer named
        assert name == named[node] or "_reader_of_" in named[node], (node, name, named[node])
    assert any("no two named positions" in role.evidence for role in found.values())


def test_a_head_of_such_a_task_is_labelled_by_what_it_writes_and_by_its_scores() -> None:
    none = {"between": {}}
    assert roles.label(facts(direct=0.2) | none, SETTINGS)[0] == "answer_promoter"
    assert roles.label(facts(induction=0.6) | none, SETTINGS)[:2] == ("induction", 1)
    assert roles.label(facts() | none, SETTINGS) == (
        "unlabelled",
        None,
        "no two named positions, direct effect +0.00 of D",
    )


def test_a_token_by_two_names_is_no_attention_between_positions(model, able) -> None:
    """changed_first is the last token where only that one changes: what it attends to itself says nothing."""
    twice = replace(able.discovery, positions={"same": able.discovery.end, "end": able.discovery.end})
    found = roles.assign(replace(able, discovery=twice), model.heads)
    assert not any("same" in name for name in found)


@pytest.mark.slow
def test_every_measurement_of_such_a_task_is_made(model) -> None:
    task = at_the_end_alone(tasks.get("ioi"))
    circuit = toy.circuit("ioi")
    study = studies.prepare(model, task, toy.SIZES, seed=0, engine=toy.ENGINE, circuit=circuit, settings=toy.SETTINGS)
    for number in ("02", "04", "06", "25", "28"):  # those that read named positions
        data = MEASUREMENTS[number].measure(study)
        assert results_io.canonical(data), number
