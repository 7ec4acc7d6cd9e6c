"""Precision and recall of every method on circuits that are known: the table of docs/real-models.md.

The table is of 40 prompts; these are 8, which give the same cells.
"""

from __future__ import annotations

import pytest

from circuits import models, planted, tasks
from circuits import study as studies
from circuits.circuit import Node
from circuits.discovery import METHODS, curve
from circuits.discovery.nested import Nested
from circuits.discovery.stopping import Stopping
from meridian import overrides
from tests.circuits import toy

pytestmark = pytest.mark.slow

SIZES = {"evaluation": 1, "held_out": 1, "discovery": 8, "reference": 120}
VARIANTS = ("sound", "backup", "negative_head")
SEARCHES = ("ACDC-greedy", "AtP", "NAP-IG", "GIM", "EAP-IG", "EAP-GIM")
EXPECTED = {  # method: by variant, heads found, true heads among them, heads that are missed
    **{name: [(7, 7, ""), (7, 7, "L3H4"), (8, 8, "")] for name in SEARCHES},
    "classifier": [(21, 7, ""), (15, 8, ""), (22, 8, "")],
}
DOCUMENTED = {  # the table: precision, recall
    **{name: [(1, 1), (1, 0.88), (1, 1)] for name in SEARCHES},
    "classifier": [(0.33, 1), (0.53, 1), (0.36, 1)],
}


@pytest.fixture(scope="module")
def settings() -> dict:
    return overrides.group("measurement", "all")


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_cell_of_the_table(variant, settings) -> None:
    model = models.load(
        {"name": f"planted/{variant}", "kind": "planted", "variant": variant, "seed": 0, "device": "cpu"}
    )
    study = studies.prepare(model, tasks.get("ioi"), SIZES, 0, toy.ENGINE, settings=settings)
    truth, place = set(planted.truth(variant).heads), VARIANTS.index(variant)
    for method in METHODS:
        found = chosen(study, method)
        hits = set(found) & truth
        missed = " ".join(str(node) for node in sorted(truth - hits))
        assert (len(found), len(hits), missed) == EXPECTED[method][place], method
        rounded = (round(len(hits) / len(found), 2), round(len(hits) / len(truth), 2))
        assert rounded == DOCUMENTED[method][place], method


def chosen(study: studies.Study, method: str) -> tuple[Node, ...]:
    """The heads of the circuit that a search chooses, without the curve and the resamples that it adds."""
    own, prompts = study.settings["discovery"], study.discovery
    nested = Nested(study, prompts, METHODS[method].rank(study, prompts))
    size = Stopping(nested, own).ending(curve.sizes(nested.total, own["shares"])).size
    return nested.ranking.heads(nested.ranking.members(nested.order[:size]))
