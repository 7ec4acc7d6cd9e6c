"""09 against full matrices of the plain models in float64, and heads whose scores are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import results_io
from circuits.circuit import Circuit, Role, head
from circuits.measurements import weights
from circuits.measurements.weights import HeadWeights
from tests.circuits import toy

SETTINGS = {
    "answer_prompts": 6,
    "rounding": 1e-6,
    "composition_baseline": {"seed": 0, "heads": 4},
    "classifier": {"inverse_penalty": 0.1, "tolerance": 1e-8},
}


@pytest.fixture(scope="module")
def weight_study(make_study):
    """weight_study(architecture, circuits): the toy study with the settings of 09, the model's stored circuits replaced."""

    def make(architecture="gpt2", circuits=None, task="ioi"):
        study = make_study(architecture, task)
        model = study.model
        if circuits is not None:
            model = replace(model, identity=replace(model.identity, circuits=circuits))
        return replace(study, model=model, settings={**study.settings, "weights": SETTINGS})

    return make


def stored(task: str, *heads: tuple[int, int]) -> Circuit:
    return Circuit(task, task, "toy", {"all": Role(tuple(head(*pair) for pair in heads))}, {"kind": "user"})


CIRCUITS = {
    "ioi": stored("ioi", (0, 1), (2, 0), (2, 3)),
    "greater_than": stored("greater_than", (0, 1), (1, 1), (2, 0)),
    "induction": stored("induction", (0, 1), (0, 2), (2, 0)),
    "gendered_pronoun": stored("gendered_pronoun", (1, 1), (2, 0)),
}


# --- full matrices of the plain models ------------------------------------------------------------------------------


def projections(network, architecture: str) -> list[tuple[np.ndarray, ...]]:
    """(W_Q, W_K, W_V [head, d_model, d_head], W_O [head, d_head, d_model], norm gain) of each layer, as published."""
    h, k, d = toy.N_HEADS, toy.D_HEAD, toy.D_MODEL
    layers = []
    if architecture == "gpt2":
        for block in network.transformer.h:
            joint = block.attn.c_attn.weight.detach().numpy().reshape(d, 3, h, k).transpose(1, 2, 0, 3)
            layers.append((*joint, block.attn.c_proj.weight.detach().numpy().reshape(h, k, d), block.ln_1.weight))
    elif architecture == "neox":
        for block in network.gpt_neox.layers:
            joint = block.attention.query_key_value.weight.detach().numpy().reshape(h, 3, k, d).transpose(1, 0, 3, 2)
            output = block.attention.dense.weight.detach().numpy().T.reshape(h, k, d)
            layers.append((*joint, output, block.input_layernorm.weight))
    else:
        for block in network.model.layers:
            own = block.self_attn
            q, key, v = (p.weight.detach().numpy().reshape(-1, k, d) for p in (own.q_proj, own.k_proj, own.v_proj))
            group = [index // 2 for index in range(h)]
            split = (matrix.transpose(0, 2, 1) for matrix in (q, key[group], v[group]))
            output = own.o_proj.weight.detach().numpy().T.reshape(h, k, d)
            layers.append((*split, output, block.input_layernorm.weight))
    return layers


def final(network, architecture: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(W_E, gain of the final norm, W_U [d_model, vocabulary])."""
    name, norm = {"gpt2": ("transformer", "ln_f"), "neox": ("gpt_neox", "final_layer_norm")}.get(
        architecture, ("model", "norm")
    )
    embedding = network.get_input_embeddings().weight.detach().numpy()
    gain = getattr(getattr(network, name), norm).weight.detach().numpy()
    return embedding, gain, network.get_output_embeddings().weight.detach().numpy().T


class Full:
    """W_OV = W_V W_O and W_QK = W_Q W_K^T of every head as d_model x d_model matrices, norms folded in by hand."""

    def __init__(self, network, architecture: str) -> None:
        centred = architecture in ("gpt2", "neox")
        centre = np.eye(toy.D_MODEL) - (1 / toy.D_MODEL if centred else 0)
        self.ov, self.qk, self.layer, self.factors = [], [], [], []
        for layer, (query, key, value, output, gain) in enumerate(projections(network, architecture)):
            fold = centre @ np.diag(gain.detach().numpy())
            for index in range(toy.N_HEADS):
                self.ov.append(fold @ value[index] @ output[index] @ centre)
                self.qk.append(fold @ query[index] @ key[index].T @ fold.T)
                self.factors.append((fold @ value[index], output[index] @ centre))
                self.layer.append(layer)
        embedding, gain, unembedding = final(network, architecture)
        self.embedding = embedding @ centre
        unembedding = centre @ np.diag(gain) @ unembedding
        self.unembedding = unembedding - unembedding.mean(1, keepdims=True)

    def composition(self, sender: int, receiver: int, kind: str) -> float | None:
        if self.layer[receiver] <= self.layer[sender]:
            return None
        read = {"q": self.qk[receiver], "k": self.qk[receiver].T, "v": self.ov[receiver]}[kind]
        sizes = np.linalg.norm(self.ov[sender]) * np.linalg.norm(read)
        return np.linalg.norm(self.ov[sender] @ read) / sizes


@pytest.fixture(scope="module")
def full(plain):
    return lambda architecture: Full(plain(architecture), architecture)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_scores_are_those_of_the_full_matrices(weight_study, full, architecture) -> None:
    study, expected = weight_study(architecture), full(architecture)
    data = weights.measure(study)
    singular = np.array([np.linalg.svd(ov, compute_uv=False)[: toy.D_HEAD] for ov in expected.ov])
    share = singular / singular.sum(1, keepdims=True)
    assert data["spectral_norm"].astype(float) == pytest.approx(singular[:, 0], rel=1e-6)
    assert data["sv_entropy"].astype(float) == pytest.approx(
        -(share * np.log(share)).sum(1) / np.log(toy.D_HEAD), rel=1e-6
    )
    assert data["qk_spectral_norm"].astype(float) == pytest.approx(
        [np.linalg.norm(qk, 2) for qk in expected.qk], rel=1e-6
    )
    directions = [
        expected.unembedding[:, answers[answers >= 0]].mean(1) - expected.unembedding[:, wrong[wrong >= 0]].mean(1)
        for answers, wrong, split in zip(
            study.prompts.answers.numpy(), study.prompts.wrong.numpy(), study.prompts.splits, strict=True
        )
        if split == "evaluation"
    ]
    norms = [np.mean([np.linalg.norm(ov @ u) / np.linalg.norm(u) for u in directions]) for ov in expected.ov]
    assert data["ov_norm"] == pytest.approx(norms, rel=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_compositions_are_those_of_the_full_matrices(weight_study, full, architecture) -> None:
    data, expected = weights.measure(weight_study(architecture)), full(architecture)
    everyone = range(len(expected.ov))
    for kind in ("q", "k", "v"):
        measured = data[f"{kind}_composition"]
        brute = [[expected.composition(a, b, kind) for b in everyone] for a in everyone]
        assert np.array_equal(measured == None, np.array(brute) == None)  # noqa: E711
        assert [x for row in measured for x in row if x is not None] == pytest.approx(
            [x for row in brute for x in row if x is not None], rel=1e-6
        )


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_copying_is_that_of_the_matrix_over_the_vocabulary(weight_study, full, architecture) -> None:
    """All heads through the d_model x d_model product, one through the 1024 x 1024 matrix W_E W_V W_O W_U itself."""
    data, expected = weights.measure(weight_study(architecture)), full(architecture)

    def score(matrix: np.ndarray) -> float:
        eigenvalues = np.linalg.eigvals(matrix)
        return eigenvalues.sum().real / np.abs(eigenvalues).sum()

    over_stream = [score(ov @ expected.unembedding @ expected.embedding) for ov in expected.ov]
    assert data["copying"].astype(float) == pytest.approx(over_stream, abs=1e-5)
    if architecture == "llama":
        whole = score(expected.embedding @ expected.ov[3] @ expected.unembedding)
        assert data["copying"][3] == pytest.approx(whole, abs=1e-4)


def test_key_and_value_weights_are_those_the_model_attends_with(load, scored) -> None:
    """Llama, four query heads on two value heads: at the first position a head outputs the value there, and scores it
    without rotation.
    """
    model = load("llama")
    names = ["blocks.1.hook_resid_pre", "blocks.1.attn.hook_z", "blocks.1.attn.hook_attn_scores"]
    _, cache = model.bridge.run_with_cache(scored.clean[:1], names_filter=names)
    stream, z, attention = (cache[name].detach() for name in names)
    x = stream[0, 0] / stream[0, 0].square().mean().add(model.bridge.cfg.eps).sqrt()
    assert z[0, 0].numpy() == pytest.approx(torch.einsum("d,hdk->hk", x, model.value_weights[1]).numpy(), abs=1e-4)
    query = torch.einsum("d,hdk->hk", x, model.query_weights[1])
    key = torch.einsum("d,hdk->hk", x, model.key_weights[1])
    expected = (query * key).sum(1) / toy.D_HEAD**0.5
    assert attention[0, :, 0, 0].numpy() == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-4)


# --- heads whose scores are known -----------------------------------------------------------------------------------


def basis(*components: tuple[int, float]) -> torch.Tensor:
    """A column of eight entries, named ones set."""
    vector = torch.zeros(8, 1, dtype=torch.float64)
    for place, value in components:
        vector[place] = value
    return vector


def chain() -> HeadWeights:
    """Rank-one heads: the first writes e0; in the next layer one queries e0, one has e0 as key, one as value, and the
    last queries e0 and e5 alike.
    """
    e = [basis((place, 1.0)) for place in range(8)]
    query = [e[6], e[0], e[6], e[6], basis((0, 1.0), (5, 1.0))]
    key = [e[7], e[7], e[0], e[7], e[7]]
    value = [e[1], e[2], e[2], e[0], e[2]]
    output = [e[0].T, e[3].T, e[3].T, e[3].T, e[3].T]
    return HeadWeights((0, 1, 1, 1, 1), *(torch.stack(matrices) for matrices in (query, key, value, output)))


def test_a_chain_of_heads_composes_where_it_was_built_to() -> None:
    expected = {"q": [1, 0, 0, 0.5**0.5], "k": [0, 1, 0, 0], "v": [0, 0, 1, 0]}
    for kind, ratios in expected.items():
        measured = weights.composition(chain(), kind)
        assert measured[0, 1:].numpy() == pytest.approx(ratios, abs=1e-12)
        assert measured[1:].isnan().all() and measured[0, 0].isnan()


def test_composition_ignores_the_size_of_the_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 4, 8, 2, generator=generator, dtype=torch.float64)
    output = torch.randn(4, 2, 8, generator=generator, dtype=torch.float64)
    one = weights.composition(HeadWeights((0, 0, 1, 2), query, key, value, output), "k")
    scaled = weights.composition(HeadWeights((0, 0, 1, 2), 5 * query, 0.1 * key, 3 * value, 7 * output), "k")
    assert torch.allclose(one, scaled, rtol=1e-12, equal_nan=True)


def test_random_matrices_compose_by_one_over_the_square_root_of_the_width() -> None:
    """The expected square of the ratio of independent normal weights is 1 / d_model."""
    shape = HeadWeights(
        (0,), *torch.zeros(3, 1, 32, 8, dtype=torch.float64), torch.zeros(1, 8, 32, dtype=torch.float64)
    )
    drawn = [weights.composition_baseline(shape, seed, heads=4) for seed in range(100)]
    squares = [one["mean"] ** 2 + one["sd"] ** 2 * 15 / 16 for one in drawn]
    standard_error = np.std(squares, ddof=1) / 10
    assert standard_error < 0.01 / 32
    assert abs(np.mean(squares) - 1 / 32) < 3 * standard_error
    assert weights.composition_baseline(shape, 0, heads=4) == drawn[0]


def single(value: torch.Tensor, output: torch.Tensor) -> HeadWeights:
    return HeadWeights((0,), *(matrix[None].double() for matrix in (value, value, value, output)))


def copying_score(value: torch.Tensor, output: torch.Tensor, embedding: torch.Tensor) -> float:
    return float(weights.copying(single(value, output), embedding, embedding.T, SETTINGS["rounding"]))


def test_copying_heads_score_one_and_suppressing_heads_minus_one() -> None:
    """A head that writes back what it reads has positive eigenvalues only, whatever the embedding."""
    generator = torch.Generator().manual_seed(0)
    embedding, subspace = torch.randn(30, 8, generator=generator), torch.randn(8, 3, generator=generator)
    assert copying_score(subspace, subspace.T, embedding) == pytest.approx(1, abs=1e-9)
    assert copying_score(subspace, -subspace.T, embedding) == pytest.approx(-1, abs=1e-9)


def test_a_head_that_names_the_next_token_neither_copies_nor_suppresses() -> None:
    """The eigenvalues of a cyclic shift are the roots of unity, which sum to zero."""
    shift = torch.roll(torch.eye(8), 1, dims=1)
    assert copying_score(torch.eye(8), shift, torch.eye(8)) == pytest.approx(0, abs=1e-9)


def test_a_head_that_reads_no_token_has_no_copying_score() -> None:
    embedding = torch.eye(8)[:4]  # tokens fill half of the stream, the head reads the other
    value, output = torch.eye(8)[:, 4:], torch.eye(8)[:4]
    assert np.isnan(copying_score(value, output, embedding))


def test_entropy_is_one_for_an_isometry_and_zero_for_rank_one() -> None:
    isometry = single(torch.eye(8)[:, :4], torch.eye(8)[4:])
    assert float(weights.sv_entropy(isometry)) == pytest.approx(1, abs=1e-12)
    one = torch.outer(torch.ones(8), torch.ones(4))
    assert float(weights.sv_entropy(single(one, one.T))) == pytest.approx(0, abs=1e-6)
    assert weights.sv_entropy(single(0 * one, one.T)).isnan().all()


def test_a_head_that_writes_the_answer_direction_has_its_gain_as_ov_norm() -> None:
    """Gain 3 from e1 to e0: norm 3 on answers along e0, 0 on those along e2, 3 / sqrt(2) halfway."""
    one = single(3 * torch.eye(8)[:, 1:2], torch.eye(8)[:1])
    along = torch.eye(8)[[0]] * 5
    across = torch.eye(8)[[2]]
    assert float(weights.ov_norm(one, along)) == pytest.approx(3)
    assert float(weights.ov_norm(one, across)) == pytest.approx(0)
    assert float(weights.ov_norm(one, along / 5 + across)) == pytest.approx(3 / 2**0.5)
    assert float(weights.ov_norm(one, torch.cat([along, across]))) == pytest.approx(1.5)


# --- the prediction -------------------------------------------------------------------------------------------------


def classified(study) -> dict:
    return weights.measure(study)["classifier"]


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_result_is_plain_data_and_the_same_bytes_again(weight_study, architecture) -> None:
    circuits = {name: stored(name, (0, 1), (1, 2)) for name in ("greater_than", "induction", "gendered_pronoun")}
    study = weight_study(architecture, circuits)
    first = results_io.dumps(weights.measure(study))
    assert first == results_io.dumps(weights.measure(replace(study, circuit=None)))


def test_own_stored_circuit_changes_no_prediction(weight_study) -> None:
    """Only the counts of leave-one-task-out may change with the circuit stored for the task itself."""
    before = classified(weight_study(circuits=CIRCUITS))
    for circuits in (
        {**CIRCUITS, "ioi": stored("ioi", (1, 0), (1, 2), (1, 3), (2, 2))},
        {name: CIRCUITS[name] for name in CIRCUITS if name != "ioi"},
    ):
        after = classified(weight_study(circuits=circuits))
        for name in before.keys() - {"leave_one_task_out"}:
            assert results_io.canonical(after[name]) == results_io.canonical(before[name]), name
    assert before["unavailable"] is None
    assert "ioi" not in before["trained_on"] and "ioi" not in after["leave_one_task_out"]


def test_prediction_learns_from_the_other_circuits(weight_study) -> None:
    before = classified(weight_study(circuits=CIRCUITS))
    assert before["trained_on"]["induction"] == [[0, 1], [0, 2], [2, 0]]
    changed = classified(weight_study(circuits={**CIRCUITS, "induction": stored("induction", (1, 0), (1, 3))}))
    assert not np.allclose(changed["probability"], before["probability"])


def test_counts_of_the_task_itself_are_those_of_its_prediction(weight_study) -> None:
    data = classified(weight_study(circuits=CIRCUITS))
    predicted, circuit = {tuple(pair) for pair in data["predicted_heads"]}, {(0, 1), (2, 0), (2, 3)}
    assert data["leave_one_task_out"]["ioi"] == {
        "hits": len(predicted & circuit),
        "positives": 3,
        "false_alarms": len(predicted - circuit),
        "negatives": 9,
    }
    assert set(data["leave_one_task_out"]) == set(CIRCUITS)
    chosen = np.array(data["probability"]) >= data["threshold"]
    assert predicted == {(index // 4, index % 4) for index in np.flatnonzero(chosen)}


@pytest.mark.slow
def test_every_task_counts_the_same_whichever_task_is_measured(weight_study) -> None:
    ioi, other = (classified(weight_study(circuits=CIRCUITS, task=task)) for task in ("ioi", "greater_than"))
    assert ioi["leave_one_task_out"] == other["leave_one_task_out"]


def test_features_are_the_reported_scores(weight_study) -> None:
    data = weights.measure(weight_study(circuits=CIRCUITS))
    features = dict(zip(data["classifier"]["features"], data["classifier"]["feature_values"].T, strict=True))
    assert features.pop("relative_depth").tolist() == [0] * 4 + [0.5] * 4 + [1] * 4
    assert features.pop("relative_ov_norm").mean() == pytest.approx(1)
    share = features.pop("ov_norm_share")
    assert (share > 0).all() and (share <= 1).all()
    for name, values in features.items():
        assert values == pytest.approx(data[name].astype(float)), name


@pytest.mark.parametrize(
    "circuits",
    [
        {"ioi": CIRCUITS["ioi"], "induction": CIRCUITS["induction"]},
        {"induction": CIRCUITS["induction"], "unheard_of": stored("unheard_of", (0, 0))},
        {
            "induction": CIRCUITS["induction"],
            "greater_than": stored("greater_than", *((layer, index) for layer in range(3) for index in range(4))),
        },
    ],
    ids=["own circuit", "unknown task", "whole model"],
)
def test_one_other_circuit_is_too_few(weight_study, circuits) -> None:
    data = classified(weight_study(circuits=circuits))
    assert data["predicted_heads"] is None and data["probability"] is None and data["threshold"] is None
    assert "has circuits of 1 other tasks" in data["unavailable"]
    assert data["leave_one_task_out"] == {} and list(data["trained_on"]) == ["induction"]


def test_a_stored_head_outside_the_model_is_refused(weight_study) -> None:
    circuits = {**CIRCUITS, "induction": stored("induction", (9, 0))}
    with pytest.raises(results_io.UserError, match="names head L9H0"):
        weights.measure(weight_study(circuits=circuits))


def test_the_product_of_a_silent_head_is_no_matrix_of_rounding_errors() -> None:
    """Rounding errors of size 1e-14 beside weights of size 1: no eigenvalues are asked for, and the score is undefined."""
    rng = torch.Generator().manual_seed(0)
    embedding, unembedding = torch.zeros(5, 4), torch.zeros(4, 5)
    embedding[:, 0], unembedding[0] = 1.0, 1.0  # the vocabulary lives in one direction
    output, value = torch.randn(2, 3, 4, generator=rng).double(), torch.randn(2, 4, 3, generator=rng).double()
    output[1, :, 0], value[1, 0] = 1e-15, 1e-15
    silent = HeadWeights((0, 1), value, value, value, output)
    score = weights.copying(silent, embedding, unembedding, rounding=1e-6)
    assert torch.isfinite(score[0]) and torch.isnan(score[1])
