"""One page for every suite of the catalogue: what it asks, of whom, how it is scored, when it fails, its items and templates."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scripts.docs import markdown, source

CATALOGUE = source.ROOT / "suites" / "catalogue"
SHOWN_ITEMS = 2


@dataclass(frozen=True)
class Mode:
    """A failure mode as its module declares it."""

    path: Path
    identifier: str
    title: str
    tier: str
    traceable: str
    trace_note: str


@dataclass(frozen=True)
class SuitePage:
    """A suite: its declaration, the first line of its lock, and its items."""

    data: Mapping[str, Any]
    header: Mapping[str, Any]
    items: tuple[Mapping[str, Any], ...]

    @property
    def identifier(self) -> str:
        return self.data["id"]

    @property
    def mode(self) -> Mode:
        return modes()[self.data["mode"]]

    @property
    def page(self) -> str:
        return f"suites/{self.identifier}.md"


@functools.cache
def modes() -> dict[str, Mode]:
    """The failure modes by ID, in order."""
    found = []
    for path in sorted((source.ROOT / "suites" / "modes").glob("a[0-9]*.py")):
        own = source.constants(path)
        note = own.get("TRACE_NOTE", "")
        found.append(Mode(path, own["ID"], own["TITLE"], own["TIER"], own["TRACEABLE"], note))
    return {mode.identifier: mode for mode in found}


@functools.cache
def found() -> tuple[SuitePage, ...]:
    """Every suite of the catalogue, sorted by ID."""
    pages = []
    for folder in sorted(CATALOGUE.iterdir()):
        if not (folder / "suite.yaml").exists():
            continue
        data = yaml.safe_load((folder / "suite.yaml").read_text(encoding="utf-8"))
        lines = (folder / "suite.lock.jsonl").read_text(encoding="utf-8").splitlines()
        items = tuple(json.loads(line)["item"] for line in lines[1:])
        pages.append(SuitePage(data, json.loads(lines[0]), items))
    return tuple(pages)


def pages() -> dict[str, str]:
    return {"suites/index.md": _index(), **{suite.page: page(suite) for suite in found()}}


def page(suite: SuitePage) -> str:
    """One suite's page."""
    mode, data = suite.mode, suite.data
    asked = f"python run.py suite={suite.identifier}"
    parts = [
        f"# {data['title']}\n",
        markdown.prose(data["description"]),
        markdown.block(asked, "sh"),
        _facts(suite),
        f"## When it fails\n\n{_gate(data)}",
        f"Mode {mode.identifier}, {mode.title.lower()}:\n",
        _detector(mode),
        f"## Items\n\n{_items(suite)}",
        _prompts(suite),
        f"## From a failure to a circuit\n\nTraceable: {mode.traceable}. {markdown.prose(mode.trace_note)}",
        _settings("trace", data),
        "## Generator\n",
        _settings("generator", data) or "Items are written by hand, in `items.jsonl`.\n",
    ]
    return "\n".join(part for part in parts if part)


def _facts(suite: SuitePage) -> str:
    data = suite.data
    rows = [
        ("id", markdown.literal(suite.identifier)),
        ("version", str(data["version"])),
        ("mode", f"{suite.mode.identifier} {suite.mode.title}"),
        ("detector", suite.mode.tier),
        ("scorer", _shown(data["scorer"]) if "scorer" in data else "none: the mode's detector alone"),
        ("asked of models that", ", ".join(data.get("requires", ())) or "–"),
        ("contexts", ", ".join(data.get("contexts", ())).replace("_", " ") or "all"),
        *(
            (f"leg {leg['name']}", _shown({k: v for k, v in leg.items() if k != "name"}))
            for leg in data.get("legs", ())
        ),
        ("items", f"{suite.header['items']}"),
        ("smallest number judged", str(data.get("minimum", "–"))),
    ]
    if data.get("parameters"):
        rows.append(("parameters", _shown(data["parameters"])))
    return markdown.table(("", ""), rows)


def _shown(value: Any) -> str:
    return markdown.literal(json.dumps(value, ensure_ascii=False))


def _gate(data: Mapping[str, Any]) -> str:
    gate = data.get("gate")
    if not gate:
        return "It has no gate: rates are reported and judged by nobody.\n"
    bound = gate["failure_rate"]
    return f"Its gate allows a failure rate of {bound}: {markdown.prose(gate['reason']).strip()}.\n"


def _detector(mode: Mode) -> str:
    """The docstrings of the mode: the case that fails, and the rates over cases."""
    texts = [source.docstring(source.tree(mode.path))]
    texts += [source.docstring(f) for name in ("detect", "summarise") if (f := source.function(mode.path, name))]
    return markdown.prose("\n\n".join(texts))


def _items(suite: SuitePage) -> str:
    """How many items there are, by template and by kind."""
    templates = Counter(item.get("template") for item in suite.items)
    kinds = Counter(item.get("kind", "original") for item in suite.items)
    rows = [("kind", name, str(n)) for name, n in sorted(kinds.items())]
    rows += [
        ("template", name or "none", str(n)) for name, n in sorted(templates.items(), key=lambda pair: str(pair[0]))
    ]
    return markdown.table(("", "", "items"), [(a, markdown.literal(b), n) for a, b, n in rows])


def _prompts(suite: SuitePage) -> str:
    """The first items, one of each kind, with what counts as right."""
    by_kind: dict[str, Mapping[str, Any]] = {}
    for item in suite.items:
        by_kind.setdefault(item.get("kind", "original"), item)
    shown = []
    for item in list(by_kind.values())[:SHOWN_ITEMS]:
        system = f"system: {item['system']}\n\n" if item.get("system") else ""
        text = system + item["prompt"]
        right = f"Right: {', '.join(map(markdown.literal, item['answers']))}\n" if item.get("answers") else ""
        shown.append(markdown.block(text if len(text) < 1200 else f"{text[:600]}\n[...]\n{text[-500:]}") + right)
    return "For example:\n\n" + "\n".join(shown)


def _settings(key: str, data: Mapping[str, Any]) -> str:
    return (
        markdown.block(yaml.safe_dump({key: data[key]}, sort_keys=False, allow_unicode=True), "yaml")
        if key in data
        else ""
    )


def _index() -> str:
    """The suites by mode."""
    rows = []
    for mode in modes().values():
        own = [s for s in found() if s.data["mode"] == mode.identifier]
        for suite in own:
            link = f"[{suite.identifier}]({suite.identifier}.md)"
            rows.append(
                (f"{mode.identifier} {mode.title}", link, suite.data["title"], str(suite.header["items"]), mode.tier)
            )
    counts = f"{len(found())} suites, {len(modes())} failure modes."
    text = f"# Suites\n\n{counts} [What a suite is, and how it is judged](../behaviour.md).\n\n"
    header = ("mode", "suite", "what it asks", "items", "detector")
    return text + markdown.table(header, rows) + "\n" + markdown.toctree((s.identifier for s in found()), hidden=True)
