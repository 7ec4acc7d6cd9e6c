"""Suites by name: reads suite.yaml, checks it key by key, and builds a Suite from it and the items of its lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import results_io
from suites import bounded_yaml, lock, modes, schema, scorers
from suites.item import CATALOGUE, FILE, SamplingLeg, Suite, SuiteDeclaration


def names() -> list[str]:
    """The ids of the catalogue's suites, sorted by mode and then by name."""

    def mode_number(name: str) -> tuple[str, int]:
        digits = name.split("_")[0][1:]
        return (name[:1], int(digits)) if digits.isdigit() else ("~", 0)  # suites not named after a mode come last

    known = (path.parent.name for path in CATALOGUE.glob(f"*/{FILE}"))
    return sorted(known, key=lambda name: (mode_number(name), name))


def load(suite: str | Path) -> Suite:
    """The suite of that id in the catalogue, or in that folder, with the items of its lock.

    UserError for an unknown id, a malformed declaration (with file and key path), items that differ from the lock, and
    parameters or items that the suite's mode cannot use.
    """
    declaration = read(find(suite))
    return build(declaration, lock.read(declaration))


def load_all(suites: Sequence[str | Path] | None = None) -> list[Suite]:
    """The suites of these ids or folders; None: the whole catalogue."""
    return [load(suite) for suite in (names() if suites is None else suites)]


def find(suite: str | Path) -> Path:
    """The folder of a suite, given as an id of the catalogue, a folder, or its suite.yaml. UserError lists the known ids."""
    text = str(suite)
    if text in names():
        return CATALOGUE / text
    folder = Path(text).expanduser()
    folder = folder.parent if folder.name == FILE else folder
    if (folder / FILE).is_file():
        return folder
    if folder.is_dir():
        raise results_io.UserError(f"{text} has no {FILE}; expected the folder of a suite; write one there")
    known = schema.suggestion(text, names())
    raise results_io.UserError(f"there is no suite {text!r}, neither in the catalogue nor as a folder; {known}")


def read(folder: Path) -> SuiteDeclaration:
    """suite.yaml of a folder, checked against the published schema and the parameters of its mode."""
    declaration = SuiteDeclaration(folder, read_yaml(folder / FILE))
    schema.check(declaration.data, _with_known_modes(schema.published("suite")), declaration.file)
    if "generator" in declaration.data and "items" in declaration.data:
        raise results_io.UserError(f"{declaration.file}: both generator and items; expected one of them; take one out")
    if folder.resolve().parent == CATALOGUE.resolve() and declaration.data["id"] != folder.name:
        raise results_io.UserError(
            f"{declaration.file}: id is {declaration.data['id']!r}; expected the folder's name {folder.name!r}; rename one"
        )
    legs = [leg["name"] for leg in declaration.data["legs"]]
    if (again := schema.first_repeated(legs)) is not None:  # outputs are recorded under it
        raise results_io.UserError(
            f"{declaration.file}: legs[{again}].name is {legs[again]!r} again; expected another name for every leg; rename it"
        )
    if declaration.scorer:
        scorers.check(declaration.scorer, declaration.file)
    parameters = modes.EVERY[declaration.data["mode"]].PARAMETERS
    schema.check(declaration.data.get("parameters", {}), parameters, declaration.file, "parameters")
    return declaration


def _with_known_modes(published: Mapping[str, Any]) -> dict[str, Any]:
    """The published schema of a suite, with its open list of failure modes filled in from `suites.modes`."""
    known = schema.one_of(list(modes.EVERY), published["properties"]["mode"]["description"])
    return {**published, "properties": {**published["properties"], "mode": known}}


def build(declaration: SuiteDeclaration, locked: lock.Lock) -> Suite:
    """The suite of a declaration and its locked items. The mode checks them last; UserError if it rejects them."""
    data = declaration.data
    suite = Suite(
        id=data["id"],
        version=data["version"],
        title=data["title"],
        description=" ".join(data["description"].split()),
        mode=data["mode"],
        contexts=tuple(data["contexts"]),
        requires=tuple(data["requires"]),
        legs=tuple(SamplingLeg(**leg | {"stop": tuple(leg.get("stop", ()))}) for leg in data["legs"]),
        scorer=declaration.scorer,
        parameters=data.get("parameters", {}),
        trace=data["trace"],
        minimum=data["minimum"],
        gate=data["gate"],
        items=locked.items,
        sha256=locked.suite_hash,
        canary=data.get("canary"),
    )
    scorers.check_items(suite.scorer, suite.items, declaration.file)
    try:
        modes.check(suite)
    except results_io.UserError as error:
        raise results_io.UserError(f"{declaration.file}: {error}") from None
    return suite


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file as plain JSON values. UserError, with the line, if the file holds no such mapping."""
    where = schema.shown_path(path)
    try:
        data = bounded_yaml.read(path)
    except FileNotFoundError:
        raise results_io.UserError(f"{where} does not exist; expected a suite's declaration; write one there") from None
    except ValueError as error:
        raise results_io.UserError(
            f"{where} cannot be read ({error}); write plain keys and values in UTF-8, and a large file as several"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise results_io.UserError(f"{where} is not YAML{line}: {problem}; correct it there") from None
    if not isinstance(data, dict):
        raise results_io.UserError(
            f"{where} holds {schema.shown(data)}; expected keys with values (id, version, mode, ...)"
        )
    schema.check_plain(data, where)
    return data
