"""Stage 1: run the measurements that are missing or stale and write one numbered result each.

A result is fresh if its subject (model, prompts, circuit, settings, device, code) is the requested one. Fresh results are not
measured again: a killed run repeats only the measurement it was in, and the model is loaded only if something is stale.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import torch

import code_digest
import registries
import results_io
from circuits import devices, models, numerics, prompts, study, tasks
from circuits.circuit import Circuit
from circuits.engine.sources import MINIMUM_REFERENCE_PROMPTS
from circuits.measurements import DEPEND_ON_CIRCUIT, MEASUREMENTS, cross_task
from circuits.models import Identity, Model
from circuits.study import Study
from results_io import UserError
from shown_progress import Progress

ProgressBar = Callable[[str], AbstractContextManager[Progress]]
Exclusive = Callable[[], AbstractContextManager[None]]
ROOT: Final = Path(__file__).parents[1]


@dataclass(eq=False)
class Plan:
    """What is to be measured: a model, a task's prompts, a circuit and the settings of every measurement.

    `model_settings` and `engine` are sections of the configuration; `sizes` and `seed` determine the prompts. `circuit` starts
    as None, since searching for one needs the plan. `say` is called with messages about loading.
    """

    model_settings: Mapping[str, Any]
    task: tasks.Task
    sizes: Mapping[str, int]
    seed: int
    settings: Mapping[str, Any]
    engine: Mapping[str, Any]
    circuit: Circuit | None = None
    say: Callable[[str], Any] = lambda step: None

    @cached_property
    def identity(self) -> Identity:
        return models.identify(self.model_settings)

    def with_settings(self, settings: Mapping[str, Any]) -> Plan:
        """The same plan with some settings changed; what is already loaded is kept."""
        other = replace(self, settings={**self.settings, **settings})
        for name in ("identity", "examples", "prompts_sha256", "model"):
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        if "study" in self.__dict__:
            other.__dict__["study"] = replace(self.study, settings=other.settings)
        return other

    @cached_property
    def examples(self) -> Mapping[str, list[tasks.Example]]:
        """{prompt set: its examples as text}, for all sets that `sizes` names."""
        return prompts.draw_examples(self.task, self.sizes, self.seed)

    @cached_property
    def prompts_sha256(self) -> str:
        """Digest of all prompt sets, from their text alone."""
        return results_io.sha256(
            {name: [vars(example) for example in examples] for name, examples in self.examples.items()}
        )

    @property
    def positions(self) -> tuple[str, ...]:
        """The named positions of the task's prompts, at which nodes can be claimed."""
        first = next(examples[0] for examples in self.examples.values() if examples)
        return (*first.positions, prompts.CHANGED)

    def checked(self, circuit: Circuit) -> Circuit:
        """The circuit. Raises UserError if the model lacks a claimed node or the task a claimed position."""
        positions = self.positions if any(node.is_part for node in circuit.nodes) else None
        return circuit.check(self.identity.n_layers, self.identity.n_heads, positions)

    def require_reference(self) -> None:
        """Raises UserError, before a model is loaded, if a template has too few reference prompts for its means."""
        held = Counter(example.template for example in self.examples["reference"])
        asked = {
            example.template for name in ("evaluation", "held_out", "discovery") for example in self.examples[name]
        }
        template = min(sorted(asked), key=lambda name: held[name])
        if held[template] < MINIMUM_REFERENCE_PROMPTS:
            spread = 1 if self.task.templates else 3  # randomly drawn templates are not equally frequent
            needed = len(asked) * MINIMUM_REFERENCE_PROMPTS * spread
            raise UserError(
                f"prompts.reference={self.sizes['reference']} gives template {template!r} {held[template]} reference prompts and "
                f"mean or resample ablation needs {MINIMUM_REFERENCE_PROMPTS}; use about {needed}"
            )

    @cached_property
    def model(self) -> Model:
        return models.load(self.model_settings, self.say)

    @cached_property
    def study(self) -> Study:
        """The loaded model with the tokenized prompts."""
        model, started = self.model, time.monotonic()
        self.say("preparing prompts and engine")
        made = study.prepare(model, self.task, self.sizes, self.seed, self.engine, settings=self.settings)
        described = made.engine.describe()
        self.say(f"engine {described['backend']} ({described['why']}), {time.monotonic() - started:.1f} s")
        return made

    def subject(self, number: str) -> dict[str, Any]:
        """What result `number` is about; a stored result with another subject is stale."""
        circuit = self.circuit if self.depends_on_circuit(number) else None
        return {
            "model": self.identity.name,
            "model_sha256": self.identity.sha256,
            "dtype": self.model_settings.get("dtype") or "float32",
            "task": self.task.name,
            "metric": self.task.metric,
            "bos": self.task.bos,
            "prompts_sha256": self.prompts_sha256,
            **({"rows_sha256": self.task.source.sha256} if self.task.source else {}),
            **({"companions": list(self.task.companions)} if number == cross_task.NUMBER else {}),
            "circuit": circuit.name if circuit else None,
            "circuit_sha256": circuit.sha256 if circuit else None,
            "stored_circuits": self._stored_circuits(number),
            **self._companions_of_files(number),
            "settings": {name: self.settings[name] for name in MEASUREMENTS[number].SETTINGS},
            "device": devices.device_of(self.model_settings),
            "torch": torch.__version__,
            "measured_by": code_digest.version_of("measurements"),
        }

    def depends_on_circuit(self, number: str) -> bool:
        """True if result `number` depends on the circuit, in general or for a model of this size under these settings."""
        for_this_model = getattr(MEASUREMENTS[number], "depends_on_circuit", None)
        return number in DEPEND_ON_CIRCUIT or (
            for_this_model is not None and for_this_model(self.settings, len(self.identity.heads))
        )

    def _companions_of_files(self, number: str) -> dict[str, Any]:
        """For the measurement of companion tasks, those that come from files, since options may change their prompts."""
        others = self.task.others or {}
        if number != cross_task.NUMBER or not others:
            return {}
        texts = {
            name: {split: list(map(vars, own)) for split, own in (task.given or {}).items()}
            for name, task in others.items()
        }
        return {"companions_sha256": results_io.sha256(texts)}

    def _stored_circuits(self, number: str) -> dict[str, str] | None:
        """The model's own circuits that a measurement reads, by task; None if it reads none."""
        of_tasks = getattr(MEASUREMENTS[number], "stored_circuits", None)
        if of_tasks is None:
            return None
        stored = self.identity.circuits
        return {name: stored[name].sha256 for name in of_tasks(self.task) if name in stored}


def path_of(folder: Path, number: str) -> Path:
    return folder / f"{number}_{MEASUREMENTS[number].ID}.json"


def measure(
    plan: Plan,
    folder: Path,
    numbers: Iterable[str],
    progress: ProgressBar,
    shared: Path | None = None,
    note: Callable[[str], Any] = print,
    exclusive: Exclusive = nullcontext,
) -> list[str]:
    """Make every result of `numbers` in `folder` fresh; return the numbers that had to be measured.

    No other process may write in `folder` meanwhile. A fresh result in `shared` (the default run's folder) or in a subfolder of
    it is copied instead of measured again. `exclusive` is held while a circuit-independent result is looked up or measured. A
    result that the model's architecture does not allow is left out, and `note` gets the reason; calibrations that read it then
    say so. Raises UserError, before anything is measured, for settings that are missing or that a measurement refuses.
    """
    numbers = list(numbers)
    check(plan, numbers)
    remove_partial(folder)
    done = []
    with numerics.pinned(plan.model_settings.get("device")):
        for number in numbers:
            if is_fresh(path := path_of(folder, number), plan.subject(number)):
                continue
            with nullcontext() if plan.depends_on_circuit(number) else exclusive():
                if (known := _same_result_in_another_folder(plan, folder, number, shared)) is not None:
                    results_io.write_text(path, known.read_text(encoding="utf-8"))
                elif _measured(plan, path, number, progress, note):
                    done.append(number)
    return done


def _same_result_in_another_folder(plan: Plan, folder: Path, number: str, shared: Path | None) -> Path | None:
    """The same result in another folder; None if there is none.

    01 is compared first, to skip folders with other prompts. Seeds are compared too, because every file stores them but not
    every subject does.
    """
    if shared is None or not shared.is_dir():
        return None
    for other in (shared, *sorted(path for path in shared.iterdir() if path.is_dir())):
        path = path_of(other, number)
        if other == folder or not path.is_file() or not is_fresh(path_of(other, "01"), plan.subject("01")):
            continue
        if is_fresh(path, plan.subject(number)) and results_io.read(path)["environment"]["seeds"] == _seeds(plan):
            return path
    return None


def _measured(plan: Plan, path: Path, number: str, progress: ProgressBar, note: Callable[[str], Any]) -> bool:
    """Measure result `number` into `path`; returns False, without a file, if the model's architecture does not allow it.

    Raises UserError, with the reason and without a file, for a model that cannot be run and for numbers that are not finite.
    """
    module, study_ = MEASUREMENTS[number], plan.study
    try:
        with progress(f"{number} {module.ID.replace('_', ' ')}") as bar:
            data = module.measure(replace(study_, circuit=plan.circuit, progress=bar))
    except models.UnsupportedArchitectureError as reason:
        path.unlink(missing_ok=True)
        note(f"{number} left out: {reason}")
        return False
    try:
        results_io.write(path, {**_header(plan, number), "data": data})
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"measurement {number} of {plan.identity.name} holds numbers that are not finite: its weights are, so activations "
            "overflow; run it with model.dtype=float32, or leave out what makes them overflow"
        ) from error
    if hasattr(module, "said") and (sentence := module.said(data)):
        note(sentence)
    return True


def check(plan: Plan, numbers: Iterable[str]) -> None:
    """Raises UserError, before anything is measured, for settings that are missing or that a measurement refuses."""
    for number in numbers:
        module = MEASUREMENTS[number]
        for name in module.SETTINGS:
            if name not in plan.settings:
                raise UserError(
                    f"{registries.file_of(module)} reads the setting {name!r}, which no file in configs/measurement/ has; add it"
                )
        if hasattr(module, "check"):
            module.check(plan.settings)


def remove_stale(plan: Plan, folder: Path, numbers: Iterable[str]) -> None:
    """Delete results of `numbers` that are not about this plan, so that no calibration reads them."""
    for number in numbers:
        if not is_fresh(path := path_of(folder, number), plan.subject(number)):
            path.unlink(missing_ok=True)


def is_fresh(path: Path, subject: Mapping[str, Any]) -> bool:
    """True if the result is there and about exactly this subject. An unreadable or older file is stale, not fatal."""
    if not path.is_file():
        return False
    try:
        return results_io.read(path)["subject"] == results_io.canonical(subject)
    except (results_io.UserError, KeyError):
        return False


def remove_partial(folder: Path) -> None:
    """Delete temporary files of a killed run; no other process may be writing in the folder."""
    for path in folder.glob(".*.partial"):
        path.unlink(missing_ok=True)


def _header(plan: Plan, number: str) -> dict[str, Any]:
    study_ = plan.study
    return {
        "number": number,
        "id": MEASUREMENTS[number].ID,
        "kind": "measurement",
        "subject": plan.subject(number),
        "n": {
            "evaluation": study_.prompts.splits.count("evaluation"),
            "held_out": study_.prompts.splits.count("held_out"),
            "heads": len(plan.identity.heads),
            "templates": len(set(study_.prompts.templates)),
        },
        "records": [],
        "inputs_sha256": {},
        "environment": environment(plan),
    }


def environment(plan: Plan) -> dict[str, Any]:
    """The environment of a result, which is not part of its subject."""
    return {
        "code_version": code_digest.version_of("measurements"),
        "revision": plan.identity.revision,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": plan.model.device.type,
        "dtype": plan.model.precision,
        "engine": plan.study.engine.describe(),
        "numerics": numerics.describe(),
        "seeds": _seeds(plan),
    }


def _seeds(plan: Plan) -> dict[str, Any]:
    return {"prompts": plan.seed, "interventions": plan.settings["seed"]}
