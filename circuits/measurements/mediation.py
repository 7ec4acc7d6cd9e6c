"""05 Mediation: how much of the corruption's effect passes through each head or around it, and where it goes from there.

The treatment is the corruption of the prompt (x = clean or corrupted), the mediator is one head's output M at all
positions, the outcome Y is the logit difference. Every term is the logit difference of an actual run, in which the mediator
may be held at its value under the other treatment (Pearl 2001; Vig et al. 2020):

    total             Y(clean, M(clean)) - Y(corrupted, M(corrupted))
    natural direct    Y(clean, M(clean)) - Y(corrupted, M(clean))
    natural indirect  Y(clean, M(clean)) - Y(clean, M(corrupted))

Direct and indirect effect sum to the total only if treatment and mediator do not interact. This is not assumed:
`interaction` is the total minus both.

What passes through the head is mediated again by all later components. With the head at its corrupted value and the rest of
the prompt clean, the two ways to the answer are opened one at a time:

    direct path       only the logits see the corrupted head; every later component keeps its clean output
    downstream        every later component sees the corrupted head; the logits see its clean output

The natural indirect effect equals the necessity (noising) of 02 by definition. New here are the natural direct effect and the
split of the indirect one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

from circuits.measurements.activation_patching import downstream_sweep, has_direct_paths, patch_heads
from circuits.models import UnsupportedArchitectureError
from circuits.study import Study

NUMBER, ID = "05", "mediation"
SETTINGS = ("mediation",)
DEPENDS_ON_CIRCUIT = False
PROMPTS_AT_ONCE = 128  # bounds the activations held at once


def measure(study: Study) -> dict[str, Any]:
    """Per-prompt effects of every head, in nats of logit difference; the direct path and downstream only if the settings ask.

    Raises UnsupportedArchitectureError if they ask for these and the model's heads have no direct path to the logits.
    """
    if study.settings["mediation"]["onward"]:
        _require_direct_paths(study)
    patched = patch_heads(study, in_logits=True)
    clean = patched.clean[:, None]
    total = patched.clean - patched.corrupted
    direct, indirect = clean - patched.denoised, clean - patched.noised
    effects = {
        "total": total,
        "natural_direct": direct,
        "natural_indirect": indirect,
        "interaction": total[:, None] - direct - indirect,
    }
    if study.settings["mediation"]["onward"]:
        effects |= {"direct_path": clean - direct_path(study), "downstream": clean - downstream(study)}
    return effects


def _require_direct_paths(study: Study) -> None:
    """Raises UnsupportedArchitectureError unless a head adds z W_O to the stream and logits are linear in the final norm."""
    model = study.model
    if not has_direct_paths(model):
        what = "what its heads write" if model.normalises_attention else "no heads but bounds its logits"
        raise UnsupportedArchitectureError(
            f"model {model.name} normalises {what}, so no path from a head to the logits is direct; run with "
            "measurement.mediation.onward=false"
        )


@torch.no_grad()
def direct_path(study: Study) -> Float[np.ndarray, "prompt head"]:
    """Logit difference of the clean run when only the final norm sees each head's corrupted output.

    Only the last position of the final stream matters, so the stream is changed there and read out again.
    """
    prompts = study.prompts
    batches = torch.arange(len(prompts)).split(PROMPTS_AT_ONCE)
    moved = torch.cat([_moved(study, batch.tolist()) for batch in batches])
    # only the answer direction is read from the final norm; the unembedding's bias is the same in every run
    return (patch_heads(study, in_logits=True).clean[:, None] + moved.numpy()).astype(np.float32)


def _moved(study: Study, rows: list[int]) -> Float[Tensor, "prompt head"]:
    """How much each head's corrupted output changes the logit difference when only the final norm sees it."""
    model, prompts = study.model, study.prompts.select(rows)
    layers = range(model.n_layers)
    names = tuple(f"blocks.{layer}.attn.hook_z" for layer in layers)
    clean = study.engine.activations(prompts, "clean", (*names, "ln_final.hook_in"))
    corrupted = study.engine.activations(prompts, "corrupted", names)
    at_end = (torch.arange(len(prompts)), prompts.end)
    stream = clean["ln_final.hook_in"][at_end]
    direction = study.answer_direction(prompts)
    values = []
    for layer, name in zip(layers, names, strict=True):
        change = (corrupted[name] - clean[name])[at_end]
        moved = einsum(change, model.projections["o"][layer].to(change), "prompt h dh, h dh d -> prompt h d")
        values.append(_logit_difference_of(study, stream[:, None] + moved, direction))
    return torch.cat(values, 1) - _logit_difference_of(study, stream[:, None], direction)


def _logit_difference_of(
    study: Study, stream: Float[Tensor, "prompt head d_model"], direction: Float[Tensor, "prompt d_model"]
) -> Float[Tensor, "prompt head"]:
    """Logit difference of a stream at the last position, without the unembedding's bias."""
    normed = study.model.final_norm(stream).to(direction)
    return einsum(normed, direction, "prompt head d, prompt d -> prompt head")


def downstream(study: Study) -> Float[np.ndarray, "prompt head"]:
    """Logit difference of the clean run when everything except the final norm sees each head's corrupted output."""
    return study.run(downstream_sweep(study.model), in_logits=True).logit_diff.T
