"""A configuration file as a table: every setting with its value and the comment that gives its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scripts.docs import markdown

COMMENT = re.compile(r"(?:^|\s)#\s*(?P<text>.*)$")


@dataclass(frozen=True)
class Setting:
    """One setting: its dotted name, its value as YAML means it, and why it has it."""

    name: str
    value: Any
    reason: str

    @property
    def shown(self) -> str:
        """The value as JSON writes it, which for plain values is also YAML."""
        return json.dumps(self.value, ensure_ascii=False)


def read(path: Path) -> list[Setting]:
    """The settings of one file, in its order: mappings are opened, lists are values."""
    text = path.read_text(encoding="utf-8")
    node = yaml.compose(text)
    return list(_settings(node, yaml.safe_load(text), text.splitlines())) if node else []


def _settings(
    node: yaml.MappingNode, values: dict[str, Any], lines: list[str], prefix: str = "", shared: str = ""
) -> Iterator[Setting]:
    """Settings of a mapping; one without a reason has that of the section, `shared`."""
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        opened = isinstance(value, yaml.MappingNode) and value.value and value.start_mark.line > key.start_mark.line
        content = values[key.value] if key.value in values else values[yaml.safe_load(key.value)]
        reason = _reason(lines, key.start_mark.line)
        if opened:
            yield from _settings(value, content, lines, f"{name}.", reason or shared)
        else:
            yield Setting(name, content, reason or shared)


def _reason(lines: list[str], line: int) -> str:
    """The comment on the line, and the whole-line comments right above it."""
    above = []
    for earlier in reversed(lines[:line]):
        if not earlier.lstrip().startswith("#"):
            break
        if not earlier.startswith("#"):  # one at the margin is about the file
            above.insert(0, earlier.lstrip().lstrip("# "))
    own = COMMENT.search(lines[line])
    return " ".join([*above, *([own["text"]] if own else [])])


def table(settings: list[Setting]) -> str:
    """The settings as a Markdown table; a value too long for a cell is left to the listing of the file."""
    rows = [
        (
            markdown.literal(s.name),
            markdown.literal(s.shown) if len(s.shown) <= 80 else "listed below",
            _plain(s.reason),
        )
        for s in settings
    ]
    return markdown.table(("setting", "value", "reason"), rows)


def listing(path: Path, settings: list[Setting]) -> str:
    """The file itself, where the table could not show all of it."""
    if all(len(s.shown) <= 80 for s in settings):
        return ""
    return "\n" + markdown.block(path.read_text(encoding="utf-8"), "yaml")


def _plain(text: str) -> str:
    return markdown.prose(text).strip()
