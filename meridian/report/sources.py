"""The sources of the report's numbers: a file in the run's folder, the field in it, and how the number was computed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import results_io
from calibrations.registry import CALIBRATIONS, PRECONDITIONS
from meridian.figures.values import Figure
from meridian.run_folder import CERTIFICATE, NUMBERED, RunFolder

OVER_PROMPTS = (
    "mean over the evaluation prompts, which are the rows of that split in result 01; the star stands for all rows"
)
FIELDS = tuple(  # pattern of a figure's name, the result that it shows, and the field in it
    (re.compile(pattern), number, field)
    for pattern, number, field in (
        (r"heads_(\w\d)_(.+)", r"\1", r"data.\2"),
        (r"lens_(probability|logit_diff)", "04", r"data.\1"),
        (r"lens_(probability|logit_diff)_by_position", "04", r"data.by_position.\1"),
        (r"lens_example_\d+", "04", "data.examples"),
        (r"trace_(\w+)", "06", r"data.impact.\1"),
        (r"sites_(\w+)", "02", r"data.sites.denoising.\1"),
        (r"pattern_\d+_\w+", "25", "data.examples"),
        ("circuit", "28", "data.noising"),
        ("completeness_groups", CERTIFICATE, "worst_groups.claimed"),
        ("outside_groups", CERTIFICATE, "worst_groups.outside"),
        (r"forest_calibrations(?:_\d+)?", CERTIFICATE, "rows"),
        ("forest_(recipes|templates)", "20", "data.logit_diff"),
        ("failure_carriers", "141", "named"),
    )
)
PLAIN = re.compile(r"[A-Za-z_][\w ,:/-]*")  # a name that a field's path has without quotes
NAMED = re.compile(r"Results? ((?:\w+(?:, | to | and )?)+)\.")


@dataclass(frozen=True)
class FieldSource:
    """A field of a JSON file, such as "records[2].estimate". `made` says how a star in it, an index, was aggregated."""

    file: str
    field: str
    made: str = ""

    @property
    def address(self) -> str:
        """The URL fragment that opens the report's note about this number."""
        told = {"json": self.file, "field": self.field, "made": self.made}
        return "#" + "&".join(f"{name}={quote(value, safe='')}" for name, value in told.items() if value)


def of_certificate(field: str, made: str = "") -> FieldSource:
    """A field of certificate.json."""
    return FieldSource(CERTIFICATE, field, made)


def step(name: str) -> str:
    """The part of a field's path that leads to the key `name`."""
    return f".{name}" if PLAIN.fullmatch(name) else f'["{name}"]'


def file_of(run: RunFolder, number: str) -> str | None:
    """The file name of result `number` in the run's folder; None if it is missing."""
    path = results_io.find(run.path, number)
    return None if path is None else path.name


def of_figure(run: RunFolder, figure: Figure) -> list[FieldSource]:
    """The fields of the run's folder that a figure shows.

    If `FIELDS` does not know the figure's name: all data or records of the files named in its caption ("Results 02, 21.").
    """
    for pattern, number, field in FIELDS:
        found = pattern.fullmatch(figure.name)
        name = CERTIFICATE if number == CERTIFICATE else file_of(run, found.expand(number)) if found else None
        if found and name:
            return [FieldSource(name, found.expand(field), figure.caption)]
    return list(of_caption(figure.caption, files_of(run)))


def files_of(run: RunFolder) -> dict[str, str]:
    """{number: file} of the run's results, and of its model's suites and geometry beside it ("../suites/...")."""
    found = {}
    for folder in (run.geometry_folder, run.suites_folder, run.path):
        for path in sorted(folder.glob(NUMBERED)) if folder else ():
            found[path.name.partition("_")[0]] = os.path.relpath(path.resolve(), run.path.resolve()).replace(
                os.sep, "/"
            )
    return found


def numbered(folder: Path) -> dict[str, str]:
    """{number: file} of the results in a folder."""
    return {path.name.partition("_")[0]: path.name for path in sorted(Path(folder).glob(NUMBERED))}


def of_caption(caption: str, files: Mapping[str, str]) -> Iterator[FieldSource]:
    """The results named in a caption ("Results 02, 101 to 116."), as far as `files` has them."""
    judged = {PRECONDITIONS, *(module.NUMBER for module in CALIBRATIONS.values())}
    for found in NAMED.findall(caption):
        for part in re.split(", | and ", found):
            first, _, last = part.partition(" to ")
            for number, name in files.items():
                if number == first or _between(first, number, last):
                    yield FieldSource(
                        name, "records" if number in judged or (number > "100" and len(number) == 3) else "data"
                    )


def _between(first: str, number: str, last: str) -> bool:
    """True for 103 between 101 and 116. Only plain numbers count, because E1b has no place in their order."""
    return all(one.isdigit() for one in (first, number, last)) and int(first) <= int(number) <= int(last)
