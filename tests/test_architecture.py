"""The layers of the project: what may import what. A change that breaks them fails here, with the file and the line.

Every import counts, also one inside a function and one that only type checkers read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BOTTOM = {"kernels", "registries", "results_io", "result_types", "code_digest"}
LAYERS = {  # each part of the project: the parts that it may import besides itself
    "results_io": set(),
    "code_digest": {"results_io"},
    "result_types": set(),
    "registries": {"results_io"},
    "kernels": {"registries", "results_io"},
    "calibrations": BOTTOM,
    "circuits": BOTTOM,
    "suites": {"circuits", "calibrations", *BOTTOM},
    "meridian": {"suites", "circuits", "calibrations", *BOTTOM},
    "run": {"meridian"},
    # no other entry lists scripts, so nobody may import it
    "scripts": {"meridian", "suites", "circuits", "calibrations", *BOTTOM},
}
NO_TORCH = ("calibrations", "registries", "results_io", "result_types", "code_digest")


@cache
def modules(root: Path = ROOT) -> Mapping[str, Path]:
    """Every module of the project by its dotted name; a package is named without `.__init__`."""
    found = {}
    for part in LAYERS:
        for path in [root / f"{part}.py"] if (root / f"{part}.py").is_file() else sorted((root / part).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[tuple[int, str, str]]:
    """(line, module, imported name; "" if a module was imported) of every import of a module of the project."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    yield node.lineno, inner, ""
                elif node.module in known:
                    yield node.lineno, node.module, alias.name


def broken_layers(root: Path = ROOT) -> list[str]:
    known = modules(root)
    return [
        f"{path.relative_to(root)}:{line} imports {target}"
        for name, path in known.items()
        for line, target, _ in imports(path, known)
        if target.partition(".")[0] not in {name.partition(".")[0], *LAYERS[name.partition(".")[0]]}
    ]


def circles(root: Path = ROOT) -> list[list[str]]:
    """Import cycles of any length: the strongly connected components of more than one module (Tarjan)."""
    known = modules(root)
    arrows = {name: sorted({target for _, target, _ in imports(path, known)} - {name}) for name, path in known.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in arrows[name]:
            if target not in index:
                visit(target)
            if target in stack:
                low[name] = min(low[name], low[target])
        if low[name] == index[name]:
            place = stack.index(name)
            if len(stack) - place > 1:
                found.append(sorted(stack[place:]))
            del stack[place:]

    for name in arrows:
        if name not in index:
            visit(name)
    return found


def private_names_used(root: Path = ROOT) -> list[str]:
    """Uses of another module's private names: `from a import _b`, or `a._b`."""
    known, found = modules(root), []
    for path in known.values():
        local = {}
        for line, target, name in imports(path, known):
            if name.startswith("_") and not name.startswith("__"):
                found.append(f"{path.relative_to(root)}:{line} takes {name} from {target}")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                local |= {a.asname or a.name: a.name for a in node.names if f"{node.module}.{a.name}" in known}
            elif isinstance(node, ast.Import):
                local |= {a.asname or a.name: a.name for a in node.names if a.name in known}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
                continue
            if node.value.id in local and node.attr.startswith("_") and not node.attr.startswith("__"):
                found.append(f"{path.relative_to(root)}:{node.lineno} uses {node.value.id}.{node.attr}")
    return found


def test_imports_point_down() -> None:
    assert len(modules()) > 300  # the whole project was read
    assert broken_layers() == []


def test_there_is_no_cycle_of_imports() -> None:
    assert circles() == []


def test_a_private_name_stays_in_its_module() -> None:
    assert private_names_used() == []


def test_the_judging_side_needs_no_torch() -> None:
    libraries = {"torch", "transformers", "transformer_lens", "triton"}
    for name, path in modules().items():
        if name.partition(".")[0] in NO_TORCH:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                taken = (
                    [a.name for a in node.names]
                    if isinstance(node, ast.Import)
                    else [getattr(node, "module", "") or ""]
                )
                if isinstance(node, ast.Import | ast.ImportFrom):
                    assert not libraries & {one.partition(".")[0] for one in taken}, f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    ("files", "check", "said"),
    [
        (
            {"suites/a.py": "def f():\n    from meridian import b\n", "meridian/b.py": ""},
            broken_layers,
            "suites/a.py:2 imports meridian.b",
        ),
        (
            {"calibrations/a.py": "import circuits.b\n", "circuits/b.py": ""},
            broken_layers,
            "calibrations/a.py:1 imports circuits.b",
        ),
        (
            {"meridian/a.py": "from scripts.b import c\n", "scripts/b.py": "c = 1\n"},
            broken_layers,
            "meridian/a.py:1 imports scripts.b",
        ),
        (
            {"suites/a.py": "from suites.b import x\n", "suites/b.py": "def f():\n    from suites import a\n"},
            circles,
            ["suites.a", "suites.b"],
        ),
        (
            {"suites/a.py": "from suites.b import _x\n", "suites/b.py": "_x = 1\n"},
            private_names_used,
            "suites/a.py:1 takes _x from suites.b",
        ),
        (
            {"suites/a.py": "from suites import b\n\nb._x()\n", "suites/b.py": "def _x(): ...\n"},
            private_names_used,
            "suites/a.py:3 uses b._x",
        ),
    ],
)
def test_each_rule_fails_on_a_tree_that_breaks_it(tmp_path, files, check, said) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert check(tmp_path) == [said]


def test_no_function_is_longer_than_sixty_lines() -> None:
    long = []
    for path in modules().values():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert long == []
