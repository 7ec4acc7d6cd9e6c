"""The results on contamination in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shown_text import WIDTH, name_lines
from suites.contamination import canary, overlap, passages
from suites.contamination.results import Probed, Searched
from suites.judging.summary import say, shown, table

NAME_WIDTH = 16  # columns of a suite's name, which leaves room for the numbers
SHOWN = 3  # places printed per suite; the result has all
NO_RUN = "the model has no finished run of this suite, so accuracies cannot be compared; run it: python run.py"


def show_searched(found: Sequence[Searched], console: Console, chosen: str = "") -> None:
    """One row per suite: flagged items, near duplicates, accuracies; below it, the places of the first flagged items.

    `chosen`: the settings of suite and model as typed, for the command that runs the suites.
    """
    accuracy = ("accuracy\nclean", "accuracy\nin corpus", "difference")
    rows = _table("items", "in the corpus [95 %]", "nearly", *accuracy)
    for one in found:
        accuracies = ["-"] * 3
        if one.accuracy is not None:
            own = one.accuracy
            accuracies = [shown(own.clean, False), shown(own.dirty, False), shown(own.difference)]
        near, name = str(len(one.near.items)), name_lines(one.suite.id, NAME_WIDTH)
        rows.add_row(name, str(len(one.suite.items)), shown(one.overlap.flagged), near, *accuracies)
    first = found[0].overlap
    console.print()
    console.print(Text(f"Corpus of {first.documents:,} documents, {first.corpus_tokens:,} tokens", "bold"))
    console.print(rows, width=min(console.width, WIDTH))
    for one in found:
        for file in one.canary_in:
            say(console, f"{one.suite.id}: {file} holds the suite's canary, so it was made from the suite itself")
        flagged = [item for item in one.overlap.items if item.place is not None]
        for item in flagged[:SHOWN]:
            place = item.place
            assert place is not None
            where = place.file if place.record is None else f"{place.file}, line {place.record}"
            say(console, f"{one.suite.id} {item.item}: {where}, after {place.offset} tokens: {item.gram}")
        if len(flagged) > SHOWN:
            runs = len({item.gram for item in flagged})
            have = "each have a run of words of their own"
            if runs < len(flagged):
                have = "share one run of words" if runs == 1 else f"share {runs} different runs of words"
            say(console, f"{one.suite.id}: {len(flagged) - SHOWN} more in result 191; the {len(flagged)} items {have}")
        if one.scored is None and one.overlap.flagged.value:
            say(console, f"{one.suite.id}: {NO_RUN}{chosen}")
    limit = passages.threshold()
    embedded = found[0].near.embedded
    compared = (
        f", or cosine of the embedder from {overlap.COSINE:.2f} on" if embedded else "; no embedder compared them"
    )
    say(console, f"nearly: Jaccard index of 5-token shingles from {limit.value:.2f} on{compared}")
    say(console, "An overlap shows that the text could have been learnt, not that it was")


def show_probed(found: Sequence[Probed], console: Console) -> None:
    """One row per suite: the loss gap with its comparisons, and the canary's exposure, each with its p below."""
    compared = ("beyond\nreference", "beyond\nfresh", "beyond\nboth", "exposure")
    rows = _table("pairs", "gap, nats a token", *compared)
    for one in found:
        cells = [str(len(one.gap.gaps)), shown(one.gap.gap)]
        for estimate in (one.gap.beyond_reference, one.gap.beyond_fresh, one.gap.beyond_both, one.exposure):
            value, p = ("-", None) if estimate is None else (shown(estimate, False), estimate.p_value)
            cells.append(value if p is None else f"{value}\np {p:.2g}")
        rows.add_row(name_lines(one.suite.id, NAME_WIDTH), *cells)
    console.print()
    console.print(rows, width=min(console.width, WIDTH))
    for one in found:
        notes = [one.gap.descriptive if one.gap.gap.value is not None else f"gap: {one.gap.gap.reason}"]
        if one.exposure.value is None:
            notes.append(f"canary: {one.exposure.reason}")
        elif canary.NO_TRACE in one.exposure.assumptions:
            notes.append(f"canary: {canary.NO_TRACE}")
        for note in filter(None, notes):
            say(console, f"{one.suite.id}: {note}")


def _table(*columns: str) -> Table:
    """A table of suites, whose names are folded where the columns beside them need the room."""
    made = table("suite", *columns)
    made.columns[0].min_width = NAME_WIDTH
    for column in made.columns[1:]:
        column.no_wrap = True
    return made
