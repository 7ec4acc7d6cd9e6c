"""26 Head statistics: size, variability, rank and predictability of each head's output at the last position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

NUMBER, ID = "26", "head_statistics"
SETTINGS = ("head_statistics",)
DEPENDS_ON_CIRCUIT = False


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError for settings that leave nothing to cross-validate."""
    own = settings["head_statistics"]
    if own["folds"] < 2:
        raise UserError(f"measurement.head_statistics.folds={own['folds']} leaves nothing out; use at least 2")
    if not own["penalties"]:
        raise UserError("measurement.head_statistics.penalties=[] names no ridge penalty; give at least one")


def measure(study: Study) -> dict[str, Any]:
    """Output norms per prompt, moments of the end-position head output z, its centred singular values, and the share of
    its variance that the stream entering the layer does not predict.

    z is that of the folded model: the constant c = b_V + b_LN W_V that a head outputs whatever it reads is in the layer's output
    bias. `output_norm`, `discovery_norm` and `mean` exclude it, `output_norm_raw` includes it, and nothing else depends on it.
    """
    end_z = end_outputs(study, study.prompts)
    rows = study.prompts.rows_of("evaluation")
    evaluation = end_z[rows].double()
    centred = evaluation - evaluation.mean(0)
    return {
        "output_norm": _norms(study, study.prompts, end_z).numpy(),
        "output_norm_raw": _norms(
            study, study.prompts, end_z + torch.cat(study.model.value_constants).to(end_z)
        ).numpy(),
        "discovery_norm": output_norms(study, study.discovery).mean(0),
        "mean": evaluation.mean((0, 2)).numpy(),
        "variance": centred.square().mean((0, 2)).numpy(),
        "singular_values": torch.linalg.svdvals(centred.transpose(0, 1)).numpy(),
        **prediction_errors(study, study.prompts.select(rows), evaluation),
    }


@torch.no_grad()
def end_outputs(study: Study, prompts: PromptSet) -> Float[Tensor, "prompt head d_head"]:
    """Head outputs z (before W_O) at each prompt's last position, heads row-major."""
    return torch.cat(_at_end(study, prompts, "attn.hook_z"), 1)


def _at_end(study: Study, prompts: PromptSet, hook: str) -> list[Float[Tensor, "prompt ..."]]:
    """The activation at `hook` of each layer at each prompt's last position."""
    names = [f"blocks.{layer}.{hook}" for layer in range(study.model.n_layers)]
    stored = study.engine.at_end(prompts, "clean", tuple(names))
    return [stored[name].float() for name in names]


def output_norms(study: Study, prompts: PromptSet) -> Float[np.ndarray, "prompt head"]:
    """||z W_O||: the norm of what each head adds to the residual stream at the last position, without its constant.

    If a norm lies in between, its gain and its scale in this run are included.
    """
    return _norms(study, prompts, end_outputs(study, prompts)).numpy()


def mlp_norms(study: Study, prompts: PromptSet) -> Float[np.ndarray, "prompt layer"]:
    """The norm of what each MLP adds to the residual stream at the last position."""
    return torch.stack([written.norm(dim=1) for written in _at_end(study, prompts, "hook_mlp_out")], 1).numpy()


def _norms(
    study: Study, prompts: PromptSet, end_z: Float[Tensor, "prompt head d_head"]
) -> Float[Tensor, "prompt head"]:
    """Norms computed head by head, since all outputs together would be [prompt, head, d_model]."""
    model, factors = study.model, [torch.ones(())] * study.model.n_layers
    if model.normalises_attention:
        scales = _at_end(study, prompts, "ln1_post.hook_scale")
        factors = [model.attention_gain(layer) / scale for layer, scale in enumerate(scales)]
    weights = model.output_weights.flatten(0, 1)
    norms = [
        (end_z[:, head] @ weights[head] * factors[head // model.n_heads]).norm(dim=1) for head in range(len(weights))
    ]
    return torch.stack(norms, 1)


def prediction_errors(
    study: Study, prompts: PromptSet, end_z: Float[Tensor, "prompt head d_head"]
) -> dict[str, list[float | None] | str | None]:
    """`prediction_error_ratio` [H], and in `prediction_error_unavailable` why there is none (None if there is).

    The ratio is small for a head whose output can be predicted from the stream at the last position, and about 1 for a head
    that brings new information (the residual of predictive coding, Rao & Ballard 1999, with a linear predictor).
    """
    settings = study.settings["head_statistics"]
    clusters = np.array(prompts.clusters)
    if (count := len(np.unique(clusters))) < settings["folds"]:
        reason = (
            f"{prompts.task} has {count} clusters of evaluation prompts and the prediction error needs {settings['folds']}, "
            "one for each fold; use more prompts"
        )
        nothing: list[float | None] = [None] * end_z.shape[1]
        return {"prediction_error_ratio": nothing, "prediction_error_unavailable": reason}
    streams = _at_end(study, prompts, "hook_resid_pre")
    layers = rearrange(end_z, "prompt (layer head) dh -> layer prompt head dh", layer=len(streams)).numpy()
    ratios = [
        unpredicted_share(stream.double().numpy(), z, clusters, settings)
        for stream, z in zip(streams, layers, strict=True)
    ]
    return {
        "prediction_error_ratio": [ratio for layer in ratios for ratio in layer],
        "prediction_error_unavailable": None,
    }


def unpredicted_share(
    stream: Float[np.ndarray, "prompt d_model"],
    z: Float[np.ndarray, "prompt head d_head"],
    clusters: Shaped[np.ndarray, " prompt"],
    settings: Mapping[str, Any],
) -> list[float | None]:
    """1 - R^2 of each head's z predicted from `stream` by ridge regression, over all components together:

        sum (z - predicted z)^2 / sum (z - mean z)^2

    Each prompt is predicted by a regression on prompts of other clusters. The ratio is not clipped and exceeds 1 for noise. The
    penalty of every component is the best of `penalties` by leave-one-out on those other prompts. Penalties are in units of the
    stream's mean variance, so rotating or rescaling the stream does not change the ratio. Values whose SD is at most `constant`
    times their root mean square vary by rounding only: such a stream predicts nothing, and such a head gets None.
    """
    from sklearn.linear_model import RidgeCV  # imported here: scikit-learn takes a while
    from sklearn.model_selection import GroupKFold, cross_val_predict

    centred, varies = _centre(z, (0, 2), settings["constant"])
    inputs, has_signal = _centre(stream, (0, 1), settings["constant"])
    predicted = cross_val_predict(
        RidgeCV(settings["penalties"], alpha_per_target=True),
        inputs / np.sqrt(np.square(inputs).mean()) if has_signal else np.zeros_like(inputs),
        rearrange(centred, "prompt head dh -> prompt (head dh)"),
        groups=clusters,
        cv=GroupKFold(settings["folds"], shuffle=True, random_state=settings["seed"]),
    )
    error = np.square(centred - np.asarray(predicted).reshape(z.shape)).sum((0, 2))
    total = np.square(centred).sum((0, 2))
    return [float(error[head] / total[head]) if varies[head] else None for head in range(z.shape[1])]


def _centre(
    values: Float[np.ndarray, "prompt ..."], axes: tuple[int, ...], constant: float
) -> tuple[Float[np.ndarray, "prompt ..."], Bool[np.ndarray, "*rest"]]:
    """(values minus their mean over prompts, whether their variance over `axes` exceeds rounding)."""
    centred = values - values.mean(0)
    varies = np.square(centred).sum(axes) > constant**2 * np.square(values).sum(axes)
    return centred, np.asarray(varies)
