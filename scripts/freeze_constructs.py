"""Freeze constructs: write constructs.lock.jsonl beside reference.yaml, with a hash of every construct, prompt and reference.

python -m scripts.freeze_constructs                 all shipped sets
python -m scripts.freeze_constructs pocket DIR      some of them, or your own folders
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import results_io
from suites.geometry import construct, lint


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: every lock is written; 2: bad input, and nothing is written for that set."""
    parser = argparse.ArgumentParser(description="Freeze constructs into their locks.")
    parser.add_argument("sets", nargs="*", help="names of shipped sets or folders; none: all that ship")
    try:
        for name in parser.parse_args(arguments).sets or construct.names():
            loaded = construct.load(name, locked=False)
            lint.frozen(loaded)
            results_io.write_text(loaded.folder / construct.LOCK, construct.freeze(loaded))
            print(f"{loaded.name}: {len(loaded.constructs)} constructs frozen")
    except results_io.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
