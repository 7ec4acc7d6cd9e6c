"""The certificate in the terminal: a table of verdicts, what the claim leaves out, what blocks the next tier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrations.certificate_row import CertificateRow, rows_of
from calibrations.number_format import number
from calibrations.rules import Standing
from calibrations.tier_words import tier_text
from calibrations.worst_groups import GroupCompleteness, LeftOutGroup, WorstGroups

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "inconclusive": "yellow",
    "insufficient": "cyan",
    "not run": "dim",
    "none": "dim",
}
WIDE = 130  # columns that the table needs to hold the reasons as well
GROUPS_SHOWN = 3  # of each kind; the report has them all
Group = TypeVar("Group", GroupCompleteness, LeftOutGroup)


def show(certificate: Mapping[str, Any], headline: Mapping[str, str], console: Console, complete: bool = True) -> None:
    """Print the certificate: what it is about, tier and ceiling, one or more rows per calibration, what blocks the next tier.

    If not `complete` (only some calibrations were asked for), print their rows and no tier.
    """
    console.print()
    console.print(Text(f"{'Certificate' if complete else 'Calibrations'}  {headline['subject']}", style="bold"))
    tier = tier_sentence(certificate) if complete else "No certificate: run calibration=all"
    console.print(Text(tier, style="bold"))
    if complete and certificate["tier"] is not None:
        console.print(f"Reachable with this data: tier {certificate['ceiling']}", highlight=False)
    for name in ("scope", "data", "faithfulness", "outside"):
        if headline.get(name):
            console.print(headline[name], highlight=False)
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
                    console.print(f"{row.id:<5}{metric.why}", highlight=False)
    for title, table, note in group_tables(WorstGroups.read(certificate)) if complete else ():
        console.print(f"\n{title}", highlight=False)
        console.print(table)
        if note:
            console.print(note, highlight=False)
    for line in blocking_lines(certificate) if complete else ():
        console.print(line, highlight=False)


def tier_sentence(certificate: Mapping[str, Any]) -> str:
    """The tier that was reached, on a line of its own so that its long name is not broken."""
    if certificate["tier"] is None:
        return f"{tier_text(certificate)}, so there is nothing that a circuit could explain"
    return tier_text(certificate)


def group_tables(found: WorstGroups) -> list[tuple[str, Table, str]]:
    """The worst groups of claimed heads and of heads outside: title, table, and a note below it."""
    tables = []
    if found.claimed:
        rows = [
            (
                group.heads_text,
                group.recipe_text,
                *map(number, (group.lost_by_circuit, group.lost_by_model)),
                group.incompleteness_text,
                number(group.published_score),
            )
            for group in _worst(found.claimed, "heads")
        ]
        heads = ("claimed heads", "recipe", "circuit", "model", "inc [90 %]", "Wang")
        title = f"What circuit and model lose without some claimed heads ({_shares(found)})"
        tables.append((title, _plain(heads, rows), found.template_text))
    if found.outside:
        rows = [
            (group.heads_text, group.side_text, group.recipe_text, group.share_text)
            for group in _worst(found.outside, "heads", "side")
        ]
        heads = ("outside heads", "silenced or added", "recipe", "share [90 %]")
        tables.append((f"What heads outside the claim change ({_shares(found)})", _plain(heads, rows), ""))
    return tables


def _worst(groups: Iterable[Group], *told: str) -> list[Group]:
    """The first `groups`, each set of heads only under its worst recipe; the attributes `told` tell sets apart."""
    first: dict[Any, Group] = {}
    for group in groups:
        first.setdefault(tuple(getattr(group, name) for name in told), group)
    return list(first.values())[:GROUPS_SHOWN]


def _shares(found: WorstGroups) -> str:
    """The normaliser of the shares, under each recipe that the tables show."""
    shown = {group.recipe for group in (*_worst(found.claimed, "heads"), *_worst(found.outside, "heads", "side"))}
    sizes = [
        f"{number(n)} under {recipe.replace('_', ' ')}"
        for recipe, n in (found.normalisers or {}).items()
        if recipe in shown
    ]
    return f"shares of N = {', '.join(sizes)}" if sizes else "shares of N"


def _plain(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose first column wraps in a narrow terminal; the others do not."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for place, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=place > 0)
    for row in rows:
        table.add_row(*row)
    return table


def _rows(certificate: Mapping[str, Any], with_reasons: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for name, width in (("ID", 4), ("calibration", 18), ("published", 10), ("estimate [90 %]", 15), ("verdict", 12)):
        table.add_column(
            name, no_wrap=name != "calibration", min_width=width
        )  # a narrow terminal wraps titles and cuts nothing
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
            table.add_row(*cells, *([metric.why] if with_reasons else []))
    table.caption = "* reported, gates no tier"
    table.caption_justify = "left"
    return table


def _told(certificate: Mapping[str, Any]) -> list[CertificateRow]:
    """The rows; if the model does not do the task and no calibration decides, only that of the behaviour."""
    preconditions, *others = rows_of(certificate)
    if certificate["tier"] is None and all(row.verdict in ("insufficient", "not run") for row in others):
        return [replace(preconditions, metrics=preconditions.metrics[:1])]
    return [preconditions, *others]


def blocking_lines(certificate: Mapping[str, Any]) -> list[str]:
    """What keeps each tier from being reached (omitted without a behaviour), and what failed in any case."""
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
    needs = f": needs {gate['needs']}" if gate["needs"] else ""
    code, _, detail = gate["reason"].partition(":") if gate["verdict"] == "insufficient" else ("", "", "")
    if code.replace("_", " ") == "follows from":  # the code alone would not say from what
        code = f"it follows from{detail}"
    return f"{gate['metric']} ({gate['verdict']}{', ' + code if code else ''}{needs})"
