"""JSON files of other tools."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import results_io
from results_io import UserError


def document_of(path: Path) -> dict[str, Any]:
    """The object in the file. Raises UserError if it is not JSON, not an object, repeats a key, or has an invalid number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if not text.strip():
            raise UserError(f"{path} is empty; export the graph again")
        found = json.loads(
            text, object_pairs_hook=results_io.once, parse_int=_integer, parse_float=_finite, parse_constant=_refused
        )
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is not readable as JSON ({error}); export the graph again") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds {_kind(found)}, and a graph is keys with values; export the graph again")
    return found


def integer(given: Any, name: str) -> int:
    """`given` as a whole number from 0; a text of digits works too. Raises ValueError for anything else."""
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) <= results_io.MOST_DIGITS:
        given = int(given)
    if type(given) is not int or given < 0:
        raise ValueError(f"{name} is {shown(given)}, and not a whole number from 0")
    return given


def number(given: Any, name: str) -> float:
    """`given` as a number; raises ValueError for anything else."""
    if type(given) not in (int, float):
        raise ValueError(f"{name} is {shown(given)}, and not a number")
    return float(given)


def keyed(given: Any, name: str) -> dict[str, Any]:
    """`given`, which must be an object; raises ValueError for anything else."""
    if not isinstance(given, dict):
        raise ValueError(f"{name[: results_io.SHOWN_NAME]} is {shown(given)}, and not keys with values")
    return given


def reason(error: Exception) -> str:
    """Why a file is no graph, in words."""
    return f"it has no {shown(error.args[0])}" if isinstance(error, KeyError) else str(error)


def shown(value: Any) -> str:
    """A value for a sentence, shortened if it is long."""
    text = repr(value)
    return text if len(text) <= results_io.SHOWN_NAME else f"{text[: results_io.SHOWN_NAME]}..."


def _kind(found: Any) -> str:
    return {list: "a list", str: "a text", bool: "true or false"}.get(
        type(found), "null" if found is None else "a number"
    )


def _integer(digits: str) -> int:
    if len(digits) > results_io.MOST_DIGITS:
        raise ValueError(f"it holds an integer of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    found = float(digits)
    if not math.isfinite(found):
        raise ValueError("it holds a number that is too large")
    return found


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is no number")


def write(path: Path, document: dict[str, Any]) -> None:
    """Write exactly this object, with every digit of its numbers and no further keys."""
    results_io.write_text(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
