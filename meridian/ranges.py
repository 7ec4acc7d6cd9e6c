"""The allowed values of every setting: the intervals, words and units of configs/ranges.yaml."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import yaml

from results_io import UserError

FILE = Path(__file__).parents[1] / "configs" / "ranges.yaml"
EXPERIMENT = "experiment."  # an experiment's settings of measurements and calibrations have the same ranges as those
ITEM = "[]"  # after the name of a list, stands for each of its items
INTERVAL = re.compile(r"(whole|number) ([\[(])(\S+), (\S+)([\])])")
ANY = re.escape("*")
CHOICE = "one of "
GATE = re.compile(r"(P|[A-Z]\d+[a-z]?)\.[a-z_]+")  # a metric of a calibration, as certificates name it
KINDS = {"text": (str,), "flag": (bool,), "plain": (str, bool, int, float)}
LISTS = {"texts": "a list of texts, such as [one,two]", "text or texts": "a text, or a list such as [one,two]"}
WORDS = {
    **LISTS,
    "gate": "a metric such as C11.bootstrap_faithfulness",
    "text": "text",
    "flag": "true or false",
    "plain": "one value",
}
SHOWN = 60  # characters of a value in a sentence


@dataclass(frozen=True)
class Range:
    """The allowed values of a setting.

    `kind` is whole, number, one of, gate, any, or one of `KINDS` and `LISTS`. `choices`: the words of `one of`. `low` and
    `high`: the ends of a number's interval; `open_low` and `open_high` say whether an end itself is excluded. `own`: whether the
    setting's command refuses other values itself.
    """

    kind: str
    unit: str
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    choices: tuple[str, ...] = ()
    own: bool = False

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Self:
        """The range given by an entry of the file. ValueError if its text is not a range."""
        text, unit, own = line["is"], line["unit"], line.get("own", False)
        if text.startswith(CHOICE):
            return cls("one of", unit, choices=tuple(text.removeprefix(CHOICE).split(", ")), own=own)
        if text in (*KINDS, *LISTS, "gate", "any"):
            return cls(text, unit, own=own)
        found = INTERVAL.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a range")
        kind, left, low, high, right = found.groups()
        return cls(kind, unit, float(low), float(high), left == "(", right == ")", own=own)

    def __contains__(self, value: Any) -> bool:
        if self.kind == "any":
            return True
        if self.kind == "one of":
            return isinstance(value, str) and value in self.choices
        if self.kind == "gate":
            return isinstance(value, str) and GATE.fullmatch(value) is not None
        if self.kind in KINDS:
            return isinstance(value, KINDS[self.kind])
        if self.kind in LISTS:
            one = isinstance(value, str) and self.kind != "texts"
            return one or (isinstance(value, list) and all(isinstance(item, str) for item in value))
        if type(value) is not int and (self.kind == "whole" or type(value) is not float):
            return False
        above = value > self.low if self.open_low else value >= self.low
        return above and (value < self.high if self.open_high else value <= self.high)

    def __str__(self) -> str:
        """The range in words: "a number above 0 and at most 0.5 (level of a test)"."""
        if self.kind == "one of":
            return ", ".join(self.choices)
        if self.kind not in ("whole", "number"):
            return f"{WORDS.get(self.kind, 'any value')} ({self.unit})"
        ends = []
        if math.isfinite(self.low):
            ends.append(f"{'above' if self.open_low else 'of at least'} {_short(self.low)}")
        if math.isfinite(self.high):
            ends.append(f"{'below' if self.open_high else 'at most'} {_short(self.high)}")
        noun = "whole number" if self.kind == "whole" else "number"
        return f"a {noun} {' and '.join(ends) or 'that is finite'} ({self.unit})"


def _short(end: float) -> str:
    return str(int(end)) if end.is_integer() and abs(end) < 1e15 else f"{end:g}"


@cache
def declared() -> Mapping[str, Range]:
    """{pattern of names: range} in the order of the file."""
    lines = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {pattern: Range.read(line) for pattern, line in lines.items()}


@cache
def _patterns() -> re.Pattern[str]:
    """One pattern for all names; the number of the matching group is the number of the range."""
    return re.compile("|".join(f"({re.escape(name).replace(ANY, '.*')})" for name in declared()))


@cache
def of(name: str) -> Range | None:
    """The range of the setting `name` ("calibration.c30.seeds[]" for the items of a list), or None if none is declared."""
    found = [_patterns().fullmatch(one) for one in {name, name.removeprefix(EXPERIMENT)}]
    places = [match.lastindex for match in found if match is not None and match.lastindex]
    return tuple(declared().values())[min(places) - 1] if places else None


def check(name: str, value: Any, default: Any) -> None:
    """UserError if the setting `name`, or one below it, has a value that is not allowed. `default`: without overrides."""
    allowed = of(name)
    if allowed is not None and allowed.kind in LISTS:
        if value is not None and value not in allowed:
            raise UserError(f"{name}={shown(value)} is out of range; use {allowed}")
    elif isinstance(value, dict):
        known = default if isinstance(default, dict) else {}
        for key, item in value.items():
            check(f"{name}.{key}" if name else str(key), item, known.get(key))
    elif isinstance(value, list):
        _check_list(name, value, default)
    elif value is not None or default is not None:
        _check_one(name, value, default)


def _check_list(name: str, value: list[Any], default: Any) -> None:
    allowed = of(name)
    if allowed is not None and allowed.kind == "any":
        return
    if default is None and allowed is not None:
        raise UserError(f"{name}={shown(value)} is a list; use {allowed}")
    items = default if isinstance(default, list) else []
    if not value and items and isinstance(items[0], (int, float)) and not name.startswith(EXPERIMENT):
        raise UserError(f"{name}=[] is an empty list; write at least one number, for example {name}={shown(items)}")
    for item in value:
        if isinstance(item, dict | list) and items and not any(isinstance(one, type(item)) for one in items):
            allowed = of(f"{name}{ITEM}") or f"for example {shown(items)}"
            raise UserError(f"{name} holds {shown(item)}, which is not a single value; use {allowed}")
        check(f"{name}{ITEM}", item, _like(item, items))


def _like(item: Any, items: list[Any]) -> Any:
    """The item of a default list to compare `item` with: one with the same keys if it is a mapping, else the first."""
    if isinstance(item, dict):
        return next((one for one in items if isinstance(one, dict) and set(one) == set(item)), None)
    return items[0] if items else None


def _check_one(name: str, value: Any, default: Any) -> None:
    allowed = of(name)
    typed = (
        f"{name.removesuffix(ITEM)} holds {shown(value)}, which" if name.endswith(ITEM) else f"{name}={shown(value)}"
    )
    if type(value) in (int, float) and not math.isfinite(_float(value)):
        raise UserError(f"{typed} is not a finite number; use {allowed or 'a finite one'}")
    if allowed is None or allowed.own or value is None:
        return
    is_number = type(default) in (int, float) or type(value) in (int, float)
    if allowed.kind in ("whole", "number") and not is_number and default is not None:
        return  # a text in place of a number, such as the title of an experiment
    if value not in allowed:
        what = (
            "unknown" if allowed.kind == "one of" else "out of range" if type(value) in (int, float) else "not possible"
        )
        raise UserError(f"{typed} is {what}; use {allowed}")


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def shown(value: Any) -> str:
    """A value as quoted in a sentence: on one line, with control characters escaped, cut if it is long."""
    text = str(value) if isinstance(value, str) else _plain(value)
    text = "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _plain(value: Any) -> str:
    try:
        return str(value)
    except (ValueError, RecursionError):  # thousands of digits
        return "a value of thousands of signs"
