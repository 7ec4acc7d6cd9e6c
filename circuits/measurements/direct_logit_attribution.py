"""03 Direct logit attribution: what each component writes, at the last position, along the answer direction.

The final residual stream is a sum of component outputs, and with the final norm's scale frozen at its value in the
clean run the logit difference is linear in them: D = sum_c (c - mean(c)) . u / scale + bias, u the mean unembedding of
the answers minus that of the foils. The parts are checked to sum to the model's own logit difference.
"""

from __future__ import annotations

from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor

from circuits.interventions import Sweep, Variant
from circuits.prompts import PromptSet
from circuits.study import Study

NUMBER, ID = "03", "direct_logit_attribution"


class NonlinearReadoutError(RuntimeError):
    """The parts do not add up: the model's final norm or unembedding is not the one that attribution assumes."""


def measure(study: Study) -> dict[str, Any]:
    """Per-prompt contributions of heads, MLPs, embedding and biases, in logit-difference units."""
    parts = attribute(study, study.prompts)
    total = parts["attribution"].sum(1) + parts["mlp"].sum(1) + parts["embedding"] + parts["bias"]
    clean = study.run(Sweep((Variant("clean"),))).row("clean")
    error = float((total - torch.from_numpy(clean)).abs().max())
    if error > study.settings["attribution_tolerance"] * max(1.0, float(abs(clean).max())):
        raise NonlinearReadoutError(
            f"direct logit attribution of {study.model.name} misses the logit difference by {error:.2g}; its final "
            "norm is not a plain layer norm or RMS norm, so the attribution would be wrong"
        )
    return {**{name: values.numpy() for name, values in parts.items()}, "max_error": error}


@torch.no_grad()
def attribute(study: Study, prompts: PromptSet) -> dict[str, Tensor]:
    """{attribution [prompt, head], mlp [prompt, layer], embedding [prompt], bias [prompt]}."""
    layers = range(study.model.n_layers)
    names = [f"blocks.{layer}.{part}" for layer in layers for part in ("attn.hook_z", "hook_attn_out", "hook_mlp_out")]
    stored = study.engine.activations(prompts, "clean", (*names, "blocks.0.hook_resid_pre", "ln_final.hook_scale"))
    prompt = torch.arange(len(prompts))
    at_end = {name: values[prompt, prompts.end].float() for name, values in stored.items()}
    direction = study.answer_direction(prompts)
    if study.model.centred_norm:
        direction = direction - direction.mean(1, keepdim=True)
    direction = direction / at_end["ln_final.hook_scale"]

    def read(values: Float[Tensor, "prompt d_model"]) -> Float[Tensor, " prompt"]:
        return (values * direction).sum(1)

    heads = torch.stack([at_end[f"blocks.{layer}.attn.hook_z"] for layer in layers], 1)
    terms = "prompt layer head dh, layer head dh d, prompt d -> prompt layer head"
    attribution = einsum(heads, study.model.output_weights, direction, terms)
    attention = torch.stack([read(at_end[f"blocks.{layer}.hook_attn_out"]) for layer in layers], 1)
    bias = (attention - attribution.sum(2)).sum(1) + _unembedding_bias(study, prompts)
    return {
        "attribution": rearrange(attribution, "prompt layer head -> prompt (layer head)"),
        "mlp": torch.stack([read(at_end[f"blocks.{layer}.hook_mlp_out"]) for layer in layers], 1),
        "embedding": read(at_end["blocks.0.hook_resid_pre"]),
        "bias": bias,
    }


def _unembedding_bias(study: Study, prompts: PromptSet) -> Float[Tensor, " prompt"]:
    bias = study.model.bridge.b_U.detach().float().cpu()
    sides = [(ids >= 0).float() for ids in (prompts.answers, prompts.wrong)]
    answers, wrong = (
        (bias[ids.clamp(min=0)] * real).sum(1) / real.sum(1)
        for ids, real in zip((prompts.answers, prompts.wrong), sides, strict=True)
    )
    return answers - wrong
