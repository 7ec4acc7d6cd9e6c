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
    """The files that a figure's caption names ("Results 02, 21."), the ones in the run's folder, each with its data.

    Of a map of heads the field is that of its quantity.
    """
    judged = {PRECONDITIONS, *(module.NUMBER for module in CALIBRATIONS.values())}
    kind, _, rest = figure.name.partition("_")
    number, _, field = rest.partition("_")
    if kind == "heads" and (name := file_of(run, number)):
        return [Source(name, f"data.{field}", figure.caption)]
    return [Source(name, "records" if number in judged else "data") for number, name in _named(run, figure.caption)]


def _named(run: RunFolder, caption: str) -> Iterator[tuple[str, str]]:
    for found in NAMED.findall(caption):
        for number in re.split(", | and | to ", found):
            if name := file_of(run, number):
                yield number, name
