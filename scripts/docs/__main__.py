"""`python -m scripts.docs --out site`: build the documentation site."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from results_io import UserError
from scripts.docs import site


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.docs", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder for the HTML (default: site)")
    out = parser.parse_args().out
    try:
        site.require_target(out)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as work:
        status = site.build(out, Path(work))
    if status == 0:
        print(f"Open {out / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main())
