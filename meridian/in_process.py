"""Runs inside the caller's own process: does what the command line does, for Python callers."""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from meridian import commandline, context, overrides, stages
from meridian.commands import run as run_command
from meridian.commands import suites as suites_command
from meridian.context import RunContext
from meridian.finished_run import FinishedRun
from meridian.overrides import setting
from meridian.reporter import PLAIN_WIDTH
from meridian.suite_folder import SuiteFolder
from results_io import UserError

if TYPE_CHECKING:
    from circuits.circuit import Circuit
    from circuits.given import GivenModel
    from circuits.measure import Plan
    from circuits.tasks import Task
    from meridian.lab import Lab

OWN_PROMPTS = "prompts.templates"  # selects among the templates of a task
SPLITS = ("discovery", "evaluation", "held_out")
TASK_FILES = (".csv", ".jsonl", ".tsv", ".json")  # how the name of a file of prompt pairs ends
DEFAULT_TASK = "ioi"
CLAIMS = "claims"  # the folder, below that of all results, for circuits that were passed as objects
UNUSED = 8  # prompts in each of the splits that a lab does not use
ELSEWHERE = {"suite": "meridian.run_suites", "experiment": "the command line", "command": "the command line"}


@contextlib.contextmanager
def started(settings: Iterable[str], results: str | Path | None = None, show: bool = False) -> Iterator[RunContext]:
    """The context of `python run.py <settings>`; it also works inside another command. Hydra's state is restored afterwards.

    UserError for settings that are unknown or cannot be parsed.
    """
    _import_progress_bars()
    given = [*settings, *([] if results is None else [f"results={results}"])]
    try:
        with overrides.in_a_command(commandline.arguments(given)) as config:
            made = context.start(config, None if show and not Console().is_jupyter else _console(show), warnings.warn)
        yield made
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(commandline.sentence(error)) from error


def _console(show: bool) -> Console:
    """A silent console, or one for notebooks without progress bars, which would need widgets."""
    return Console(file=None if show else io.StringIO(), width=PLAIN_WIDTH, force_jupyter=False)


def _import_progress_bars() -> None:
    """Import tqdm, which model libraries use, without its warning about missing widgets in a notebook."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("tqdm.auto")


def run(
    settings: Iterable[str],
    results: str | Path | None,
    show: bool,
    model: Any = None,
    task: str | Path | Task | None = None,
    circuit: str | Path | Circuit | Iterable[str] | None = None,
    tokenizer: Any = None,
) -> FinishedRun:
    """Run the stages of `run.py` for one task. UserError for several tasks, and for commands other than a run on a task."""
    settings = tuple(settings)
    for text in settings:
        if not isinstance(text, str):
            raise UserError(f'{text!r} is not a setting; write settings as text, for example "task=ioi"')
        name = "command" if text in commandline.WORDS else setting(text)
        if name in ELSEWHERE:
            raise UserError(f"{text} is not a run on a task; use {ELSEWHERE[name]} for it")
    asked = _Asked.of(settings, model=model, task=task, circuit=circuit, tokenizer=tokenizer)
    _require_a_name_of_its_own(asked.task)
    with started(asked.settings, results, show) as made:
        made = asked.put_into(made)
        name, *others = made.tasks()
        if others:
            raise UserError(f"task=all is {1 + len(others)} tasks with a folder each; call run once for each of them")
        if asked.claim is None:
            return _finished(made, name)
        claim = made.plan(name).checked(_named_heads(asked.claim, name, made.model_settings["name"]))
    with (
        _kept(claim, made) as path,
        started(
            [*asked.settings, "circuit=file", f"circuit.path={commandline.path(str(path))}"], results, show
        ) as made,
    ):
        return _finished(asked.put_into(made), name)


def _require_a_name_of_its_own(task: Task | None) -> None:
    """UserError if a Task has the name of a different, shipped task: their results would share a folder."""
    if task is None:
        return
    from circuits import tasks
    from circuits.tasks import published

    if task.name in (*tasks.TASKS, *published.BUILDERS) and task != tasks.TASKS.get(task.name):
        raise UserError(
            f"the Task is called {task.name!r}, as one that ships, and is another; give it a name of its own"
        )


def _finished(made: RunContext, task: str) -> FinishedRun:
    try:
        folder = run_command.certified(made, task)
    except stages.NothingToCertify as reason:
        raise UserError(f"{reason}; trace another group with task.group=<suite>") from reason
    stages.summarise(made)
    return FinishedRun(folder)


@contextlib.contextmanager
def _kept(circuit: Circuit, made: RunContext) -> Iterator[Path]:
    """The file of a claim that was passed as an object. Its name has a digest of its content, so that `verify` finds it.

    It is removed if the run on it fails, unless it existed before.
    """
    from circuits import circuit as circuit_files

    path = made.results / CLAIMS / f"{circuit.task}-{circuit.sha256[:12]}.yaml"
    was_there = path.is_file()
    circuit_files.save(circuit, path)
    try:
        yield path
    except BaseException:  # interruptions included; the next run writes the claim again
        if not was_there:
            path.unlink(missing_ok=True)
            for folder in (path.parent, *([] if made.had_results else [made.results])):
                with contextlib.suppress(OSError):  # not empty, because others are at work
                    folder.rmdir()
        raise


@dataclass(frozen=True)
class _Asked:
    """The arguments of `run` and `explore`, as settings where possible, and the objects that settings cannot express.

    `model`, `task`: given as objects, or None. `claim`: a circuit as an object, or heads by name.
    """

    settings: tuple[str, ...]
    model: GivenModel | None
    task: Task | None
    claim: Circuit | Iterable[str] | None

    @classmethod
    def of(cls, settings: Iterable[str], *, model: Any, task: Any, circuit: Any, tokenizer: Any) -> _Asked:
        """Sort the arguments. UserError for anything given twice, and for anything that is neither a name nor a usable object."""
        given = tuple(settings)
        for name, value in (("model", model), ("task", task), ("circuit", circuit)):
            if value is not None and any(setting(text) == name for text in given):
                raise UserError(f"{name} is given twice, as an argument and as a setting; leave one of them out")
        as_text, held = _model_settings(model, tokenizer)
        about, own_task = _task_settings(task)
        claim = None if circuit is None or isinstance(circuit, str | Path) else circuit
        found = [*as_text, *about, *([] if claim is not None else _circuit_settings(circuit))]
        return cls((*found, *given), held, own_task, claim)

    def put_into(self, made: RunContext) -> RunContext:
        """The context with these objects; a Task sets its own settings. UserError for task settings beside a Task."""
        if self.task is None:
            return replace(made, given_model=self.model)
        about_it = (text for text in made.typed if setting(text).startswith("task.") or setting(text) == OWN_PROMPTS)
        if beside := next(about_it, None):
            raise UserError(f"{beside} says something of the task, which is given as an object; say it in the object")
        made = replace(made, given_model=self.model, given_task=self.task)
        return replace(made, settings={**made.settings, "task": _said_of_itself(self.task, made)})


def _said_of_itself(task: Task, made: RunContext) -> dict[str, Any]:
    """The section `task` of the settings for a Task given as an object.

    For a Task made of rows, these are the settings of task=file, so that the certificate has the same bytes as that of the same
    rows from a file.
    """
    said: dict[str, Any] = {name: getattr(task, name) for name in ("name", "metric", "bos", "corruption")}
    if task.source is None:
        return {**made.settings["task"], **said}
    from circuits import models
    from circuits.tasks.base import METRICS

    has_bos = models.text_reader(made.model_settings).tokenizer.bos_token_id is not None
    return {
        **overrides.group("task", commandline.FILE),
        "shares": dict(task.source.shares),
        "bos": None if task.bos == has_bos else task.bos,
        "metric": None if task.metric == METRICS[0] else task.metric,
    }


def _model_settings(model: Any, tokenizer: Any) -> tuple[list[str], GivenModel | None]:
    """(settings for a name, a folder or an object; the object or None). An object appears in the settings as model=local."""
    if model is None or isinstance(model, str | Path):
        if tokenizer is not None:
            raise UserError("tokenizer= goes with a model that is an object; a name or a folder has its own")
        if model is None:
            return [], None
        is_folder = isinstance(model, Path) or (Path(model) / "config.json").is_file()
        return (["model=local", f"model.path={model}"] if is_folder else [f"model={model}"]), None
    from circuits.given import GivenModel

    return ["model=local"], GivenModel.of(model, tokenizer)


def _task_settings(task: Any) -> tuple[list[str], Task | None]:
    """(settings, Task or None) for a name, a file of prompt pairs or a Task.

    A file is read by the loader of task=file. For a Task, the settings name the default task.
    """
    if task is None:
        return [], None
    if isinstance(task, Path) or (isinstance(task, str) and task.endswith(TASK_FILES)):
        return ["task=file", f"task.path={task}"], None
    if isinstance(task, str):
        return [f"task={task}"], None
    from circuits.tasks import Task

    if not isinstance(task, Task):
        raise UserError(
            f"task is a {type(task).__name__}; give a name, a file of prompt pairs or a circuits.tasks.Task"
        )
    return [f"task={DEFAULT_TASK}"], task


def run_suites(settings: Iterable[str], results: str | Path | None, show: bool) -> SuiteFolder:
    """Run what `suite=` names, as `run.py` does. UserError if no suite is named."""
    settings = tuple(settings)
    if not any(setting(text) == "suite" for text in settings):
        raise UserError("no suite is named; add for example suite=all")
    with started(settings, results, show) as made:
        suites_command.command(made)
        return SuiteFolder(suites_command.folder_asked(made))


def explore(
    task: str | Path | Task,
    model: Any,
    circuit: str | Path | Circuit | Iterable[str] | None,
    settings: Iterable[str],
    prompts: int,
    split: str,
    seed: int,
    tokenizer: Any = None,
    show: bool = True,
) -> Lab:
    """See `meridian.explore`."""
    if split not in SPLITS:
        raise UserError(f"split={split} is unknown; use one of {', '.join(SPLITS)}")
    sizes = [f"prompts.{name}={prompts if name == split else UNUSED}" for name in SPLITS]
    asked = _Asked.of(settings, model=model, task=task, circuit=circuit, tokenizer=tokenizer)
    with started([f"seed={seed}", *sizes, *asked.settings], show=show) as made:
        made.reporter.say(f"explore: {prompts} {split} prompts of {made.tasks()[0]} on {made.model_settings['name']}")
        from meridian.lab import Lab

        made = asked.put_into(made)
        plan = made.plan(made.tasks()[0])
        plan.require_reference()
        plan.circuit = _circuit(plan, circuit, made)
        study = plan.study
        looked_at = study.discovery if split == "discovery" else study.prompts.select(study.prompts.rows_of(split))
        return Lab(replace(study, prompts=looked_at, circuit=plan.circuit), split)


def _circuit_settings(circuit: Any) -> list[str]:
    if not isinstance(circuit, str | Path):
        return []
    is_file = str(circuit).endswith((".yaml", ".yml", ".json"))
    return ["circuit=file", f"circuit.path={circuit}"] if is_file else [f"circuit={circuit}"]


def _circuit(plan: Plan, circuit: str | Path | Circuit | Iterable[str] | None, made: RunContext) -> Circuit | None:
    """The circuit that `explore` was asked for, checked against the model's shape."""
    from circuits import claims

    if circuit is None and plan.task.name not in plan.identity.circuits:
        return None
    if circuit is None or isinstance(circuit, str | Path):
        with tempfile.TemporaryDirectory() as folder:
            return claims.resolve(plan, made.settings["circuit"], Path(folder), made.reporter.bar)
    return plan.checked(_named_heads(circuit, plan.task.name, plan.identity.name))


def _named_heads(claim: Circuit | Iterable[str], task: str, model: str) -> Circuit:
    """The circuit itself, or a circuit made of named nodes in a single role."""
    from circuits.circuit import Circuit, Role, parse_node

    if isinstance(claim, Circuit):
        return claim
    named = Role.of(parse_node(name) for name in claim)
    return Circuit("named heads", task, model, {"heads": named}, {"kind": "user"})
