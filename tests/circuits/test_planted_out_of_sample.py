"""What each out-of-sample design says of its heads is so in the model, by hooks alone; no verdict is asked for."""

from __future__ import annotations

import pytest
import torch

from circuits import planted
from circuits.circuit import head
from circuits.planted import compiler, features
from circuits.planted.features import HELPED_NAMES
from circuits.planted.mechanisms import MLPGate, Relay
from circuits.planted.out_of_sample_heads import CANCELLING_TWELVE
from circuits.tasks import lexicon
from tests.circuits.planted_loop import Measured, claimed, measured

pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")

N_FEW = 24
TRUE = tuple(name for name in planted.OUT_OF_SAMPLE if planted.truth(name).sound)
OTHER_WEIGHTS = tuple({planted.weights_key(name): name for name in planted.OUT_OF_SAMPLE}.values())


def omitted(name: str) -> set:
    return set(planted.truth(name).heads) - set(claimed(name))


# --- what MLPs do --------------------------------------------------------------------------------------------------


def through(mlp: compiler.CompiledMLP, stream: torch.Tensor) -> torch.Tensor:
    hidden = torch.nn.functional.gelu(stream @ mlp.read.T + mlp.bias, approximate="tanh")
    return hidden @ mlp.write


@pytest.mark.parametrize(("held", "written"), [(0.0, 0.0), (0.5, 0.0), (0.75, 0.5), (0.9, 1.0), (2.0, 1.0)])
def test_gate_writes_nothing_below_its_limit_and_no_more_than_its_gain(held, written):
    codes = features.spread_codes(len(lexicon.NAMES), features.NAME_WIDTH)
    stream = torch.zeros(1, 768)
    stream[0, features.columns("draft")] = held * codes[7]
    made = compiler.compile_gate(MLPGate("draft", "answer_name", 0.6, 0.9, 5.0), 768)
    out = through(made, stream)[0, features.columns("answer_name")]
    assert float(out @ codes[7]) == pytest.approx(5 * written, abs=0.15)
    flag = compiler.compile_gate(MLPGate("draft", "name_written", 0.6, 0.9, 1.0), 768)
    assert float(through(flag, stream)[0, features.columns("name_written")]) == pytest.approx(written, abs=0.05)


def test_relay_hands_on_what_it_reads():
    stream = torch.randn(3, 768, generator=torch.Generator().manual_seed(0))
    out = through(compiler.compile_relay(Relay("draft", "answer_name", 2.0), 768), stream)
    handed = out[:, features.columns("answer_name")]
    torch.testing.assert_close(handed, 2 * stream[:, features.columns("draft")], atol=1e-5, rtol=0)
    assert out.count_nonzero() == handed.count_nonzero()


# --- every model -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHER_WEIGHTS)
def test_the_model_does_the_task_by_its_true_heads(name):
    model, true = measured(name, n=N_FEW), planted.truth(name).heads
    assert model.clean.mean() >= 4 and (model.clean > 0).float().mean() >= 0.95
    for kind in ("zero", "mean"):
        # the final norm divides by what loud noise adds to the stream: .85 under zero
        loud = name == "noisy_loud_claimed"
        assert model.faithfulness(true, kind) == pytest.approx(1, abs=0.2 if loud else 0.12), kind
        assert model.effect(true, kind) == pytest.approx(1, abs=0.2 if loud else 0.1), kind


# --- heads that stand in for claimed ones ------------------------------------------------------------------------------

STANDS_IN = {  # claimed heads without which the circuit does nothing, and the share that the model then loses
    "duplicate_left_out": ([(3, 0)], 0.0),
    "three_duplicates_two_claimed": ([(3, 0), (3, 2)], 0.0),
    "two_of_three_left_out": ([(3, 0)], 0.0),
    "or_of_ands_left_out": ([(2, 0)], 0.0),
    "and_of_ors_left_out": ([(2, 0)], 0.0),
    "or_two_stages_left_out": ([(0, 2), (3, 0)], 0.0),
    "many_half_claimed": ([(3, 0), (3, 2), (3, 4)], 0.0),
    "wakes_by_content": ([(2, 0), (2, 2), (2, 5)], 0.0),
    "wakes_by_content_partly": ([(2, 0), (2, 2), (2, 5)], 0.6),
    "wakes_by_silence": ([(2, 0), (2, 2), (2, 5)], 0.2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STANDS_IN)
def test_left_out_heads_do_what_claimed_ones_no_longer_do(name):
    model, heads, (places, share) = measured(name), set(claimed(name)), STANDS_IN[name]
    gone = {head(*place) for place in places}
    assert gone < heads
    assert model.faithfulness(heads, "mean") == pytest.approx(1, abs=0.05)
    assert abs(model.effect(omitted(name), "mean")) <= 0.05
    assert abs(model.faithfulness(heads - gone, "mean")) <= 0.1
    assert model.effect(gone, "mean") == pytest.approx(share, abs=0.08)
    assert model.effect(gone | omitted(name), "mean") >= 0.9


@pytest.mark.slow
def test_which_ablations_wake_a_head():
    movers = [head(2, index) for index in (0, 2, 5)]
    lost = {
        name: [measured(name).effect(movers, kind) for kind in ("zero", "mean", "resample")]
        for name in ("wakes_by_zero", "wakes_by_content", "wakes_by_silence")
    }
    assert lost["wakes_by_zero"] == pytest.approx([0.4, 1, 1], abs=0.1)
    assert lost["wakes_by_content"] == pytest.approx([0, 0, 0], abs=0.1)
    assert lost["wakes_by_silence"] == pytest.approx([0.2, 0.2, 1], abs=0.1)


# --- heads that are missing, too many, or cancel ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place", "worth"),
    [
        ("swapped_mover", (3, 5), 0.15),
        ("through_mlp_left_out", (3, 5), 0.15),
        ("negative_left_out_small", (3, 7), -0.14),
        ("both_needed_left_out", (3, 2), 1.0),
        ("three_needed_left_out", (3, 5), 0.98),
        ("cancelling_pair", (3, 1), 0.5),
        ("cancelling_pair", (3, 6), -0.5),
        ("cancelling_pair_weak", (3, 1), 0.15),
        ("cancelling_pair_weak", (3, 6), -0.15),
        ("cancelling_three", (3, 1), 0.4),
        ("cancelling_three", (3, 4), -0.2),
        ("cancelling_three", (3, 6), -0.2),
    ],
)
def test_a_head_left_out_is_worth_what_the_design_says(name, place, worth):
    assert head(*place) in omitted(name)
    for kind in ("zero", "mean"):
        assert measured(name).effect([head(*place)], kind) == pytest.approx(worth, abs=0.02), kind


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cancelling_pair", "cancelling_pair_weak", "cancelling_three", "cancelling_twelve"])
def test_what_cancels_is_not_missed(name):
    assert measured(name).faithfulness(claimed(name), "mean") == pytest.approx(1, abs=0.02)


@pytest.mark.slow
def test_each_of_twelve_is_small_and_those_of_a_sign_are_not():
    model = measured("cancelling_twelve")
    for node in CANCELLING_TWELVE:
        assert 0.05 <= abs(model.effect([node], "mean")) <= 0.08
    assert model.effect(CANCELLING_TWELVE[::2], "mean") == pytest.approx(0.42, abs=0.04)
    assert model.effect(CANCELLING_TWELVE[1::2], "mean") == pytest.approx(-0.42, abs=0.04)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("noisy_claimed", 0.08, 0.2),
        ("noisy_two_claimed", 0.1, 0.3),
        ("noisy_faint_claimed", 0.04, 0.1),
        ("noisy_loud_claimed", 0.16, 0.5),
    ],
)
def test_noise_that_is_claimed_moves_single_prompts_and_hardly_their_mean(name, least, most):
    model = measured(name)
    idle = set(claimed(name)) - set(planted.truth(name).heads)
    noise = (model.clean - model.ablated(sorted(idle), "mean")) / model.clean.mean()
    assert abs(noise.mean()) <= 0.06 and least <= noise.std() <= most


@pytest.mark.slow
def test_idle_heads_do_nothing():
    true = set(planted.truth("all_heads").heads)
    for name in ("idle_two", "all_heads", "idle_through_mlp_claimed"):
        model = measured(name)
        idle = set(claimed(name)) - (true if name == "all_heads" else set(planted.truth(name).heads))
        assert idle, name
        for kind in ("mean", "resample"):
            changed = model.clean - model.ablated(idle, kind)
            assert changed.abs().max() <= 0.05 * model.clean.mean(), (name, kind)


@pytest.mark.slow
def test_one_claimed_head_does_nothing_alone():
    for name in ("one_head", "both_needed_left_out", "three_needed_left_out", "one_of_each_pair_claimed"):
        assert measured(name).faithfulness(claimed(name), "mean") <= 0.02, name


# --- position ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kept"), [("position_all", -0.32), ("position_part", 0.45)])
def test_a_place_survives_what_keeps_it(name, kept):
    model, heads = measured(name), claimed(name)
    for kind in ("mean", "resample"):
        assert model.faithfulness(heads, kind) == pytest.approx(1, abs=0.02), kind
    for kind in ("zero", "pooled_mean", "noise"):
        assert model.faithfulness(heads, kind) == pytest.approx(kept, abs=0.05), kind
        assert model.effect(omitted(name), kind) == pytest.approx(1 - kept, abs=0.12), kind


def test_order_bias_helps_in_one_order_and_harms_in_the_other():
    model, heads = measured("order_bias"), claimed("order_bias")
    first = torch.tensor([name.endswith("ABBA") for name in model.scored.templates])
    assert 15 <= first.sum() <= 33
    found = [model.faithfulness(heads, "mean", rows) for rows in (first, ~first)]
    assert found == pytest.approx([1 / 1.3, 1 / 0.7], abs=0.06)


# --- parts of the data ---------------------------------------------------------------------------------------------------


def rows_of(model: Measured, name: str) -> torch.Tensor:
    if name == "helped_frame":
        return torch.tensor(["friends_found" in template for template in model.scored.templates])
    if name == "helped_names":
        return torch.tensor([answer in HELPED_NAMES for answer in model.scored.factors["answer"]])
    words = [[lexicon.VOCABULARY[token] for token in row] for row in model.scored.clean.tolist()]
    return torch.tensor([any(word in lexicon.OBJECTS[::6] for word in row) for row in words])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share"), [("helped_frame", 0.667), ("helped_names", 0.606), ("helped_objects", 0.606)]
)
def test_help_shows_on_its_part_of_the_prompts_alone(name, share):
    model, heads = measured(name), claimed(name)
    part = rows_of(model, name)
    assert 3 <= part.sum() <= 12
    assert model.faithfulness(heads, "mean", part) == pytest.approx(share, abs=0.08)
    assert model.faithfulness(heads, "mean", ~part) == pytest.approx(1, abs=0.03)
    assert model.faithfulness(heads, "mean") > 0.85


# --- true claims -----------------------------------------------------------------------------------------------------------


def worth(model: Measured, node, others: list) -> float:
    """The most that the head is worth, alone or where some of those of its role and layer's kind are gone."""
    sets = [[], others, *([one] for one in others if len(others) < 8), others[: len(others) // 2 + 2]]
    return max(abs(model.effect([*gone, node], "zero") - model.effect(gone, "zero")) for gone in sets)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUE)
def test_a_true_claim_is_enough_and_each_of_its_heads_counts(name):
    model, claim = measured(name, n=N_FEW), planted.claimed_circuits(name)["ioi"]
    for kind in ("mean", "zero", "pooled_mean", "noise", "resample"):
        assert model.faithfulness(claim.heads, kind) == pytest.approx(1, abs=0.12), kind
    for node in claim.heads:
        others = [one for one in claim.heads if one != node and (one.layer > 1) == (node.layer > 1)]
        assert worth(model, node, others) >= 0.07, node
