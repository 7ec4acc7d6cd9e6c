"""Bounded YAML: reads an untrusted file (suite, corpus, rubric) as plain data within bounds of size and depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from circuits import yaml_file

MOST_BYTES = yaml_file.MOST_BYTES  # ten times the largest that ships; so much takes seconds to read
DEEPEST = yaml_file.DEEPEST


class Loader(yaml.SafeLoader):
    """Stops at the allowed depth; the plain loader goes on until Python's stack overflows."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def read(path: Path, loader: type[Loader] = Loader) -> Any:
    """The content of the file as plain data; None if it is empty.

    ValueError if the file is too large, nested too deep or not UTF-8, if its aliases expand to too many nodes, or if a value
    contradicts its tag. The message fits into "<file> cannot be read (...)". yaml.YAMLError if it is not YAML; OSError.
    """
    with Path(path).open("rb") as stream:
        content = stream.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes, which is the most that is read")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from None
    return _constructed(loader(text))


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
