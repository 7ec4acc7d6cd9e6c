"""The site's source folder, written out, and the build."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Mapping
from pathlib import Path

from sphinx.cmd.build import build_main

from results_io import UserError
from scripts.docs import api, calibrations, literature, markdown, measurements, readme, source, suites

DOCS = source.ROOT / "docs"
NOTES = ("calibrations",)  # folders of docs/ whose pages are parts of generated ones
PAGES_OF_FILES = {  # files outside docs/ that are pages of the site
    "README.md": "index.md",
    "results/README.md": "results.md",
    "circuits/embedded/pocket/README.md": "pocket.md",
    "circuits/embedded/planted_ioi/README.md": "planted-trained.md",
    "results/benchmarks/README.md": "benchmarks.md",
}
MOVED = {  # sections of the README that are pages
    "README.md#the-calibrations": "calibrations/index.md",
    "README.md#behavioural-suites": "behaviour.md",
}
SECTIONS = (  # of the README, which are pages here: page, title, heading
    ("commands.md", "Commands", "Commands"),
    ("performance.md", "Thousands of interventions at once", "Thousands of interventions at once"),
    ("models.md", "The models", "The models"),
    ("three-certificates.md", "Three certificates", "Three certificates"),
)


def build(out: Path, work: Path) -> int:
    """Write the source below `work`, have Sphinx build it into `out`; the exit status, nonzero for any warning.

    A page that no navigation lists and a link without a target are warnings.
    """
    folder = work / "source"
    write(folder)
    return build_main(["-b", "html", "-W", "--keep-going", "-q", "-d", str(work / "doctrees"), str(folder), str(out)])


def write(folder: Path) -> dict[str, str]:
    """Every page, by its name; they replace what is in `folder`."""
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
    (folder / "growth").mkdir()
    shutil.copy(source.ROOT / "results" / "benchmarks" / "cpu-growth.svg", folder / "growth")
    return written


def pages_by_file() -> dict[str, str]:
    """The page that a file of the repository became."""
    own = {source.relative(path): path.relative_to(DOCS).as_posix() for path in _pages_of_docs()}
    made = {
        f"docs/{page}": page for page in (*generated(), *(page for page, _, _ in SECTIONS), *PAGES_OF_FILES.values())
    }
    return {**PAGES_OF_FILES, **made, **own}


def _pages_of_docs() -> list[Path]:
    return [p for p in sorted(DOCS.rglob("*.md")) if p.relative_to(DOCS).parts[0] not in NOTES]


def hand_written() -> dict[str, str]:
    """The pages of docs/, links adapted."""
    pages = pages_by_file()
    found = {}
    for path in _pages_of_docs():
        name = path.relative_to(DOCS).as_posix()
        found[name] = markdown.relinked(path.read_text(encoding="utf-8"), source.relative(path), pages, MOVED)
    return found


def files_elsewhere() -> dict[str, str]:
    """Pages made of the README's sections and of READMEs in other folders."""
    pages = pages_by_file()
    moved = {file: page for file, page in PAGES_OF_FILES.items() if file != "README.md"}
    found = {
        page: markdown.relinked((source.ROOT / file).read_text(encoding="utf-8"), file, pages, MOVED)
        for file, page in moved.items()
    }
    for page, title, heading in SECTIONS:
        text = f"# {title}\n\n{readme.section(readme.README, heading)}"
        text = text.replace("(results/benchmarks/cpu-growth.svg)", "(growth/cpu-growth.svg)")
        found[page] = markdown.relinked(
            text, "README.md", {**pages, "growth/cpu-growth.svg": "growth/cpu-growth.svg"}, MOVED
        )
    return found


@functools.cache
def generated() -> Mapping[str, str]:
    """Pages from code, configurations and measured rates."""
    return {
        **calibrations.pages(),
        **measurements.pages(),
        **suites.pages(),
        **api.pages(),
        "literature.md": literature.page(),
    }


def require_target(out: Path) -> None:
    """UserError if `out` holds anything but a site built here."""
    if out.exists() and any(out.iterdir()) and not (out / "objects.inv").exists():
        raise UserError(f"{out} is not empty and no documentation site; name a new or an empty folder with --out")
