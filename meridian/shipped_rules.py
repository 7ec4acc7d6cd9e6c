"""The rules as the project ships them, ready for release: default settings, each task's changes to them, and the code."""

from __future__ import annotations

from hydra import initialize_config_dir

from calibrations import rules
from calibrations.rules import Release, Rules
from meridian import config_files, overrides
from results_io import UserError

TASKS = overrides.CONFIGS / "task"


def shipped(version: str) -> Release:
    """The shipped rules as a release of this version. It cannot be called inside a run, where Hydra is initialized already."""
    with initialize_config_dir(str(overrides.CONFIGS), version_base=None):
        default = _composed()
        of_tasks = {path.stem: _composed(f"task={path.stem}").settings for path in sorted(TASKS.glob("*.yaml"))}
    differ = {
        name: {one.key: one.value for one in Rules(own, {}).differences(Rules(default.settings, {}))}
        for name, own in of_tasks.items()
    }
    return Release(version, default, {name: own for name, own in differ.items() if own})


def unreleased() -> list[str]:
    """The differences between the shipped and the released rules, one line each; the reason if the file cannot be read."""
    try:
        stored = Release.read()
    except UserError as reason:
        return [str(reason)]
    now = shipped(stored.version)
    found = [one.text for one in now.rules.differences(stored.rules)]
    tasks = [name for name in {**now.tasks, **stored.tasks} if now.tasks.get(name) != stored.tasks.get(name)]
    return [*found, *(f"settings that task={name} makes of them" for name in sorted(tasks))]


def _composed(*given: str) -> Rules:
    return rules.rules_of(config_files.plain(overrides.composed(given)))
