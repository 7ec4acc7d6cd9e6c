"""Tests the named heads again, on prompts that were not used to name them: 142_carriers.json and the gate P.carriers.

The 16 calibrations judge the circuit of the passing behaviour. That the named heads carry the difference between failing and
passing is a separate claim, so a certificate about failures has an additional gate in tier 1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import results_io
from calibrations.calibrate import PRECONDITIONS, Documents
from calibrations.record import Record
from calibrations.statistics import Insufficient, ratio_of_means
from circuits.circuit import Node
from result_types import HeadVerdict, TraceResult
from suites.bridge import hypothesis

NUMBER, ID = "142", "carriers"
GATE = "P.carriers"
TIER = 1
NEEDED = ("01", "02")  # numbers of the measurements
VERDICTS = {"confirmed": "pass", "refuted": "fail", "undecided": "inconclusive"}


def confirm(
    named: Sequence[str], documents: Mapping[str, Any], settings: Mapping[str, Any], split: str | None = None
) -> list[HeadVerdict]:
    """Every named head on the prompts of a split, or (None) on the whole confirmation half.

    The intervals are simultaneous over the named heads. confirmed: the lower end is above `minimum_share`; refuted: the upper end
    is below it; otherwise undecided. `p`: one-sided t test of "restores no more than minimum_share", by clusters; None if it
    cannot be computed.
    """
    baseline, patched = (documents[number]["data"] for number in NEEDED)
    rows = [i for i, one in enumerate(baseline["split"]) if split in (None, one)]
    clean, corrupted = (np.asarray(baseline[f"{run}_logit_diff"], dtype=float)[rows] for run in ("clean", "corrupted"))
    gap, clusters = clean - corrupted, np.array(baseline["cluster"])[rows]
    order = [str(Node("head", *head)) for head in baseline["heads"]]
    effect = np.asarray(patched["denoising"], dtype=float)[rows].T[[order.index(head) for head in named]]
    bounds = hypothesis.intervals(effect, gap, clusters, settings)
    least = settings["minimum_share"]
    return [
        {
            "head": head,
            "restored": float(effect[i].sum() / gap.sum()),
            "interval": [low, high] if np.isfinite(low) else None,
            "p": _p_value(effect[i], gap, clusters, least),
            "verdict": "confirmed" if low > least else "refuted" if high < least else "undecided",
        }
        for i, (head, (low, high)) in enumerate(zip(named, bounds, strict=True))
    ]


def _p_value(effect: np.ndarray, gap: np.ndarray, clusters: np.ndarray, least: float) -> float | None:
    try:
        ratio = ratio_of_means(effect, gap, clusters)
    except Insufficient:
        return None
    if not ratio.standard_error:
        return float(ratio.value <= least)
    return float(stats.t.sf((ratio.value - least) / ratio.standard_error, ratio.degrees_of_freedom))


def document(records: Sequence[HeadVerdict], traced: TraceResult, folder: Path) -> dict[str, Any]:
    """142_carriers.json: the verdict on every named head, and its basis."""
    inputs = {number: results_io.required(folder, number) for number in (*NEEDED, hypothesis.NUMBER)}
    return {
        "number": NUMBER,
        "id": ID,
        "kind": "behaviour",
        "subject": traced["subject"],
        "group": traced["group"],
        "records": records,
        "inputs_sha256": {number: results_io.file_digest(path) for number, path in inputs.items()},
    }


def gated(
    documents: Documents,
    rules: Mapping[str, Any],
    named: Sequence[str],
    measured: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
) -> tuple[Documents, Mapping[str, Any]]:
    """(the documents with P.carriers among the preconditions, rules that require it in tier 1).

    `measured`: 01 and 02; None if 02 was not measured, and the gate is then insufficient.
    """
    rules, documents = copy.deepcopy(dict(rules)), dict(documents)
    tier = next(level for level in rules["tiers"] if int(level) == TIER)
    rules["tiers"][tier]["all"] = [*rules["tiers"][tier]["all"], GATE]
    if measured is not None:
        own = copy.deepcopy(dict(documents[PRECONDITIONS]))
        own["records"] = [*own["records"], _record(confirm(named, measured, settings, "evaluation"), settings)]
        again = _record(confirm(named, measured, settings, "held_out"), settings)
        own["data"]["held_out"] = [*own["data"]["held_out"], again]
        documents[PRECONDITIONS] = own
    return documents, rules


def _record(found: Sequence[HeadVerdict], settings: Mapping[str, Any]) -> dict[str, Any]:
    """All named heads together: pass if all are confirmed, fail if one is refuted, else inconclusive; p is the largest."""
    verdicts = [VERDICTS[one["verdict"]] for one in found]
    known = [one["p"] for one in found if one["p"] is not None]
    least = min(found, key=lambda one: one["restored"])
    record = Record(
        metric=GATE,
        published_value=None,
        published_rule="no published threshold",
        published_verdict="none",
        verdict=next(verdict for verdict in ("fail", "inconclusive", "pass") if verdict in verdicts),
        estimate=least["restored"],
        p=max(known) if len(known) == len(found) else None,
        p_kind="t test over clusters",
        reasons=tuple(
            f"{one['head']} restores {one['restored']:.2f} of the difference: {one['verdict']} as more than "
            f"{settings['minimum_share']:g}"
            for one in found
            if one["verdict"] != "confirmed"
        ),
    )
    return record.to_dict()
