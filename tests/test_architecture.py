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
BOTTOM = {
    "interruption",
    "shown_progress",
    "shown_text",
    "kernels",
    "registries",
    "results_io",
    "result_schemas",
    "result_types",
    "code_digest",
    "node_names",
}
LAYERS = {  # each part of the project: the parts that it may import besides itself
    "interruption": set(),
    "console_streams": set(),
    "shown_progress": set(),
    "shown_text": set(),
    "results_io": {"result_schemas"},
    "code_digest": {"results_io"},
    "result_schemas": {"result_types"},
    "result_types": set(),
    "node_names": set(),
    "registries": {"results_io"},
    "kernels": {"registries", "results_io"},
    "calibrations": BOTTOM - {"kernels"},  # which import torch
    "circuits": BOTTOM,
    "suites": {"circuits", "calibrations", *BOTTOM},
    "meridian": {"suites", "circuits", "calibrations", *BOTTOM},
    "run": {"meridian", "interruption", "console_streams"},
    "scripts": {"meridian", "suites", "circuits", "calibrations", *BOTTOM},  # imported by nobody
}
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}  # public, whatever they are called
FOUND_BY_PLACE = {"published"}  # circuits/tasks/published: one file a task
NO_TORCH = (
    "interruption",
    "console_streams",
    "calibrations",
    "registries",
    "results_io",
    "result_schemas",
    "result_types",
    "code_digest",
    "node_names",
)


@cache
def modules(root: Path = ROOT) -> Mapping[str, Path]:
    """Every module of the project by its dotted name; a package goes by its own name."""
    found = {}
    for part in LAYERS:
        for path in [root / f"{part}.py"] if (root / f"{part}.py").is_file() else sorted((root / part).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def parsed(text: str) -> ast.Module:
    """Every test reads the whole project; it is parsed once."""
    return ast.parse(text)


def imports(path: Path, known: Mapping[str, Path]) -> Iterator[tuple[int, str, str]]:
    """(line, module, name taken from it, "" for the module itself) of every import of a module of the project."""
    for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    yield node.lineno, inner, ""
                elif node.module in known:
                    yield node.lineno, node.module, alias.name
        elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in ("import_module", "__import__"):
            given = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, name, "") for name in given if name in known)


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text; "" for anything but names and attributes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def broken_layers(root: Path = ROOT) -> list[str]:
    known = modules(root)
    return [
        f"{path.relative_to(root)}:{line} imports {target}"
        for name, path in known.items()
        for line, target, _ in imports(path, known)
        if target.partition(".")[0] not in {name.partition(".")[0], *LAYERS[name.partition(".")[0]]}
    ]


def circles(root: Path = ROOT) -> list[list[str]]:
    """Modules that reach each other by imports: the strongly connected components of more than one (Tarjan)."""
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
    """Uses of another module's private names: `from a import _b`, `from a import B` with `B._c`, `a._b`, and a module `_a`."""
    known, found = modules(root), []
    for path in known.values():
        file, taken = path.relative_to(root), set()
        for line, target, name in imports(path, known):
            if is_private(name) or (not name and is_private(target.rpartition(".")[2])):
                found.append(
                    f"{file}:{line} takes {name or target} from {target if name else target.rpartition('.')[0]}"
                )
        tree = parsed(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in LAYERS:
                taken |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Import):
                taken |= {alias.asname or alias.name for alias in node.names if alias.name in known}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr) and dotted(node.value) in taken:
                found.append(f"{file}:{node.lineno} uses {dotted(node)}")
    return found


def shared_class_names(root: Path = ROOT) -> list[str]:
    """Classes of one name in several files: whoever reads the name must guess which is meant.

    Files that are found by their place (one published task each) hold a class of one agreed name.
    """
    places: dict[str, set[str]] = {}
    for path in modules(root).values():
        if path.parent.name not in FOUND_BY_PLACE:
            for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    places.setdefault(node.name, set()).add(str(path.relative_to(root)))
    return [f"{name}: {', '.join(sorted(files))}" for name, files in sorted(places.items()) if len(files) > 1]


def test_everything_at_the_top_has_a_layer() -> None:
    """A module without a place in the table would import, and be imported by, whatever it likes."""
    files = {path.stem for path in ROOT.glob("*.py")} - {"setup"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and any(path.glob("*.py"))} - {"docs", "tests"}
    assert files | folders == set(LAYERS)


def test_imports_point_down() -> None:
    assert len(modules()) > 300  # the whole project was read
    assert broken_layers() == []


def test_no_two_modules_import_each_other() -> None:
    assert circles() == []


def test_a_private_name_stays_in_its_module() -> None:
    assert private_names_used() == []


def test_a_class_has_a_name_of_its_own() -> None:
    assert shared_class_names() == []


def test_the_judging_side_needs_no_torch() -> None:
    libraries = {"torch", "transformers", "transformer_lens", "triton"}
    for name, path in modules().items():
        if name.partition(".")[0] in NO_TORCH:
            for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
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
            {"suites/a.py": 'from importlib import import_module\nimport_module("meridian.b")\n', "meridian/b.py": ""},
            broken_layers,
            "suites/a.py:2 imports meridian.b",
        ),
        (
            {"calibrations/a.py": "from kernels import b\n", "kernels/b.py": ""},
            broken_layers,
            "calibrations/a.py:1 imports kernels.b",
        ),
        (
            {"suites/a.py": "import suites.b\n\nsuites.b._x()\n", "suites/b.py": "def _x(): ...\n"},
            private_names_used,
            "suites/a.py:3 uses suites.b._x",
        ),
        (
            {"suites/a.py": "from suites.b import B\n\nB._x()\n", "suites/b.py": "class B: ...\n"},
            private_names_used,
            "suites/a.py:3 uses B._x",
        ),
        (
            {"suites/a.py": "from suites import _b\n", "suites/_b.py": ""},
            private_names_used,
            "suites/a.py:1 takes suites._b from suites",
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
        (
            {"suites/a.py": "class Row: ...\n", "calibrations/b.py": "class Row: ...\n"},
            shared_class_names,
            "Row: calibrations/b.py, suites/a.py",
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
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60:
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert long == []
