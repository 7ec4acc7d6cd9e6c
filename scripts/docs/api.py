"""The Python reference: public classes and functions of the packages, with signatures and docstrings, read by griffe."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import griffe

from scripts.docs import markdown, source

# page, title, what it is for, modules (a name that ends with .* means every public module below it)
PAGES = (
    ("meridian", "meridian", "The public Python API, and what reads results for people.", ("meridian", "meridian.*")),
    (
        "circuits",
        "circuits",
        "Everything that touches a model.",
        (
            "circuits.study",
            "circuits.models",
            "circuits.tasks",
            "circuits.tasks.base",
            "circuits.tasks.example",
            "circuits.prompts",
            "circuits.circuit",
            "circuits.edges",
            "circuits.hypothesis",
            "circuits.interventions",
            "circuits.engine",
            "circuits.measure",
            "circuits.discovery",
            "circuits.discovery.search",
            "circuits.claims",
        ),
    ),
    (
        "calibrations",
        "calibrations",
        "Results in, verdicts out; no model, no torch.",
        (
            "calibrations.registry",
            "calibrations.calibrate",
            "calibrations.evidence",
            "calibrations.record",
            "calibrations.preconditions",
            "calibrations.certificate",
            "calibrations.summary",
        ),
    ),
    (
        "statistics",
        "calibrations.statistics",
        "The estimators that calibrations share.",
        ("calibrations.statistics.*",),
    ),
    (
        "suites",
        "suites",
        "Behavioural suites.",
        (
            "suites.item",
            "suites.declaration",
            "suites.runner",
            "suites.outcome",
            "suites.estimate",
            "suites.gate",
            "suites.models.base",
            "suites.modes",
            "suites.generators",
            "suites.bridge",
        ),
    ),
    ("suite-statistics", "suites.statistics", "Statistics of rates, pairs and judges.", ("suites.statistics.*",)),
    ("results-io", "results_io", "The numbered result files.", ("results_io",)),
)


def pages() -> dict[str, str]:
    """The index and one page for each entry of PAGES."""
    rows = [(f"[{title}]({slug}.md)", purpose) for slug, title, purpose, _ in PAGES]
    index = "# Python reference\n\n" + markdown.table(("package", "what it is"), rows)
    index += "\n" + markdown.toctree((slug for slug, *_ in PAGES), hidden=True)
    return {
        "api/index.md": index,
        **{f"api/{slug}.md": _page(title, purpose, names) for slug, title, purpose, names in PAGES},
    }


@functools.cache
def _package(name: str) -> griffe.Module:
    return griffe.load(name, search_paths=[str(source.ROOT)], allow_inspection=False, resolve_aliases=True)


def _modules(pattern: str) -> Iterator[griffe.Module]:
    """The module of that name, or every public one below it."""
    name = pattern.removesuffix(".*")
    top, _, rest = name.partition(".")
    module = _package(top)[rest] if rest else _package(top)
    if name == pattern:
        yield module
        return
    for child in sorted(module.modules.values(), key=lambda m: m.name):
        if not child.is_alias and not child.name.startswith("_"):
            yield child
            yield from _modules(f"{child.path}.*")


def _page(title: str, purpose: str, names: tuple[str, ...]) -> str:
    parts = [f"# {title}\n", purpose + "\n"]
    for module in (module for name in names for module in _modules(name)):
        members = list(_public(module))
        if members or module.docstring:
            parts += [f"## {module.path}\n", markdown.prose(module.docstring.value if module.docstring else "")]
            elsewhere = [m for m in members if m.module.path != module.path and m.module.path in _documented()]
            if elsewhere:
                names = ", ".join(f"{{py:obj}}`~{member.path}`" for member in elsewhere)
                parts.append(f"Also found here: {names}\n")
            parts += [_member(member) for member in members if member not in elsewhere]
    return "\n".join(parts)


@functools.cache
def _documented() -> frozenset[str]:
    """The modules that have a section of their own."""
    return frozenset(module.path for *_, names in PAGES for name in names for module in _modules(name))


def _public(module: griffe.Module) -> Iterator[griffe.Object]:
    """Classes and functions of the module's own, or those that it lists in __all__, in the order of the source."""
    listed = set(module.exports or ())
    for name, member in module.members.items():
        own = not member.is_alias
        if name.startswith("_") or (name not in listed if listed else not own):
            continue
        target = member if own else _target(member)
        if target is not None and (target.is_class or target.is_function):
            yield target


def _target(alias: griffe.Alias) -> griffe.Object | None:
    """What an imported name stands for; None if it is from a package that is not ours."""
    try:
        return alias.final_target
    except (griffe.AliasResolutionError, griffe.CyclicAliasError):
        return None


def _member(member: griffe.Object) -> str:
    """A class with its public methods, or a function."""
    text = markdown.prose(member.docstring.value if member.docstring else "")
    if member.is_function:
        return _directive("function", member.name + _signature(member), text, member.module.path)
    fields = _fields(member)
    methods = [
        _method(method)
        for name, method in member.members.items()
        if not method.is_alias
        and not name.startswith("_")
        and (method.is_function or "property" in method.labels)
        and method.docstring
    ]
    body = "\n".join([text, fields, *methods])
    return _directive("class", member.name, body, member.module.path, fence=5)


def _method(method: griffe.Object) -> str:
    text = markdown.prose(method.docstring.value)
    if method.is_function:
        return _directive("method", method.name + _signature(method), text)
    return _directive("property", method.name, text)


def _fields(member: griffe.Class) -> str:
    """The fields of a dataclass, with types."""
    fields = [
        (markdown.literal(name), markdown.literal(str(a.annotation)), markdown.literal(str(a.value)) if a.value else "")
        for name, a in member.attributes.items()
        if not name.startswith("_") and a.annotation and "property" not in a.labels
    ]
    return markdown.table(("field", "type", "default"), fields) if fields and "dataclass" in member.labels else ""


def _signature(function: griffe.Function) -> str:
    """Parameters with annotations and defaults, and what is returned."""
    parts, marked = [], False
    for p in function.parameters:
        if p.name in ("self", "cls"):
            continue
        if p.kind is griffe.ParameterKind.keyword_only and not marked:
            parts.append("*")
            marked = True
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(p.kind, "")
        marked = marked or star == "*"
        typed = f": {_annotation(p.annotation)}" if p.annotation is not None else ""
        default = f" = {p.default}" if p.default is not None and not star else ""
        parts.append(f"{star}{p.name}{typed}{default}")
    returned = f" -> {_annotation(function.returns)}" if function.returns is not None else ""
    return f"({', '.join(parts)}){returned}"


def _annotation(annotation: griffe.Expr | str) -> str:
    """A type with the names of our own classes in full, so that each leads to its own description."""
    if isinstance(annotation, str):
        return annotation
    return "".join(_full(e) if isinstance(e, griffe.ExprName) else str(e) for e in annotation.iterate(flat=True))


def _full(name: griffe.ExprName) -> str:
    """The name with its module if it is ours, else as it stands."""
    top, _, rest = name.canonical_path.partition(".")
    if top not in (*source.PACKAGES, "results_io") or not rest:
        return name.name
    try:
        found = _package(top)[rest]
        found = found.final_target if found.is_alias else found
    except (KeyError, griffe.AliasResolutionError, griffe.CyclicAliasError):
        return name.name
    return found.path


def _directive(kind: str, signature: str, body: str, module: str = "", fence: int = 4) -> str:
    """An object description of Sphinx's Python domain."""
    options = [f":module: {module}"] if module else []
    mark = ":" * fence
    return "\n".join([f"{mark}{{py:{kind}}} {' '.join(signature.split())}", *options, "", body.rstrip(), mark, ""])
