"""How far a mode's heuristic can be trusted: its accuracy on its golden set, and rates corrected for its errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from suites.estimate import Estimate
from suites.outcome import Case, Detection
from suites.statistics import detection

MEASURED = Path(__file__).parent.parent / "golden" / "measured.json"  # written by `python -m suites.golden`
SETS: Mapping[str, str] = {
    "A5": "contradiction",
    "A6": "citation",
    "A7": "statistic",
    "A8": "abstention",
    "A15": "refusal",
    "A16": "confidence",
    "S1": "refusal",
    "S2": "refusal",
}
TARGET_F1 = detection.TARGET_F1  # least F1 on the golden set for a gate to rest on the heuristic


def known(name: str) -> dict[str, Any] | None:
    """What measured.json holds for a golden set; None for a set that was never measured."""
    return json.loads(MEASURED.read_text(encoding="utf-8")).get(name) if MEASURED.exists() else None


def distrust(mode: str, judged: Sequence[tuple[Case, Detection]]) -> str | None:
    """Why no gate may rest on these cases' verdicts: a heuristic decided some of them and misses its target on the golden set.

    None if every verdict is verified, or if the heuristic reaches its target on the test half.
    """
    decided = sum(seen.failed is not None and seen.tier == "heuristic" for _, seen in judged)
    if not decided:
        return None
    measured = known(SETS[mode]) if mode in SETS else None
    if measured is None:
        return f"heuristic below its target: {decided} verdicts, and it was measured on no golden set"
    if measured["target_reached"]:
        return None
    f1 = measured["test"]["f1"]["value"]
    return f"heuristic below its target: {decided} verdicts, F1 {f1:.2f} on its golden set, {TARGET_F1:g} is needed"


def corrected(rate: Estimate, sensitivity: Mapping[str, float], specificity: Mapping[str, float]) -> Estimate:
    """`rate` corrected for the detector's errors (Rogan & Gladen 1978), from its recorded `sensitivity` and `specificity`.

    Each is {value, low, high}. The correction treats them as known exactly, so their intervals are given in `detail`.
    """
    found = detection.rogan_gladen(rate, sensitivity["value"], specificity["value"])
    if found.value is None:
        return found
    intervals = {"sensitivity_interval": dict(sensitivity), "specificity_interval": dict(specificity)}
    return replace(found, detail={**found.detail, **intervals})
