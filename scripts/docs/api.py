"""The Python reference: which modules are on which page, and what Sphinx's autodoc needs to read our docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from scripts.docs import markdown, source

# (title, purpose, modules); a name that ends with .* stands for every public module below it without a page of its own
PAGES = (
    ("meridian", "The public Python API, and what reads results for people.", "meridian meridian.*"),
    ("meridian.experiments", "Many runs with one table at the end.", "meridian.experiments meridian.experiments.*"),
    ("meridian.doctor", "Is it the model or the library?", "meridian.doctor meridian.doctor.*"),
    ("meridian.training", "How the shipped models were made.", "meridian.training meridian.training.*"),
    (
        "circuits",
        "Everything that touches a model.",
        "circuits.study circuits.models circuits.tasks circuits.tasks.base circuits.tasks.example circuits.prompts "
        "circuits.circuit circuits.edges circuits.hypothesis circuits.interventions circuits.engine circuits.engine.lens "
        "circuits.engine.fused circuits.measure circuits.discovery circuits.discovery.search circuits.claims",
    ),
    (
        "calibrations",
        "Results in, verdicts out; no model, no torch.",
        "calibrations.registry calibrations.calibrate calibrations.evidence calibrations.record "
        "calibrations.preconditions calibrations.certificate calibrations.summary",
    ),
    ("calibrations.statistics", "The estimators that calibrations share.", "calibrations.statistics.*"),
    (
        "suites",
        "Behavioural suites.",
        "suites.item suites.declaration suites.runner suites.outcome suites.estimate suites.gate suites.models.base "
        "suites.modes suites.generators suites.bridge",
    ),
    ("suites.statistics", "Statistics of rates, pairs and judges.", "suites.statistics.*"),
    ("results_io", "The numbered result files.", "results_io"),
    ("shown_progress", "How a long job says how far it is.", "shown_progress"),
)
UNWRITTEN_DEFAULT = re.compile(r"= <.*?>+(?=[,)])")  # <factory>, <function f.<lambda>>: Sphinx cannot parse them


def pages() -> dict[str, str]:
    """The index, and one page for each entry of PAGES with an autodoc directive for each of its modules."""
    rows = [(f"[{title}]({title}.md)", purpose) for title, purpose, _ in PAGES]
    index = f"# Python reference\n\n{markdown.table(('package', 'what it is'), rows)}\n"
    written = {"api/index.md": index + markdown.toctree(title for title, *_ in PAGES)}
    for title, purpose, patterns in PAGES:
        modules = [module for pattern in patterns.split() for module in _modules(pattern)]
        directives = [f"## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n```\n" for name in modules]
        written[f"api/{title}.md"] = "\n".join([f"# {title}\n", f"{purpose}\n", *directives])
    return written


def _modules(pattern: str) -> Iterator[str]:
    name = pattern.removesuffix(".*")
    if name == pattern:
        yield name
        return
    elsewhere = tuple(f"{title}." for title, *_ in PAGES if title.startswith(f"{name}."))
    for path in sorted((source.ROOT / name.replace(".", "/")).rglob("*.py")):
        found = source.relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if found != name and "._" not in found and not f"{found}.".startswith(elsewhere):
            yield found


def connect(app) -> None:
    """Make autodoc show our docstrings and signatures correctly."""
    for *_, patterns in PAGES:
        for name in (name for pattern in patterns.split() for name in _modules(pattern)):
            _import_types(importlib.import_module(name))
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("autodoc-process-signature", _process_signature)


def _import_types(module: ModuleType) -> None:
    """Run a module's imports under TYPE_CHECKING, because autodoc links only those types that it can evaluate."""
    file = Path(str(module.__file__))
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(statement.body, []), file, "exec"), vars(module))


def _process_docstring(app, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    text = "\n".join(lines)
    generated = inspect.isclass(documented) and text.startswith(f"{documented.__name__}(")  # by @dataclass
    lines[:] = [] if generated else restructured(text).splitlines()


def _process_signature(
    app, what: str, name: str, documented: object, options: object, signature: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    if what == "class" and signature == "(*args, **kwargs)":  # of a Protocol, which is never called
        return "", None
    return (UNWRITTEN_DEFAULT.sub("= ...", signature), returned) if signature else None


def restructured(docstring: str) -> str:
    """A docstring as reStructuredText: code spans and lists stay, indented formulas become literal, the rest is plain text."""
    parts = []
    for is_formula, lines in itertools.groupby(docstring.splitlines(), key=lambda line: line.startswith("    ")):
        block = "\n".join(lines)
        parts.append(f"\n::\n\n{block}\n" if is_formula else _plain(block))
    return "\n".join(parts)


def _plain(text: str) -> str:
    """Text with code spans as literals and everything else escaped that reStructuredText would read as markup."""
    parts = markdown.CODE_SPAN.split(text)
    for place, part in enumerate(parts):
        if place % 2:
            parts[place] = f"\\ ``{' '.join(part.strip('`').split())}``\\ "
        else:
            parts[place] = re.sub(r"([\\*|`_])", r"\\\1", part)
    return re.sub(r"(?m)^(?!- |  )(.+)\n- ", r"\1\n\n- ", "".join(parts))
