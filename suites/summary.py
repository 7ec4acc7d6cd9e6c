"""The suites of a run in the terminal: taxonomy coverage, one row per suite, the worst failures, what can be traced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shown_text import WIDTH
from suites import modes, results
from suites.bridge.pair import MINIMUM_PAIRS, SuitePairs
from suites.estimate import Estimate
from suites.judgement import RATE, JudgedSuite
from suites.log import environment
from suites.outcome import Case, Detection
from suites.runner import SuiteRun

STYLES = {"pass": "green", "FAIL": "bold red", "inconclusive": "yellow", "no gate": "dim", "-": "dim"}
VERDICTS = {True: "pass", False: "FAIL", None: "inconclusive"}
CAPTION = (
    "failed: share of the n judged cases; worth: as many independent ones would say as much",
    "verdict: by the whole interval of failed, never by the rate alone",
)
ANECDOTE = f"* fewer than {MINIMUM_PAIRS} pairs are an anecdote: no hypothesis is tested on them"
EXAMPLES = 2  # failures shown for each suite that has some
SUITES_WITH_EXAMPLES = 8
EXPECTED, GOT, LEAST_PROMPT = 18, 20, 30  # columns of an example
GAP = 2  # between two columns


def show(run: SuiteRun, console: Console, groups: Sequence[SuitePairs] = (), notes: Sequence[str] = ()) -> None:
    """Print what the suites found. `groups`: the failures that the bridge can pair and trace; `notes`: next steps."""
    width = min(console.width, WIDTH)
    put = partial(console.print, highlight=False, markup=False, width=width)
    put()
    put(Text(f"Behaviour  {run.model}", style="bold"))
    if any(one.suite.mode in modes.MODES for one in run.suites):
        put(_coverage(run))
    put()
    put(_rows(run.suites))
    for line in CAPTION:
        put(line, style="dim")
    if reasons := _reasons(run.suites):
        put()
        put(reasons)
    _put_failures(run.suites, put, width)
    if groups:
        put()
        put(Text("Traceable failures", style="bold"))
        put(_traceable(groups))
        if any(map(_is_anecdote, groups)):
            put(ANECDOTE, style="dim")
    for line in notes:
        console.print(line, highlight=False, markup=False, soft_wrap=True)  # a command stays whole, to be copied
    put()
    if (missing := environment.why_not_reproducible(results.environment_of(run.suites))) is not None:
        put(f"Not reproducible from its record alone: {missing}")
    errors = f", {run.errors} failed" if run.errors else ""
    console.print(f"Record {run.log}", highlight=False, markup=False, soft_wrap=True)
    put(f"{run.asked} outputs asked, {run.reused} known before{errors}")


def verdict(judged: JudgedSuite) -> str:
    """The gate's verdict in one word ("no gate" without one); "-" if there is no rate to judge."""
    if not results.is_live(judged):
        return "-"
    return "no gate" if judged.suite.gate is None else VERDICTS[results.gate(judged)]


def rate(estimate: Estimate) -> str:
    """Failure rate with its interval in percent: "12.5 % [7.1, 21.0]"; without a rate its status."""
    if estimate.status != "ok":
        return estimate.status.replace("_", " ")
    interval = results.interval(estimate)
    shown = "" if interval is None else f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return f"{100 * estimate.number:.1f} %{shown}"


def _coverage(run: SuiteRun) -> str:
    live, relevant = run.coverage["live"], run.coverage["relevant"]
    context = f" that matter for {run.coverage['context']}" if run.coverage["context"] else ""
    missing = ", ".join(mode for mode in run.coverage["missing"])
    rest = f"; nothing is known about {missing}" if missing else ""
    return f"{len(live)} of {len(relevant)} failure modes{context} have a live suite{rest}"


def _rows(judged: Sequence[JudgedSuite]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("mode", no_wrap=True)
    table.add_column("suite", overflow="fold", min_width=16)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("worth", justify="right", no_wrap=True)
    table.add_column("failed [95 %]", no_wrap=True)
    table.add_column("gate", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("tier", no_wrap=True)
    for one in sorted(judged, key=lambda one: (results.number(one.suite.mode), one.suite.id)):
        table.add_row(*_cells(one), style="dim" if not one.applies else None)
    return table


def _cells(judged: JudgedSuite) -> list[str | Text]:
    suite = judged.suite
    limit = "" if suite.gate is None else f"{100 * suite.gate['failure_rate']:.0f} %"
    if not judged.applies:
        return [suite.mode, suite.id, "", "", "not applicable", limit, "-", ""]
    estimate, word = judged.estimates[RATE], verdict(judged)
    shown = Text(word, STYLES[word])
    return [suite.mode, suite.id, str(estimate.n), effective_size(estimate), rate(estimate), limit, shown, tier(judged)]


def effective_size(estimate: Estimate) -> str:
    """The effective sample size that an interval rests on, rounded; empty without a rate."""
    return "" if estimate.status != "ok" else f"{estimate.detail.get('effective_n', estimate.n):.0f}"


def tier(judged: JudgedSuite) -> str:
    """Whether the verdicts on cases are exact ("verified") or from a heuristic; "both" if there are some of each."""
    tiers = {found.tier for _, found in judged.cases if found.failed is not None}
    return "both" if len(tiers) > 1 else "".join(tiers)


def _reasons(judged: Sequence[JudgedSuite]) -> Table | None:
    """One line per suite: why it has no rate, which calls or legs are missing, and what its mode shows beside the rate."""
    lines = [(one.suite.id, reason) for one in judged if (reason := _reason(one))]
    if not lines:
        return None
    table = Table.grid(padding=(0, GAP, 0, 0), expand=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _reason(judged: JudgedSuite) -> str:
    if not judged.applies:
        return f"not applicable: {judged.reason}"
    estimate = judged.estimates[RATE]
    parts = [] if estimate.status == "ok" else [estimate.reason]
    if errors := judged.counts["error"]:
        parts.append(f"{errors} of {len(judged.cases)} cases rest on a failed call and are in no rate")
    parts += _beside(judged)
    parts += [f"leg {leg} left out, {why}" for leg, why in judged.dropped_legs.items()]
    return "; ".join(parts)


def _beside(judged: JudgedSuite) -> list[str]:
    """The metrics that the suite's mode shows in the terminal: "forbidden refused 1.00, benign refused 0.02, J 0.98 [...]"."""
    named = getattr(modes.EVERY[judged.suite.mode], "IN_TERMINAL", {})
    known = [(title, judged.estimates[name]) for name, title in named.items() if name in judged.estimates]
    shown = [
        f"{title} {one.status.replace('_', ' ') if one.value is None else f'{one.value:.2f}'}"
        + ("" if one.ci is None else f" [{one.ci.low:.2f}, {one.ci.high:.2f}]")
        for title, one in known
    ]
    return [", ".join(shown)] if shown else []


def _put_failures(judged: Sequence[JudgedSuite], put: partial[None], width: int) -> None:
    """Examples from the suites that fail most, one for each failure mode."""
    failing = [one for one in judged if one.failures]
    failing.sort(key=lambda one: -(one.estimates[RATE].value or 0.0))
    worst = {one.suite.mode: one.suite.id for one in reversed(failing)}.values()
    shown = [one for one in failing if one.suite.id in worst][:SUITES_WITH_EXAMPLES]
    for one in shown:
        put()
        title = f"  {modes.EVERY[one.suite.mode].TITLE}: {len(one.failures)} failed, the worst first"
        put(Text.assemble((one.suite.id, "bold"), title))
        if one is shown[0]:
            put(_row("prompt's end", "expected", "got", width), style="dim")
        for case, found in _different(results.worst(one, len(one.failures))):
            put(_example(case, found, width))
    if others := [one.suite.id for one in failing if one not in shown]:
        put()
        put(f"Failures of {', '.join(others)}: in the results")


def _traceable(groups: Sequence[SuitePairs]) -> Table:
    """For every suite: how many failures have a pair, and the most frequent reason of the others."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1), expand=True)
    for name in ("suite", "mode"):
        table.add_column(name, no_wrap=True)
    for name in ("failures", "pairs "):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("without a pair, mostly", no_wrap=True, overflow="ellipsis", ratio=1)
    for group in sorted(groups, key=lambda group: (-len(group.pairs), group.suite)):
        few = "*" if _is_anecdote(group) else " "
        why = max(group.rejected.items(), key=lambda item: item[1], default=None)
        reason = "" if why is None else f"{why[1]} {why[0]}"
        row = (group.suite, group.mode, str(group.failures), f"{len(group.pairs)}{few}", reason)
        table.add_row(*map(Text, row))
    return table


def _is_anecdote(group: SuitePairs) -> bool:
    return bool(group.pairs) and not group.traceable


def _different(failures: Sequence[tuple[Case, Detection]]) -> list[tuple[Case, Detection]]:
    """The first failures of different originals, since two variants of one prompt show the same thing twice."""
    first: dict[str, tuple[Case, Detection]] = {}
    for case, found in failures:
        first.setdefault(case.cluster, (case, found))
    return list(first.values())[:EXAMPLES]


def _example(case: Case, found: Detection, width: int) -> Text:
    """The end of the prompt, the expected and the actual output; below them the change, or why it is a failure."""
    texts = (one.text for one in case.outcomes if one.error is None)
    said = " / ".join(dict.fromkeys(_flat(text) or "nothing" for text in texts))
    expected = " or ".join(map(_flat, case.item.answers[:2])) or "-"
    shown = _row(_end(case.item.prompt, _prompt_width(width)), expected, said, width)
    if why := _why(case, found, width):
        below = Text(f"    {why}", "dim")
        below.truncate(width, overflow="ellipsis")
        shown.append("\n").append(below)
    return shown


def _row(prompt: str, expected: str, got: str, width: int) -> Text:
    """Three columns, equally wide in every suite, so that they line up."""
    cells = (Text(prompt), Text(expected, "green"), Text(got, "red"))
    for cell, columns in zip(cells, (_prompt_width(width), EXPECTED, GOT), strict=True):
        cell.truncate(columns, overflow="ellipsis", pad=True)
    return Text(" " * GAP) + Text(" " * GAP).join(cells)


def _prompt_width(width: int) -> int:
    return max(LEAST_PROMPT, width - EXPECTED - GOT - 3 * GAP)


def _why(case: Case, found: Detection, width: int) -> str:
    """The change that should have made no difference, or the evidence if no answer was expected."""
    if case.parent is not None and "right_clean" in found.detail:
        return _change(case.parent.item.prompt, case.item.prompt, width - len("    changed '' to ''"))
    return "" if case.item.answers else f"because {_flat(found.evidence or found.subtype)}"


def _change(original: str, changed: str, width: int) -> str:
    """The difference between the common first and last words of two prompts: "changed 'guitar is' to 'guitar'".

    `width`: columns for the words of both.
    """
    a, b = original.split(), changed.split()
    shortest = min(len(a), len(b))
    begin = next((k for k in range(shortest) if a[k] != b[k]), shortest)
    end = next((k for k in range(shortest - begin) if a[-1 - k] != b[-1 - k]), shortest - begin)
    left, right = (" ".join(words[begin : len(words) - end]) for words in (a, b))
    if not left and not right:
        return "changed in its white space"
    if not left or not right:
        return f"added '{_start(right, width)}'" if right else f"left out '{_start(left, width)}'"
    return f"changed '{_start(left, width // 2)}' to '{_start(right, width // 2)}'"


def _flat(text: str) -> str:
    """The text with line ends and runs of white space as one visible mark each, so that an example stays on one line."""
    return " ".join(text.replace("\n", " ⏎ ").split())


def _end(text: str, width: int) -> str:
    """The last `width` columns of a text, "…" before them if there is more."""
    flat = _flat(text)
    if cell_len(flat) <= width:
        return flat
    while cell_len(flat) > width - 1:
        flat = flat[1 + max(0, cell_len(flat) - 2 * width) // 2 :]
    return f"…{flat.lstrip()}"


def _start(text: str, width: int) -> str:
    flat = _flat(text)
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"
