"""Heads planted in pocket: one that answers a persona otherwise, one that spreads the wordings, and a sham."""

from __future__ import annotations

from dataclasses import replace

import pytest

from circuits.circuit import Node
from meridian.experiments import geometry_plants as plants
from meridian.experiments.captured_head import Fault
from results_io import UserError
from suites.geometry import construct, coordinates, trace
from suites.models.local import LocalModel

SETTINGS = {"level": 0.95, "margin": 0.3, "resamples": 1000, "seed": 0}
FRAMES = ("w1", "w3", "w5", "w6")  # of which w5 has "park" and w6 "store"


@pytest.fixture(scope="module")
def pocket():
    return LocalModel(plants.POCKET)


@pytest.fixture(scope="module")
def own():
    return construct.load("pocket")


@pytest.fixture(scope="module")
def small(own):
    """Eight constructs of four wordings, with one persona: as little as a trace takes."""
    keep = {*FRAMES, *(f"{plants.PERSONA}_{name}" for name in FRAMES)}
    return [replace(one, variants=tuple(v for v in one.variants if v.id in keep)) for one in own.constructs[:8]]


@pytest.fixture(scope="module")
def space(own):
    return coordinates.declared(own.coordinates, "pocket")


@pytest.fixture(scope="module")
def intact(pocket, small, space):
    return plants.traced(pocket, small, space, SETTINGS)


def kinds(heads):
    return {str(one.head): one.kind for one in heads if one.kind}


@pytest.mark.slow
def test_a_head_that_moves_one_persona_is_a_trait_head_and_no_method_head(pocket, small, space, intact):
    head = Node("head", 0, 5)
    assert kinds(intact) == {}
    heads = plants.traced(plants.with_heads(pocket, plants.persona_head(head), small), small, space, SETTINGS)
    assert str(trace.named(heads, "trait")[0].head) == "L0H5"
    assert kinds(heads) == {"L0H5": "trait"}
    effects = {e.quantity: e for e in trace.named(heads, "trait")[0].effects}
    assert effects["framing teller_glad"].high < -0.7  # without the head the persona moves less
    assert abs(effects["spread"].estimate) < 0.1 and not effects["position good against bad"].moves(0.3)


@pytest.mark.slow
def test_a_head_that_spreads_the_wordings_is_a_method_head_and_no_trait_head(pocket, small, space, intact):
    head = Node("head", 1, 2)
    heads = plants.traced(plants.with_heads(pocket, plants.wording_head(head), small), small, space, SETTINGS)
    first = trace.named(heads, "method")[0]
    assert str(first.head) == "L1H2" and kinds(heads)["L1H2"] == "method"
    assert next(e for e in first.effects if e.quantity == "spread").high < -0.3


@pytest.mark.slow
def test_words_that_no_prompt_contains_name_no_head(pocket, small, space, intact):
    sham = [Fault(Node("head", 0, 5), ("lawyer",), "good")]
    heads = plants.traced(plants.with_heads(pocket, sham, small), small, space, SETTINGS)
    assert set(kinds(heads)) - set(kinds(intact)) == set()


def test_a_trace_is_refused_where_it_has_no_meaning(pocket, small, space):
    scale = coordinates.declared({"kind": "scale", "axes": [{"name": "x", "pattern": "([0-9]+)"}]}, "x")
    with pytest.raises(UserError, match="kind choices, and these are of kind scale"):
        trace.sweep(pocket, small, scale, {})
    heads, before, after = [Node("head", 0, 0)], [{}] * 7, [[{}] * 7]
    with pytest.raises(UserError, match="7 topics"):
        trace.analyse(small[:7], space.names, (heads, before, after), level=0.95, margin=0, resamples=1000, seed=0)
