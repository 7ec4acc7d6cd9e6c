"""Release the rules of the certificate: write calibrations/released_rules.json with the next version, if the rules changed.

python -m scripts.release_rules                  0.3 becomes 0.4, even if a merge left both sides in the file
python -m scripts.release_rules --version 1.0    a version of your choice
python -m scripts.release_rules --check          writes nothing; exit 1 if the shipped rules are not released
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import results_io
from calibrations import rules
from meridian import config_groups, shipped_rules


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: the rules are released; 1: --check found that they are not; 2: bad input."""
    parser = argparse.ArgumentParser(description="Release the rules of the certificate.")
    parser.add_argument("--version", help="in place of the next one; it must be higher, such as 1.0")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the rules are not released")
    chosen = parser.parse_args(arguments)
    try:
        config_groups.check()
        differences = shipped_rules.unreleased()
        print("\n".join(differences) or "The rules that ship are released.")
        if differences and not chosen.check:
            print(f"Released as {release(chosen.version)} in {rules.RELEASED.name}.")
    except results_io.UserError as error:
        print(error, file=sys.stderr)
        return 2
    return int(chosen.check and bool(differences))


def release(version: str | None) -> str:
    """Write the shipped rules as `version` (None: the next one) and return it. UserError unless it is higher than the last."""
    text = rules.RELEASED.read_text(encoding="utf-8") if rules.RELEASED.exists() else ""
    released = rules.version_after(text, version)
    results_io.write_text(rules.RELEASED, shipped_rules.shipped(released).text)
    return released


if __name__ == "__main__":
    sys.exit(main())
