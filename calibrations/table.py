"""The certificate as a table in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "inconclusive": "yellow",
    "insufficient": "cyan",
    "not run": "dim",
    "none": "dim",
}
MARKS = {"pass": "pass", "fail": "FAIL", "none": "-"}
REASON_WIDTH = 100
WIDE = 130  # columns that the table needs to hold the reasons as well


def show(certificate: Mapping[str, Any], headline: Mapping[str, str], console: Console, complete: bool = True) -> None:
    """Print the certificate: what it is about, tier and ceiling, a row or more per calibration, what blocks the next tier.

    If not `complete` (some calibrations were not asked for), only their rows, and no tier.
    """
    console.print()
    console.print(Text(f"{'Certificate' if complete else 'Calibrations'}  {headline['subject']}", style="bold"))
    tier = _tier(certificate) if complete else "No certificate: run calibration=all"
    console.print(Text.assemble((tier, "bold"), f"    {headline['data']}"))
    console.print(headline["faithfulness"], highlight=False)
    console.print()
    wide = console.width >= WIDE
    console.print(_rows(certificate, with_reasons=wide))
    if not wide:
        console.print()
        for identifier, reason in _reasons(certificate):
            console.print(f"{identifier:<5}{reason}", highlight=False)
    for line in _blocking(certificate) if complete else ():
        console.print(line, highlight=False)
    if certificate["overrides"]:
        console.print(
            f"Not comparable with other certificates: {', '.join(certificate['overrides'])}", style="bold yellow"
        )


def _tier(certificate: Mapping[str, Any]) -> str:
    if certificate["tier"] is None:
        return f"No tier: {certificate['tier_name']}, so there is nothing that a circuit could explain"
    tier = f"Tier {certificate['tier']} of {certificate['of']}: {certificate['tier_name']}"
    return f"{tier}    reachable with this data: {certificate['ceiling']}"


def _rows(certificate: Mapping[str, Any], with_reasons: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name, width in (("ID", 4), ("calibration", 18), ("published", 10), ("estimate [90 %]", 15), ("verdict", 12)):
        table.add_column(name, no_wrap=True, min_width=width)
    if with_reasons:
        table.add_column("why", overflow="fold", ratio=1)
    for row in _told(certificate):
        for place, record in enumerate(shown := _shown(row)):
            cells = [
                row["id"] if place == 0 else "",
                row["title"] if len(shown) == 1 else _short(record["metric"]),
                published(record),
                estimate(record),
                Text(record["verdict"] + ("" if record["gating"] else " *"), STYLES[record["verdict"]]),
            ]
            table.add_row(*cells, *([_reason(record)] if with_reasons else []))
    table.caption = "* reported, gates no tier"
    table.caption_justify = "left"
    return table


def _told(certificate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The preconditions and the calibrations; of a model that does not do the task, the behaviour alone if no other decides."""
    preconditions, rows = _preconditions(certificate), certificate["rows"]
    if certificate["tier"] is None and all(row["verdict"] in ("insufficient", "not run") for row in rows):
        return [{**preconditions, "records": preconditions["records"][:1]}]
    return [preconditions, *rows]


def _shown(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The records of a calibration that the table shows: the gating ones, or else the one that decided."""
    if not row["records"]:
        return []
    gating = [record for record in row["records"] if record["gating"]]
    return gating or [record for record in row["records"] if record["metric"] == row["decisive"]]


def _preconditions(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """The preconditions as one more row of the table, above the calibrations."""
    return {"id": "P", "title": "preconditions", "records": certificate["preconditions"]}


def _reasons(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(ID, reason) of every shown record that has one: what a narrow terminal prints below the table."""
    rows = _told(certificate)
    return [(row["id"], _reason(r)) for row in rows for r in _shown(row) if r["reasons"]]


def _short(metric: str) -> str:
    return metric.partition(".")[2].replace("_", " ")


def published(record: Mapping[str, Any]) -> str:
    """Published value and verdict, for example "pass 0.02"."""
    value = record["published_value"]
    return MARKS[record["published_verdict"]] + ("" if value is None else f" {number(value)}")


def estimate(record: Mapping[str, Any]) -> str:
    """Estimate with its 90 % interval, as far as there is one."""
    if record["estimate"] is None:
        return "-"
    interval = record["ci90"]
    shown = "" if interval is None else f" [{number(interval[0])}, {number(interval[1])}]"
    return f"{number(record['estimate'])}{shown}"


def number(value: float) -> str:
    """Two decimals, three for what is smaller than a tenth, two digits for what is smaller still."""
    if abs(value) >= 0.1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.2g}"


def _reason(record: Mapping[str, Any]) -> str:
    text = "; ".join(record["reasons"])
    return text if len(text) <= REASON_WIDTH else f"{text[: REASON_WIDTH - 1]}…"


def _blocking(certificate: Mapping[str, Any]) -> list[str]:
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
