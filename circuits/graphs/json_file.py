"""JSON files of other tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError


def document_of(path: Path) -> dict[str, Any]:
    """The object in the file. UserError if it is not JSON, or no object."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if not text.strip():
            raise UserError(f"{path} is empty; export the graph again")
        found = json.loads(text)
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable as JSON ({error}); export the graph again") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds a {type(found).__name__}, and a graph is an object; export the graph again")
    return found


def write(path: Path, document: dict[str, Any]) -> None:
    """Just this object, every digit of its numbers, and no key of ours."""
    results_io.write_text(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
