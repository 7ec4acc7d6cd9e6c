"""A configuration file as a table: every setting with its value and the comment that gives its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scripts.docs import markdown

COMMENT = re.compile(r"(?:^|\s)#\s*(?P<text>.*)$")
WIDEST = 80  # characters of the longest value that fits into a cell


class Setting(NamedTuple):
    """One setting: its dotted name, its value as YAML parses it, and the reason for this value."""

    name: str
    value: Any
    reason: str


def read(path: Path) -> list[Setting]:
    """The settings of one file in its order. Mappings are expanded; lists are values."""
    text = path.read_text(encoding="utf-8")
    node = yaml.compose(text)
    return list(_settings(node, yaml.safe_load(text), text.splitlines())) if node else []


def _settings(
    node: yaml.MappingNode, values: dict[str, Any], lines: list[str], prefix: str = "", shared: str = ""
) -> Iterator[Setting]:
    """The settings of a mapping. A setting without its own reason gets the section's reason, `shared`."""
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        opened = isinstance(value, yaml.MappingNode) and value.value and value.start_mark.line > key.start_mark.line
        content = values[key.value] if key.value in values else values[yaml.safe_load(key.value)]
        reason = _reason(lines, key.start_mark.line) or shared
        if opened:
            yield from _settings(value, content, lines, f"{name}.", reason)
        else:
            yield Setting(name, content, reason)


def _reason(lines: list[str], line: int) -> str:
    """The whole-line comments right above the line, then the comment on the line."""
    above = []
    for earlier in reversed(lines[:line]):
        if not earlier.lstrip().startswith("#"):
            break
        if not earlier.startswith("#"):  # a comment at the margin is about the file
            above.insert(0, earlier.lstrip().lstrip("# "))
    own = COMMENT.search(lines[line])
    return " ".join([*above, *([own["text"]] if own else [])])


def table(path: Path, prefix: str = "", sections: Collection[str] | None = None) -> str:
    """The settings of a file, or of its `sections` only, as a Markdown table; empty if there are none.

    `prefix` is removed from the names. If a value is too long for a cell, the file itself is included below the table.
    """
    rows, listed = [], False
    for setting in read(path):
        if sections is not None and setting.name.partition(".")[0] not in sections:
            continue
        shown = json.dumps(setting.value, ensure_ascii=False)  # the JSON of plain values is also YAML
        listed |= len(shown) > WIDEST
        value = markdown.literal(shown) if len(shown) <= WIDEST else "listed below"
        name = markdown.literal(setting.name.removeprefix(prefix))
        rows.append((name, value, markdown.prose(setting.reason).strip()))
    listing = "\n" + markdown.block(path.read_text(encoding="utf-8"), "yaml") if listed else ""
    return markdown.table(("setting", "value", "reason"), rows) + listing if rows else ""
