"""Which implementation of each batched operation was chosen on a device, and the times of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.benchmarks import csv_rows


@dataclass(frozen=True)
class Candidate:
    """One implementation of one operation at one signature, as `kernels.choice` measured it during one work.

    `seconds`: of one call. `difference`: the largest absolute difference from the reference, divided by the reference's largest
    entry. Both are None if the candidate was dropped before. `dropped`: the reason; empty for candidates that agree. There is no
    share of the roofline: a signature rounds large axes up to powers of two, so it does not determine the timed work.
    """

    device: str
    model: str
    work: str
    operation: str
    signature: str
    candidate: str
    chosen: bool
    seconds: float | None
    difference: float | None
    dropped: str
    versions: str


def candidates(device: str, model: str, work: str, choices: Mapping[str, Mapping[str, Any]]) -> list[Candidate]:
    """The rows of `Operations.chosen()` ({operation: {signature: choice}}); empty if nothing was timed."""
    return [
        Candidate(
            device,
            model,
            work,
            operation,
            signature,
            name,
            name == choice["chosen"],
            choice["seconds"].get(name),
            choice["difference"].get(name),
            choice["dropped"].get(name, ""),
            csv_rows.versions(),
        )
        for operation, by_signature in choices.items()
        for signature, choice in by_signature.items()
        for name in dict.fromkeys((*choice["seconds"], *choice["difference"], *choice["dropped"]))
    ]


def against_others(rows: Sequence[Candidate], name: str) -> list[float]:
    """Seconds of one candidate divided by those of the fastest other one, for each signature with both timed."""
    timed: dict[tuple, dict[str, float]] = {}
    for row in rows:
        if row.seconds is not None:
            key = (row.device, row.model, row.work, row.operation, row.signature)
            timed.setdefault(key, {})[row.candidate] = row.seconds
    both = [found for found in timed.values() if name in found and len(found) > 1]
    return [found[name] / min(seconds for other, seconds in found.items() if other != name) for found in both]
