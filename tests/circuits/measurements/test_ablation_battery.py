"""20 against brute force, its limit cases, and the random circuits it is compared with."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import result_types
import results_io
from circuits.circuit import Circuit, Role, head
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import ablation_battery, direct_logit_attribution, head_statistics
from circuits.measurements.ablation_battery import matched_heads, other_circuits, random_circuit, sets_alike
from result_schemas import mismatches
from results_io import UserError
from tests.circuits import toy

METHODS = ["zero", "mean", "mean_pooled", "resample", "resample", "noise", "noise"]
SUBSETS = ["circuit", "complement", "empty", "top_k_norm", "top_k_attribution"]
SUBSETS += ["without:early", "without:middle", "without:late"]
ROWS = [1, 12, 27]


@pytest.fixture(scope="module")
def data(study):
    return ablation_battery.measure(study)


def rows_of(data, **wanted) -> np.ndarray:
    """Logit differences of the conditions with these labels, in order."""
    chosen = [
        i
        for i, condition in enumerate(data["conditions"])
        if all(condition[key] == value for key, value in wanted.items())
    ]
    return data["logit_diff"][chosen]


def complete(study) -> Circuit:
    return replace(study.circuit, roles={"all": Role(study.model.heads)})


def test_conditions_are_every_subset_under_every_method_with_draws_apart(data) -> None:
    assert [condition["subset"] for condition in data["conditions"]] == [name for name in SUBSETS for _ in METHODS]
    assert [condition["method"] for condition in data["conditions"]] == METHODS * len(SUBSETS)
    assert [condition["draw"] for condition in data["conditions"]] == [0, 0, 0, 0, 1, 0, 1] * len(SUBSETS)
    names = [condition["name"] for condition in data["conditions"]]
    assert len(set(names)) == len(names) == len(data["logit_diff"])
    said = {condition["recipe"] for condition in data["conditions"] if condition["method"] == "mean_pooled"}
    assert said == {"mean over all positions"}


@pytest.mark.slow
def test_subsets_equal_brute_force(data, study, twin) -> None:
    circuit = set(study.circuit.heads)
    everything = set(study.model.heads)
    intact = {
        "circuit": circuit,
        "complement": everything - circuit,
        "empty": set(),
        "without:late": everything - {head(2, 0), head(2, 3)},
    }
    recipes = {
        "zero": Recipe("zero"),
        "mean": Recipe("mean"),
        "mean_pooled": Recipe("mean", pooled=True),
        "resample": Recipe("resample", seed=0, draw=1),
        "noise": Recipe("noise", scale=1.0, seed=0, draw=1),
    }
    pairs = [(subset, method) for subset in intact for method in recipes]
    variants = [ablate(sorted(everything - intact[s]), recipes[m], f"{s}/{m}") for s, m in pairs]
    truth = twin().run(tuple(variants), study.prompts.select(ROWS)).logit_diff
    for (subset, method), expected in zip(pairs, truth, strict=True):
        found = rows_of(data, subset=subset, method=method)[-1]  # the last draw
        assert np.abs(found[ROWS] - expected).max() < 1e-4, (subset, method)


def test_draws_differ_and_deterministic_methods_have_one(data) -> None:
    for method in ("resample", "noise"):
        first, second = rows_of(data, subset="circuit", method=method)
        assert (np.abs(first - second) > 1e-3).mean() > 0.9
    for method in ("zero", "mean", "mean_pooled"):
        assert len(rows_of(data, subset="circuit", method=method)) == 1


def test_a_circuit_of_all_heads_is_the_clean_run_and_its_complement_is_nothing(study) -> None:
    data = ablation_battery.measure(replace(study, circuit=complete(study)))
    clean = study.run(Sweep((Variant("clean"),))).logit_diff[0]
    assert np.abs(rows_of(data, subset="circuit") - clean).max() < 1e-5
    assert np.abs(rows_of(data, subset="complement") - rows_of(data, subset="empty")).max() < 1e-5
    assert np.abs(rows_of(data, subset="without:all") - rows_of(data, subset="empty")).max() < 1e-5
    assert np.abs(rows_of(data, subset="top_k_norm") - clean).max() < 1e-5
    assert np.abs(rows_of(data, subset="empty") - clean).mean() > 0.3


def test_baselines_are_the_largest_heads_on_discovery_prompts(data, study) -> None:
    norm = head_statistics.output_norms(study, study.discovery).mean(0)
    attribution = direct_logit_attribution.attribute(study, study.discovery)["attribution"].numpy().mean(0)
    for name, score in {"top_k_norm": norm, "top_k_attribution": np.abs(attribution)}.items():
        largest = sorted(range(12), key=lambda i: -score[i])[:4]
        assert data["baselines"][name] == [[i // 4, i % 4] for i in sorted(largest)]
        outside = [node for i, node in enumerate(study.model.heads) if i not in largest]
        again = study.run(Sweep((ablate(outside, Recipe("zero"), "a"),))).logit_diff[0]
        assert np.abs(rows_of(data, subset=name, method="zero")[0] - again).max() < 1e-5
    assert data["baselines"]["selected_on"] == "discovery"


def test_random_circuits_have_the_circuit_s_size_and_layers(data, study) -> None:
    chosen = data["random_circuits"]
    layers = Counter(node.layer for node in study.circuit.heads)
    assert len(chosen["heads"]) == 6
    for heads in chosen["heads"]:
        assert len({tuple(pair) for pair in heads}) == 4
        assert Counter(layer for layer, _ in heads) == layers
    quarter = toy.lowest_hash(study, 5) + toy.lowest_hash(study, 2, "held_out")  # of each split
    assert chosen["prompt_index"] == quarter
    assert (chosen["recipe"], chosen["seed"]) == ("mean per template and position", 0)


def test_random_circuits_are_scored_like_the_circuit(data, study) -> None:
    chosen = data["random_circuits"]
    prompts = study.prompts.select(chosen["prompt_index"])
    for pairs, stored in zip(chosen["heads"], chosen["logit_diff"], strict=True):
        inside = {head(*pair) for pair in pairs}
        variant = ablate([node for node in study.model.heads if node not in inside], Recipe("mean"), "a")
        assert np.abs(study.run(Sweep((variant,)), prompts).logit_diff[0] - stored).max() < 1e-5


def test_a_seed_fixes_everything_and_another_changes_the_draws(data, study) -> None:
    again = ablation_battery.measure(study)
    assert np.array_equal(again["logit_diff"], data["logit_diff"])
    assert again["random_circuits"]["heads"] == data["random_circuits"]["heads"]
    other = ablation_battery.measure(replace(study, settings={**study.settings, "seed": 1}))
    assert other["random_circuits"]["heads"] != data["random_circuits"]["heads"]
    moved = np.abs(other["logit_diff"] - data["logit_diff"]).max(1) > 1e-3
    methods = np.array([condition["method"] for condition in data["conditions"]])
    assert moved[np.isin(methods, ["resample", "noise"])].all()
    assert not moved[~np.isin(methods, ["resample", "noise"])].any()


# --- drawing random circuits --------------------------------------------------------------------------------

HEADS = [head(layer, index) for layer in range(3) for index in range(4)]


def test_every_matched_set_is_equally_likely() -> None:
    """One of 4 heads in a layer and two of 4 in another: 24 sets, the circuit one of them."""
    circuit, rng, n = [head(0, 1), head(2, 0), head(2, 3)], random.Random(0), 4800
    counts = Counter(matched_heads(circuit, HEADS, rng) for _ in range(n))
    assert len(counts) == 24
    chi_squared = sum((count - n / 24) ** 2 / (n / 24) for count in counts.values())
    assert chi_squared < 49.7  # 99.9 % point of chi-squared with 23 degrees of freedom
    assert tuple(sorted(circuit)) in counts


def test_a_random_circuit_matches_size_and_layers_and_is_never_the_circuit() -> None:
    rng = random.Random(1)
    for _ in range(300):
        circuit = rng.sample(HEADS, rng.randint(1, 9))
        layers = Counter(node.layer for node in circuit)
        if all(layers[layer] == 4 for layer in layers):
            continue
        drawn = random_circuit(circuit, HEADS, rng)
        assert set(drawn) != set(circuit)
        assert len(set(drawn)) == len(circuit)
        assert Counter(node.layer for node in drawn) == layers


def test_too_few_sets_of_the_circuit_s_layers_are_drawn_from_any_layers(study) -> None:
    """One head of 4 in a layer: 4 sets, of which none can be significant; of all 12 heads, each equally likely."""
    assert sets_alike([head(0, 1)], HEADS) == 4
    assert sets_alike([head(0, 1), head(2, 0), head(2, 3)], HEADS) == 24
    rng, n = random.Random(0), 2400
    counts = Counter(matched_heads([head(0, 1)], HEADS, rng, by_layer=False) for _ in range(n))
    assert set(counts) == {(one,) for one in HEADS}
    assert sum((count - n / 12) ** 2 / (n / 12) for count in counts.values()) < 31.3  # 99.9 %, 11 degrees of freedom
    alone = replace(study, circuit=replace(study.circuit, roles={"only": Role((study.model.heads[0],))}))
    settings = {**study.settings, "random_circuits": 60, "fewest_matched": len(study.model.heads) - 1}
    whole = ablation_battery.measure(replace(alone, settings=settings))
    assert list(mismatches(results_io.canonical(whole), result_types.AblationBattery, "20")) == []
    found = whole["random_circuits"]
    assert found["any_layers"] and len({layer for ((layer, _),) in found["heads"]}) == study.model.n_layers
    others = {
        (node.layer, node.index) for node in study.model.heads[1:]
    }  # every other head once, where 60 were asked for
    assert {tuple(pair) for (pair,) in found["heads"]} == others and len(found["heads"]) == len(others) == len(
        found["logit_diff"]
    )
    fewest = sets_alike(alone.claim.nodes, study.every) - 1
    found = ablation_battery.measure(replace(alone, settings={**settings, "fewest_matched": fewest}))["random_circuits"]
    assert "any_layers" not in found and {layer for ((layer, _),) in found["heads"]} == {0}


def test_random_circuits_are_different_sets_and_none_is_the_claim() -> None:
    """All of them where there are no more than asked for, so that p is (1 + as faithful) / (1 + others), exactly."""
    rng = random.Random(0)
    one, three, at_end = (
        [head(1, 2)],
        [head(0, 1), head(2, 0), head(2, 3)],
        [replace(head(0, 1), position="end"), head(0, 2)],
    )
    assert sorted(other_circuits(one, HEADS, rng, False, 200)) == [(other,) for other in HEADS if other != one[0]]
    assert (
        len(set(other_circuits(three, HEADS, rng, True, 200)))
        == len(other_circuits(three, HEADS, rng, True, 200))
        == 23
    )
    few = other_circuits(three, HEADS, rng, True, 9)
    assert len(set(few)) == len(few) == 9 and tuple(sorted(three)) not in few
    assert sets_alike(at_end, HEADS) == 12  # two of four heads, and either of them may be the one at the end
    assert len(set(other_circuits(at_end, HEADS, rng, True, 200))) == 11
    assert other_circuits(HEADS[::-1], HEADS, rng, False, 200) == [tuple(HEADS)]  # no other set is like it


def test_a_circuit_of_whole_layers_has_no_random_twin() -> None:
    with pytest.raises(UserError, match="holds every head of each of its layers"):
        random_circuit(HEADS[:4] + HEADS[8:], HEADS, random.Random(0))
    assert random_circuit(HEADS[:5], HEADS, random.Random(0))[:4] == tuple(HEADS[:4])


def test_a_battery_of_fewer_conditions_holds_the_same_numbers(data, study) -> None:
    """Circuit under mean and noise, role knock-outs under zero, complement and nothing under the claim's own recipe (mean):
    1 + 2 + 3 + 2 conditions, each as in the whole battery."""
    chosen = {"circuit": ["mean", "noise"], "without": ["zero"]}
    fewer = ablation_battery.measure(replace(study, settings={**study.settings, "battery": chosen}))
    names = [condition["name"] for condition in data["conditions"]]
    assert len(fewer["conditions"]) == 8
    kept = [names.index(condition["name"]) for condition in fewer["conditions"]]
    np.testing.assert_allclose(fewer["logit_diff"], data["logit_diff"][kept], atol=1e-4)


@pytest.mark.parametrize(
    ("battery", "said"),
    [
        ({"circuit": ["mean"], "rest": ["zero"]}, "measurement.battery.rest is unknown"),
        ({"circuit": ["mean", "salt"]}, "measurement.battery.circuit names salt"),
        ({"circuit": ["zero"]}, "measurement.battery.circuit lacks mean"),
    ],
)
def test_a_battery_that_cannot_be_run_is_refused(battery, said) -> None:
    with pytest.raises(UserError, match=said):
        ablation_battery.check({"battery": battery})
