"""Freeze corpora of drift: `python -m suites.drift.corpus [name or folder ...]` compiles prompts.yaml to its lock."""

from __future__ import annotations

import sys
from pathlib import Path

import results_io
from suites.drift import corpus


def main(given: list[str]) -> int:
    """Exit code 0: every lock matched its prompts or was written; 2: bad input."""
    try:
        for name in given or corpus.names():
            folder = corpus.FOLDER / name if (corpus.FOLDER / name).is_dir() else Path(name)
            text = corpus.freeze(folder)
            results_io.write_text(folder / corpus.LOCK, text)
            print(f"{name}: {text.count(chr(10)) - 1} prompts frozen")
    except results_io.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
