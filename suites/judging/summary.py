"""The results of judges in the terminal: a validation, a comparison, a ranking, grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from calibrations.number_format import rounded
from shown_text import WIDTH, folded
from suites.estimate import Estimate
from suites.judging import bias
from suites.judging.pairs import PairwiseComparison
from suites.judging.ranking import Ranked
from suites.judging.validation import Validation

STYLES = {True: "green", False: "bold red"}


def show_validations(found: Mapping[str, Validation], console: Console) -> None:
    """One row per judge: kappa, flip rate, biases, whether it may be deployed; below, why not, and the agreement of people."""
    rows = table("judge", "n", "kappa [95 %]", "flips", "first place", *(kind for kind in ("JBS", "found")), "deployed")
    for name, one in found.items():
        rows.add_row(
            name,
            str(one.agreement.kappa.n),
            shown(one.agreement.kappa),
            "-" if one.found is None else shown(one.found.flip_rate, False),
            "-" if one.found is None else shown(one.found.position, False),
            "-" if one.bias is None else shown(one.bias.jbs[bias.OVERALL].estimate, False),
            "-" if one.bias is None else ", ".join(one.bias.found) or "none",
            Text("yes" if one.deploy else "no", STYLES[one.deploy]),
        )
    console.print()
    console.print(Text("Judges against people", "bold"))
    console.print(rows, width=min(console.width, WIDTH))
    for name, one in found.items():
        for reason in one.reasons:
            console.print(Text.assemble((name, "bold"), f": {reason}"))
    people = next(iter(found.values())).people
    if people.fleiss.value is not None:
        alpha = f"Krippendorff's alpha {shown(people.alpha)}"
        say(console, f"people: {len(people.raters)} raters, Fleiss' kappa {people.fleiss.value:.3f}, {alpha}")
    if people.ceiling:
        say(console, people.ceiling)


def show_comparison(judge: str, names: tuple[str, str], one: PairwiseComparison, console: Console) -> None:
    """The rates of the comparison, and the verdict with the reasons against it."""
    found = one.found
    rows = table(
        "pairs",
        f"{names[0]} won",
        f"{names[1]} won",
        "ties",
        "invalid",
        "win rate [95 %]",
        "decided",
        "flips",
        "first place",
        "length slope",
    )
    counts = [str(found.counts[key]) for key in ("A", "B", "tie", "invalid")]
    rates = (found.win_rate, found.decided, found.flip_rate, found.position)
    rows.add_row(
        str(sum(found.counts.values())),
        *counts,
        *(shown(rate, rate is found.win_rate) for rate in rates),
        shown(found.length_slope, False),
    )
    console.print()
    console.print(Text.assemble(("Pairwise  ", "bold"), f"{names[0]} against {names[1]}, judged by {judge}"))
    console.print(rows, width=min(console.width, WIDTH))
    better = {"A": names[0], "B": names[1]}.get(one.verdict)
    by = " by a judge on which no decision rests" if one.exploratory else ""
    say(console, f"better{by}: {better}" if better else f"no verdict: {'; '.join(one.reasons)}")
    _exploratory(console, one.exploratory)


def show_ranking(judge: str, one: Ranked, exploratory: Sequence[str], console: Console) -> None:
    """Systems from the strongest to the weakest, with the ranks that the data allow."""
    ranking = one.ranking
    rows = table("ranks", "system", "Elo, 0 is the mean [95 %]", "log odds")
    order = sorted(ranking.systems, key=lambda name: -(ranking.strengths[name].value or 0.0))
    for name in order:
        best, worst = ranking.ranks[name]
        rows.add_row(
            str(best) if best == worst else f"{best} to {worst}",
            name,
            shown(ranking.elo[name], digits=0),
            shown(ranking.strengths[name], False),
        )
    console.print()
    console.print(
        Text.assemble(("Ranking  ", "bold"), f"{one.pairs} pairs judged by {judge}, {one.invalid} could not be read")
    )
    console.print(rows, width=min(console.width, WIDTH))
    first = ranking.strengths[order[0]]
    if first.value is None:
        say(console, f"no finite estimate: {first.reason}; judge.half_wins=true adds half a win each way")
    p = "undefined" if ranking.fit.p_value is None else f"{ranking.fit.p_value:.2g}"
    say(console, f"cyclic triples: {shown(ranking.cyclic, False)}; fit: p = {p}")
    _exploratory(console, exploratory)


def show_grades(
    judge: str, name: str, rate: Estimate, reasons: Sequence[str], exploratory: Sequence[str], console: Console
) -> None:
    """The share of answers that passed."""
    console.print()
    say(console, f"{name}: {shown(rate)} of {rate.n} answers passed, graded by {judge}")
    for reason in reasons:
        say(console, f"no verdict: {reason}")
    _exploratory(console, exploratory)


def shown(estimate: Estimate, interval: bool = True, digits: int = 3) -> str:
    """A number with its interval, or its status in words."""
    if estimate.value is None:
        return estimate.status.replace("_", " ")
    if estimate.ci is None or not interval:
        return _number(estimate.value, digits)
    return (
        f"{_number(estimate.value, digits)} [{_number(estimate.ci.low, digits)}, {_number(estimate.ci.high, digits)}]"
    )


def _number(value: float, digits: int) -> str:
    return f"{rounded(value, digits):.{digits}f}"


def _exploratory(console: Console, reasons: Sequence[str]) -> None:
    if reasons:
        say(console, f"exploratory, no decision rests on it: {'; '.join(reasons)}")


def say(console: Console, line: str) -> None:
    """Print a line literally: brackets are no markup, and it is broken between words, whatever the width of the terminal."""
    console.print(folded(line), highlight=False, markup=False, soft_wrap=True)


def table(*columns: str) -> Table:
    """A table without lines, whose cells are folded where it is too wide: none is cut short."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    for column in columns:
        made.add_column(column, overflow="fold")
    return made
