"""report.html: one run as a single file to read and share; it needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jinja2
from markupsafe import Markup, escape

import results_io
import shown_text
from calibrations.number_format import number
from meridian import figures
from meridian.figures import colours
from meridian.figures import plotly as browser
from meridian.figures.graph import head_name
from meridian.figures.values import CircuitGraph
from meridian.outside_effects import ordinal
from meridian.report import (
    bundle,
    certificate_section,
    disagreement,
    explored,
    figure_sections,
    first_screen,
    head_facts,
    provenance,
    sources,
)
from meridian.report.sources import FieldSource
from meridian.run_folder import RunFolder

NAME = "report.html"
HERE = Path(__file__).parent
DRAWN_BY = (
    "meridian/**/*.py",
    *(f"meridian/report/*.{kind}" for kind in ("j2", "css", "js")),
    "calibrations/**/*.py",
    "circuits/tasks/**/*.py",  # these give the text of the prompts
    "results_io.py",
)
STYLES = ("style.css", "explore.css")
SCRIPTS = (
    *("page.js", "sources.js", "heads.js", "figures.js", "graph.js", "attention.js", "tables.js", "prompts.js"),
    *("address.js", "start.js"),
)
DRAWN_BY_SCRIPT = ("circuit", "patterns")  # sections whose figures are drawn by the page's own script instead of Plotly
UNSEALED = '<meta name="meridian-seal" content="">'
SEAL = re.compile(r'<meta name="meridian-seal" content="([0-9a-f]{64})">')
COMMAND = re.compile(  # words and settings, up to the last setting or, without one, the first word
    r"(python run\.py(?: \w+)?(?: [\w.+]+=[^\s,;()]*[^\s,;().])+)"
)
NUMBER = re.compile(  # but no number that is part of a name, a path or a version: meta/llama-3, 2.5.1
    r"(?<![\w.])(?<![^\W\d][-/])([-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w|\.\d|/[^\W\d])"
)
NUMBER_IN_CELL = re.compile(  # a token may stand before it, its interval after it
    r"(.* )??([^\s\[\]]*\d[^\s\[\]]*)( \[[^\[\]]*\])?", re.DOTALL
)
VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣"}


def write(run: RunFolder, folder: str | Path | None = None) -> Path:
    """Write report.html into `folder` (beside certificate.json if None) in one step, and return its path.

    The same results give the same bytes. An unedited report that the same code made from the same results is not drawn again.
    UserError if a result cannot be read.
    """
    path = Path(folder or run.path) / NAME
    if not path.is_file() or not is_current(path.read_text(encoding="utf-8", errors="replace"), run):
        results_io.write_text(path, render(run))
    return path


def is_current(text: str, run: RunFolder) -> bool:
    """True if `text` is exactly the report of `run`: its seal matches its text and the files that it is made from."""
    found = SEAL.search(text, 0, 2000)
    return found is not None and found[1] == _seal(SEAL.sub(UNSEALED, text, count=1), run)


def made_from(run: RunFolder) -> dict[str, str]:
    """{file: SHA-256} of everything a report depends on: results of the run and of suites, and the code that draws them."""
    results = {path.name: path for path in run.path.glob("*.json")}
    suites = {
        f"{place} suites/{path.name}": path
        for place, folder in enumerate(run.suite_folders)
        for path in folder.glob("*.json")
    }
    if (folder := run.geometry_folder) is not None:
        suites |= {f"geometry/{path.name}": path for path in folder.glob("*.json")}
    root = HERE.parents[1]
    parts = [path for pattern in DRAWN_BY for path in root.glob(pattern)]
    drawing = {path.relative_to(root).as_posix(): path for path in parts}
    digests = {name: results_io.file_digest(path) for name, path in {**results, **suites, **drawing}.items()}
    return {**digests, "plotly": version("plotly"), "jinja2": version("jinja2")}


def _seal(text: str, run: RunFolder) -> str:
    """SHA-256 over the files that a report was made from and over its text without the seal."""
    return results_io.sha256({"made_from": made_from(run), "text": results_io.sha256(text.encode())})


def render(run: RunFolder) -> str:
    """The report as HTML: certificate, figures by section with their numbers as tables, and the provenance.

    Its head has the seal that `is_current` checks.
    """
    drawn = figures.by_section(run)
    specifications = {
        name: browser.specification(figure)
        for section, group in drawn.items()
        if section not in DRAWN_BY_SCRIPT
        for name, figure in group.items()
    }
    measured = head_facts.methods(run, drawn["heads"])
    graph = drawn["circuit"]["circuit"]
    assert isinstance(graph, CircuitGraph)  # the only figure of its section
    suites = [
        (name, document["data"]["mode"], suite)
        for document in run.suites.values()
        for name, suite in document["data"]["suites"].items()
    ]
    text = (
        environment([head_name(head) for head in run.evidence.heads])
        .get_template("page.html.j2")
        .render(
            certificate=certificate_section.view(run),
            sections=figure_sections.of(run, drawn),
            suites=suites,
            trace=run.document("141"),
            provenance=provenance.view(run),
            example=first_screen.prompt(run),
            disagreement=disagreement.of(run, measured),
            first_heads=disagreement.FIRST_HEADS,
            style=Markup(style()),
            script=Markup(script(SCRIPTS)),
            data=Markup(explored.as_json(explored.of(run, measured, graph))),
            library=bundle.library(),
            specifications=bundle.pack(json.dumps(specifications, sort_keys=True, separators=(",", ":"))),
        )
    )
    return text.replace(UNSEALED, f'<meta name="meridian-seal" content="{_seal(text, run)}">', 1)


def style() -> str:
    """The report's CSS."""
    return "".join(map(_text, STYLES))


def environment(heads: Sequence[str]) -> jinja2.Environment:
    """The templates' environment; mentions of `heads` become links that open them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,  # names of models and tokens of prompts are untrusted text
        finalize=lambda value: shown_text.visible(value) if type(value) is str else value,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shown": shown,
        "words": certificate_section.words,
        "number": number,
        "mark": mark,
        "ordinal": ordinal,
        "certified": sources.of_certificate,
        "parted": parted,
        "heads": partial(with_heads, known=frozenset(heads)),
        "commands": with_commands,
        "linked": partial(linked, known=frozenset(heads)),
        "told": partial(with_sources, known=frozenset(heads)),
    }
    return environment


def with_heads(text: object, known: frozenset[str]) -> Markup:
    """`text` escaped, with every mention of a known head as a link that opens the head."""
    return Markup(head_facts.HEAD.sub(lambda found: _head_link(found[0], known), str(escape(text))))


def with_commands(text: str) -> Markup:
    """`text` escaped, with every command of the project set as code, to be copied."""
    parts = COMMAND.split(shown_text.visible(text))  # every second part is a command
    return Markup().join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part) for place, part in enumerate(parts)
    )


def with_sources(text: str, source: FieldSource | None, known: frozenset[str]) -> Markup:
    """A sentence that stands in `source`, escaped: its numbers are links to that field, its heads links that open them.

    Without a source, which a sentence that the report itself words has, no number is a link.
    """
    if source is None:
        return with_heads(shown_text.visible(text), known)
    parts = NUMBER.split(shown_text.visible(text))  # every second part is a number
    return Markup().join(
        Markup('<a class="n" href="{}">{}</a>').format(source.address, part) if place % 2 else with_heads(part, known)
        for place, part in enumerate(parts)
    )


def linked(cell: str, source: FieldSource | None, known: frozenset[str]) -> Markup:
    """A cell of a table below a figure, escaped. Its number alone is a link if it has a source."""
    found = NUMBER_IN_CELL.fullmatch(cell)
    if source is None or found is None:
        return with_heads(cell, known)
    before, number, interval = found.groups(default="")
    return Markup('{}<a class="n" href="{}">{}</a>{}').format(before, source.address, number, interval)


def parted(text: str, told: tuple[str, FieldSource] | None) -> tuple[str, str, str]:
    """`text` before, at and after the number that has a source; all of it is before if it has none."""
    return text.partition(told[0]) if told else (text, "", "")


def _head_link(name: str, known: frozenset[str]) -> str:
    return f'<a class="head" href="#head={name}">{name}</a>' if name in known else name


def script(names: Sequence[str]) -> str:
    """A page's script: its files in order, in one scope."""
    return '"use strict";\n(() => {\n' + "".join(map(_text, names)) + "})();"


def shown(token: str) -> str:
    """A token with its white space and control characters made visible; the template escapes the rest."""
    return "".join(VISIBLE.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in token)


def mark(verdict: str) -> str:
    """The sign of a verdict, which carries the same information without colour."""
    return colours.MARKS.get(verdict, "–")


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
