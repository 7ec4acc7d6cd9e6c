"""The suites of a run in the terminal: coverage of the taxonomy, one row a suite, the worst failures, what can be traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suites import modes, results
from suites.estimate import Estimate
from suites.outcome import Case, Detection
from suites.scores import RATE, Judged

if TYPE_CHECKING:
    from suites.runner import Run

STYLES = {"pass": "green", "FAIL": "bold red", "inconclusive": "yellow", "no gate": "dim", "-": "dim"}
VERDICTS = {True: "pass", False: "FAIL", None: "inconclusive"}
CAPTION = "failed: share of the n judged cases; verdict: by the whole interval, never by the rate alone"
EXAMPLES = 2  # failures shown for each suite that has some
SUITES_WITH_EXAMPLES = 8
PROMPT_END, OUTPUT = 60, 24  # characters shown


def show(run: Run, console: Console, traceable: Sequence[str] = ()) -> None:
    """Print what the suites found. `traceable`: lines of the bridge, which failures lead to components."""
    console.print()
    console.print(Text(f"Behaviour  {run.model}", style="bold"))
    console.print(_coverage(run), highlight=False)
    console.print()
    console.print(_rows(run.suites))
    console.print(CAPTION, style="dim", highlight=False)
    _print_reasons(run.suites, console)
    _print_failures(run.suites, console)
    if traceable:
        console.print()
        console.print(Text("Traceable failures", style="bold"))
        for line in traceable:
            console.print(line, highlight=False, markup=False)
    console.print()
    console.print(_effort(run), highlight=False, markup=False, soft_wrap=True)


def verdict(judged: Judged) -> str:
    """The gate's verdict in one word; "-" where there is no rate to judge."""
    if not results.is_live(judged):
        return "-"
    return "no gate" if judged.suite.gate is None else VERDICTS[results.gate(judged)]


def rate(estimate: Estimate) -> str:
    """Failure rate with its interval in percent: "12.5 % [7.1, 21.0]"; without a rate its status."""
    if estimate.status != "ok":
        return estimate.status.replace("_", " ")
    interval = estimate.ci
    shown = "" if interval is None else f" [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    return f"{100 * estimate.value:.1f} %{shown}"


def _coverage(run: Run) -> str:
    live, relevant = run.coverage["live"], run.coverage["relevant"]
    context = f" that matter for {run.coverage['context']}" if run.coverage["context"] else ""
    missing = ", ".join(mode for mode in run.coverage["missing"])
    rest = f"; nothing is known about {missing}" if missing else ""
    return f"{len(live)} of {len(relevant)} failure modes{context} have a live suite{rest}"


def _rows(judged: Sequence[Judged]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("mode", no_wrap=True)
    table.add_column("suite", overflow="fold", min_width=16)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("failed [95 %]", no_wrap=True)
    table.add_column("gate", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("tier", no_wrap=True)
    for one in sorted(judged, key=lambda one: (results.number(one.suite.mode), one.suite.id)):
        table.add_row(*_cells(one), style="dim" if not one.applies else None)
    return table


def _cells(judged: Judged) -> list[str | Text]:
    suite = judged.suite
    limit = "" if suite.gate is None else f"{100 * suite.gate['failure_rate']:.0f} %"
    if not judged.applies:
        return [suite.mode, suite.id, "", "not applicable", limit, "-", ""]
    estimate, word = judged.estimates[RATE], verdict(judged)
    return [suite.mode, suite.id, str(estimate.n), rate(estimate), limit, Text(word, STYLES[word]), tier(judged)]


def tier(judged: Judged) -> str:
    """Whether verdicts on cases are exact ("verified") or a heuristic's, "both" where there are some of each."""
    tiers = {found.tier for _, found in judged.cases if found.failed is not None}
    return "both" if len(tiers) > 1 else "".join(tiers)


def _print_reasons(judged: Sequence[Judged], console: Console) -> None:
    """Why suites say nothing, and which calls or legs are missing from those that do."""
    lines = [(one.suite.id, reason) for one in judged if (reason := _reason(one))]
    if lines:
        console.print()
    for name, reason in lines:
        console.print(Text.assemble((name, "bold"), f": {reason}"))


def _reason(judged: Judged) -> str:
    if not judged.applies:
        return f"not applicable: {judged.reason}"
    estimate = judged.estimates[RATE]
    parts = [] if estimate.status == "ok" else [estimate.reason]
    if errors := judged.counts["error"]:
        parts.append(f"{errors} of {len(judged.cases)} cases rest on a failed call and are in no rate")
    parts += [f"leg {leg} left out, {why}" for leg, why in judged.dropped_legs.items()]
    return "; ".join(parts)


def _print_failures(judged: Sequence[Judged], console: Console) -> None:
    """Examples from the suites that fail most, one for each failure mode."""
    failing = [one for one in judged if one.failures]
    failing.sort(key=lambda one: -(one.estimates[RATE].value or 0.0))
    worst = {one.suite.mode: one.suite.id for one in reversed(failing)}.values()
    shown = [one for one in failing if one.suite.id in worst][:SUITES_WITH_EXAMPLES]
    for one in shown:
        console.print()
        mode = modes.MODES[one.suite.mode]
        count = len(one.failures)
        console.print(Text.assemble((one.suite.id, "bold"), f"  {mode.TITLE}: {count} failed, the worst first"))
        for case, found in _different(results.worst(one, len(one.failures))):
            console.print(_example(case, found), soft_wrap=False)
    others = [one.suite.id for one in failing if one not in shown]
    if others:
        console.print(Text(f"\nFailures of {', '.join(others)}: in the results"))


def _different(failures: Sequence[tuple[Case, Detection]]) -> list[tuple[Case, Detection]]:
    """The first failures of different originals: two variants of one prompt show the same thing twice."""
    first: dict[str, tuple[Case, Detection]] = {}
    for case, found in failures:
        first.setdefault(
            case.item.cluster or (case.item.variant.parent if case.item.variant else case.item.id), (case, found)
        )
    return list(first.values())[:EXAMPLES]


def _example(case: Case, found: Detection) -> Text:
    """The end of the prompt, what was expected and what came."""
    expected = " or ".join(case.item.answers[:2]) or found.evidence or found.subtype
    what = "expected" if case.item.answers else "because"
    prompt = _end(case.item.prompt, PROMPT_END)
    line = Text.assemble(("  …" if prompt != _flat(case.item.prompt) else "  ") + prompt)
    line.append(f"\n    {what} ", "dim").append(_start(expected, OUTPUT if case.item.answers else PROMPT_END), "green")
    said = " / ".join(
        dict.fromkeys(_start(one.text, OUTPUT) or "nothing" for one in case.outcomes if one.error is None)
    )
    return line.append("  got ", "dim").append(said, "red")


def _effort(run: Run) -> str:
    errors = f", {run.errors} failed" if run.errors else ""
    return f"Record {run.log} · {run.asked} outputs asked, {run.reused} known before{errors}"


def _flat(text: str) -> str:
    """Line ends and runs of white space made visible as one mark each, so that an example stays on its line."""
    return " ".join(text.replace("\n", " ⏎ ").split())


def _end(text: str, width: int) -> str:
    return _flat(text)[-width:]


def _start(text: str, width: int) -> str:
    flat = _flat(text)
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"
