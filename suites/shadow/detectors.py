"""Detectors: what can be seen in an answer without knowing the right one, the deployed model's and the candidate's alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from suites import abstention

CUT = "length"  # how a generation ends that met its limit of tokens
Detector = Callable[[str], bool]
DETECTORS: Mapping[str, Detector] = {
    "refusal": lambda text: abstention.refused(text) is not None,
    "abstention": lambda text: abstention.abstained(text) is not None,
    "empty": lambda text: not text.strip(),
}
SETS: Mapping[str, str] = {"refusal": "refusal", "abstention": "abstention"}  # golden sets of those that are heuristics


def detected(text: str) -> dict[str, bool]:
    """What each detector says of an answer."""
    return {name: detector(text) for name, detector in DETECTORS.items()}
