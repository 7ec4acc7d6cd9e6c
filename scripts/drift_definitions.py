"""The numbers that define drift's metrics, for the end of configs/drift/default.yaml: values and reasons as the code has them.

python -m scripts.drift_definitions     writes them there; a test compares
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType

import results_io
from suites.drift import (
    centroid,
    change_points,
    corpus,
    hedging,
    held_out_gap,
    length,
    power,
    silent_update,
)
from suites.statistics import detection, permutation

PAGE = Path(__file__).parents[1] / "configs" / "drift" / "default.yaml"
DEFINED: tuple[tuple[ModuleType, tuple[str, ...]], ...] = (
    (detection, ("TARGET_F1", "GOLDEN", "GOLDEN_CLASS")),
    (hedging, ("MINIMUM_WORDS",)),
    (length, ("MINIMUM", "CENSORED")),
    (centroid, ("MINIMUM", "HALVES", "LABELS")),
    (silent_update, ("MINIMUM_PROMPTS", "ONE_P")),
    (change_points, ("PENALTY", "LEAST", "LOW_POWER", "NULL_SNAPSHOTS")),
    (power, ("POWER",)),
    (corpus, ("HELD_OUT_SHARE", "HELD_OUT_LEAST", "OVERLAP")),
    (held_out_gap, ("MINIMUM",)),
    (permutation, ("EXACT_UP_TO", "FEWEST_RESAMPLES")),
)
HEADING = (
    "# Definitions. No setting changes one, for a series with another would be another series; each is a constant of the file\n"
    "# that it names, and `python -m scripts.drift_definitions` writes them here.\n"
)


def lines() -> list[str]:
    """One comment for each constant: file, name, value and the reason that stands beside it in the code."""
    found = []
    for module, names in DEFINED:
        for name in names:
            place = f"{module.__name__.rpartition('.')[2]}.{name}"
            found.append(f"#   {place:<31} {_shown(getattr(module, name)):<11} {_reason(module, name)}")
    return found


def _shown(value: object) -> str:
    """A number, or the numbers of a tuple; of a pair with a word, the number."""
    every = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{one[0] if isinstance(one, tuple) else one:g}" for one in every)


def _reason(module: ModuleType, name: str) -> str:
    """The comment behind the constant. ValueError without one: a number without a reason is none to publish."""
    found = re.search(rf"^{name} = [^#\n]*#  ?(.+)$", inspect.getsource(module), re.MULTILINE)
    if found is None:
        raise ValueError(f"{module.__name__}.{name} has no reason behind it; write it as a comment on its line")
    return found[1]


def page(text: str) -> str:
    """The configuration with the definitions at its end."""
    return text[: text.index(HEADING.split(".")[0])] + HEADING + "".join(f"{line}\n" for line in lines())


def main() -> int:
    """Write the definitions into the configuration."""
    results_io.write_text(PAGE, page(PAGE.read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
