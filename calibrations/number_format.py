"""How numbers are written for people: one rule for tables of verdicts, one for figures and their captions."""

from __future__ import annotations

from collections.abc import Callable


def number(value: float) -> str:
    """Two decimals, three below 0.1, two significant digits below 0.001."""
    if abs(value) >= 0.1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if abs(value) >= 0.001 else f"{value:.2g}"


def rounded(value: float, digits: int) -> float:
    """The value to so many decimals, without the minus of a negative zero."""
    return round(value, digits) + 0.0


def three_digits(value: float | None) -> str:
    """Three significant digits (0.123, 12.3, 1.2e-05); a dash for a missing number."""
    return "–" if value is None else f"{value:.3g}"


def interval_text(low: float | None, high: float | None, form: Callable[[float], str] = number) -> str:
    """ " [0.93, 1.01]", to stand after an estimate; empty if an end is missing."""
    return "" if low is None or high is None else f" [{form(low)}, {form(high)}]"
