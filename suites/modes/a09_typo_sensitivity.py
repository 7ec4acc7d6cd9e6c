"""A9: a right answer turns wrong under a typing error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suites.estimate import Estimate
from suites.modes import flips
from suites.outcome import Case, Detection

ID = "A9"
NAME = "typo_sensitivity"
TITLE = "Typo sensitivity"
TIER = "verified"
TRACEABLE = "yes"
TRACE_NOTE = "The original against a slip with as many tokens: the right answer against the emitted one."
PARAMETERS: Mapping[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the original is answered right and this variant of it is not. Variants: slips of typing (swapped,
    dropped, doubled or neighbouring letters) outside the protected spans.
    """
    return flips.detect(case)


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Flip rate over originals that are right, exact McNemar over all pairs, accuracies, flip rates by kind. Source: spec A9."""
    return flips.summarise(judged)
