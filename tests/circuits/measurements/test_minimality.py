"""22: what the circuit loses without each head and each role, and beside the set that shows each head best."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch

from circuits.circuit import Role, head
from circuits.engine import LensEngine
from circuits.interventions import Effects, Recipe, Sweep, Variant, ablate
from circuits.measurements import minimality
from circuits.study import Study
from results_io import UserError
from tests.circuits import toy

ROWS = [3, 10, 22]
SEARCH = {"greedy_steps": 2, "greedy_heads": 64, "discovery_prompts": 6}


def searching(study: Study, **settings) -> Study:
    return replace(study, settings={**study.settings, "minimality": {**SEARCH, **settings}})


@pytest.fixture(scope="module")
def study(make_study):
    return searching(make_study())


@pytest.fixture(scope="module")
def data(study):
    return minimality.measure(study)


@pytest.mark.slow
def test_effects_equal_brute_force(data, study, twin) -> None:
    circuit = list(study.circuit.heads)
    outside = [node for node in study.model.heads if node not in circuit]
    removals = [[node] for node in circuit] + [list(role.heads) for role in study.circuit.roles.values()]
    variants = [ablate(outside, Recipe("mean"), "circuit")]
    variants += [ablate(outside + nodes, Recipe("mean"), f"{i}") for i, nodes in enumerate(removals)]
    truth = twin().run(tuple(variants), study.prompts.select(ROWS)).logit_diff
    loss = truth[0] - truth[1:]
    assert data["heads"] == [[0, 1], [1, 2], [2, 0], [2, 3]]
    assert data["roles"] == ["early", "middle", "late"]
    assert data["effect"].shape == (4, len(study.prompts))
    assert np.abs(data["effect"][:, ROWS] - loss[:4]).max() < 1e-4
    assert np.abs(data["role_effect"][:, ROWS] - loss[4:]).max() < 1e-4
    assert np.abs(data["effect"]).mean() > 0.05


def test_a_role_of_one_head_loses_what_the_head_loses(data) -> None:
    assert np.abs(data["role_effect"][0] - data["effect"][0]).max() < 1e-5
    assert np.abs(data["role_effect"][1] - data["effect"][1]).max() < 1e-5
    assert np.abs(data["role_effect"][2] - data["effect"][2]).max() > 1e-3


def test_in_the_whole_model_minimality_is_the_knock_out(study) -> None:
    everything = replace(study.circuit, roles={"all": Role(study.model.heads), "one": Role((head(1, 2),))})
    data = minimality.measure(replace(study, circuit=everything))
    variants = (
        Variant("clean"),
        ablate([head(1, 2)], Recipe("mean"), "a"),
        ablate(study.model.heads, Recipe("mean"), "b"),
    )
    clean, without, floor = study.run(Sweep(variants)).logit_diff
    assert np.abs(data["effect"][6] - (clean - without)).max() < 1e-5
    assert np.abs(data["role_effect"][1] - (clean - without)).max() < 1e-5
    assert np.abs(data["role_effect"][0] - (clean - floor)).max() < 1e-5


@pytest.mark.slow
def test_a_head_that_writes_nothing_loses_nothing(study, tmp_path) -> None:
    network = toy.build("gpt2")
    with torch.no_grad():
        network.transformer.h[1].attn.c_proj.weight[2 * toy.D_HEAD : 3 * toy.D_HEAD] = 0  # the rows of head 2
    model = toy.load(toy.save(network, tmp_path / "idle"))
    engine = LensEngine(model, study.engine.reference.prompts)
    data = minimality.measure(replace(study, model=model, engine=engine, done={}))
    idle, others = data["heads"].index([1, 2]), [i for i, pair in enumerate(data["heads"]) if pair != [1, 2]]
    assert np.abs(data["effect"][idle]).max() < 1e-5
    assert np.abs(data["role_effect"][data["roles"].index("middle")]).max() < 1e-5
    assert (np.abs(data["effect"][others]).mean(1) > 0.05).all()


# --- the set beside which a head counts most ----------------------------------------------------------------


def removals(study: Study, sets) -> tuple[Variant, ...]:
    """The circuit alone without each of the sets."""
    outside = [node for node in study.model.heads if node not in study.circuit.heads]
    return tuple(ablate([*outside, *sorted(k)], Recipe("mean"), f"{i}") for i, k in enumerate(sets))


def every_subset(study: Study, prompts) -> dict[frozenset, np.ndarray]:
    """F(C \\ K) [prompt] for every K."""
    circuit = study.circuit.heads
    subsets = [frozenset(k) for size in range(len(circuit) + 1) for k in combinations(circuit, size)]
    values = study.run(Sweep(removals(study, subsets)), prompts).logit_diff.astype(float)
    return dict(zip(subsets, values, strict=True))


def by_hand(study: Study, value: dict[frozenset, np.ndarray]) -> dict:
    """{head: (kind, K)} of the definition, written out over all subsets."""
    found = {}
    for v in study.circuit.heads:

        def score(k, v=v):
            return abs((value[k] - value[k | {v}]).mean())

        grown = frozenset()
        for _ in range(study.settings["minimality"]["greedy_steps"]):
            bigger = [grown | {u} for u in study.circuit.heads if u not in grown | {v}]
            best = max(bigger, key=score)
            if score(best) > score(grown):
                grown = best
        heads, layers = study.circuit.heads, sorted({u.layer for u in study.circuit.heads})
        named = {f"layer:{at}": frozenset(u for u in heads if u.layer == at) - {v} for at in layers}
        named |= {f"claim:{layers[0]}": frozenset(heads) - {v}}
        named |= {f"suffix:{at}": frozenset(u for u in heads if u.layer >= at) - {v} for at in layers[1:]}
        named = {"none": frozenset()} | {name: k for name, k in named.items() if k} | {"greedy": grown}
        kind = max(named, key=lambda name, named=named, score=score: score(named[name]))
        found[v] = (kind, named[kind])
    return found


def claimed(make_study, architecture: str) -> Study:
    """A study with a circuit of two heads in each of two layers."""
    roles = {"a": Role((head(0, 1), head(0, 3))), "b": Role((head(1, 0), head(1, 2)))}
    study = make_study(architecture)
    return searching(replace(study, circuit=replace(study.circuit, roles=roles)))


def chosen_sets(data) -> list[frozenset]:
    return [frozenset(head(*pair) for pair in own) for own in data["greedy"]["sets"]]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_the_chosen_sets_are_those_of_the_definition(architecture, make_study) -> None:
    study = claimed(make_study, architecture)
    data = minimality.measure(study)
    first = sorted(range(16), key=lambda i: study.discovery.ids[i])[:6]
    value = every_subset(study, study.discovery.select(first))
    expected, sets = by_hand(study, value), chosen_sets(data)
    assert dict(zip(study.circuit.heads, zip(data["greedy"]["kind"], sets, strict=True), strict=True)) == expected
    for v, k, effect in zip(study.circuit.heads, sets, data["greedy"]["discovery_effect"], strict=True):
        assert effect == pytest.approx((value[k] - value[k | {v}]).mean(), abs=1e-5)
    assert data["greedy"]["discovery_prompts"] == 6


@pytest.mark.slow
def test_effects_beside_the_chosen_sets_equal_brute_force(make_study, twin) -> None:
    """On the grouped-query model."""
    study = claimed(make_study, "llama")
    data = minimality.measure(study)
    sets = chosen_sets(data)
    with_it, without = sets, [k | {v} for v, k in zip(study.circuit.heads, sets, strict=True)]
    truth = twin("llama").run(removals(study, [*with_it, *without]), study.prompts.select([3])).logit_diff[:, 0]
    assert data["greedy"]["effect"].shape == (4, len(study.prompts))
    assert np.abs(data["greedy"]["effect"][:, 3] - (truth[:4] - truth[4:])).max() < 1e-4


class Law(LensEngine):
    """An engine whose logit difference is a stated function of the heads left intact, plus noise of each prompt."""

    def __init__(self, law: Callable[[set], float], noise: float = 0.0) -> None:
        self.law, self.noise = law, noise

    def run(self, sweep: Sweep, prompts, advance=None) -> Effects:
        rows = []
        for variant in sweep.variants:
            gone = {node for intervention in variant.interventions for node in intervention.nodes}
            seeds = [zlib.crc32(f"{sorted(gone)} {i}".encode()) for i in prompts.ids]
            noise = [np.random.default_rng(seed).normal(0, self.noise) for seed in seeds]
            rows.append(self.law({(n.layer, n.index) for n in gone}) + np.array(noise))
        table = np.array(rows, dtype=np.float32)
        names = tuple(variant.name for variant in sweep.variants)
        return Effects(names, table, table > 0, np.zeros_like(table), sweep.sha256, prompts.sha256)


FOUR = {"a": Role((head(0, 0),)), "b": Role((head(0, 1), head(1, 0), head(1, 1)))}


def under(study: Study, law, noise=0.0, roles=None, **settings) -> Study:
    circuit = replace(study.circuit, roles=roles or FOUR)
    return searching(replace(study, circuit=circuit, engine=Law(law, noise), done={}), **settings)


def test_a_head_with_a_backup_is_worth_nothing_alone_and_everything_beside_it(study) -> None:
    """F = 2 while (0, 0) or its backup (0, 1) is there, plus 1 for (1, 0); (1, 1) does nothing at all."""

    def law(gone):
        return 2.0 * (not {(0, 0), (0, 1)} <= gone) + 1.0 * ((1, 0) not in gone)

    data = minimality.measure(under(study, law))
    assert data["heads"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    np.testing.assert_array_equal(data["effect"].mean(1), [0, 0, 1, 0])
    np.testing.assert_array_equal(data["greedy"]["effect"].mean(1), [2, 2, 1, 0])
    assert data["greedy"]["kind"] == ["layer:0", "layer:0", "none", "none"]
    assert data["greedy"]["sets"] == [[[0, 1]], [[0, 0]], [], []]


OR_OF_FOUR = ((0, 0), (0, 1), (1, 2), (1, 3))
LABELS = {
    "one role": {"all": Role(tuple(head(*pair) for pair in OR_OF_FOUR))},
    "roles of their own": {f"role {i}": Role((head(*pair),)) for i, pair in enumerate(OR_OF_FOUR)},
    "roles across layers": {"a": Role((head(0, 0), head(1, 2))), "b": Role((head(0, 1), head(1, 3)))},
}


@pytest.mark.parametrize("labels", LABELS)
def test_labels_do_not_decide_beside_what_a_head_is_judged(study, labels) -> None:
    """Any of four heads is enough. Two greedy steps do not silence three others, and no role may have to do it."""
    data = minimality.measure(under(study, lambda gone: 2.0 * (not set(OR_OF_FOUR) <= gone), roles=LABELS[labels]))
    np.testing.assert_array_equal(data["effect"].mean(1), 0)
    np.testing.assert_array_equal(data["greedy"]["effect"].mean(1), 2)
    assert data["greedy"]["kind"] == ["claim:0"] * 4
    assert data["greedy"]["sets"] == [[[*own] for own in OR_OF_FOUR if own != v] for v in OR_OF_FOUR]


def test_the_greedy_set_finds_backups_that_no_layer_holds(study) -> None:
    """Three heads of two layers add up to all but one of F, and none without (1, 1): two steps find the first two, not one."""
    three = {(0, 0), (0, 1), (1, 0)}
    roles = {f"role {i}": Role((head(*pair),)) for i, pair in enumerate([*sorted(three), (1, 1)])}

    def law(gone):
        return 0.0 if (1, 1) in gone else 3.0 - len(gone & three) ** 2 / 3

    data = minimality.measure(under(study, law, roles=roles))
    np.testing.assert_allclose(data["greedy"]["effect"].mean(1), [5 / 3, 5 / 3, 5 / 3, 3], rtol=1e-6)
    assert data["greedy"]["kind"] == ["greedy", "greedy", "layer:0", "none"]
    assert data["greedy"]["sets"][0] == [[0, 1], [1, 0]]
    one = minimality.measure(under(study, law, roles=roles, greedy_steps=1))
    np.testing.assert_allclose(one["greedy"]["effect"].mean(1), [1, 1, 5 / 3, 3], rtol=1e-6)


def test_choosing_the_set_is_not_rewarded(study) -> None:
    """Heads that do nothing: the largest of many noisy scores is biased where it was chosen, and not elsewhere."""
    own = [head(layer, index) for layer in range(2) for index in range(4)]
    roles = {str(i): Role((node,)) for i, node in enumerate(own)}
    data = minimality.measure(under(study, lambda gone: 3.0, noise=1.0, roles=roles))
    error = np.sqrt(2 / 6)  # of a difference of two means over six discovery prompts
    assert np.abs(data["greedy"]["discovery_effect"]).mean() > 1.5 * error
    scored = np.abs(data["greedy"]["effect"].mean(1)) / np.sqrt(2 / len(study.prompts))
    assert scored.mean() == pytest.approx(np.sqrt(2 / np.pi), abs=4 * 0.6 / np.sqrt(8))


def test_one_head_has_nothing_beside_it(study) -> None:
    data = minimality.measure(under(study, lambda gone: float(not gone & {(0, 0)}), roles={"a": Role((head(0, 0),))}))
    assert data["greedy"]["sets"] == [[]] and data["greedy"]["kind"] == ["none"]
    np.testing.assert_array_equal(data["greedy"]["effect"], data["effect"])


def test_the_order_of_discovery_prompts_does_not_matter(study, data) -> None:
    order = np.random.default_rng(0).permutation(len(study.discovery)).tolist()
    again = minimality.measure(replace(study, discovery=study.discovery.select(order)))
    assert again["greedy"]["sets"] == data["greedy"]["sets"] and again["greedy"]["kind"] == data["greedy"]["kind"]
    np.testing.assert_array_equal(again["greedy"]["effect"], data["greedy"]["effect"])


@pytest.mark.parametrize("name", ["greedy_steps", "discovery_prompts"])
def test_a_search_without_steps_or_prompts_is_refused(study, name) -> None:
    with pytest.raises(UserError, match=rf"minimality\.{name} is 0; expected"):
        minimality.measure(searching(study, **{name: 0}))


def test_of_a_large_claim_the_heads_that_cost_it_most_are_tried(study) -> None:
    """A set of partners is chosen among them alone; of a claim of no more heads nothing changes."""
    most = 2
    losses = minimality.HeadLosses.on(study, study.discovery_subset(SEARCH["discovery_prompts"]))
    heads = study.claim.heads
    losses.run([frozenset(), *(frozenset([node]) for node in heads)])
    strongest = set(sorted(heads, key=lambda node: -abs(losses.mean(node, frozenset())))[:most])
    few = searching(study, greedy_heads=most)
    grown = minimality._grow(losses, few)
    assert grown and all(beside <= strongest for beside in grown.values())
    assert any(grown.values())
    whole = minimality._grow(losses, study)
    assert minimality._grow(losses, searching(study, greedy_heads=len(heads))) == whole
