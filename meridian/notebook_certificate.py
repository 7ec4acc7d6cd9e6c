"""The certificate in a notebook: data frames, and HTML with a row for each calibration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import pandas as pd

from calibrations.certificate_row import CertificateRow, MetricRow, calibrations_of
from calibrations.rules import Standing
from calibrations.tier_words import tier_text
from meridian.figures import colours

# pandas leaves out the middle of a frame that is wider than the console
COLUMNS = ("verdict", "estimate", "title", "why", "published_verdict", "low", "high")
BLOCKING = ("tier", "metric", "verdict", "reason", "needs", "split")


def frame(rows: Iterable[CertificateRow]) -> pd.DataFrame:
    """One row for each calibration by ID: verdict, estimate with its 90 % interval (`low`, `high`), published verdict, reason.

    The numbers are those of the metric that decided the verdict.
    """
    values = {}
    for row in rows:
        estimate, low, high, published = _numbers(row.decided_by)
        values[row.id] = [row.verdict, estimate, row.title, _why(row), published, low, high]
    return pd.DataFrame.from_dict(values, orient="index", columns=list(COLUMNS)).rename_axis("id")


def _numbers(metric: MetricRow | None) -> tuple[Any, ...]:
    if metric is None:
        return None, None, None, None
    return metric.estimate, *metric.interval, metric.published_verdict


def _why(row: CertificateRow) -> str:
    return row.decided_by.why if row.decided_by else ""


def blocking(certificate: Mapping[str, Any]) -> pd.DataFrame:
    """The gates of the next tier that are not passed, one row each; empty at the highest tier."""
    levels = sorted(map(int, certificate["blocking"]))
    gates = certificate["blocking"][str(levels[0])] if levels else []
    rows = [{"tier": levels[0], **{name: gate[name] for name in BLOCKING[1:]}} for gate in gates]
    return pd.DataFrame(rows, columns=list(BLOCKING))


def html(certificate: Mapping[str, Any]) -> str:
    """Tier, rules, what blocks the next tier, and a row for each calibration, as HTML."""
    headline, gates = certificate["headline"], blocking(certificate).to_dict("records")
    lines = [f"<strong>{escape(tier_text(certificate))}</strong>", *map(escape, Standing.read(certificate).lines)]
    if gates:
        blocked = "; ".join(f"{gate['metric']} ({gate['verdict']})" for gate in gates)
        lines.append(f"Blocks tier {gates[0]['tier']}: {escape(blocked)}")
    lines += [
        escape(headline["subject"]),
        escape(headline.get("scope", "")),
        escape(headline["data"]),
        *map(escape, headline["faithfulness"].splitlines()),
    ]
    return f"<p>{'<br>'.join(lines)}</p>\n{html_table(calibrations_of(certificate))}"


def html_table(rows: Iterable[CertificateRow]) -> str:
    """The calibrations that were run as HTML, one row each."""
    names = ("ID", "calibration", "published", "estimate [90 %]", "verdict", "why")
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "\n".join(_html_row(row) for row in rows if row.metrics)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _html_row(row: CertificateRow) -> str:
    metric, colour = row.decided_by, colours.VERDICTS.get(row.verdict, colours.INK)
    numbers = (metric.published_text, metric.estimate_text) if metric else ("", "")
    mark = f'<span style="color:{colour}">{colours.MARKS.get(row.verdict, "")}</span> {escape(row.verdict)}'
    cells = (*map(escape, (row.id, row.title, *numbers)), mark, escape(_why(row)))
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"
