"""Measure every heuristic on its golden set, print the table and write measured.json: `python -m suites.golden [set ...]`."""

from __future__ import annotations

import json
import sys

from rich.console import Console
from rich.table import Table

from suites import golden
from suites.modes import quality


def main(names: list[str]) -> None:
    measured = golden.measure(names)
    table = Table(title="Heuristics on the test half of their golden sets, 95 % intervals")
    for column in ("set", "mode", "n", "precision", "recall", "F1", "F1 develop", "locked"):
        table.add_column(
            column, justify="left" if column in ("set", "mode", "locked") else "right", no_wrap=column == "set"
        )
    for name, found in measured.items():
        test = found["test"]
        rates = [
            f"{test[key]['value']:.3f} [{test[key]['low']:.3f}, {test[key]['high']:.3f}]"
            for key in ("precision", "recall", "f1")
        ]
        develop = f"{found['develop']['f1']['value']:.3f}"
        table.add_row(name, found["mode"], str(test["n"]), *rates, develop, "yes" if found["locked"] else "no")
    Console().print(table)
    known = json.loads(quality.MEASURED.read_text(encoding="utf-8")) if quality.MEASURED.exists() else {}
    text = json.dumps(known | measured, indent=1, sort_keys=True) + "\n"
    quality.MEASURED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
