"""28: effects of single edges, and the circuit scored node by node and edge by edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import results_io
from circuits import models, tasks
from circuits import study as studies
from circuits.circuit import Node, Role, head
from circuits.edges import Edge
from circuits.engine.gradients import GradientEngine
from circuits.hypothesis import circuit_edges
from circuits.interventions import Recipe, Sweep, Variant, ablate, patch_paths
from circuits.measurements import path_patching
from results_io import UserError
from tests.circuits import toy
from tests.circuits.path_loop import PathLoop

SETTINGS = {
    "prompts": 6,
    "discovery_prompts": 8,
    "most_edges": 3000,
    "edge_share": 0.02,
    "edge_sizes": [0, 0.25, 0.5, 1],
}
CLEAN, CORRUPTED = Recipe("patch"), Recipe("patch", source="corrupted")


def with_settings(study, **changed):
    return replace(study, settings={**study.settings, "path_patching": {**SETTINGS, **changed}})


@pytest.fixture(scope="module")
def studied(make_study):
    """studied(architecture): the toy's study; where there are two layers, three heads of which two share keys and values."""

    def make(architecture="gpt2"):
        study = with_settings(make_study(architecture))
        if study.model.n_layers == 3:
            return study
        roles = {"early": Role((head(0, 1),)), "late": Role((head(1, 2), head(1, 3)))}
        return replace(study, circuit=replace(study.circuit, roles=roles))

    return make


@pytest.fixture(scope="module")
def data(studied):
    return path_patching.measure(studied())


def anew(study):
    """The same study with an engine that has run nothing."""
    return replace(study, engine=study.engine.on(study.engine.reference.prompts), done={})


def edges_of(study) -> list[tuple[list[int], object, str | None]]:
    data = path_patching._named(study, path_patching.candidates(study))
    return list(zip(data["senders"], data["receivers"], data["input"], strict=True))


# --- single edges -----------------------------------------------------------------------------------------------


def test_edges_go_to_every_later_head_of_the_circuit_and_the_logits(studied) -> None:
    pairs = [([0, 1], [1, 2]), ([0, 1], [2, 0]), ([0, 1], [2, 3]), ([1, 2], [2, 0]), ([1, 2], [2, 3])]
    expected = [(*pair, kind) for pair in pairs for kind in ("q", "k", "v")]
    expected += [([layer, index], "logits", None) for layer, index in ((0, 1), (1, 2), (2, 0), (2, 3))]
    found = edges_of(studied())
    assert len(found) == len(expected) == 19
    assert all(edge in found for edge in expected)


def test_under_grouped_queries_the_receiver_is_the_group(studied) -> None:
    study = studied("llama")
    expected = [([0, 1], [1, 2], "q"), ([0, 1], [1, 3], "q"), ([0, 1], [1, 2], "k"), ([0, 1], [1, 2], "v")]
    expected += [([layer, index], "logits", None) for layer, index in ((0, 1), (1, 2), (1, 3))]
    assert edges_of(study) == expected
    heads = path_patching._named(study, path_patching.candidates(study))["receiver_heads"]
    assert heads == [[[1, 2]], [[1, 3]], [[1, 2], [1, 3]], [[1, 2], [1, 3]], [], [], []]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_effects_equal_brute_force(architecture, studied, plain, data) -> None:
    study = studied(architecture)
    found = data if architecture == "gpt2" else path_patching.measure(study)
    edges, chosen = path_patching.candidates(study), found["rows"][:2]
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [patch_paths([edge], CORRUPTED, f"noise {edge}") for edge in edges]
    variants += [patch_paths([edge], CLEAN, f"restore {edge}", "corrupted") for edge in edges]
    loop = PathLoop(plain(architecture), architecture, toy.N_HEADS, study.engine.reference.prompts)
    truth = loop.differences(tuple(variants), study.prompts.select(chosen))
    noising, denoising = truth[0] - truth[2 : 2 + len(edges)], truth[2 + len(edges) :] - truth[1]
    assert found["noising"].shape == found["denoising"].shape == (len(edges), 6)
    assert np.abs(found["noising"][:, :2] - noising).max() < 1e-4
    assert np.abs(found["denoising"][:, :2] - denoising).max() < 1e-4
    assert np.abs(noising).max() > 0.05


def test_prompts_are_those_of_the_lowest_hash_and_means_are_over_them(data, studied) -> None:
    assert data["rows"] == toy.lowest_hash(studied(), 6)
    for form in ("noising", "denoising"):
        assert np.allclose(data[f"{form}_mean"], data[form].mean(1), atol=1e-12)
    assert data["discovery"]["prompts"] == 8
    assert len(data["discovery"]["effect"]) == 19


# --- edge-level circuits ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exact(load, studied):
    """The toy's study in float64."""
    study = studied()
    model = load("gpt2", "float64")
    return replace(study, model=model, engine=type(study.engine)(model, study.engine.reference.prompts), done={})


def test_node_wise_is_ablating_the_heads_outside_and_replacing_all_other_edges(exact) -> None:
    """Three ways to say the same, in float64: the measurement's, `ablate` and the complement spelled out edge by edge."""
    prompts, graph = exact.prompts.select([0, 3, 20]), exact.model.graph
    outside = set(exact.model.heads) - set(exact.circuit.heads)
    others = set(graph.edges) - circuit_edges(exact.circuit, graph)
    variants = []
    for name, recipe in path_patching.RECIPES.items():
        variants.append(path_patching.without_edges(exact, (), recipe, f"{name}/measured"))
        variants.append(ablate(sorted(outside), recipe, f"{name}/nodes"))
        variants.append(patch_paths(sorted(others), recipe, f"{name}/edges"))
    found = exact.engine.run(Sweep(tuple(variants)), prompts).logit_diff.reshape(2, 3, 3)
    assert np.abs(found[:, 1:] - found[:, :1]).max() < 1e-10
    assert np.abs(found[0] - found[1]).min() > 1e-3


def test_edge_wise_is_replacing_every_edge_that_is_not_kept(exact) -> None:
    prompts, graph = exact.prompts.select([0, 3, 20]), exact.model.graph
    pruned = path_patching.candidates(exact)[::2]
    kept = circuit_edges(exact.circuit, graph) - set(pruned)
    variants = []
    for name, recipe in path_patching.RECIPES.items():
        variants.append(path_patching.without_edges(exact, pruned, recipe, f"{name}/measured"))
        variants.append(patch_paths([e for e in graph.edges if e not in kept], recipe, f"{name}/edges"))
        variants.append(path_patching.without_edges(exact, (), recipe, f"{name}/node-wise"))
    measured, spelled, node_wise = (
        exact.engine.run(Sweep(tuple(variants)), prompts).logit_diff.reshape(2, 3, 3).swapaxes(0, 1)
    )
    assert np.abs(measured - spelled).max() < 1e-10
    assert np.abs(measured - node_wise).min() > 1e-3


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_the_circuit_is_scored_on_every_prompt_under_both_recipes(architecture, studied) -> None:
    study = studied(architecture)
    found, graph = path_patching.measure(study)["circuit"], study.model.graph
    heads, circuit = set(study.model.heads), set(study.circuit.heads)
    for name, recipe in path_patching.RECIPES.items():
        variants = (ablate(sorted(heads - circuit), recipe, "circuit"), ablate(study.model.heads, recipe, "empty"))
        inside, empty = study.engine.run(Sweep((Variant("clean"), *variants)), study.prompts).logit_diff[1:]
        assert np.abs(found["logit_diff"][name]["node_wise"] - inside).max() < 1e-5
        assert np.abs(found["logit_diff"][name]["empty"] - empty).max() < 1e-5
        assert found["logit_diff"][name]["edge_wise"].shape == (28,)
    pruned = int((~found["kept"]).sum())
    counts = found["edges"]
    assert counts["model"] == len(graph.edges)
    assert counts["candidates"] == len(found["kept"])
    assert counts["node_wise"] - counts["edge_wise"] == pruned
    assert counts["node_wise"] == len([e for e in graph.edges if e in circuit_edges(study.circuit, graph)])


def test_faithfulness_is_the_ratio_of_means_of_each_split(data, studied) -> None:
    found, study = data["circuit"], studied()
    for name in path_patching.RECIPES:
        scored = found["logit_diff"][name]
        for form in ("node_wise", "edge_wise"):
            for split in ("evaluation", "held_out"):
                rows = study.prompts.rows_of(split)
                empty = scored["empty"][rows].mean(dtype=float)
                expected = (scored[form][rows].mean(dtype=float) - empty) / (
                    found["clean"][rows].mean(dtype=float) - empty
                )
                assert found["faithfulness"][name][form][split] == pytest.approx(expected, rel=1e-9)
    assert path_patching.faithfulness(np.ones(3), np.zeros(3), np.ones(3)) is None


@pytest.mark.slow
def test_faithfulness_is_1_for_the_whole_model_and_0_for_nothing(studied) -> None:
    study = studied()
    whole = replace(study, circuit=replace(study.circuit, roles={"all": Role(study.model.heads)}))
    found = path_patching.measure(with_settings(whole, edge_share=0))["circuit"]
    for name in path_patching.RECIPES:
        assert np.abs(found["logit_diff"][name]["node_wise"] - found["clean"]).max() < 1e-5
        assert found["faithfulness"][name]["edge_wise"]["evaluation"] == pytest.approx(1, abs=1e-5)
    assert found["edges"]["node_wise"] == found["edges"]["edge_wise"] == found["edges"]["model"] == 262


def test_pruning_follows_the_discovery_prompts(data, studied) -> None:
    """An edge is kept if its noising effect there, of either sign, is at least the share of the mean clean difference."""
    study, edges = studied(), path_patching.candidates(studied())
    chosen = sorted(range(16), key=lambda row: study.discovery.ids[row])[:8]
    sweep = Sweep((Variant("clean"), *(patch_paths([edge], CORRUPTED, str(edge)) for edge in edges)))
    found = study.engine.run(sweep, study.discovery.select(chosen)).logit_diff.astype(float)
    effect = (found[0] - found[1:]).mean(1)
    assert np.abs(data["discovery"]["effect"] - effect).max() < 1e-5
    assert data["discovery"]["mean_clean"] == pytest.approx(found[0].mean(), abs=1e-5)
    kept = data["circuit"]["kept"]
    assert np.array_equal(kept, np.abs(effect) >= 0.02 * abs(found[0].mean()))
    assert 0 < kept.sum() < len(edges)
    assert (effect[kept] < 0).any()
    assert (effect[kept] > 0).any()


def test_a_share_of_0_prunes_nothing_and_a_large_one_everything(studied) -> None:
    study = studied()
    nothing = path_patching.measure(with_settings(study, edge_share=0))["circuit"]
    everything = path_patching.measure(with_settings(study, edge_share=1e6))["circuit"]
    assert nothing["kept"].all()
    assert not everything["kept"].any()
    for name, recipe in path_patching.RECIPES.items():
        scored = nothing["logit_diff"][name]
        assert np.abs(scored["edge_wise"] - scored["node_wise"]).max() < 1e-6
        bare = path_patching.without_edges(study, path_patching.candidates(study), recipe, "bare")
        expected = study.engine.run(Sweep((bare,)), study.prompts).logit_diff[0]
        assert np.abs(everything["logit_diff"][name]["edge_wise"] - expected).max() < 1e-5
        assert np.abs(everything["logit_diff"][name]["node_wise"] - expected).max() > 1e-2


def test_the_largest_edges_are_kept_first(data, studied) -> None:
    study, found = studied(), data["edges_by_size"]
    edges, order = path_patching.candidates(study), np.argsort(-np.abs(data["discovery"]["effect"]), kind="stable")
    assert found["edges"] == [0, 5, 10, 19]
    for name, recipe in path_patching.RECIPES.items():
        pruned = [edges[i] for i in order[5:]]
        expected = study.engine.run(
            Sweep((path_patching.without_edges(study, pruned, recipe, "a"),)), study.prompts.select(data["rows"])
        ).logit_diff[0]
        assert np.abs(found["logit_diff"][name][1] - expected).max() < 1e-5
        node_wise = data["circuit"]["logit_diff"][name]["node_wise"][data["rows"]]
        assert np.abs(found["logit_diff"][name][3] - node_wise).max() < 1e-5
        clean, empty = data["circuit"]["clean"][data["rows"]], found["empty"][name]
        expected = path_patching.faithfulness(clean, expected, empty)
        assert found["faithfulness"][name][1] == pytest.approx(expected, abs=1e-4)


# --- a known answer ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def planted():
    """(data, edges that the construction has, all candidates) of the hand-written model's IOI circuit."""
    model = models.load({"kind": "planted", "variant": "sound", "name": "planted/sound"})
    settings = {
        "path_patching": {**SETTINGS, "prompts": 4, "discovery_prompts": 4, "edge_share": 0.005, "edge_sizes": [0.5]}
    }
    study = studies.prepare(
        model, tasks.get("ioi"), toy.SIZES, 0, toy.ENGINE, settings=settings, circuit=model.circuits["ioi"]
    )
    graph, roles = model.graph, model.circuits["ioi"].roles
    duplicate, inhibit, move = (roles[name].heads for name in ("duplicate_token", "s_inhibition", "name_mover"))
    true = {Edge(a, graph.reader_of(b, kind)) for a in duplicate for b in inhibit for kind in ("k", "v")}
    true |= {Edge(a, graph.reader_of(b, "q")) for a in inhibit for b in move}
    true |= {Edge(a, graph.logits) for a in move}
    return path_patching.measure(study), true, path_patching.candidates(study), study


@pytest.mark.slow
def test_in_a_planted_circuit_the_edges_that_were_built_carry_everything(planted) -> None:
    """Duplicate-token heads write a mark that S-inhibition's keys read and a name that its values read; S-inhibition writes
    what name movers' queries read; name movers write what the logits read.
    """
    data, true, edges, _ = planted
    built = np.array([edge in true for edge in edges])
    assert (len(edges), built.sum(), len(true)) == (58, 17, 17)
    assert data["noising_mean"][built].min() > 0.1
    assert np.abs(data["noising"][~built]).max() < 1e-3
    assert np.abs(data["denoising"][~built]).max() < 1e-3
    assert np.array_equal(data["circuit"]["kept"], built)


@pytest.mark.slow
def test_a_sender_that_acts_through_other_heads_has_no_direct_effect(planted) -> None:
    data, _, edges, study = planted
    sender = head(1, 3)
    direct = data["noising"][edges.index(Edge(sender, study.model.graph.logits))]
    prompts = study.prompts.select(data["rows"])
    total = ablate([sender], CORRUPTED, "total")
    clean, noised = study.engine.run(Sweep((Variant("clean"), total)), prompts).logit_diff
    assert np.abs(direct).max() < 1e-3
    assert (clean - noised).min() > 0.5


@pytest.mark.slow
def test_the_planted_circuit_is_as_faithful_by_its_17_edges_as_by_its_heads(planted) -> None:
    found = planted[0]["circuit"]
    assert found["edges"]["candidates"] - (found["edges"]["node_wise"] - found["edges"]["edge_wise"]) == 17
    for name in path_patching.RECIPES:
        for split in ("evaluation", "held_out"):
            node_wise, edge_wise = (found["faithfulness"][name][form][split] for form in ("node_wise", "edge_wise"))
            assert node_wise == pytest.approx(1, abs=0.05)
            assert edge_wise == pytest.approx(node_wise, abs=0.01)


# --- the result and its settings --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rerun_gives_the_same_bytes(studied, data, tmp_path) -> None:
    again = path_patching.measure(anew(studied()))
    for name, found in (("first", data), ("again", again)):
        results_io.write(tmp_path / f"{name}.json", {"data": found})
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "again.json").read_bytes()


@pytest.mark.slow
def test_every_pair_is_reported(studied) -> None:
    class Count:
        expected = done = 0

        def expect(self, pairs):
            self.expected += pairs

        def advance(self, pairs):
            self.done += pairs

    bar = Count()
    path_patching.measure(replace(anew(studied()), progress=bar))
    assert bar.done == bar.expected == 20 * 8 + 2 * 20 * 6 + 7 * 28 + 11 * 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prompts": 0}, "path_patching.prompts is 0; expected a whole number of at least 1"),
        ({"discovery_prompts": 2.5}, "path_patching.discovery_prompts is 2.5; expected a whole number"),
        ({"edge_share": -0.1}, "path_patching.edge_share is -0.1; expected a number of at least 0"),
        ({"edge_sizes": [0.5, 2]}, "path_patching.edge_sizes holds 2; expected shares of the edges from 0 to 1"),
    ],
)
def test_bad_settings_are_named(changed, message, studied) -> None:
    with pytest.raises(UserError, match=message):
        path_patching.measure(with_settings(studied(), **changed))


def test_a_circuit_of_one_head_has_its_edge_to_the_logits(studied) -> None:
    study = studied()
    one = replace(study, circuit=replace(study.circuit, roles={"only": Role((Node("head", 1, 2),))}))
    data = path_patching.measure(one)
    assert (data["senders"], data["receivers"], data["input"]) == ([[1, 2]], ["logits"], [None])
    assert data["circuit"]["edges"]["candidates"] == 1


# --- more edges than are patched one by one ---------------------------------------------------------------------


@pytest.mark.slow
def test_of_many_edges_those_of_the_largest_attribution_are_patched(studied, data) -> None:
    """Their numbers are those of the whole measurement; attribution stands for the others, and says how much they are worth."""
    study, some = studied(), 7
    edges = path_patching.candidates(study)
    assert data["not_patched"] is None and len(edges) == len(data["senders"]) > 2 * some
    few = path_patching.measure(anew(with_settings(study, most_edges=some)))
    names = [edges_of(study).index(edge) for edge in zip(few["senders"], few["receivers"], few["input"], strict=True)]
    assert len(names) == some and names == sorted(names)
    for field in ("noising", "denoising"):
        assert np.allclose(few[field], data[field][names], atol=1e-5)
    prompts = study.discovery_subset(SETTINGS["discovery_prompts"])
    attributed = attribution_of(study, edges, prompts)
    left = [place for place in range(len(edges)) if place not in names]
    assert np.abs(attributed[names]).min() >= np.abs(attributed[left]).max() - 1e-6
    said = few["not_patched"]
    assert said["edges"] == len(left) and said["largest_attribution"] == pytest.approx(
        np.abs(attributed[left]).max(), rel=1e-3
    )
    assert said["sum_of_attributions"] == pytest.approx(np.abs(attributed[left]).sum(), rel=1e-3)
    kept = np.abs(attributed[left]) >= SETTINGS["edge_share"] * abs(data["discovery"]["mean_clean"])
    assert said["kept"] == kept.sum()
    edges_now = few["circuit"]["edges"]
    assert edges_now["candidates"] == len(edges) and len(few["circuit"]["kept"]) == some
    assert edges_now["node_wise"] - edges_now["edge_wise"] == len(edges) - sum(few["circuit"]["kept"]) - said["kept"]
    assert few["edges_by_size"]["edges"] == data["edges_by_size"]["edges"]


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["logit_difference", "probability_difference"])
def test_attributions_in_nats_are_never_ranked_among_effects_on_the_metric(metric, studied) -> None:
    """Patched edges come first whatever their size; the others are kept by the mean logit difference, which is in nats too."""
    study, some = studied(), 7
    study = replace(study, task=replace(study.task, metric=metric))
    edges, prompts = path_patching.candidates(study), study.discovery_subset(SETTINGS["discovery_prompts"])
    sizes = [0, some / len(edges), 1]
    few = path_patching.measure(anew(with_settings(study, most_edges=some, edge_sizes=sizes, edge_share=0.3)))
    patched = [edges_of(study).index(edge) for edge in zip(few["senders"], few["receivers"], few["input"], strict=True)]
    left = [place for place in range(len(edges)) if place not in patched]
    attributed = np.abs(attribution_of(study, edges, prompts)[left])
    clean = study.run(Sweep((Variant("clean"),)), prompts, in_logits=True).logit_diff[0]
    assert few["not_patched"]["kept"] == (attributed >= 0.3 * abs(clean.mean())).sum()
    assert "nats of attribution" in few["not_patched"]["unit"]
    assert few["edges_by_size"]["edges"] == [0, some, len(edges)]
    pruned = [edges[place] for place in left]
    variants = (Variant("clean"), path_patching.without_edges(study, pruned, Recipe("mean"), "seven"))
    expected = study.run(Sweep(variants), study.prompts.select(few["rows"])).logit_diff[1]
    assert np.allclose(few["edges_by_size"]["logit_diff"]["mean"][1], expected, atol=1e-5)
    assert path_patching.said(few) == (
        f"28: 7 of 19 edges were patched one by one (measurement.path_patching.most_edges); the others, ranked behind them, have "
        f"attributions of {attributed.max():.2g} nats at most and {attributed.sum():.2g} in sum, which approximate their effects "
        "and bound none"
    )
    assert path_patching.said({**few, "not_patched": None}) is None


def attribution_of(study, edges, prompts) -> np.ndarray:
    """Edge attribution patching by the bridge, without the engine that a run uses."""
    found = GradientEngine(study.model).edge_scores(prompts, "clean", "eap", 1).mean
    graph = study.model.graph
    return np.array([found[graph.readers.index(edge.reader), graph.writers.index(edge.writer)] for edge in edges])


@pytest.mark.parametrize("most", [0, -1, 2.5, True, None])
def test_a_number_of_edges_that_is_none_is_refused(studied, most) -> None:
    with pytest.raises(UserError, match=r"measurement.path_patching.most_edges is .*; expected a whole number"):
        path_patching.check({**studied().settings, "path_patching": {**SETTINGS, "most_edges": most}})
