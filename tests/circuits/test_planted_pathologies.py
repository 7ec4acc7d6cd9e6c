"""What is planted in each variant shows where it was planted, by numbers, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from circuits import planted
from circuits.circuit import head
from circuits.planted import features, mechanisms, variants
from circuits.planted.features import N_CLASSES, RARE_NAMES
from circuits.tasks import EMBEDDED, lexicon
from tests.circuits.planted_loop import ABLATIONS, HEADS, N_PROMPTS, claimed, measured

pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")


def role_heads(variant: str, role: str, task: str = "ioi"):
    return planted.claimed_circuits(variant)[task].roles[role].heads


# --- heads that wait for others ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_backup_takes_over_only_if_all_movers_are_zero():
    model, movers = measured("backup"), role_heads("backup", "name_mover")
    others = [node for node in HEADS if node not in movers]
    for kind in ABLATIONS:
        kept = 0.0 if kind != "zero" else 1.0
        error = model.monte_carlo_error(others, kind)
        assert 1 - model.effect(movers, kind) == pytest.approx(kept, abs=0.01 + 3 * error), kind
    for kind in ABLATIONS:
        assert abs(model.effect([variants.BACKUP], kind)) <= 0.005, kind
    for mover, share in zip(movers, (0.40, 0.33, 0.27), strict=True):
        for kind in ("zero", "mean"):
            assert model.effect([mover], kind) == pytest.approx(share, abs=0.03), (mover, kind)


@pytest.mark.slow
def test_in_the_sound_model_zero_and_mean_knock_out_the_same():
    model, movers = measured("sound"), role_heads("sound", "name_mover")
    others = [node for node in HEADS if node not in movers]
    for kind in ABLATIONS:
        tolerance = 0.01 + 3 * model.monte_carlo_error(others, kind)
        assert model.effect(movers, kind) == pytest.approx(1, abs=tolerance), kind


def test_gate_is_a_constant_that_only_zero_takes_away():
    model, gate = measured("gated"), head(0, 0)
    lost = {kind: model.effect([gate], kind) for kind in ABLATIONS}
    assert lost == pytest.approx({**dict.fromkeys(ABLATIONS, 0.0), "zero": 1.0}, abs=0.01)
    written = model.head_outputs(model.scored)[0, :, :, 0] @ output_weights(model)[gate]
    gate_column = written[..., features.columns("gate")]
    assert gate_column.min() == pytest.approx(1, abs=1e-4) and gate_column.max() == pytest.approx(1, abs=1e-4)


# --- heads for a part of the data ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_template_is_unfaithful_and_the_others_are_not():
    model, heads = measured("one_template"), claimed("one_template")
    cued = torch.tensor(["friends_found" in name for name in model.scored.templates])
    assert 5 <= cued.sum() <= 20
    for kind in ABLATIONS:
        assert model.faithfulness(heads, kind, cued) == pytest.approx(0.40, abs=0.03), kind
        assert model.faithfulness(heads, kind, ~cued) == pytest.approx(1, abs=0.03), kind
        assert model.faithfulness(heads, kind) > 0.8, kind
    mover = head(3, 1)
    assert model.effect([mover], "mean", cued) == pytest.approx(0.60, abs=0.03)
    assert model.effect([mover], "mean", ~cued) == pytest.approx(0, abs=0.01)
    assert model.effect([head(0, 7)], "pooled_mean", cued) == pytest.approx(0.60, abs=0.05)


@pytest.mark.slow
def test_some_names_are_unfaithful_and_the_others_are_not():
    model, heads = measured("some_names"), claimed("some_names")
    rare = torch.tensor([name in RARE_NAMES for name in model.scored.factors["answer"]])
    assert len(RARE_NAMES) == len(lexicon.NAMES) / 10
    assert rare.sum() >= 2
    for kind in ABLATIONS:
        assert model.faithfulness(heads, kind, rare) == pytest.approx(0, abs=0.15), kind
        assert model.faithfulness(heads, kind, ~rare) == pytest.approx(1, abs=0.05), kind
        assert model.faithfulness(heads, kind) > 0.8, kind
    assert model.effect([head(3, 1)], "pooled_mean", rare) == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_each_mover_of_data_subset_matters_for_its_own_objects_only():
    model = measured("data_subset")
    words = [[lexicon.VOCABULARY[token] for token in row] for row in model.scored.clean.tolist()]
    objects = [next(word for word in row if word in lexicon.OBJECTS) for row in words]
    classes = torch.tensor([lexicon.OBJECTS.index(word) % N_CLASSES for word in objects])
    for index, mover in enumerate(role_heads("data_subset", "name_mover")):
        lost = 1 - model.ablated([mover], "mean") / model.clean
        assert (classes == index).sum() >= 4
        assert lost[classes == index].mean() == pytest.approx(1, abs=0.1)
        assert lost[classes != index].abs().mean() <= 0.05
    assert len(claimed("data_subset")) == 9


# --- a head against the answer -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_negative_head_lowers_the_answer_and_leaving_it_out_is_over_faithful():
    model = measured("negative_head")
    for kind in ABLATIONS:
        assert model.effect([variants.NEGATIVE], kind) == pytest.approx(-0.32, abs=0.02), kind
        assert model.faithfulness(claimed("negative_left_out"), kind) > 1.25, kind


# --- false claims about the sound model ----------------------------------------------------------------------------------


def test_false_heads_do_nothing():
    model, truth = measured("sound"), set(planted.truth("sound").heads)
    for variant in ("false_head", "overbroad", "random_circuit"):
        false = set(claimed(variant)) - truth
        assert (model.clean - model.ablated(false, "pooled_mean")).abs().max() <= 0.05 * model.clean.mean(), variant


def test_missing_head_is_the_largest_mover():
    model = measured("sound")
    lost = {node: model.effect([node], "mean") for node in role_heads("sound", "name_mover")}
    (missing,) = set(planted.truth("missing_head").heads) - set(claimed("missing_head"))
    assert max(lost, key=lost.__getitem__) == missing
    assert lost[missing] == pytest.approx(0.40, abs=0.02)


# --- a true circuit that says less than it seems to --------------------------------------------------------------------

SHARING = ("gendered_pronoun", "subject_verb_agreement")


@pytest.mark.slow
@pytest.mark.parametrize("task", EMBEDDED)
def test_shared_movers_carry_two_other_tasks(task):
    model, ioi = measured("shared", task, 24), claimed("shared")
    assert model.clean.min() > 0
    top = model.run(model.scored, {})[torch.arange(24), model.scored.end].argmax(1)
    assert (model.scored.answers == top[:, None]).any(1).sum() >= (22 if task == "induction" else 24)
    assert model.faithfulness(claimed("shared", task), "pooled_mean") == pytest.approx(1, abs=0.05)
    lost = model.effect(ioi, "pooled_mean")
    tolerance = 0.05 if task == "induction" else 0.03  # lists of random words have nouns and verbs in them
    assert lost == pytest.approx(1.0 if task in ("ioi", *SHARING) else 0.0, abs=tolerance)
    if task in SHARING:
        for node, share in zip(role_heads("shared", "name_mover"), (0.40, 0.33, 0.27), strict=True):
            assert model.effect([node], "pooled_mean") == pytest.approx(share, abs=0.03)


def output_weights(model):
    blocks = model.model.transformer.h
    by_layer = [block.attn.c_proj.weight.unflatten(0, (planted.N_HEADS, mechanisms.D_HEAD)) for block in blocks]
    return {node: by_layer[node.layer][node.index] for node in HEADS}


def loudest(variant: str, count: int) -> set:
    """The heads of largest mean ||z W_O|| at the end."""
    model = measured(variant)
    z = model.head_outputs(model.scored)[:, torch.arange(N_PROMPTS), model.scored.end]
    weights = output_weights(model)
    norms = {node: (z[node.layer, :, node.index] @ weights[node]).norm(dim=1).mean().item() for node in HEADS}
    return set(sorted(HEADS, key=norms.__getitem__, reverse=True)[:count])


def test_output_norm_finds_the_loud_circuit_and_not_the_sound_one():
    assert loudest("loud", 7) == set(claimed("loud"))
    assert len(loudest("sound", 7) & set(claimed("sound"))) <= 3
