"""132_trace_pairs.json: the pairs of every suite with failures, written by `suite=` and read by `task=failures`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import results_io
from result_types import TracePairsResult
from results_io import UserError
from suites.bridge.pair import SuitePairs
from suites.log import chain, generations

NUMBER, ID = "132", "trace_pairs"
FOLDER = "suites"  # of a model's results


def path_of(folder: Path) -> Path:
    return folder / f"{NUMBER}_{ID}.json"


def write(folder: Path, groups: Sequence[SuitePairs], identity: Mapping[str, Any], suites: Mapping[str, str]) -> Path:
    """Store the groups. `identity`: the model's; `suites`: the hash of every suite that was run, by id."""
    document = {
        "number": NUMBER,
        "id": ID,
        "kind": "behaviour",
        "subject": {"model": identity, "suites": suites},
        "n": {"failures": sum(group.failures for group in groups), "pairs": sum(len(group.pairs) for group in groups)},
        "data": {"groups": [group.to_dict() for group in groups]},
        "records": [
            {
                "suite": group.suite,
                "mode": group.mode,
                "failures": group.failures,
                "traceable": len(group.pairs),
                "rejected": group.rejected,
            }
            for group in groups
        ],
    }
    path = path_of(folder)
    results_io.write(path, document)
    return path


def require_untouched(*folders: Path) -> None:
    """UserError if the generations behind a folder's results were changed."""
    for folder in folders:
        try:
            recorded = (path := folder / generations.NAME).is_file()
        except OSError as error:  # for example, an impossible file name
            raise UserError(f"{folder} cannot be read ({error.strerror}); give the folder of a suite run") from error
        if recorded:
            chain.verify(path)


def read(folder: Path, weights: str, command: str) -> list[SuitePairs]:
    """All recorded groups for these weights, each suite once, from its newest run.

    `folder`: results/<model>/suites. UserError if there are none, or only for other weights; it names `command` as the remedy.
    """
    files = [path for path in (path_of(folder), *sorted(folder.glob(f"*/{NUMBER}_{ID}.json"))) if path.is_file()]
    if not files:
        raise UserError(f"no failures are on record in {folder}; run `{command}` first")
    files.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
    try:
        documents = [cast(TracePairsResult, results_io.read(path)) for path in files]
    except results_io.ResultError as error:
        raise UserError(f"{error.path} {error.reason}; run `{command}` again") from error
    require_untouched(*(path.parent for path in files))
    current = [document for document in documents if document["subject"]["model"].get("weights") == weights]
    if not current:
        stored = documents[0]["subject"]["model"].get("weights")
        raise UserError(
            f"the failures in {files[0]} are of weights {str(stored)[:8]}, and the model now has {weights[:8]}; run `{command}` "
            "again"
        )
    found: dict[str, SuitePairs] = {}
    seen: set[str] = set()
    for document in current:
        groups = [SuitePairs.from_dict(stored) for stored in document["data"]["groups"]]
        found |= {group.suite: group for group in groups if group.suite not in seen}
        # a suite without failures has no group
        seen |= {*document["subject"]["suites"], *(group.suite for group in groups)}
    return list(found.values())
