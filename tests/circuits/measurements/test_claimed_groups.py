"""22, completeness and outside: groups of heads against brute force, and that no label and no scored prompt chooses them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from circuits import claimed_groups, outside_heads
from circuits.circuit import Role, head
from circuits.head_sets import HeadSets
from circuits.interventions import Recipe, Variant, ablate
from circuits.measurements import ablation_battery, minimality
from results_io import UserError
from tests.circuits import toy

HEADS = (head(0, 1), head(1, 2), head(2, 0), head(2, 3))


@pytest.fixture(scope="module")
def data(make_study):
    return minimality.measure(make_study())


@pytest.fixture(scope="module")
def completeness(data):
    return data["completeness"]


def nodes(pairs):
    return [head(layer, index) for layer, index in pairs]


def truth(study, twin, sets, recipe, rows):
    """Logit difference [set, prompt] with each set of heads ablated, by the hook loop."""
    variants = tuple(ablate(sorted(one), recipe, str(i)) if one else Variant(str(i)) for i, one in enumerate(sets))
    return twin().run(variants, study.prompts.select(rows)).logit_diff


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["mean", "zero", "mean_pooled"])
def test_losses_of_circuit_and_model_equal_brute_force(recipe, make_study, twin, completeness) -> None:
    study, found = make_study(), completeness["recipes"][recipe]
    rows = completeness["prompt_index"][:3]
    outside = [node for node in study.model.heads if node not in HEADS]
    groups = [nodes(completeness["groups"][place]["heads"]) for place in found["groups"]]
    sets = [[], outside, list(study.model.heads), *groups, *([*outside, *group] for group in groups)]
    stated = Recipe("mean", pooled=True) if recipe == "mean_pooled" else Recipe(recipe)
    expected = truth(study, twin, sets, stated, rows)
    for place, name in enumerate(("model", "circuit", "empty")):
        assert np.abs(found[name][:3] - expected[place]).max() < 1e-4
    count = len(groups)
    assert np.abs(found["model_without"][:, :3] - expected[3 : 3 + count]).max() < 1e-4
    assert np.abs(found["circuit_without"][:, :3] - expected[3 + count :]).max() < 1e-4


def test_draws_of_a_recipe_are_averaged(make_study, completeness) -> None:
    study, found = make_study(), completeness["recipes"]["resample"]
    rows = completeness["prompt_index"]
    draws = ablation_battery.recipes(study, "resample")
    assert found["draws"] == len(draws) == 2
    one_by_one = [HeadSets(study, study.prompts.select(rows), [draw]) for draw in draws]
    every = frozenset(study.model.heads)
    for single in one_by_one:
        single.run([every])
    mean = np.mean([single.without(every) for single in one_by_one], axis=0)
    assert np.abs(found["empty"] - mean).max() < 1e-5
    assert np.abs(one_by_one[0].without(every) - one_by_one[1].without(every)).max() > 1e-3


def test_the_groups_are_heads_layers_suffixes_the_claim_random_and_greedy_ones(completeness) -> None:
    groups = completeness["groups"]
    assert [(g["kind"], g["name"]) for g in groups[:8]] == [
        *(("head", name) for name in ("L0H1", "L1H2", "L2H0", "L2H3")),
        ("layer", "layer 2"),
        ("claim", "the whole claim"),
        ("suffix", "layers from 1"),
        groups[7]["kind"] and (groups[7]["kind"], groups[7]["name"]),
    ]
    sets = [frozenset(map(tuple, group["heads"])) for group in groups]
    assert len(set(sets)) == len(sets)  # a set has one name
    assert all(one and one <= {(n.layer, n.index) for n in HEADS} for one in sets)
    assert all(
        len(one) == 2 for group, one in zip(groups, sets, strict=True) if group["kind"] == "random"
    )  # 2 to k / 2


def test_recipes_off_the_distribution_leave_random_groups_out(completeness) -> None:
    kinds = [group["kind"] for group in completeness["groups"]]
    every = list(range(len(kinds)))
    assert completeness["recipes"]["mean"]["groups"] == completeness["recipes"]["resample"]["groups"] == every
    for name in ("zero", "mean_pooled", "noise"):
        assert completeness["recipes"][name]["groups"] == [place for place in every if kinds[place] != "random"]
        assert completeness["recipes"][name]["draws"] == 1


def test_rows_are_a_share_of_each_split(make_study, completeness) -> None:
    splits = [make_study().prompts.splits[row] for row in completeness["prompt_index"]]
    assert (splits.count("evaluation"), splits.count("held_out")) == (20 // 4, 8 // 2)


def test_groups_do_not_depend_on_labels_or_on_scored_prompts(make_study, completeness) -> None:
    study = make_study()
    relabelled = replace(study.circuit, roles={f"r{i}": Role((node,)) for i, node in enumerate(reversed(HEADS))})
    fewer = study.prompts.select(list(range(0, len(study.prompts), 2)))
    other = replace(study, circuit=relabelled, prompts=fewer, done={})
    found = claimed_groups.choose(other, partial(ablation_battery.recipes, other))
    assert [(g.kind, g.name, sorted((n.layer, n.index) for n in g.heads)) for g in found] == [
        (g["kind"], g["name"], [tuple(h) for h in g["heads"]]) for g in completeness["groups"]
    ]


def test_greedy_groups_are_the_climb_written_out(make_study) -> None:
    study, recipe = make_study(), Recipe("mean")
    sets = HeadSets(study, study.grouping, [recipe])
    outside = frozenset(study.model.heads) - frozenset(HEADS)

    def score(group):
        sets.run([frozenset(), outside, group, outside | group])
        circuit = sets.mean(outside) - sets.mean(outside | group)
        return abs(circuit - (sets.mean(frozenset()) - sets.mean(group)))

    grown, cut = frozenset(), frozenset(HEADS)
    for _ in range(2):
        best = max((grown | {node} for node in sorted(set(HEADS) - grown)), key=score)
        grown = best if score(best) > score(grown) else grown
        best = max((cut - {node} for node in HEADS if node in cut and len(cut) > 1), key=score)
        cut = best if score(best) > score(cut) else cut
    found = {group.name: group.heads for group in claimed_groups.greedy(study, "mean", recipe)}
    assert found["grown, mean"] == grown and found["cut down from the whole claim, mean"] == cut
    assert set(found) == {
        "grown, mean",
        *(f"cut down from {s}, mean" for s in ("the whole claim", "layers from 1", "layers from 2")),
    }
    only = claimed_groups.greedy(study, "zero", Recipe("zero"), backward_only=True)
    assert [group.name for group in only] == ["cut down from the whole claim, zero"]


def test_groups_are_chosen_on_prompts_that_chose_no_circuit(make_study) -> None:
    study = make_study()
    assert len(study.grouping) == 8 and set(study.grouping.splits) == {"groups"}
    others = {*study.prompts.ids, *study.discovery.ids}
    assert not others & set(study.grouping.ids)


def test_of_a_claim_of_all_heads_nothing_is_measured(make_study) -> None:
    study = make_study()
    everything = replace(study, circuit=replace(study.circuit, roles={"all": Role(study.model.heads)}))
    found = claimed_groups.measure(everything, lambda name: [Recipe("mean")], [0, 1])
    assert found["groups"] == [] and found["recipes"] == {}
    found = outside_heads.measure(everything, lambda name: [Recipe("mean")], [0, 1])
    assert found["heads"] == found["sets"] == [] and found["recipes"] == {}


# --- outside heads ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_effects_of_outside_heads_equal_brute_force(make_study, twin, data) -> None:
    study, found = make_study(), data["outside"]
    rows = found["prompt_index"][:3]
    outside = [node for node in study.model.heads if node not in HEADS]
    assert found["heads"] == [[node.layer, node.index] for node in outside]
    singles = [[node] for node in outside]
    sets = [[], outside, *singles, *([other for other in outside if other != node] for node in outside)]
    expected = truth(study, twin, sets, Recipe("mean"), rows)
    lost, gained = expected[0] - expected[2 : 2 + len(outside)], expected[2 + len(outside) :] - expected[1]
    assert np.abs(found["recipes"]["mean"]["model"][:, :3] - lost).max() < 1e-4
    assert np.abs(found["recipes"]["mean"]["circuit"][:, :3] - gained).max() < 1e-4


def test_sets_of_one_sign_hold_every_head_of_that_sign_on_the_grouping_prompts(make_study, data) -> None:
    study, found = make_study(), data["outside"]
    outside = [node for node in study.model.heads if node not in HEADS]
    sets = HeadSets(study, study.grouping, [Recipe("mean")])
    sets.run([frozenset(), *(frozenset([node]) for node in outside)])
    effect = {node: sets.mean(frozenset()) - sets.mean(frozenset([node])) for node in outside}
    of = {(s["kind"], s["side"], s["recipe"]): s for s in found["sets"]}
    for kind, sign in (("positive", 1), ("negative", -1)):
        expected = [[node.layer, node.index] for node in outside if np.sign(effect[node]) == sign]
        assert of[kind, "model", "mean"]["heads"] == expected and expected
    greedy = of["greedy", "model", "mean"]
    assert 1 <= len(greedy["heads"]) <= 2 and greedy["effect"].shape == (len(found["prompt_index"]),)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("completeness", "prompt_share", 0),
        ("completeness", "held_out_share", 1.5),
        ("completeness", "greedy_steps", True),
        ("outside", "greedy_steps", -1),
        ("outside", "prompt_share", "4"),
    ],
)
def test_a_count_that_is_none_is_refused(section, name, value) -> None:
    settings = {**toy.SETTINGS, section: {**toy.SETTINGS[section], name: value}}
    with pytest.raises(
        UserError, match=f"measurement.{section}.{name} is {value!r}; expected a whole number of at least 1"
    ):
        minimality.check(settings)


def test_an_unknown_recipe_is_refused() -> None:
    settings = {**toy.SETTINGS, "completeness": {**toy.SETTINGS["completeness"], "others": ["zero", "median"]}}
    with pytest.raises(UserError, match=r"measurement\.completeness\.others names median; use some of"):
        minimality.check(settings)
