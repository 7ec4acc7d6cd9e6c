"""Writes the site's source folder and builds the site."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path

from sphinx.cmd.build import build_main

from results_io import UserError
from scripts.docs import api, calibrations, literature, markdown, measurements, schemas, source, suites

DOCS = source.ROOT / "docs"
NOTES = ("calibrations",)  # folders of docs/ whose pages become parts of generated pages
PAGES_OF_FILES = {  # files outside docs/ that become pages of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "results/README.md": "results.md",
    "circuits/embedded/pocket/README.md": "pocket.md",
    "circuits/embedded/planted_ioi/README.md": "planted-trained.md",
    "results/benchmarks/README.md": "benchmarks.md",
}
COPIED = {  # files that pages link to but that are not pages
    "results/benchmarks/cpu-growth.svg": "growth/cpu-growth.svg",
    "docs/tutorials/gifts.csv": "tutorials/gifts.csv",
}


def build(out: Path, work: Path) -> int:
    """Write the source below `work` and let Sphinx build it into `out`; returns the exit status, nonzero for any warning.

    Pages outside the navigation and links without a target are warnings.
    """
    folder = work / "source"
    write(folder)
    return build_main(["-b", "html", "-W", "--keep-going", "-q", "-d", str(work / "doctrees"), str(folder), str(out)])


def write(folder: Path) -> dict[str, str]:
    """Write every page into `folder`, replacing its content; returns {name: page}."""
    if folder.exists():
        shutil.rmtree(folder)
    written = {**hand_written(), **files_elsewhere(), **generated()}
    for name, text in written.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    shutil.copy(DOCS / "conf.py", folder)
    shutil.copytree(DOCS / "_static", folder / "_static")
    for picture in [*DOCS.rglob("*.svg"), *DOCS.rglob("*.png")]:
        (folder / picture.relative_to(DOCS)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, folder / picture.relative_to(DOCS))
    for file, copied in COPIED.items():
        (folder / copied).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source.ROOT / file, folder / copied)
    return written


def pages_by_file() -> dict[str, str]:
    """{file of the repository: the page that it becomes}."""
    own = {source.relative(path): path.relative_to(DOCS).as_posix() for path in _pages_of_docs()}
    made = {f"docs/{page}": page for page in (*generated(), *PAGES_OF_FILES.values())}
    return {**PAGES_OF_FILES, **COPIED, **made, **own}


def _pages_of_docs() -> list[Path]:
    return [p for p in sorted(DOCS.rglob("*.md")) if p.relative_to(DOCS).parts[0] not in NOTES]


def hand_written() -> dict[str, str]:
    """The pages of docs/ with adapted links."""
    pages = pages_by_file()
    found = {}
    for path in _pages_of_docs():
        name = path.relative_to(DOCS).as_posix()
        found[name] = markdown.relinked(path.read_text(encoding="utf-8"), source.relative(path), pages)
    return found


def files_elsewhere() -> dict[str, str]:
    """Pages made from files outside docs/; docs/index.md takes the place of the README."""
    pages = pages_by_file()
    return {
        page: markdown.relinked((source.ROOT / file).read_text(encoding="utf-8"), file, pages)
        for file, page in PAGES_OF_FILES.items()
        if file != "README.md"
    }


@functools.cache
def generated() -> Mapping[str, str]:
    """Pages from code, configurations and measured rates."""
    return {
        **calibrations.pages(),
        **measurements.pages(),
        **suites.pages(),
        **api.pages(),
        **schemas.pages(),
        "literature.md": literature.page(),
    }


def require_target(out: Path) -> None:
    """UserError if `out` holds anything but a site built here."""
    if out.exists() and any(out.iterdir()) and not (out / "objects.inv").exists():
        raise UserError(f"{out} is not empty and no documentation site; name a new or an empty folder with --out")
