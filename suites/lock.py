"""The lock of a suite: its items with a hash of every prompt. Runs read items from nowhere else, so all see the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import results_io
from suites import bounded_text, generators, schema
from suites.contamination import canary
from suites.execution import problems
from suites.item import Item, ItemVariant, SuiteDeclaration

FILE = "suite.lock.jsonl"
ITEMS_FILE = "items.jsonl"
FORMAT = 1  # of the lock file
HEADER = {"format", "items", "scorer", "source", "suite", "suite_hash", "version"}
RESTORE = "restore the file from version control"
CANARY = "canary"  # key of the header if the declaration has a canary; no hash includes it
HASHES = ("prompt_hash", "item_hash")
PROMPT = ("id", "prompt", "system", "earlier", "version")  # what prompt_hash is of
DEFAULTS = {field.name: field.default for field in fields(Item)}


@dataclass(frozen=True)
class Lock:
    """Frozen items in the file's order, with the hash of all."""

    items: tuple[Item, ...]
    suite_hash: str


def normalised(text: str) -> str:
    """Unicode NFC with LF line ends: the form in which texts are hashed. Trailing spaces stay: they matter to a model."""
    return unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))


def canonical(value: Any) -> str:
    """Canonical JSON: keys sorted, separators "," and ":", UTF-8 not ASCII-escaped, texts in NFC with LF.

    ValueError on NaN and infinity.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """sha256 of the canonical JSON, in hex digits."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def prompt_hash(item: Item) -> str:
    """Identity of what the model reads: sha256 of {id, version, messages, template}; without a template that key is absent."""
    messages = [{"role": "system", "content": item.system}] if item.system is not None else []
    messages += [{"role": role, "content": text} for role, text in item.earlier]
    messages.append({"role": "user", "content": item.prompt})
    read = {"id": item.id, "version": item.version, "messages": messages}
    return digest(read | ({"template": item.template} if item.template else {}))


def item_hash(item: Item, scorer: Mapping[str, Any]) -> str:
    """Identity of the whole item: its prompt's hash, all other fields (answers, variant, expectations) and the scorer."""
    rest = {key: value for key, value in plain_item(item).items() if key not in PROMPT}
    return digest({"prompt_hash": prompt_hash(item), "scorer": scorer, **rest})


def suite_hash(item_hashes: Iterable[str]) -> str:
    """sha256 over the sorted item hashes: the same items in another order are the same suite."""
    return digest(sorted(item_hashes))


def plain_item(item: Item) -> dict[str, Any]:
    """The fields of an item that are not at their default, as JSON data."""
    return {key: value for key, value in _plain(item).items() if value not in ([], {}, DEFAULTS[key])}


def parse_item(data: Mapping[str, Any]) -> Item:
    """The item of JSON data that keeps to the item schema."""
    data = dict(data)
    for key in ("answers", "distractors", "choices"):
        data[key] = tuple(data.get(key, ()))
    data["earlier"] = tuple((role, text) for role, text in data.get("earlier", ()))
    data["spans"] = {name: (start, end) for name, (start, end) in data.get("spans", {}).items()}
    if data.get("variant") is not None:
        data["variant"] = ItemVariant(**data["variant"])
    return Item(**data)


def compile_items(declaration: SuiteDeclaration) -> tuple[Item, ...]:
    """The items of a declaration (inline, from items.jsonl, or drawn by its generator), checked, in NFC with LF."""
    data, where = declaration.data, declaration.file
    if "items" in data:
        items = [parse_item(item) for item in data["items"]]
    elif "generator" in data:
        items = generators.generate(data["generator"], where)
    else:
        items = _read_items(declaration)
    if declaration.scorer.get("kind") == "code":
        items = problems.attach(items, declaration.folder / declaration.scorer["tests"])
    items = [_normalised_item(item, where) for item in items]
    check_set(items, where)
    return tuple(items)


def freeze(declaration: SuiteDeclaration) -> str:
    """The text of the lock that a declaration compiles to.

    UserError if the existing lock has the same version but other items: a published version never changes.
    """
    items = compile_items(declaration)
    text = dumps(declaration, items)
    path = declaration.folder / FILE
    if os.path.lexists(path) and bounded_text.given(path, RESTORE) != text:
        _refuse_same_version(declaration, items, path)
    return text


def dumps(declaration: SuiteDeclaration, items: Sequence[Item]) -> str:
    """The lock file: a header with the suite's identity, then one line of canonical JSON for each item."""
    hashes = [item_hash(item, declaration.scorer) for item in items]
    header = {
        "format": FORMAT,
        "suite": declaration.data["id"],
        "version": declaration.data["version"],
        "items": len(items),
        "suite_hash": suite_hash(hashes),
        "source": source_hash(declaration),
        "scorer": digest(declaration.scorer),
        **_canary(declaration),
    }
    lines = [
        {"item": plain_item(item), "prompt_hash": prompt_hash(item), "item_hash": hashed}
        for item, hashed in zip(items, hashes, strict=True)
    ]
    return "".join(f"{canonical(line)}\n" for line in (header, *lines))


def source_hash(declaration: SuiteDeclaration) -> str:
    """Identity of the items' source: the generator's name, parameters and seed, or the items themselves."""
    data = declaration.data
    if "generator" in data:
        return digest({"generator": data["generator"]})
    return digest({"items": [plain_item(item) for item in compile_items(declaration)]})


def read(declaration: SuiteDeclaration) -> Lock:
    """The lock beside a declaration, with every hash verified.

    UserError names the line whose hash is wrong. If declaration and lock do not match (an item, the generator or the scorer was
    edited without a new version), it says what to do.
    """
    path = declaration.folder / FILE
    where = schema.shown_path(path)
    if not os.path.lexists(path):
        raise results_io.UserError(
            f"{where} does not exist; expected the frozen items; run `{declaration.freeze_command}`"
        )
    return parse(bounded_text.given(path, RESTORE), declaration)


def parse(text: str, declaration: SuiteDeclaration) -> Lock:
    """The lock in a text, verified as `read` does."""
    where = schema.shown_path(declaration.folder / FILE)
    header, *lines = _parse_lines(text, where)
    locked = _verified(header, lines, where, declaration)
    _check_belongs(header, declaration, where)
    check_set(locked.items, where)
    return locked


def check_set(items: Sequence[Item], where: str) -> None:
    """UserError for duplicate ids, missing parents, cyclic chains of parents and spans outside of the prompt."""
    by_id: dict[str, Item] = {}
    for item in items:
        if item.id in by_id:
            raise results_io.UserError(f"{where}: two items have the id {item.id!r}; expected unique ids; rename one")
        by_id[item.id] = item
    for item in items:
        for name, (start, end) in item.spans.items():
            if not 0 <= start < end <= len(item.prompt):
                raise results_io.UserError(
                    f"{where}: item {item.id}: spans.{name} is [{start}, {end}]; expected a part of the prompt's "
                    f"{len(item.prompt)} characters"
                )
        seen, here = {item.id}, item
        while here.variant is not None:
            parent = here.variant.parent
            if parent not in by_id or parent in seen:
                problem = "goes round in a circle" if parent in seen else "is not an item of the suite"
                raise results_io.UserError(
                    f"{where}: item {item.id}: the parent {parent!r} {problem}; name its original"
                )
            seen, here = seen | {parent}, by_id[parent]


def _parse_lines(text: str, where: str) -> list[dict[str, Any]]:
    lines = text.split("\n")
    if len(lines) < 2 or lines[-1]:
        raise results_io.UserError(f"{where} ends in the middle of line {len(lines)}; {RESTORE}")
    documents = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            document = json.loads(line, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise _damaged(where, number, f"not JSON ({error})") from None
        if not isinstance(document, dict):
            raise _damaged(where, number, "no object")
        documents.append(document)
    return documents


def _verified(header: dict[str, Any], lines: list[dict[str, Any]], where: str, declaration: SuiteDeclaration) -> Lock:
    """The lock with every line's hashes recomputed. An edited scorer is checked first, since it changes every item's hash."""
    if header.get("format") != FORMAT or set(header) - {CANARY} != HEADER:
        raise _damaged(where, 1, f"its format is {header.get('format')!r} with the keys {', '.join(sorted(header))}")
    if header.get("scorer") != digest(declaration.scorer):
        raise _edited(declaration, "the scorer")
    items, hashes = [], []
    for number, line in enumerate(lines, start=2):
        try:
            schema.check(line.get("item"), "item", f"{where} line {number}")
            item = parse_item(line["item"])
            computed = {"prompt_hash": prompt_hash(item), "item_hash": item_hash(item, declaration.scorer)}
        except results_io.UserError as error:
            raise results_io.UserError(f"{error}; restore the lock or freeze again") from None
        except ValueError as error:  # NaN, half a surrogate pair
            raise _damaged(where, number, f"it has no canonical form ({error})") from None
        for key in HASHES:
            if line.get(key) != computed[key]:
                raise _damaged(where, number, f"the {key} of item {item.id} is not that of its content")
        items.append(item)
        hashes.append(computed["item_hash"])
    if header.get("items") != len(items) or header["suite_hash"] != suite_hash(hashes):
        raise _damaged(where, 1, f"the suite hash is not that of the {len(items)} items below")
    return Lock(tuple(items), header["suite_hash"])


def _check_belongs(header: Mapping[str, Any], declaration: SuiteDeclaration, where: str) -> None:
    for key, mine in (("suite", declaration.data["id"]), ("version", declaration.data["version"])):
        if header.get(key) != mine:
            raise results_io.UserError(
                f"{declaration.file} is {key} {mine} and {where} is {key} {header.get(key)}; "
                f"run `{declaration.freeze_command}`"
            )
    if header.get(CANARY) != _canary(declaration).get(CANARY):
        raise _edited(declaration, "the canary")
    if header.get("source") != source_hash(declaration):
        raise _edited(declaration, "the generator" if "generator" in declaration.data else "an item")


def _edited(declaration: SuiteDeclaration, what: str) -> results_io.UserError:
    return results_io.UserError(
        f"{declaration.file}: {what} was edited without a new version ({declaration.data['version']} is frozen); "
        f"raise the version and run `{declaration.freeze_command}`"
    )


def _damaged(where: str, line: int, problem: str) -> results_io.UserError:
    return results_io.UserError(
        f"{where} line {line}: {problem}; restore the lock or freeze it anew under another version"
    )


def _refuse_same_version(declaration: SuiteDeclaration, items: Sequence[Item], path: Path) -> None:
    """UserError unless the declaration's version is higher than the lock's: a version never changes its content."""
    before = bounded_text.given(path, RESTORE)
    header, *lines = _parse_lines(before, schema.shown_path(path))
    if CANARY not in header and _without_canary(dumps(declaration, items)) == _without_canary(before):
        return  # a canary changes no item: a suite may get one at any time, and then keeps it
    old, new = header.get("version", "0.0.0"), declaration.data["version"]
    if _number(new) > _number(old):
        return
    known = {line["item"]["id"]: line["item_hash"] for line in lines}
    after = {item.id: item_hash(item, declaration.scorer) for item in items}
    changed = sorted(name for name in known.keys() | after.keys() if known.get(name) != after.get(name))
    what = f"{len(changed)} items differ (first: {changed[0]})" if changed else "the items' source or order differs"
    raise results_io.UserError(
        f"{declaration.file}: version {new} cannot be frozen over version {old}, {what}; raise the version"
    )


def _canary(declaration: SuiteDeclaration) -> dict[str, str]:
    """The header's canary line, as the README has it; none without a GUID in the declaration."""
    guid = declaration.data.get(CANARY)
    return {} if guid is None else {CANARY: canary.of_suite(declaration.data["id"], guid).line}


def _without_canary(text: str) -> tuple[dict[str, Any], str]:
    """(the header of a lock without its canary, everything below it)."""
    header, _, rest = text.partition("\n")
    return {key: value for key, value in json.loads(header).items() if key != CANARY}, rest


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _read_items(declaration: SuiteDeclaration) -> list[Item]:
    path = declaration.folder / ITEMS_FILE
    if not os.path.lexists(path):
        raise results_io.UserError(
            f"{declaration.file}: no items; expected the key generator, the key items, or a file {ITEMS_FILE} beside it"
        )
    items = []
    # not splitlines: JSON texts may hold other line separators than LF
    text = bounded_text.given(path, "write one item a line, in UTF-8")
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        where = f"{schema.shown_path(path)} line {number}"
        try:
            data = json.loads(line, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise results_io.UserError(f"{where} is not JSON ({error}); expected one item a line") from None
        schema.check_plain(data, where)
        schema.check(data, "item", where)
        items.append(parse_item(data))
    return items


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON's pairs. ValueError for a duplicate key, of which the plain parser would keep the last."""
    again = schema.first_repeated([key for key, _ in pairs])
    if again is not None:
        raise ValueError(f"the key {pairs[again][0]!r} stands there twice")
    return dict(pairs)


def _normalised_item(item: Item, where: str) -> Item:
    """The item in NFC with LF. UserError if that would move the spans."""
    prompt = normalised(item.prompt)
    if prompt != item.prompt and item.spans:
        raise results_io.UserError(
            f"{where}: item {item.id}: the prompt is not in Unicode NFC with LF line ends, which would move its spans; "
            "write it in that form"
        )
    return parse_item(_plain(item) | {"prompt": prompt})


def _plain(value: Any) -> Any:
    """JSON data with every text in NFC with LF; tuples become lists, items and their variants objects."""
    if isinstance(value, str):
        return normalised(value)
    if isinstance(value, (Item, ItemVariant)):
        return _plain(vars(value))  # not `dataclasses.asdict`, which would copy deeply what is rebuilt here anyway
    if isinstance(value, Mapping):
        return {normalised(str(key)): _plain(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(below) for below in value]
    return value
