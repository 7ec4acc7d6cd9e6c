"""Heads planted in pocket: one that answers a persona otherwise, one that spreads the wordings, and a sham."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import results_io
from circuits.circuit import Node
from meridian.experiments import geometry_plants as plants
from meridian.experiments.captured_head import Fault
from results_io import UserError
from suites.geometry import construct, coordinates, measure, trace
from suites.models.local import LocalModel

SETTINGS = {"level": 0.95, "margin": 0.1, "resamples": 2000, "seed": 0}  # as geometry.trace=true


@pytest.fixture(scope="module")
def pocket():
    return LocalModel(plants.POCKET)


@pytest.fixture(scope="module")
def own():
    return construct.load("pocket")


@pytest.fixture(scope="module")
def small(own):
    """The shipped constructs with all wordings and one persona."""
    return [
        replace(one, variants=(*one.of("paraphrase"), *one.of("persona", persona=plants.PERSONA)))
        for one in own.constructs
    ]


@pytest.fixture(scope="module")
def space(own):
    return coordinates.declared(own.coordinates, "pocket")


@pytest.fixture(scope="module")
def intact(pocket, small, space):
    return plants.traced(pocket, small, space, SETTINGS).heads


def kinds(heads):
    return {str(one.head): one.kind for one in heads if one.kind}


def effects(**found):
    """Effects by quantity: (estimate, low, high), with the same interval for both uses."""
    return [trace.Effect(name.replace("_", " "), *ends, ends[1:]) for name, ends in found.items()]


@pytest.mark.parametrize(
    ("position", "spread", "kind"),
    [
        ((0.3, 0.2, 0.4), (0.0, -0.05, 0.05), "trait"),
        ((0.3, 0.2, 0.4), (0.3, 0.2, 0.4), "both"),  # a rise of tau^2 counted for nothing: trait
        ((0.3, 0.2, 0.4), (0.07, 0.02, 0.12), "undecided"),  # not shown to stay: trait
        ((0.0, -0.05, 0.05), (0.3, 0.2, 0.4), "method"),  # no kind
        ((0.0, -0.05, 0.05), (-0.3, -0.4, -0.2), "method"),
        ((0.0, -0.2, 0.2), (-0.3, -0.4, -0.2), "undecided"),  # method
        ((0.0, -0.2, 0.2), (0.0, -0.2, 0.2), ""),
        ((0.0, -0.05, 0.05), (0.0, -0.05, 0.05), ""),
    ],
)
def test_a_head_is_of_a_kind_only_if_the_other_quantity_is_shown_to_stay(position, spread, kind):
    own = effects(position_x=(0.0, -0.01, 0.01), position_y=position, spread=spread)
    assert trace.read_head(Node("head", 0, 0), own, 0.1).kind == kind


def test_a_framing_that_grows_without_a_head_is_moved_and_names_are_in_order():
    heads = [
        trace.read_head(Node("head", 0, k), effects(spread=(0, -0.01, 0.01), framing_cook=(m, m - 0.1, m + 0.1)), 0.1)
        for k, m in enumerate((0.3, 0.9, 0.05))
    ]
    assert [str(one.head) for one in trace.named(heads, "trait")] == ["L0H1", "L0H0"] and heads[
        2
    ].position == trace.OPEN


@pytest.mark.slow
def test_a_head_that_moves_one_persona_is_a_trait_head_and_no_method_head(pocket, small, space, intact):
    head = Node("head", 1, 2)
    assert set(kinds(intact).values()) == {"undecided"}
    planted = plants.with_heads(pocket, plants.persona_head(head, answer="bad"), small)
    heads = plants.traced(planted, small, space, SETTINGS).heads
    first = trace.named(heads, "trait")[0]
    assert str(first.head) == "L1H2" and (first.position, first.spread) == ("moved", "stayed")
    found = {e.quantity: e for e in first.effects}
    assert found["framing teller_glad"].high < -0.7  # without the head the persona moves less
    assert found["spread"].low > -0.1 and found["spread"].high < 0.1


@pytest.mark.slow
def test_a_head_that_spreads_the_wordings_is_a_method_head_and_no_trait_head(pocket, small, space, intact):
    faults = plants.wording_head(Node("head", 3, 3), ("Today", "Yesterday"))
    faults = plants.fitted(pocket, faults, small, space, 1.5)
    heads = plants.traced(plants.with_heads(pocket, faults, small), small, space, SETTINGS).heads
    first = trace.named(heads, "method")[0]
    assert str(first.head) == "L3H3" and (first.position, first.spread) == ("stayed", "moved")
    assert next(e for e in first.effects if e.quantity == "spread").high < -0.2


def test_a_fault_is_fitted_to_the_nats_that_its_answers_move(pocket, small, space):
    fault = Fault(Node("head", 3, 1), ("Today",), "good")
    readings = {3: None}  # of the intact model alone
    (found,) = plants.fitted(pocket, [fault], small, space, 1.5, readings)
    assert found == replace(fault, push=found.push)

    def today(push):
        model = plants.with_heads(pocket, [replace(fault, push=push)], small, readings)
        own = [replace(one, variants=tuple(v for v in one.of("paraphrase") if "Today" in v.prompt)) for one in small]
        return sum(float(one.means(one.construct.variants)[0, 0]) for one in plants.read(model, own, space)) / len(own)

    assert today(found.push) - today(plants.NOTHING) == pytest.approx(1.5, abs=0.05)
    with pytest.raises(UserError, match="no wording has one of hotel; choose words of the wordings"):
        plants.fitted(pocket, [replace(fault, words=("hotel",))], small, space, 1.5)


@pytest.mark.slow
def test_a_sham_stays_silent_while_a_head_below_it_is_ablated(pocket, small, space):
    """It wrote its answer where L0H1 was ablated, so that the trace named L0H1 for the sham: the answers moved by .42."""
    sham = plants.with_heads(pocket, plants.wording_head(Node("head", 1, 1), ("Monday", "castle")), small)
    below = [Node("head", 0, k) for k in (1, 2)]

    def answers(model, hooks):
        with model.silenced(hooks):
            return np.concatenate([one.means(list(one.construct.variants)) for one in plants.read(model, small, space)])

    pairs = zip(*(trace.single_ablations(model, small, below) for model in (pocket, sham)), strict=True)
    for plain, planted in pairs:
        assert np.abs((answers(sham, planted) - answers(pocket, plain)).mean(0)).max() < 0.05


@pytest.mark.slow
def test_words_that_no_prompt_contains_name_no_head(pocket, small, space, intact):
    sham = [Fault(Node("head", 1, 5), ("hotel",), "good")]
    heads = plants.traced(plants.with_heads(pocket, sham, small), small, space, SETTINGS).heads
    assert kinds(heads) == kinds(intact)


def test_further_heads_are_counted_beside_a_planted_one_that_is_right():
    def head(k, spread):
        own = effects(position_x=(0.0, -0.05, 0.05), spread=(-spread, -spread - 0.05, -spread + 0.05))
        return trace.read_head(Node("head", 1, k), own, 0.1)

    heads = [head(2, 0.9), head(3, 0.3), head(4, 0.0), head(5, 0.5)]
    before = [head(2, 0.0), head(3, 0.0), head(4, 0.0), head(5, 0.5)]
    found = plants._judged("wording", Node("head", 1, 2), heads, before)
    assert found == {"kind": "method", "further": {"L1H3": "method"}, "right": True}
    assert plants._judged("wording", Node("head", 1, 3), heads, before)["right"] is False  # not the first


def test_a_sham_is_right_if_every_named_head_is_named_the_same_in_the_model_as_it_is():
    def head(k, low, high):
        own = effects(position_x=(0.0, -0.05, 0.05), spread=((low + high) / 2, low, high))
        return trace.read_head(Node("head", 0, k), own, 0.1)

    moved, stays, margin = (0.3, 0.4), (-0.05, 0.05), (0.05, 0.15)
    node, before = Node("head", 0, 0), [head(0, *stays), head(1, *moved), head(2, *margin)]
    assert plants._judged("sham", node, before, before) == {"kind": "", "further": {}, "right": True}
    found = plants._judged("sham", node, [head(0, *moved), *before[1:]], before)
    assert found == {"kind": "method", "further": {"L0H0": "method"}, "right": False}
    own = effects(position_x=(0.3, 0.2, 0.4), spread=(0.1, 0.0, 0.2))
    undecided = trace.read_head(Node("head", 0, 0), own, 0.1)
    found = plants._judged("sham", node, [undecided, *before[1:]], before)
    assert found == {"kind": "undecided", "further": {"L0H0": "undecided"}, "right": False}  # was right
    found = plants._judged("sham", node, [*before[:2], head(2, *moved)], before)
    assert found == {"kind": "", "further": {"L0H2": "method"}, "right": False}


def test_only_a_head_that_moves_more_or_less_than_in_the_other_model_moves_otherwise():
    """A head on the margin is named in one model and not in the other, by a hair; it does the same in both."""
    rng, nodes = np.random.default_rng(0), [Node("head", 0, k) for k in range(3)]
    shared = rng.normal(size=(24, 6)) * 0.05
    shared[:, 2] += 0.13
    heads = [trace.TracedHead(node, (), trace.OPEN, trace.OPEN) for node in nodes]
    before = plants.Trace(heads, shared)
    same, moved = shared + rng.normal(size=(24, 6)) * 0.01, shared.copy()
    moved[:, 5] += 0.4
    moved[:, 0] -= 0.2
    assert plants.otherwise(plants.Trace(heads, same), before, SETTINGS) == []
    assert plants.otherwise(plants.Trace(heads, moved), before, SETTINGS) == ["L0H2", "L0H0"]


def test_a_framing_that_one_construct_lacks_is_named_with_the_reason(space, tmp_path, monkeypatch):
    """It was traced in no construct, and nothing said so."""

    def told(k):
        personas = ["cook", "sailor", "still"] if k else ["sailor", "still"]
        variants = [construct.ConstructVariant("w1", "paraphrase", "a", wording="w1")]
        variants += [construct.ConstructVariant(p, "persona", f"{p} a", wording="w1", persona=p) for p in personas]
        return construct.Construct(f"q{k}", "1.0.0", "q", f"t{k}", "semantic", tuple(variants))

    own = [told(k) for k in range(8)]
    intact = [{v.id: np.array([1.0, 0.0]) * (v.id in ("cook", "sailor")) for v in one.variants} for one in own]
    swept = ([Node("head", 0, 0)], intact, [intact])
    monkeypatch.setattr(trace, "LocalModel", lambda settings: None)
    monkeypatch.setattr(trace, "sweep", lambda *_: swept)
    made = construct.ConstructSet("mine", tmp_path, tuple(own), {"kind": "choices"})
    measured = tuple(measure.MeasuredConstruct(one, {}) for one in own)
    run = measure.GeometryRun(
        "m", {}, 0, (measure.SetRun(made, space, {}, measured, True),), 0, 0, tmp_path / "generations.jsonl"
    )
    settings = {"level": 0.95, "trace_margin": 0.1, "trace_resamples": 999}
    lines = trace.command({"kind": "pocket"}, run, tmp_path, settings, 0)
    data = results_io.read(tmp_path / "180_trace.json")["data"]["mine"]
    assert data["left_out"] == {
        "framing cook": "1 of 8 constructs do not ask it before a neutral wording: q0",
        "framing still": "it moves nothing on average in the intact model, so that it has no direction",
    }
    traced = {effect["quantity"] for effect in data["heads"][0]["effects"]}
    assert "framing sailor" in traced and not traced & set(data["left_out"])
    assert lines[-1].startswith("Trace of mine: framing cook is left out, 1 of 8 constructs")


def test_a_trace_is_refused_where_it_has_no_meaning(pocket, small, space):
    scale = coordinates.declared({"kind": "scale", "axes": [{"name": "x", "pattern": "([0-9]+)"}]}, "x")
    with pytest.raises(UserError, match="kind choices, and these are of kind scale"):
        trace.sweep(pocket, small, scale, {})
    heads, before, after = [Node("head", 0, 0)], [{}] * 7, [[{}] * 7]
    with pytest.raises(UserError, match="7 topics"):
        trace.analyse(small[:7], space.names, (heads, before, after), level=0.95, margin=0, resamples=1000, seed=0)
