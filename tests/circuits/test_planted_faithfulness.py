"""What each planted claim keeps of the task under each kind of ablation, and what the truth keeps."""

from __future__ import annotations

import pytest

from circuits import planted
from tests.circuits.planted_loop import ABLATIONS, HEADS, claimed, measured

N_FEW = 30
ONE, NOTHING = dict.fromkeys(ABLATIONS, 1.0), dict.fromkeys(ABLATIONS, 0.0)
FAITHFULNESS = {  # sum F / sum D with only the claim intact, in expectation
    "sound": ONE,
    "negative_head": ONE,
    "negative_left_out": dict.fromkeys(ABLATIONS, 1.32),
    "missing_head": dict.fromkeys(ABLATIONS, 0.60),
    "missing_role": dict.fromkeys(ABLATIONS, -0.35),
    "false_head": ONE,
    "overbroad": ONE,
    "roles_swapped": ONE,
    "backup": ONE,
    "backup_claimed_instead": {**NOTHING, "zero": 1.0},
    "gated": {**ONE, "zero": 0.0},
    "one_template": dict.fromkeys(ABLATIONS, 0.90),
    "some_names": dict.fromkeys(ABLATIONS, 0.90),
    "data_subset": ONE,
    "shared": ONE,
    "loud": ONE,
    "random_circuit": NOTHING,
}


pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("variant", planted.VARIANTS)
def test_faithfulness_of_the_claim(variant):
    model, heads = measured(variant, n=N_FEW), claimed(variant)
    for kind in ABLATIONS:
        error = model.monte_carlo_error(heads, kind)
        assert model.faithfulness(heads, kind) == pytest.approx(FAITHFULNESS[variant][kind], abs=0.02 + 3 * error), kind


@pytest.mark.sampled(9)
@pytest.mark.parametrize("variant", planted.VARIANTS)
def test_faithfulness_of_the_truth(variant):
    model, heads = measured(variant, n=N_FEW), planted.truth(variant).heads
    assert model.faithfulness(heads, "mean") == pytest.approx(1, abs=0.02)
    assert model.effect(heads, "mean") == pytest.approx(1, abs=0.03)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("variant", planted.VARIANTS)
def test_no_head_outside_the_truth_matters(variant):
    model, heads = measured(variant, n=N_FEW), planted.truth(variant).heads
    rest = [node for node in HEADS if node not in heads]
    assert abs(model.effect(rest, "pooled_mean")) <= 0.01
    lost = (model.clean - model.ablated(rest, "pooled_mean")) / model.clean.mean()
    # Idle movers copy what noise heads write at BOS: it shifts single prompts.
    assert lost.abs().max() <= 0.1
