"""report.html: one run to read and to share, a single file that needs no network."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
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
DRAWN_BY = (
    "meridian/**/*.py",
    *(f"meridian/report/*.{kind}" for kind in ("j2", "css", "js")),
    "calibrations/**/*.py",
    "results_io.py",
)
UNSEALED = '<meta name="meridian-seal" content="">'
SEAL = re.compile(r'<meta name="meridian-seal" content="([0-9a-f]{64})">')
VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣"}


def write(run: RunFolder, folder: str | Path | None = None) -> Path:
    """Write report.html into `folder` (beside certificate.json if None) in one step, and return its path.

    The same results give the same bytes. A report that was made from the same results by the same code, and that nobody
    has edited, is not drawn again. UserError if a result cannot be read.
    """
    path = Path(folder or run.path) / NAME
    if not path.is_file() or not is_current(path.read_text(encoding="utf-8", errors="replace"), run):
        results_io.write_text(path, render(run))
    return path


def is_current(text: str, run: RunFolder) -> bool:
    """True if `text` is the report of `run` to the letter: its seal is that of its text and of what it is made from."""
    found = SEAL.search(text, 0, 2000)
    return found is not None and found[1] == _seal(SEAL.sub(UNSEALED, text, count=1), run)


def made_from(run: RunFolder) -> dict[str, str]:
    """{file: SHA-256} of all that a report depends on: results of the run and of suites, the code and pages that draw them."""
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
    """SHA-256 over what a report was made from and over its text without the seal."""
    return results_io.sha256({"made_from": made_from(run), "text": results_io.sha256(text.encode())})


def render(run: RunFolder) -> str:
    """The report as HTML: certificate, figures by section with their numbers as tables, and what it was all made from.

    Its head holds the seal that `is_current` reads.
    """
    drawn = figures.by_section(run)
    specifications = {name: browser.specification(figure) for group in drawn.values() for name, figure in group.items()}
    suites = [
        (name, document["data"]["mode"], suite)
        for document in run.suites.values()
        for name, suite in document["data"]["suites"].items()
    ]
    text = (
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
    return text.replace(UNSEALED, f'<meta name="meridian-seal" content="{_seal(text, run)}">', 1)


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
