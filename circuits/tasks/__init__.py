"""The tasks that circuits are found for, by name."""

from __future__ import annotations

from circuits.tasks import gendered_pronoun, greater_than, induction, ioi, subject_verb_agreement
from circuits.tasks.base import Task
from circuits.tasks.example import Example

__all__ = ["TASKS", "Example", "Task", "get"]

TASKS: dict[str, Task] = {
    module.TASK.name: module.TASK for module in (ioi, greater_than, subject_verb_agreement, gendered_pronoun, induction)
}


def get(name: str) -> Task:
    """Return the task of this name; ValueError names the known tasks if there is none."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}: expected one of {', '.join(TASKS)}")
    return TASKS[name]
