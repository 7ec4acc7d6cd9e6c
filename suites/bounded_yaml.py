"""Bounded YAML: reads an untrusted file (suite, corpus, rubric) as plain data within bounds of size and depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from circuits import yaml_file
from suites import bounded_text, schema

MOST_BYTES = yaml_file.MOST_BYTES  # ten times the largest that ships; so much takes seconds to read
DEEPEST = yaml_file.DEEPEST
MERGE = "tag:yaml.org,2002:merge"  # the key <<, which takes over the keys of another mapping


class Loader(yaml.SafeLoader):
    """Stops at the allowed depth and at a key that stands there twice.

    The plain loader goes on until Python's stack overflows, and keeps the last of two equal keys without a word.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        plain = [key for key, _ in node.value if key.tag != MERGE]
        keys = [self.construct_object(key, deep=True) for key in plain]
        again = schema.first_repeated(keys)
        if again is not None:
            mark = plain[again].start_mark
            raise yaml.constructor.ConstructorError(None, None, f"the key {keys[again]!r} stands there twice", mark)
        return super().construct_mapping(node, deep)


def read(path: Path) -> Any:
    """The content of the file as plain data; None if it is empty.

    ValueError if it is no file, too large, nested too deep or not UTF-8, if its aliases expand to too many nodes, or if a value
    contradicts its tag. The message fits into "<file> cannot be read (...)". yaml.YAMLError if it is not YAML, or if a key stands
    there twice; OSError.
    """
    return _constructed(Loader(bounded_text.read(path, MOST_BYTES)))


def _constructed(loader: Loader) -> Any:
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        yaml_file.require_few_nodes(root)
        return loader.construct_document(root)
    except (
        LookupError,
        AttributeError,
        TypeError,
        OverflowError,
    ) as error:  # PyYAML raises these for `!!int ""` or an infinite number
        raise ValueError(f"a value is not what its tag says: {type(error).__name__} {error}") from None
    finally:
        loader.dispose()
