"""One executor: run a sweep of interventions over prompts and return one logit difference for each pair."""

from circuits.engine.choice import choose
from circuits.engine.fused import FusedEngine
from circuits.engine.lens import DeadHookError, LensEngine

__all__ = ["DeadHookError", "FusedEngine", "LensEngine", "choose"]
