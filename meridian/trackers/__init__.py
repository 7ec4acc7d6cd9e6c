"""Trackers that follow a run: none, or one from the table TRACKERS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from meridian.trackers.base import FollowedRun, NeverFatal, Tracker, reason
from results_io import UserError

NONE = "none"
TRACKERS = {  # {`tracker.name`: (name in sentences, module, class)}; the module is imported on request
    "wandb": ("W&B", "meridian.trackers.weights_and_biases", "WeightsAndBiases"),
}

__all__ = ["FollowedRun", "NeverFatal", "Tracker", "open_tracker"]


def open_tracker(settings: Mapping[str, Any], results: Path, say: Callable[[str], object]) -> NeverFatal:
    """The tracker that the `tracker` section of the configuration asks for; nothing is started yet.

    A tracker that cannot be made is reported in one line and left out. UserError for an unknown `tracker.name` or
    `tracker.mode`.
    """
    name = settings["name"]
    if name == NONE:
        return NeverFatal(Tracker(), say)
    if name not in TRACKERS:
        raise UserError(f"tracker.name={name} is unknown; use {' or '.join([NONE, *TRACKERS])}")
    title, module, kind = TRACKERS[name]
    try:
        return NeverFatal(getattr(import_module(module), kind)(settings, results, say), say)
    except UserError:
        raise
    except Exception as error:
        say(f"{title} cannot follow ({reason(error)}); the run goes on")
        return NeverFatal(Tracker(), say)
