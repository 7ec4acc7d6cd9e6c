"""What each stage and command of a run is given: the settings, the folders for results, and the reporter."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from calibrations import registry
from meridian import allocator, config_files, locks, overrides, ranges, trackers
from meridian.commandline import FAILURES, FILE, TRACED
from meridian.reporter import Reporter
from results_io import UserError

if TYPE_CHECKING:
    from circuits.given import GivenModel
    from circuits.measure import Plan
    from circuits.models import Identity
    from circuits.tasks import Task, Vocabulary
    from suites.bridge.pair import SuitePairs

NAMELESS = {
    "hub": "model=hub needs model.name; give the hub's name, for example model.name=EleutherAI/pythia-70m",
    "endpoint": "model=endpoint needs model.name; give the name that the server has for the model",
}
COUNTED = ("prompts", "measurement", "engine", "experiment")  # their integers are counts of at least 1, except seeds


@dataclass(frozen=True, eq=False)
class RunContext:
    """The settings of one run as plain data. For other settings, make another context with `dataclasses.replace`.

    `typed`: every override as typed, `results=` included. `overrides`: those that differ from the default configuration,
    each as one canonical text; they name the folder of results. `had_results`: whether the folder of all results existed
    before the run; if so, it is kept even when empty. `given_model`, `given_task`: objects that replace the model and the task
    that the settings name.
    """

    settings: Mapping[str, Any]
    typed: tuple[str, ...]
    overrides: tuple[str, ...]
    identifiers: tuple[str, ...]
    reporter: Reporter
    had_results: bool
    given_model: GivenModel | None = None
    given_task: Task | None = None

    @property
    def results(self) -> Path:
        """The folder of all results."""
        return Path(self.settings["results"])

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def complete(self) -> bool:
        """True if every calibration was asked for; a certificate on only some could be mistaken for a full one."""
        return set(self.identifiers) == set(registry.CALIBRATIONS)

    @property
    def traced(self) -> bool:
        """True if the circuit is the one that a trace of suite failures names."""
        return self.settings["circuit"]["kind"] == TRACED

    # --- where results go ------------------------------------------------------------------------------------------

    @property
    def model_folder(self) -> Path:
        """results/<model>"""
        return self.results / self.model_settings["name"]

    def folder(self, task: str, default: bool = False) -> Path:
        """results/<model>/<task>; if settings differ from the default run, a folder below it that is named by them."""
        return self.model_folder / task if default else overrides.below(self.model_folder / task, self.differs)

    @property
    def differs(self) -> list[str]:
        """The overrides that can change a result; they name the folder of a run."""
        return [text for text in self.overrides if not overrides.no_part_of_a_result(overrides.setting(text))]

    def experiment_folder(self, name: str, *without: str) -> Path:
        """results/<name>; if settings differ from the shipped experiment, a folder below it that is named by them.

        `without`: settings that change how much is done and not what is done. A run with another value of these continues in
        the same folder.
        """
        ignored = ("experiment", "results", "engine", "hydra", "tracker", "verbose", *without)
        differs = [text for text in self.overrides if overrides.setting(text) not in ignored]
        return overrides.below(self.results / name, differs)

    def alone(self, path: Path, part: str = "") -> contextlib.AbstractContextManager[None]:
        """A context in which no other process writes to `path`, or to its `part`."""
        return locks.held(self.results, path, self.reporter.say, part, keep=self.had_results)

    @contextlib.contextmanager
    def followed(self, folder: Path, task: str) -> Iterator[None]:
        """A context in which no other process works on `folder` and the tracker follows the run."""
        with self.alone(folder), self.reporter.tracker.following(lambda: self._followed(folder, task)):
            yield

    def _followed(self, folder: Path, task: str) -> trackers.FollowedRun:
        weights = None if self.model_settings["kind"] == "endpoint" else self.identity.sha256
        name = str(folder.relative_to(self.results))
        return trackers.FollowedRun(name, self.model_settings["name"], task, weights, self.settings)

    def choice(self, *groups: str) -> str:
        """The overrides typed for these groups, to append to a suggested command: " model=local model.path=folder".

        Each is quoted for a shell if it has to be.
        """
        typed = (text for text in self.typed if overrides.setting(text).partition(".")[0] in groups)
        return "".join(f" {shlex.quote(text)}" for text in typed)

    # --- what the run is about -------------------------------------------------------------------------------------

    def tasks(self) -> list[str]:
        """The task asked for; for `all`, every task with prompts.

        With circuit=stored, `all` means only the tasks with a stored circuit, if there are any.
        """
        from circuits import tasks

        if self.given_task is not None:
            return [self.given_task.name]
        name = self.settings["task"]["name"]
        if name == FILE:
            return [self.file_task.name]
        if name != "all":
            return [name]
        known = tasks.names(self.vocabulary)
        circuits = self.identity.circuits
        stored = self.settings["circuit"]["kind"] == "stored" and any(task in circuits for task in known)
        return [task for task in known if task in circuits or not stored]

    def plan(self, task: str) -> Plan:
        """What is to be measured for one task; its circuit is not chosen yet."""
        if self.given_task is not None:
            return self._plan_of(self.given_task)
        if self.settings["task"]["name"] == FILE:
            return self._file_plan()
        vocabulary = self.vocabulary
        from circuits import tasks

        asked = self.settings["task"]
        templates = self.settings["prompts"].get("templates")  # an experiment's own prompts have none to choose
        choices = (asked["corruption"], asked["bos"], asked["metric"], templates)
        if task == FAILURES and templates not in (None, tasks.TEMPLATES[0]):
            raise UserError(
                f"prompts.templates={templates} is for tasks that draw their prompts; those of task={FAILURES} are a suite's, "
                "so leave it out"
            )
        return self._plan_of(self.failures[1] if task == FAILURES else tasks.get(task, vocabulary, *choices))

    def _file_plan(self) -> Plan:
        """The plan for the rows of a file, whatever their task is called."""
        templates = self.settings["prompts"].get("templates")
        if templates not in (None, "default"):
            raise UserError(
                f"prompts.templates={templates} is for tasks that draw their prompts; those of task={FILE} are given, so leave "
                "it out"
            )
        return self._plan_of(self.file_task)

    def _plan_of(self, task: Task) -> Plan:
        from circuits.measure import Plan
        from circuits.prompts import sizes_of

        return Plan(
            model_settings=self.model_settings,
            task=task,
            sizes=sizes_of(self.settings["prompts"]),
            seed=self.seed,
            settings=self.settings["measurement"],
            engine=self.settings["engine"],
            say=self.reporter.say,
        )

    @cached_property
    def model_settings(self) -> dict[str, Any]:
        """The model's section of the settings; its `name` is that of the results folder. UserError if the model has no name."""
        settings = dict(self.settings["model"])
        if self.given_model is not None:
            named = settings["name"] if "model.name" in map(overrides.setting, self.typed) else self.given_model.name
            settings |= {"kind": "object", "name": named, "given": self.given_model}
        if settings["kind"] == "local" and settings["name"] == "local" and settings["path"]:
            settings["name"] = Path(settings["path"]).resolve().name
        if settings["name"] and (settings["name"].startswith("/") or ".." in Path(settings["name"]).parts):
            raise UserError(
                f"model.name={settings['name']} leads out of the results folder; write a name, and a folder as model.path"
            )
        if settings.get("path") and "model.revision" in map(overrides.setting, self.typed):
            raise UserError(
                "model.revision names a commit of the hub and model.path a folder to read in its place; leave one of them out"
            )
        if not settings["name"]:
            raise UserError(NAMELESS.get(settings["kind"], NAMELESS["hub"]))
        return settings

    @cached_property
    def identity(self) -> Identity:
        """The model's shape, digest of its weights and stored circuits. UserError for a model without access to activations."""
        if self.model_settings["kind"] == "endpoint":
            raise UserError(
                "model=endpoint shows no activations, which circuits need; run suites on it, for example suite=all"
            )
        from circuits import hub  # before libraries that take seconds to import, so that refusals are quick

        hub.snapshot_of(self.model_settings)
        from circuits import models

        return models.identify(self.model_settings)

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        """The words that prompts for this model are drawn from; None stands for the embedded models' own."""
        if self.identity.knows == "embedded":
            return None
        from circuits import models, tasks

        if self.given_model is not None:
            return tasks.Vocabulary(self.given_model.tokenizer)
        return tasks.Vocabulary(models.load_tokenizer(self.identity))

    @cached_property
    def file_task(self) -> Task:
        """For task=file: the task made of the rows that the settings name. UserError if no run on them is possible."""
        from meridian import file_task

        identity, vocabulary = self.identity, self.vocabulary
        from circuits import models

        reader = models.text_reader(self.model_settings)
        return file_task.build(self.settings["task"], self.model_settings, identity, reader, vocabulary)

    @cached_property
    def failures(self) -> tuple[SuitePairs, Task]:
        """For task=failures: the pairs of the suite that the run is about, and the task made of them."""
        from meridian import failures

        base = self.model_folder / failures.FOLDER
        asked, typed = self.settings["task"], self.choice("model", "results")
        return failures.chosen(base, asked, self.identity, self.vocabulary, typed)


def start(
    config: DictConfig, console: Console | None = None, warn: Callable[[str], object] | None = None
) -> RunContext:
    """The context of the run that Hydra composed. UserError for a setting of the wrong kind.

    `warn` is called with the message of a tracker that fails; if it is None, the console prints the message.
    """
    allocator.keep_small_blocks()
    given = list(HydraConfig.get().overrides.task)
    settings, identifiers, defaults = checked(config, HydraConfig.get().runtime.choices, given)
    if not settings["results"].strip():
        raise UserError("results= names no folder; give one, for example results=results")
    differs = sorted(
        overrides.canonical(text, config) for text in given if not overrides.is_default(text, config, defaults)
    )
    if settings["task"]["name"] == FAILURES:  # it implies circuit=traced, which then does not count as a difference
        differs = [text for text in differs if text != f"circuit={TRACED}"]
    reporter, results = Reporter(console), Path(settings["results"])
    had_results = results.exists()
    reporter.tracker = trackers.open_tracker(settings["tracker"], results, warn or reporter.say)
    return RunContext(settings, tuple(given), tuple(differs), tuple(identifiers), reporter, had_results)


def checked(
    config: DictConfig, choices: Mapping[str, str], given: Sequence[str]
) -> tuple[dict[str, Any], Sequence[str], DictConfig]:
    """(settings as plain data, the calibrations selected, the defaults of these `choices`) for the overrides `given`.

    UserError for a setting that does not exist, has the wrong type, or is out of range.
    """
    for text in given:
        overrides.check_takes_nothing_away(text)
    settings = config_files.plain(config)
    identifiers = selected(settings["select"])
    if typed := next((text for text in given if overrides.setting(text).startswith("preset.")), None):
        raise UserError(
            f"{typed} changes what a preset says of itself; type the setting that you want beside it, or leave it out"
        )
    defaults = overrides.defaults(choices, config, given)
    for text in given:
        name = overrides.setting(text)
        overrides.check_is_there(text, defaults)
        overrides.check_kind(name, overrides.value_of(config, name), overrides.value_of(defaults, name))
    for section in COUNTED:
        overrides.check_counts(section, settings.get(section), overrides.value_of(defaults, section))
    ranges.check("", settings, config_files.plain(defaults))
    return settings, identifiers, defaults


def selected(select: object) -> Sequence[str]:
    """Calibration IDs from `all`, one name or a list of names."""
    names = list(registry.CALIBRATIONS) if select == "all" else select if isinstance(select, list) else [select]
    if not names:
        raise UserError("calibration=[] selects nothing; use calibration=all or a list such as [c11,m98]")
    chosen = [registry.get(str(name)).ID for name in names]
    return list(registry.CALIBRATIONS) if "M93" in chosen else chosen  # M93 reads all the others
