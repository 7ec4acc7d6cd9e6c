"""Freeze suites: compile their items and write suite.lock.jsonl beside suite.yaml.

python -m scripts.freeze_suites                     all suites of the catalogue
python -m scripts.freeze_suites a10_padding_ioi     some of them, or folders of one's own
python -m scripts.freeze_suites --check             writes nothing; exit 1 if a lock is not as declared

Every line says what the suite can show: the upper end of its failure rate's interval if nothing fails. A gate below it, which no
model could pass, is refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import results_io
from suites import declaration, lock, sizing


def freeze(suite: str | Path) -> tuple[declaration.Declaration, str, bool, sizing.Size]:
    """A suite's declaration, the text of its lock, whether the lock on disk differs from it, and what the suite can show.

    UserError for what cannot be loaded again, and for a gate that cannot be passed: both are checked before anything is written.
    """
    declared = declaration.read(declaration.find(suite))
    text = lock.freeze(declared)
    built = declaration.build(declared, lock.parse(text, declared))
    sizing.require_passable(built, declared.file)
    path = declared.folder / lock.FILE
    return declared, text, not path.exists() or path.read_bytes() != text.encode(), sizing.of(built)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: all locks are as declared (or were written); 1: --check found one that is not; 2: bad input."""
    parser = argparse.ArgumentParser(description="Freeze suites into their locks.")
    parser.add_argument("suites", nargs="*", help="ids of the catalogue or folders; none: the whole catalogue")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a lock would change")
    chosen = parser.parse_args(arguments)
    stale = 0
    try:
        for suite in chosen.suites or declaration.names():
            declared, text, differs, size = freeze(suite)
            stale += differs
            if differs and not chosen.check:
                results_io.write_text(declared.folder / lock.FILE, text)
            state = "as it was" if not differs else "differs" if chosen.check else "frozen"
            print(f"{declared.data['id']} {declared.data['version']}: {text.count(chr(10)) - 1} items, {state}; {size}")
    except results_io.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
