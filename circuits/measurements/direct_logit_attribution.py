"""03 Direct logit attribution: what each component writes, at the last position, along the answer direction.

The final residual stream is a sum of component outputs. With the final norm's scale frozen at its value in the clean run, the
logit difference is linear in them: D = sum_c (c - mean(c)) . u / scale + bias, u the mean unembedding of the answers minus
that of the foils. It is checked that the parts sum to the model's own logit difference.

In some models (Gemma 2 and 3) the heads' sum passes its own norm before it is added. That norm's scale is frozen as well: head
h writes gain * z_h W_O^h / scale, and it is checked that the heads sum to what their attention adds. Soft-capped logits (Gemma
2) have no such parts; `attribute` then gives those of the difference before the cap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from einops import einsum, rearrange
from jaxtyping import Float, Int
from torch import Tensor

from circuits.interventions import Sweep, Variant
from circuits.models import Model, UnsupportedArchitectureError, attention_scale
from circuits.prompts import PromptSet
from circuits.study import Study

PROMPTS_AT_ONCE = 128  # bounds memory: activations are held at every position, although only the last is read
NUMBER, ID = "03", "direct_logit_attribution"
SETTINGS = ("attribution_tolerance",)
DEPENDS_ON_CIRCUIT = False


class NonlinearReadoutError(UnsupportedArchitectureError):
    """The parts do not sum to the whole: the model's final norm or unembedding is not as attribution assumes."""


def measure(study: Study) -> dict[str, Any]:
    """Per-prompt contributions of heads, MLPs, embedding and biases to the logit difference, in nats.

    Raises NonlinearReadoutError if they do not sum to the logit difference.
    """
    require_linear(study.model)
    parts = attribute(study, study.prompts)
    total = parts["attribution"].sum(1) + parts["mlp"].sum(1) + parts["embedding"] + parts["bias"]
    clean = study.run(Sweep((Variant("clean"),)), in_logits=True).row("clean")
    error = float((total - torch.from_numpy(clean)).abs().max())
    if error > study.settings["attribution_tolerance"] * max(1.0, float(abs(clean).max())):
        raise NonlinearReadoutError(
            f"direct logit attribution of {study.model.name} misses the logit difference by {error:.2g}; a norm "
            "follows its MLPs, or its final norm is no plain one, so the attribution would be wrong; judge its heads by "
            "patches (02)"
        )
    return {**{name: values.numpy() for name, values in parts.items()}, "max_error": error}


def require_linear(model: Model) -> None:
    """Raises NonlinearReadoutError if the model caps its logits, since the tanh of a sum does not split into parts."""
    if model.bounds_logits:
        raise NonlinearReadoutError(
            f"model {model.name} bounds its logits, which are then no sum over components; judge its heads by patches (02)"
        )


@torch.no_grad()
def attribute(study: Study, prompts: PromptSet) -> dict[str, Tensor]:
    """{attribution [prompt, head], mlp [prompt, layer], embedding [prompt], bias [prompt]}.

    Raises NonlinearReadoutError if the heads' parts do not sum to what the attention adds to the stream.
    """
    batches = torch.arange(len(prompts)).split(PROMPTS_AT_ONCE)
    parts = [_attribute(study, prompts.select(batch.tolist())) for batch in batches]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _attribute(study: Study, prompts: PromptSet) -> dict[str, Tensor]:
    """As `attribute`, with all prompts at once."""
    layers = range(study.model.n_layers)
    names = [f"blocks.{layer}.{part}" for layer in layers for part in ("attn.hook_z", "hook_attn_out", "hook_mlp_out")]
    names += [attention_scale(layer) for layer in layers if study.model.normalises_attention]
    stored = study.engine.activations(prompts, "clean", (*names, "blocks.0.hook_resid_pre", "ln_final.hook_scale"))
    prompt = torch.arange(len(prompts))
    at_end = {name: values[prompt, prompts.end].float() for name, values in stored.items()}
    direction = study.answer_direction(prompts)
    if study.model.centred_norm:
        direction = direction - direction.mean(1, keepdim=True)
    direction = direction / at_end["ln_final.hook_scale"]

    def read(values: Float[Tensor, "prompt d_model"]) -> Float[Tensor, " prompt"]:
        return (values * direction).sum(1)

    factors = [_factor(study.model, layer, at_end) for layer in layers]
    _require_sums(study.model, at_end, factors)
    heads = torch.stack([at_end[f"blocks.{layer}.attn.hook_z"] for layer in layers], 1)
    terms = "prompt layer head dh, layer head dh d, prompt layer d -> prompt layer head"
    directions = torch.stack([direction * factor for factor in factors], 1)
    attribution = einsum(heads, study.model.output_weights, directions, terms)
    attention = torch.stack([read(at_end[f"blocks.{layer}.hook_attn_out"]) for layer in layers], 1)
    bias = (attention - attribution.sum(2)).sum(1) + _unembedding_bias(study, prompts)
    return {
        "attribution": rearrange(attribution, "prompt layer head -> prompt (layer head)"),
        "mlp": torch.stack([read(at_end[f"blocks.{layer}.hook_mlp_out"]) for layer in layers], 1),
        "embedding": read(at_end["blocks.0.hook_resid_pre"]),
        "bias": bias,
    }


def _factor(model: Model, layer: int, at_end: Mapping[str, Tensor]) -> Float[Tensor, "#prompt #d_model"]:
    """The factor of each component of the heads' sum before it is added: 1, or gain / scale of the norm in between."""
    if not model.normalises_attention:
        return torch.ones(1, 1)
    return model.attention_gain(layer) / at_end[attention_scale(layer)]


def _require_sums(model: Model, at_end: Mapping[str, Tensor], factors: Sequence[Tensor]) -> None:
    """Raises NonlinearReadoutError unless each layer's heads and output bias sum to what its attention adds to the stream.

    The tolerance is the square root of the dtype's rounding error. The check in `measure`, over all components together,
    would miss an error here, because whatever the heads lack would count as bias.
    """
    tolerance = torch.finfo(model.dtype).eps ** 0.5
    for layer, factor in enumerate(factors):
        added, bias = at_end[f"blocks.{layer}.hook_attn_out"], getattr(model.bridge.blocks[layer].attn, "b_O", None)
        terms = "prompt head dh, head dh d -> prompt d"
        summed = einsum(at_end[f"blocks.{layer}.attn.hook_z"], model.output_weights[layer], terms)
        summed = (summed if bias is None else summed + bias.detach().float().cpu()) * factor
        error = float((summed - added).abs().max() / added.abs().max().clamp(min=1e-9))
        if not error <= tolerance:
            raise NonlinearReadoutError(
                f"the heads of layer {layer} in {model.name} do not sum to what its attention adds to the stream (relative "
                f"difference {error:.2g}), so their attribution would be wrong; judge them by patches (02)"
            )


def _unembedding_bias(study: Study, prompts: PromptSet) -> Float[Tensor, " prompt"]:
    bias = study.model.bridge.b_U.detach().float().cpu()

    def mean(ids: Int[Tensor, "prompt candidate"]) -> Float[Tensor, " prompt"]:
        real = ids >= 0
        return bias[ids.clamp(min=0)].masked_fill(~real, 0).sum(1) / real.float().sum(1)

    return mean(prompts.answers) - mean(prompts.wrong)
