"""The numbered results of geometry, 171 to 179: for every construct and over all, the paper's number beside the estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import results_io
from suites.estimate import Estimate
from suites.geometry import findings, matrix, mtmm, projection
from suites.geometry.findings import MetricFinding
from suites.geometry.measure import GeometryRun, SetRun
from suites.log import environment

KIND = "geometry"
MAP_AXES = 3  # with more axes no point is stored: 384 numbers per output can be computed again from the recorded texts
PROJECTED = 200  # outputs used for the check of the projection (`projection.ratios`)
EXPLORATORY = "the embedder does not tell paraphrases from other texts well enough (AUC at or below .8)"


def write(folder: Path, run: GeometryRun) -> tuple[list[Path], list[MetricFinding]]:
    """Every result of a run into `folder`; returns the paths and all findings."""
    by_set = [(one, findings.of(one, run.seed)) for one in run.sets]
    found = [finding for _, own in by_set for finding in own]
    documents = [_document(metric, run, found) for metric in findings.METRICS]
    documents.append(_matrix_document(run, by_set))
    paths = []
    for document in documents:
        paths.append(Path(folder) / f"{document['number']}_{document['id']}.json")
        results_io.write(paths[-1], document)
    return paths, found


def _header(number: str, name: str, run: GeometryRun) -> dict[str, Any]:
    environments = [one for own in run.sets for one in own.environments]
    return {
        "number": number,
        "id": name,
        "kind": KIND,
        "subject": {
            "model": run.model,
            "identity": dict(run.identity),
            "model_fingerprint": results_io.sha256(run.identity),
            "constructs": {one.constructs.name: one.constructs.sha256 for one in run.sets},
            "coordinates": {one.constructs.name: dict(one.identity) for one in run.sets},
        },
        "environment": {**environment.of_results(environments), "seeds": {"sampling": run.seed}},
    }


def _document(metric: ModuleType, run: GeometryRun, found: Sequence[MetricFinding]) -> dict[str, Any]:
    own = [one for one in found if one.metric is metric]
    data: dict[str, Any] = {"formula": metric.FORMULA}
    if metric.NUMBER == findings.position.NUMBER:
        data |= {"sets": {one.constructs.name: _points(one) for one in run.sets}}
    return {
        **_header(metric.NUMBER, metric.NAME, run),
        "n": {"constructs": len({(one.set, one.construct) for one in own if one.construct})},
        "data": data,
        "records": [_record(one, run) for one in own],
    }


def _record(one: MetricFinding, run: GeometryRun) -> dict[str, Any]:
    """One finding with the keys of a suite's record, plus `published`. The paper's thresholds give no verdict."""
    own = next(found for found in run.sets if found.constructs.name == one.set)
    estimate, role = _read(one.found.estimate, own)
    return {
        "metric_id": one.identifier,
        "suite": one.set,
        "construct": one.construct,
        "label": one.label,
        **_common(own, run),
        "role": role,
        **estimate.to_record(),
        "published": one.found.published.to_record(),
    }


def _read(estimate: Estimate, own: SetRun) -> tuple[Estimate, str]:
    """(the estimate, its role): whatever an embedder gives that is not trusted is exploratory, and says so."""
    if not _trusted(own):
        return replace(estimate, assumptions=(*estimate.assumptions, EXPLORATORY)), "exploratory"
    return estimate, "descriptive" if estimate.p_value is None else "exploratory"


def _common(own: SetRun, run: GeometryRun) -> dict[str, Any]:
    """The keys that are the same in all records of a set; geometry has no direction, threshold or verdict."""
    return {
        "family": "G",
        "subject": {
            "model_fingerprint": results_io.sha256(run.identity),
            "suite_hash": own.constructs.sha256,
            "coordinates": dict(own.identity),
            "snapshot": None,
        },
        "direction": None,
        "threshold": None,
        "passed": None,
        "evidence": [],
        "baseline": None,
        "effect": None,
    }


def _points(run: SetRun) -> dict[str, Any]:
    """Data for figures: the scaled points of every variant (for up to three axes), and how many outputs have no coordinate."""
    if run.reason is not None or run.coordinates is None:
        return {"reason": run.reason}
    shown, names = {}, _axes(run)
    for one in run.measured:
        outputs = {
            variant.id: {
                "method": variant.method,
                "persona": variant.persona,
                "turn": variant.turn,
                "points": _shown(one.outputs[variant.id].points, run),
                "without": dict(one.outputs[variant.id].without),
            }
            for variant in (() if one.reason else one.construct.variants)
        }
        shown[one.construct.id] = {
            "title": one.construct.title,
            "reference": None if run.plane is not None else run.reference(one.construct),
            "reason": one.reason,
            "variants": outputs,
        }
    return {
        "axes": names,
        "kind": run.coordinates.kind,
        "deterministic": run.deterministic,
        "scale": {key: value for key, value in run.scale.items() if key != "plane"},
        "check": _check(run),
        "constructs": shown,
    }


def _axes(run: SetRun) -> list[str]:
    """The axes of a map: the declared ones, or the two of the plane with their share of variance."""
    if run.coordinates is None or run.coordinates.axes or run.plane is None:
        return list(run.coordinates.names) if run.coordinates else []
    shares = run.scale["plane"]["shares"]
    return [f"principal axis {k + 1} ({share:.0%} of variance)" for k, share in enumerate(shares)]


def _shown(points: np.ndarray, run: SetRun) -> np.ndarray | None:
    if run.plane is not None:
        return points @ run.plane.T if len(points) else np.zeros((0, 2))
    return points if 1 <= len(_axes(run)) <= MAP_AXES else None


def _trusted(own: SetRun) -> bool:
    """False if the coordinates come from an embedder that does not separate paraphrases from unrelated texts."""
    embedder = None if own.coordinates is None else own.coordinates.embedder
    return embedder is None or projection.trusted(projection.of_embedder(embedder.encode))


def _check(run: SetRun) -> dict[str, Any] | None:
    """The check of the projection phi from texts to coordinates; None for coordinates of choices."""
    if run.coordinates is None or run.coordinates.exact:
        return None
    texts, points = [], []
    for one in run.measured:
        for output in one.outputs.values():
            texts += output.texts
            points += list(output.points)
    chosen = np.unique(np.linspace(0, len(texts) - 1, PROJECTED).astype(int)) if texts else []  # of all constructs
    found: dict[str, Any] = {
        "ratios": projection.ratios([texts[k] for k in chosen], np.array([points[k] for k in chosen]))
    }
    if run.coordinates.embedder is not None:
        found["paraphrases"] = projection.of_embedder(run.coordinates.embedder.encode).to_record()
    return found


def _matrix_document(run: GeometryRun, by_set: Sequence[tuple[SetRun, Sequence[MetricFinding]]]) -> dict[str, Any]:
    data, records = {}, []
    for own, found in by_set:
        correlations, table = _correlations(own)
        data[own.constructs.name] = {
            "reason": own.reason,
            "cells": [asdict(cell) for cell in matrix.cells(own, found)],
            "components": _components(own, found),
            "components_published": _components(own, found, published=True),
            "correlations": table,
        }
        records += [_correlation(own, name, one, run) for name, one in correlations.items()]
    return {
        **_header(mtmm.NUMBER, mtmm.NAME, run),
        "n": {"sets": len(run.sets)},
        "data": data,
        "records": records,
    }


def _components(own: SetRun, found: Sequence[MetricFinding], published: bool = False) -> Mapping[str, Any]:
    """Variance components of the largest full block, with its traits, methods and constructs; or the reason for none."""
    traits, methods, block = matrix.block(own, found, published)
    if min(block.shape) < 2:
        return {"reason": own.reason or "no two traits have cells by two methods in two constructs"}
    names = {"traits": traits, "methods": methods, "replicates": block.shape[2]}
    return {**names, **asdict(mtmm.components(block))}


def _correlations(own: SetRun) -> tuple[dict[str, Estimate], list[dict[str, object]]]:
    """Campbell and Fiske's summaries over constructs (traits by ways of asking), and every single r if they have values."""
    if own.reason is not None:
        return mtmm.absent("not_applicable", own.reason), []
    traits, methods, scores = matrix.scores(own)
    halves = matrix.halves(own) if len(scores) >= mtmm.FEWEST_UNITS else None
    found = mtmm.campbell_fiske(scores, traits, methods, halves=halves)
    if found["convergent"].status != "ok":
        return found, []
    return found, mtmm.pairs(scores, traits, methods, halves)


def _correlation(own: SetRun, name: str, found: Estimate, run: GeometryRun) -> dict[str, Any]:
    estimate, role = _read(found, own)
    return {
        "metric_id": f"{mtmm.ID}.{own.constructs.name}.{name}",
        "suite": own.constructs.name,
        "construct": None,
        "label": name,
        **_common(own, run),
        "role": role,
        **estimate.to_record(),
        "published": {
            "value": None,
            "formula": "a table of names (figure 12)",
            "note": "orthogonality is a claim there",
        },
    }
