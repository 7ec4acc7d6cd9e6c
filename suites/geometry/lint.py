"""Lint: reports what makes a set of constructs unmeasurable, when it is frozen and before anything is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from results_io import UserError
from suites import schema
from suites.geometry import construct, coordinates, coverage, fixed_scale
from suites.geometry.construct import Construct, ConstructSet
from suites.geometry.coordinates import Coordinates
from suites.geometry.metric import LARGEST


def check(own: ConstructSet, space: Coordinates) -> None:
    """UserError for a scale or reference that does not fit the coordinates' axes, a huge reference, and overlapping regions."""
    axes = len(space.axes) or None
    fixed_scale.check(own.scale, axes, schema.shown_path(own.folder / construct.REFERENCE))
    for one in own.constructs:
        if one.reference is not None and axes is not None and len(one.reference) != axes:
            raise UserError(
                f"{own.name}/{one.id}: the reference has {len(one.reference)} numbers and the coordinates {axes} axes; "
                "give one each"
            )
        if one.reference is not None and max(map(abs, one.reference)) > LARGEST:
            raise UserError(
                f"{own.name}/{one.id}: a reference of {max(map(abs, one.reference)):g}; expected at most {LARGEST:g}"
            )
        if one.regions is not None and one.mode_of_output == construct.SEMANTIC:
            regions(one, space, own.scale)


def frozen(own: ConstructSet) -> None:
    """`check` at freezing, unless the coordinates need an embedder that is not installed; these are checked when measured."""
    if own.coordinates.get("kind") not in coordinates.EMBEDDED or coordinates.embedding.embedder() is not None:
        check(own, coordinates.declared(own.coordinates, f"{own.name}/{construct.REFERENCE}"))


def regions(one: Construct, space: Coordinates, scale: Mapping[str, Any]) -> tuple[coverage.Ball, coverage.Ball]:
    """The balls of both sides. UserError for fewer than 10 readable anchors, and for balls that overlap."""
    anchors = anchors_of(one, space, scale)
    try:
        first, second = coverage.region(anchors["a"]), coverage.region(anchors["b"])
    except UserError as error:
        raise UserError(f"{one.id}: {error}") from None
    coverage.require_apart(first, second, one.id)
    return first, second


def anchors_of(
    one: Construct, space: Coordinates, scale: Mapping[str, Any]
) -> dict[str, Float[np.ndarray, "anchor axis"]]:
    """Coordinates of the readable anchor texts of both sides. UserError for kind "choices", which locates prompts, not texts."""
    if space.exact:
        raise UserError(
            f"{one.id}: regions are made of anchor texts, which coordinates of kind choices cannot place; declare another kind"
        )
    found = {side: space.of_texts(list(texts)) for side, texts in (one.regions or {}).items()}
    return {side: fixed_scale.apply(table[np.isfinite(table).all(1)], scale) for side, table in found.items()}
