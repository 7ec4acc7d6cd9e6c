"""Detectors: properties of an answer that can be seen without knowing the right one, for the deployed model and the candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from suites import abstention

CUT = "length"  # `finish` of a generation that reached its token limit
Detector = Callable[[str], bool]
DETECTORS: Mapping[str, Detector] = {
    "refusal": lambda text: abstention.refused(text) is not None,
    "abstention": lambda text: abstention.abstained(text) is not None,
    "empty": lambda text: not text.strip(),
}
SETS: Mapping[str, str] = {"refusal": "refusal", "abstention": "abstention"}  # golden sets of the heuristic detectors


def detected(text: str) -> dict[str, bool]:
    """Whether each detector fires on an answer."""
    return {name: detector(text) for name, detector in DETECTORS.items()}
