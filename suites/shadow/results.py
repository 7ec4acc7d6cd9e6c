"""189 shadow: the e-processes of a stream, and their alarms by e-BH over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import results_io
from suites.estimate import Estimate, missing
from suites.log import environment
from suites.modes import quality
from suites.shadow import detectors, evaluation
from suites.shadow.evaluation import Pass
from suites.shadow.traffic_record import TrafficStream
from suites.statistics import e_process, proportions
from suites.statistics.e_process import Direction, Watched

NUMBER, ID, KIND, FAMILY = "189", "shadow", "shadow", "W"
HALF = 0.5  # expected share, among requests on which the two models differ, if neither is worse
TEST = "e-process, beta(1, 1) mixture; e-BH over all metrics"
WINS = "wins"
MOST = 2 * len(detectors.DETECTORS) + 1  # metrics that there can be; e-BH is over all, so that one may join at any time


@dataclass(frozen=True)
class DailyOutcomes:
    """A stream of 0 and 1 with the day and the place on the record of each, in the record's order.

    `worse`: the side on which the candidate is worse. `decides`: whether an alarm on that side gives the exit code 1.
    """

    name: str
    outcomes: tuple[bool, ...]
    days: tuple[str, ...]
    places: tuple[int, ...]
    p0: float
    worse: str
    doubt: str | None = None
    decides: bool = True


def metrics(stream: TrafficStream) -> list[DailyOutcomes]:
    """The monitored streams.

    `<detector>.differs`: over requests on which the detector fires on one of the two answers, whether that is the candidate's;
    tested against 1/2. `<detector>.rate`: over requests since its expected rate was fixed, whether it fires on the candidate's
    answer; tested against that rate. `wins`: over pairs that the judge decided, whether the candidate won; tested against 1/2.
    """
    lines = list(stream.sampled.values())
    found = []
    for name in detectors.DETECTORS:
        differing = [line for line in lines if line["candidate"][name] != line["live"][name]]
        doubt = _doubt(name)
        found.append(
            _metric(f"{name}.differs", differing, lambda line, name=name: line["candidate"][name], HALF, doubt)
        )
        if (rate := stream.expected.get(name)) is not None:
            later = [line for line in lines if line["seq"] > rate.since]
            found.append(
                _metric(f"{name}.rate", later, lambda line, name=name: line["candidate"][name], rate.p0, doubt)
            )
    decided = [
        {**one, "day": stream.sampled[name]["day"]}
        for name, one in stream.verdicts.items()
        if one["original"] == one["swapped"] and one["original"] in ("A", "B")
    ]
    if stream.verdicts:
        wins = _metric(WINS, decided, lambda line: line["original"] == "A", HALF, stream.doubt, worse="below")
        found.append(replace(wins, decides=stream.doubt is None))
    return found


def watch(found: Sequence[DailyOutcomes], alpha: float) -> dict[str, Watched]:
    """The e-process of every metric."""
    return {one.name: e_process.watch(one.outcomes, one.p0, alpha) for one in found}


def alarms(
    found: Sequence[DailyOutcomes], watched: Mapping[str, Watched], alpha: float
) -> dict[str, dict[Direction, int]]:
    """For every metric, after how many of its items e-BH first selected it on each side of p0."""
    sides = e_process.alarms([watched[one.name] for one in found], [one.places for one in found], alpha, MOST)
    return {one.name: {side: alarm.n for side, alarm in own.items()} for one, own in zip(found, sides, strict=True)}


def write(
    folder: Path,
    stream: TrafficStream,
    pass_: Pass,
    settings: Mapping[str, Any],
    subject: Mapping[str, Any],
    suite: str | None,
) -> tuple[Path, list[str]]:
    """Write 189; returns its path and the metrics with an alarm on the side on which the candidate is worse.

    A metric has an alarm if e-BH over all metrics that there can be selected it after any line of the record. The side is that of
    the rate then. What comes later, other requests or other metrics, does not turn an alarm around.
    """
    found, alpha = metrics(stream), settings["alpha"]
    watched = watch(found, alpha)
    chosen = e_process.chosen([watched[one.name].e for one in found], alpha, MOST)
    sides = alarms(found, watched, alpha)
    worse = sorted(one.name for one in found if one.decides and one.worse in sides[one.name])
    expected = {name: one.p0 for name, one in stream.expected.items()}
    failing = evaluation.failing(stream)
    document = {
        "number": NUMBER,
        "id": ID,
        "kind": KIND,
        "subject": dict(subject),
        "environment": environment.of_judging(),
        "n": {
            **pass_.counts,
            "recorded": len(stream.sampled),
            "unanswered": len(stream.unanswered),
            "judged": len(stream.verdicts),
            "failing": len(failing),
        },
        "alarms": sorted(name for name, own in sides.items() if own),
        "worse": worse,
        "data": {
            "settings": {
                **{name: settings[name] for name in ("rate", "budget", "alpha", "retention", "opt_in")},
                "expected": {name: expected.get(name) for name in detectors.DETECTORS},
            },
            "days": {one.name: _days(one, watched[one.name]) for one in found},
            "redacted": _redacted(stream),
            "failing": failing,
            "suite": suite,
        },
        "records": [
            _record(one, watched[one.name], sides[one.name], now, alpha) for one, now in zip(found, chosen, strict=True)
        ],
    }
    path = Path(folder) / f"{NUMBER}_{ID}.json"
    results_io.write(path, document)
    return path, worse


def _metric(
    name: str, lines: Sequence[Mapping[str, Any]], hit, p0: float, doubt: str | None, worse: str = "above"
) -> DailyOutcomes:
    outcomes = tuple(bool(hit(line)) for line in lines)
    days, places = tuple(line["day"] for line in lines), tuple(line["seq"] for line in lines)
    return DailyOutcomes(name, outcomes, days, places, p0, worse, doubt)


def _doubt(detector: str) -> str | None:
    """Why a detector's alarm is only a hint: the detector is a heuristic below its target. None if it is not."""
    if detector not in detectors.SETS:
        return None
    measured = quality.known(detectors.SETS[detector])
    if measured is not None and measured["target_reached"]:
        return None
    return "the detector is a heuristic below its target on golden texts; it reads both models' answers alike"


def _days(metric: DailyOutcomes, watched: Watched) -> list[dict[str, Any]]:
    """The state at the end of each day: items, successes and e so far."""
    found: dict[str, dict[str, Any]] = {}
    hits = 0
    for place, (day, hit, e) in enumerate(zip(metric.days, metric.outcomes, watched.path, strict=True), start=1):
        hits += hit
        found.pop(day, None)  # in the order of the record, so a resumed day comes last
        found[day] = {"day": day, "n": place, "successes": hits, "e": e}
    return list(found.values())


def _redacted(stream: TrafficStream) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in stream.sampled.values():
        for name, number in line["redacted"].items():
            counts[name] = counts.get(name, 0) + number
    return dict(sorted(counts.items()))


def _record(
    metric: DailyOutcomes, watched: Watched, sides: Mapping[Direction, int], selected: bool, alpha: float
) -> dict[str, Any]:
    estimate = missing("insufficient_data", "no request bears on it so far", "share")
    if watched.n:
        estimate: Estimate = proportions.wilson(watched.successes, watched.n)
    return {
        "metric_id": f"{FAMILY}.{ID}.{metric.name}",
        "family": FAMILY,
        "role": "exploratory" if metric.doubt else "confirmatory",
        **estimate.to_record(),
        "test": TEST,
        "p0": metric.p0,
        "alpha": alpha,
        "e": watched.e,
        "e_largest": watched.largest,
        "alarm": min(sides.values(), default=None),
        "alarms": dict(sides),
        "direction": watched.direction,
        "worse_is": metric.worse,
        "e_bh": selected,
        "doubt": metric.doubt,
    }
