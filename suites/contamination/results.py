"""Results 191 to 194 of `run.py contamination`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import results_io
from suites.contamination import canary, loss_gap, overlap, passages
from suites.contamination.accuracy import Scored
from suites.contamination.loss_gap import LossGap
from suites.contamination.overlap import CleanAndDirty, Contamination
from suites.contamination.passages import NearDuplicates
from suites.estimate import Estimate
from suites.item import Suite
from suites.judgement import VERDICT_FROM
from suites.log import environment

KIND, FAMILY = "contamination", "K"
OVERLAP, NEAR = "191", "192"


@dataclass(frozen=True)
class Searched:
    """What a corpus contains of one suite, and the accuracies if the model has a run of the suite (`scored`).

    `canary_in`: the corpus' files that hold the suite's canary, so they were made from the suite itself.
    """

    suite: Suite
    overlap: Contamination
    near: NearDuplicates
    scored: Scored | None
    accuracy: CleanAndDirty | None
    canary_in: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probed:
    """Results of 193 and 194 for one suite. `pairs_sha256`: hash of the texts that 193 compared."""

    suite: Suite
    gap: LossGap
    exposure: Estimate
    pairs_sha256: str


def overlaps(folder: Path, model: str, corpus: str, found: Sequence[Searched]) -> Path:
    """Write 191: the share of flagged items, the place of each in the corpus, and accuracies."""
    first = found[0].overlap
    return _write(
        folder,
        {
            **_header(OVERLAP, "overlap", {"model": model, "corpus": corpus}, [one.suite for one in found]),
            "n": {
                "documents": first.documents,
                "corpus_tokens": first.corpus_tokens,
                "files_not_read": first.files_not_read,
                "items": sum(len(one.overlap.items) for one in found),
            },
            "data": {"suites": {one.suite.id: _flagged(one) for one in found}},
            "records": [record for one in found for record in _overlap_records(one)],
        },
    )


def near_duplicates(folder: Path, model: str, corpus: str, found: Sequence[Searched]) -> Path:
    """Write 192: items with passages in nearly the same words, the calibrated threshold and its rates."""
    limit = passages.threshold()
    return _write(
        folder,
        {
            **_header(NEAR, "near_duplicates", {"model": model, "corpus": corpus}, [one.suite for one in found]),
            "n": {"passages": found[0].near.passages, "items": sum(len(one.overlap.items) for one in found)},
            "data": {
                "threshold": limit.value,
                "cosine": overlap.COSINE if found[0].near.embedded else None,
                "permutations": overlap.PERMUTATIONS,
                "shingle": overlap.SHINGLE,
                "suites": {one.suite.id: [_pair(pair) for pair in one.near.pairs] for one in found},
            },
            "records": [
                *(_record("near_duplicates", "flagged", one.near.flagged, one.suite.id) for one in found),
                _record("near_duplicates", "sensitivity", limit.sensitivity, None),
                _record("near_duplicates", "specificity", limit.specificity, None),
            ],
        },
    )


def loss_gaps(folder: Path, subject: Mapping[str, Any], found: Sequence[Probed], seed: int) -> Path:
    """Write 193: the gap of every pair, and the comparisons."""
    return _write(
        folder,
        {
            **_header(loss_gap.NUMBER, loss_gap.ID, subject, [one.suite for one in found], seed),
            "n": {"suites": len(found), "pairs": sum(len(one.gap.gaps) for one in found)},
            "data": {
                "suites": {one.suite.id: {**loss_gap.data(one.gap), "pairs_sha256": one.pairs_sha256} for one in found}
            },
            "records": [record for one in found for record in _gap_records(one)],
        },
    )


def canaries(folder: Path, subject: Mapping[str, Any], found: Sequence[Probed], seed: int) -> Path:
    """Write 194: the exposure of every suite's canary."""
    return _write(
        folder,
        {
            **_header(canary.NUMBER, canary.ID, subject, [one.suite for one in found], seed),
            "n": {"suites": len(found), "with_canary": sum(one.suite.canary is not None for one in found)},
            "data": {
                "canaries": {one.suite.id: one.suite.canary for one in found},
                "alternatives": canary.ALTERNATIVES,
            },
            "records": [_record(canary.ID, "exposure", one.exposure, one.suite.id) for one in found],
        },
    )


def _flagged(one: Searched) -> dict[str, Any]:
    places = [
        {"item": item.item, "share": item.share, "n": item.n, "gram": item.gram, **asdict(item.place)}
        for item in one.overlap.items
        if item.place is not None
    ]
    run = one.scored and {"run_id": one.scored.run_id, "finished": one.scored.finished}
    return {"flagged": places, "run": run or None, "canary_in": list(one.canary_in)}


def _overlap_records(one: Searched) -> list[dict[str, Any]]:
    suite = one.suite.id
    records = [_record("overlap", "flagged", one.overlap.flagged, suite)]
    if one.accuracy is not None:
        named = {"clean": one.accuracy.clean, "dirty": one.accuracy.dirty, "difference": one.accuracy.difference}
        records += [_record("overlap", f"accuracy_{name}", estimate, suite) for name, estimate in named.items()]
    return records


def _gap_records(one: Probed) -> list[dict[str, Any]]:
    """Records of 193. The gap itself is descriptive; only its excess over a reference or fresh items allows a conclusion."""
    own = one.gap
    named = {"gap": own.gap, "beyond_reference": own.beyond_reference, "beyond_fresh": own.beyond_fresh}
    named |= {"beyond_both": own.beyond_both}
    return [
        _record(loss_gap.ID, name, estimate, one.suite.id, "descriptive" if name == "gap" else "exploratory")
        for name, estimate in named.items()
        if estimate is not None
    ]


def _pair(pair: passages.Likeness) -> dict[str, Any]:
    where = {"file": pair.passage.file, "line": pair.passage.line}
    return {"item": pair.item, **where, "passage": pair.passage.text, "jaccard": pair.jaccard, "cosine": pair.cosine}


def _header(
    number: str, name: str, subject: Mapping[str, Any], suites: Sequence[Suite], seed: int | None = None
) -> dict[str, Any]:
    seeds = {} if seed is None else {"seeds": {"resampling": seed}}
    return {
        "number": number,
        "id": name,
        "kind": KIND,
        "subject": {**subject, "suites": {suite.id: suite.sha256 for suite in suites}},
        "environment": {**environment.of_judging(), **seeds},
    }


def _record(result: str, name: str, estimate: Estimate, suite: str | None, role: str = "descriptive") -> dict[str, Any]:
    """One estimate as a record; without its interval if it is over too few items."""
    if estimate.ci is not None and estimate.n < VERDICT_FROM:
        few = f"no interval: over {estimate.n}, fewer than {VERDICT_FROM}"
        estimate = replace(estimate, ci=None, assumptions=(*estimate.assumptions, few))
    metric = f"{FAMILY}.{result}.{name}" if suite is None else f"{FAMILY}.{result}.{suite}.{name}"
    return {"metric_id": metric, "suite": suite, "family": FAMILY, "role": role, **estimate.to_record()}


def _write(folder: Path, document: Mapping[str, Any]) -> Path:
    path = Path(folder) / f"{document['number']}_{document['id']}.json"
    results_io.write(path, document)
    return path
