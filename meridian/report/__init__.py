"""report.html: one run to read and to share, a single file that needs no network."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2
from markupsafe import Markup

import results_io
from calibrations.number_format import number
from meridian import figures
from meridian.figures import colours
from meridian.figures import plotly as browser
from meridian.report import bundle, certificate_section, figure_sections, provenance
from meridian.run_folder import RunFolder

NAME = "report.html"
HERE = Path(__file__).parent
VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣"}


def write(run: RunFolder, folder: str | Path | None = None) -> Path:
    """Write report.html into `folder` (beside certificate.json if None) in one step, and return its path.

    The same results give the same bytes; a report that already has them is not written again. UserError if a result cannot
    be read.
    """
    path = Path(folder or run.path) / NAME
    text = render(run)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        results_io.write_text(path, text)
    return path


def render(run: RunFolder) -> str:
    """The report as HTML: certificate, figures by section with their numbers as tables, and what it was all made from."""
    drawn = figures.by_section(run)
    specifications = {name: browser.specification(figure) for group in drawn.values() for name, figure in group.items()}
    suites = [
        (name, document["data"]["mode"], suite)
        for document in run.suites.values()
        for name, suite in document["data"]["suites"].items()
    ]
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            certificate=certificate_section.view(run),
            sections=figure_sections.of(run, drawn),
            suites=suites,
            trace=run.document("141"),
            provenance=provenance.view(run),
            style=Markup(_text("style.css")),
            script=Markup(_text("script.js")),
            library=bundle.library(),
            specifications=bundle.pack(json.dumps(specifications, sort_keys=True, separators=(",", ":"))),
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,  # names of models and tokens of prompts are anybody's text
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"shown": shown, "words": certificate_section.words, "number": number, "mark": mark}
    return environment


def shown(token: str) -> str:
    """A token with its white space and control characters made visible; the rest is left to the template to escape."""
    return "".join(VISIBLE.get(c, c if c.isprintable() else f"\\u{ord(c):04x}") for c in token)


def mark(verdict: str) -> str:
    """The sign of a verdict, which says the same without colour."""
    return colours.MARKS.get(verdict, "–")


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
