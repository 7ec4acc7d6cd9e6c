"""The tasks that circuits are found for, by name: in the embedded models' words, or in those of any tokenizer.

Every module of this folder except HELPERS is a task and defines TASK, which has the file's name.
"""

from __future__ import annotations

from dataclasses import replace

import registries
from circuits.tasks import published
from circuits.tasks.base import METRICS, TEMPLATES, Task
from circuits.tasks.example import Example
from circuits.tasks.published.vocabulary import Vocabulary
from results_io import UserError

__all__ = ["EMBEDDED", "TASKS", "TEMPLATES", "Example", "Task", "Vocabulary", "get", "names"]

HELPERS = ("base", "example", "file", "lexicon", "published", "wordings")
EMBEDDED = ("ioi", "greater_than", "subject_verb_agreement", "gendered_pronoun", "induction")
"""The tasks that pocket was trained on and the planted models were written for; in TASKS the others follow by name."""
REQUIRED = {"TASK": "TASK = Task(name=..., ...), as circuits/tasks/ioi.py has it, or add the module to HELPERS"}


def _find() -> dict[str, Task]:
    """All tasks. Raises UserError for a module without a task, or if its task's name is not that of the module."""
    found = {}
    for module in registries.modules_of(__name__, __path__, REQUIRED, lambda name: name not in HELPERS):
        name = registries.name_of(module)
        if module.TASK.name != name:
            raise UserError(
                f"{registries.file_of(module)} defines the task {module.TASK.name!r}; a task is found by its name, so call "
                f"the task {name!r} or the file {module.TASK.name}.py"
            )
        found[name] = module.TASK
    return registries.in_order(found, EMBEDDED)


TASKS = _find()


def names(vocabulary: Vocabulary | None = None) -> tuple[str, ...]:
    """The tasks that have prompts in this vocabulary; None: the embedded models' words."""
    return tuple(TASKS if vocabulary is None else published.BUILDERS)


def get(
    name: str,
    vocabulary: Vocabulary | None = None,
    corruption: str | None = None,
    bos: bool | None = None,
    metric: str | None = None,
    templates: str | None = None,
) -> Task:
    """The task of this name, its prompts drawn from `vocabulary` (None: the embedded models' words).

    `corruption`, `bos` and `metric` replace the task's own choice; `templates`="more" draws from its larger grammar of wordings.
    Raises UserError for an unknown name or choice.
    """
    require_choices(bos, metric, templates)
    known = names(vocabulary)
    if name not in known and name in names() + tuple(published.BUILDERS):
        whose = "the embedded models' words" if vocabulary is None else "natural language"
        raise UserError(f"task {name} has no prompts in {whose}; use one of {', '.join(known)}, or another model")
    if name not in known:
        raise UserError(f"task {name!r} is unknown; use one of {', '.join(known)}")
    if vocabulary is None:
        task = TASKS[name]
        if corruption not in (None, task.corruption):
            raise UserError(
                f"task.corruption={corruption} is for models that read natural language; task {name} on an embedded model "
                "has one way to corrupt its prompts, so leave it out"
            )
    else:
        task = published.BUILDERS[name].build(vocabulary, corruption)
    task = _with_more_wordings(task) if templates == "more" else task
    return replace(task, bos=task.bos if bos is None else bos, metric=metric or task.metric)


def require_choices(bos: object, metric: object, templates: object) -> None:
    """Raises UserError for a choice that no task has."""
    if bos not in (None, True, False):
        raise UserError(
            f"task.bos={bos} is neither true nor false; write one of them, or null for the task's own choice"
        )
    if metric not in (None, *METRICS):
        raise UserError(f"task.metric={metric} is unknown; use {' or '.join(METRICS)}")
    if templates not in (None, *TEMPLATES):
        raise UserError(f"prompts.templates={templates} is unknown; use {' or '.join(TEMPLATES)}")


def _with_more_wordings(task: Task) -> Task:
    """The task drawn from its larger grammar. Raises UserError if it has none."""
    if task.more is None:
        raise UserError(
            f"prompts.templates=more: task {task.name} has no larger grammar of wordings; leave the setting out, or give the "
            "task one as `more`"
        )
    return replace(task, sample=task.more.sample, templates=task.more.templates)
