"""Which model this is: what it was loaded from, its shape, and how it is run."""

from __future__ import annotations

from dataclasses import dataclass

from circuits.study import Study
from meridian.doctor.parity import Facts

POSITIONS = {"standard": "learned", "rotary": "rotary", "alibi": "ALiBi", "none": "none"}


@dataclass(frozen=True)
class Architecture:
    """`tied`: whether embedding and unembedding share weights. `backend`: the engine that runs the sweeps.

    `attention`: the attention implementation of the hooked model.
    """

    name: str
    kind: str
    revision: str | None
    sha256: str
    n_layers: int
    n_heads: int
    n_key_value_heads: int
    d_model: int
    d_vocabulary: int
    context: int
    positions: str
    norm: str
    tied: bool
    parameters: int
    dtype: str
    device: str
    attention: str
    backend: str
    backend_why: str


def describe(study: Study, facts: Facts) -> Architecture:
    """The facts of the loaded model, together with those that only the plain model has."""
    model, cfg = study.model, study.model.bridge.cfg
    engine = study.engine.describe()
    positions = str(cfg.positional_embedding_type)
    return Architecture(
        name=model.name,
        kind=model.identity.kind,
        revision=getattr(model.identity, "revision", None),
        sha256=model.sha256,
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        n_key_value_heads=int(cfg.n_key_value_heads or model.n_heads),
        d_model=int(cfg.d_model),
        d_vocabulary=int(cfg.d_vocab),
        context=int(cfg.n_ctx),
        positions=POSITIONS.get(positions, positions),
        norm="layer norm" if model.centred_norm else "RMS norm",
        tied=facts.tied,
        parameters=facts.parameters,
        dtype=model.precision,
        device=str(model.device),
        attention=str(getattr(model.bridge.original_model.config, "_attn_implementation", None) or "unknown"),
        backend=engine["backend"],
        backend_why=engine["why"],
    )
