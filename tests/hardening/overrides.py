"""Command lines that should not pass, drawn from a seed: settings of every kind with values of every wrong kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from meridian import overrides

CHOICES = (
    (),
    ("circuit=discovered",),
    ("circuit=random",),
    ("circuit=file",),
    ("model=endpoint", "model.name=x"),
    ("tracker=wandb",),
    ("geometry=pocket",),
    ("suite=file",),
    ("task=file",),
    ("engine=lens",),
    ("experiment=validate_calibrations",),
    ("experiment=reproduce_ioi",),
)
WRONG = (
    *(
        "-1",
        "0",
        "-0.5",
        "1.5",
        "5",
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-inf",
        "1e-400",
        f"{2**70}",
        "1e9",
        "99999999999",
    ),
    *(
        "",
        "x",
        "null",
        "true",
        "[]",
        "{}",
        "[null]",
        "[x]",
        "[-1]",
        "[nan]",
        "[[]]",
        "{x: 1}",
        "[1,1e400]",
        "'é'",
        "' '",
    ),
    *(
        "???",
        "${x}",
        "${oc.env:HOME}",
        "${seed",
        "[",
        "]",
        "{",
        "}",
        "(",
        "a:b",
        "a b",
        "é",
        "日本",
        "\x00",
        "\t",
        "1,2",
    ),
    *(
        "range(1,3)",
        "choice(1,2)",
        "glob(*)",
        "sort(1)",
        "'",
        '"',
        '"x',
        "'x",
        "\\",
        "=",
        "==",
        "@",
        "#",
        "%",
        "x" * 5000,
    ),
    *("[" * 300 + "]" * 300, "9" * 5000, "!!python/object:os.system", "&a [*a]", "1_000", "0x10", "+1", "1e", "-", "_"),
)
SHAPES = ("{key}={value}",) * 8 + (
    *("+{key}={value}", "++{key}={value}", "~{key}", "~{key}={value}", "+{key}.new={value}", "+new={value}"),
    *(
        "{key}.x={value}",
        "{key}",
        "{key}@x={value}",
        "={value}",
        "+{key}",
        "é={value}",
        "{key}[0]={value}",
        ".{key}={value}",
    ),
)


def settings() -> list[tuple[tuple[str, ...], str, Any]]:
    """(choices of groups, name, default) of every setting that these choices have, sections included."""
    found: dict[str, tuple[tuple[str, ...], str, Any]] = {}
    for given in CHOICES:
        composed = OmegaConf.to_container(overrides.composed(list(given)), resolve=True)
        for name, default in _named(composed, ""):
            found.setdefault(name, (given, name, default))
    return [found[name] for name in sorted(found)]


def _named(section: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in section.items() if isinstance(section, dict) else ():
        name = f"{prefix}.{key}" if prefix else str(key)
        yield name, value
        yield from _named(value, name)


def drawn(number: int, seed: int) -> list[tuple[str, ...]]:
    """So many command lines, each of one setting; `results` and the words of commands are left alone."""
    rng = random.Random(f"overrides {seed}")
    every = [item for item in settings() if item[1] not in ("command", "results")]
    lines = []
    for _ in range(number):
        given, key, _ = rng.choice(every)
        lines.append((*given, rng.choice(SHAPES).format(key=key, value=rng.choice(WRONG))))
    return lines
