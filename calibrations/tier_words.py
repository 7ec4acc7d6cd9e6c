"""The tier of a certificate in words. A tier has its name only under the released rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibrations.rules import Standing


def tier_name(certificate: Mapping[str, Any]) -> str:
    """The tier's name, "under changed rules" if it was not reached under released rules, or why there is no tier.

    "under unknown rules" if the certificate (or its entry in summary.json) does not record its rules.
    """
    if "rules" in certificate or certificate["tier"] is None:
        return certificate["tier_name"]
    return under(Standing())


def tier_text(certificate: Mapping[str, Any]) -> str:
    """ "Tier 4 of 4: certified", "Tier 4 of 4 under changed rules", or "No tier: the behaviour is absent"."""
    name = tier_name(certificate)
    if certificate["tier"] is None:
        return f"No tier: {name}"
    tier = f"Tier {certificate['tier']} of {certificate['of']}"
    return f"{tier}: {name}" if Standing.read(certificate).released else f"{tier} {name}"


def under(standing: Standing) -> str:
    """The words in place of a tier's name: "under changed rules"."""
    return f"under {'changed' if standing.version else 'unknown'} rules"
