"""One page for every suite of the catalogue: its prompts, models, scoring, failures, items and templates."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from scripts.docs import markdown, source
from suites import declaration
from suites.item import Item
from suites.modes import EVERY, MODES, SAFETY, Mode

SHOWN_ITEMS = 2
LONGEST_PROMPT = 1200  # characters of the longest prompt that is shown in full


class FrozenSuite(NamedTuple):
    """The declaration in a suite's suite.yaml, and the items of its lock."""

    data: Mapping[str, Any]
    items: Sequence[Item]


@functools.cache
def catalogue() -> list[FrozenSuite]:
    """Every suite of the catalogue, ordered by failure mode."""
    names = declaration.names()
    return [FrozenSuite(declaration.read(declaration.find(name)).data, declaration.load(name).items) for name in names]


def pages() -> dict[str, str]:
    return {"suites/index.md": _index(), **{f"suites/{suite.data['id']}.md": page(suite) for suite in catalogue()}}


def page(suite: FrozenSuite) -> str:
    """One suite's page."""
    data, mode = suite.data, EVERY[suite.data["mode"]]
    gate = data["gate"]
    judged = "It has no gate: rates are reported and judged by nobody.\n"
    if gate:
        reason = markdown.prose(gate["reason"]).strip()
        judged = f"Its gate allows a failure rate of {gate['failure_rate']}: {reason}.\n"
    parts = [
        f"# {data['title']}\n",
        markdown.prose(data["description"]),
        markdown.block(f"python run.py suite={data['id']}", "sh"),
        _facts(suite, mode),
        f"## When it fails\n\n{judged}",
        f"Mode {mode.ID}, {mode.TITLE.lower()}:\n",
        "\n".join(map(source.docstring, (mode, mode.detect, mode.summarise))),
        f"## Items\n\n{_items(suite.items)}",
        _prompts(suite.items),
        f"## From a failure to a circuit\n\nTraceable: {mode.TRACEABLE}. {markdown.prose(mode.TRACE_NOTE)}",
        _settings("trace", data),
        "## Generator\n",
        _settings("generator", data) or "Items are written by hand, in `items.jsonl`.\n",
    ]
    return "\n".join(parts)


def _facts(suite: FrozenSuite, mode: Mode) -> str:
    data = suite.data
    legs = [(f"leg {leg['name']}", {key: leg[key] for key in leg if key != "name"}) for leg in data["legs"]]
    rows = [
        ("id", markdown.literal(data["id"])),
        ("version", data["version"]),
        ("mode", f"{mode.ID} {mode.TITLE}"),
        ("detector", mode.TIER),
        ("scorer", _json(data["scorer"]) if "scorer" in data else "none: the mode's detector alone"),
        ("asked of models that", ", ".join(data["requires"]) or "–"),
        ("contexts", ", ".join(data["contexts"]).replace("_", " ") or "all"),
        *((name, _json(leg)) for name, leg in legs),
        ("items", len(suite.items)),
        ("smallest number judged", data["minimum"]),
        *([("parameters", _json(data["parameters"]))] if data.get("parameters") else []),
    ]
    return markdown.table(("", ""), rows)


def _json(value: Any) -> str:
    return markdown.literal(json.dumps(value, ensure_ascii=False))


def _items(items: Sequence[Item]) -> str:
    """The numbers of items by kind and by template."""
    kinds, templates = Counter(item.kind for item in items), Counter(item.template or "none" for item in items)
    rows = [("kind", markdown.literal(name), n) for name, n in sorted(kinds.items())]
    rows += [("template", markdown.literal(name), n) for name, n in sorted(templates.items())]
    return markdown.table(("", "", "items"), rows)


def _prompts(items: Sequence[Item]) -> str:
    """The first item of each kind, with what counts as right."""
    first = {item.kind: item for item in reversed(items)}
    shown = []
    for item in sorted(first.values(), key=items.index)[:SHOWN_ITEMS]:
        text = (f"system: {item.system}\n\n" if item.system else "") + item.prompt
        right = f"Right: {', '.join(map(markdown.literal, item.answers))}\n" if item.answers else ""
        shown.append(
            markdown.block(text if len(text) < LONGEST_PROMPT else f"{text[:600]}\n[...]\n{text[-500:]}") + right
        )
    return "For example:\n\n" + "\n".join(shown)


def _settings(key: str, data: Mapping[str, Any]) -> str:
    if key not in data:
        return ""
    return markdown.block(yaml.safe_dump({key: data[key]}, sort_keys=False, allow_unicode=True), "yaml")


def _index() -> str:
    """The index of suites by failure mode."""
    rows = []
    for data, items in catalogue():
        mode = EVERY[data["mode"]]
        link = f"[{data['id']}]({data['id']}.md)"
        rows.append((f"{mode.ID} {mode.TITLE}", link, data["title"], len(items), mode.TIER))
    counts = f"{len(catalogue())} suites, {len(MODES)} failure modes, {len(SAFETY)} measures of safety."
    text = f"# Suites\n\n{counts} [What a suite is, and how it is judged](../behaviour.md).\n\n"
    table = markdown.table(("mode", "suite", "what it asks", "items", "detector"), rows)
    return f"{text}{table}\n{markdown.toctree(data['id'] for data, _ in catalogue())}"
