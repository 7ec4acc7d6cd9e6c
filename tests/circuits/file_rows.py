"""Rows of indirect object identification in pocket's words, as somebody's file would have them."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path

from circuits.tasks import ioi

FRAMES = tuple(ioi.FRAMES)


def ioi_rows(count: int, frames: Sequence[str] = FRAMES[:1], seed: int = 5, order: str = "ABBA") -> list[dict]:
    """`count` distinct pairs in equal parts of each frame: clean, corrupted, answer, wrong."""
    rng, rows, seen = random.Random(seed), [], set()
    while len(rows) < count:
        frame = frames[len(rows) % len(frames)]
        drawn = ioi.sample(rng, {frame: ioi.FRAMES[frame]})
        if drawn.clean in seen or not drawn.template.endswith(order):
            continue
        seen.add(drawn.clean)
        rows.append(
            {"clean": drawn.clean, "corrupted": drawn.corrupted, "answer": drawn.answers[0], "wrong": drawn.wrong[0]}
        )
    return rows


def as_csv(rows: Sequence[dict], path: Path) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for row in rows for name in row)))
        writer.writeheader()
        writer.writerows(rows)
    return path


def as_jsonl(rows: Sequence[dict], path: Path) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
