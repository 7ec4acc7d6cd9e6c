"""Source read without importing: constants, docstrings, signatures."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("calibrations", "circuits", "kernels", "meridian", "scripts", "suites")


def files() -> Iterator[Path]:
    """Every source file of the project, sorted, tests left out."""
    yield from sorted(ROOT.glob("*.py"))
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def dotted(path: Path) -> str:
    """The module's name: circuits/study.py is circuits.study."""
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def docstring(node: ast.AST) -> str:
    """The docstring, indentation removed; empty without one."""
    return inspect.cleandoc(ast.get_docstring(node, clean=False) or "")


def function(path: Path, name: str) -> ast.FunctionDef | None:
    """The function called `name` at the top of a module."""
    return next((n for n in tree(path).body if isinstance(n, ast.FunctionDef) and n.name == name), None)


@functools.cache
def constants(path: Path) -> dict[str, Any]:
    """The module's constants that are plain literals."""
    found = {}
    for statement in tree(path).body:
        for name, value in _assigned(statement):
            try:
                found[name] = ast.literal_eval(value)
            except ValueError:  # computed, so nothing that a page can quote
                continue
    return found


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement at the top of a module gives values, `A, B = 1, 2` taken apart."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        yield statement.target.id, statement.value
    if isinstance(statement, ast.Assign):
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Name):
            yield target.id, value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from ((t.id, v) for t, v in zip(target.elts, value.elts, strict=True) if isinstance(t, ast.Name))
