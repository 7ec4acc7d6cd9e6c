"""The verdicts that each calibration must give on each subject, declared in the configuration before measuring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from calibrations.registry import CALIBRATIONS
from results_io import UserError

Expectation = Literal["pass", "not_pass", "free"]

PRECONDITIONS = "P"
RANDOM = "random"  # the subject of claims drawn at random
ROWS = (PRECONDITIONS, *CALIBRATIONS)  # the rows for which a subject has expectations
BELONGS = {"free": "sound", "must_pass": "faithful", "not_pass": "flawed"}  # the truth that each declaration is for
MEANT: Mapping[str, Expectation] = {"free": "free", "must_pass": "pass", "not_pass": "not_pass"}  # by declaration
TRUTHS = ("sound", "faithful", "flawed")


@dataclass(frozen=True)
class KnownClaim:
    """A circuit claim whose truth is known.

    `truth` is "sound" (true in all that is claimed), "faithful" (the right heads; more is not known) or "flawed".
    `sentence` says what was planted. `expected` has one entry per calibration and one for the preconditions: "pass" (the
    verdict must be pass), "not_pass" (it must not be, because the calibration is declared to detect the flaw) or "free" (the
    calibration is not designed to detect it). `reasons` says why, if the expectation is not the default for its truth.
    """

    name: str
    truth: str
    sentence: str
    expected: Mapping[str, Expectation]
    reasons: Mapping[str, str]


def subjects(config: Mapping[str, Any]) -> dict[str, KnownClaim]:
    """The subjects of the section `subjects` of an experiment's configuration, in its order.

    A sound circuit must pass everything except what `free` names. A faithful one must pass what `must_pass` names. A flawed
    one must not pass what `not_pass` names. The rest is free. UserError for an unknown truth or calibration, for a flaw that
    nothing is declared to detect, or for a declaration that does not apply to the truth.
    """
    return {name: _subject(name, declared) for name, declared in config["subjects"].items()}


def chosen(config: Mapping[str, Any]) -> dict[str, KnownClaim]:
    """The subjects that `only` names; all of them if it names none. UserError for an unknown name."""
    every, only = subjects(config), config.get("only")
    if only == []:
        raise UserError("experiment.only=[] names no subject; leave it out for all of them")
    if unknown := [name for name in only or () if name not in every]:
        raise UserError(f"experiment.only names {unknown[0]!r}, which is no subject; use some of {', '.join(every)}")
    return {name: one for name, one in every.items() if not only or name in only}


def _subject(name: str, declared: Mapping[str, Any]) -> KnownClaim:
    truth = declared["truth"]
    if truth not in TRUTHS:
        raise UserError(f"subject {name} has truth {truth!r}; use one of {', '.join(TRUTHS)}")
    given = {key: declared[key] for key in BELONGS if declared.get(key)}
    if unknown := [row for rows in given.values() for row in rows if row not in ROWS]:
        raise UserError(f"subject {name} names {unknown[0]!r}, which is no calibration; use some of {', '.join(ROWS)}")
    if misplaced := [key for key in given if BELONGS[key] != truth]:
        raise UserError(f"subject {name} is {truth}, so {misplaced[0]} says nothing; leave it out")
    if truth == "flawed" and not given:
        raise UserError(
            f"subject {name} is flawed and nothing is declared to detect it; name a calibration under not_pass"
        )
    default: Expectation = "pass" if truth == "sound" else "free"
    expected: dict[str, Expectation] = dict.fromkeys(ROWS, default)
    for key, expectation in MEANT.items():
        expected |= dict.fromkeys(given.get(key, ()), expectation)
    reasons = {row: why for rows in given.values() for row, why in rows.items()}
    return KnownClaim(name, truth, declared["sentence"], expected, reasons)
