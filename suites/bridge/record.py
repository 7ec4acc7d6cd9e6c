"""132_trace_pairs.json: the pairs of every suite with failures, as `suite=` leaves them and `task=failures` reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError
from suites.bridge.pair import Group

NUMBER, ID = "132", "trace_pairs"
FOLDER = "suites"  # of a model's results


def path_of(folder: Path) -> Path:
    return folder / f"{NUMBER}_{ID}.json"


def write(folder: Path, groups: Sequence[Group], identity: Mapping[str, Any], suites: Mapping[str, str]) -> Path:
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


def read(folder: Path, group: str | None, weights: str, command: str) -> list[Group]:
    """The groups on record for these weights: of `suite=all`, or of the run of one suite alone.

    `folder`: results/<model>/suites. UserError if there are none, or if they are of other weights; `command` makes them anew.
    """
    files = [path_of(folder / group), path_of(folder)] if group else [path_of(folder)]
    if not group:
        files += sorted(folder.glob(f"*/{NUMBER}_{ID}.json"))
    path = next((file for file in files if file.is_file()), None)
    if path is None:
        raise UserError(f"no failures are on record in {folder}; run `{command}` first")
    document = results_io.read(path)
    stored = document["subject"]["model"].get("weights")
    if stored != weights:
        raise UserError(
            f"the failures in {path} are of weights {str(stored)[:8]}, and the model now has {weights[:8]}; run `{command}` again"
        )
    return [Group.from_dict(group) for group in document["data"]["groups"]]
