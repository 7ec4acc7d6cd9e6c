"""08: signs and scales against exact patches, what is stored for whom, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from transformers import GPT2Config, GPT2LMHeadModel

import results_io
from circuits import models, tasks
from circuits import study as studies
from circuits.edges import PROJECTIONS
from circuits.engine.gradients import METHODS, GradientEngine
from circuits.interventions import Sweep, Variant, denoise, noise
from circuits.measurements import attribution_patching
from results_io import UserError
from tests.circuits import toy

SETTINGS = {"prompts": 6, "steps": 2, "base": "corrupted", "gradient_dropping": True, "query_key_correction": True}


@dataclass
class Counter:
    """A Progress that adds up."""

    expected: int = 0
    done: int = 0

    def expect(self, pairs: int) -> None:
        self.expected += pairs

    def advance(self, pairs: int) -> None:
        self.done += pairs


def with_settings(study, **changed):
    section = {**SETTINGS, **changed}
    return replace(study, settings={**study.settings, "attribution_patching": section})


@pytest.fixture(scope="module")
def measured(make_study):
    """measured(architecture): (its study, the result)."""
    found = {}

    def make(architecture: str):
        if architecture not in found:
            study = with_settings(make_study(architecture))
            found[architecture] = study, attribution_patching.measure(study)
        return found[architecture]

    return make


# --- against patches -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_estimates_of_a_trained_model_agree_with_exact_patches() -> None:
    """Sixty prompts of the pocket model (all 400: rank correlation .996 for denoising, .93 for noising)."""
    model = models.load({"kind": "embedded", "name": "pocket", "path": "pocket"})
    sizes = {"evaluation": 59, "held_out": 1, "discovery": 1, "reference": 40}
    study = with_settings(studies.prepare(model, tasks.get("ioi"), sizes, 0, toy.ENGINE), prompts=2, steps=1)
    data, heads = attribution_patching.measure(study), model.heads
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [denoise([node], f"d{node}") for node in heads] + [noise([node], f"n{node}") for node in heads]
    table = study.run(Sweep(tuple(variants))).logit_diff.mean(1, dtype=float)
    denoising, noising = table[2 : 2 + len(heads)] - table[1], table[0] - table[2 + len(heads) :]
    effect, largest = data["effect"].mean(0), np.argsort(-np.abs(denoising))[:8]
    assert spearmanr(effect, denoising)[0] > 0.97
    assert roc_auc_score(np.isin(np.arange(len(heads)), largest), np.abs(effect)) > 0.97
    assert np.abs(effect - denoising).sum() < 0.1 * np.abs(denoising).sum()
    assert spearmanr(data["noising"].mean(0), noising)[0] > 0.8
    assert np.corrcoef(data["effect_graddrop"].mean(0), np.abs(denoising))[0, 1] > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_heads_are_estimated_on_every_scored_prompt(architecture, measured) -> None:
    study, data = measured(architecture)
    corrupted = GradientEngine(study.model, decoder=study.engine.decoder).head_effects(
        study.prompts, "corrupted", dropping=True
    )
    clean = GradientEngine(study.model, decoder=study.engine.decoder).head_effects(study.prompts, "clean")
    shape = (len(study.prompts), len(study.model.heads))
    assert data["effect"].shape == data["noising"].shape == data["effect_graddrop"].shape == shape
    assert np.abs(data["effect"] - corrupted.plain).max() < 1e-5
    assert np.abs(data["effect_graddrop"] - corrupted.dropped).max() < 1e-5
    assert np.abs(data["noising"] + clean.plain).max() < 1e-5
    assert data["effect_graddrop"].min() >= 0
    assert np.abs(data["effect"]).mean() > 0.1


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_node_effects_are_means_with_their_error(architecture, measured) -> None:
    study, data = measured(architecture)
    assert data["rows"] == toy.lowest_hash(study, 6)
    prompts = study.prompts.select(data["rows"])
    found = GradientEngine(study.model, decoder=study.engine.decoder).node_effects(
        prompts, "corrupted", correcting=True
    )
    assert data["nodes"]["base"] == "corrupted"
    for kind in PROJECTIONS:
        stored, shared = data["nodes"][kind], 2 if architecture in ("llama", "qwen2") and kind != "q" else 4
        assert stored["heads"] == [[layer, i] for layer in range(study.model.n_layers) for i in range(shared)]
        columns = [found[kind].plain] if kind == "v" else [found[kind].plain, found[kind].corrected]
        for name, expected in zip(("effect", "corrected"), columns, strict=False):
            assert np.abs(stored[name] - expected.mean(0)).max() < 1e-5
            error = expected.std(0, ddof=1) / np.sqrt(6)
            assert np.abs(stored[f"{name}_standard_error"] - error).max() < 1e-5
    assert data["nodes"]["v"]["corrected"] is data["nodes"]["v"]["corrected_standard_error"] is None


# --- edges -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_edges_stand_where_the_graph_has_them(architecture, measured) -> None:
    study, data = measured(architecture)
    graph, edges = study.model.graph, data["edges"]
    assert edges["writers"] == [str(writer) for writer in graph.writers]
    assert edges["readers"] == [str(reader) for reader in graph.readers]
    assert (edges["base"], edges["prompts"], edges["steps"]) == ("corrupted", 6, 2)
    there = [[graph.connects(writer, reader) for writer in graph.writers] for reader in graph.readers]
    for table in (*(edges[method] for method in METHODS), *edges["standard_error"].values()):
        assert [[value is not None for value in row] for row in table] == there
    scores = GradientEngine(study.model, decoder=study.engine.decoder).edge_scores(
        study.prompts.select(data["rows"]), "corrupted", "eap"
    )
    assert all(
        edges["eap"][graph.readers.index(e.reader)][graph.writers.index(e.writer)] == scores.of(e) for e in graph.edges
    )


@pytest.mark.slow
def test_the_embedding_s_edges_come_closer_to_the_whole_effect_with_more_steps(measured) -> None:
    study, data = measured("gpt2")
    few, many = data, attribution_patching.measure(with_settings(study, steps=20))
    both = study.run(Sweep((Variant("clean"), Variant("corrupted", base="corrupted")))).logit_diff[:, data["rows"]]
    gap = float((both[0] - both[1]).mean())
    errors = [abs(d["edges"]["embedding_sum"]["eap_ig_inputs"] - gap) for d in (few, many)]
    assert few["edges"]["total_effect"] == pytest.approx(gap, abs=1e-5)
    assert errors[1] < 0.02 * abs(gap) < errors[0]
    assert abs(few["edges"]["embedding_sum"]["eap"] - gap) > errors[1]


@pytest.mark.slow
def test_from_the_clean_run_effects_have_the_other_sign(measured) -> None:
    study, corrupted = measured("gpt2")
    clean = attribution_patching.measure(with_settings(study, base="clean"))
    assert clean["edges"]["total_effect"] == pytest.approx(-corrupted["edges"]["total_effect"], abs=1e-5)
    for stored in (clean["edges"], clean["nodes"]):
        assert stored["base"] == "clean"
    path = [data["edges"]["eap_ig_inputs"] for data in (clean, corrupted)]  # the same path, walked the other way
    worst = max(
        abs(a + b) for one, two in zip(*path, strict=True) for a, b in zip(one, two, strict=True) if a is not None
    )
    assert worst < 1e-4


# --- storing, switching off, refusing --------------------------------------------------------------------------------


def test_a_rerun_stores_the_same_bytes(measured) -> None:
    study, data = measured("llama")
    assert results_io.dumps({"data": attribution_patching.measure(study)}) == results_io.dumps({"data": data})


@pytest.mark.slow
def test_corrections_can_be_switched_off(measured) -> None:
    study, data = measured("gpt2")
    plain = attribution_patching.measure(with_settings(study, gradient_dropping=False, query_key_correction=False))
    assert plain["effect_graddrop"] is None
    assert all(plain["nodes"][kind]["corrected"] is None for kind in PROJECTIONS)
    assert np.array_equal(plain["effect"], data["effect"])
    assert np.array_equal(plain["nodes"]["q"]["effect"], data["nodes"]["q"]["effect"])


def test_a_single_layer_has_no_other_to_drop(tmp_path) -> None:
    shape = {"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": toy.N_POSITIONS, "vocab_size": toy.VOCABULARY}
    model = toy.load(toy.save(GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=1, eos_token_id=1)), tmp_path / "one"))
    study = with_settings(studies.prepare(model, tasks.get("ioi"), toy.SIZES, 0, toy.ENGINE))
    assert attribution_patching.measure(study)["effect_graddrop"] is None
    with pytest.raises(UserError, match="gradient dropping averages over the other layers, and toy/one has only one"):
        GradientEngine(model).head_effects(study.prompts, "clean", dropping=True)


@pytest.mark.slow
def test_progress_ends_where_it_said(measured) -> None:
    study, counter = measured("neox")[0], Counter()
    attribution_patching.measure(replace(study, progress=counter))
    assert counter.done == counter.expected > 0


def test_refusals(measured) -> None:
    study, _ = measured("gpt2")
    with pytest.raises(UserError, match="attribution base 'patched' is no run; use one of clean, corrupted"):
        attribution_patching.measure(with_settings(study, base="patched"))
    with pytest.raises(UserError, match="1 attribution prompts give no standard error; use 2 or more"):
        attribution_patching.measure(with_settings(study, prompts=1))
    with pytest.raises(UserError, match="0 integration steps are no path"):
        attribution_patching.measure(with_settings(study, steps=0))
