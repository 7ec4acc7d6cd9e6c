"""M93 multiple comparisons: do the significant results survive the number of tests made?

Published value: share of nominally significant results that stay significant under Benjamini-Hochberg. It uses approximate
p-values of all numbered results: of a value against its baseline if a record has both, otherwise of its published verdict.
These are used for nothing else.

The verdict rests on the p-values that the calibrations themselves report, never on verdicts, and M93 does not read its own
records. Gates joined by AND need no correction among themselves: the largest p is the p of "all hold". Multiplicity is
corrected across circuits and tasks, by Benjamini-Yekutieli, because equivalence and superiority tests on the same prompts need
not be positively dependent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrations.record import Published, Record, judge
from calibrations.statistics import Insufficient, adjusted_p, approximate_p, or_clause_p, storey_pi0, survival
from result_types import StoredRecord

ID = "M93"
NUMBER = "93"
NAME = "multiple_comparisons"
TITLE = "multiple comparisons"
INPUTS: tuple[str, ...] = ()  # reads the records of the other calibrations, no measurement
NODES = "Whatever the records that it reads count."

RULE = "share of nominally significant results that survive BH > {threshold_survival}"
UNNUMBERED = "P."  # the preconditions, which are ours and in no numbered result
OWN_PREFIX = f"{ID}."
METHODS = ("bonferroni", "holm", "bh", "by")


def calibrate(records: Sequence[StoredRecord], config: Mapping[str, Any]) -> list[Record]:
    """M93.multiple_comparisons over the record dicts of all other calibrations of one circuit.

    Published: share of the approximate p-values below 0.05 (`approximate`) that are still at most 0.05 after
    Benjamini-Hochberg; above 0.5. Verdict: p of "every gate holds", the largest p of the gates (k alternatives enter with k
    times their smallest p). pass below 0.05, otherwise inconclusive, since a large p contradicts no gate; insufficient if a
    gate that should have a p-value has none. If a gate has failed, the largest p is that gate's, so the verdict is
    insufficient (`follows_from`) and names the failed gates.
    """
    tests, published = _tests(records), approximate(records, config)
    return [
        judge(
            "M93.multiple_comparisons",
            lambda: _published(published, config),
            lambda: _conjunction(_others(records), config),
            rule=RULE.format(**config),
            n={"tests": len(tests), "gates": sum(record["gating"] for record in tests)},
            companions={
                **_corrections(tests, config),
                "published": _corrections(published, config),
                "gates_without_p": _untested(_others(records), config),
            },
        )
    ]


def calibrate_global(
    tables: Mapping[str, Sequence[StoredRecord]],
    certificates: Mapping[str, float | None],
    config: Mapping[str, Any],
) -> list[Record]:
    """M93.multiple_comparisons_global over circuits.

    `tables` maps "model/task/circuit" to its records, `certificates` to the p-value of its certificate: the largest
    over its gates, None if a gate has none. The published value pools the approximate p-values of `tables`; the verdict corrects
    the certificates over circuits. A circuit that has not been tested in full does not survive.
    """
    pooled, published = (
        [
            {**test, "metric": f"{circuit}: {test['metric']}"}
            for circuit in sorted(tables)
            for test in find(tables[circuit])
        ]
        for find in (_tests, lambda records: approximate(records, config))
    )
    return [
        judge(
            "M93.multiple_comparisons_global",
            lambda: _published(published, config),
            lambda: _across_circuits(certificates, config),
            rule=RULE.format(**config),
            gating=False,
            n={"tests": len(pooled), "circuits": len(tables)},
            companions={
                "pooled": _corrections(pooled, config, list_tests=False),
                "published": _corrections(published, config, list_tests=False),
                "circuits": _adjusted(certificates, config),
            },
        )
    ]


def approximate(records: Sequence[StoredRecord], config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The published tests, in order of metric: {"metric", "gating", "p", "p_kind"} for every record of a numbered result.

    For records with a value and a baseline, p is the two-sided normal p of value = baseline, with the standard error from the
    interval's width; for the others it is `verdict_p` of the published verdict. Records without either are no tests. Use these
    for the published value only: half of the verdicts test no null hypothesis, and the interval need not be symmetric.
    """
    tests = []
    for record in _others(records):
        found = None if record["metric"].startswith(UNNUMBERED) else _approximate_p(record, config)
        if found is not None:
            p, kind = found
            tests.append({"metric": record["metric"], "gating": record["gating"], "p": p, "p_kind": kind})
    return sorted(tests, key=lambda test: test["metric"])


def _approximate_p(record: StoredRecord, config: Mapping[str, Any]) -> tuple[float, str] | None:
    pair, verdict = record.get("against_baseline"), record.get("published_verdict", "none")
    if pair:
        low, high = pair["ci95"]
        try:
            return approximate_p(pair["value"], pair["baseline"], (low, high)).p, "approx: value against baseline"
        except Insufficient:
            pass  # an interval of no width has no standard error, so only the verdict is left
    return None if verdict == "none" else (config["verdict_p"][verdict], "approx: published verdict")


def _others(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """All records but M93's own: a second run must see the same tests as the first."""
    return [record for record in records if not record["metric"].startswith(OWN_PREFIX)]


def _p_value(record: Mapping[str, Any]) -> float | None:
    p = record.get("p")
    if p is None or math.isnan(p):
        return None
    if not 0 <= p <= 1:
        raise ValueError(f"{record['metric']} has p = {p}; a p-value lies between 0 and 1")
    return float(p)


def _tests(records: Sequence[StoredRecord]) -> list[StoredRecord]:
    """The records with a usable p-value, in order of metric."""
    return sorted(
        (record for record in _others(records) if _p_value(record) is not None),
        key=lambda record: record["metric"],
    )


def _values(tests: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> np.ndarray:
    if len(tests) < config["min_tests"]:
        raise Insufficient("not_run", f"{len(tests)} valid p-values; at least {config['min_tests']} are needed")
    return np.array([_p_value(record) for record in tests])


def _published(tests: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Published:
    rate = survival(_values(tests, config), config["alpha"]).rate
    verdict = "pass" if rate > config["threshold_survival"] else "fail"
    return Published(rate, RULE.format(**config), verdict)


def _gates(records: Sequence[StoredRecord], config: Mapping[str, Any]) -> dict[str, StoredRecord]:
    """Records that some tier asks to pass: the gating ones and all alternatives, some of which do not gate alone."""
    either = {metric for group in config["alternatives"] for metric in group}
    return {record["metric"]: record for record in records if record["gating"] or record["metric"] in either}


def _failed(gates: Mapping[str, StoredRecord], config: Mapping[str, Any]) -> list[str]:
    """Gates that failed; alternatives only if all of them that were judged failed."""
    failed = {metric for metric, record in gates.items() if record["verdict"] == "fail"}
    for group in config["alternatives"]:
        judged = [metric for metric in group if metric in gates and gates[metric]["verdict"] != "insufficient"]
        if any(metric not in failed for metric in judged):
            failed -= set(group)
    return sorted(failed)


def _untested(records: Sequence[StoredRecord], config: Mapping[str, Any]) -> list[str]:
    """Gates that should have a p-value and have none; for alternatives, one p-value is enough."""
    gates = {metric: _p_value(record) for metric, record in _gates(records, config).items()}
    without = {metric for metric, p in gates.items() if p is None} - set(config["no_test"])
    for group in config["alternatives"]:
        if any(gates.get(metric) is not None for metric in group):
            without -= set(group)
    return sorted(without)


def _conjunction(records: Sequence[StoredRecord], config: Mapping[str, Any]) -> dict[str, Any]:
    """p of "every gate of this circuit holds": pass below alpha. Raises Insufficient if a gate failed or has no p."""
    failed = _failed(_gates(records, config), config)
    if failed:
        raise Insufficient("follows_from", ", ".join(failed))
    untested = _untested(records, config)
    if untested:
        detail = f"{len(untested)} gates have no p-value: {', '.join(untested)}"
        raise Insufficient(_reason(records, untested), detail)
    gates = {metric: p for metric, gate in _gates(records, config).items() if (p := _p_value(gate)) is not None}
    for group in config["alternatives"]:
        asked = [metric for metric in group if metric in gates]
        if asked:
            gates[" or ".join(asked)] = or_clause_p([gates.pop(metric) for metric in asked])
    if not gates:
        raise Insufficient("not_run", "no gate has a p-value")
    worst = max(gates, key=lambda metric: (gates[metric], metric))
    if gates[worst] < config["alpha"]:
        return {"verdict": "pass", "estimate": gates[worst]}
    weak = [metric for metric, p in sorted(gates.items()) if p >= config["alpha"]]
    reasons = tuple(f"{metric} is not significant even alone" for metric in weak)
    return {"verdict": "inconclusive", "estimate": gates[worst], "reasons": reasons}


def _reason(records: Sequence[StoredRecord], untested: Sequence[str]) -> str:
    """Why gates have no p-value: the reason of the first, or not_run if one was not run or gives no reason."""
    own = [record for record in records if record["metric"] in untested and record["verdict"] == "insufficient"]
    given = [reason.partition(":")[0] for record in own for reason in record["reasons"][:1]]
    return given[0] if len(given) == len(untested) and "not_run" not in given else "not_run"


def _across_circuits(certificates: Mapping[str, float | None], config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: every circuit's p survives BY; fail: some circuit is significant alone but not under BY; else inconclusive."""
    if len(certificates) < config["min_tests"]:
        raise Insufficient("n_tasks", f"{len(certificates)} circuits; at least {config['min_tests']} are needed")
    found = _adjusted(certificates, config)
    tested = {name: row for name, row in found.items() if row["p"] is not None}
    if not tested:
        raise Insufficient("not_run", "no circuit has had every one of its gates tested")
    alpha = config["alpha"]
    lost = [name for name, row in tested.items() if row["by"] > alpha > row["p"]]
    weak = [name for name, row in tested.items() if row["p"] >= alpha]
    reasons = [f"{name} is significant alone but not under BY" for name in lost]
    reasons += [f"{name} is not significant even alone" for name in weak]
    reasons += [f"{name} has gates that were not tested" for name in found if name not in tested]
    verdict = "fail" if lost else "inconclusive" if reasons else "pass"
    return {"verdict": verdict, "estimate": max(row["by"] for row in tested.values()), "reasons": tuple(reasons)}


def _corrections(
    tests: Sequence[Mapping[str, Any]], config: Mapping[str, Any], list_tests: bool = True
) -> dict[str, Any]:
    """Counts of survivors under each correction, Storey's share of true nulls, and the table of tests."""
    if not tests:
        return {"tests": 0}
    p = np.array([_p_value(record) for record in tests])
    adjusted = {method: adjusted_p(p, method) for method in METHODS}
    minimum = config["storey_minimum"]
    summary: dict[str, Any] = {
        "tests": len(p),
        "nominal": int((p < config["alpha"]).sum()),
        "survive": {name: int((values <= config["alpha"]).sum()) for name, values in adjusted.items()},
        "storey_pi0": storey_pi0(p, config["storey_lambda"], minimum) if len(p) >= minimum else None,
    }
    if list_tests:
        summary["per_test"] = [
            {
                "metric": record["metric"],
                "gating": bool(record["gating"]),
                "p": float(p[i]),
                "p_kind": record.get("p_kind"),
                **{name: float(values[i]) for name, values in adjusted.items()},
            }
            for i, record in enumerate(tests)
        ]
    return summary


def _adjusted(certificates: Mapping[str, float | None], config: Mapping[str, Any]) -> dict[str, Any]:
    """Per circuit: the certificate's p-value, raw and corrected over the circuits that have one."""
    table = {name: {"p": None, "bh": None, "by": None, "survives": False} for name in sorted(certificates)}
    tested = [name for name in table if certificates[name] is not None]
    if tested:
        p = np.array([certificates[name] for name in tested])
        for name, raw, hochberg, yekutieli in zip(tested, p, adjusted_p(p, "bh"), adjusted_p(p, "by"), strict=True):
            survives = bool(yekutieli <= config["alpha"])
            table[name] = {"p": float(raw), "bh": float(hochberg), "by": float(yekutieli), "survives": survives}
    return table
