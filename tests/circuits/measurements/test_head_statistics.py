"""26 against the plain model's own head outputs and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from circuits.measurements import head_statistics
from tests.circuits import toy


@pytest.fixture(scope="module")
def data(study):
    return head_statistics.measure(study)


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
