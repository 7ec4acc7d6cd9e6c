"""Checks, link by link from a certificate to the weights, that everything is still what the certificate was made from.

The certificate lists the digests of its calibrations and measurements. Each calibration lists those of the measurements that it
was judged on. The digests of circuit, prompts and weights are in the subject of all of them. The prompts are drawn again and the
weights are read again. This detects edits. It does not detect forgeries whose digests were all recomputed; for these, use
`meridian.remeasurement` or run the command again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

import code_digest
import results_io
from calibrations import certificate, rules
from calibrations.calibrate import ABOUT
from calibrations.evidence import Evidence
from calibrations.registry import CALIBRATIONS, PRECONDITIONS
from meridian import commandline, file_task, integrity, overrides, ranges, stages
from meridian.context import RunContext, checked
from meridian.headline import READ, WORDED_BY, headline
from meridian.run_folder import CERTIFICATE
from result_types import TraceResult
from results_io import UserError

if TYPE_CHECKING:
    from calibrations.calibrate import Documents
    from circuits.circuit import Circuit
    from circuits.measure import Plan

CHECKED_ALONE = ("model", "engine")  # settings of the check that need not be those of the run
OF_THE_CHECK = (
    "command",
    "from",
    "verify",
    "verbose",
    "results",
    "force",
    "tracker",
)  # settings that are not the run's
WHERE = ("task", "task.companions", *overrides.WHERE_ROWS_ARE)  # the same for rows, which may have moved
CIRCUIT_PATH, CIRCUIT_FILE = "circuit.path", "circuit=file"  # the same for a circuit file
SELECTED = "select"  # the section that calibration=... sets
ASKED = re.compile(r"\+?[a-z][\w.]*=.*", re.DOTALL)  # what a certificate lists: settings, but no words or options
LISTED = {
    "inputs_sha256": "digests",
    "inputs": "calibrations",
    "asked": "settings",
    "subject": "subject",
    "tier": "tier",
    "headline": "headline",
    "rules": "rules",
}
ORIGIN = "\0"  # stands for where a model is from
NAMED_ORIGIN = (
    re.compile(  # what may stand there, and no more than that: the words of `circuits.models.Identity.origin`
        r"[\w-]+|hub, revision [^\s()]{1,8}|folder (?:(?!  circuit: )[^/\n])+"
    )
)
TRACE = "141"  # the result that names the heads of failures


class Break(Exception):
    """The first link that does not hold, in one sentence."""


@dataclass(frozen=True)
class Verification:
    """The certificate in `folder`.

    `context` is that of the check. Its settings are used for the model, the engine, and the locations of rows and of a circuit
    file. `unchecked`: the links that `walk` could not check.
    """

    folder: Path
    context: RunContext
    unchecked: list[str] = field(default_factory=list)

    def walk(self) -> Iterator[str]:
        """One sentence for each link that holds or that cannot be checked here; Break at the first that does not hold.

        A link that cannot be checked is reported and added to `unchecked`. If a setting for it was typed, UserError is raised
        instead, because what was asked cannot be done.
        """
        self._require_the_same_task()
        listed = self.certificate["inputs_sha256"]
        yield f"{CERTIFICATE}: as it was written; it lists {len(listed)} results"
        yield f"calibrations: {self._calibrations()} as the certificate lists them, judged on the measurements that it lists"
        yield f"measurements: {self._measurements()} as the certificate lists them, on its weights and prompts"
        yield self._folded()
        yield f"circuit: {self._stored_circuit()}"
        yield from self._again()

    @cached_property
    def certificate(self) -> Mapping[str, Any]:
        """The certificate. Break if it was edited, or if it lacks what every run lists because an older version wrote it."""
        found = _read(self.folder / CERTIFICATE)
        for name, what in LISTED.items():
            if name not in found:
                raise Break(f"{self.folder / CERTIFICATE} lists no {what}; repeat the run that it is of")
        if absent := [name for name in ABOUT if name not in found["subject"]]:
            raise Break(
                f"{self.folder / CERTIFICATE} names no {absent[0]} that it is about; repeat the run that it is of"
            )
        return found

    @property
    def subject(self) -> Mapping[str, Any]:
        return self.certificate["subject"]

    def document(self, number: str) -> Mapping[str, Any]:
        """Result `number`. Break unless it is the one that the certificate lists and has the same subject."""
        path = results_io.find(self.folder, number)
        if path is None:
            raise Break(f"{self.folder} lacks result {number}, which {CERTIFICATE} was made from")
        found = _read(path)
        if results_io.file_digest(path) != self.certificate["inputs_sha256"].get(number):
            raise Break(f"{path} is not the file that {CERTIFICATE} was made from")
        for name in ABOUT:
            own = found["subject"].get(name)
            if own is not None and own != self.subject[name]:
                raise Break(f"{path} is about {name} {own}, and {CERTIFICATE} about {self.subject[name]}")
        return found

    def _calibrations(self) -> int:
        known = {PRECONDITIONS: PRECONDITIONS, **{name: module.NUMBER for name, module in CALIBRATIONS.items()}}
        for name, number in self.certificate["inputs"].items():
            if known.get(name) != number:
                raise Break(f"{self.folder / CERTIFICATE} lists result {number} as calibration {name}, which it is not")
        if PRECONDITIONS not in self.certificate["inputs"]:
            raise Break(f"{self.folder / CERTIFICATE} lists no preconditions, which every certificate is made from")
        numbers = sorted(self.certificate["inputs"].values())
        for number in numbers:
            for read, digest in self.document(number)["inputs_sha256"].items():
                if digest != self.certificate["inputs_sha256"].get(read):
                    raise Break(f"result {number} was judged on another result {read} than {CERTIFICATE} lists")
        return len(numbers)

    def _measurements(self) -> int:
        numbers = set(self.certificate["inputs_sha256"]) - set(self.certificate["inputs"].values())
        paths = sorted(self.folder.glob(integrity.NUMBERED))
        beside = {path.name.partition("_")[0]: path for path in paths}
        for number in beside.keys() - set(self.certificate["inputs_sha256"]):
            raise Break(f"{beside[number]} is not listed by {CERTIFICATE}, so it was put there afterwards")
        for path in paths:
            if (reason := integrity.misnamed(path)) is not None:
                raise Break(f"{path} {reason}")
        for number in sorted(numbers):
            self.document(number)
        return len(numbers)

    def _folded(self) -> str:
        """Break if the calibrations, folded again under the run's rules, give another tier, gate or row than the certificate.

        This does not depend on the model's settings, so none are needed. If the certificate was made under other rules than those
        of this code, the sentence gives the tier under this code's rules.
        """
        what, subject = f"whether the calibrations give tier {self.certificate['tier']}", self.subject
        settings = _judging(subject, self.certificate["asked"])
        self._require_failures(settings)
        try:
            stored, found = rules.Standing.read(self.certificate), stages.folded_by(settings, subject["task"])
        except UserError as error:
            return self._not_checked(what, error)
        folding, now = found
        named = commandline.FILE if settings["task"]["name"] == commandline.FILE else subject["task"]
        if stored.version is None:
            raise Break(f"{self.folder / CERTIFICATE} names no release of the rules that it was made under")
        if fault := rules.claims_what_it_cannot(stored, settings, named, now):
            raise Break(f"{self.folder / CERTIFICATE} says of its rules {fault}")
        documents = {one: self.document(number) for one, number in self.certificate["inputs"].items()}
        folded = self._fold(documents, folding, now)
        if stored != now:
            other = UserError("it was made under other rules than those of this code")
            said = self._not_checked(what, other)
            return f"{said}; the rules of this code give tier {folded['tier']}"
        for name, value in results_io.canonical(folded).items():
            if value != self.certificate.get(name, ...):
                raise Break(f"{self.folder / CERTIFICATE} has another {name} than its calibrations give")
        said = f"verdicts: folded again, the same tier ({folded['tier']} of {folded['of']})"
        wording = code_digest.version_of("headlines")
        if (by := self.certificate["headline"].get(WORDED_BY, wording)) != wording:
            why = UserError(f"they are of other code ({str(by)[:40]}) than this ({wording})")
            return f"{said}; {self._not_checked('the words of its headline', why)}"
        self._require_headline(documents, settings)
        return said

    def _require_headline(self, documents: Documents, settings: Mapping[str, Any]) -> None:
        """Break if a line of the headline is not what the results give. Where the weights are from stands in no result."""
        evidence = Evidence.load(self.folder, settings["calibration"]["common"], READ)
        given = headline(evidence, documents, settings, ORIGIN)
        stored = {name: line for name, line in self.certificate["headline"].items() if name != WORDED_BY}
        if not all(isinstance(line, str) for line in stored.values()):
            raise Break(f"{self.folder / CERTIFICATE} has a headline that is not lines of text")
        before, _, after = given["subject"].partition(ORIGIN)
        origin = stored.get("subject", "").removeprefix(before).removesuffix(after)
        if NAMED_ORIGIN.fullmatch(origin):
            given["subject"] = before + origin + after
        if faults := [name for name in {**given, **stored} if stored.get(name) != given.get(name)]:
            raise Break(
                f"{self.folder / CERTIFICATE} says something else in headline.{faults[0]} than its results give"
            )

    def _fold(self, documents: Documents, settings: Mapping[str, Any], standing: rules.Standing) -> dict[str, Any]:
        """The certificate that calibrations give; one about failures also folds the verdicts on its heads."""
        if self.subject["task"] != commandline.FAILURES:
            return certificate.certify(documents, settings["certificate"], standing)
        from meridian import failures
        from suites.bridge import confirmation

        listed = self.certificate["inputs_sha256"]
        whole = all(number in listed for number in confirmation.NEEDED)
        measured = {number: self.document(number) for number in confirmation.NEEDED} if whole else None
        return failures.fold(documents, cast(TraceResult, self.document(TRACE)), measured, settings, standing)

    def _require_failures(self, settings: Mapping[str, Any]) -> None:
        """Break if the certificate has heads of failures but is not about failures, or is about failures but has none.

        Break also if its settings name a traced circuit and it is not about failures, or the reverse.
        """
        path, has = self.folder / CERTIFICATE, "behaviour" in self.certificate
        of_failures = self.subject["task"] == commandline.FAILURES
        if of_failures != has:
            raise Break(
                f"{path} {'has no heads of failures and is about them' if of_failures else 'has heads of failures'}"
                + ("" if of_failures else f", and its task is {self.subject['task']}")
            )
        if (settings["circuit"]["kind"] == commandline.TRACED) != of_failures:
            raise Break(
                f"{path} lists settings by which the circuit is {settings['circuit']['kind']}, which a run on "
                f"{self.subject['task']} cannot have"
            )
        if of_failures:
            self.document(TRACE)

    def _stored_circuit(self) -> str:
        """A sentence about the circuit in result 20 and circuit.yaml, if there is one. Break if it is not the certificate's."""
        claim = self.document("20")["data"]["circuit"]
        if results_io.sha256(claim) != self.subject["circuit_sha256"]:
            raise Break(f"the circuit in result 20 is not that of {CERTIFICATE} ({self._short('circuit')})")
        for path in (self.folder / integrity.CIRCUIT, self.folder / integrity.DISCOVERY):
            if os.path.lexists(path) and not path.is_file():
                raise Break(f"{path} is a folder, a pipe, a device or a link to nowhere and not a file")
        beside = self.folder / integrity.CIRCUIT
        where = "result 20"
        if beside.is_file():
            from circuits import circuit

            try:
                found = circuit.load(beside)
            except UserError as error:
                raise Break(str(error)) from error
            if found.sha256 != self.subject["circuit_sha256"]:
                raise Break(f"{beside} is not the circuit of {CERTIFICATE} ({self._short('circuit')})")
            where += f" and {integrity.CIRCUIT}"
        if fault := integrity.faults(self.folder).get(integrity.DISCOVERY):
            raise Break(f"{self.folder / integrity.DISCOVERY} {fault}")
        return f"{self.subject['circuit']!r} in {where} is that of the certificate ({self._short('circuit')})"

    def _require_the_same_task(self) -> None:
        """UserError if another task is typed than the certificate's."""
        typed = next((text for text in self.context.typed if overrides.setting(text) == "task"), None)
        named, own = self.context.settings["task"]["name"], self.subject["task"]
        if typed is not None and named != (commandline.FILE if file_task.is_one(own) else own):
            raise UserError(
                f"{typed} is asked for, and the certificate is about {own}; "
                + ("type task=file task.path=<its rows>" if file_task.is_one(own) else "leave it out")
            )

    def _again(self) -> Iterator[str]:
        """Sentences about circuit, prompts and weights, as the settings of the run give them now."""
        try:
            plan = self.plan
        except UserError as error:
            yield self._not_checked(
                "where the circuit comes from, prompts and weights", error, "model", "task", "circuit"
            )
            return
        if plan.task.source is not None:
            self._same("rows", plan.task.source.sha256, "the rows that were typed")
            yield f"rows: the same ({self._short('rows')})"
        try:
            plan.circuit = self.claim(plan)
            self._same("circuit", plan.circuit.sha256, "the circuit that its settings name")
            yield "circuit: the one that the settings of the run name is the same"
        except UserError as error:
            yield self._not_checked("where the circuit comes from", error, "circuit")
        self._same("prompts", plan.prompts_sha256, "the prompts drawn again")
        yield f"prompts: drawn again, the same ({self._short('prompts')})"
        self._same("model", plan.identity.sha256, f"the weights of {plan.identity.name}")
        yield f"weights: those of {plan.identity.name} are the same ({self._short('model')})"

    def _not_checked(self, what: str, error: UserError, *sections: str) -> str:
        """The sentence about links that cannot be checked; UserError if a setting of these sections was typed for them."""
        if any(_section(text) in sections for text in self.context.typed):
            raise UserError(f"cannot check {what}: {error}") from error
        self.unchecked.append(what)
        return f"not checked: {what}, since {error}"

    @cached_property
    def plan(self) -> Plan:
        """The run's plan, from its settings. UserError if the model or the rows are not available."""
        context = replayed(self.context, self.folder, self.certificate)
        plan = replace(context.plan(self.subject["task"]), say=lambda step: None)
        _ = plan.identity, plan.prompts_sha256
        return plan

    def claim(self, plan: Plan) -> Circuit:
        """The circuit that the run's settings name. UserError if there is none."""
        from circuits import circuit, claims

        beside = self.folder / integrity.CIRCUIT
        if beside.is_file():
            return circuit.load(beside)
        settings = replayed(self.context, self.folder, self.certificate).settings["circuit"]
        return claims.resolve(plan, settings, self.folder, self.context.reporter.bar)

    def _same(self, name: str, now: str, what: str) -> None:
        """Break if the digest of `what` is not the one in the certificate's subject."""
        if now != self.subject[f"{name}_sha256"]:
            raise Break(f"{what}: digest {now[:8]}, and {CERTIFICATE} was made from {self._short(name)}")

    def _short(self, name: str) -> str:
        return self.subject[f"{name}_sha256"][:8]


def replayed(context: RunContext, folder: Path, certificate: Mapping[str, Any]) -> RunContext:
    """The context of the certificate's run, with the typed settings for the model, the engine, and the locations of rows and of a
    circuit file.

    UserError if the model has no configuration with its name and none is typed, or if a setting no longer exists.
    """
    subject, own = certificate["subject"], file_task.is_one(certificate["subject"]["task"])
    where = (CIRCUIT_PATH, *(WHERE if own else ()))
    typed = [t for t in context.typed if _section(t) in CHECKED_ALONE or overrides.setting(t) in where]
    known = commandline.choices("model")
    if "model" not in map(overrides.setting, typed):
        if subject["model"] not in known:
            raise UserError(
                f"no file in configs/model/ has the name {subject['model']}; give the model as the run had it, for example "
                "model=hub model.name=... or model=local model.path=..."
            )
        typed = [f"model={subject['model']}", *typed]
    task = (
        []
        if own and "task" in map(overrides.setting, typed)
        else [f"task={commandline.FILE if own else subject['task']}"]
    )
    given = [*task, *certificate["asked"], *typed]
    settings = _settings(given)
    below = len(Path(subject["model"], subject["task"]).parts) + bool(certificate["asked"])
    above = folder.resolve().parents
    results = str(above[min(below, len(above)) - 1])
    return replace(context, settings={**settings, "results": results}, typed=tuple(given), overrides=tuple(given))


def require_read(typed: Sequence[str]) -> None:
    """UserError for a typed setting that the check would ignore: all others are those of the certificate's run."""
    for text in typed:
        name, section = overrides.setting(text), _section(text)
        if section in (*CHECKED_ALONE, *OF_THE_CHECK) or name in (*WHERE, CIRCUIT_PATH) or text == CIRCUIT_FILE:
            continue
        raise UserError(
            f"verify takes {'calibration' if section == SELECTED else name} from the run that it checks; leave it out, or give "
            "only model, engine, verify.* and where rows or a circuit file lie now"
        )


def _settings(given: Sequence[str]) -> dict[str, Any]:
    """The settings of a run with these overrides. UserError if a run would refuse them."""
    given = commandline.arguments(given)
    try:
        config, choices = overrides.composed_with_choices(given)
        return checked(config, choices, given)[0]
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(commandline.sentence(error)) from error


def _judging(subject: Mapping[str, Any], asked: Sequence[str]) -> dict[str, Any]:
    """The settings of a run without those of its model, which do not affect verdicts. Break for an override that no run lists.

    A task without a configuration was given as an object; it is left out, with its settings.
    """
    for text in asked:
        _require_listable(text)
    task = commandline.FILE if file_task.is_one(subject["task"]) else subject["task"]
    has_task = task in commandline.choices("task")
    left_out = ("model",) if has_task else ("model", "task")
    given = [text for text in asked if _section(text.lstrip("+")) not in left_out]
    try:
        settings = _settings([*([f"task={task}"] if has_task else []), *given])
        from circuits import tasks

        own = settings["task"]
        tasks.require_choices(own.get("bos"), own.get("metric"), settings["prompts"].get("templates"))
        _require_corruption(subject["task"], own.get("corruption"))
    except UserError as error:
        raise Break(f"{CERTIFICATE} lists settings that no run has: {error}") from error
    return settings


def _require_corruption(task: str, corruption: object) -> None:
    """UserError for a way to corrupt prompts that a task has neither in the embedded models' words nor in natural language."""
    from circuits import tasks

    own: set[str] = set(tasks.published.BUILDERS[task].CORRUPTIONS) if task in tasks.published.BUILDERS else set()
    if task in tasks.TASKS and (embedded := tasks.TASKS[task].corruption):
        own.add(embedded)
    if corruption not in (None, *own):
        known = f"use one of {', '.join(sorted(own))}" if own else "its prompts are given"
        raise UserError(
            f"task.corruption={ranges.shown(corruption)} is not a way to corrupt the prompts of {task}; {known}"
        )


def _require_listable(text: str) -> None:
    """Break unless a certificate can list this override: a setting that can change a result, with its value."""
    name = overrides.setting(text)
    fault = ""
    if not ASKED.fullmatch(text) or commandline.CONTROL.search(text):
        fault = "is not a setting with a value"
    elif overrides.no_part_of_a_result(name):
        fault = "changes no result"
    elif name in commandline.BY_SETTING:
        fault = "is of another command"
    elif not overrides.is_known(name) and _section(name) == "model" and not name.startswith(overrides.ADDED):
        fault = "is not a setting of a model"
    if fault:
        raise Break(f"{CERTIFICATE} lists {ranges.shown(text) or 'an empty text'!r} among its settings, which {fault}")


def _section(override: str) -> str:
    return overrides.setting(override).partition(".")[0]


def _read(path: Path) -> dict[str, Any]:
    try:
        return results_io.read(path)
    except results_io.ResultError as error:
        raise Break(str(error)) from error
