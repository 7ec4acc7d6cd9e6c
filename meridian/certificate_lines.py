"""The certificate in the terminal: tier, one sentence, faithfulness by recipe, verdicts, what to do next and where it is.

`verbose=true` shows the whole table of `calibrations.certificate_table` in its place.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrations import certificate_table
from calibrations.certificate_row import MetricRow, calibrations_of
from calibrations.certificate_table import STYLES
from calibrations.number_format import number
from calibrations.rules import Standing
from meridian import worst_recipe
from meridian.figures.names import human
from meridian.report import first_screen
from meridian.report.certificate_section import words
from meridian.run_folder import RunFolder
from shown_text import WIDTH

FAITHFULNESS = "Faithfulness"
NAME, GAP = len(FAITHFULNESS), 2  # columns of the longest name of a line, and between a name and its text
SHORT = {
    "mean_pooled": "mean pooled",
    "zero_raw": "zero without constants",
}  # short names of recipes; the others keep their own
COPIED = ("Next", "Report")  # lines that a reader copies, which are never broken
STAR, FOOTNOTE = " *", "* reported"  # the mark of a verdict that gates no tier, and the start of its footnote


def show(run: RunFolder, console: Console, again: str, details: Sequence[tuple[str, str]] = ()) -> None:
    """Print the certificate of `run` in lines of at most `WIDTH` columns, but a command and a path in one line each.

    `again`: the command for the suggested next step; empty if there is none. `details`: further lines, as (name, text).
    """
    stored, headline = run.certificate, run.certificate["headline"]
    width = min(console.width, WIDTH)
    console.print()
    console.print(_rows([("Certificate", Text(headline["subject"], style="bold"))]), width=width)
    console.print(Text(certificate_table.tier_sentence(stored), style="bold"), width=width)
    told = [*_lines(run), *([("Next", again)] if again else []), *details]
    for name, text in told:
        if name in COPIED and cell_len(str(text)) > width - NAME - GAP:
            line = Text.assemble((name.ljust(NAME + GAP), "dim"), text)
            console.print(line, soft_wrap=True, highlight=False)
        else:
            console.print(_rows([(name, text)]), width=width, highlight=False)


def _rows(told: Iterable[tuple[str, str | Text]]) -> Table:
    """Names on the left and their texts on the right; long texts are wrapped."""
    rows = Table.grid(padding=(0, GAP, 0, 0))
    rows.add_column(no_wrap=True, min_width=NAME)
    rows.add_column(overflow="fold")
    for name, text in told:
        rows.add_row(Text(name, style="dim"), text if isinstance(text, Text) else Text(text))
    return rows


def _lines(run: RunFolder) -> Iterable[tuple[str, str | Text]]:
    yield "Data", run.certificate["headline"]["data"]
    yield "Why", _why(run)
    if told := faithfulness(run) or run.certificate["headline"]["faithfulness"].partition("\n")[0].removeprefix(
        FAITHFULNESS
    ):
        yield FAITHFULNESS, told.strip()
    yield "Verdicts", verdicts(run.certificate)
    if not (rules := run.rules).released:
        yield "Rules", changed(rules)


def _why(run: RunFolder) -> str:
    """The one-sentence summary. Without a tier, the reason and its number follow."""
    said = first_screen.why(run, rest="")
    reason = run.rows[0].metrics[0].why if run.tier is None else ""
    return f"{said} {reason}" if reason else said


def faithfulness(run: RunFolder) -> str:
    """Faithfulness under every recipe, the band required by its gate, and the faithfulness of random circuits (mean ablation).

    The recipes are in the headline's order: the primary one, then those that are always run.
    Empty if no recipe has a faithfulness; the headline then says what is known.
    """
    found = run.companions(first_screen.FAITHFUL).get("by_method", {})
    order = worst_recipe.in_order(run) if found else ()
    told = [
        f"{number(found[recipe]['faithfulness'])} {SHORT.get(recipe, recipe)}"
        for recipe in order
        if "faithfulness" in found.get(recipe, {})
    ]
    low, high = (run.settings[f"faithfulness_{end}"] for end in ("low", "high"))
    null = run.companions("P.random_circuits")
    random = (
        f"; random circuits {number(null['random_median'])}, at most {number(null['random_maximum'])}"
        if "random_maximum" in null
        else ""
    )
    return f"{' · '.join(told)}; asked for: {low:g} to {high:g}{random}" if told else ""


def verdicts(certificate: Mapping[str, Any]) -> Text:
    """How many calibrations have each verdict: "9 pass · 4 fail · 3 inconclusive of 16 calibrations"."""
    rows = calibrations_of(certificate)
    counts = Counter(row.verdict for row in rows)
    told = [Text(f"{counts[verdict]} {verdict}", style) for verdict, style in STYLES.items() if counts[verdict]]
    return Text(" · ").join(told) + Text(f" of {len(rows)} calibrations")


def changed(rules: Standing) -> str:
    """What differs from the released rules, in one line."""
    first, *others = rules.lines
    more = f" and {len(others) - 1} more; verbose=true lists them" if len(others) > 1 else ""
    return first.removeprefix("rules: ") + (f": {others[0].strip()}{more}" if others else "")


def show_table(
    run: RunFolder, certificate: Mapping[str, Any], headline: Mapping[str, str], console: Console, complete: bool
) -> None:
    """Print the whole table in lines of at most `WIDTH` columns; its note about stars is left out if no verdict has one."""
    width = min(console.width, WIDTH)
    colours: Any = console.color_system  # a name of one, which rich takes in a narrower type than it gives
    drawn = Console(width=width, file=io.StringIO(), force_terminal=console.is_terminal, color_system=colours)
    with drawn.capture() as printed:
        certificate_table.show(in_words(run, certificate), headline, drawn, complete)
    lines = printed.get().splitlines(keepends=True)
    if not any(STAR in line and FOOTNOTE not in line for line in lines):
        lines = [line for line in lines if FOOTNOTE not in line]
    console.print(Text.from_ansi("".join(lines)), soft_wrap=True)


def in_words(run: RunFolder, certificate: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate as a table shows it: reasons in words, and beside a verdict on several recipes the worst one's number."""
    blocking = {
        level: [{**gate, "reason": words(gate["reason"])} for gate in gates]
        for level, gates in certificate["blocking"].items()
    }
    rows = [
        {**row, "records": _in_words(run, row["records"])}
        | ({"decisive": _written(row["decisive"])} if row.get("decisive") else {})
        for row in certificate["rows"]
    ]
    return {
        **certificate,
        "preconditions": _in_words(run, certificate["preconditions"]),
        "rows": rows,
        "blocking": blocking,
    }


def _in_words(run: RunFolder, records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    shown = (worst_recipe.named(run, MetricRow.read(record)) for record in records)
    return [
        asdict(replace(metric, metric=_written(metric.metric), reasons=tuple(map(words, metric.reasons))))
        for metric in shown
    ]


def _written(metric: str) -> str:
    """F59.kendalls_w as "F59.Kendall's W"."""
    identifier, _, name = metric.partition(".")
    return f"{identifier}.{human(name)}"
