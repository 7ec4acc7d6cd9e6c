"""Recipes, variants, sweeps and effects as values."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import jaxtyping
import numpy as np
import pytest

from circuits.circuit import Node, head
from circuits.interventions import Effects, EveryBut, Intervention, Recipe, Sweep, Variant, ablate, denoise, noise
from results_io import UserError


def test_an_unknown_kind_is_named_with_the_known_ones(monkeypatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # else the annotation refuses it first
    with pytest.raises(
        UserError, match=r"'median' is unknown; use one of zero, zero_raw, mean, resample, noise, patch"
    ):
        Recipe("median")


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (Recipe("zero"), "zero, its biases' constant kept"),
        (Recipe("zero_raw"), "zero, its biases' constant removed"),
        (Recipe("mean"), "mean per template and position"),
        (Recipe("mean", pooled=True), "mean over all positions"),
        (Recipe("resample", draw=3), "resample, draw 3"),
        (Recipe("noise", scale=1.5), "replaced by mean plus noise, 1.5 SD, draw 0"),
        (Recipe("noise", additive=True, scale=3.0, draw=2), "added noise, 3 SD, draw 2"),
        (Recipe("patch", source="corrupted"), "patched from the corrupted run"),
    ],
)
def test_a_recipe_says_what_it_does(recipe, text) -> None:
    assert str(recipe) == text


def test_values_are_hashable_and_frozen() -> None:
    assert {Recipe("mean"), Recipe("mean")} == {Recipe("mean")}
    assert len({Recipe("noise", draw=draw) for draw in (0, 1, 1)}) == 2
    with pytest.raises(FrozenInstanceError):
        Recipe("mean").scale = 2.0


def test_the_three_ways_to_name_a_variant() -> None:
    nodes = [head(0, 1), Node("mlp", 1)]
    assert ablate(nodes, Recipe("zero"), "a") == Variant("a", (Intervention(tuple(nodes), Recipe("zero")),), "clean")
    assert ablate([], Recipe("zero"), "a") == Variant("a")
    clean, corrupted = Recipe("patch", source="clean"), Recipe("patch", source="corrupted")
    assert denoise(nodes, "d") == Variant("d", (Intervention(tuple(nodes), clean),), "corrupted")
    assert noise(nodes, "n", ("end",)) == Variant("n", (Intervention(tuple(nodes), corrupted, ("end",)),), "clean")


def test_a_name_that_stands_twice_in_a_sweep_is_refused() -> None:
    with pytest.raises(ValueError, match="variant name 'a' stands twice"):
        Sweep((Variant("a"), Variant("b"), Variant("a", base="corrupted")))


def test_a_sweep_s_identity_changes_with_each_of_its_parts() -> None:
    variants = [
        Variant("a"),
        Variant("a", base="corrupted"),
        ablate([head(0, 1)], Recipe("mean"), "a"),
        ablate([head(0, 2)], Recipe("mean"), "a"),
        ablate([head(0, 1)], Recipe("mean", pooled=True), "a"),
        Variant("a", (Intervention((head(0, 1),), Recipe("mean"), ("end",)),)),
    ]
    digests = [Sweep((variant,)).sha256 for variant in variants]
    assert len(set(digests)) == len(variants)
    assert Sweep((Variant("a"),)).sha256 == digests[0]
    assert len(Sweep((Variant("a"), Variant("b")))) == 2


def test_row_finds_a_variant_by_name() -> None:
    values = np.arange(6.0).reshape(2, 3)
    effects = Effects(("a", "b"), values, values > 2, values, "", "")
    assert effects.row("b").tolist() == [3.0, 4.0, 5.0]


def test_all_positions_but_none_are_refused() -> None:
    with pytest.raises(UserError, match="write positions=None"):
        EveryBut(())
    one, other = (
        Sweep((Variant("a", (Intervention((head(0, 0),), Recipe("zero"), (at,)),)),)) for at in ("s", EveryBut(("s",)))
    )
    assert one.sha256 != other.sha256
