"""26 Head statistics: how large, how variable and of what rank each head's output is at the last position."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from circuits.prompts import PromptSet
from circuits.study import Study

NUMBER, ID = "26", "head_statistics"


def measure(study: Study) -> dict[str, Any]:
    """Output norms per prompt, moments of the end-position head output z, its centred singular values."""
    end_z = end_outputs(study, study.prompts)
    evaluation = end_z[study.prompts.rows_of("evaluation")].double()
    centred = evaluation - evaluation.mean(0)
    return {
        "output_norm": _norms(study, end_z).numpy(),
        "discovery_norm": output_norms(study, study.discovery).mean(0),
        "mean": evaluation.mean((0, 2)).numpy(),
        "variance": centred.square().mean((0, 2)).numpy(),
        "singular_values": torch.linalg.svdvals(centred.transpose(0, 1)).numpy(),
    }


@torch.no_grad()
def end_outputs(study: Study, prompts: PromptSet) -> Float[Tensor, "prompt head d_head"]:
    """Head outputs z (before W_O) at each prompt's last position, heads row-major."""
    names = [f"blocks.{layer}.attn.hook_z" for layer in range(study.model.n_layers)]
    stored = study.engine.activations(prompts, "clean", tuple(names))
    prompt = torch.arange(len(prompts))
    return torch.cat([stored[name][prompt, prompts.end].float() for name in names], 1)


def output_norms(study: Study, prompts: PromptSet) -> Float[np.ndarray, "prompt head"]:
    """||z W_O||: the length of what each head adds to the residual stream at the last position."""
    return _norms(study, end_outputs(study, prompts)).numpy()


def _norms(study: Study, end_z: Float[Tensor, "prompt head d_head"]) -> Float[Tensor, "prompt head"]:
    weights = study.model.output_weights.flatten(0, 1)
    return einsum(end_z, weights, "prompt head dh, head dh d -> prompt head d").norm(dim=2)
