"""The measured error rates as tables: in the terminal, and in the page "How far can you trust a certificate?"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from calibrations.validation.declared import ROWS

START, END = "<!-- {name} -->", "<!-- /{name} -->"
MISSED, MET = "bold red", "green"


def tables(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Terminal: share of samples with verdict "pass", by subject and calibration, at a run's size; then the tiers."""
    settings, data = document["subject"]["settings"], document["data"]
    prompts = settings["default_prompts"]
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold", title_justify="left")
    size = f"samples of {prompts} evaluation and {prompts // 2} held-out prompts"
    table.title = f"Share of {size} that pass. Green: as declared, red: not; dim: nothing declared"
    for name in ("subject", *ROWS, "certified"):
        table.add_column(name, no_wrap=True)
    for name in data["subjects"]:
        cells = [_coloured(_cell(data, name, row, prompts)) for row in ROWS]
        table.add_row(name, *cells, share(data["tiers"][name][str(prompts)]["certified"]))
    yield table
    yield from (Text(line) for line in summary(document))


def summary(document: Mapping[str, Any]) -> list[str]:
    """What was met and what was not, in sentences."""
    settings, data = document["subject"]["settings"], document["data"]
    targets, prompts = settings["targets"], str(settings["default_prompts"])
    judged = [cell for cell in data["cells"] if cell["met"] is not None]
    missed = [cell for cell in judged if not cell["met"]]
    sound, flawed = (data["certified"][truth][prompts] for truth in ("sound", "flawed"))
    return [
        f"{len(judged) - len(missed)} of {len(judged)} declared cells met",
        *(
            f"not met: {cell['row']} on {cell['subject']} at {cell['prompts']} prompts: pass in "
            f"{share(cell['verdict_pass'])}, declared {cell['expected'].replace('_', ' ')}"
            for cell in missed
        ),
        f"certified: sound {interval(sound)}, target at least {targets['min_certified']:.2f}; "
        f"flawed {interval(flawed)}, target at most {targets['max_certified']:.2f}",
    ]


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
    """Markdown: subjects by calibrations, share of samples with (`which`) "published_pass" or "verdict_pass".

    Bold: declared and met. Bold with an exclamation mark: declared and missed. The declaration is about the verdict, so
    the published table has no marks.
    """
    data = document["data"]
    lines = []
    for name in data["subjects"]:
        cells = [_marked(_cell(data, name, row, prompts), which) for row in ROWS]
        lines.append([name.replace("_", " "), *cells])
    return markdown(("subject", *ROWS), lines)


def _marked(cell: Mapping[str, Any], which: str) -> str:
    text = share(cell[which])
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
    return markdown(header, lines)


def declared_table(document: Mapping[str, Any]) -> str:
    """Markdown: what was planted, and which calibrations were declared to see it, with the reason."""
    lines = []
    for name, subject in document["data"]["subjects"].items():
        reasons = "; ".join(f"**{row}**: {why}" for row, why in subject["reasons"].items())
        must = "all must pass, but " if subject["truth"] == "sound" else ""
        lines.append([name.replace("_", " "), subject["sentence"], f"{must}{reasons}"])
    return markdown(("subject", "what is planted", "declared before measuring"), lines)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
