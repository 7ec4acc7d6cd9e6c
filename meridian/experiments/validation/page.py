"""The measured error rates as tables: in the terminal, and in the page "How far can you trust a certificate?".

python -m meridian.experiments.validation.page [results/validation]

writes the page's tables from these results, and copies the results beside the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import results_io
from meridian import generated_parts, ranges
from meridian.experiments.validation.declared import PRECONDITIONS, ROWS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-far-can-you-trust-a-certificate.md"
RESULTS = ("V1_error_rates", "V2_coverage")
MISSED, MET = "bold red", "green"


def tables(document: Mapping[str, Any], intervals: Mapping[str, Any]) -> Iterator[RenderableType]:
    """For the terminal: share of samples with verdict "pass" by subject and calibration at a run's size, then the misses."""
    settings, data = document["subject"]["settings"], document["data"]
    prompts = settings["default_prompts"]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", title_justify="left")
    size = f"samples of {prompts} evaluation and {prompts // 2} held-out prompts"
    table.title = f"Share of {size} that pass. Green: as declared, red: not; dim: nothing declared"
    rows = judged(data)
    for name in ("subject", *rows, "certified"):
        table.add_column(name, no_wrap=True)
    for name in data["subjects"]:
        cells = [_coloured(_cell(data, name, row, prompts)) for row in rows]
        table.add_row(name, *cells, share(data["tiers"][name][str(prompts)]["certified"]))
    yield table
    yield from (Text(line) for line in (*summary(document), *uncovered(intervals)))


def uncovered(intervals: Mapping[str, Any]) -> list[str]:
    """How many 95 % intervals have the coverage they claim, and which do not."""
    low, high = intervals["subject"]["settings"]["acceptable"]
    rows = [row for row in intervals["data"]["coverage"] if row["interval"] == "ci95" and row["share"] is not None]
    off = [row for row in rows if not low <= row["share"] <= high and not (row["share"] > high and row["conservative"])]
    return [
        f"{len(rows) - len(off)} of {len(rows)} nominal 95 % intervals cover between {low:.2f} and {high:.2f}, or are "
        "wider by construction",
        *(
            f"not: {row['metric']} at {row['n']} prompts covers {row['share']:.3f}, "
            f"[{row['wilson'][0]:.3f}, {row['wilson'][1]:.3f}] of {row['intervals']} samples"
            for row in off
        ),
    ]


def summary(document: Mapping[str, Any]) -> list[str]:
    """Sentences about the declarations that were met and those that were not."""
    settings, data = document["subject"]["settings"], document["data"]
    targets, prompts = settings["targets"], str(settings["default_prompts"])
    judged = [cell for cell in data["cells"] if cell["met"] is not None]
    missed = [cell for cell in judged if not cell["met"]]
    return [
        f"{len(judged) - len(missed)} of {len(judged)} declared cells met",
        *(
            f"not met: {cell['row']} on {cell['subject'].replace('_', ' ')} at {cell['prompts']} prompts: pass in "
            f"{share(cell['verdict_pass'])}, declared {cell['expected'].replace('_', ' ')}"
            for cell in missed
        ),
        *_certified(data, prompts, targets),
    ]


def _certified(data: Mapping[str, Any], prompts: str, targets: Mapping[str, float]) -> list[str]:
    """Rates of the highest tier: among all sound samples, all flawed ones, and those of the worst flawed subject."""
    rates = {truth: found[prompts] for truth, found in data["certified"].items()}
    by_subject = {
        n: data["tiers"][n][prompts]["certified"] for n, s in data["subjects"].items() if s["truth"] == "flawed"
    }
    lines = []
    if "sound" in rates:
        lines.append(f"certified: sound {interval(rates['sound'])}, target at least {targets['min_certified']:.2f}")
    if by_subject:
        worst = max(by_subject, key=lambda name: by_subject[name]["rate"])
        most = by_subject[worst]["rate"]
        lines.append(
            f"certified: flawed {interval(rates['flawed'])}, target at most {targets['max_certified']:.2f} of each; "
            + (f"most often {worst}: {most:.2f}" if most else "no flawed subject in any sample")
        )
    return lines


def judged(data: Mapping[str, Any]) -> list[str]:
    """The calibrations that these results cover, in order; calibrations added later are not among them."""
    known = {cell["row"] for cell in data["cells"]}
    return [row for row in ROWS if row in known]


def _cell(data: Mapping[str, Any], subject: str, row: str, prompts: int) -> Mapping[str, Any]:
    wanted = (subject, row, prompts)
    return next(cell for cell in data["cells"] if (cell["subject"], cell["row"], cell["prompts"]) == wanted)


def _coloured(cell: Mapping[str, Any]) -> Text:
    return Text(share(cell["verdict_pass"]), style={None: "dim", True: MET, False: MISSED}[cell["met"]])


def share(rate: Mapping[str, Any]) -> str:
    return f"{rate['rate']:.2f}"


def interval(rate: Mapping[str, Any]) -> str:
    """Rate with its 95 % Wilson interval and the number of samples."""
    low, high = rate["ci95"]
    return f"{rate['rate']:.3f} [{low:.3f}, {high:.3f}] of {rate['n']}"


def matrix(document: Mapping[str, Any], which: str, prompts: int) -> str:
    """Markdown: subjects by calibrations, the share of samples with `which`: "published_pass" or "verdict_pass".

    Bold: declared and met. Bold with an exclamation mark: declared and missed. The declaration concerns the verdict, so
    the published table has no marks.
    """
    data, lines = document["data"], []
    rows = judged(data)
    for name in data["subjects"]:
        cells = [_marked(_cell(data, name, row, prompts), which) for row in rows]
        lines.append([name.replace("_", " "), *cells])
    return generated_parts.table(("subject", *rows), lines)


def _marked(cell: Mapping[str, Any], which: str) -> str:
    text = share(cell[which])
    if which == "published_pass" and cell["row"] == PRECONDITIONS:
        return "–"  # they have no published verdict
    if which != "verdict_pass" or cell["met"] is None:
        return text
    return f"**{text}**" if cell["met"] else f"**{text} !**"


def tier_table(document: Mapping[str, Any]) -> str:
    """Markdown: how many samples of each subject reached each tier, by number of prompts."""
    data, settings = document["data"], document["subject"]["settings"]
    levels = range(settings["highest_tier"] + 1)
    header = ("subject", "truth", *(f"{prompts} prompts" for prompts in settings["prompts"]))
    lines = []
    for name, subject in data["subjects"].items():
        found = [data["tiers"][name][str(prompts)]["counts"] for prompts in settings["prompts"]]
        shown = [" · ".join(f"{counts[level]} x {level}" for level in levels if counts[level]) for counts in found]
        lines.append([name.replace("_", " "), subject["truth"], *shown])
    return generated_parts.table(header, lines)


def declared_table(document: Mapping[str, Any]) -> str:
    """Markdown: what was planted, and which calibrations were declared to detect it, with the reason."""
    lines = []
    for name, subject in document["data"]["subjects"].items():
        reasons = "; ".join(f"**{row}**: {why}" for row, why in subject["reasons"].items())
        reasons = reasons or "all must pass"
        lines.append([name.replace("_", " "), subject["sentence"], reasons])
    return generated_parts.table(("subject", "what is planted", "declared"), lines)


def coverage_table(intervals: Mapping[str, Any]) -> str:
    """Markdown: coverage and mean width of every nominal 95 % interval, by number of prompts."""
    sizes = intervals["subject"]["settings"]["prompts"]
    rows = [row for row in intervals["data"]["coverage"] if row["interval"] == "ci95"]
    lines = []
    for metric, heads in dict.fromkeys((row["metric"], row["heads"]) for row in rows):
        own = {row["n"]: row for row in rows if (row["metric"], row["heads"]) == (metric, heads)}
        reason = next((row["conservative"] for row in own.values() if row["conservative"]), "")
        lines.append([metric, heads, *(_covered(own.get(n)) for n in sizes), reason or ""])
    return generated_parts.table(("metric", "truth", *(f"{n} prompts" for n in sizes), "wider by construction"), lines)


def _covered(row: Mapping[str, Any] | None) -> str:
    if row is None or row["share"] is None:
        return "none"
    return f"{row['share']:.3f} (width {row['mean_width']:.2g})"


def parts(document: Mapping[str, Any], intervals: Mapping[str, Any]) -> dict[str, str]:
    """{marker: the text between the page's markers}."""
    settings = document["subject"]["settings"]
    default = settings["default_prompts"]
    fewer = {f"verdicts {n}": matrix(document, "verdict_pass", n) for n in settings["prompts"] if n != default}
    said = [*summary(document), *uncovered(intervals)]
    return {
        "summary": "\n".join(f"- {line}" for line in said),
        "declared": declared_table(document),
        "verdicts": matrix(document, "verdict_pass", default),
        "published": matrix(document, "published_pass", default),
        **fewer,
        "tiers": tier_table(document),
        "coverage": coverage_table(intervals),
    }


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(error rates, coverage): the experiment's results in a folder. ResultError if one lacks what the page shows."""
    rates, intervals = (folder / f"{name}.json" for name in RESULTS)
    found = results_io.read(rates), results_io.read(intervals)
    for path, lacks in ((rates, _lacking_rate(found[0])), (intervals, _lacking_interval(found[1]))):
        if lacks is not None:
            raise results_io.ResultError(path, f"lacks {lacks}")
    return found


def _lacking_rate(document: Mapping[str, Any]) -> str | None:
    """The first subject that lacks a cell or a tier at some number of prompts, in words; None if none does."""
    settings, data = document["subject"]["settings"], document["data"]
    cells = {(cell["subject"], cell["row"], cell["prompts"]) for cell in data["cells"]}
    for prompts in (settings["default_prompts"], *settings["prompts"]):
        for name, subject in data["subjects"].items():
            tier = data["tiers"].get(name, {}).get(str(prompts), {"counts": []})
            whole = (
                all((name, row, prompts) in cells for row in judged(data))
                and len(tier["counts"]) > settings["highest_tier"]
                and str(prompts) in data["certified"].get(subject["truth"], {})
            )
            if not whole:
                return f"rates of {ranges.shown(name)} at {prompts} prompts"
        if not all(str(prompts) in found for found in data["certified"].values()):
            return f"certified rates at {prompts} prompts"
    return None


def _lacking_interval(document: Mapping[str, Any]) -> str | None:
    for row in document["data"]["coverage"]:
        if row["share"] is not None and (row["wilson"] is None or row["mean_width"] is None):
            return f"the width of an interval of {ranges.shown(row['metric'])}"
    return None


def update(results: Path, page: Path = PAGE) -> None:
    """Copy the experiment's results and figure beside the page, and rewrite the page's tables."""
    kept = page.parent / "validation"
    for name in (*(f"{result}.json" for result in RESULTS), "error_rates.svg"):
        results_io.write_text(kept / name, (results / name).read_text())
    generated_parts.update(page, parts(*read(kept)))


if __name__ == "__main__":
    update(Path(sys.argv[1] if len(sys.argv) > 1 else "results/validation"))
