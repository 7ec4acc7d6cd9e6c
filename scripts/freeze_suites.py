"""Freeze suites: compile their items and write suite.lock.jsonl beside suite.yaml.

python -m scripts.freeze_suites                     all suites of the catalogue
python -m scripts.freeze_suites a10_padding_ioi     some of them, or your own folders
python -m scripts.freeze_suites --check             writes nothing; exit 1 if a lock is not as declared
python -m scripts.freeze_suites --canaries FILE     first gives a canary to suites without one, from the secret seed in FILE

Every line gives the lowest upper bound that the suite can show: the upper end of its failure rate's interval if nothing fails. A
gate below this bound is refused, because no model could pass it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import results_io
from suites import declaration, lock, sizing
from suites.contamination import canary
from suites.item import CATALOGUE
from suites.item import FILE as DECLARED

README = CATALOGUE / "README.md"  # with the canary line of every suite
ABOUT = """# Suites

Every suite is a folder with its declaration and its frozen items; [what they are](../../docs/behaviour.md). The lines below are
canaries. They stand here and in the headers of the locks, and in no prompt. Please keep this folder out of training data: a
model that knows a line [has read it](../../docs/contamination.md#194-canaries).
"""


def freeze(suite: str | Path) -> tuple[declaration.SuiteDeclaration, str, bool, sizing.Size]:
    """(declaration, text of the lock, whether the lock on disk differs from it, what the suite can show).

    UserError if the lock could not be loaded again, or if a gate cannot be passed. Both are checked before anything is written.
    """
    declared = declaration.read(declaration.find(suite))
    text = lock.freeze(declared)
    built = declaration.build(declared, lock.parse(text, declared))
    sizing.require_passable(built, declared.file)
    path = declared.folder / lock.FILE
    return declared, text, not path.exists() or path.read_bytes() != text.encode(), sizing.of(built)


def readme() -> str:
    """The README of the catalogue: the canary line of every suite that has one."""
    declared = [declaration.read(declaration.find(name)).data for name in declaration.names()]
    lines = [canary.of_suite(one["id"], one["canary"]).line for one in declared if "canary" in one]
    return f"{ABOUT}\n{chr(10).join(f'- {line}' for line in lines)}\n"


def plant(seed: str) -> None:
    """Give a canary to every suite of the catalogue without one: a line in its declaration, after the version."""
    for name in declaration.names():
        path = declaration.find(name) / DECLARED
        text = path.read_text(encoding="utf-8")
        if "\ncanary:" not in text:
            head, version, rest = text.partition("\nversion:")
            line, _, below = rest.partition("\n")
            results_io.write_text(path, f"{head}{version}{line}\ncanary: {canary.drawn(seed, name)}\n{below}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: all locks are as declared (or were written); 1: --check found one that is not; 2: bad input."""
    parser = argparse.ArgumentParser(description="Freeze suites into their locks.")
    parser.add_argument("suites", nargs="*", help="ids of the catalogue or folders; none: the whole catalogue")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a lock would change")
    parser.add_argument(
        "--canaries", metavar="FILE", type=Path, help="a secret seed, from which new canaries are drawn"
    )
    chosen = parser.parse_args(arguments)
    stale = 0
    try:
        if chosen.canaries is not None:
            plant(chosen.canaries.read_text(encoding="utf-8").strip())
        for suite in chosen.suites or declaration.names():
            declared, text, differs, size = freeze(suite)
            stale += differs
            if differs and not chosen.check:
                results_io.write_text(declared.folder / lock.FILE, text)
            state = "as it was" if not differs else "differs" if chosen.check else "frozen"
            print(f"{declared.data['id']} {declared.data['version']}: {text.count(chr(10)) - 1} items, {state}; {size}")
        if not chosen.suites and (not README.is_file() or README.read_text(encoding="utf-8") != readme()):
            stale += 1
            if not chosen.check:
                results_io.write_text(README, readme())
    except results_io.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
