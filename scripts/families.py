"""`python -m scripts.families`: the table of model families in docs/real-models.md, from docs/families.json.

tests/circuits/test_family_table.py measures the rows. If they have changed, it fails and writes the new ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results_io
from meridian import generated_parts

DOCS = Path(__file__).parents[1] / "docs"
FACTS, PAGE, PART = DOCS / "families.json", DOCS / "real-models.md", "families"

Row = Mapping[str, Any]


def table(rows: Sequence[Row]) -> str:
    """Families that run, with the engine and what is left out; then those that do not run, with the reason."""
    runs = [(row["family"], row["engine"], _left_out(row["left_out"])) for row in rows if "engine" in row]
    refused = [(row["family"], row["refused"]) for row in rows if "refused" in row]
    return "\n\n".join(
        (
            generated_parts.table(("family", "engine", "left out of a run"), runs),
            generated_parts.table(("refused before weights are read", "why"), refused),
        )
    )


def write(rows: Sequence[Row]) -> None:
    """Store the rows and put their table into the page."""
    results_io.write_text(FACTS, json.dumps(list(rows), indent=1, ensure_ascii=False) + "\n")
    generated_parts.update(PAGE, {PART: table(rows)})


def _left_out(reasons: Mapping[str, str]) -> str:
    """The left-out measurements' numbers, grouped by reason."""
    numbers: dict[str, list[str]] = {}
    for number, reason in reasons.items():
        numbers.setdefault(reason.partition("; ")[0], []).append(number)
    return "; ".join(f"{', '.join(those)}: {reason}" for reason, those in numbers.items()) or "nothing"


if __name__ == "__main__":
    write(json.loads(FACTS.read_text()))
