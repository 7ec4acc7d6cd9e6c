"""A10: a right answer turns wrong under padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suites.estimate import Estimate
from suites.modes import flips
from suites.outcome import Case, Detection

ID = "A10"
NAME = "padding"
TITLE = "Padding sensitivity"
TIER = "verified"
TRACEABLE = "partly"
TRACE_NOTE = (
    "A filler that does not break it against one of the same token length that does; otherwise positions are "
    "aligned from the end."
)
PARAMETERS: Mapping[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the original is answered right and this variant of it is not. Variants: white space, line ends or
    filler sentences at declared places.
    """
    return flips.detect(case)


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Flip rate over originals that are right, exact McNemar over all pairs, accuracies, flip rates by kind. Source: spec A10."""
    return flips.summarise(judged)
