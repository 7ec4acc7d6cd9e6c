"""The content of a results folder that pages can show: runs, drift sites, suites, geometry and judging."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import results_io
from calibrations.tier_words import tier_text
from meridian import ranges
from meridian.report import judging_page, prompt_table
from meridian.run_folder import CERTIFICATE, DEPTH, GEOMETRY, POSITION, SUITES, RunFolder, below, folders_below
from result_types import RATES
from results_io import UserError

SITES = "drift/*/site/index.html"
MANIFESTS = "drift/*/manifest-*.json"
JUDGING = "judging"


@dataclass(frozen=True)
class ListedRun:
    """A finished run: its folder below the results, its subject, its tier in words, the ablation recipe of its claim, and an
    example of its prompts."""

    name: str
    model: str
    task: str
    tier: str
    recipe: str
    prompt: str
    answer: str
    foil: str


@dataclass(frozen=True)
class Shelf:
    """The folder `results`. Only listed names can be requested, so nothing else is ever opened."""

    results: Path

    def runs(self) -> list[ListedRun]:
        """The finished runs that can be read, by name."""
        return list(self._runs())

    def _runs(self) -> Iterator[ListedRun]:
        for path in below(self.results, CERTIFICATE):
            name = path.parent.relative_to(self.results).as_posix()
            try:
                run = RunFolder.open(path.parent)
                subject, example = run.certificate["subject"], (run.evidence.primary_recipe, *_example(run))
            except (UserError, KeyError, OSError):  # of another version, or incomplete; its own commands report it
                continue
            yield ListedRun(name, subject["model"], subject["task"], tier_text(run.certificate), *example)

    def run(self, name: str) -> RunFolder:
        """The listed run with this name. UserError if there is none."""
        names = [one.name for one in self.runs()]
        if name not in names:
            raise UserError(
                f"there is no finished run {ranges.shown(name)!r} here; use one of {', '.join(names) or 'those of a run'}"
            )
        return RunFolder.open(self.results / name)

    def sites(self) -> list[str]:
        """The drift series that have a site."""
        found = (path for path in self.results.glob(SITES) if is_inside(self.results, path))
        return sorted(path.parent.parent.name for path in found)

    def suites(self) -> list[str]:
        """The folders with results of behavioural suites: of all suites, and of single suites below."""
        return self._folders(SUITES, RATES)

    def geometry(self) -> list[str]:
        """The folders with results of geometry: of all sets, and of single sets below."""
        return self._folders(GEOMETRY, (POSITION,))

    def _folders(self, kind: str, numbers: Iterable[str]) -> list[str]:
        """Folders with this name, and their direct subfolders, that have a result with one of these numbers.

        Folders that cannot be listed are left out.
        """
        places = (
            place for folder in self._inside(folders_below(self.results, kind)) for place in (folder, *_listed(folder))
        )
        found = (place for place in self._inside(places) if any(next(place.glob(f"{n}_*.json"), None) for n in numbers))
        return sorted({place.relative_to(self.results).as_posix() for place in found})

    def _inside(self, places: Iterable[Path]) -> Iterator[Path]:
        """The places that are folders inside the results after resolving all links, as far as this user may read them."""
        own = self.results.resolve()
        for place in places:
            with contextlib.suppress(OSError):
                if place.is_dir() and place.resolve().is_relative_to(own):
                    yield place

    def judging(self) -> list[str]:
        """The judging folders that have results."""
        found = (path for path in self._inside(folders_below(self.results, JUDGING)) if judging_page.holds(path))
        return sorted(path.relative_to(self.results).as_posix() for path in found)

    def series(self) -> list[str]:
        """The drift series that were analysed."""
        return sorted({path.parent.relative_to(self.results).as_posix() for path in self.results.glob(MANIFESTS)})

    def pages(self) -> dict[str, list[str]]:
        """{title: folders with a page of their own}, without titles that have no folder."""
        found = {
            "Suites": self.suites(),
            "Geometry": self.geometry(),
            "Judging": self.judging(),
            "Drift": self.series(),
        }
        return {title: names for title, names in found.items() if names}

    def page_folder(self, name: str) -> Path:
        """The listed folder of suites, geometry, judging or drift with this name. UserError if there is none."""
        if name not in {one for names in self.pages().values() for one in names}:
            raise UserError(
                f"there is no folder {ranges.shown(name)!r} of suites, geometry, judging or drift; run suite=all, for example"
            )
        return self.results / name

    def site_file(self, series: str, name: str) -> Path:
        """A file of a drift site. UserError if the series has no site, or the site has no such file."""
        folder = self.results / "drift" / series / "site"
        if series not in self.sites() or not is_inside(folder, folder / name):
            raise UserError(
                f"there is no file {ranges.shown(name)!r} in a site of {ranges.shown(series)!r} here; open a link of the first "
                "page"
            )
        return folder / name

    def result_files(self, folder: Path, subfolders: bool = False) -> dict[str, Path]:
        """{name: file} of the JSON files that may be shown in a folder, and with `subfolders` also in these."""
        found = below(folder, "*.json", DEPTH if subfolders else 0)
        return {path.relative_to(folder).as_posix(): path for path in found if is_inside(folder, path)}


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:  # not a folder, or not readable
        return []


def is_inside(folder: Path, path: Path) -> bool:
    """True if `path`, with all links resolved, is a regular file inside the folder and no larger than a result may be.

    False if it cannot be resolved, for example because its name is too long for the system.
    """
    try:
        place = path.resolve(strict=True)
        state = place.stat()
        inside = place.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # includes a NUL in the name, and circular links
        return False
    return inside and stat.S_ISREG(state.st_mode) and state.st_size <= results_io.MOST_BYTES


def _example(run: RunFolder) -> tuple[str, str, str]:
    """The first example prompt of 01 as one would type it, its answer and its foil; empty texts if none is stored."""
    data = run.require("01")["data"]
    if not data.get("examples"):
        return "", "", ""
    example, identity = data["examples"][0], data["prompt_id"][0]
    tokens = [token for token in example["clean"] if token != example["bos"]]
    answer, foil = ((example.get(name) or [""])[0].strip() for name in ("answers", "wrong"))
    drawn = prompt_table.drawn_again(run, [identity]).get(identity)
    if drawn is not None and _letters(drawn.clean) == _letters(*tokens):
        return drawn.clean, answer, foil
    joint = "" if any(token[:1].isspace() for token in tokens) else " "
    return joint.join(tokens).strip(), answer, foil


def _letters(*texts: str) -> str:
    """The texts without their white space, which tokenizers mark in ways of their own."""
    return "".join("".join(texts).split())
