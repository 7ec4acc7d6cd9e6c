"""What each tier of a certificate requires of a calibration, from configs/certificate/tiers.yaml."""

from __future__ import annotations

import functools
from typing import Any

import yaml

from scripts.docs import source

ASKED = {"all": "must pass", "any": "one of these must pass", "not_fail": "must not fail"}
ASKED_HELD_OUT = {"except": "not asked on held-out prompts", "not_fail": "must not fail on held-out prompts"}


@functools.cache
def read() -> dict[str, Any]:
    return yaml.safe_load((source.ROOT / "configs" / "certificate" / "tiers.yaml").read_text(encoding="utf-8"))


def gates(identifier: str) -> list[tuple[int, str, str]]:
    """(tier, metric, what the tier requires of it) for every gate that is a record of this calibration."""
    return [
        (tier, metric, meaning)
        for tier, asked in read()["tiers"].items()
        for kinds, meanings in ((asked, ASKED), (asked.get("held_out", {}), ASKED_HELD_OUT))
        for kind, meaning in meanings.items()
        for metric in kinds.get(kind, ())
        if metric.startswith(f"{identifier}.")
    ]


def deciding_metric(identifier: str) -> str | None:
    """The only record of a calibration that gates a tier; None if several or none do."""
    asked = {metric for _, metric, _ in gates(identifier)}
    return asked.pop() if len(asked) == 1 else None
