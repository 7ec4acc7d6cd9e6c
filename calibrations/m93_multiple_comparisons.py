"""M93 multiple comparisons: do the significant results survive the number of tests made?

Published value: share of nominally significant p-values that stay significant under Benjamini-Hochberg. The
p-values are those that the calibrations themselves stand behind; a verdict is never turned into a p-value,
and M93 never reads its own records. The gate asks for more: every gating p-value survives
Benjamini-Yekutieli, because equivalence and superiority tests on the same prompts need not be positively
dependent (specification section 6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrations.record import Published, Record, judge
from calibrations.statistics import Insufficient, adjusted_p, storey_pi0, survival

ID = "M93"
NUMBER = "93"
NAME = "multiple_comparisons"
TITLE = "multiple comparisons"
INPUTS: tuple[str, ...] = ()  # reads the records of the other calibrations, no measurement

RULE = "share of nominally significant p-values that survive BH > {threshold_survival}"
OWN_PREFIX = f"{ID}."
METHODS = ("bonferroni", "holm", "bh", "by")


def calibrate(records: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[Record]:
    """M93.multiple_comparisons over the record dicts of all other calibrations of one circuit."""
    tests = _tests(records)
    gates_without_p = sorted(
        record["metric"] for record in _others(records) if record["gating"] and _p_value(record) is None
    )
    return [
        judge(
            "M93.multiple_comparisons",
            lambda: _published(tests, config),
            lambda: _gate(tests, config),
            rule=RULE.format(**config),
            n={"tests": len(tests), "gates": sum(record["gating"] for record in tests)},
            companions={**_corrections(tests, config), "gates_without_p": gates_without_p},
        )
    ]


def calibrate_global(
    tables: Mapping[str, Sequence[Mapping[str, Any]]], config: Mapping[str, Any]
) -> list[Record]:
    """M93.multiple_comparisons_global over circuits; `tables` maps "model/task/circuit" to its records.

    The published value pools every p-value. The gate takes one p-value per circuit: passing all gates is an
    intersection-union test, so the largest p-value of its tested gates needs no correction inside the
    circuit; across circuits these are corrected by Benjamini-Yekutieli. The number of gates that were not
    tested stands beside it.
    """
    pooled = [
        {**record, "metric": f"{circuit}: {record['metric']}"}
        for circuit in sorted(tables)
        for record in _tests(tables[circuit])
    ]
    certificates = _certificates(tables)
    return [
        judge(
            "M93.multiple_comparisons_global",
            lambda: _published(pooled, config),
            lambda: _gate(certificates, config),
            rule=RULE.format(**config),
            gating=False,
            n={"tests": len(pooled), "circuits": len(tables)},
            companions={
                "pooled": _corrections(pooled, config, list_tests=False),
                "circuits": _adjusted(certificates, config),
                "circuits_without_p": sorted(set(tables) - {record["metric"] for record in certificates}),
            },
        )
    ]


def _others(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All records but M93's own: a second run must see the same tests as the first."""
    return [record for record in records if not record["metric"].startswith(OWN_PREFIX)]


def _p_value(record: Mapping[str, Any]) -> float | None:
    p = record.get("p")
    if p is None or math.isnan(p):
        return None
    if not 0 <= p <= 1:
        raise ValueError(f"{record['metric']} has p = {p}; a p-value lies between 0 and 1")
    return float(p)


def _tests(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The records with a usable p-value, in order of metric."""
    return sorted(
        (record for record in _others(records) if _p_value(record) is not None),
        key=lambda record: record["metric"],
    )


def _certificates(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Mapping[str, Any]]:
    """One pseudo-record per circuit: the largest of its gating p-values (intersection-union)."""
    certificates = []
    for circuit in sorted(tables):
        gates = [_p_value(record) for record in _others(tables[circuit]) if record["gating"]]
        tested = [p for p in gates if p is not None]
        if tested:
            counts = {"gates_tested": len(tested), "gates_not_tested": len(gates) - len(tested)}
            certificates.append({"metric": circuit, "p": max(tested), "gating": True, **counts})
    return certificates


def _values(tests: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> np.ndarray:
    if len(tests) < config["min_tests"]:
        raise Insufficient(
            "not_run", f"{len(tests)} valid p-values; at least {config['min_tests']} are needed"
        )
    return np.array([_p_value(record) for record in tests])


def _published(tests: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Published:
    rate = survival(_values(tests, config), config["alpha"]).rate
    verdict = "pass" if rate > config["threshold_survival"] else "fail"
    return Published(rate, RULE.format(**config), verdict)


def _gate(tests: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> dict[str, Any]:
    """pass: every gating p-value survives BY among the gates; fail: the correction takes a gate away."""
    gates = [record for record in tests if record["gating"]]
    p = _values(gates, config)
    if not (p < config["alpha"]).any():
        raise Insufficient(
            "ratio_undefined", "no gate is nominally significant: multiplicity has nothing to take away"
        )
    adjusted = adjusted_p(p, "by")
    lost = [g["metric"] for g, q in zip(gates, adjusted, strict=True) if q > config["alpha"] > _p_value(g)]
    weak = [g["metric"] for g in gates if _p_value(g) >= config["alpha"]]
    verdict = "fail" if lost else "inconclusive" if weak else "pass"
    reasons = [f"{name} is significant alone but not under BY" for name in lost]
    reasons += [f"{name} is not significant even alone" for name in weak]
    worst = float(adjusted.max())
    return {"verdict": verdict, "estimate": worst, "reasons": tuple(reasons)}


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


def _adjusted(certificates: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> dict[str, Any]:
    """Per circuit: the certificate's p-value, raw and corrected over circuits."""
    if not certificates:
        return {}
    p = np.array([record["p"] for record in certificates])
    hochberg, yekutieli = adjusted_p(p, "bh"), adjusted_p(p, "by")
    return {
        record["metric"]: {
            "p": float(p[i]),
            "bh": float(hochberg[i]),
            "by": float(yekutieli[i]),
            "gates_tested": record["gates_tested"],
            "gates_not_tested": record["gates_not_tested"],
            "survives": bool(yekutieli[i] <= config["alpha"]),
        }
        for i, record in enumerate(certificates)
    }
