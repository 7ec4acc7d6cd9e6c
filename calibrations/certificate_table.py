"""The certificate as a table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrations.certificate_row import CertificateRow, MetricRow, rows_of
from calibrations.certificate_tier import tier_text
from calibrations.rules import Standing

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "inconclusive": "yellow",
    "insufficient": "cyan",
    "not run": "dim",
    "none": "dim",
}
REASON_WIDTH = 100
WIDE = 130  # columns that the table needs to hold the reasons as well


def show(certificate: Mapping[str, Any], headline: Mapping[str, str], console: Console, complete: bool = True) -> None:
    """Print the certificate: what it is about, tier and ceiling, a row or more per calibration, what blocks the next tier.

    If not `complete` (some calibrations were not asked for), only their rows, and no tier.
    """
    console.print()
    console.print(Text(f"{'Certificate' if complete else 'Calibrations'}  {headline['subject']}", style="bold"))
    tier = tier_sentence(certificate) if complete else "No certificate: run calibration=all"
    console.print(Text.assemble((tier, "bold"), f"    {headline['data']}"))
    console.print(headline["faithfulness"], highlight=False)
    for place, line in enumerate(Standing.read(certificate).lines):
        console.print(Text(("  " if place else "") + line, style="bold yellow" if place else ""))
    console.print()
    wide = console.width >= WIDE
    console.print(_rows(certificate, with_reasons=wide))
    if not wide:
        console.print()
        for row in _told(certificate):
            for metric in row.shown:
                if metric.reasons:
                    console.print(f"{row.id:<5}{_reason(metric)}", highlight=False)
    for line in blocking_lines(certificate) if complete else ():
        console.print(line, highlight=False)


def tier_sentence(certificate: Mapping[str, Any]) -> str:
    """The tier that was reached and the one that the data could reach."""
    if certificate["tier"] is None:
        return f"{tier_text(certificate)}, so there is nothing that a circuit could explain"
    return f"{tier_text(certificate)}    reachable with this data: {certificate['ceiling']}"


def _rows(certificate: Mapping[str, Any], with_reasons: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name, width in (("ID", 4), ("calibration", 18), ("published", 10), ("estimate [90 %]", 15), ("verdict", 12)):
        table.add_column(name, no_wrap=True, min_width=width)
    if with_reasons:
        table.add_column("why", overflow="fold", ratio=1)
    for row in _told(certificate):
        for place, metric in enumerate(row.shown):
            cells = [
                row.id if place == 0 else "",
                row.title if len(row.shown) == 1 else metric.metric.partition(".")[2].replace("_", " "),
                metric.published_text,
                metric.estimate_text,
                Text(metric.verdict + ("" if metric.gating else " *"), STYLES[metric.verdict]),
            ]
            table.add_row(*cells, *([_reason(metric)] if with_reasons else []))
    table.caption = "* reported, gates no tier"
    table.caption_justify = "left"
    return table


def _told(certificate: Mapping[str, Any]) -> list[CertificateRow]:
    """The rows; of a model that does not do the task, the behaviour alone if no calibration decides."""
    preconditions, *others = rows_of(certificate)
    if certificate["tier"] is None and all(row.verdict in ("insufficient", "not run") for row in others):
        return [replace(preconditions, metrics=preconditions.metrics[:1])]
    return [preconditions, *others]


def _reason(metric: MetricRow) -> str:
    return metric.why if len(metric.why) <= REASON_WIDTH else f"{metric.why[: REASON_WIDTH - 1]}…"


def blocking_lines(certificate: Mapping[str, Any]) -> list[str]:
    """What keeps each tier from being reached (nothing of the kind without a behaviour), and what failed in any case."""
    lines = []
    for level, gates in sorted(certificate["blocking"].items(), key=lambda item: int(item[0])):
        if gates and certificate["tier"] is not None:
            names = ", ".join(_blocked(gate) for gate in gates if gate["split"] == "evaluation")
            again = sum(gate["split"] == "held_out" for gate in gates)
            held_out = f"{'; ' if names else ''}{again} gates not reproduced on held-out prompts" if again else ""
            lines.append(f"Blocks tier {level}: {names}{held_out}")
    warned = [gate["metric"] for gate in certificate["warnings"]]
    if warned:
        lines.append(f"Failed, whatever the tier: {', '.join(warned)}")
    return lines


def _blocked(gate: Mapping[str, Any]) -> str:
    needs = f": needs {gate['needs']}" if gate["needs"] and gate["verdict"] != "fail" else ""
    reason = gate["reason"].partition(":")[0] if gate["verdict"] == "insufficient" else ""
    return f"{gate['metric']} ({gate['verdict']}{' ' + reason if reason else ''}{needs})"
