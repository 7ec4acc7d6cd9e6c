"""Compares overrides with the defaults: which differ, whether their types are right, and which folder they name."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

from meridian import config_files, config_groups, ranges
from results_io import UserError

CONFIGS = Path(__file__).parents[1] / "configs"
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
    "geometry",
    "judge",
    "gate",
    "drift",
    "shadow",
    "tracker",
    "figures",
    "preset",
}
WHERE_ROWS_ARE = ("task.path", "task.dataset", "task.subset", "task.part", "task.columns")  # results hold what they say
NOT_PART_OF_A_RESULT = (
    "task",
    "model",
    "select",
    "results",
    "engine",
    "hydra",
    "command",
    "force",
    "tracker",
    "figures",
    "verbose",
    "from",
    "a",
    "b",
    "model.device",
    "model.path",
    "model.name",
    *WHERE_ROWS_ARE,  # the folder's name has the digest of the rows
)
SHOWN_CHOICES = 3  # that a refusal names
FOLDER_NAME = 160  # bytes; file systems allow 255, and some tools add to a name
KINDS = {
    **{bool: "true or false", int: "a whole number", float: "a number", str: "a text"},
    **{list: "a list", dict: "a section"},
}
SELECTION = "select"  # the setting that selects calibrations: one name, or a list of names
EVERY = f"{SELECTION}=all"  # the default
# a model's settings in sentences: model.path, and those of an endpoint without "model."
MODEL_SETTING = re.compile(
    r"(?<![\w./-])(?:model\.|(?=base_url|api_key_env)|(?<=endpoint needs )|(?<=endpoint setting ))(\w+)"
)
MODEL_CHOICE = re.compile(r"(?<![\w./-])model(?==local\b)")
_alone = threading.RLock()  # Hydra's state is global to the process, and a server has many threads
ADDED = "model.intervention"  # heads to silence, for suites: a section that may be given but is in no configuration


def setting(override: str) -> str:
    """The setting that an override is about: "prompts.evaluation" for "+prompts.evaluation=40"."""
    return override.lstrip("+~").partition("=")[0]


def canonical(override: str, config: DictConfig) -> str:
    """The override in one canonical spelling, because a multirun passes "x=true" on as "x=True"."""
    name = setting(override)
    value = None if name in GROUPS else value_of(config, name)
    if name in GROUPS or isinstance(value, (dict, str)):
        return override.lstrip("+")
    return f"{name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def is_default(override: str, config: DictConfig, defaults: DictConfig) -> bool:
    """True if the override sets the value that the default configuration has anyway."""
    name = setting(override)
    if name in GROUPS:
        return {name: HydraConfig.get().runtime.choices[name]} in config_files.read(CONFIGS / "config.yaml").defaults
    return value_of(config, name) == value_of(defaults, name)


def value_of(config: DictConfig, name: str) -> Any:
    """The setting `name` ("prompts.evaluation") as plain data; None if there is none."""
    value = OmegaConf.select(config, name)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def composed(given: Sequence[str] = ()) -> DictConfig:
    """The configuration that Hydra composes for these overrides instead of the command line's."""
    with _alone:
        return _composed(given)


def _composed(given: Sequence[str], with_hydra: bool = False) -> DictConfig:
    """`with_hydra`: include Hydra's own section. Hydra is not initialized again inside a command, where it already is."""
    if GlobalHydra.instance().is_initialized():
        return compose("config", list(given), return_hydra_config=with_hydra)
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("config", list(given), return_hydra_config=with_hydra)


@contextlib.contextmanager
def in_a_command(given: Sequence[str]) -> Iterator[DictConfig]:
    """A context with the configuration of these overrides, in which Hydra's state is that of a command with them.

    It works inside a command as well as outside, and restores Hydra's state afterwards. Other threads wait until then.
    """
    with _alone:
        hydra = HydraConfig.instance()
        before = hydra.cfg
        try:
            config = _composed(given, with_hydra=True)
            hydra.set_config(config)
            with open_dict(config):
                del config["hydra"]
            yield config
        finally:
            hydra.cfg = before


def composed_with_choices(given: Sequence[str]) -> tuple[DictConfig, Mapping[str, str]]:
    """(the configuration as from `composed`, {group: the choice it is set to})."""
    with _alone:
        config = _composed(given, with_hydra=True)
    choices = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]
    return config, choices


@contextlib.contextmanager
def called(names: Mapping[str, str]) -> Iterator[None]:
    """A context in whose UserErrors a model's settings have the names that were typed: {"path": "judge.path"} for model.path.

    "model" stands for the choice of the model itself: {"model": "judge"} for model=local. Other names are left as they are.
    """
    try:
        yield
    except UserError as error:
        text = MODEL_SETTING.sub(lambda found: names.get(found[1], found[0]), str(error))
        error.args = (MODEL_CHOICE.sub(names.get("model", "model"), text), *error.args[1:])
        raise


def group(name: str, choice: str, given: Sequence[str] = ()) -> dict[str, Any]:
    """One configuration group with the given choice, as plain data; `given`: overrides of its settings."""
    return value_of(composed([f"{name}={choice}", *given]), name)


def defaults(choices: Mapping[str, str], config: DictConfig, given: Sequence[str]) -> DictConfig:
    """The configuration of these choices without any other override; it is `config` itself if only choices were `given`.

    UserError for a file in configs/calibration/ without exactly its own section.
    """
    config_groups.check()
    if all(setting(text) in GROUPS or text == EVERY for text in given):
        return config
    return _defaults(tuple(f"{name}={choices[name]}" for name in sorted(GROUPS) if choices[name] is not None))


@cache
def _defaults(given: tuple[str, ...]) -> DictConfig:
    """The configuration for these choices, composed once each; callers must not change it."""
    return composed(given)


def check_kind(name: str, value: Any, default: Any) -> None:
    """UserError if a setting's type differs from that of its default; a default of null allows any type.

    The composed defaults are the schema. A dataclass schema would repeat some 600 settings, and its errors would name Python
    types.
    """
    kind = type(default)
    if kind not in KINDS or type(value) is kind or (kind is float and type(value) is int) or name == SELECTION:
        return
    example = f"{name}={default}"
    if kind is str and isinstance(value, (bool, int, float)):
        example = f"in quotes, '{name}=\"{ranges.shown(value)}\"'"
    if kind is dict and default:
        inner, first = next(iter(default.items()))
        example = f"{name}.{inner}={first}"
    raise UserError(f"{name}={ranges.shown(value)} is not {KINDS[kind]}; write one, for example {example}")


def check_takes_nothing_away(override: str) -> None:
    """UserError for ~key, because every setting is read."""
    if override.startswith("~"):
        raise UserError(
            f"{ranges.shown(override)} takes a setting away that a run reads; write {ranges.shown(setting(override))}=value, or "
            "leave it out"
        )


def check_is_there(override: str, defaults: DictConfig) -> None:
    """UserError for an override that adds a setting which nothing reads (+key=value)."""
    name = setting(override)
    added = override.startswith("+") and f"{name}.".startswith(f"{ADDED}.")
    if not added and not is_there(name, defaults):
        raise unknown(name)


def is_there(name: str, config: DictConfig) -> bool:
    """True if the configuration has the setting `name`, whatever its value, or if it is a group."""
    section, _, key = name.rpartition(".")
    found = OmegaConf.select(config, section) if section else config
    return name in GROUPS or (isinstance(found, DictConfig) and key in found)


def check_counts(name: str, value: Any, default: Any) -> None:
    """UserError if `name`, or an integer in its section, is less than 1; seeds are exempt."""
    if isinstance(value, dict) and isinstance(default, dict):
        for key, item in value.items():
            check_counts(f"{name}.{key}", item, default.get(key))
    elif type(value) is int and type(default) is int and value < 1 and not name.endswith("seed"):
        raise UserError(f"{name}={value} is too small; use a whole number of at least 1")


def is_known(name: str) -> bool:
    """True if some configuration file has this setting."""
    return name in _settings()


def unknown(name: str) -> UserError:
    """The error for a setting that the chosen configuration does not have."""
    group, known = name.partition(".")[0], _settings()
    if group == "hydra":
        return _unknown_to_hydra(name)
    if name in known:
        return UserError(
            f"{name} is a setting of another {group} than the one chosen; choose {_choices_with(name)}, or leave it out"
        )
    near = difflib.get_close_matches(name, [one for one in known if not one.startswith("hydra.")], 1)
    remedy = f"did you mean {near[0]}?" if near else "use one of those in configs/"
    return UserError(f"{ranges.shown(name)} is not a setting; {remedy}")


def _unknown_to_hydra(name: str) -> UserError:
    part = name.split(".")[1:2]
    if part in (["launcher"], ["sweeper"]):
        return UserError(
            f"{ranges.shown(name)} is not a setting of the {part[0]} chosen; choose one that has it by hydra/{part[0]}=, as "
            "docs/scale-out.md does, or leave it out"
        )
    return UserError(
        f"{ranges.shown(name)} is not a setting of Hydra; docs/scale-out.md has those in use, so leave it out"
    )


def _choices_with(name: str) -> str:
    """What to choose for a setting that only some files of a group have, such as "circuit=file"."""
    group, _, key = name.partition(".")
    folder = CONFIGS / group
    having = [
        f"{group}={path.relative_to(folder).with_suffix('').as_posix()}"
        for path in sorted(folder.rglob("*.yaml"), key=lambda path: path.with_suffix(""))
        if OmegaConf.select(OmegaConf.load(path), key, default=folder) is not folder
    ]
    return " or ".join(having[:SHOWN_CHOICES]) or f"one of those in configs/{group}/ that have it"


@cache
def _settings() -> tuple[str, ...]:
    """The names of all settings in configuration files, and of the groups."""
    found = set(GROUPS)
    for path in CONFIGS.rglob("*.yaml"):
        place = path.relative_to(CONFIGS).parts
        if path != ranges.FILE:
            _keys(OmegaConf.to_container(OmegaConf.load(path)), place[0] if len(place) > 1 else "", found)
    return tuple(sorted(found))


def _keys(section: Any, prefix: str, found: set[str]) -> None:
    for key, value in section.items() if isinstance(section, dict) else ():
        name = f"{prefix}.{key}" if prefix else str(key)
        found.add(name)
        _keys(value, name, found)


def no_part_of_a_result(name: str) -> bool:
    """True for a setting that cannot change a result, or that the result's path already names."""
    sections = ("engine.", "tracker.", "figures.", "verify.", "check.", "doctor.", "serve.", "limits.")
    return name in NOT_PART_OF_A_RESULT or name.startswith(sections)


def folder_name(name: str) -> str:
    """`name`, shortened and with a digest if it is longer than FOLDER_NAME bytes."""
    if len(name.encode()) <= FOLDER_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name.encode()[: FOLDER_NAME - 13].decode(errors='ignore')}-{digest}"


def below(folder: Path, differs: Iterable[str]) -> Path:
    """`folder` itself or, if there are overrides `differs`, the folder below it that is named by them."""
    name = ",".join(differs).replace("/", "_")
    return folder / folder_name(name) if name else folder
