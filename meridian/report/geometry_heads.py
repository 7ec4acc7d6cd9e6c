"""The table of a trace (180): every head with what it moves, those that were named first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import results_io
from calibrations.number_format import interval_text, three_digits
from meridian.report.browsed_table import BrowsedTable, TableCell
from meridian.report.sources import FieldSource
from result_types import AblatedHeadEffect, GeometryHead, GeometryTraceResult, TracedSet
from suites.geometry import trace

UNNAMED = "–"  # the reading of a head that was not shown to move anything
ORDER = {**{kind: place for place, kind in enumerate(trace.NAMED)}, "": len(trace.NAMED)}
TITLE = "Heads that hold the position"


def table(folder: Path) -> BrowsedTable | None:
    """The heads of every traced set in `folder`, one row a head; None without a result 180."""
    path = results_io.find(folder, trace.NUMBER)
    if path is None:
        return None
    found = cast(GeometryTraceResult, results_io.read(path))
    sets = {name: cast(TracedSet, one) for name, one in found["data"].items() if "heads" in one}
    quantities = tuple(
        dict.fromkeys(e["quantity"] for one in sets.values() for h in one["heads"] for e in h["effects"])
    )
    rows = [
        (head, _row(name, place, head, quantities, path.name))
        for name, one in sets.items()
        for place, head in enumerate(one["heads"])
    ]
    rows.sort(key=lambda pair: (ORDER[pair[0]["kind"]], -max(abs(e["estimate"]) for e in pair[0]["effects"])))
    columns = ("head", "reading", "position", "spread", *map(_title, quantities), "set")
    shown = tuple(row for _, row in rows)
    return BrowsedTable("heads", TITLE, _text(found, sets), columns, shown, ("reading", "position", "spread", "set"))


def _row(name: str, place: int, head: GeometryHead, quantities: tuple[str, ...], file: str) -> tuple[TableCell, ...]:
    at = f"data.{name}.heads[{place}]"
    own = {effect["quantity"]: (k, effect) for k, effect in enumerate(head["effects"])}
    return (
        TableCell(head["head"]),
        TableCell(head["kind"] or UNNAMED),
        TableCell(head["position"]),
        TableCell(head["spread"]),
        *(_effect(own.get(quantity), at, file) for quantity in quantities),
        TableCell(name),
    )


def _effect(found: tuple[int, AblatedHeadEffect] | None, at: str, file: str) -> TableCell:
    if found is None:
        return TableCell("–")
    place, effect = found
    source = FieldSource(file, f"{at}.effects[{place}].estimate", "in brackets: low and high, beside it")
    text = three_digits(effect["estimate"]) + interval_text(effect["low"], effect["high"], three_digits)
    return TableCell(text, effect["estimate"], source)


def _title(quantity: str) -> str:
    return "tau²" if quantity == trace.SPREAD else quantity.replace("_", " ")


def _text(found: GeometryTraceResult, sets: Mapping[str, TracedSet]) -> str:
    """What the numbers are, and which sets and framings have none."""
    settings = found["subject"]["settings"]
    lines = [
        "Result 180: the change of each quantity when one head is replaced by its mean over the neutral wordings, in nats "
        f"(tau²: nats squared), with {settings['level']:.0%} intervals that hold for all heads and quantities at once. A head "
        f"moved the position or the spread if an interval lies beyond {settings['trace_margin']:g} on either side; it stayed if "
        "the narrower intervals for that (inner, in the file) all lie within.",
        "Trait heads move the position and not the spread, method heads the spread and not the position.",
    ]
    for name, one in found["data"].items():
        if name not in sets:
            lines.append(f"{name} was not traced: {one['reason']}." if "reason" in one else f"{name} was not traced.")
        else:
            lines += [f"Of {name}, {what} is left out: {why}." for what, why in sets[name].get("left_out", {}).items()]
    return " ".join(lines)
