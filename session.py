"""One run from the command line: what `run.py` calls, step by step, and how it talks to a person."""

from __future__ import annotations

import os

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach `guarded`, which makes one sentence of them
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # threads that spin while they wait run 3.5 times slower on busy cores

import contextlib
import ctypes
import difflib
import functools
import hashlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

import results_io
from calibrations import calibrate, certificate, preconditions, registry, table
from calibrations.evidence import PRIMARY, Evidence
from calibrations.statistics import Insufficient
from results_io import UserError
from suites import commands

CONFIGS = Path(__file__).parent / "configs"
COMMANDS = ("doctor", "gate")  # in place of a run
FOLDERS = ("results", "baseline", "candidate")
METHODS_KEY = "circuit.method"
NEEDS_QUOTES, QUOTED = re.compile(r"[=,\[\]{}() ]"), re.compile(r"(['\"]).*\1")
GROUPS = {
    "model",
    "task",
    "circuit",
    "engine",
    "measurement",
    "calibration",
    "certificate",
    "experiment",
    "suite",
    "gate",
}
FAILURES, TRACED = "failures", "traced"  # the task that suites leave behind, and the circuit that is about it
CONFIRMED_BY = ("01", "02")  # measurements in which a traced circuit's named heads are looked for again
NOT_PART_OF_A_RESULT = (
    "task",
    "model",
    "select",
    "results",
    "engine",
    "hydra",
    "command",
    "model.device",
    "model.path",
    "model.name",
)
NAMELESS = {
    "hub": "model=hub needs model.name; give the hub's name, for example model.name=EleutherAI/pythia-70m",
    "endpoint": "model=endpoint needs model.name; give the name that the server has for the model",
}
FOLDER_NAME = 160  # bytes; file systems allow 255, and some tools add to a name
KINDS = {bool: "true or false", int: "a whole number", float: "a number", list: "a list", dict: "a section"}
USER_ERROR, UNHEALTHY = 2, 1
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


def arguments(argv: Sequence[str]) -> list[str]:
    """The command line as Hydra wants it.

    `calibration=` selects calibrations, `a,b` as well as `[a,b]`; `method=` is that of circuit=discovered, which it implies;
    task=failures implies circuit=traced; the bare word `doctor` is a command.
    """
    keys = {text.partition("=")[0] for text in argv}
    implied = []
    if "circuit" not in keys and f"task={FAILURES}" in argv:
        implied = [f"circuit={TRACED}"]
    elif "circuit" not in keys and "method" in keys:
        implied = ["circuit=discovered"]
    return [*map(_argument, argv), *implied]


def _argument(text: str) -> str:
    key, _, value = text.partition("=")
    if text in COMMANDS:
        return f"command={text}"
    if (key in FOLDERS or key.endswith(".path")) and not QUOTED.fullmatch(value):
        return f'{key}="{value}"' if NEEDS_QUOTES.search(value) else text  # folders are named by settings: "a=1,b=2"
    if key == "calibration":
        return f"select={_as_list(value)}"
    return f"{METHODS_KEY}={value}" if key == "method" else text


def _as_list(text: str) -> str:
    return f"[{text}]" if "," in text and not text.startswith("[") else text


def guarded(main: Callable[[], Any]) -> int:
    """Run `main`; bad input becomes one sentence on the error stream and exit code 2."""
    try:
        main()
    except SystemExit as stop:  # from `refusing`
        return stop.code
    except (HydraException, OmegaConfBaseException) as error:
        return _refuse(_sentence(error))
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. What was measured is kept; the same command goes on from there.")
        return 130
    return 0


def refusing(stages: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """`stages` with bad input ending in one sentence; an error that reached Hydra would get a line from it as well."""

    @functools.wraps(stages)
    def run(config: DictConfig) -> None:
        try:
            stages(config)
        except UserError as error:
            sys.exit(_refuse(str(error)))

    return run


def _sentence(error: Exception) -> str:
    """What is wrong with the command line, in one sentence with the remedy."""
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        if "=" not in error.override:
            return f"{error.override} is not a command; use {' or '.join(COMMANDS)}, or settings as key=value"
        return (
            f"{error.override} is not understood: {text.partition(' See https')[0]}; write key=value, a list as [a,b]"
        )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.partition("/")
        paths = sorted((CONFIGS / group).rglob("*.yaml"))
        known = ", ".join(str(path.relative_to(CONFIGS / group).with_suffix("")) for path in paths)
        return f"{group}={name} is unknown; use one of {known}"
    if text.startswith("Could not override"):
        key = text.split("'")[1]
        if key == METHODS_KEY:
            return "method= is that of a search; run it with circuit=discovered, or leave it out"
        group, known = key.partition(".")[0], _settings()
        if key in known:
            return f"{key} is a setting of another {group} than the one chosen; see configs/{group}/ for which"
        near = difflib.get_close_matches(key, known, 1)
        return f"{key} is not a setting; {f'did you mean {near[0]}?' if near else 'use one of those in configs/'}"
    return text


def _settings() -> list[str]:
    """Every setting that some configuration file has, and the groups."""
    found = set(GROUPS)
    for path in CONFIGS.rglob("*.yaml"):
        place = path.relative_to(CONFIGS).parts
        _keys(OmegaConf.to_container(OmegaConf.load(path)), place[0] if len(place) > 1 else "", found)
    return sorted(found)


def _keys(section: Any, prefix: str, found: set[str]) -> None:
    for key, value in section.items() if isinstance(section, dict) else ():
        name = f"{prefix}.{key}" if prefix else str(key)
        found.add(name)
        _keys(value, name, found)


def _refuse(sentence: str) -> int:
    line = " ".join(sentence.split())  # what a parser says may have several
    Console(stderr=True, soft_wrap=True).print(line, style="bold red", highlight=False, markup=False)
    return USER_ERROR


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
        defaults, given = _defaults(HydraConfig.get().runtime.choices), HydraConfig.get().overrides.task
        for text in given:
            _check_kind(_key(text), _value(config, _key(text)), _value(defaults, _key(text)))
        for section in ("prompts", "measurement", "engine", "experiment"):
            _check_counts(section, self.config.get(section), _value(defaults, section))
        self.typed = {_key(text) for text in given}
        self.overrides = sorted(text.lstrip("+") for text in given if not _is_default(text, config, defaults))
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
            yield
        except NothingToCertify as reason:
            self.say(str(reason))
        except UserError as reason:
            if len(self.tasks()) == 1:
                raise
            self.refused.append(task)
            self.say(f"{task} left out: {reason}")

    def experiment_folder(self, name: str) -> Path:
        """results/<name>, and below it a folder named by whatever differs from the experiment as it ships."""
        differs = [text for text in self.overrides if _key(text) not in ("experiment", "results", "engine", "hydra")]
        folder = self.results / name
        return folder / _folder_name(",".join(differs).replace("/", "_")) if differs else folder

    def perform(self) -> None:
        """The experiment asked for, in place of the stages of a run."""
        from scripts import experiments

        experiments.run(self)

    def behave(self) -> None:
        """The behavioural suites asked for, in place of the stages of a run."""
        commands.run(self)

    def compare(self) -> None:
        """Two runs of the same suites, paired by item; exits with 1 for a regression and with 3 if nothing can be said."""
        sys.exit(commands.gate(self))

    def examine(self) -> None:
        """Is it the model or the library? Prints what was found, keeps it in doctor.json, exits with 1 if all is not well."""
        plan = self._plan(self.tasks()[0])
        from circuits import claims, doctor

        if self.config["circuit"]["kind"] != "discovered" and plan.task.name in plan.identity.circuits:
            plan.circuit = claims.resolve(plan, self.config["circuit"], self._folder(plan.task.name), self.bar)
        report = doctor.examine(plan, self.say)
        doctor.show(report, self.console)
        path = self.results / self.model_settings["name"] / "doctor.json"
        results_io.write(path, report.to_dict())
        self.say(f"Report {path}")
        if not report.healthy:
            sys.exit(UNHEALTHY)

    def measure(self, task: str) -> Path:
        """Stage 1 for one task; returns the folder of its results."""
        plan = self._plan(task)
        from circuits.measure import check, measure, remove_stale

        folder = self._folder(task)
        plan.circuit = self._claim(plan, folder)
        shared = self._folder(task, default=True)
        plan.require_reference()
        check(plan, self._numbers())
        self._announce_replacement(plan, folder)
        arguments = (self.bar, shared if shared != folder else None, self.say)
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
        if self._complete:
            results_io.write(folder / "certificate.json", folded)
        return folded

    def show(self, folder: Path, folded: Mapping[str, Any], documents: calibrate.Documents) -> None:
        """The certificate as a table, and where everything is."""
        evidence = Evidence.load(folder, self.config["calibration"]["common"], ("01", "20"))
        table.show(folded, self._headline(evidence, documents), self.console, self._complete)
        seconds = time.monotonic() - self.started
        written = " · certificate.json" if self._complete else ""
        rate = (
            f", {self.pairs:,} variants x prompts at {self.pairs / seconds:,.0f}/s"
            if self.pairs
            else ", nothing measured anew"
        )
        self.console.print(f"Results {folder}{written} · {seconds:.0f} s{rate}\n", highlight=False, soft_wrap=True)

    def summarise(self) -> None:
        """Pool every certificate under the results folder and run the global M93 over them.

        UserError afterwards if a task was left out.
        """
        from calibrations import summary

        left_out = f"{len(self.refused)} of {len(self.tasks())} tasks left out, for the reasons above: "
        if len(self.refused) == len(self.tasks()):
            raise UserError(left_out + ", ".join(self.refused))
        path = summary.summarise(self.results, self.config["calibration"])
        pooled = results_io.read(path)
        self.console.print(
            f"{len(pooled['circuits'])} certificates pooled in {path}; {summary.sentence(pooled['multiplicity'])}",
            highlight=False,
            soft_wrap=True,
        )
        if self.refused:
            raise UserError(left_out + ", ".join(self.refused))

    @property
    def results(self) -> Path:
        """The folder of all results."""
        return Path(self.config["results"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    def choice(self, *groups: str) -> str:
        """What was typed about these groups, for a command that goes on with the same: " model=local model.path=folder"."""
        typed = [text for text in HydraConfig.get().overrides.task if _key(text).partition(".")[0] in groups]
        return "".join(f" {text}" for text in typed)

    def say(self, sentence: str) -> None:
        """One line for the person who watches."""
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, title: str) -> Iterator[_Bar]:
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
            bar = _Bar(progress, title)
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

    def _plan(self, task: str) -> Any:
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

    def _folder(self, task: str, default: bool = False) -> Path:
        """results/<model>/<task>, and below it a folder named by whatever differs from the default run."""
        folder = self.results / self.model_settings["name"] / task
        if default:
            return folder
        differs = [text for text in self.overrides if not _no_part_of_a_result(_key(text))]
        return folder / _folder_name(",".join(differs).replace("/", "_")) if differs else folder

    def _numbers(self) -> list[str]:
        from circuits.measurements import MEASUREMENTS

        if self._complete:
            return list(MEASUREMENTS)
        read = {*calibrate.measurements_of(self.identifiers)}
        if self.config["circuit"]["kind"] == TRACED:
            read |= {*CONFIRMED_BY}
        return [number for number in MEASUREMENTS if number in read]

    def _headline(self, evidence: Evidence, documents: calibrate.Documents) -> dict[str, str]:
        circuit, prompts = evidence.circuit, evidence.data("01")
        provenance = circuit["provenance"]
        found = {
            "discovered": "found on the discovery split",
            "planted": "claimed of a planted model",
            "traced": "traced on the discovery half",
        }
        origin = found.get(provenance["kind"], provenance["kind"])
        named = circuit["name" if provenance["kind"] == TRACED else "task"]  # of failures the suite is part of the name
        kind = f"{evidence.n_layers} layers x {prompts['n_heads_per_layer']} heads, {self.identity.origin}"
        split = prompts["split"]
        return {
            "subject": f"{named} on {circuit['model']} ({kind})  circuit: {self.config['circuit']['kind']}, "
            f"{len(evidence.circuit_heads)} of {len(evidence.heads)} heads, {origin}",
            "data": f"{split.count('evaluation')} evaluation + {split.count('held_out')} held-out prompts, "
            f"{len(set(prompts['template']))} templates, BOS {prompts['examples'][0]['bos']}, {evidence.metric}",
            "faithfulness": _faithfulness(evidence, documents),
        }


class _Bar:
    """Reports the pairs of one measurement to a rich progress bar."""

    def __init__(self, progress: Progress, title: str) -> None:
        self.progress, self.done, self.total = progress, 0, 0
        self.lock = threading.Lock()  # measurements may report from several threads
        self.started = time.monotonic()
        self.task = progress.add_task(title, total=0, rate="")

    def expect(self, pairs: int) -> None:
        self.total += pairs
        self.progress.update(self.task, total=self.total)

    def advance(self, pairs: int) -> None:
        with self.lock:
            self.done += pairs
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        self.progress.update(self.task, completed=self.done, rate=f"{rate:,.0f}/s")


def _faithfulness(evidence: Evidence, documents: calibrate.Documents) -> str:
    """Faithfulness under every recipe in one line, each with the recipe's name beside it."""
    config = documents[calibrate.PRECONDITIONS]["subject"]["settings"]
    try:
        preconditions.require_behaviour(evidence, config)
        ratios = {m: preconditions.faithfulness(evidence, config, method=m) for m in preconditions.METHODS}
    except Insufficient as missing:
        return f"Faithfulness not reportable: {missing}"
    low, high = ratios[PRIMARY].fieller(0.95)
    others = " · ".join(
        f"{ratio.value:.2f} {method.replace('_', ' ')}" for method, ratio in ratios.items() if method != PRIMARY
    )
    null = preconditions.random_faithfulness(evidence)
    above_floor = preconditions.normalised_faithfulness(evidence)
    return (
        f"Faithfulness {ratios[PRIMARY].value:.2f} [{low:.2f}, {high:.2f}] mean per template and position "
        f"({above_floor:.2f} above all-heads-ablated) · {others}\n"
        f"Random circuits of its size and layers {null.mean():.2f}, largest {null.max():.2f}"
    )


def _selected(select: Any) -> list[str]:
    """Calibration IDs from `all`, one name or a list of names."""
    names = list(registry.CALIBRATIONS) if select == "all" else select if isinstance(select, list) else [select]
    if not names:
        raise UserError("calibration=[] selects nothing; use calibration=all or a list such as [c11,m98]")
    chosen = [registry.get(str(name)).ID for name in names]
    return list(registry.CALIBRATIONS) if "M93" in chosen else chosen  # M93 reads all the others


def _no_part_of_a_result(key: str) -> bool:
    """True of settings that change no number, or that the folder says anyway."""
    return key in NOT_PART_OF_A_RESULT or key.startswith("engine.")


def _folder_name(name: str) -> str:
    """`name`, or its beginning and a digest if it is too long for a file system."""
    if len(name.encode()) <= FOLDER_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name.encode()[: FOLDER_NAME - 13].decode(errors='ignore')}-{digest}"


def _check_kind(name: str, value: Any, default: Any) -> None:
    """UserError if a setting is not of the kind that its default is (a default of null says nothing)."""
    kind = type(default)
    if kind not in KINDS or type(value) is kind or (kind is float and type(value) is int):
        return
    example = f"{name}={default}"
    if kind is dict and default:
        inner, first = next(iter(default.items()))
        example = f"{name}.{inner}={first}"
    raise UserError(f"{name}={value} is not {KINDS[kind]}; write one, for example {example}")


def _check_counts(name: str, value: Any, default: Any) -> None:
    """UserError if a setting below `name` whose default is a whole number, and that is not a seed, is less than 1."""
    if isinstance(value, dict) and isinstance(default, dict):
        for key, item in value.items():
            _check_counts(f"{name}.{key}", item, default.get(key))
    elif type(value) is int and type(default) is int and value < 1 and not name.endswith("seed"):
        raise UserError(f"{name}={value} is too small; use a whole number of at least 1")


def _key(override: str) -> str:
    """The setting that an override is about: "prompts.evaluation" for "+prompts.evaluation=40"."""
    return override.lstrip("+~").partition("=")[0]


def _is_default(override: str, config: DictConfig, defaults: DictConfig) -> bool:
    """True if the override says what the default configuration says anyway."""
    key = _key(override)
    if key in GROUPS:
        return {key: HydraConfig.get().runtime.choices[key]} in defaults.defaults
    return _value(config, key) == _value(defaults, key)


def _value(config: DictConfig, key: str) -> Any:
    """The setting `key` ("prompts.evaluation") as plain data; None if there is none."""
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _defaults(choices: Mapping[str, str]) -> DictConfig:
    """The configuration of these groups' files without any override."""
    config = OmegaConf.load(CONFIGS / "config.yaml")
    for group in GROUPS:
        if choices[group] is None:  # no experiment
            continue
        chosen = OmegaConf.load(CONFIGS / group / f"{choices[group]}.yaml")
        parts = [OmegaConf.load(CONFIGS / group / f"{name}.yaml") for name in chosen.pop("defaults", [])]
        config[group] = OmegaConf.merge(chosen, *parts)
    return config
