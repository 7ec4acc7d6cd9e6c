"""Each calibration's measured rates on circuits of known truth, from docs/validation/V1 (verdicts) and V2 (intervals)."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from calibrations.statistics import wilson_interval
from scripts.docs import markdown, source, tiers

FOLDER = source.ROOT / "docs" / "validation"
PRECONDITIONS = "P"  # they have no published rule, so a count of 0 means nothing
DECLARED = {"pass": "must pass", "not_pass": "must not pass"}


@functools.cache
def _data(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))["data"]


def section(identifier: str) -> str:
    """False passes, power and coverage of one calibration."""
    page = "../how-far-can-you-trust-a-certificate.md"
    head = f"## How often it is right\n\nMeasured on planted circuits ([how, and what it does not show]({page})).\n\n"
    return head + rates(identifier) + "\n" + coverage(identifier)


def totals(identifier: str, declared: str, prompts: int, rule: str = "verdict_pass") -> tuple[int, int]:
    """(passes, samples) over all subjects with the declaration `declared`."""
    cells = [c for c in _cells(identifier) if c["expected"] == declared and c["prompts"] == prompts]
    passes = [published(c) if rule == "published_pass" else c[rule] for c in cells]
    return sum(p["count"] for p in passes if p), sum(p["n"] for p in passes if p)


def published(cell: Mapping[str, Any]) -> dict[str, Any] | None:
    """How often the published rule passes, for the record that decides the verdict; None for the preconditions.

    In a row without gating records (C23), the stored cell counts the worst published verdict over all records, although one of
    them has no verdict to compare with. If the tiers ask about a single record, its own count is used, with its Wilson interval.
    """
    metric, stored = tiers.deciding_metric(cell["row"]), cell["published_pass"]
    if cell["row"] == PRECONDITIONS:
        return None
    if metric is None or not stored:
        return stored
    count, verdicts = _data("V1_error_rates.json")["metric_passes"][cell["subject"]][str(cell["prompts"])][metric]
    if count == stored["count"] or verdicts != cell["verdict_pass"]["count"]:
        return stored
    n = stored["n"]
    return {"count": count, "n": n, "rate": count / n, "ci95": wilson_interval(count, n, 0.95)}


def rates(identifier: str) -> str:
    """The share of samples that pass, for every subject with a declaration."""
    cells = _cells(identifier)
    sizes = sorted({cell["prompts"] for cell in cells})
    subjects = sorted({c["subject"] for c in cells if c["expected"] != "free"})
    if not subjects:
        return "No planted subject declares what this calibration must say.\n"
    rows = []
    for subject in subjects:
        by_size = {cell["prompts"]: cell for cell in cells if cell["subject"] == subject}
        shares = [_share(by_size[size]["verdict_pass"]) for size in sizes]
        declared = next(DECLARED[c["expected"]] for c in by_size.values() if c["expected"] != "free")
        rows.append((subject.replace("_", " "), declared, *shares, _share(published(by_size[sizes[-1]]))))
    header = ("subject", "declared", *(f"verdict passes, {n} prompts" for n in sizes), f"published passes, {sizes[-1]}")
    return _summary(identifier, sizes[-1]) + _counted(identifier) + "\n" + markdown.table(header, rows)


def _summary(identifier: str, prompts: int) -> str:
    lines = []
    for declared, name in (("not_pass", "False passes"), ("pass", "Power")):
        count, n = totals(identifier, declared, prompts)
        passed, of = totals(identifier, declared, prompts, "published_pass")
        if n:
            beside = f"; the published threshold {passed} of {of}" if of else ""
            lines.append(f"- {name} at {prompts} prompts: the verdict passes {count} of {n} samples{beside}.")
    return "\n".join(lines) + "\n"


def _counted(identifier: str) -> str:
    """The sentence that names the counted record, if the calibration has several and the tiers ask about one."""
    metric = tiers.deciding_metric(identifier)
    by_size = next(iter(_data("V1_error_rates.json")["metric_passes"].values()))
    several = sum(name.startswith(f"{identifier}.") for name in next(iter(by_size.values()))) > 1
    if metric is None or not several:
        return ""
    return f"\nBoth are counted of {markdown.literal(metric)}, its record that tiers ask about.\n"


def coverage(identifier: str) -> str:
    """Share of nominal 95 % intervals that contain the truth."""
    found = [
        c
        for c in _data("V2_coverage.json")["coverage"]
        if c["metric"].startswith(f"{identifier}.") and c["interval"] == "ci95" and c["share"] is not None
    ]
    sizes = sorted({c["n"] for c in found})
    keys = sorted({(c["metric"], c["heads"]) for c in found})
    share = {(c["metric"], c["heads"], c["n"]): f"{c['share']:.3f}" for c in found}
    rows = [(markdown.literal(m), heads, *(share.get((m, heads, n), "–") for n in sizes)) for m, heads in keys]
    if not rows:
        return ""
    header = ("95 % interval of", "truth", *(f"covers, {n} prompts" for n in sizes))
    return markdown.table(header, rows)


def _cells(identifier: str) -> list[dict[str, Any]]:
    return [cell for cell in _data("V1_error_rates.json")["cells"] if cell["row"] == identifier]


def _share(passes: dict[str, Any] | None) -> str:
    if not passes:
        return "–"
    low, high = (max(0.0, end) for end in passes["ci95"])
    return f"{passes['rate']:.2f} [{low:.2f}, {high:.2f}]"
