"""10 against models whose weights are really changed, and what it reports."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import results_io
from circuits import study as studies
from circuits import tasks
from circuits.engine import LensEngine, decoder
from circuits.engine.decoder import Decoder
from circuits.engine.gradients import frozen
from circuits.estimators import learning_coefficient
from circuits.estimators.learning_coefficient import Posterior, Sampling
from circuits.measurements import local_learning_coefficient as measurement
from circuits.measurements.local_learning_coefficient import LayerLosses, UnfaithfulReplayError
from results_io import UserError
from tests.circuits import toy

SETTINGS = {**toy.SETTINGS["llc"], "trace_points": 3, "replay_tolerance": 1e-4}


def with_settings(study, **change):
    return replace(study, settings={**study.settings, "llc": {**SETTINGS, **change}})


def layer_losses(study, prompts, layer: int, way: str) -> LayerLosses:
    """From the weights ("fused") or by the model's own blocks ("blocks")."""
    with pytest.MonkeyPatch.context() as patch:
        if way == "blocks":
            patch.setattr(Decoder, "can_run", lambda *_: False)
        return LayerLosses(study, prompts, layer, measurement.matrix_units(study.model))


@pytest.fixture(
    scope="module", params=[(a, way) for a in toy.ARCHITECTURES for way in ("fused", "blocks")], ids="-".join
)
def exact(request, load):
    """(study, prompts, layer 1's losses, their exactness against the model) in float64."""
    architecture, way = request.param
    engine = {**toy.ENGINE, "name": "lens" if way == "blocks" else "fused"}
    study = studies.prepare(load(architecture, "float64"), tasks.get("ioi"), toy.SIZES, 0, engine)
    prompts = study.prompts.select(study.subset(12))
    # rotary models compute norms and softmax in float32 whatever their dtype; the same functions in float64 do not
    exactness = 1e-5 if way == "fused" and architecture != "gpt2" else 1e-9
    return study, prompts, layer_losses(study, prompts, 1, way), exactness


@pytest.fixture(scope="module")
def data(study):
    return measurement.measure(with_settings(study))


def case(losses: LayerLosses, chains: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Displacements of half a weight's size, rows and heads of some chains."""
    generator = torch.Generator().manual_seed(0)
    displacement = torch.randn(chains, losses.n_parameters, generator=generator, dtype=torch.float64) / 2
    rows = torch.stack([torch.randperm(12, generator=generator)[:5] for _ in range(chains)])
    return displacement, rows, torch.arange(chains) % toy.N_HEADS


@torch.no_grad()
def changed(study, prompts, layer: int, head: int, matrices: dict[str, torch.Tensor]) -> torch.Tensor:
    """Losses of the whole model while one head's weights are other ones."""
    attention = study.model.bridge.blocks[layer].attn
    group = head // (toy.N_HEADS // len(attention.W_K))
    own = {"W_Q": head, "W_K": group, "W_V": group, "W_O": head}
    before = {name: getattr(attention, name)[index].clone() for name, index in own.items()}
    try:
        for name, index in own.items():
            getattr(attention, name)[index] += matrices[name]
        logits = study.model.bridge(prompts.clean)
    finally:
        for name, index in own.items():
            getattr(attention, name)[index] = before[name]
    chosen = logits[torch.arange(len(prompts)), prompts.end].log_softmax(1)
    right = [chosen[row, ids[ids >= 0]] for row, ids in enumerate(prompts.answers)]
    return -torch.stack([torch.logsumexp(part, 0) for part in right])


# --- the loss of a displaced head -------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@torch.no_grad()
def test_a_displacement_is_a_change_of_the_weights(exact) -> None:
    study, prompts, losses, exactness = exact
    displacement, rows, heads = case(losses, chains=4)
    together = losses.losses(displacement, rows, heads)
    matrices = losses.matrices(displacement)
    for chain in range(4):
        own = {name: matrix[chain] for name, matrix in matrices.items()}
        truth = changed(study, prompts, 1, int(heads[chain]), own)[rows[chain]]
        assert together[chain].numpy() == pytest.approx(truth.numpy(), rel=exactness)
    intact = measurement.answer_loss(study.engine.end_logits(prompts), prompts.answers)
    assert (together - intact[rows]).abs().min() > 1e-3  # the change is no small one


@torch.no_grad()
def test_each_matrix_is_displaced_in_units_of_its_kind(exact) -> None:
    study, _, losses, _ = exact
    for place, name in enumerate(measurement.MATRICES):
        part = slice(place * losses.n_parameters // 4, (place + 1) * losses.n_parameters // 4)
        displacement = torch.zeros(1, losses.n_parameters, dtype=torch.float64)
        displacement[:, part] = 1.0
        matrices = losses.matrices(displacement)
        unit = float(getattr(study.model.bridge, name).square().mean().sqrt())
        assert {other: float(matrix.abs().max()) for other, matrix in matrices.items()} == {
            other: pytest.approx(unit if other == name else 0.0) for other in measurement.MATRICES
        }


@torch.no_grad()
def test_without_a_displacement_it_is_the_model(exact) -> None:
    study, prompts, losses, _ = exact
    rows = torch.arange(12).reshape(3, 4)
    nothing = torch.zeros(3, losses.n_parameters, dtype=torch.float64)
    intact = measurement.answer_loss(study.engine.end_logits(prompts), prompts.answers)
    assert losses.losses(nothing, rows, torch.tensor([0, 1, 2])).flatten().numpy() == pytest.approx(
        intact.numpy(), abs=1e-12
    )


def test_gradients_are_those_of_the_losses(exact) -> None:
    study, _, losses, _ = exact
    displacement, rows, heads = case(losses, chains=3)
    direction = torch.randn(displacement.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    posterior = Posterior(
        losses.of_heads(heads.tolist()), torch.zeros(12, dtype=torch.float64), losses.n_parameters, ("a",)
    )
    problem = torch.arange(3)
    with frozen(study.model.bridge):
        _, gradient = posterior.energy(displacement, rows, problem)
        step = 0.01
        at = {
            place: posterior.energy(displacement + place * step * direction, rows, problem)[0]
            for place in (-2, -1, 1, 2)
        }
    slope = (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * step)  # off by O(step^4)
    exactness = 1e-5 if study.model.centred_norm else 3e-3  # Hugging Face's RMS norms compute in float32
    assert (gradient * direction).sum(1).numpy() == pytest.approx(slope.numpy(), rel=exactness)
    assert slope.abs().min() > 0.1


@torch.no_grad()
def test_keys_and_values_of_a_group_are_shared_by_its_heads(load) -> None:
    study = studies.prepare(load("llama", "float64"), tasks.get("ioi"), toy.SIZES, 0, toy.ENGINE)
    losses = LayerLosses(study, study.prompts.select(range(12)), 0, measurement.matrix_units(study.model))
    displacement, rows, _ = case(losses, chains=1)
    quarter = losses.n_parameters // 4

    def only(part: slice) -> torch.Tensor:
        kept = torch.zeros_like(displacement)
        kept[:, part] = displacement[:, part]
        chains = [losses.losses(kept, rows, torch.tensor([head]))[0] for head in range(4)]
        return torch.stack(chains)

    shared, own = only(slice(quarter, 3 * quarter)), only(slice(0, quarter))
    assert torch.equal(shared[0], shared[1]) and torch.equal(shared[2], shared[3])
    assert (shared[0] - shared[2]).abs().max() > 1e-3
    assert (own[0] - own[1]).abs().max() > 1e-6


@pytest.mark.slow
@torch.no_grad()
def test_the_loss_sums_the_probability_of_all_answers(make_study, plain) -> None:
    study = make_study("gpt2", "greater_than")
    prompts = study.prompts.select(range(10))
    logits = plain("gpt2")(prompts.clean).logits[torch.arange(10), prompts.end]
    probability = logits.softmax(1)
    truth = [-math.log(float(probability[row, ids[ids >= 0]].sum())) for row, ids in enumerate(prompts.answers)]
    assert (prompts.answers >= 0).sum(1).max() > 5
    loss = measurement.answer_loss(study.engine.end_logits(prompts), prompts.answers)
    assert loss.numpy() == pytest.approx(np.array(truth), abs=1e-5)


@pytest.mark.sampled(4)
@torch.no_grad()
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
@pytest.mark.parametrize("layer", [0, 1])
def test_it_is_the_decoder_with_other_weights(load, architecture, layer) -> None:
    study = studies.prepare(
        load(architecture, "float64"), tasks.get("ioi"), toy.SIZES, 0, {**toy.ENGINE, "name": "fused"}
    )
    prompts = study.prompts.select(study.subset(12))
    losses = layer_losses(study, prompts, layer, "fused")
    displacement, rows, heads = case(losses, chains=4)
    together = losses.losses(displacement, rows, heads)
    for chain, head in enumerate(heads.tolist()):
        matrices = {name: matrix[chain] for name, matrix in losses.matrices(displacement).items()}
        other = displaced(decoder.of(study.model), layer, head, matrices)
        truth = measurement.answer_loss(other.forward(prompts.clean, prompts.end, ()), prompts.answers)[rows[chain]]
        assert together[chain].numpy() == pytest.approx(truth.numpy(), rel=1e-11)


def displaced(intact: Decoder, layer: int, head: int, matrices: dict[str, torch.Tensor]) -> Decoder:
    """The decoder with one head's weights changed."""
    own, d_head = intact.layers[layer], intact.d_head
    group = own.group[head]
    qkv, output = own.qkv.clone(), own.output.clone()
    places = {"W_Q": head, "W_K": own.n_heads + group, "W_V": own.n_heads + own.n_groups + group}
    for name, place in places.items():
        qkv[place * d_head : (place + 1) * d_head] += matrices[name].T
    output[head] += matrices["W_O"]
    layers = list(intact.layers)
    layers[layer] = replace(own, qkv=qkv, output=output)
    return replace(intact, layers=tuple(layers))


# --- the measurement --------------------------------------------------------------------------------------------------


def test_scores_are_the_estimators_own(study, data) -> None:
    prompts = study.prompts.select(toy.lowest_hash(study, 12))
    at_minimum = measurement.answer_loss(study.engine.end_logits(prompts), prompts.answers)
    losses = LayerLosses(study, prompts, 2, measurement.matrix_units(study.model))
    posterior = Posterior(losses.of_heads([3]), at_minimum, losses.n_parameters, ("2.3",))
    (expected,) = learning_coefficient.estimate(posterior, Sampling.of({**SETTINGS, "gamma": 16}))
    row = 2 * toy.N_HEADS + 3
    assert data["score"][row] == pytest.approx(expected.llc, rel=1e-3)
    assert data["chains"][row] == pytest.approx(expected.chains, rel=1e-3)
    assert data["step_size"][row] == expected.step_size
    assert data["trace"][row] == pytest.approx(expected.trace, rel=1e-3)


def test_what_is_reported(study, data) -> None:
    heads = 3 * toy.N_HEADS
    per_head = ("score", "standard_error", "chains", "r_hat", "effective_samples", "drift", "step_size", "acceptance")
    assert all(len(data[name]) == heads for name in (*per_head, "reason", "trace"))
    assert {len(chains) for chains in data["chains"]} == {3}
    assert {len(trace) for trace in data["trace"] if trace} == {3}
    assert (data["n"], data["beta"]) == (12, pytest.approx(1 / math.log(12)))
    assert data["n_parameters"] == 4 * toy.D_MODEL * toy.D_HEAD
    assert data["units"]["W_O"] == pytest.approx(float(study.model.bridge.W_O.detach().square().mean().sqrt()))
    assert all(
        (score is None) == (reason is not None) for score, reason in zip(data["score"], data["reason"], strict=True)
    )
    scored = [score for score in data["score"] if score is not None]
    assert len(scored) == heads - data["insufficient"] >= heads / 2
    assert data["negative"] == sum(score < 0 for score in scored)
    errors = [error for error in data["standard_error"] if error is not None]
    assert data["reliability"] == pytest.approx(1 - np.mean(np.square(errors)) / np.var(scored, ddof=1))
    results_io.dumps(data)  # no NaN, no infinity


def test_a_rerun_gives_the_same_bytes_and_another_seed_others(study, data) -> None:
    assert results_io.dumps(measurement.measure(with_settings(study))) == results_io.dumps(data)
    other = measurement.measure(with_settings(study, seed=1))
    assert other["score"] != data["score"]
    assert other["loss_at_minimum"] == data["loss_at_minimum"]


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["neox", "llama", "qwen2"])
def test_every_architecture_is_measured(make_study, architecture) -> None:
    study = with_settings(make_study(architecture), draws=4, burn_in=0)
    data = measurement.measure(study)
    assert sum(score is not None for score in data["score"]) >= toy.N_HEADS
    results_io.dumps(data)


@pytest.mark.slow
def test_heads_do_not_depend_on_how_many_run_together(study, data) -> None:
    few = replace(study, engine=LensEngine(study.model, study.engine.reference.prompts, rows_per_forward=12))
    alone = measurement.measure(with_settings(few))  # 3 chains x 4 rows: one head at a time
    for one, other in zip(alone["chains"], data["chains"], strict=True):
        assert one == pytest.approx(other, rel=1e-3)


@pytest.mark.slow
def test_the_neighbourhood_is_the_widest_in_which_chains_mix(study) -> None:
    """The same for all heads. These random weights are anything but flat, so a narrow one is needed."""
    gammas = [0.01, 16.0, 1000.0]
    data = measurement.measure(with_settings(study, gammas=gammas, share=1.0, acceptance=0.98))
    assert data["gamma"] > 0.01
    assert {step for step in data["step_size"] if step is not None} == {2 * 0.5 / data["gamma"]}
    assert measurement.measure(with_settings(study, gammas=gammas, share=0.0))["gamma"] == 0.01


@pytest.mark.slow
def test_a_model_whose_loss_is_flat_has_zero_everywhere(tmp_path) -> None:
    model = toy.build("gpt2")
    torch.nn.init.zeros_(model.lm_head.weight)
    flat = toy.load(toy.save(model, tmp_path / "flat"))
    study = studies.prepare(flat, tasks.get("ioi"), toy.SIZES, 0, {**toy.ENGINE, "name": "lens"}, settings={})
    data = measurement.measure(with_settings(study))
    assert np.abs(data["score"]).max() < 1e-5  # rounding of the log-sum alone
    assert (data["insufficient"], set(data["step_size"])) == (0, {2 * 0.5 / 16})
    assert data["loss_at_minimum"] == pytest.approx(math.log(toy.VOCABULARY), rel=1e-5)


def test_chains_that_support_no_number_are_counted(study) -> None:
    data = measurement.measure(with_settings(study, acceptance=1.1))
    assert data["score"] == data["standard_error"] == data["step_size"] == [None] * 12
    assert all(reason.startswith("no step size of the grid reaches an acceptance of 1.1") for reason in data["reason"])
    assert (data["insufficient"], data["negative"], data["reliability"]) == (12, 0, None)
    results_io.dumps(data)


def test_the_progress_announced_is_made(study) -> None:
    class Count:
        expected = done = 0

        def expect(self, pairs: int) -> None:
            self.expected += pairs

        def advance(self, pairs: int) -> None:
            self.done += pairs

    count = Count()
    measurement.measure(replace(with_settings(study, acceptance=0.0), progress=count))
    assert count.expected == count.done == 2 * 12 * 3 * 4 * (2 + 1 + 2 + 6)


def test_the_model_is_left_as_it_was(study, data) -> None:
    assert all(parameter.requires_grad for parameter in study.model.bridge.parameters())
    assert all(parameter.grad is None for parameter in study.model.bridge.parameters())


def test_blocks_that_cannot_be_run_alone_are_refused(study) -> None:
    with pytest.raises(UnfaithfulReplayError, match="layers 0 and up of toy/gpt2 run alone miss the model's loss by"):
        measurement.measure(with_settings(study, replay_tolerance=-1.0))


@pytest.mark.slow
def test_fewer_prompts_than_asked_for_are_said(study) -> None:
    found = measurement.measure(with_settings(study, prompts=999, batch=50))
    assert (found["n"], found["batch"], found["beta"]) == (20, 20, pytest.approx(1 / math.log(20)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gammas": []}, "llc.gammas=.. names no localiser"),
        ({"prompts": 1}, "llc.prompts=1 has no inverse temperature"),
        ({"chains": 1}, "chains=1 cannot sample"),
    ],
)
def test_settings_that_cannot_sample_are_refused(study, change, message) -> None:
    with pytest.raises(UserError, match=message):
        measurement.check(with_settings(study, **change).settings)


# --- more heads than are sampled -----------------------------------------------------------------------------------


def test_of_many_heads_the_claim_s_and_matched_others_are_sampled(study) -> None:
    """Their scores are null elsewhere, with a reason; the scale of the weights is still the whole model's."""
    some = with_settings(study, most_heads=6)
    chosen = measurement.sampled_heads(some)
    claimed = set(study.claim.heads)
    assert len(chosen) == len(set(chosen)) == 6 and chosen == tuple(sorted(chosen))
    own = [node for node in chosen if node in claimed]
    assert len(own) == 3 and [node.layer for node in chosen if node not in claimed] == [node.layer for node in own]
    assert measurement.sampled_heads(with_settings(study, most_heads=12)) == study.model.heads
    data = measurement.measure(some)
    places = [study.model.heads.index(node) for node in chosen]
    for place, (score, reason) in enumerate(zip(data["score"], data["reason"], strict=True)):
        assert (reason == "not_sampled") == (place not in places)
        assert place in places or score is None
    assert data["not_sampled"] == 6 and data["insufficient"] == sum(data["score"][place] is None for place in places)
    assert any(data["score"][place] is not None for place in places)
    results_io.canonical(data)
    assert measurement.depends_on_circuit(some.settings, 12) and not measurement.depends_on_circuit(some.settings, 6)
