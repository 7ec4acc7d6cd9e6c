"""Identifiers in readable form: metrics, recipes, roles and positions."""

from __future__ import annotations

import re

METRIC = re.compile(r"\b(P|[A-Z]\d+[a-z]?)\.([a-z]\w*)")  # "P.faithfulness_every_recipe", "C13.measurement_invariance"
WRITTEN = {"kendalls w": "Kendall's W", "d prime": "d'"}  # names of statistics that are more than their words
STATISTIC = re.compile(rf"\b({'|'.join(WRITTEN)})\b")
JOINT = re.compile(r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])")
JOINED = re.compile(
    r"(?<![\w.=])[A-Za-z]+\d*(?:_[A-Za-z0-9]+)+(?![\w.=])"
)  # a whole word that is no part of a setting or file name


def human(text: str) -> str:
    """An identifier in words, with spaces for underscores and the like.

    "P.faithfulness_every_recipe" becomes "faithfulness every recipe", as the preconditions have no ID to show;
    "C13.measurement_invariance" becomes "C13 measurement invariance", "F59.kendalls_w" becomes "F59 Kendall's W".
    """
    said = METRIC.sub(lambda found: (f"{found[1]} " if found[1] != "P" else "") + found[2], text)
    return _written(JOINT.sub(" ", said))


def in_sentence(text: str) -> str:
    """A sentence with its identifiers in words: "greater than" for "greater_than", "P completeness" for "P.completeness".

    Settings (calibration.c13.min_prompts=90) and file names stay as they are, because readers may type them.
    """
    said = METRIC.sub(lambda found: f"{found[1]} {found[2].replace('_', ' ')}", text)
    return _written(JOINED.sub(lambda found: found[0].replace("_", " "), said))


def _written(text: str) -> str:
    return STATISTIC.sub(lambda found: WRITTEN[found[0]], text)
