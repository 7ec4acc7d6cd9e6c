"""How a task corrupts its prompts: one of the ways that it lists, by name."""

from __future__ import annotations

from collections.abc import Mapping

from results_io import UserError


def choose(task: str, corruption: str | None, known: Mapping[str, str]) -> str:
    """Return the corruption of this name, or the first of `known` if it is None. Raises UserError if it is unknown."""
    if corruption is None:
        return next(iter(known))
    if corruption not in known:
        raise UserError(f"unknown corruption {corruption!r} of task {task}: expected one of {', '.join(known)}")
    return corruption
