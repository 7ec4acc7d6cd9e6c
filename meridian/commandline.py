"""Translates the command line for Hydra; errors become one sentence."""

from __future__ import annotations

import os

os.environ["HYDRA_FULL_ERROR"] = "1"  # errors reach `guarded`, which turns each into one sentence
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # threads that spin while they wait run 3.5 times slower on busy cores

import contextlib
import difflib
import functools
import pkgutil
import posixpath
import re
import sys
import textwrap
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from rich.console import Console

import interruption
import results_io
import shown_text
from meridian import aggregate, overrides, ranges
from meridian.aggregate import JobEnded
from meridian.overrides import CONFIGS, GROUPS
from results_io import UserError

BY_SETTING = {
    "experiment": "experiment",
    "geometry": "geometry",
    "suite": "suites",
}  # setting: the command that it implies
RUN = "run"  # the default command
WORDS = tuple(  # words that name a command: the files of meridian/commands, except those that a setting implies
    found.name
    for found in pkgutil.iter_modules([str(Path(__file__).with_name("commands"))])
    if found.name not in (RUN, *BY_SETTING.values())
)
FOLDERS = (
    *("results", "baseline", "candidate", "from", "a", "b", "out", "manifest", "hypothesis", "labels"),
    *("task.dataset", "check.left_out", "judge.rubric", "corpus", "follow", "shadow.redact"),
    *("contamination.paraphrases", "contamination.fresh", "contamination.reference"),
)
LISTS = ("task.companions", "runs")  # of paths and names
METHODS_KEY = "circuit.method"
PLAIN = re.compile(r"[A-Za-z0-9_./+$%*@?|:-]*")  # what Hydra's grammar takes without quotes
NO_TEXT = re.compile(
    r"true|false|[+-]?(nan|inf|[0-9_]*\.?[0-9_]+\.?(e[+-]?[0-9_]+)?)", re.IGNORECASE
)  # names of folders, too
REFERENCE, BACKSLASH = "${", "\\"
STRUCTURED = ("[", "{", '"', "'")  # how a value begins that Hydra has to parse
QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", re.DOTALL)
ITEM = re.compile(rf"\s*({QUOTED.pattern}|[^,]+?)\s*(?:,|$)", re.DOTALL)
BEFORE_A_QUOTE = re.compile(r'(\\*)("|\Z)')  # backslashes that Hydra would read as escapes
QUOTING = "no viable alternative at input"  # start of those parser messages that quote the typed text
MERGING = "Error merging override "  # Hydra's words before the override
GROUPED = " looks like a config group override, but config group "  # and after it
FAILURES, TRACED = "failures", "traced"  # the task made of suite failures; the circuit kind that it implies
FILE = "file"  # the task made of a file's rows
USER_ERROR, CRASHED = 2, aggregate.CRASHED  # exit codes
NOT_THERE = re.compile(r"Key '([^']+)' is not in struct")  # as OmegaConf says it
REFERRED = re.compile(r"Interpolation key '([^']+)' not found")  # likewise
RESOLVING = re.compile(r"Error resolving interpolation '([^']*)'")  # of a group's choice
LISTED = 20  # of more choices than these, a refusal names only those with a similar spelling
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
FLAGS = {  # the options of Hydra that are allowed here, each with the words that may follow it
    **dict.fromkeys(("-m", "--multirun", "-h", "--help", "--hydra-help", "--version"), ()),
    **dict.fromkeys(("-c", "--cfg"), ("job", "hydra", "all")),
    **dict.fromkeys(("-i", "--info"), ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")),
}
OF_HYDRA = re.compile(r"[+~]*hydra[./=@]")  # Hydra's own settings, of which these may be set:
LAUNCHING = re.compile(
    r"\+{0,2}hydra(/(launcher|sweeper|callbacks)|\.(launcher|sweeper|sweep)\.(?!.*_target_)[\w.]+)=.*", re.DOTALL
)
RESOLVER = re.compile(r"\$\{\s*([\w.]+)\s*:\s*([^,}]*)(,)?")  # ${oc.env:NAME} or ${oc.env:NAME,default}
FROM_ENVIRONMENT = "oc.env"
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
SWEPT_RANGE = re.compile(r"range\(([^()]*)\)")
OF_ADDRESS = (
    r"(?:^[+~]*[\w./]*|[{,(]\s*[\"']?[\w./]*)url[\w.]*[\"']?\s*[=:]"  # the name of a setting that takes an address
)
SECRET_IN_ADDRESS = re.compile(  # user:password@, a key in a query, any query where an address is asked for
    rf"://[^\s/?#]*@|://[^\s/:]*:(?!\d+/)\S*@|://\S*\?\S*(?:key|token|secret|passw|auth)[\w-]*=|^[^=]*://\S*\?|{OF_ADDRESS}(?!\?{{3}}$)(?:[^/]*@|[^?#]*:[^/]*@|.*\?)",
    re.IGNORECASE | re.DOTALL,
)
NAMED = re.compile(r"[+~]*([\w./-]+)(?:@[\w.]*)?=")  # an override that begins with its setting
ASKERS = ("model", "judge")  # sections with an address and a key
SECRETS = r"[\w./-]*(?:[_-]key|apikey|token(?!s)|secret|password)[\w.]*"  # settings whose values may be a secret
VALUE = r"(?:\[[^][]*\]|\{[^{}]*\}|[(\"']\S+(?:\s(?!is\b)\S+)*|\S+)"  # a bracket or quote that nothing closes runs on
OF_SECRETS = re.compile(
    rf"(?<![\w./])({SECRETS}\s?=|[{{,]\s*[\"']?{SECRETS}[\"']?\s*:|^[+~]*{SECRETS}:|--?{SECRETS}\s(?!is\b))\s*{VALUE}",
    re.IGNORECASE,
)
BY_SUITE = ("gate.margins", "gate.floors")  # tables that ship empty, so that Hydra takes no key unless it is added
WORD = 200  # characters of a word in a refusal; a longer one is cut
LONG_WORD = re.compile(rf"\S{{{2 * WORD},}}")
_said: set[str] = set()  # sentences that this process has printed since the command began
CASTS = re.compile(
    r"(?<![\w./-])(int|float|str|bool|json_str)\s*\("
)  # Hydra's functions, which round and rewrite values
SWEEPS = re.compile(r"(choice|range|interval|glob|sort|shuffle|tag)\s*\(.*", re.DOTALL)  # those of a multirun
FILES = (".yaml", ".yml")
MOST_RUNS = 10_000  # of one setting in a multirun
USAGE_WIDTH = 120


def arguments(argv: Sequence[str]) -> list[str]:
    """The command line as Hydra wants it.

    Hydra has no bare words, no settings that imply others and no paths without quotes, so these are rewritten for it.
    UserError for arguments that Hydra would accept but no run can use.

    `calibration=` selects calibrations, `a,b` as well as `[a,b]`. `method=` sets the search method and implies
    circuit=discovered. task=failures implies circuit=traced. A multirun with tracker=wandb gets one W&B group. A bare word
    of `WORDS`, such as `doctor`, is a command.
    """
    keys = {text.partition("=")[0] for text in argv}
    implied = []
    if "circuit" not in keys and f"task={FAILURES}" in argv:
        implied = [f"circuit={TRACED}"]
    elif "circuit" not in keys and "method" in keys:
        implied = ["circuit=discovered"]
    several = {"-m", "--multirun"} & set(argv)
    for text in argv:
        if several:
            _require_a_run(text)
        else:
            _require_one_value(text)
    if several and "tracker=wandb" in argv and "tracker.group" not in keys:
        varied = sorted(text for text in map(_argument, argv) if "," in text and "[" not in text and '"' not in text)
        implied = [*implied, f'tracker.group="{" ".join(varied)}"']  # such as "seed=0,1 task=ioi,greater_than"
    return [*map(_argument, argv), *implied]


def _argument(text: str) -> str:
    key, _, value = text.partition("=")
    if text in WORDS:
        return f"command={text}"
    if not (key in FOLDERS or key in LISTS or key.endswith(".path")):
        _require_bounded(text)
    if key.lstrip("+") in GROUPS - {"calibration"} and value.startswith(("[", "{")):
        raise _not_one_name(key.lstrip("+"), value)
    if key.lstrip("+") in GROUPS - {"calibration"}:
        for name in value.split(","):
            _require_a_name(key.lstrip("+"), name)
    if key in FOLDERS or key.endswith(".path"):
        return f"{key}={path(value)}"
    if key in LISTS:
        items = ",".join(map(path, ITEM.findall(value[1:-1])))
        return f"{key}=[{items}]" if value[:1] + value[-1:] == "[]" else f"{key}={path(value)}"
    if key == "calibration":
        return f"select=[{value}]" if "," in value and not value.startswith("[") else f"select={value}"
    if key == "method":
        key = METHODS_KEY
    elif key.startswith(f"{overrides.ADDED}.") or (key in BY_SUITE and value.startswith("{")):
        key = f"+{key}"
    elif not value:
        return text
    return f"{key}={value if value.isascii() or value.startswith(STRUCTURED) else _quoted(value)}"


def _not_one_name(group: str, value: str) -> UserError:
    """The error for a list or a section given to a configuration group, which takes the name of one of its files."""
    typed = ranges.shown(f"{group}={value}")
    if value.startswith("{"):
        return UserError(
            f"{typed} is a section, and {group} takes a name; write {group}=NAME, and settings as {group}.key=value"
        )
    return UserError(
        f"{typed} is a list, and {group} takes one name; write {group}=NAME, or -m {group}=A,B for a run of each"
    )


def _require_a_name(group: str, value: str) -> None:
    """UserError for a file's name or a path in place of a choice: Hydra would take it, and records would show it."""
    parts = value.strip().strip("'\"").split("/")
    if REFERENCE in value or not ({"", ".", ".."} & set(parts[:-1]) or parts[-1] == ".." or parts[-1].endswith(FILES)):
        return
    name = posixpath.normpath("/".join(parts)).strip("/")
    for ending in FILES:
        name = name.removesuffix(ending)
    remedy = f"write {group}={name}" if name in choices(group) else _remedy(name, group)
    raise UserError(
        f"{ranges.shown(f'{group}={value}')} is a file's name or a path, and {group} takes a name; {remedy}"
    )


def as_typed(given: Sequence[str]) -> list[str]:
    """Overrides as a user types them: `calibration=` where Hydra was given `select=`, and no `verbose=`."""
    return [re.sub("^select=", "calibration=", text) for text in given if overrides.setting(text) != "verbose"]


def path(value: str) -> str:
    """A path as Hydra reads it: quoted if Hydra would parse part of it, as in names of result folders (a=1,b=2).

    A path that is already quoted is left as it is.
    """
    if (PLAIN.fullmatch(value) and not NO_TEXT.fullmatch(value)) or QUOTED.fullmatch(value):
        return value
    return _quoted(value)


def _quoted(value: str) -> str:
    """The text quoted so that Hydra and OmegaConf take it literally, references to other settings included."""
    escaped = BEFORE_A_QUOTE.sub(lambda found: found[1] * 2 + ('\\"' if found[2] else ""), value)
    return f'"{escaped.replace(REFERENCE, BACKSLASH + REFERENCE)}"'


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
    for group in sorted(GROUPS - {"calibration", "certificate", "drift", "figures", "gate", "measurement", "shadow"}):
        lines.append(textwrap.fill(f"{group}={' | '.join(choices(group))}", USAGE_WIDTH, subsequent_indent="    "))
    lines += ["", "Every other setting stands, with its reason, in configs/. Documentation: docs/"]
    return "\n".join(lines)


def choices(group: str) -> list[str]:
    """The values that a configuration group can be set to."""
    folder = CONFIGS / group
    files = (path for path in folder.rglob("*.yaml") if path.stem != "common")  # common.yaml is only part of others
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in files)


def asked(config: DictConfig) -> str:
    """The command: the word that was typed, or else the one that a setting asks for. UserError for an unknown word."""
    word = config.get("command")
    if word is None:
        return next((command for setting, command in BY_SETTING.items() if setting in config), RUN)
    if word not in WORDS:
        raise UserError(f"{word} is not a command; use {', '.join(WORDS)}, or settings as key=value")
    return word


def guarded(main: Callable[[], Any], typed: Sequence[str] | None = None) -> int:
    """Run `main`; bad input becomes one sentence on the error stream and exit code 2.

    `typed`: the arguments to hand to Hydra. If it is None, Hydra reads `sys.argv`.
    """
    _said.clear()
    try:
        return _guarded(main, typed)
    except KeyboardInterrupt:
        return interruption.say()
    except Exception:
        if interruption.asked():
            return interruption.say()
        raise


def _guarded(main: Callable[[], Any], typed: Sequence[str] | None) -> int:
    try:
        if typed is not None:
            _require_folder()
            for text in typed:
                _require_no_secret(text)
            sys.argv = [sys.argv[0], *arguments(_readable(typed))]
        main()
    except JobEnded as job:
        with contextlib.suppress(UserError):  # for a certificate that cannot be read; its job has reported it
            aggregate.finish()
        elsewhere = job.reason and job.reason not in _said  # in another process, whose error stream may be a file
        return _refuse(job.reason) if elsewhere else job.code
    except SystemExit as stop:  # from `refusing`
        return stop.code if isinstance(stop.code, int) else CRASHED
    except UserError as error:
        return _refuse(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        return _refuse(sentence(error))
    except Exception as error:
        if interruption.asked():
            raise
        if reason := results_io.disk_problem(error):
            return _refuse(reason)
        if not _in_the_run(error) and (culprit := _refused_by_hydra(sys.argv[1:])):
            return _refuse(_not_understood(culprit))
        with contextlib.suppress(UserError):  # the launcher itself failed: still pool the jobs' results
            aggregate.finish()
        raise
    return 0


def _readable(typed: Sequence[str]) -> list[str]:
    """The arguments with options first, as Hydra's parser wants them.

    UserError for an argument with control characters, an unknown option, or an option without the word it needs.
    """
    options, settings, rest = [], [], list(typed)
    while rest:
        text = rest.pop(0)
        if CONTROL.search(text):
            raise UserError(
                f"{ranges.shown(text)} holds a control character or bytes that are not UTF-8; take them out"
            )
        if not text.startswith("-"):
            settings.append(text)
            continue
        name, given, word = text.partition("=")
        if name not in FLAGS or (given and not FLAGS[name]):
            raise UserError(
                f"{ranges.shown(text)} is not an option; write settings as key=value, and -m for a multirun"
            )
        options.append(name)
        if words := FLAGS[name]:
            word = word if given else (rest.pop(0) if rest else "")
            if word not in words:
                raise UserError(
                    f"{ranges.shown(f'{name} {word}'.strip())} is not possible; write {name} {' or '.join(words)}"
                )
            options.append(word)
    return [*options, *settings]


def _require_no_secret(text: str) -> None:
    """UserError, which shows only the setting's name, for an address with a password or a query.

    It comes before all other checks, because most of them show what was typed.
    """
    if SECRET_IN_ADDRESS.search(text):
        named = NAMED.match(text)
        name = named[1] if named else "an address"
        section = name.partition(".")[0]
        variable = f"{section}.api_key_env" if section in ASKERS else "api_key_env"
        raise UserError(f"{name} holds a password or a query, which records would show; name the key in {variable}")


def _require_bounded(text: str) -> None:
    """Refuse what Hydra would accept without a limit. UserError in four cases:

    - one of Hydra's own settings that does not belong to its launchers, sweepers or callbacks;
    - a value that a resolver computes, unless it reads an environment variable that is set or has a default;
    - a value that a function of Hydra computes, such as int(3.5), which would be 3;
    - a sweep over a range of more than MOST_RUNS values.
    """
    typed, name = ranges.shown(text), overrides.setting(text)
    if OF_HYDRA.match(text) and not LAUNCHING.fullmatch(text):
        raise UserError(
            f"{typed} is a setting of Hydra itself; of those use hydra/launcher=, hydra.launcher., hydra.sweeper. and "
            "hydra.sweep., as docs/scale-out.md does"
        )
    for resolver, variable, default in RESOLVER.findall(text):
        if resolver != FROM_ENVIRONMENT:
            raise UserError(
                f"{typed} computes a value by {ranges.shown(resolver)}; write the value, or ${{oc.env:NAME}}"
            )
        if not default and variable not in os.environ:
            raise UserError(
                f"{typed} takes the value of {ranges.shown(variable)}, which the environment does not have; set it, or write "
                "the value"
            )
    if cast := CASTS.search(QUOTED.sub("", text.partition("=")[2])):
        raise UserError(
            f"{typed} is computed by {cast[1]}(), and a setting is a plain value; write the value itself, or in double quotes "
            "inside the shell's single ones if it is a text"
        )
    for inside in SWEPT_RANGE.findall(text):
        if _numbers_in(inside) > MOST_RUNS:
            raise UserError(
                f"{name} is swept over {ranges.shown(inside)}, which are more than {MOST_RUNS} runs; take fewer"
            )


def _require_one_value(text: str) -> None:
    """UserError for a function of Hydra that gives several values, outside a multirun."""
    key, _, value = text.partition("=")
    if not (key in FOLDERS or key.endswith(".path")) and SWEEPS.fullmatch(value.strip()):
        raise UserError(f"{ranges.shown(text)} stands for several values; write one value, or -m for a run of each")


def _require_a_run(text: str) -> None:
    """UserError for a sweep over nothing, with which a multirun would end without a run. Hydra refuses what cannot be parsed."""
    try:
        swept = OverridesParser.create().parse_override(text)
    except (HydraException, OmegaConfBaseException):
        return
    if not swept.is_sweep_override():
        return
    among = swept.value()
    names = [name.partition("/")[0] for name in choices(swept.key_or_group)]
    if not (among.filter(names) if isinstance(among, Glob) else any(True for _ in swept.sweep_iterator())):
        what = f"the choices of {swept.key_or_group}" if names else "values to take"
        raise UserError(
            f"{ranges.shown(text)} finds nothing among {what}, so there would be no run; write what to sweep over"
        )


def _numbers_in(inside: str) -> float:
    """How many values range(...) has in a multirun; 0 if `inside` holds no number, which Hydra refuses."""
    parts = [float(part) for part in inside.split(",") if NUMBER.fullmatch(part.strip())]
    if not parts:
        return 0.0
    first, last, step = (*([0.0] if len(parts) == 1 else []), *parts, 1.0)[:3]
    return abs(last - first) / (abs(step) or 1.0)


def _require_folder() -> None:
    """UserError if the working directory no longer exists: relative paths cannot be resolved without it."""
    try:
        Path.cwd()
    except OSError as error:
        raise UserError(
            f"the working directory cannot be used ({error.strerror}); change to a folder that is there"
        ) from error


def _in_the_run(error: BaseException) -> bool:
    """True if a command raised the error; False if Hydra raised it while composing the settings."""
    codes = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(code.co_filename == __file__ and code.co_name == refusing.__name__ for code in codes)


def _refused_by_hydra(given: Sequence[str]) -> str | None:
    """The first override that Hydra alone cannot compose, or None."""
    for text in given:
        if not text.startswith("-"):
            try:
                overrides.composed([text])
            except Exception:  # of any kind
                return text
    return None


def refusing(main: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Wraps `main`: bad input prints one sentence here, before Hydra adds a line of its own.

    Ctrl-C raises an exception in `main` and while results are pooled. While Hydra composes the settings, Ctrl-C ends the
    process instead. Nothing is written at that point, and Hydra might turn a KeyboardInterrupt into an error and go on after it.
    """

    @functools.wraps(main)
    def refusing(config: DictConfig) -> None:
        several = HydraConfig.get().mode is RunMode.MULTIRUN
        try:
            with interruption.caught():
                main(config)
        except SystemExit as stop:
            if not several:
                raise
            if stop.code:
                raise JobEnded(stop.code, "") from None
        except Exception as error:
            if interruption.asked():
                raise KeyboardInterrupt from error
            if reason := _reason(error):
                if several:
                    code = USER_ERROR if reason in _said else _refuse(reason)
                    raise JobEnded(code, reason) from None
                sys.exit(_refuse(reason))
            if not several:
                raise
            traceback.print_exc()
            raise JobEnded(CRASHED, "") from None

    return refusing


def _reason(error: Exception) -> str | None:
    """The sentence for an error that is not a bug (wrong input or a disk problem); None for any other error."""
    if isinstance(error, OmegaConfBaseException):
        return sentence(error)
    return str(error) if isinstance(error, UserError) else results_io.disk_problem(error)


def _remedy(name: str, group: str) -> str:
    """All choices of the group; if there are more than LISTED, those with a similar spelling and where to find the others."""
    known = choices(group)
    if len(known) <= LISTED:
        return f"use one of {', '.join(known)}"
    near = difflib.get_close_matches(name, known)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    return f"{meant}use one of the {len(known)} in configs/{group}/"


def sentence(error: Exception) -> str:
    """What is wrong with the command line, in one sentence with the remedy."""
    text = " ".join(str(error).split())
    if isinstance(error, OverrideParseException):
        if "=" not in error.override:
            return f"{ranges.shown(error.override)} is not a command; use {', '.join(WORDS)}, or settings as key=value"
        return _not_understood(error.override, text.partition(" See https")[0])
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.partition("/")
        if group == "hydra":
            return (
                f"{'='.join(error.missing_cfg_file.rsplit('/', 1))} is unknown here; submitit's launchers come with "
                "pip install -e '.[slurm]', Ray's with -e '.[ray]'"
            )
        return f"{group}={name} is unknown; {_remedy(name, group)}"
    if text.startswith("Could not override"):
        key = text.split("'")[1]
        if key == METHODS_KEY:
            return "method= is that of a search; run it with circuit=discovered, or leave it out"
        return str(overrides.unknown(key))
    if GROUPED in text:  # name@package=value
        return str(overrides.unknown(text.split(maxsplit=2)[1].partition("=")[0]))
    if missing := NOT_THERE.match(text):
        return str(overrides.unknown(missing[1]))
    if missing := REFERRED.match(text):
        name = ranges.shown(missing[1])
        return f"${{{name}}} stands for the value of a setting, and {name} is not one; write the value, or the name of a setting"
    if isinstance(error, InterpolationResolutionError):
        remedy = "write the value, or ${NAME} with a setting's name"
        return f"a value with ${{...}} stands for another setting, and none is there; {remedy}"
    if resolving := RESOLVING.match(text):
        return f"{ranges.shown(resolving[1])} cannot stand for a choice of configs/; write the choice"
    if text.startswith(MERGING):
        return f"{ranges.shown(text.removeprefix(MERGING))} is of another kind than the setting; write what configs/ has there"
    return text.partition(" full_key:")[0]


def _not_understood(override: str, reason: str = "") -> str:
    """`reason`: the parser's message. It is shown only if it quotes the typed text; its other messages name parser classes."""
    typed = ranges.shown(re.sub("^select=", "calibration=", override))
    quotes = reason.startswith(QUOTING) and not OF_SECRETS.match(override.lstrip("+~"))
    why = f": {ranges.shown(reason)}" if quotes else ""
    return (
        f"{typed} is not understood{why}; write key=value, a list as [a,b]; a "
        "text with other characters in double quotes inside the shell's single ones, 'key=\"a; b\"'"
    )


def _refuse(sentence: str) -> int:
    _said.add(sentence)
    line = shown_text.visible(" ".join(sentence.split()), kept="")  # a parser's message may span lines
    line = OF_SECRETS.sub(r"\1***", line)
    line = LONG_WORD.sub(lambda found: f"{found[0][:WORD]}...", line)
    Console(stderr=True, soft_wrap=True).print(line, style="bold red", highlight=False, markup=False)
    return USER_ERROR
