"""suffixes.jsonl: the optimised suffix of a model, on a hash chain. A recorded suffix is not searched again.

A line says for which weights and frozen suite a suffix was made, with which budget and seed, on which items, and its losses.
It holds no time, so that the same search gives the same bytes. Only suffixes of the placeholder policy are ever made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import results_io
from suites.item import Suite
from suites.log import chain
from suites.log.line_form import Form

NAME, SCHEMA, KIND = "suffixes.jsonl", 1, "optimised_suffix"
FORMS: Mapping[str, Form] = {
    KIND: {
        **dict.fromkeys(("key", "suite_id", "suite_hash", "weights_sha256", "target", "suffix"), str),
        **dict.fromkeys(("identity", "budget", "controls", "loss_before", "loss_after"), dict),
        **{"seed": int, "passes": int, "tuned": [str], "judged": [str]},
    }
}


@dataclass(frozen=True)
class OptimisedSuffix:
    """A suffix and what it was made of and from.

    `weights_sha256` and `identity`: of the model. `tuned`: ids of the plain items that the search read; `judged`: of those that
    it never read. `controls`: for every judged item a suffix of as many random tokens. `loss_before` and `loss_after`: of the
    target by item of either half, nats per token, with the random suffix that the search began with and with the one it ended
    with. `passes`: forward passes of the search.
    """

    key: str
    suite_id: str
    suite_hash: str
    weights_sha256: str
    identity: Mapping[str, Any]
    seed: int
    budget: Mapping[str, int]
    target: str
    tuned: tuple[str, ...]
    judged: tuple[str, ...]
    suffix: str
    controls: Mapping[str, str]
    loss_before: Mapping[str, float]
    loss_after: Mapping[str, float]
    passes: int


def key(suite: Suite, identity: Mapping[str, Any], seed: int, budget: Mapping[str, int], target: str) -> str:
    """Identity of a search: hash of the frozen suite, the model, the seed, the budget and the target."""
    about = {"schema": SCHEMA, "suite": [suite.id, suite.sha256], "model": dict(identity)}
    return results_io.sha256({**about, "seed": seed, "budget": dict(budget), "target": target})


def read(path: Path) -> dict[str, OptimisedSuffix]:
    """Every recorded suffix by its key; {} if there is no file. UserError for a line that was changed."""
    return {line["key"]: _suffix(line) for line in chain.read(path, FORMS) if line["kind"] == KIND}


def add(path: Path, found: OptimisedSuffix) -> None:
    """Append one suffix, which is on disk afterwards. UserError as `chain.Writer`."""
    line = {**asdict(found), "tuned": list(found.tuned), "judged": list(found.judged)}
    with chain.Writer(path) as writer:
        writer.append([{"schema": SCHEMA, "kind": KIND, **line}])


def _suffix(line: Mapping[str, Any]) -> OptimisedSuffix:
    own = {one.name: line[one.name] for one in fields(OptimisedSuffix)}
    own["tuned"], own["judged"] = tuple(line["tuned"]), tuple(line["judged"])
    return OptimisedSuffix(**own)
