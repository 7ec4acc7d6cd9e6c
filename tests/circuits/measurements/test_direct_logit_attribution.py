"""03: the parts sum to the logit difference, each is what the model writes, other readouts are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from circuits.engine import LensEngine
from circuits.interventions import Sweep, Variant
from circuits.measurements import direct_logit_attribution
from circuits.measurements.direct_logit_attribution import NonlinearReadoutError
from tests.circuits import toy

pytestmark = pytest.mark.every_architecture


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "task"),
    [("gpt2", "ioi"), ("gpt2", "greater_than"), ("neox", "ioi"), ("llama", "ioi"), ("qwen2", "ioi")],
)
def test_the_parts_sum_to_the_logit_difference(architecture, task, make_study) -> None:
    study = make_study(architecture, task)
    data = direct_logit_attribution.measure(study)
    total = data["attribution"].sum(1) + data["mlp"].sum(1) + data["embedding"] + data["bias"]
    clean = study.run(Sweep((Variant("clean"),))).logit_diff[0]
    assert np.abs(total - clean).max() < 1e-4
    assert data["max_error"] == pytest.approx(np.abs(total - clean).max(), abs=1e-6)
    assert np.abs(data["attribution"]).mean() > 0.05  # the sum is not all in one part


def test_every_part_is_what_the_plain_model_writes(study, plain, twin) -> None:
    """GPT-2, prompt by prompt: (c - mean c) / scale * gain, dotted with answer less foil unembedding."""
    data, prompts = direct_logit_attribution.measure(study), study.prompts
    network, loop = plain("gpt2"), twin()
    body, unembedding = network.transformer, network.lm_head.weight
    for row in (0, 7, 21):
        tokens = prompts.clean[row, : int(prompts.end[row]) + 1]
        with torch.no_grad():
            final = _final_residual(network, tokens)
            scale = (final.var(unbiased=False) + body.ln_f.eps).sqrt()
            direction = unembedding[prompts.answers[row, 0]] - unembedding[prompts.wrong[row, 0]]
            direction = body.ln_f.weight * direction / scale

            def read(values: torch.Tensor, direction: torch.Tensor = direction) -> float:
                return float((values - values.mean()) @ direction)

            for column, node in enumerate(study.model.heads):
                z = loop.activation(node, tokens)[-1, node.index]
                weight = body.h[node.layer].attn.c_proj.weight.reshape(toy.N_HEADS, toy.D_HEAD, toy.D_MODEL)
                assert data["attribution"][row, column] == pytest.approx(read(z @ weight[node.index]), abs=1e-4)
            for layer, block in enumerate(body.h):
                written = _output_at_end(network, block.mlp, tokens)
                assert data["mlp"][row, layer] == pytest.approx(read(written), abs=1e-4)
            embedded = body.wte(tokens[-1]) + body.wpe.weight[len(tokens) - 1]
            assert data["embedding"][row] == pytest.approx(read(embedded), abs=1e-4)


def _final_residual(network, tokens: torch.Tensor) -> torch.Tensor:
    kept = []
    handle = network.transformer.ln_f.register_forward_pre_hook(lambda module, args: kept.append(args[0][0, -1]))
    network(tokens[None])
    handle.remove()
    return kept[0]


def _output_at_end(network, module, tokens: torch.Tensor) -> torch.Tensor:
    kept = []
    handle = module.register_forward_hook(lambda module, args, output: kept.append(output[0, -1]))
    network(tokens[None])
    handle.remove()
    return kept[0]


def test_a_readout_that_is_not_linear_is_refused(study, folder) -> None:
    """A soft cap on the logits, as Gemma has: no part's share of a tanh is defined."""
    capped = toy.load(folder("gpt2"))
    capped.bridge.unembed.register_forward_hook(lambda module, args, logits: 5 * torch.tanh(logits / 5))
    engine = LensEngine(capped, study.engine.reference.prompts)  # the model's own read-out, not the weights'
    with pytest.raises(
        NonlinearReadoutError, match=r"of toy/gpt2 misses the logit difference by .* its final norm is no plain one"
    ):
        direct_logit_attribution.measure(replace(study, model=capped, engine=engine))


def test_the_tolerance_comes_from_the_settings(study) -> None:
    strict = replace(study, settings={**study.settings, "attribution_tolerance": 1e-12})
    with pytest.raises(NonlinearReadoutError):
        direct_logit_attribution.measure(strict)
