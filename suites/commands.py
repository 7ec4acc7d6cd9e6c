"""What `run.py` does with behavioural suites: run them, take up their failures, compare two runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results_io
from results_io import UserError

if TYPE_CHECKING:
    from calibrations.calibrate import Documents
    from circuits.tasks import Task, Vocabulary
    from meridian.session import Session
    from suites.bridge.hypothesis import Hypothesis
    from suites.bridge.pair import SuitePairs

ALL = "all"


def run(session: Session, folder: Path) -> None:
    """`suite=`: every applicable suite on the model, the summary, and which failures a circuit could explain.

    Results go to `folder`, which is `folder_asked`.
    """
    from suites import declaration, runner, summary
    from suites.bridge import pairing, stored_pairs
    from suites.models import open_model

    asked = session.config["suite"]
    suites = declaration.load_all(_names(asked))
    if asked["name"] == "file" and suites[0].id in (ALL, "file", *declaration.names()):
        raise UserError(
            f"the suite in {asked['path']} has the id {suites[0].id}, under which others keep their results; give it another id"
        )
    model = open_model(session.model_settings)
    found = runner.run(suites, model, folder, session.bar, session.say, context=asked.get("context"), seed=session.seed)
    groups = [pairing.group(judged, model) for judged in found.suites if judged.applies and judged.failures]
    hashes = {suite.id: suite.sha256 for suite in suites}
    stored_pairs.write(folder, groups, model.identity, hashes)
    notes = [*known_traces(session, model.identity.get("weights"), hashes), *next_step(groups, session)]
    summary.show(found, session.console, groups, notes)


def folder_asked(session: Session) -> Path:
    """Where the results of the suites asked for go."""
    from suites import declaration

    asked = session.config["suite"]
    return folder_of(session, ALL if asked["name"] == ALL else declaration.load_all(_names(asked))[0].id)


def _names(asked: dict[str, Any]) -> list[str] | None:
    """Suites to load: all of the catalogue (None), one of it, or the folder of the user's own."""
    if asked["name"] == ALL:
        return None
    if asked["name"] == "file" and not asked.get("path"):
        raise UserError("suite=file needs suite.path; give the folder that holds suite.yaml and its lock")
    return [asked["path"] if asked["name"] == "file" else asked["name"]]


def folder_of(session: Session, name: str) -> Path:
    """results/<model>/suites; one suite by itself goes below it."""
    from suites.bridge import stored_pairs

    base = session.results / session.model_settings["name"] / stored_pairs.FOLDER
    return base if name == ALL else base / name


def known_traces(session: Session, weights: str | None, suites: Mapping[str, str]) -> list[str]:
    """Where failures of these weights in these suites (hashes by id) have led in earlier runs of task=failures."""
    from suites.bridge import hypothesis

    lines = []
    for path in sorted(
        (session.results / session.model_settings["name"]).rglob(f"{hypothesis.NUMBER}_{hypothesis.ID}.json")
    ):
        traced = results_io.read(path)
        group = traced["group"]
        if traced["subject"]["model_sha256"] == weights and suites.get(group["suite"]) == group["suite_sha256"]:
            heads = ", ".join(f"{one['head']} ({one['restored']:.2f})" for one in traced["named"]) or "no head"
            lines.append(f"Traced: {traced['group']['suite']} leads to {heads}")
    return lines


def next_step(groups: list[SuitePairs], session: Session) -> list[str]:
    """How to trace the largest group, or another; nothing if none has enough pairs."""
    ready = [group for group in groups if group.traceable]
    if not ready:
        return []
    largest = max(ready, key=lambda group: (len(group.pairs), group.suite))
    return [
        f"Next: python run.py task=failures calibration=all{session.choice('model', 'results')} traces the largest group, "
        f"{largest.suite}; task.group=<suite> another"
    ]


def failures(session: Session, vocabulary: Vocabulary | None) -> tuple[SuitePairs, Task]:
    """`task=failures`: the group asked for, or the largest, as a task. UserError if no failures are on record."""
    from suites import declaration
    from suites.bridge import stored_pairs, task

    name, weights = session.config["task"].get("group"), session.identity.sha256
    base = folder_of(session, ALL)
    own = name is not None and name not in declaration.names()
    suite = "file suite.path=<its folder>" if own else name or ALL
    command = f"python run.py suite={suite}{session.choice('model', 'results')}"
    group = task.choose(stored_pairs.read(base, weights, command), name, session.identity.name)
    return group, task.build(group, vocabulary, _metric(session))


def _metric(session: Session) -> str | None:
    """`task.metric`. UserError for settings of drawn prompts: those of failures are what the suite says."""
    asked = session.config["task"]
    for name in ("bos", "corruption"):
        if asked[name] is not None:
            raise UserError(
                f"task.{name}={asked[name]} has no meaning for failures, whose prompts are the suite's; leave it out"
            )
    return asked["metric"]


def hypothesis(session: Session, plan: Any, group: SuitePairs, folder: Path) -> Hypothesis:
    """Trace the difference on the discovery half and say what was found."""
    from suites.bridge import hypothesis

    found = hypothesis.propose(plan, group, folder, session.bar, session.config["circuit"]["method"])
    session.say(group.sentence)
    for sentence in found.sentences:
        session.say(sentence)
    return found


def certify(session: Session, folder: Path, documents: Documents, changed: Sequence[str]) -> dict[str, Any]:
    """The certificate of a circuit about failures: with the named heads on the confirmation half as a gate of tier 1.

    They are written to 142_carriers.json and said in one line each.
    """
    from calibrations import certificate
    from suites.bridge import confirmation, hypothesis

    settings = session.config["measurement"]["difference"]
    traced = results_io.read(results_io.find(folder, hypothesis.NUMBER))
    named = [carrier["head"] for carrier in traced["named"]]
    measured = _measured(folder, confirmation.NEEDED)
    gated, rules = confirmation.gated(documents, session.config["certificate"], named, measured, settings)
    folded = certificate.certify(gated, rules, changed)
    records = confirmation.confirm(named, measured, settings) if measured else []
    if measured:
        results_io.write(
            folder / f"{confirmation.NUMBER}_{confirmation.ID}.json", confirmation.document(records, traced, folder)
        )
    for one in records:
        where = f" [{one['interval'][0]:.2f}, {one['interval'][1]:.2f}]" if one["interval"] else ""
        session.say(f"{one['head']} restores {one['restored']:.2f}{where} on the confirmation half: {one['verdict']}")
    return {**folded, "behaviour": {**traced["group"], "carriers": records}}


def _measured(folder: Path, numbers: Iterable[str]) -> dict[str, Any] | None:
    """These measurements; None if one was not made."""
    paths = {number: results_io.find(folder, number) for number in numbers}
    return {number: results_io.read(path) for number, path in paths.items()} if all(paths.values()) else None


def withdraw(folder: Path) -> None:
    """Delete what an earlier run concluded about a hypothesis that there is no longer."""
    for name in ("certificate.json", "circuit.yaml", "142_carriers.json"):
        (folder / name).unlink(missing_ok=True)


def gate(session: Session) -> int:
    """`gate`: the candidate's run against the baseline's; prints the verdict, writes 151_regression_gate.json beside the
    candidate's results and returns the exit code.
    """
    from suites import gate
    from suites.bridge import stored_pairs

    folders = {name: session.config[name] for name in ("baseline", "candidate")}
    for name, folder in folders.items():
        if not folder:
            raise UserError(
                f"gate needs {name}=; give the folder of a finished suite run, for example results/pocket/suites"
            )
    stored_pairs.require_untouched(*(Path(str(folder)) for folder in folders.values()))
    baseline, candidate = (gate.read(Path(str(folder))) for folder in folders.values())
    verdict = gate.compare(baseline, candidate, session.config["gate"])
    gate.write(verdict, Path(str(folders["candidate"])))
    gate.show(verdict, session.console)
    return verdict.exit_code
