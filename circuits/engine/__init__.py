"""One executor: run a sweep of interventions over prompts and return one logit difference for each pair."""

from circuits.engine.fused import FusedEngine
from circuits.engine.lens import DeadHookError, LensEngine
from circuits.engine.selection import DEFAULTS, choose

__all__ = ["DEFAULTS", "DeadHookError", "FusedEngine", "LensEngine", "choose"]
