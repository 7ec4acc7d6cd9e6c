"""Claims of heads, MLPs and positions: names, files, what is refused, and what is ablated, against brute force."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import yaml

from circuits import circuit as circuit_files
from circuits.circuit import Circuit, Node, Role, complement, head, mlp, parse_node, units
from circuits.engine import FusedEngine, LensEngine
from circuits.hypothesis import circuit_edges, hypothesis_edges
from circuits.interventions import EveryBut, Intervention, Recipe, Sweep, Variant, ablate, on_parts
from circuits.measurements import ablation_battery, causal_scrubbing, fresh_prompts, minimality, path_patching
from circuits.measurements.ablation_battery import matched_heads, random_circuit
from circuits.prompts import CHANGED
from results_io import UserError
from tests.circuits import toy
from tests.circuits.hook_loop import HookLoop

HEADER = "name: a\ntask: ioi\nmodel: toy\nprovenance: {kind: user}\n"
EVERY = (*(head(layer, index) for layer in range(3) for index in range(4)), *map(mlp, range(3)))
NAMES = ["L0H1", "L1H2@s2", "L2H0@end", "L2H3@end", "L2H3@s1", "M0", "M2@end"]
RECIPES = [
    Recipe("zero"),
    Recipe("zero_raw"),
    Recipe("mean"),
    Recipe("mean", pooled=True),
    Recipe("resample", seed=1, draw=1),
    Recipe("noise", seed=1, draw=1),
]


def claim(*names: str, **others) -> Circuit:
    roles = {
        f"role {place}": Role.of([parse_node(name)], ordinal=min(place + 1, 4)) for place, name in enumerate(names)
    }
    return Circuit("mixed", "ioi", "toy", roles, {"kind": "user"}, **others)


def alone_by_hand(names: list[str], recipe: Recipe, name: str, every=EVERY) -> Variant:
    """Every node by itself: untouched, replaced, or replaced at every position but those that the claim names."""
    claimed = [parse_node(one) for one in names]
    made = []
    for node in every:
        places = tuple(one.position for one in claimed if one.whole == node)
        if not places:
            made.append(Intervention((node,), recipe))
        elif places != ("",):
            made.append(Intervention((node,), recipe, (EveryBut(places),)))
    return Variant(name, tuple(made))


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_round_trip() -> None:
    rng = random.Random(0)
    for _ in range(100):
        place = head(rng.randrange(100), rng.randrange(100)) if rng.random() < 0.5 else mlp(rng.randrange(100))
        node = replace(place, position=rng.choice(["", "end", "s1_plus_1", "the subject", "größe"]))
        assert parse_node(node.name) == node and parse_node(f"  {node.name} ") == node
        assert node.whole == place
    assert [parse_node(name).name for name in NAMES] == NAMES
    assert parse_node("M8@subject") == Node("mlp", 8, -1, "subject")
    assert Node("head", 9, 6, but=("end", "s2")).name == "L9H6@!end,!s2"


@pytest.mark.parametrize(
    "name",
    [
        "M",
        "M-1",
        "m3",
        "M3@",
        "M3@ ",
        "M1.5",
        "MLP3",
        "L1H2@a@b",
        "@end",
        "L1@end",
        "M3@!end",
        "M٣",
        "L1H2@!end",
        None,
        7,
        "",
    ],
)
def test_a_bad_name_is_one_sentence(name) -> None:
    with pytest.raises(
        UserError, match=r"is not of the form L<layer>H<head>, and no MLP, M<layer>; .* L3H2@end"
    ) as raised:
        parse_node(name)
    assert "\n" not in str(raised.value)


def test_nodes_stand_in_the_order_heads_mlps_parts() -> None:
    shuffled = sorted(map(parse_node, ["M0", "L2H0@end", "L2H0@a", "M2@end", "L0H1", "M1"]))
    assert [node.name for node in shuffled] == ["L0H1", "L2H0@a", "L2H0@end", "M0", "M1", "M2@end"]


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_says_nodes_and_is_read_back_as_written(tmp_path) -> None:
    text = "roles: {early: {nodes: [L0H1, M0]}, late: {heads: [L2H0@end, M2@end], ordinal: 4}}\n"
    (tmp_path / "a.yaml").write_text(HEADER + text)
    loaded = circuit_files.load(tmp_path / "a.yaml")
    assert [node.name for node in loaded.nodes] == ["L0H1", "L2H0@end", "M0", "M2@end"]
    assert (loaded.heads, loaded.mlp_layers, loaded.judges_mlps) == ((head(0, 1), head(2, 0)), (0, 2), True)
    stored = loaded.to_dict()
    assert stored["roles"]["late"]["heads"] == [[2, 0]] and stored["roles"]["late"]["nodes"] == ["L2H0@end", "M2@end"]
    assert stored["scope"] == "heads and mlps"
    circuit_files.save(loaded, tmp_path / "b.yaml")
    assert circuit_files.load(tmp_path / "b.yaml") == loaded
    written = yaml.safe_load((tmp_path / "b.yaml").read_text())
    assert written["roles"]["late"]["nodes"] == ["L2H0@end", "M2@end"] and "heads" not in written["roles"]["late"]


@pytest.mark.parametrize("scope", ["", "heads", "heads and mlps", "Heads_and_MLPs"])
def test_a_scope_survives_the_file_and_heads_is_the_default(tmp_path, scope) -> None:
    made = claim("L0H1", "L1H0", scope=scope)
    circuit_files.save(made, tmp_path / "a.yaml")
    assert circuit_files.load(tmp_path / "a.yaml") == made
    assert made.judges_mlps == ("and" in scope.lower())
    assert ("scope" in made.to_dict()) == made.judges_mlps  # a claim of heads is stored as it always was
    assert (made.sha256 == claim("L0H1", "L1H0").sha256) == (not made.judges_mlps)


REFUSED = {
    "roles: {x: {heads: [L0H0]}, y: {nodes: [M1]}}\nscope: heads": "has an MLP in a role but the scope 'heads'",
    "roles: {x: {nodes: [M1]}}\nmlps: [0]": "lists MLPs under mlps.* put them into a role, for example M0",
    "roles: {x: {heads: [L0H0]}}\nscope: mlps": "has scope 'mlps'; use 'heads' or 'heads and mlps'",
    "roles: {x: {heads: [L0H0]}, y: {nodes: [L0H0@end]}}": "claims L0H0 at all positions and again as L0H0@end",
    "roles: {x: {nodes: [M2, M2@end]}}": "claims M2 at all positions and again as M2@end",
    "roles: {x: {heads: [L0H0], mlps: [1]}}": r"mlps inside a role; name them among its nodes, for example nodes: \[L3H2, M4\]",
    "roles: {x: {ordinal: 1}}": "needs name, task, model, provenance and roles with their heads",
    "roles: {x: {nodes: [M]}}": "head 'M' is not of the form",
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.items())
def test_a_claim_that_contradicts_itself_is_refused(tmp_path, text, sentence) -> None:
    (tmp_path / "a.yaml").write_text(HEADER + text)
    with pytest.raises(UserError, match=sentence):
        circuit_files.load(tmp_path / "a.yaml")


def test_check_knows_layers_and_positions() -> None:
    known = ("end", "s2", CHANGED)
    assert claim("M2", "L0H1@s2", "L1H1@changed").check(3, 4, known).mlp_layers == (2,)
    assert claim("M2").check(3, 4).heads == ()  # MLPs alone are a claim
    with pytest.raises(
        UserError, match=r"names the MLP of layer 99, but model 'toy' has layers 0-2; correct the layer"
    ):
        claim("M99").check(3, 4, known)
    with pytest.raises(
        UserError, match=r"claims L1H2@nowhere, but 'nowhere' is no position of task 'ioi'; use one of end, s2"
    ):
        claim("L1H2@nowhere").check(3, 4, known)


# --- what is ablated -------------------------------------------------------------------------------------------------


def test_units_are_claimed_or_outside_and_never_both() -> None:
    claimed = set(map(parse_node, NAMES))
    outside = complement(claimed, EVERY)
    assert set(units(claimed, EVERY)) == claimed | set(outside) and not claimed & set(outside)
    rest = {node.name for node in outside if node.is_part}
    assert rest == {"L1H2@!s2", "L2H0@!end", "L2H3@!end,!s1", "M2@!end"}
    assert len(outside) == len(EVERY) - 2 - 4 + 4
    assert complement((), EVERY) == EVERY and complement(EVERY, EVERY) == ()


def test_parts_that_make_up_a_node_are_the_node() -> None:
    every = units(map(parse_node, NAMES), EVERY)
    (one,) = on_parts(every, RECIPES[0])
    assert set(one.nodes) == set(EVERY) and one.positions is None
    assert ablate(sorted(EVERY), RECIPES[0], "a") == Variant("a", (Intervention(tuple(sorted(EVERY)), RECIPES[0]),))
    two = on_parts([parse_node("L0H0@end"), head(1, 1), parse_node("M0@end")], RECIPES[0])
    assert [(item.nodes, item.positions) for item in two] == [
        ((head(0, 0), mlp(0)), ("end",)),
        ((head(1, 1),), None),
    ]
    with pytest.raises(ValueError, match="L0H0@end is a part of a node"):
        Intervention((parse_node("L0H0@end"),), RECIPES[0])


@pytest.fixture(scope="module", params=["gpt2", "neox", "llama"])
def architecture(request) -> str:
    return request.param


@pytest.mark.slow
@pytest.mark.parametrize("backend", [LensEngine, FusedEngine], ids=["lens", "fused"])
def test_both_engines_ablate_the_complement_as_hooks_do(backend, architecture, load, plain, make_study) -> None:
    """Alone, without a group, and the model without the group, under every recipe; an independent loop of hooks is the truth."""
    study = make_study(architecture)
    prompts = study.prompts.select([1, 12])
    engine = backend(load(architecture), study.engine.reference.prompts)
    loop = HookLoop(plain(architecture), architecture, toy.N_HEADS, study.engine.reference.prompts)
    names, group = (
        ["L0H1", "L1H2@s2", "L1H0@end", "L1H3@end", "L1H3@s1", "M0", "M1@end"],
        ["L1H0@end", "L1H3@end", "M0"],
    )
    every = (*study.model.heads, *map(mlp, range(study.model.n_layers)))
    claimed, removed = set(map(parse_node, names)), set(map(parse_node, group))
    outside = set(complement(claimed, every))
    made, truth = [], []
    for recipe in RECIPES:
        made += [
            ablate(sorted(outside), recipe, f"circuit, {recipe}"),
            ablate(sorted(outside | removed), recipe, f"circuit without, {recipe}"),
            ablate(sorted(removed), recipe, f"model without, {recipe}"),
        ]
        kept = [name for name in names if name not in group]
        truth += [
            alone_by_hand(names, recipe, f"circuit, {recipe}", every),
            alone_by_hand(kept, recipe, f"circuit without, {recipe}", every),
            Variant(
                f"model without, {recipe}",
                (
                    Intervention((head(1, 0),), recipe, ("end",)),
                    Intervention((head(1, 3),), recipe, ("end",)),
                    Intervention((mlp(0),), recipe),
                ),
            ),
        ]
    found, expected = engine.run(Sweep(tuple(made)), prompts).logit_diff, loop.run(tuple(truth), prompts).logit_diff
    assert np.abs(found - expected).max() < 1e-4 * max(1, np.abs(expected).max())
    assert np.abs(np.diff(expected[:3], axis=0)).max() > 1e-3  # the three are not the same run


# --- measurements ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(make_study):
    return replace(make_study(), circuit=claim(*NAMES), done={})


def faith(study, variant: Variant) -> np.ndarray:
    return study.run(Sweep((variant,))).logit_diff[0]


def test_20_and_19_ablate_all_that_is_not_claimed(mixed) -> None:
    data = ablation_battery.measure(mixed)
    found = {condition["name"]: row for condition, row in zip(data["conditions"], data["logit_diff"], strict=True)}
    mean = Recipe("mean")
    expected = {
        "circuit/mean/0": alone_by_hand(NAMES, mean, "a"),
        "empty/mean/0": Variant("a", (Intervention(EVERY, mean),)),
        "complement/mean/0": Variant("a", on_parts(map(parse_node, NAMES), mean)),
        "without:role 5/mean/0": Variant("a", (Intervention((mlp(0),), mean),)),
        "without:role 2/mean/0": Variant("a", (Intervention((head(2, 0),), mean, ("end",)),)),
    }
    for name, variant in expected.items():
        assert np.abs(found[name] - faith(mixed, variant)).max() < 1e-5, name
    fresh = fresh_prompts.measure(mixed)
    assert np.isfinite(fresh["circuit"]).all() and np.abs(np.array(fresh["circuit"]) - fresh["clean"]).max() > 1e-3
    for name in ("top_k_norm", "top_k_attribution"):
        kinds = Counter(name[0] for name in data["baselines"]["nodes"][name])
        assert kinds == {"L": 4, "M": 2} and len(data["baselines"][name]) == 4


def test_random_circuits_have_the_kinds_layers_and_positions_of_the_claim(mixed) -> None:
    chosen = ablation_battery.measure(mixed)["random_circuits"]
    own = [parse_node(name) for name in NAMES]
    wanted = Counter((node.kind, node.layer if node.kind == "head" else None, node.position) for node in own)
    for names, pairs, row in zip(chosen["nodes"], chosen["heads"], chosen["logit_diff"], strict=True):
        drawn = [parse_node(name) for name in names]
        assert Counter((n.kind, n.layer if n.kind == "head" else None, n.position) for n in drawn) == wanted
        assert [list(pair) for pair in pairs] == [
            [n.layer, n.index] for n in sorted({n.whole for n in drawn}) if n.kind == "head"
        ]
        again = mixed.run(
            Sweep((alone_by_hand(names, Recipe("mean"), "a"),)), mixed.prompts.select(chosen["prompt_index"])
        )
        assert np.abs(again.logit_diff[0] - row).max() < 1e-5
    assert len({tuple(names) for names in chosen["nodes"]}) > 1


def test_every_circuit_of_the_null_is_equally_likely() -> None:
    """Two of four heads in a layer, one of them at the end, and one MLP of three: 4 x 3 x 3 sets."""
    own = [parse_node(name) for name in ("L0H0", "L0H1@end", "M1")]
    rng, n = random.Random(0), 7200
    counts = Counter(matched_heads(own, EVERY, rng) for _ in range(n))
    assert len(counts) == 36
    assert sum((count - n / 36) ** 2 / (n / 36) for count in counts.values()) < 66.6  # 99.9 % of chi2, 35 df
    assert random_circuit([mlp(0)], EVERY, random.Random(0)) in {(mlp(1),), (mlp(2),)}
    with pytest.raises(UserError, match="no other circuit matches it"):
        random_circuit([*EVERY], EVERY, random.Random(0))


@pytest.mark.slow
def test_22_takes_mlps_and_parts_out_like_heads(mixed) -> None:
    data, mean = minimality.measure(mixed), Recipe("mean")
    names = sorted(map(parse_node, NAMES))
    assert data["nodes"] == [node.name for node in names] and data["heads"] == [[0, 1], [1, 2], [2, 0], [2, 3]]
    whole = faith(mixed, alone_by_hand(NAMES, mean, "a"))
    for row, node in enumerate(names):
        left = faith(mixed, alone_by_hand([name for name in NAMES if name != node.name], mean, "a"))
        assert np.abs(data["effect"][row] - (whole - left)).max() < 1e-5, node.name
    groups, outside = data["completeness"]["groups"], data["outside"]
    assert [group["nodes"] for group in groups if group["kind"] == "mlp"] == [["M0"], ["M2@end"]]
    assert set(outside["nodes"]) == {node.name for node in complement(names, EVERY)}
    stored = data["completeness"]["recipes"]["mean"]
    place = next(i for i, group in enumerate(groups) if group["name"] == "M2@end")
    rows = data["completeness"]["prompt_index"]
    lost = faith(mixed, Variant("clean")) - faith(mixed, Variant("a", (Intervention((mlp(2),), mean, ("end",)),)))
    by_model = np.asarray(stored["model"]) - np.asarray(stored["model_without"])[stored["groups"].index(place)]
    assert np.abs(by_model - lost[rows]).max() < 1e-5
    alone = np.asarray(outside["recipes"]["mean"]["model"])[outside["nodes"].index("L2H3@!end,!s1")]
    rest = Variant("a", (Intervention((head(2, 3),), mean, (EveryBut(("end", "s1")),)),))
    assert np.abs(alone - (faith(mixed, Variant("clean")) - faith(mixed, rest))[outside["prompt_index"]]).max() < 1e-5


@pytest.mark.slow
def test_24_and_28_leave_the_mlps_out_that_are_not_claimed(mixed) -> None:
    graph = mixed.model.graph
    edges = circuit_edges(mixed.circuit, graph)
    assert {edge.writer for edge in edges} == {Node("embedding", 0), *(node.whole for node in mixed.circuit.nodes)}
    assert not any(edge.reader.kind == "mlp" and edge.reader.layer == 1 for edge in edges)
    assert hypothesis_edges(mixed.circuit, graph) <= edges
    scrubbed = causal_scrubbing.measure(mixed)
    every = replace(mixed, circuit=claim(*(node.name for node in EVERY)), done={})
    intact = causal_scrubbing.measure(every)
    assert np.abs(intact["heads_only"] - intact["everything_relevant"]).max() < 1e-4
    assert np.abs(scrubbed["heads_only"] - scrubbed["everything_relevant"]).max() > 1e-3
    data = path_patching.measure(mixed)
    node_wise = np.asarray(data["circuit"]["logit_diff"]["mean"]["node_wise"])
    assert np.abs(node_wise - faith(mixed, alone_by_hand(NAMES, Recipe("mean"), "a"))).max() < 1e-5
