"""The report as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meridian.doctor import parity
from meridian.doctor.estimate import RunEstimate
from meridian.doctor.report import Report
from meridian.doctor.work import KINDS
from shown_text import first_of

TOKENS_SHOWN = 8  # in a sentence


def show(report: Report, console: Console) -> None:
    """Print every section, then the verdict."""
    for title, table, lines in (
        ("Model", _architecture(report), ()),
        ("Parity with plain Hugging Face", _parity(report), _parity_lines(report)),
        (f"Tokens of one {report.task} prompt", _tokens(report), _token_lines(report)),
        ("Self-tests without labels", _rankings(report), _test_lines(report)),
        (f"Cost of task={report.task} calibration=all", _costs(report), _cost_lines(report)),
    ):
        console.print()
        console.print(Text(title, style="bold"))
        if table.row_count:
            console.print(table)
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
    _verdict(report, console)


def _verdict(report: Report, console: Console) -> None:
    console.print()
    for line in report.warnings:
        console.print(f"Note: {line}", highlight=False, markup=False, soft_wrap=True)
    for line in report.faults:
        console.print(f"Wrong: {line}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    if report.healthy:
        console.print("healthy", style="bold green")
    else:
        count = len(report.faults)
        console.print(f"not healthy: {count} thing{'s' if count > 1 else ''} wrong", style="bold red", highlight=False)


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


# --- model --------------------------------------------------------------------------------------------------------


def _architecture(report: Report) -> Table:
    own, table = report.architecture, _table("", "")
    shared = own.n_key_value_heads
    rows = {
        "name": f"{own.name} ({own.kind}{f', revision {own.revision}' if own.revision else ''})",
        "sha256": own.sha256,
        "layers x heads": f"{own.n_layers} x {own.n_heads}"
        + ("" if shared == own.n_heads else f" ({shared} key-value heads)"),
        "d_model, vocabulary": f"{own.d_model:,}, {own.d_vocabulary:,} tokens, context {own.context:,}",
        "positions, norm": f"{own.positions}, {own.norm}",
        "embeddings": "tied to the unembedding" if own.tied else "untied",
        "parameters": f"{own.parameters:,}",
        "runs in": f"{own.dtype} on {own.device}, {own.attention} attention",
        "sweeps by": f"{own.backend} ({own.backend_why})",
    }
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))
    return table


# --- parity -------------------------------------------------------------------------------------------------------


def _parity(report: Report) -> Table:
    table = _table("dtype", "backend", *parity.QUANTITIES, "tolerance", "", right=(*parity.QUANTITIES, "tolerance"))
    for one in report.parity.comparisons:
        if one.difference is None or one.relative is None:
            table.add_row(one.dtype, one.backend, *("-" for _ in parity.QUANTITIES), "-", Text(f"not run: {one.why}"))
            continue
        cells = (f"{one.difference[name]:.1e} ({one.relative[name]:.1e})" for name in parity.QUANTITIES)
        word = Text("agrees", style="green") if one.agrees else Text("differs", style="bold red")
        table.add_row(one.dtype, one.backend, *cells, f"{one.tolerance:g}", word)
    return table


def _parity_lines(report: Report) -> list[str]:
    own = report.parity
    lines = ["Largest difference in nats (and over the largest value, which the tolerance is about)."]
    lines += [
        f"Interventions of the fused backend: {sentence}" for sentence in dict.fromkeys(own.interventions.values())
    ]
    lines += [f"Not compared in {dtype}: {reason}" for dtype, reason in own.left_out.items()]
    if own.departure is not None:
        errors = ", ".join(f"{value:.1e}" for value in own.departure.error)
        lines.append(f"Residual stream in {own.departure.dtype}, embedding and after each block: {errors}")
    return [*lines, f"Verdict: {own.verdict}. {_capital(own.sentence)}."]


# --- tokens -------------------------------------------------------------------------------------------------------


def _tokens(report: Report) -> Table:
    table = _table("position", "id", "clean", "id ", "corrupted", "role", right=("position", "id", "id "))
    for place in report.tokens.places:
        style = "bold" if place.changed else ""
        cells = (str(place.clean[0]), place.clean[1], str(place.corrupted[0]), place.corrupted[1])
        table.add_row(str(place.position), *(Text(cell, style=style) for cell in cells), ", ".join(place.roles))
    return table


def _token_lines(report: Report) -> list[str]:
    own = report.tokens
    policy = "first in every prompt" if own.bos_wanted else "in no prompt"
    lengths = sorted(set(own.lengths.values()))
    templates = ", ".join(f"{name} {length}" for name, length in own.lengths.items())
    return [
        f"Answers {_listed(own.answers)} against {_listed(own.wrong)}",
        f"BOS {own.bos or 'none in this tokenizer'}: {policy} by the task's policy; by itself the tokenizer puts {own.by_itself}",
        f"Padding {own.padding}: it moves a logit by {own.padding_error:.1e} of the largest",
        f"{len(own.lengths)} templates of {lengths[0]} to {lengths[-1]} tokens: {templates}",
    ]


def _listed(tokens: tuple[tuple[int, str], ...]) -> str:
    return first_of([f"{name} ({number})" for number, name in tokens], TOKENS_SHOWN)


# --- self-tests ---------------------------------------------------------------------------------------------------


def _rankings(report: Report) -> Table:
    table = _table("score", "strongest heads", "uniform attention", right=("uniform attention",))
    for one in report.self_tests.rankings:
        heads = "  ".join(f"{name} {value:.3f}" for name, value in zip(one.heads, one.values, strict=True))
        table.add_row(one.score.replace("_", " "), heads, f"{one.uniform:.4f}")
    return table


def _test_lines(report: Report) -> list[str]:
    own, behaviour = report.self_tests, report.self_tests.behaviour
    lines = [f"{own.sequences} sequences of {own.length} random tokens said twice"] if own.rankings else []
    for fact in own.expectations:
        verdict = "pass" if fact.met else f"fail ({', '.join(fact.missing)} missing)"
        lines.append(
            f"Published: {', '.join(fact.heads)} in the top {fact.top} by {fact.score.replace('_', ' ')} score: {verdict}"
        )
    return [
        *lines,
        f"On {behaviour.prompts} {report.task} prompts {behaviour.accuracy:.1%} right, mean {behaviour.metric} "
        f"{behaviour.logit_diff:.2f} (standard error {behaviour.standard_error:.2f}; corrupted "
        f"{behaviour.corrupted_logit_diff:.2f}): {behaviour.sentence}",
    ]


# --- cost ---------------------------------------------------------------------------------------------------------


def _costs(report: Report) -> Table:
    table = _table("", "measurement", "work", "pairs", "rate", "minutes", right=("pairs", "rate", "minutes"))
    marks = {"exact": "", "at most": "<= ", "at least": ">= "}
    for one in report.estimate.items:
        rate = f"{report.estimate.rates[one.kind]:,.0f}/s"
        table.add_row(
            one.number, one.name, KINDS[one.kind], f"{marks[one.bound]}{one.pairs:,}", rate, f"{one.minutes:.1f}"
        )
    table.add_row("", "all", "", f"{report.estimate.pairs:,}", "", f"{report.estimate.minutes:.1f}", style="bold")
    return table


def _cost_lines(report: Report) -> list[str]:
    own, memory = report.estimate, report.estimate.memory
    peak = (
        f"{memory.peak:,.0f} MiB {memory.peak_of} at most while timing" if memory.peak is not None else "peak unknown"
    )
    return [
        f"Circuit {own.circuit}{' (assumed)' if own.assumed else ''}; pairs are (variant, prompt), for gradients and "
        "sampling (pass, prompt); what is no forward pass, and the calibrations, come on top",
        *(_capital(line) for line in own.advice),
        *_predicted_lines(own),
        f"Memory: weights {memory.weights:,.0f} MiB, engine at most {memory.room:,.0f} MiB and {memory.rows_per_forward} "
        f"rows a pass (engine.memory_mib, engine.rows_per_forward), of which a sweep over all heads takes "
        f"{memory.sweep:,.0f} MiB, activations that are stored on the CPU "
        f"{memory.activations:,.0f} MiB; {peak}",
    ]


def _predicted_lines(own: RunEstimate) -> Iterator[str]:
    """The predicted time on a GPU; it is not measured."""
    if own.predicted is None:
        return
    kinds = ", ".join(f"{KINDS[kind]} {minutes:.2g}" for kind, minutes in own.predicted.by_kind.items())
    parts = ", ".join(
        f"{part} {minutes / own.predicted.minutes:.0%}" for part, minutes in own.predicted.by_part.items()
    )
    yield (
        f"On {own.predicted.device} {own.predicted.minutes:.2g} minutes, predicted from counted launches and operations and the "
        f"data sheet, not measured: {kinds}; {parts}"
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
