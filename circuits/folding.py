"""TransformerLens' processing of weights (folds norms, centres writers), one layer at a time and in place.

TransformerLens converts every weight to float32 and copies all of them several times, which takes 3 to 8 times their memory.
Here the library's own functions process one layer at a time, and the results overwrite the weights that were read. What
belongs to no layer (embeddings, final norm, unembedding) is processed here, in place and in blocks of the vocabulary:

    W_E -= mean over d_model      b_U += W_U b      W_U *= w      W_U -= mean over d_model      W_U -= mean over the vocabulary

with w and b of the final norm. Means over d_model are subtracted only under layer norm, the last mean only if the model does
not cap its logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

LAYER_NORMS, RMS_NORMS = ("LN", "LNPre"), ("RMS", "RMSPre")
WORDS = 1024  # rows of a table that are converted to float32 at once
TABLES = ("embed.weight", "pos_embed.weight")


@torch.no_grad()
def fold(bridge: Any) -> None:
    """Process the weights of an unprocessed TransformerBridge, as its `process_weights` does by default.

    Float32 results equal the library's to the last bit. In other dtypes each number is rounded once, as in the library.
    """
    bridge._weights_processed = True  # the library has no public attribute for it
    state, adapter = bridge.state_dict(), bridge.adapter
    adapter._fold_ln_requested = True
    if state["embed.weight"].data_ptr() == state["unembed.weight"].data_ptr():  # only one of the two is folded
        state["unembed.weight"] = state["unembed.weight"].clone()
    stand_ins = {key: state[key][:0] for key in TABLES if key in state}  # centring needs these keys to be present
    for layer in range(bridge.cfg.n_layers):
        own = {key: state.pop(key) for key in list(state) if key.startswith(f"blocks.{layer}.")}
        device = next(iter(own.values())).device
        beside = {key: table.to(device) for key, table in stand_ins.items()}
        _fold_layer(bridge, layer, adapter.preprocess_weights(own), beside)
    # Phi-3's adapter multiplies unembedding and final norm, which may be on two devices
    norm = {key: weight for key, weight in state.items() if key.startswith("ln_final.")}
    rest = adapter.preprocess_weights(
        {**state, **{key: w.to(state["unembed.weight"].device) for key, w in norm.items()}}
    )
    _fold_rest(bridge, {**rest, **{key: weight.copy_(rest[key]) for key, weight in norm.items()}})
    bridge._fold_layer_norms_into_batched_experts()
    adapter.postprocess_weights(bridge)


def _fold_layer(bridge: Any, layer: int, own: dict[str, Tensor], stand_ins: Mapping[str, Tensor]) -> None:
    """Fold one layer by the library's own functions; results overwrite the weights they are computed from."""
    from transformer_lens.weight_processing import ProcessWeights

    processed = ProcessWeights.process_weights(
        {**own, **stand_ins}, bridge.cfg, center_unembed=False, adapter=bridge.adapter
    )
    processed = {key: value for key, value in processed.items() if key not in stand_ins}
    before = {name: weight.data for name, weight in bridge.blocks[layer].named_parameters()}
    ProcessWeights.distribute_weights_to_components(processed, bridge.real_components)
    for name, weight in bridge.blocks[layer].named_parameters():
        place = before.get(name)
        if place is not None and place.shape == weight.shape:
            place.copy_(weight.data)
            weight.data = place


def _fold_rest(bridge: Any, state: dict[str, Tensor]) -> None:
    """Fold embeddings, final norm and unembedding."""
    from transformer_lens import weight_processing

    cfg, adapter = bridge.cfg, bridge.adapter
    post_norm = weight_processing.POST_NORM_ARCHITECTURES  # pyright: ignore[reportPrivateImportUsage]
    centres = cfg.normalization_type in LAYER_NORMS and not getattr(cfg, "final_rms", False)
    folds = cfg.normalization_type in (*LAYER_NORMS, *RMS_NORMS) and getattr(adapter, "supports_fold_ln", True)
    normed_first = getattr(cfg, "original_architecture", None) not in post_norm
    if centres and normed_first and getattr(adapter, "supports_center_writing_weights", True):
        for key in TABLES:
            _centre_rows(state.get(key))
    table, bias = state["unembed.weight"], state.get("unembed.bias")
    gain = torch.ones(table.shape[1], device=table.device)
    if folds and (weight := state.get("ln_final.weight")) is not None:
        offset = 1.0 if getattr(cfg, "rmsnorm_uses_offset", False) else 0.0
        gain = offset + weight.float().to(table.device)
        if centres and bias is not None and (shift := state.get("ln_final.bias")) is not None:
            _fold_shift(table, shift, bias)
        weight.fill_(1.0 - offset)
    cap = getattr(cfg, "output_logits_soft_cap", None)
    bounded = cap is not None and cap > 0
    _fold_unembedding(table, gain, centres and folds, not bounded)
    if bias is not None and not bounded:
        bias.copy_(bias.float() - bias.float().mean())
    weight_processing.ProcessWeights.distribute_weights_to_components(state, bridge.real_components)


def _centre_rows(table: Float[Tensor, "row d_model"] | None) -> None:
    for rows in () if table is None else table.split(WORDS):
        wide = rows.float()
        rows.copy_(wide - wide.mean(-1, keepdim=True))


def _fold_shift(
    table: Float[Tensor, "vocabulary d_model"], shift: Float[Tensor, " d_model"], bias: Float[Tensor, " vocabulary"]
) -> None:
    """Fold the final norm's bias b into that of the unembedding: b_U + W_U b."""
    added = shift.float().to(table.device)
    for rows, own in zip(table.split(WORDS), bias.split(WORDS), strict=True):
        own.copy_(own.float() + (rows.float() * added).sum(-1))
    shift.zero_()


def _fold_unembedding(
    table: Float[Tensor, "vocabulary d_model"], gain: Float[Tensor, " d_model"], centre_rows: bool, centre_columns: bool
) -> None:
    """W_U times the gain, minus its mean over d_model, minus its mean over the vocabulary."""

    def folded(rows: Tensor) -> Tensor:
        wide = rows.float() * gain
        return wide - wide.mean(-1, keepdim=True) if centre_rows else wide

    blocks, mean = table.split(WORDS), torch.zeros_like(gain)
    if table.dtype == torch.float32:
        for rows in blocks:
            rows.copy_(folded(rows))
        if centre_columns:
            table.sub_(table.mean(0))
        return
    if centre_columns:  # from unrounded numbers, which are computed twice so that they are never all in memory
        total = torch.stack([folded(rows).sum(0, dtype=torch.float64) for rows in blocks]).sum(0)
        mean = (total / len(table)).float()
    for rows in blocks:
        rows.copy_(folded(rows) - mean)
