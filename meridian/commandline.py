"""Translates the command line for Hydra; errors become one sentence."""

from __future__ import annotations

import os

os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors reach `guarded`, which makes one sentence of them
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # threads that spin while they wait run 3.5 times slower on busy cores

import contextlib
import difflib
import functools
import pkgutil
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from meridian import aggregate
from meridian.overrides import CONFIGS, GROUPS
from results_io import UserError

BY_SETTING = {
    "experiment": "experiment",
    "geometry": "geometry",
    "suite": "suites",
}  # the setting: the command that it asks for
RUN = "run"  # what is done if nothing else is asked for
WORDS = tuple(  # that ask for a command: the files of meridian/commands, except those that a setting asks for
    found.name
    for found in pkgutil.iter_modules([str(Path(__file__).with_name("commands"))])
    if found.name not in (RUN, *BY_SETTING.values())
)
FOLDERS = (
    *("results", "baseline", "candidate", "from", "a", "b", "out", "manifest", "hypothesis"),
    *("task.dataset", "check.left_out"),
)
COMPANIONS = "task.companions"  # a list of paths and names
METHODS_KEY = "circuit.method"
PLAIN = re.compile(r"[A-Za-z0-9_./+$%*@?|:-]*")  # what Hydra's grammar takes without quotes
QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)
ITEM = re.compile(rf"\s*({QUOTED.pattern}|[^,]+?)\s*(?:,|$)", re.DOTALL)
BEFORE_A_QUOTE = re.compile(r'(\\*)("|\Z)')  # backslashes that Hydra would take for its own
FAILURES, TRACED = "failures", "traced"  # task made of suite failures; circuit kind that goes with it
FILE = "file"  # task made of the rows of a file
USER_ERROR, CRASHED = 2, 1  # exit codes
USAGE_WIDTH = 120


def arguments(argv: Sequence[str]) -> list[str]:
    """The command line as Hydra wants it.

    `calibration=` selects calibrations, `a,b` as well as `[a,b]`. `method=` sets the search method and implies
    circuit=discovered. task=failures implies circuit=traced. A multirun with tracker=wandb gets one W&B group. The bare word
    `doctor` is a command.
    """
    keys = {text.partition("=")[0] for text in argv}
    implied = []
    if "circuit" not in keys and f"task={FAILURES}" in argv:
        implied = [f"circuit={TRACED}"]
    elif "circuit" not in keys and "method" in keys:
        implied = ["circuit=discovered"]
    if {"-m", "--multirun"} & set(argv) and "tracker=wandb" in argv and "tracker.group" not in keys:
        varied = sorted(text for text in map(_argument, argv) if "," in text and "[" not in text and '"' not in text)
        implied = [*implied, f'tracker.group="{" ".join(varied)}"']  # such as "seed=0,1 task=ioi,greater_than"
    return [*map(_argument, argv), *implied]


def _argument(text: str) -> str:
    key, _, value = text.partition("=")
    if text in WORDS:
        return f"command={text}"
    if key in FOLDERS or key.endswith(".path"):
        return f"{key}={path(value)}"
    if key == COMPANIONS:
        items = ",".join(map(path, ITEM.findall(value[1:-1])))
        return f"{key}=[{items}]" if value[:1] + value[-1:] == "[]" else f"{key}={path(value)}"
    if key == "calibration":
        return f"select=[{value}]" if "," in value and not value.startswith("[") else f"select={value}"
    return f"{METHODS_KEY}={value}" if key == "method" else text


def path(value: str) -> str:
    """A path as Hydra reads it: in quotes if it holds anything that Hydra would parse, as names of result folders (a=1,b=2) do.

    One in quotes already is left as it is.
    """
    if PLAIN.fullmatch(value) or QUOTED.fullmatch(value):
        return value
    escaped = BEFORE_A_QUOTE.sub(lambda found: found[1] * 2 + ('\\"' if found[2] else ""), value)
    return f'"{escaped}"'


def asks_for_help(argv: Sequence[str]) -> bool:
    """True of `run.py --help`; Hydra's own help is --hydra-help."""
    return bool({"-h", "--help"} & set(argv[1:]))


def usage(examples: str) -> str:
    """`examples`, then every group of the configuration with its choices."""
    lines = [
        examples.strip(),
        "",
        "Settings are key=value; -m runs every combination of comma-separated values. Groups:",
        "",
    ]
    for group in sorted(GROUPS - {"calibration", "certificate", "drift", "figures", "gate", "measurement"}):
        lines.append(textwrap.fill(f"{group}={' | '.join(choices(group))}", USAGE_WIDTH, subsequent_indent="    "))
    lines += ["", "Every other setting stands, with its reason, in configs/. Documentation: docs/"]
    return "\n".join(lines)


def choices(group: str) -> list[str]:
    """What a group of the configuration can be set to."""
    folder = CONFIGS / group
    files = (path for path in folder.rglob("*.yaml") if path.stem != "common")  # which is only included by the others
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in files)


def asked(config: DictConfig) -> str:
    """The command: the word that was typed, or else the one that a setting asks for. UserError for an unknown word."""
    word = config["command"]
    if word is None:
        return next((command for setting, command in BY_SETTING.items() if setting in config), RUN)
    if word not in WORDS:
        raise UserError(f"{word} is not a command; use {', '.join(WORDS)}, or settings as key=value")
    return word


class Ended(Exception):
    """Raised when a job of a multirun ends with a code other than 0; Hydra re-raises the first one after all jobs.

    `args`: the exit code, and the sentence of a refusal ("" if the job was not refused).
    """

    @property
    def code(self) -> int:
        return self.args[0]


def guarded(main: Callable[[], Any]) -> int:
    """Run `main`; bad input becomes one sentence on the error stream and exit code 2."""
    try:
        main()
    except Ended as job:
        with contextlib.suppress(UserError):  # a certificate cannot be read; its job said so
            aggregate.finish()
        return _refuse(job.args[1]) if job.args[1] else job.code
    except SystemExit as stop:  # from `refusing`
        return stop.code if isinstance(stop.code, int) else CRASHED
    except (HydraException, OmegaConfBaseException) as error:
        return _refuse(sentence(error))
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped. What was measured is kept; the same command goes on from there.")
        return 130
    except Exception:  # the launcher itself failed: still pool the jobs' results
        with contextlib.suppress(UserError):
            aggregate.finish()
        raise
    return 0


def refusing(main: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Wraps `main`: bad input prints one sentence here, before Hydra adds a line of its own."""

    @functools.wraps(main)
    def run(config: DictConfig) -> None:
        several = HydraConfig.get().mode is RunMode.MULTIRUN
        try:
            main(config)
        except UserError as error:
            code = _refuse(str(error))
            if several:
                raise Ended(code, str(error)) from None
            sys.exit(code)
        except SystemExit as stop:
            if not several:
                raise
            if stop.code:
                raise Ended(stop.code, "") from None
        except Exception:
            if not several:
                raise
            traceback.print_exc()
            raise Ended(CRASHED, "") from None

    return run


def sentence(error: Exception) -> str:
    """What is wrong with the command line, in one sentence with the remedy."""
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        if "=" not in error.override:
            return f"{error.override} is not a command; use {', '.join(WORDS)}, or settings as key=value"
        typed = re.sub("^select=", "calibration=", error.override)
        return (
            f"{typed} is not understood: {text.partition(' See https')[0]}; write key=value, a list as [a,b]; a "
            "text with other characters in double quotes inside the shell's single ones, 'key=\"a; b\"'"
        )
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.partition("/")
        if group == "hydra":
            return (
                f"{'='.join(error.missing_cfg_file.rsplit('/', 1))} is unknown here; submitit's launchers come with "
                "pip install 'meridian-circuits[slurm]', Ray's with 'meridian-circuits[ray]'"
            )
        return f"{group}={name} is unknown; use one of {', '.join(choices(group))}"
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
    line = " ".join(sentence.split())  # a parser's message may span lines
    Console(stderr=True, soft_wrap=True).print(line, style="bold red", highlight=False, markup=False)
    return USER_ERROR
