"""Identifiers as people read them, for paper: metrics, recipes, roles and positions."""

from __future__ import annotations

import re

METRIC = re.compile(r"\b(P|[A-Z]\d+[a-z]?)\.([a-z]\w*)")  # "P.faithfulness_every_recipe", "C13.measurement_invariance"
JOINT = re.compile(r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])")


def human(text: str) -> str:
    """ "faithfulness every recipe" for "P.faithfulness_every_recipe", "C13 measurement invariance" for its metric, and spaces
    for what joins words. The preconditions have no ID of their own to show."""
    said = METRIC.sub(lambda found: (f"{found[1]} " if found[1] != "P" else "") + found[2], text)
    return JOINT.sub(" ", said)
