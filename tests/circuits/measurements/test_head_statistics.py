"""26 against the plain model's own head outputs and numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.model_selection import GroupKFold

import results_io
from circuits.measurements import head_statistics
from tests.circuits import toy

PENALTIES = [10.0**power for power in range(-4, 5)]
SETTINGS = {"seed": 0, "folds": 4, "penalties": PENALTIES, "constant": 1e-5}


def with_settings(study, **changes):
    return replace(study, settings={**study.settings, "head_statistics": {**SETTINGS, **changes}})


@pytest.fixture(scope="module")
def data(study):
    return head_statistics.measure(with_settings(study))


def brute_outputs(loop, prompts, heads) -> np.ndarray:
    """z [prompt, head, d_head] at the last position, one prompt at a time, value biases left out."""
    rows = []
    for row, end in enumerate(prompts.end.tolist()):
        tokens = prompts.clean[row, : end + 1]
        rows.append([loop.activation(node, tokens)[-1, node.index].detach().numpy() for node in heads])
    return np.array(rows)


@pytest.fixture(scope="module")
def scored_outputs(study, twin):
    return brute_outputs(twin(), study.prompts, study.model.heads)


def norms(z: np.ndarray, network) -> np.ndarray:
    """Length of z W_O, the writer centred as compatibility mode has it."""
    blocks = network.transformer.h
    weights = [
        block.attn.c_proj.weight.detach().numpy().reshape(toy.N_HEADS, toy.D_HEAD, toy.D_MODEL) for block in blocks
    ]
    written = np.einsum("phk,hkd->phd", z, np.concatenate(weights))
    return np.linalg.norm(written - written.mean(2, keepdims=True), axis=2)


def test_output_norms_are_the_lengths_of_what_heads_write(data, study, scored_outputs, plain, twin) -> None:
    assert data["output_norm"] == pytest.approx(norms(scored_outputs, plain("gpt2")), rel=1e-4)
    discovery = brute_outputs(twin(), study.discovery, study.model.heads)
    assert data["discovery_norm"] == pytest.approx(norms(discovery, plain("gpt2")).mean(0), rel=1e-4)


def test_moments_and_singular_values_are_numpy_s_over_the_evaluation_split(data, study, scored_outputs) -> None:
    z = scored_outputs[study.prompts.rows_of("evaluation")]
    assert len(z) == 20
    centred = z - z.mean(0)
    assert data["mean"] == pytest.approx(z.mean((0, 2)), abs=1e-5)
    assert data["variance"] == pytest.approx((centred**2).mean((0, 2)), rel=1e-4)
    expected = np.array([np.linalg.svd(centred[:, column], compute_uv=False) for column in range(12)])
    assert data["singular_values"].shape == (12, toy.D_HEAD)
    assert data["singular_values"] == pytest.approx(expected, abs=1e-4 * expected.max())


def test_variance_and_singular_values_are_one_quantity_seen_twice(data) -> None:
    """Both are the centred sum of squares: of 20 prompts and 8 components."""
    total = (data["singular_values"] ** 2).sum(1) / (20 * toy.D_HEAD)
    assert data["variance"] == pytest.approx(total, rel=1e-6)


# --- prediction error -----------------------------------------------------------------------------------------------


def synthetic(seed: int = 0, prompts: int = 120, width: int = 6, heads: int = 3):
    """A stream, a linear map to z and 30 clusters of equal size."""
    rng = np.random.default_rng(seed)
    stream = rng.standard_normal((prompts, width)) @ rng.standard_normal((width, width)) + 3
    z = np.einsum("pd,dhk->phk", stream, rng.standard_normal((width, heads, 4)))
    clusters = np.array([f"cluster {index % 30}" for index in range(prompts)])
    return stream, z, clusters, rng


def test_a_linear_function_of_the_stream_is_predicted() -> None:
    stream, z, clusters, _ = synthetic()
    assert head_statistics.unpredicted_share(stream, z, clusters, SETTINGS) == pytest.approx([0, 0, 0], abs=1e-8)


def test_noise_is_not_predicted() -> None:
    """At best the penalty is so large that the mean is predicted, whose error exceeds the variance by n / (n - fold)."""
    stream, z, clusters, rng = synthetic()
    ratios = head_statistics.unpredicted_share(stream, rng.standard_normal(z.shape), clusters, SETTINGS)
    assert min(ratios) > 0.99 and max(ratios) < 1.1


def test_the_ratio_is_the_share_of_noise() -> None:
    """Noise of 30 % of the variance: 0.3 up to the error of 6 coefficients from 1500 prompts."""
    stream, signal, clusters, rng = synthetic(prompts=2000)
    signal = (signal - signal.mean(0)) / signal.std(0)
    z = np.sqrt(0.7) * signal + np.sqrt(0.3) * rng.standard_normal(signal.shape)
    ratios = head_statistics.unpredicted_share(stream, z, clusters, SETTINGS)
    assert ratios == pytest.approx([0.3, 0.3, 0.3], abs=0.015)


def brute_share(stream: np.ndarray, z: np.ndarray, clusters: np.ndarray) -> list[float]:
    """The documented estimator in loops: every fold, component, penalty and left-out prompt by itself."""

    def ridge(x: np.ndarray, y: np.ndarray, penalty: float, new: np.ndarray) -> np.ndarray:
        centre = x.mean(0)
        w = np.linalg.solve(
            (x - centre).T @ (x - centre) + penalty * np.eye(x.shape[1]), (x - centre).T @ (y - y.mean())
        )
        return (new - centre) @ w + y.mean()

    def left_out_error(x: np.ndarray, y: np.ndarray, penalty: float) -> float:
        rows = np.arange(len(x))
        return sum((ridge(x[rows != r], y[rows != r], penalty, x[r]) - y[r]) ** 2 for r in rows)

    x = (stream - stream.mean(0)) / np.sqrt(stream.var(0).mean())
    error = np.zeros(z.shape)
    for train, test in GroupKFold(4, shuffle=True, random_state=0).split(x, groups=clusters):
        for head, component in np.ndindex(z.shape[1:]):
            y = z[:, head, component]
            best = min(PENALTIES, key=lambda penalty: left_out_error(x[train], y[train], penalty))
            error[test, head, component] = y[test] - ridge(x[train], y[train], best, x[test])
    return [float((error[:, h] ** 2).sum() / ((z[:, h] - z[:, h].mean(0)) ** 2).sum()) for h in range(z.shape[1])]


def test_the_ratio_equals_loops_over_everything() -> None:
    stream, z, clusters, rng = synthetic(prompts=40, heads=2)
    z = z + 3 * rng.standard_normal(z.shape)
    expected = brute_share(stream, z, clusters)
    assert head_statistics.unpredicted_share(stream, z, clusters, SETTINGS) == pytest.approx(expected, rel=1e-6)
    assert min(expected) > 0.05 and max(expected) < 0.95


def test_order_rotation_and_scale_of_the_stream_change_nothing() -> None:
    stream, z, clusters, rng = synthetic()
    z = z + 4 * rng.standard_normal(z.shape)
    expected = head_statistics.unpredicted_share(stream, z, clusters, SETTINGS)
    order = rng.permutation(len(stream))
    rotation = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    shuffled = head_statistics.unpredicted_share(stream[order], z[order], clusters[order], SETTINGS)
    turned = head_statistics.unpredicted_share(100 * stream @ rotation, z, clusters, SETTINGS)
    assert shuffled == pytest.approx(expected, rel=1e-9)
    assert turned == pytest.approx(expected, rel=1e-9)


def test_prompts_of_one_cluster_do_not_predict_each_other() -> None:
    """Stream and z are those of the cluster, at random: known to the fold's own cluster, not to the others."""
    rng = np.random.default_rng(1)
    member = np.repeat(np.arange(30), 4)
    stream, z = rng.standard_normal((30, 40))[member], rng.standard_normal((30, 2, 4))[member]
    clusters = np.array([f"cluster {index}" for index in member])
    alone = np.array([f"prompt {index}" for index in range(120)])
    assert min(head_statistics.unpredicted_share(stream, z, clusters, SETTINGS)) > 1
    assert max(head_statistics.unpredicted_share(stream, z, alone, SETTINGS)) < 0.1


def test_a_constant_head_has_no_ratio_and_a_constant_stream_predicts_nothing() -> None:
    stream, z, clusters, rng = synthetic()
    z[:, 1] = 7 + 1e-9 * rng.standard_normal(z[:, 1].shape)
    ratios = head_statistics.unpredicted_share(stream, z, clusters, SETTINGS)
    assert ratios[1] is None and ratios[0] == pytest.approx(0, abs=1e-8)
    constant = 5 + 1e-9 * rng.standard_normal(stream.shape)
    ratios = head_statistics.unpredicted_share(constant, z, clusters, SETTINGS)
    assert 1 <= ratios[0] < 1.1


def test_ratios_are_those_of_the_plain_model_s_stream_and_heads(data, study, scored_outputs, plain) -> None:
    """Hidden states of the Hugging Face model at the last position, centred as the writers are, against its own z."""
    network, rows = plain("gpt2"), study.prompts.rows_of("evaluation")
    states = []
    for row in rows:
        tokens = study.prompts.clean[row : row + 1, : study.prompts.end[row] + 1]
        with torch.no_grad():
            hidden = network(tokens, output_hidden_states=True).hidden_states
        states.append([state[0, -1].numpy() for state in hidden[:3]])
    streams = np.array(states)
    streams = streams - streams.mean(2, keepdims=True)
    clusters = np.array([study.prompts.clusters[row] for row in rows])
    for layer in range(3):
        z = scored_outputs[rows][:, 4 * layer : 4 * layer + 4]
        expected = head_statistics.unpredicted_share(streams[:, layer], z, clusters, SETTINGS)
        assert data["prediction_error_ratio"][4 * layer : 4 * layer + 4] == pytest.approx(expected, rel=1e-3)
    assert data["prediction_error_unavailable"] is None


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_result_is_plain_data_and_the_same_bytes_again(make_study, architecture) -> None:
    study = with_settings(make_study(architecture))
    first = head_statistics.measure(study)
    assert len(first["prediction_error_ratio"]) == len(study.model.heads)
    assert results_io.dumps(first) == results_io.dumps(head_statistics.measure(study))


def test_too_few_clusters_leave_a_reason_in_place_of_ratios(study) -> None:
    data = head_statistics.measure(with_settings(study, folds=21))
    assert data["prediction_error_ratio"] == [None] * 12
    assert "clusters of evaluation prompts and the prediction error needs 21" in data["prediction_error_unavailable"]
