"""E1b: does faithfulness depend on how the other heads are ablated (zero, mean, noise)?

It is M98's question with noise in place of resampling, reported as 1 - divergence. The two count as one criterion.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.m98_ablation_invariance import decide, published_divergence
from calibrations.record import Published, Record, judge

ID = "E1b"
NUMBER = "E1b"
NAME = "method_invariance"
TITLE = "method invariance"
INPUTS = ("01", "20")
NODES = "Counted in full: every recipe replaces the MLPs and positions outside the claim, too."


def calibrate(evidence: Evidence, config: Mapping[str, Any]) -> list[Record]:
    """E1b.method_invariance: 1 - largest difference of faithfulness between zero, mean and noise ablation.

    Published: above 0.8. Verdict: as M98, two one-sided tests of every paired difference against 0.20.
    """
    rule = f"1 - largest difference above {1 - config['max_divergence']:g}"
    return [
        judge(
            "E1b.method_invariance",
            lambda: _published(evidence, config, rule),
            lambda: _decide(evidence, config),
            rule=rule,
            n=preconditions.sizes(evidence, methods=len(config["methods"])),
        )
    ]


def _published(evidence: Evidence, config: Mapping[str, Any], rule: str) -> Published:
    value = published_divergence(evidence, config)
    return Published(1 - value, rule, "pass" if value < config["max_divergence"] else "fail")


def _decide(evidence: Evidence, config: Mapping[str, Any]) -> dict[str, Any]:
    found = decide(evidence, config)
    turned = {name: (1 - found[name][1], 1 - found[name][0]) for name in ("ci90", "ci95")}
    companions = {name: value for name, value in found["companions"].items() if name != "knockouts"}
    return {**found, **turned, "estimate": 1 - found["estimate"], "companions": companions}
