"""The seven planted heads among 144 of GPT-2 small's shape, measured and judged as a run does."""

from __future__ import annotations

from pathlib import Path

import pytest

from circuits import planted
from meridian import config_files, overrides
from meridian.experiments import out_of_sample
from meridian.experiments.out_of_sample import ConstructionDeclaration

EVALUATION, HELD_OUT = 100, 50  # fewer than a run's 400 and 200: minutes in place of an hour
CLAIM = ConstructionDeclaration(
    name="gpt2_shape",
    kind="shape",
    planted=planted.truth("gpt2_shape").pathology,
    claim="all seven heads",
    truth="true_complete",
    reason="faithful and complete under every recipe, as the sound design",
    lowest_tier=2,
)


@pytest.mark.slow
@pytest.mark.longest
def test_the_true_circuit_among_144_heads_is_refused_nothing(tmp_path) -> None:
    """Tier 2 on these prompts, of which C13 would need 10 in each group of names; every other gate of tier 3 passes."""
    config = config_files.plain(overrides.composed(["experiment=out_of_sample", "model.device=cpu"]))
    own = out_of_sample.laid_over(config["experiment"])
    own |= {"prompts": {"evaluation": EVALUATION, "held_out": HELD_OUT}}
    config["experiment"] = own
    found = out_of_sample.row(CLAIM, 0, config, Path(tmp_path))
    assert found["met"] and found["tier"] >= 2, found["blocked_by"]
    blocking = [(gate["metric"], gate["verdict"]) for gate in found["blocked_by"]]
    assert found["tier"] > 2 or blocking == [("C13.measurement_invariance", "insufficient")], found["blocked_by"]
    assert found["heads"] == 7
