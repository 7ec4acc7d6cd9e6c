"""Locations in the repository, and the pages of the site that describe them."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

from registries import name_of
from scripts.docs import markdown

ROOT = Path(__file__).resolve().parents[2]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def docstring(documented: object) -> str:
    """The docstring of a module, class or function as Markdown."""
    return markdown.prose(inspect.getdoc(documented))


def functions(module: ModuleType) -> list:
    """The functions that the module defines, in the order of the source."""
    own = [f for f in vars(module).values() if getattr(f, "__module__", "") == module.__name__ and callable(f)]
    return [f for f in own if not inspect.isclass(f)]


def calibration_page(module: ModuleType) -> str:
    return f"calibrations/{name_of(module)}.md"


def measurement_page(module: ModuleType) -> str:
    return f"measurements/{module.NUMBER}_{module.ID}.md"


def calibration_link(module: ModuleType) -> str:
    """Identifier and title, linked from a page one folder below the root of the site."""
    return f"[{module.ID} {module.TITLE}](../{calibration_page(module)})"


def measurement_link(module: ModuleType) -> str:
    return f"[{module.NUMBER} {measurement_title(module)}](../{measurement_page(module)})"


def measurement_title(module: ModuleType) -> str:
    return module.ID.replace("_", " ")
