"""A comparison as tables in the terminal.

Names of models, circuits and metrics are printed as rich's Text and never as str, which rich would read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrations.certificate_table import STYLES
from calibrations.number_format import number, rounded
from meridian.run_comparison import GAINED, LOST, RunComparison
from meridian.run_differences import LEVEL, HeadDifferences, NoDifference
from shown_text import WIDTH

MARKS = {GAINED: "green", LOST: "bold red"}
MOST_HEADS = 8  # heads shown for one effect


def show(found: RunComparison, console: Console) -> None:
    """Print the sentence, both subjects, the differences, the changed verdicts, the heads and the notes."""
    put = partial(console.print, width=min(console.width, WIDTH))
    put()
    put(Text(found.sentence(), style="bold"))
    for side, subject in zip("ab", found.subjects, strict=True):
        put(Text(f"{side}  {subject['task']} on {subject['model']}, circuit {subject['circuit']}"))
    if found.quantities:
        put(_quantities(found))
    put(_verdicts(found))
    for effect in found.heads:
        if effect.differs.any():
            put(_heads(effect))
    _circuits(found, put)
    for note in found.notes():
        put(Text(note, style="yellow"))


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(
        title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold", padding=(0, 1)
    )
    for place, name in enumerate(columns):
        table.add_column(Text(name), overflow="fold", no_wrap=place == 0)
    return table


def _quantities(found: RunComparison) -> Table:
    how = "paired by prompt" if found.paired else "unpaired"
    table = _table(f"Differences, {how}", ("quantity", "a", "b", f"b - a [{100 * LEVEL:g} %]", "unit"))
    for one in found.quantities:
        if isinstance(one, NoDifference):
            table.add_row(Text(one.quantity), "-", "-", "-", Text(one.reason))
        else:
            style = "bold" if one.low > 0 or one.high < 0 else ""
            change = Text(_signed(one.difference, one.low, one.high), style)
            table.add_row(Text(one.quantity), number(one.a), number(one.b), change, Text(one.unit))
    return table


def _signed(value: float, low: float, high: float) -> str:
    """The value with its sign and its interval, three decimals, never -0.000."""
    value, low, high = (rounded(float(one), 3) for one in (value, low, high))
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def _verdicts(found: RunComparison) -> Table:
    """Metrics whose verdict changed; * marks those that gate no tier."""
    table = _table(
        "Verdicts that changed (* gates no tier)", ("metric", "a", "b", "change", "estimate a", "estimate b")
    )
    for one in (verdict for verdict in found.verdicts if verdict["change"]):
        shown = ["-" if value is None else number(value) for value in one["estimate"]]
        name = Text(one["metric"] + ("" if one["gating"] else " *"))
        verdicts = [Text(verdict, STYLES[verdict]) for verdict in one["verdict"]]
        table.add_row(name, *verdicts, Text(one["change"], MARKS.get(one["change"], "")), *shown)
    if not table.row_count:
        table.add_row("none", "", "", "", "", "")
    return table


def _heads(effect: HeadDifferences) -> Table:
    """The heads with the largest differences among those whose interval excludes 0."""
    change, differ = effect.b - effect.a, int(effect.differs.sum())
    title = f"{effect.quantity[0].upper()}{effect.quantity[1:]}: {differ} of {len(effect.heads)} heads differ ({effect.unit})"
    table = _table(title, ("head", "a", "b", f"b - a [{100 * LEVEL:g} %, all heads together]"))
    order = sorted(effect.differs.nonzero()[0].tolist(), key=lambda i: -abs(change[i]))
    for i in order[:MOST_HEADS]:
        layer, head = effect.heads[i]
        interval = _signed(change[i], effect.low[i], effect.high[i])
        table.add_row(f"L{layer}H{head}", number(effect.a[i]), number(effect.b[i]), interval)
    return table


def _circuits(found: RunComparison, put: Callable[..., None]) -> None:
    circuits = found.circuits
    if circuits["jaccard"] is None:
        return
    put(
        Text(
            f"Circuits share {len(circuits['shared'])} heads; {circuits['shared_by_chance']:.1f} by chance in the same "
            f"layers, p = {circuits['p']:.2g}"
        )
    )
    for side in ("only_a", "only_b"):
        names = " ".join(f"L{layer}H{head}" for layer, head in circuits[side]) or "none"
        put(Text(f"{side.replace('_', ' ')}: {names}"))
