"""Cells of geometry's validation and what its tables make of them: true widths, issues that share topics, heads of layer 0."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from circuits.circuit import Node
from meridian import overrides
from meridian.experiments import geometry_cells, geometry_plants, validate_geometry
from meridian.experiments.captured_head import Fault
from suites.geometry import construct, trace
from suites.models.local import LocalModel

SETTINGS = overrides.group("experiment", "validate_geometry")


def test_the_true_width_is_that_of_independent_pairs():
    """It was the width of one sample of 1,500 points: 2.131, where normal pairs have sqrt(2 log 10)."""
    assert geometry_cells.true_width("normal") == pytest.approx((2 * np.log(10)) ** 0.5, abs=0.003)
    # at a share of pairs within topics, whose distances are smaller by the root of two
    shares = 7 / 159, 152 / 159
    mixed = geometry_cells.true_width("normal", shares[0])
    beyond = shares[0] * np.exp(-(mixed**2)) + shares[1] * np.exp(-(mixed**2) / 2)
    assert beyond == pytest.approx(0.1, abs=5e-4)


def test_the_width_of_a_set_has_cells_of_its_own_and_its_interval_holds():
    """The interval over topics is the only one of OW that a set of eight wordings a construct has, and no cell measured it."""
    cells = geometry_cells.conditions({**SETTINGS, "only": ["ow_topics"]})
    assert [(cell["noise"], cell["topics"]) for cell in cells] == [
        ("normal", 20),
        ("normal", 40),
        ("t3", 20),
        ("t3", 40),
    ]
    found = geometry_cells.measured(cells[0], {**SETTINGS, "repetitions": 200})
    assert 0.9 < found["coverage"]["share"] < 0.98 and found["estimate"] == pytest.approx(found["truth"], rel=0.02)


def test_issues_that_share_topics_have_a_row_of_their_own():
    """Both were one row of 40 issues, with the numbers of whichever came last."""
    share = {"low": 0.0, "high": 1.0, "n": 500}
    rows = [
        {"metric": "ps", "issues": 40, "cluster": cluster, "effect": effect, "rejected": {**share, "share": found}}
        for cluster, at in ((1, (0.05, 0.97)), (2, (0.06, 0.85)))
        for effect, found in zip((0.0, 0.5), at, strict=True)
    ]
    lines = validate_geometry.power_table(rows).splitlines()[2:]
    assert lines == ["| ps | 40 issues | – | 0.05 | 0.97 |", "| ps, 2 a topic | 40 issues | – | 0.06 | 0.85 |"]


def test_a_head_of_layer_0_has_no_head_below_it_to_ablate():
    """torch.cat of nothing was a RuntimeError."""
    model, constructs = LocalModel(geometry_plants.POCKET), construct.load("pocket").constructs[:1]
    assert geometry_plants.ablated_readings(model, constructs, [0]) == {0: None}
    planted = geometry_plants.with_heads(model, [Fault(Node("head", 0, 1), ("Today",), "good")], constructs)
    assert planted.model is not model.model


def test_a_head_that_does_the_same_in_both_models_moves_nothing_otherwise():
    """By each model's own directions, L0H4 of pocket was one of a persona plant's; it differs by .09 along the same ones."""
    own = [
        replace(one, variants=one.of("paraphrase") + one.of("persona")) for one in construct.load("pocket").constructs
    ]

    def moved(tables, by):
        return [
            {v.id: table[v.id] + (by if v.persona == "teller_glad" else 0.0) for v in one.variants}
            for one, table in zip(own, tables, strict=True)
        ]

    def traced(intact, by):
        node = Node("head", 0, 0)
        swept = [node], intact, [moved(intact, np.array(by))]
        heads = [trace.TracedHead(node, (), trace.OPEN, trace.OPEN)]
        return geometry_plants.Trace(heads, trace.changes(own, ("x", "y"), swept), swept)

    still = [{v.id: np.zeros(2) for v in one.variants} for one in own]
    before, planted = moved(still, np.array([0.0, 1.0])), moved(still, np.array([5.0, 0.0]))
    first, same, more = traced(before, (0.3, 0.0)), traced(planted, (0.3, 0.0)), traced(planted, (0.5, 0.0))
    settings = SETTINGS["heads"]
    assert geometry_plants.otherwise(same, first, settings) == ["L0H0"]  # by .3, of two quantities
    assert geometry_plants.otherwise(*geometry_plants.compared(same, first, own, ("x", "y")), settings) == []
    assert geometry_plants.otherwise(*geometry_plants.compared(more, first, own, ("x", "y")), settings) == ["L0H0"]
