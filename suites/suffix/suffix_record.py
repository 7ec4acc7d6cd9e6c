"""suffixes.jsonl: the optimised suffix of a model, on a hash chain. A recorded suffix is not searched again.

A line says for which weights and frozen suite a suffix was made, by which code, with which budget and seed, on which items, and
its losses. It holds no time, so that the same search gives the same bytes. Only suffixes of the placeholder policy are ever made.
Lines of an earlier schema lack the start of their search and its code: they are kept, and searched for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import code_digest
import results_io
from suites.item import Suite
from suites.log import chain, line_form
from suites.log.line_form import Form

NAME, SCHEMA, KIND = "suffixes.jsonl", 2, "optimised_suffix"
FORMS: Mapping[str, Form] = {
    KIND: {
        **dict.fromkeys(("key", "suite_id", "suite_hash", "weights_sha256", "target", "suffix"), str),
        **dict.fromkeys(("identity", "budget", "controls", "loss_before", "loss_after"), dict),
        **{"seed": int, "passes": int, "tuned": [str], "judged": [str]},
    }
}
OWN: Form = {**dict.fromkeys(("code", "start"), str), "tried": int, "exchanged": int}  # of this schema, besides


@dataclass(frozen=True)
class OptimisedSuffix:
    """A suffix and what it was made of and from.

    `weights_sha256` and `identity`: of the model. `code`: version of the code of the search. `tuned`: ids of the plain items that
    the search read; `judged`: of those that it never read. `start` and `suffix`: the random suffix that the search began with,
    and the one it ended with; `loss_before` and `loss_after`: of the target with either, by item of both halves, nats per token.
    `controls`: for every judged item a suffix of as many random tokens. `passes`, `tried`, `exchanged`: forward passes,
    candidates run, and how many were kept.
    """

    key: str
    suite_id: str
    suite_hash: str
    weights_sha256: str
    code: str
    identity: Mapping[str, Any]
    seed: int
    budget: Mapping[str, int]
    target: str
    tuned: tuple[str, ...]
    judged: tuple[str, ...]
    start: str
    suffix: str
    controls: Mapping[str, str]
    loss_before: Mapping[str, float]
    loss_after: Mapping[str, float]
    passes: int
    tried: int
    exchanged: int


def code() -> str:
    """Version of the code that a suffix depends on, as a record and its key have it."""
    return code_digest.version_of("optimised suffixes")


def key(suite: Suite, identity: Mapping[str, Any], seed: int, budget: Mapping[str, int], target: str) -> str:
    """Identity of a search: hash of its code, the frozen suite, the model, the seed, the budget and the target."""
    about = {"schema": SCHEMA, "code": code(), "suite": [suite.id, suite.sha256], "model": dict(identity)}
    return results_io.sha256({**about, "seed": seed, "budget": dict(budget), "target": target})


def read(path: Path) -> dict[str, OptimisedSuffix]:
    """Every recorded suffix of this schema by its key, oldest first; {} if there is no file. UserError for a changed line."""
    lines = [line for line in chain.read(path, FORMS) if line["kind"] == KIND and line.get("schema") == SCHEMA]
    for place, line in enumerate(lines, 1):
        line_form.require(line, {KIND: OWN}, f"{path}: suffix {place}")
    return {line["key"]: _suffix(line) for line in lines}


def searches(known: Mapping[str, OptimisedSuffix], found: OptimisedSuffix) -> int:
    """How many searches of a record, as `read` gives it, are for the same suite and weights as `found`."""
    about = (found.suite_hash, found.weights_sha256)
    return sum((one.suite_hash, one.weights_sha256) == about for one in known.values())


def add(path: Path, found: OptimisedSuffix) -> None:
    """Append one suffix, which is on disk afterwards. UserError as `chain.Writer`."""
    line = {**asdict(found), "tuned": list(found.tuned), "judged": list(found.judged)}
    with chain.Writer(path) as writer:
        writer.append([{"schema": SCHEMA, "kind": KIND, **line}])


def _suffix(line: Mapping[str, Any]) -> OptimisedSuffix:
    own = {one.name: line[one.name] for one in fields(OptimisedSuffix)}
    own["tuned"], own["judged"] = tuple(line["tuned"]), tuple(line["judged"])
    return OptimisedSuffix(**own)
