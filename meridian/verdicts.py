"""The certificate as tables: what a notebook shows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from calibrations import certificate
from calibrations.table import estimate, published
from meridian.figures import colours

COLUMNS = ("title", "published", "published_verdict", "estimate", "low", "high", "verdict", "gating", "why")
BLOCKING = ("tier", "metric", "verdict", "reason", "needs", "split")


Rows = Sequence[Mapping[str, Any]]


def rows(documents: Mapping[str, Mapping[str, Any] | None]) -> Rows:
    """The rows that a certificate would have on these calibrations, by ID; None: not run."""
    return [certificate._row(identifier, document, {}) for identifier, document in documents.items()]


def table(rows: Rows) -> pd.DataFrame:
    """One row for each calibration, by ID: the record that decided its verdict.

    `published` value and verdict, `estimate` with its 90 % interval (`low`, `high`), `verdict`, whether it gates a tier, why.
    """
    values = {row["id"]: _row(row) for row in rows}
    return pd.DataFrame.from_dict(values, orient="index", columns=list(COLUMNS)).rename_axis("id")


def decisive(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The record that a calibration's verdict is; None if it was not run."""
    return next((record for record in row["records"] if record["metric"] == row["decisive"]), None)


def _row(row: Mapping[str, Any]) -> list[Any]:
    record = decisive(row)
    if record is None:
        return [row["title"], None, None, None, None, None, row["verdict"], False, ""]
    low, high = record["ci90"] or (None, None)
    values = (record["published_value"], record["published_verdict"], record["estimate"], low, high)
    return [row["title"], *values, row["verdict"], row["gating"], "; ".join(record["reasons"])]


def blocking(folded: Mapping[str, Any]) -> pd.DataFrame:
    """Gates of the next tier that are not passed, one row each; none at the highest tier."""
    levels = sorted(map(int, folded["blocking"]))
    gates = folded["blocking"][str(levels[0])] if levels else []
    rows = [{"tier": levels[0], **{name: gate[name] for name in BLOCKING[1:]}} for gate in gates]
    return pd.DataFrame(rows, columns=list(BLOCKING))


def sentence(folded: Mapping[str, Any]) -> str:
    """The tier in words."""
    if folded["tier"] is None:
        return f"No tier: {folded['tier_name']}"
    return f"Tier {folded['tier']} of {folded['of']}: {folded['tier_name']}"


def html(folded: Mapping[str, Any]) -> str:
    """Tier, what blocks the next one, and a row for each calibration, as HTML."""
    headline, gates = folded["headline"], blocking(folded)
    blocked = "; ".join(f"{gate.metric} ({gate.verdict})" for gate in gates.itertuples())
    lines = [
        f"<p><strong>{escape(sentence(folded))}</strong>"
        + (f"<br>Blocks tier {gates.tier.iloc[0]}: {escape(blocked)}" if len(gates) else "")
        + f"<br>{escape(headline['subject'])}<br>{escape(headline['data'])}</p>",
        html_table(folded["rows"]),
    ]
    return "\n".join(lines)


def html_table(rows: Rows) -> str:
    """The calibrations that were run, a row each, as HTML."""
    names = ("ID", "calibration", "published", "estimate [90 %]", "verdict", "why")
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "\n".join(_html_row(row) for row in rows if row["records"])
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _html_row(row: Mapping[str, Any]) -> str:
    record = decisive(row)
    shown = ("", "", "") if record is None else (published(record), estimate(record), "; ".join(record["reasons"]))
    before, number, why = map(escape, shown)
    verdict = row["verdict"]
    colour = colours.VERDICTS.get(verdict, colours.INK)
    mark = f'<span style="color:{colour}">{colours.MARKS.get(verdict, "")}</span> {escape(verdict)}'
    left = ' style="text-align:left"'
    return (
        f"<tr><td{left}>{escape(row['id'])}</td><td{left}>{escape(row['title'])}</td><td{left}>{before}</td>"
        f"<td{left}>{number}</td><td{left}>{mark}</td><td{left}>{why}</td></tr>"
    )
