"""Where a number of the report stands: the file of the run's folder, the field in it, and what was done with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import results_io
from calibrations.registry import CALIBRATIONS, PRECONDITIONS
from meridian.figures.values import Figure
from meridian.run_folder import CERTIFICATE, RunFolder

OVER_PROMPTS = "mean over the evaluation prompts, for which the star stands"
FIELDS = tuple(  # of a figure's name: the result that it shows and the field in it
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
NAMED = re.compile(r"Results? ((?:\w+(?:, | to | and )?)+)\.")


@dataclass(frozen=True)
class Source:
    """A field of a JSON file, as "records[2].estimate"; a star in it is an index over which `made` says what was done."""

    file: str
    field: str
    made: str = ""

    @property
    def address(self) -> str:
        """The fragment of a link that opens the report's note about this number."""
        told = {"json": self.file, "field": self.field, "made": self.made}
        return "#" + "&".join(f"{name}={quote(value, safe='')}" for name, value in told.items() if value)


def of_certificate(field: str, made: str = "") -> Source:
    """A field of certificate.json."""
    return Source(CERTIFICATE, field, made)


def file_of(run: RunFolder, number: str) -> str | None:
    """Name of the file of result `number` in the run's folder; None if it is not there."""
    path = results_io.find(run.path, number)
    return None if path is None else path.name


def of_figure(run: RunFolder, figure: Figure) -> list[Source]:
    """The fields of the run's folder that a figure shows.

    Of a figure whose name `FIELDS` does not know: all data or records of the files that its caption names ("Results 02, 21.").
    """
    for pattern, number, field in FIELDS:
        found = pattern.fullmatch(figure.name)
        name = CERTIFICATE if number == CERTIFICATE else file_of(run, found.expand(number)) if found else None
        if found and name:
            return [Source(name, found.expand(field), figure.caption)]
    judged = {PRECONDITIONS, *(module.NUMBER for module in CALIBRATIONS.values())}
    return [Source(name, "records" if number in judged else "data") for number, name in _named(run, figure.caption)]


def _named(run: RunFolder, caption: str) -> Iterator[tuple[str, str]]:
    for found in NAMED.findall(caption):
        for number in re.split(", | and | to ", found):
            if name := file_of(run, number):
                yield number, name
