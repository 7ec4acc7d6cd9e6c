"""What a folder of results holds that a page can show: runs, drift sites, suites and geometry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import results_io
from calibrations.certificate_tier import tier_text
from meridian.run_folder import CERTIFICATE, GEOMETRY, POSITION, SUITES, RunFolder, suite_documents
from meridian.suite_folder import SuiteFolder
from results_io import UserError

SITES = "drift/*/site/index.html"


@dataclass(frozen=True)
class ListedRun:
    """A finished run: its folder below the results, what it is about, its tier in words, and an example of its prompts."""

    name: str
    model: str
    task: str
    tier: str
    prompt: str
    answer: str
    foil: str


@dataclass(frozen=True)
class Shelf:
    """The folder `results`. Whatever is asked for by name has to be listed, so that nothing else is ever opened."""

    results: Path

    def runs(self) -> list[ListedRun]:
        """The finished runs that can be read, by name."""
        return list(self._runs())

    def _runs(self) -> Iterator[ListedRun]:
        for path in sorted(self.results.rglob(CERTIFICATE)):
            name = path.parent.relative_to(self.results).as_posix()
            try:
                run = RunFolder.open(path.parent)
                subject, example = run.certificate["subject"], _example(run)
            except (UserError, KeyError):  # of another version, or not whole: its own commands say so
                continue
            yield ListedRun(name, subject["model"], subject["task"], tier_text(run.certificate), *example)

    def run(self, name: str) -> RunFolder:
        """The listed run of this name. UserError if there is none."""
        names = [one.name for one in self.runs()]
        if name not in names:
            raise UserError(
                f"there is no finished run {name!r} here; use one of {', '.join(names) or 'those of a run'}"
            )
        return RunFolder.open(self.results / name)

    def sites(self) -> list[str]:
        """The series of drift that have a site."""
        return sorted(path.parent.parent.name for path in self.results.glob(SITES))

    def suites(self) -> list[str]:
        """The folders of behavioural suites that have results."""
        return self._folders(SUITES, lambda folder: bool(suite_documents(folder)))

    def geometry(self) -> list[str]:
        """The folders of geometry that have results."""
        return self._folders(GEOMETRY, lambda folder: results_io.find(folder, POSITION) is not None)

    def _folders(self, kind: str, holds: Callable[[Path], bool]) -> list[str]:
        found = (path for path in self.results.rglob(kind) if path.is_dir() and holds(path))
        return sorted(path.relative_to(self.results).as_posix() for path in found)

    def suite_folder(self, name: str) -> SuiteFolder:
        """The listed folder of suites. UserError if there is none of this name."""
        if name not in self.suites():
            raise UserError(f"there are no suites {name!r} here; run suite=all")
        return SuiteFolder(self.results / name)

    def site_file(self, series: str, name: str) -> Path:
        """A file of a drift site. UserError if the series has no site, or its site no such file."""
        folder = self.results / "drift" / series / "site"
        path = (folder / name).resolve()
        if series not in self.sites() or not path.is_relative_to(folder.resolve()) or not path.is_file():
            raise UserError(f"there is no file {name!r} in the site of {series!r}")
        return path


def _example(run: RunFolder) -> tuple[str, str, str]:
    """The first prompt that 01 shows, as one would type it, with answer and foil; empty texts where none is stored."""
    examples = run.require("01")["data"].get("examples") or ()
    if not examples:
        return "", "", ""
    example = examples[0]
    tokens = [token for token in example["clean"] if token != example["bos"]]
    joint = "" if any(token[:1].isspace() for token in tokens) else " "
    words = ((example.get(name) or [""])[0].strip() for name in ("answers", "wrong"))
    answer, foil = words
    return joint.join(tokens).strip(), answer, foil
