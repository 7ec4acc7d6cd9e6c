"""The tables of a trace (180): every head with its reading, and every effect of every head, those that were named first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
HEADS = ("head", "reading", "position", "spread", "largest change", "tau²", "set")
EFFECTS = ("head", "reading", "quantity", "change", "narrower interval, for no change", "set")
Placed = tuple[str, int, GeometryHead]  # (set, index in its heads, head)


def tables(folder: Path) -> tuple[BrowsedTable, ...]:
    """The heads of every traced set in `folder`, a row each, and their effects, a row each; none without result 180."""
    path = results_io.find(folder, trace.NUMBER)
    if path is None:
        return ()
    found = cast(GeometryTraceResult, results_io.read(path))
    sets = {name: cast(TracedSet, one) for name, one in found["data"].items() if "heads" in one}
    placed = [(name, place, head) for name, one in sets.items() for place, head in enumerate(one["heads"])]
    placed.sort(key=lambda one: (ORDER[one[2]["kind"]], -_size(one[2]["effects"])))
    heads = tuple(_head(one, path.name) for one in placed)
    effects = tuple(row for one in placed for row in _effects(one, path.name))
    level = _setting(found, "level")
    components = (
        f"Every quantity of every head: the change with the interval that holds for all at once{level and f' at {level}'}, and "
        "the narrower one by which a head is shown to leave something alone."
    )
    return (
        BrowsedTable("heads", "Heads that hold the position", _text(found, sets), HEADS, heads, HEADS[1:4]),
        BrowsedTable("effects", "What each head moves", components, EFFECTS, effects, ("reading", "quantity", "set")),
    )


def _head(one: Placed, file: str) -> tuple[TableCell, ...]:
    name, _, head = one
    spread = [effect for effect in head["effects"] if effect["quantity"] == trace.SPREAD]
    others = [effect for effect in head["effects"] if effect["quantity"] != trace.SPREAD]
    return (
        TableCell(head["head"]),
        TableCell(head["kind"] or UNNAMED),
        TableCell(head["position"]),
        TableCell(head["spread"]),
        _largest(one, others, file),
        _largest(one, spread, file),
        TableCell(name),
    )


def _largest(one: Placed, effects: list[AblatedHeadEffect], file: str) -> TableCell:
    """The largest of some changes, with its name unless it is tau²; a dash if there is none."""
    if not effects:
        return TableCell("–")
    found = max(effects, key=lambda effect: abs(effect["estimate"]))
    return _change(one, found, file, "" if found["quantity"] == trace.SPREAD else _title(found["quantity"]))


def _effects(one: Placed, file: str) -> Iterator[tuple[TableCell, ...]]:
    name, _, head = one
    for effect in head["effects"]:
        inner = effect.get("inner")
        yield (
            TableCell(head["head"]),
            TableCell(head["kind"] or UNNAMED),
            TableCell(_title(effect["quantity"])),
            _change(one, effect, file),
            TableCell("–" if inner is None else interval_text(inner[0], inner[1], three_digits).strip()),
            TableCell(name),
        )


def _change(one: Placed, effect: AblatedHeadEffect, file: str, note: str = "") -> TableCell:
    name, place, head = one
    field = f"data.{name}.heads[{place}].effects[{head['effects'].index(effect)}].estimate"
    text = three_digits(effect["estimate"]) + interval_text(effect["low"], effect["high"], three_digits)
    return TableCell(text, effect["estimate"], FieldSource(file, field, "in brackets: low and high, beside it"), note)


def _size(effects: list[AblatedHeadEffect]) -> float:
    return max(abs(effect["estimate"]) for effect in effects)


def _title(quantity: str) -> str:
    return "tau²" if quantity == trace.SPREAD else quantity.replace("_", " ")


def _setting(found: GeometryTraceResult, name: str) -> str:
    """A number of the trace's settings as text; empty in a result that does not record it."""
    value = found["subject"]["settings"].get(name)
    return f"{value:g}" if isinstance(value, int | float) else ""


def _text(found: GeometryTraceResult, sets: Mapping[str, TracedSet]) -> str:
    """What the numbers are, and which sets and framings have none."""
    margin = _setting(found, "trace_margin")
    lines = [
        "Result 180: the change when one head is replaced by its mean over the neutral wordings, in nats (tau²: nats squared), "
        "divided by the scale of a set that fixes one. A "
        f"head moved the position or the spread if an interval lies beyond {margin or 'the margin'} on either side, and it "
        "stayed if the narrower intervals all lie within; else it is open. The largest change is of position or framing.",
        "Trait heads move the position and not the spread, method heads the spread and not the position.",
    ]
    for name, one in found["data"].items():
        if name not in sets:
            lines.append(f"{name} was not traced: {one['reason']}." if "reason" in one else f"{name} was not traced.")
        else:
            lines += [f"Of {name}, {what} is left out: {why}." for what, why in sets[name].get("left_out", {}).items()]
    return " ".join(lines)
