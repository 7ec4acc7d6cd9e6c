"""Turns failures found by suites into a task (task=failures); a trace proposes its circuit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import results_io
from calibrations import certificate
from calibrations.rules import Standing
from result_types import TraceResult
from results_io import UserError
from suites import declaration
from suites.bridge import confirmation, hypothesis, stored_pairs, task

if TYPE_CHECKING:
    from calibrations.calibrate import Documents
    from circuits.models import Identity
    from circuits.tasks import Task, Vocabulary
    from suites.bridge.pair import SuitePairs

FOLDER = stored_pairs.FOLDER  # below results/<model>
ALL = "all"


def chosen(
    base: Path, asked: Mapping[str, Any], identity: Identity, vocabulary: Vocabulary | None, typed: str
) -> tuple[SuitePairs, Task]:
    """The pairs of the suite that `task.group` names, or the largest, as a task.

    `base`: the folder of the suites' results; `asked`: the task's section of the settings; `typed`: overrides to
    repeat in the suggested suite command. UserError if no failures are on record, or if task.bos or task.corruption is set:
    the suite fixes these prompts.
    """
    name = asked.get("group")
    own = name is not None and name not in declaration.names()
    suite = "file suite.path=<its folder>" if own else name or ALL
    stored = stored_pairs.read(base, identity.sha256, f"python run.py suite={suite}{typed}")
    pairs = task.choose(stored, name, identity.name)
    for setting in ("bos", "corruption"):
        if asked[setting] is not None:
            raise UserError(
                f"task.{setting}={asked[setting]} has no meaning for failures, whose prompts are the suite's; leave it out"
            )
    return pairs, task.build(pairs, vocabulary, asked["metric"])


def certify(
    folder: Path, documents: Documents, settings: Mapping[str, Any], standing: Standing, say: Callable[[str], None]
) -> dict[str, Any]:
    """The certificate of a circuit about failures, as `fold` gives it.

    The heads' verdicts are written to 142_carriers.json and printed, one line each.
    """
    traced = cast(TraceResult, results_io.read(results_io.required(folder, hypothesis.NUMBER)))
    measured = _measured(folder, confirmation.NEEDED)
    folded = fold(documents, traced, measured, settings, standing)
    records = folded["behaviour"]["carriers"]
    if measured:
        path = folder / f"{confirmation.NUMBER}_{confirmation.ID}.json"
        results_io.write(path, confirmation.document(records, traced, folder))
    for one in records:
        where = f" [{one['interval'][0]:.2f}, {one['interval'][1]:.2f}]" if one["interval"] else ""
        say(f"{one['head']} restores {one['restored']:.2f}{where} on the confirmation half: {one['verdict']}")
    return folded


def fold(
    documents: Documents,
    traced: TraceResult,
    measured: Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    standing: Standing,
) -> dict[str, Any]:
    """The certificate of calibrations on failures: tier 1 also asks that the confirmation half confirms the named heads.

    `traced`: result 141; `measured`: results 01 and 02 by number, None if one was not made, so that no head is confirmed.
    """
    limits = settings["measurement"]["difference"]
    named = [carrier["head"] for carrier in traced["named"]]
    gated, rules = confirmation.gated(documents, settings["certificate"], named, measured, limits)
    records = confirmation.confirm(named, measured, limits) if measured else []
    folded = certificate.certify(gated, rules, standing)
    return {**folded, "behaviour": {**traced["group"], "carriers": records}}


def withdraw(folder: Path) -> None:
    """Delete an earlier run's conclusions: its hypothesis no longer stands."""
    for name in ("certificate.json", "circuit.yaml", "142_carriers.json"):
        (folder / name).unlink(missing_ok=True)


def _measured(folder: Path, numbers: Iterable[str]) -> dict[str, Any] | None:
    """{number: the measurement in `folder`}; None if one of them is missing."""
    paths = {number: results_io.find(folder, number) for number in numbers}
    return {number: results_io.read(path) for number, path in paths.items() if path} if all(paths.values()) else None
