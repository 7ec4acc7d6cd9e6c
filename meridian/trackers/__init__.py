"""Who follows a run from afar: nobody, or Weights & Biases (`tracker=wandb`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meridian.trackers.base import FollowedRun, NeverFatal, Tracker, reason
from results_io import UserError

__all__ = ["FollowedRun", "NeverFatal", "Tracker", "open_tracker"]


def open_tracker(settings: Mapping[str, Any], results: Path, say: Callable[[str], object]) -> NeverFatal:
    """The tracker that the `tracker` section of the configuration asks for; nothing is started yet.

    A tracker that cannot be made is said in one line and left out. UserError for an unknown `tracker.mode`.
    """
    if settings["name"] == "none":
        return NeverFatal(Tracker(), say)
    try:
        from meridian.trackers.weights_and_biases import WeightsAndBiases  # imports wandb, which takes a second

        return NeverFatal(WeightsAndBiases(settings, results, say), say)
    except UserError:
        raise
    except Exception as error:
        say(f"W&B cannot follow ({reason(error)}); the run goes on")
        return NeverFatal(Tracker(), say)
