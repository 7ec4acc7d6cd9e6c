"""Runs inside the caller's own process: what the command line does, without a command line."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import open_dict
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from meridian import commandline, context, stages
from meridian.commands import run as run_command
from meridian.commands import suites as suites_command
from meridian.context import RunContext
from meridian.finished_run import FinishedRun
from meridian.overrides import CONFIGS, setting
from meridian.reporter import PLAIN_WIDTH
from meridian.suite_folder import SuiteFolder
from results_io import UserError

if TYPE_CHECKING:
    from circuits.circuit import Circuit
    from circuits.measure import Plan
    from circuits.tasks import Task
    from meridian.lab import Lab

SPLITS = ("discovery", "evaluation", "held_out")
UNUSED = 8  # prompts of the splits that a lab does not look at
ELSEWHERE = {"suite": "meridian.run_suites", "experiment": "the command line", "command": "the command line"}


@contextlib.contextmanager
def started(settings: Iterable[str], results: str | Path | None = None, show: bool = False) -> Iterator[RunContext]:
    """The context of `python run.py <settings>`; Hydra's state is afterwards what it was before.

    UserError for settings that are unknown or not understood.
    """
    _import_progress_bars()
    given = [*settings, *([] if results is None else [f"results={results}"])]
    hydra = HydraConfig.instance()
    before = hydra.cfg
    try:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            config = compose("config", commandline.arguments(given), return_hydra_config=True)
        hydra.set_config(config)
        with open_dict(config):
            del config["hydra"]
        yield context.start(config, None if show and not Console().is_jupyter else _console(show), warnings.warn)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(commandline.sentence(error)) from error
    finally:
        hydra.cfg = before


def _console(show: bool) -> Console:
    """A silent console; or one for notebooks, without progress bars, which need widgets."""
    return Console(file=None if show else io.StringIO(), width=PLAIN_WIDTH, force_jupyter=False)


def _import_progress_bars() -> None:
    """Import tqdm, which model libraries use, without its warning about missing widgets in a notebook."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")


def run(settings: Iterable[str], results: str | Path | None, show: bool) -> FinishedRun:
    """The stages of `run.py` for one task. UserError for several tasks, and for any command other than a run on a task."""
    settings = tuple(settings)
    for text in settings:
        name = "command" if text in commandline.WORDS else setting(text)
        if name in ELSEWHERE:
            raise UserError(f"{text} is no run on a task; use {ELSEWHERE[name]} for it")
    with started(settings, results, show) as made:
        task, *others = made.tasks()
        if others:
            raise UserError(f"task=all is {1 + len(others)} tasks with a folder each; call run once for each of them")
        try:
            folder = run_command.certified(made, task)
        except stages.NothingToCertify as reason:
            raise UserError(f"{reason}; trace another group with task.group=<suite>") from reason
        stages.summarise(made)
    return FinishedRun(folder)


def run_suites(settings: Iterable[str], results: str | Path | None, show: bool) -> SuiteFolder:
    """`suite=` of `run.py`. UserError if none is named."""
    settings = tuple(settings)
    if not any(setting(text) == "suite" for text in settings):
        raise UserError("no suite is named; add for example suite=all")
    with started(settings, results, show) as made:
        suites_command.command(made)
        return SuiteFolder(suites_command.folder_asked(made))


def explore(
    task: str | Task,
    model: str,
    circuit: str | Circuit | Iterable[str] | None,
    settings: Iterable[str],
    prompts: int,
    split: str,
    seed: int,
) -> Lab:
    """As `meridian.explore` says."""
    if split not in SPLITS:
        raise UserError(f"split={split} is unknown; use one of {', '.join(SPLITS)}")
    named = task if isinstance(task, str) else "ioi"
    sizes = [f"prompts.{name}={prompts if name == split else UNUSED}" for name in SPLITS]
    asked = [f"task={named}", f"model={model}", f"seed={seed}", *sizes, *_circuit_settings(circuit), *settings]
    with started(asked) as made:
        from meridian.lab import Lab

        plan = made.plan(made.tasks()[0])
        if not isinstance(task, str):
            plan = replace(plan, task=task)
        plan.require_reference()
        plan.circuit = _circuit(plan, circuit, made)
        study = plan.study
        looked_at = study.discovery if split == "discovery" else study.prompts.select(study.prompts.rows_of(split))
        return Lab(replace(study, prompts=looked_at, circuit=plan.circuit), split)


def _circuit_settings(circuit: Any) -> list[str]:
    if not isinstance(circuit, str):
        return []
    is_file = circuit.endswith((".yaml", ".yml"))
    return ["circuit=file", f"circuit.path={circuit}"] if is_file else [f"circuit={circuit}"]


def _circuit(plan: Plan, circuit: str | Circuit | Iterable[str] | None, made: RunContext) -> Circuit | None:
    """The circuit that `explore` was asked for, checked against the model's shape."""
    from circuits import claims
    from circuits.circuit import Circuit, Role, parse_node

    if circuit is None and plan.task.name not in plan.identity.circuits:
        return None
    if circuit is None or isinstance(circuit, str):
        with tempfile.TemporaryDirectory() as folder:
            return claims.resolve(plan, made.settings["circuit"], Path(folder), made.reporter.bar)
    if not isinstance(circuit, Circuit):
        named = Role.of(parse_node(name) for name in circuit)
        circuit = Circuit("named heads", plan.task.name, plan.identity.name, {"heads": named}, {"kind": "user"})
    return plan.checked(circuit)
