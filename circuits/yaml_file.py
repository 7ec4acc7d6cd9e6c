"""Reader for YAML written by hand or by others: plain data within bounds of size and depth."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import yaml

import results_io

MOST_BYTES = 1 << 18  # the largest published circuit has 5 kB; a megabyte takes this reader ten seconds
DEEPEST = 24  # a circuit file goes 5 deep
MERGE = "tag:yaml.org,2002:merge"
LONGEST_INTEGER = 100  # characters; only 64 bits in base 2 with an underscore after every digit would need 130
SHOWN = 60  # characters of a text in an error
MOST_NODES = 50_000  # with all aliases expanded, since a few lines of aliases can stand for billions


class _OneOfEach(yaml.SafeLoader):
    """Refuses repeated keys, of which YAML would silently keep the last, and integers too large for a result.

    Keys are compared as `read` returns them, so 16 and 0x10 are the same key.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ValueError("one of its keys is a list, or has keys itself")
            if key.tag != MERGE:
                found = self.construct_object(key)
                name = _key(int(found) if isinstance(found, bool) else found)  # 1 and true count as equal too
                if name in seen:
                    raise ValueError(f"the key {name!r} is there twice")
                seen.add(name)
        return super().construct_mapping(node, deep)

    def construct_bounded_int(self, node: yaml.ScalarNode) -> int:
        """An integer of at most `results_io.MOST_DIGITS` digits in any notation."""
        if len(node.value) > LONGEST_INTEGER:
            raise ValueError(f"it holds an integer of {len(node.value)} signs")
        found = self.construct_yaml_int(node)
        if abs(found) >= 10**results_io.MOST_DIGITS:
            raise ValueError(f"it holds an integer of more than {results_io.MOST_DIGITS} digits")
        return found


_OneOfEach.add_constructor("tag:yaml.org,2002:int", _OneOfEach.construct_bounded_int)


def read(path: Path) -> Any:
    """The file's content as plain data: mappings, lists, texts, finite numbers, true, false and null; dates become texts.

    Raises ValueError for a file that is too large, too deep or refers to itself, for a repeated key and for other data;
    yaml.YAMLError, RecursionError or OSError for a file that is not YAML or cannot be read.
    """
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"it has {size} bytes, and {MOST_BYTES} are allowed")
    loader = _OneOfEach(path.read_text(encoding="utf-8-sig"))
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        require_few_nodes(root)
        return _plain(loader.construct_document(root))
    finally:
        loader.dispose()


def require_few_nodes(root: yaml.Node) -> None:
    """Raises ValueError if a document has more than `MOST_NODES` values with all aliases expanded, is nested too deep, or
    refers to itself. Call it before objects are constructed from the nodes."""
    _nodes_below(root, {}, 0)


def _nodes_below(node: yaml.Node, known: dict[int, int], depth: int) -> int:
    """The number of nodes from `node` down with aliases expanded. Raises ValueError if it or the depth is out of bounds."""
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} deep, or refers to itself")
    if id(node) not in known:
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for item in below for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_nodes_below(part, known, depth + 1) for part in parts)
    if known[id(node)] > MOST_NODES:
        raise ValueError(f"its aliases stand for more than {MOST_NODES} values")
    return known[id(node)]


def _key(value: Any) -> str:
    """A key as text; equal numbers have equal texts, so 1 and 1.0 are the same key."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _with_text_keys(value: dict[Any, Any]) -> dict[str, Any]:
    """The mapping with keys as texts. Raises ValueError if two keys have the same text, as 5 and '5' do."""
    found = {_plain(_key(key)): _plain(item) for key, item in value.items()}
    if len(found) < len(value):
        raise ValueError("two of its keys are one text")
    return found


def _require_whole(text: str) -> None:
    """Raises ValueError for a text with half of a character ("\\ud800"), which no page or table can hold."""
    if any("\ud800" <= one <= "\udfff" for one in text):
        raise ValueError(f"it holds half of a character, in {text[:SHOWN]!r}")


def _plain(value: Any) -> Any:
    """The value with keys and dates as texts. Raises ValueError for values that JSON lacks."""
    if isinstance(value, dict):
        return _with_text_keys(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, str) and not value.isascii():
        _require_whole(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds {value}, which is no finite number")
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise ValueError(f"it holds a {type(value).__name__}, and a file of text, numbers, lists and keys is expected")
    return value
