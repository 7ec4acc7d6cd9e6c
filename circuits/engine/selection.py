"""Which backend runs a study: the fused one if it gives the reference backend's numbers on the loaded model.

Parity is tested before a result depends on it: both backends run a sweep that touches every layer and every kind of site, in
both directions and at single positions, on a few prompts of different lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from circuits.circuit import Node
from circuits.devices import devices_of
from circuits.engine import memory, products
from circuits.engine.fused import FusedEngine
from circuits.engine.lens import DeadHookError, LensEngine
from circuits.engine.paths import UnknownWiringError
from circuits.engine.sharded import ShardedEngine
from circuits.interventions import Intervention, Recipe, Sweep, Variant, denoise, noise, patch_paths
from circuits.models import Model, UnsupportedArchitectureError
from circuits.prompts import PromptSet
from kernels import launch, split_product
from results_io import UserError

BACKENDS = ("auto", "fused", "lens")
KERNELS = ("auto", "reference", "triton")
PRODUCTS = (products.IEEE, products.TF32X3, products.AUTO)
DEFAULTS: Mapping[str, Any] = {  # of configs/engine/common.yaml, where the reasons are
    "rows_per_forward": 512,
    "memory_mib": None,
    "memory_share": memory.SHARE,
    "tokens_per_block": None,
    "kernels": "auto",
    "products": "ieee",
    "products_tolerance": 1e-5,
    "devices": None,
    "tolerance": {
        "float64": 1e-6,
        "float32": 1e-4,
        "float16": 0.03,
        "bfloat16": 0.1,
        "float32_over_float16": 0.005,
        "float32_over_bfloat16": 0.02,
    },
}
PROBES = 4  # prompts, of different lengths as far as there are any


def choose(settings: Mapping[str, Any] | str, model: Model, reference: PromptSet, prompts: PromptSet) -> LensEngine:
    """The engine that a name or the `engine` section of the configuration asks for; parity is tested on `prompts`.

    Reads name ("auto", "fused" or "lens"), rows_per_forward, memory_mib, memory_share, tokens_per_block, kernels, products with
    products_tolerance, devices (see `circuits.devices`), and tolerance (by dtype: the largest error of a logit difference, as
    a share of the largest logit difference). Raises UserError for another name, for settings that are no amount, for kernels or
    products that are unknown or not available on the device, and for several devices with engine=lens.

    If the model is no pre-norm decoder, or if the fused backend's numbers are not the reference backend's, engine=fused
    raises UserError, and engine=auto uses the reference backend and says why.
    """
    if isinstance(settings, str):
        settings = {**DEFAULTS, "name": settings}
    settings = {**DEFAULTS, **settings}
    name, rows = settings.get("name"), int(settings["rows_per_forward"])
    value = settings["tokens_per_block"]
    if value is not None and not (isinstance(value, (int, float)) and value > 0):
        raise UserError(f"engine.tokens_per_block={value} is no room for anything; use a number above 0")
    room = {"memory_mib": settings["memory_mib"], "memory_share": settings["memory_share"]}
    memory.require_amounts(**room)
    if name not in BACKENDS:
        raise UserError(f"engine.name={name} is unknown; use one of {', '.join(BACKENDS)}")
    _require_one_of("kernels", settings["kernels"], KERNELS)
    _require_one_of("products", settings["products"], PRODUCTS)
    share = settings["products_tolerance"]
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise UserError(
            f"engine.products_tolerance={share} is no share of a logit difference; use a number above 0, below 1"
        )
    devices = _devices_of(settings, model)
    lens = LensEngine(model, reference, rows, **room)
    if name == "lens":
        return lens
    _require_cuda(settings, model)
    dtype, kernels = str(model.dtype).removeprefix("torch."), settings["kernels"]
    try:
        fused = FusedEngine(
            model,
            reference,
            rows,
            tokens_per_block=settings["tokens_per_block"],
            implementation=None if kernels == "auto" else kernels,
            **room,
        )
        fused = ShardedEngine(fused, devices) if len(devices) > 1 else fused
        fused.why = prove_parity(fused, lens, prompts, float(settings["tolerance"][dtype]))
        _choose_products(fused, lens, prompts, settings)
    except UnsupportedArchitectureError as reason:
        if name == "fused":
            raise
        lens.why = str(reason)
        return lens
    return fused


def _devices_of(settings: Mapping[str, Any], model: Model) -> tuple[torch.device, ...]:
    """The devices that hold copies of the model. UserError if there cannot be several."""
    asked = settings.get("devices")
    devices = devices_of(asked, model.device)
    if len(devices) == 1:
        return devices
    if settings["name"] == "lens":
        raise UserError(
            f"engine.devices={asked} shares out sweeps of the fused backend; use engine=fused, or engine.devices=null"
        )
    if len(model.devices) > 1:
        spread = ", ".join(map(str, model.devices))
        raise UserError(
            f"engine.devices={asked} copies a model and model.device_map spreads one over {spread}; use engine.devices=null"
        )
    return devices


def _require_one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"engine.{name}={value} is unknown; use one of {', '.join(known)}")


def _require_cuda(settings: Mapping[str, Any], model: Model) -> None:
    """Raises UserError for a setting that needs a GPU if there is none."""
    if model.device.type == "cuda":
        return
    if settings["kernels"] == "triton" and not launch.interpreted():
        raise UserError(f"engine.kernels=triton needs a CUDA device and the model is on {model.device}; use reference")
    if settings["products"] == products.TF32X3:
        raise UserError(f"engine.products=tf32x3 needs a CUDA device and the model is on {model.device}; use ieee")


def _choose_products(fused: FusedEngine, lens: LensEngine, prompts: PromptSet, settings: Mapping[str, Any]) -> None:
    """Use split float32 products on tensor cores if the settings ask for them and they agree with IEEE on the parity probes.

    Raises UserError if engine.products=tf32x3 and they do not agree.
    """
    wanted, own = settings["products"], fused.decoder.products
    if wanted == products.IEEE:
        return
    if fused.model.device.type != "cuda" or fused.model.precision != "float32":
        own.why = "tf32x3 is for float32 on a CUDA device"
    else:
        probes, sweep = _probes(lens, prompts)
        tolerance = float(settings["products_tolerance"])
        own.adopt(products.TF32X3, split_product.split_product, lambda: fused.run(sweep, probes).logit_diff, tolerance)
    if wanted == products.TF32X3 and own.name != wanted:
        raise UserError(f"engine.products=tf32x3 is not taken for {fused.model.name}: {own.why}; use ieee or auto")


def _probes(lens: LensEngine, prompts: PromptSet) -> tuple[PromptSet, Sweep]:
    """Prompts and a sweep that touches every layer and kind of site."""
    probes = prompts.select(_of_different_lengths(prompts))
    return probes, Sweep(tuple(_touch_everything(lens, tuple(probes.positions))), probabilities=True)


def prove_parity(fused: LensEngine, lens: LensEngine, prompts: PromptSet, tolerance: float) -> str:
    """The result of the comparison in words. Raises UnsupportedArchitectureError if backends differ by over `tolerance`."""
    probes, sweep = _probes(lens, prompts)
    expected = lens.run(sweep, probes)
    differ = f"the fused backend's numbers for {fused.model.name} differ from the reference backend's by"
    try:
        found = fused.run(sweep, probes)
    except (UnknownWiringError, DeadHookError) as error:  # the reference backend has just run this sweep
        raise UnsupportedArchitectureError(f"{differ} more than rounding ({error}); use engine=lens") from error
    scale = float(np.abs(expected.logit_diff).max()) or 1.0
    assert found.answer_probability is not None and expected.answer_probability is not None  # the sweep asks for them
    errors = (
        float(np.abs(found.logit_diff - expected.logit_diff).max()) / scale,
        float(np.abs(found.answer_probability - expected.answer_probability).max()),
    )
    if not all(error <= tolerance for error in errors):
        raise UnsupportedArchitectureError(
            f"{differ} {max(errors):.2g} of the largest (at most {tolerance:g} expected), so its blocks are not what they "
            "seem; use engine=lens"
        )
    return f"parity with lens within {tolerance:g}"


def _of_different_lengths(prompts: PromptSet) -> list[int]:
    """Rows of the probes: the longest prompt, the shortest, one of each length between, then the others in order."""
    first = {end: row for row, end in reversed(list(enumerate(prompts.end.tolist())))}
    lengths = sorted(first, reverse=True)
    rows = [first[end] for end in (lengths[0], lengths[-1], *lengths[1:-1])]
    return list(dict.fromkeys([*rows, *range(len(prompts))]))[:PROBES]


def _touch_everything(lens: LensEngine, roles: tuple[str, ...]) -> Iterator[Variant]:
    """Variants for every layer's live sites: denoised at single positions, noised at all, heads zeroed too; and a path to each
    kind of reader."""
    yield Variant("clean")
    yield Variant("corrupted", base="corrupted")
    for layer in range(lens.model.n_layers):
        head = Node("head", layer, layer % lens.model.n_heads)
        for node in (head, *(Node(kind, layer) for kind in ("residual", "attention", "mlp"))):
            if lens.is_alive(node):
                yield denoise([node], f"denoise {node}", (roles[layer % len(roles)],))
                yield noise([node], f"noise {node}")
        if lens.is_alive(head):
            yield Variant(f"zero {layer}", (Intervention((head,), Recipe("zero")),))
    if not lens.is_wired():  # both backends refuse paths then
        return
    from_first_head = [edge for edge in lens.model.graph.edges if edge.writer == Node("head", 0, 0)]
    for kind, edge in {edge.reader.kind: edge for edge in from_first_head}.items():
        yield patch_paths([edge], Recipe("patch", source="corrupted"), f"path to {kind}")
