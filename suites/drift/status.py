"""169 status: the status of each metric on a snapshot, derived from the rows of its manifest alone.

No setting can override it: a metric without a row is off, whatever the configuration says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suites.drift import centroid, change_points, hedging, held_out_gap, length, refusal, silent_update, stance

NUMBER, NAME, TITLE = "169", "status", "Status"
METRICS = (refusal, hedging, length, centroid, stance, silent_update, change_points, held_out_gap)
LIVE, QUIET, GATED, OFF = "live", "live (no flags)", "data-gated", "off"
NOT_APPLICABLE, GAP, FAILED, INSUFFICIENT = "not_applicable", "gap", "failed", "insufficient"
FROM_REASON = {"error": FAILED, "not_applicable": NOT_APPLICABLE, "undefined": INSUFFICIENT, "gap": GAP}


def table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """One line per metric: number, name, status and a note."""
    return [
        {"metric": metric.NUMBER, "name": metric.TITLE, **_of([row for row in rows if row["metric"] == metric.NUMBER])}
        for metric in METRICS
    ]


def _of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The best status among a metric's rows; rows about single prompts do not count."""
    rows = [row for row in rows if row["level"] not in ("prompt", "overlap")]
    if not rows:
        return {"status": OFF, "note": "no row in this manifest"}
    good = [row for row in rows if row["status"] == "ok"]
    if good:
        flags = [row for row in good if row.get("flag")]
        where = ", ".join(sorted({str(row["axis"]) for row in flags if row["axis"]}))
        failed = sorted({str(row["axis"]) for row in rows if row["status"] == "error" and row["axis"]})
        lost = f"; failed on {', '.join(failed)}" if failed else ""
        if flags:
            return {"status": LIVE, "note": f"flags: {where or len(flags)}{lost}"}
        asked = [row for row in rows if row["status"] != NOT_APPLICABLE]
        return {"status": QUIET, "note": f"{len(good)} of {len(asked)} rows with a value{lost}"}
    gated = [row for row in rows if "have" in row["detail"]]
    if gated:
        have = max(gated, key=lambda row: row["detail"]["have"])["detail"]
        return {"status": GATED, "note": f"{have['have']} of {have['need']} {have.get('what', 'snapshots')}"}
    first = rows[0]
    return {"status": FROM_REASON.get(first["status"], INSUFFICIENT), "note": first["reason"]}
