"""One run from the command line: what `run.py` calls, step by step."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import results_io
from calibrations import calibrate, certificate, preconditions, registry, table
from calibrations.evidence import Evidence
from meridian import aggregate, locks, overrides, trackers
from meridian.commandline import FAILURES, TRACED
from meridian.headline import headline
from meridian.progress import Bar
from meridian.run_folder import CERTIFICATE, RunFolder
from results_io import UserError
from suites import commands

CONFIRMED_BY = ("01", "02")  # measurements in which a traced circuit's named heads are looked for again
NAMELESS = {
    "hub": "model=hub needs model.name; give the hub's name, for example model.name=EleutherAI/pythia-70m",
    "endpoint": "model=endpoint needs model.name; give the name that the server has for the model",
}
UNHEALTHY = 1  # exit code
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, KEPT_BYTES = -1, -3, 1 << 30  # of glibc's mallopt
PLAIN_WIDTH = 160  # of output that goes to a file or a pipe


def keep_freed_memory() -> None:
    """Let the allocator keep what is freed (glibc alone can be told so).

    To map it anew took 16 % of a sampling step of the local learning coefficient on one CPU core, and 3 % of patching.
    """
    with contextlib.suppress(AttributeError, OSError):
        adjust = ctypes.CDLL(None).mallopt
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            adjust(option, KEPT_BYTES)


class NothingToCertify(Exception):
    """What was traced names no head, so there is no claim about a circuit."""


class Session:
    """The steps of one run. Holds the configuration and, once something needs it, the loaded model."""

    def __init__(self, config: DictConfig) -> None:
        self.config: dict[str, Any] = OmegaConf.to_container(config, resolve=True)
        self.console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        self.started = time.monotonic()
        keep_freed_memory()
        self.refused: list[str] = []  # tasks
        self.pairs = 0  # (variant, prompt) pairs run so far
        self.identifiers = _selected(self.config["select"])
        defaults, given = overrides.defaults(HydraConfig.get().runtime.choices), HydraConfig.get().overrides.task
        for text in given:
            name = overrides.setting(text)
            overrides.check_kind(name, overrides.value_of(config, name), overrides.value_of(defaults, name))
        for section in ("prompts", "measurement", "engine", "experiment"):
            overrides.check_counts(section, self.config.get(section), overrides.value_of(defaults, section))
        self.typed = {overrides.setting(text) for text in given}
        self.overrides = sorted(
            overrides.canonical(text, config) for text in given if not overrides.is_default(text, config, defaults)
        )
        self.had_results = self.results.exists()  # an empty folder of the user's is not ours to delete
        self.tracker = trackers.open_tracker(self.config["tracker"], self.results, self.say)
        if self.config["task"]["name"] == FAILURES:  # its default circuit
            self.overrides = [text for text in self.overrides if text != f"circuit={TRACED}"]

    def tasks(self) -> list[str]:
        """The task asked for, or all that the model has prompts for (and, if a stored circuit is asked for, a circuit)."""
        from circuits import tasks

        name = self.config["task"]["name"]
        if name != "all":
            return [name]
        known = tasks.names(self._vocabulary)
        circuits = self.identity.circuits
        stored = self.config["circuit"]["kind"] == "stored" and any(task in circuits for task in known)
        return [task for task in known if task in circuits or not stored]

    @contextlib.contextmanager
    def one_of_several(self, task: str) -> Iterator[None]:
        """What cannot be done for one task of several is said, and the others go on; `summarise` refuses at the end."""
        try:
            with self.alone_with(self.folder(task), task):
                yield
        except NothingToCertify as reason:
            self.say(str(reason))
        except UserError as reason:
            if len(self.tasks()) == 1:
                raise
            self.refused.append(task)
            self.say(f"{task} left out: {reason}")

    @contextlib.contextmanager
    def alone_with(self, folder: Path, task: str) -> Iterator[None]:
        """No other process works on `folder` meanwhile, and the tracker follows."""
        with self._alone(folder), self.tracker.following(lambda: self._followed(folder, task)):
            yield

    def experiment_folder(self, name: str) -> Path:
        """results/<name>, and below it a folder named by whatever differs from the experiment as it ships."""
        alike = ("experiment", "results", "engine", "hydra", "tracker")
        differs = [text for text in self.overrides if overrides.setting(text) not in alike]
        return overrides.below(self.results / name, differs)

    def instead(self) -> bool:
        """Do what was asked for in place of a run: a command, an experiment or suites. False if a run was asked for."""
        asked = {
            "doctor": self.examine,
            "gate": self.gate,
            "figures": self.draw,
            "compare": self.compare,
            None: None,
        }[self.config["command"]]
        if asked is None and "experiment" in self.config:
            asked = self.perform
        elif asked is None and "suite" in self.config:
            asked = self.behave
        if asked is not None:
            asked()
        return asked is not None

    def perform(self) -> None:
        """The experiment asked for, in place of the stages of a run."""
        from meridian import experiments

        experiments.run(self)

    def behave(self) -> None:
        """The behavioural suites asked for, in place of the stages of a run."""
        folder = commands.folder_asked(self)
        with self.alone_with(folder, "suites"):
            commands.run(self, folder)
            self.tracker("asked", folder)

    def draw(self) -> None:
        """Figures and tables of a finished run, for papers."""
        from meridian import paper

        paper.command(self)

    def compare(self) -> None:
        """Two finished runs side by side."""
        from meridian import compare

        compare.command(self)

    def gate(self) -> None:
        """Two runs of the same suites, paired by item; exits with 1 for a regression and with 3 if nothing can be said."""
        sys.exit(commands.gate(self))

    def examine(self) -> None:
        """Is it the model or the library? Prints what was found, keeps it in doctor.json, exits with 1 if all is not well."""
        plan = self.plan(self.tasks()[0])
        from circuits import claims
        from meridian import doctor

        if self.config["circuit"]["kind"] != "discovered" and plan.task.name in plan.identity.circuits:
            plan.circuit = claims.resolve(plan, self.config["circuit"], self.folder(plan.task.name), self.bar)
        report = doctor.examine(plan, self.say)
        doctor.show(report, self.console)
        path = self.results / self.model_settings["name"] / "doctor.json"
        results_io.write(path, report.to_dict())
        self.say(f"Report {path}")
        if not report.healthy:
            sys.exit(UNHEALTHY)

    def measure(self, task: str) -> Path:
        """Stage 1 for one task; returns the folder of its results."""
        plan = self.plan(task)
        from circuits.measure import check, measure, remove_stale

        folder = self.folder(task)
        plan.circuit = self._claim(plan, folder)
        shared = self.folder(task, default=True)
        plan.require_reference()
        check(plan, self._numbers())
        self._announce_replacement(plan, folder)
        prompts = f"prompts-{plan.prompts_sha256[:12]}"
        arguments = (self.bar, shared, self.say, lambda: self._alone(shared, prompts))
        numbers = self._numbers()
        measure(plan, folder, ["01"], *arguments)
        if not self.config["measurement"]["regardless"] and (absent := self._without_behaviour(folder)):
            left_out = [number for number in numbers if number not in calibrate.ALWAYS_READ]
            remove_stale(plan, folder, left_out)
            plan, numbers = plan.with_settings(plan.settings["without_behaviour"]), list(calibrate.ALWAYS_READ)
            self.say(
                f"{plan.identity.name} {absent}; the other measurements are left out (measurement.regardless=true: not)"
            )
        measure(plan, folder, numbers, *arguments)
        return folder

    def _claim(self, plan: Any, folder: Path) -> Any:
        """The circuit that the run is about. NothingToCertify if failures were traced and no head was named."""
        from circuits import claims

        if self.config["circuit"]["kind"] != TRACED:
            return claims.resolve(plan, self.config["circuit"], folder, self.bar, self.say)
        if plan.task.name != FAILURES:
            raise UserError(f"circuit={TRACED} is about failures; run it with task={FAILURES}, or leave it out")
        found = commands.hypothesis(self, plan, self.failures[0], folder)
        if found.circuit is None:
            commands.withdraw(folder)
            raise NothingToCertify("No component hypothesis, so nothing to certify")
        return found.circuit

    def _announce_replacement(self, plan: Any, folder: Path) -> None:
        """Say so if the folder, of whose name `model.path` is no part, holds results of other weights."""
        path = results_io.find(folder, "01")
        try:
            stored = results_io.read(path)["subject"]["model_sha256"] if path else plan.identity.sha256
        except (UserError, KeyError):
            return
        if stored != plan.identity.sha256:
            self.say(
                f"{folder} holds results of other weights ({stored[:8]}, now {plan.identity.sha256[:8]}), which are replaced; "
                "results=<another folder> keeps both"
            )

    def _without_behaviour(self, folder: Path) -> str | None:
        """Why there is nothing for a circuit to explain, as 01 shows it; None if the model does the task."""
        config = calibrate.section(self.config["calibration"], calibrate.PRECONDITIONS)
        return preconditions.absence(Evidence.load(folder, config, ("01",)), config)

    def calibrate(self, folder: Path) -> calibrate.Documents:
        """Stage 2 for one folder of results."""
        return calibrate.calibrate(folder, self.identifiers, self.config["calibration"])

    def certify(self, folder: Path, documents: calibrate.Documents) -> dict[str, Any]:
        """Stage 3: fold the verdicts and write certificate.json; a selection of calibrations makes none."""
        changed = [text for text in self.overrides if text.startswith(("calibration.", "certificate."))]
        if self.config["circuit"]["kind"] == TRACED:
            folded = commands.certify(self, folder, documents, changed)
        else:
            folded = certificate.certify(documents, self.config["certificate"], changed)
        evidence = Evidence.load(folder, self.config["calibration"]["common"], ("01", "20"))
        folded["headline"] = headline(evidence, documents, self.config["circuit"]["kind"], self.identity.origin)
        if self._complete:
            results_io.write(folder / CERTIFICATE, folded)
        self.tracker("judged", folded)
        return folded

    def report(self, folder: Path) -> None:
        """report.html, and the finished folder for whoever follows; of a selection of calibrations there is none."""
        if not self._complete:
            return
        from meridian import report

        run = RunFolder.open(folder)
        report.write(run)
        self.tracker("finished", run)

    def show(self, folder: Path, folded: Mapping[str, Any]) -> None:
        """The certificate as a table, and where everything is."""
        table.show(folded, folded["headline"], self.console, self._complete)
        seconds = time.monotonic() - self.started
        written = " · certificate.json · report.html" if self._complete else ""
        rate = (
            f", {self.pairs:,} variants x prompts at {self.pairs / seconds:,.0f}/s"
            if self.pairs
            else ", nothing measured anew"
        )
        self.say(f"Results {folder}{written} · {seconds:.0f} s{rate}\n")

    def summarise(self) -> None:
        """Pool every certificate under the results folder and run the global M93 over them.

        UserError afterwards if a task was left out.
        """
        from calibrations import summary

        left_out = f"{len(self.refused)} of {len(self.tasks())} tasks left out, for the reasons above: "
        if len(self.refused) == len(self.tasks()):
            raise UserError(left_out + ", ".join(self.refused))
        pooled = aggregate.pool(self.results, self.config["calibration"], self.say)
        self.say(
            f"{len(pooled['circuits'])} certificates pooled in {self.results / 'summary.json'}; "
            f"{summary.sentence(pooled['multiplicity'])}"
        )
        if self.refused:
            raise UserError(left_out + ", ".join(self.refused))

    def plan(self, task: str) -> Any:
        """What is to be measured for one task (`circuits.measure.Plan`); its circuit is not chosen yet."""
        vocabulary = self._vocabulary
        from circuits import tasks
        from circuits.measure import Plan

        asked = self.config["task"]
        choices = (asked["corruption"], asked["bos"], asked["metric"])
        return Plan(
            model_settings=self.model_settings,
            task=self.failures[1] if task == FAILURES else tasks.get(task, vocabulary, *choices),
            sizes=self.config["prompts"],
            seed=self.seed,
            settings=self.config["measurement"],
            engine=self.config["engine"],
        )

    def folder(self, task: str, default: bool = False) -> Path:
        """results/<model>/<task>, and below it a folder named by whatever differs from the default run."""
        folder = self.results / self.model_settings["name"] / task
        if default:
            return folder
        named = [text for text in self.overrides if not overrides.no_part_of_a_result(overrides.setting(text))]
        return overrides.below(folder, named)

    @property
    def results(self) -> Path:
        """The folder of all results."""
        return Path(self.config["results"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    def choice(self, *groups: str) -> str:
        """What was typed about these groups, for a command that goes on with the same: " model=local model.path=folder"."""
        typed = [
            text for text in HydraConfig.get().overrides.task if overrides.setting(text).partition(".")[0] in groups
        ]
        return "".join(f" {text}" for text in typed)

    def say(self, sentence: str) -> None:
        """One line for the person who watches."""
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, title: str) -> Iterator[Bar]:
        """A progress bar with rate and time left for one measurement."""
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(30),
            TextColumn("{task.completed:>7,.0f}/{task.total:<7,.0f}"),
            TextColumn("{task.fields[rate]:>8}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            bar = Bar(progress, title, lambda *about: self.tracker("progress", *about))
            yield bar
        self.pairs += bar.done

    # --- details ---------------------------------------------------------------------------------------------------

    @property
    def _complete(self) -> bool:
        """True if every calibration was asked for: a certificate on some of them would pass for one on all."""
        return set(self.identifiers) == set(registry.CALIBRATIONS)

    @cached_property
    def model_settings(self) -> dict[str, Any]:
        settings = dict(self.config["model"])
        if settings["kind"] == "local" and settings["name"] == "local" and settings["path"]:
            settings["name"] = Path(settings["path"]).resolve().name
        if settings["name"] and (settings["name"].startswith("/") or ".." in Path(settings["name"]).parts):
            raise UserError(
                f"model.name={settings['name']} leads out of the results folder; write a name, and a folder as model.path"
            )
        if settings.get("path") and "model.revision" in self.typed:
            raise UserError(
                "model.revision names a commit of the hub and model.path a folder to read in its place; leave one of them out"
            )
        if not settings["name"]:
            raise UserError(NAMELESS.get(settings["kind"], NAMELESS["hub"]))
        return settings

    @cached_property
    def identity(self) -> Any:
        if self.model_settings["kind"] == "endpoint":
            raise UserError(
                "model=endpoint shows no activations, which circuits need; run suites on it, for example suite=all"
            )
        from circuits import hub  # before the libraries that take seconds to import, so that a refusal is quick

        hub.snapshot_of(self.model_settings)
        from circuits import models

        return models.identify(self.model_settings)

    @cached_property
    def failures(self) -> Any:
        """The group of failures that the run is about, and the task made of it."""
        return commands.failures(self, self._vocabulary)

    @cached_property
    def _vocabulary(self) -> Any:
        """The words that prompts for this model are drawn from; None: the embedded models' own."""
        if self.identity.knows == "embedded":
            return None
        from circuits import models, tasks

        return tasks.Vocabulary(models.load_tokenizer(self.identity))

    def _followed(self, folder: Path, task: str) -> trackers.Subject:
        """What a tracker is told that the run is about."""
        name = str(folder.relative_to(self.results))
        weights = None if self.model_settings["kind"] == "endpoint" else self.identity.sha256
        return trackers.Subject(name, self.model_settings["name"], task, weights, self.config)

    def _alone(self, path: Path, part: str = "") -> contextlib.AbstractContextManager[None]:
        """No other process writes at `path` meanwhile."""
        return locks.held(self.results, path, self.say, part, keep=self.had_results)

    def _numbers(self) -> list[str]:
        from circuits.measurements import MEASUREMENTS

        if self._complete:
            return list(MEASUREMENTS)
        read = {*calibrate.measurements_of(self.identifiers)}
        if self.config["circuit"]["kind"] == TRACED:
            read |= {*CONFIRMED_BY}
        return [number for number in MEASUREMENTS if number in read]


def _selected(select: Any) -> list[str]:
    """Calibration IDs from `all`, one name or a list of names."""
    names = list(registry.CALIBRATIONS) if select == "all" else select if isinstance(select, list) else [select]
    if not names:
        raise UserError("calibration=[] selects nothing; use calibration=all or a list such as [c11,m98]")
    chosen = [registry.get(str(name)).ID for name in names]
    return list(registry.CALIBRATIONS) if "M93" in chosen else chosen  # M93 reads all the others
