"""Every planted variant: the model does the task, and its design, truth, claim and configuration fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from circuits import planted
from circuits.circuit import head
from circuits.planted import features, mechanisms
from circuits.tasks import EMBEDDED
from results_io import UserError
from tests.circuits.planted_loop import HEADS, claimed, logit_difference, measured, prompts

CONFIGS = Path(__file__).parents[2] / "configs" / "model" / "planted"


pytestmark = pytest.mark.usefixtures("one_thread_without_gradients")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("variant", planted.VARIANTS)
def test_every_model_does_the_task(variant):
    model = measured(variant)
    assert model.clean.min() > 0
    assert model.clean.mean() >= 5
    end = torch.arange(len(model.scored)), model.scored.end
    top = model.run(model.scored, {})[end].argmax(1)
    assert (top == model.scored.answers[:, 0]).all()


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("task", [task for task in EMBEDDED if task != "ioi"])
def test_the_other_tasks_are_done_as_in_the_sound_model(task):
    scored = prompts(task, 16, seed=1)
    sound = logit_difference(scored, measured("sound").run(scored, {}))
    assert sound.min() > 0
    for variant in {planted.weights_key(name): name for name in planted.VARIANTS}.values():
        found = logit_difference(scored, measured(variant).run(scored, {}))
        if variant == "shared" and task in ("gendered_pronoun", "subject_verb_agreement"):
            assert found.min() > 0  # by other heads, hence by another amount
        else:
            assert found.mean().item() == pytest.approx(sound.mean().item(), rel=0.03), variant


# --- form ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", planted.VARIANTS)
def test_design_is_whole(variant):
    design, told = planted.design_of(variant), planted.truth(variant)
    assert sorted(design.heads) == list(HEADS)
    assert set(design.claims) == set(EMBEDDED) == set(planted.claimed_circuits(variant, seed=2))
    assert told.variant == variant and told.heads == tuple(sorted(set(told.heads))) == design.true_heads
    assert told.pathology.endswith(".") and told.pathology.count(".") >= 1
    assert all(isinstance(design.heads[node], mechanisms.Mechanism) for node in told.heads)


def test_truth_names_the_sound_ones():
    assert {name for name in planted.VARIANTS if planted.truth(name).sound} == {"sound", "negative_head"}
    right = {name for name in planted.VARIANTS if claimed(name) == planted.truth(name).heads}
    assert right == {"sound", "negative_head", "roles_swapped", "data_subset", "shared", "loud"}
    with pytest.raises(UserError, match="unknown planted variant 'perfect': expected one of sound, negative_head"):
        planted.truth("perfect")


@pytest.mark.slow
def test_weights_key_is_shared_by_equal_weights_and_by_no_others():
    of_sound = {"sound", "missing_head", "missing_role", "false_head", "overbroad", "roles_swapped", "random_circuit"}
    groups = (of_sound, {"negative_head", "negative_left_out"}, {"backup", "backup_claimed_instead"})
    by_key: dict[str, list[str]] = {}
    for name in planted.VARIANTS:
        by_key.setdefault(planted.weights_key(name), []).append(name)
    assert {frozenset(names) for names in by_key.values() if len(names) > 1} == set(map(frozenset, groups))
    assert len({planted.weights_key("sound", seed) for seed in range(5)}) == 5
    for first, *rest in by_key.values():
        weights = measured(first).model.state_dict()
        for name in rest:
            state = planted.build(name).model.state_dict()
            assert all(torch.equal(value, weights[key]) for key, value in state.items()), name
    written = [output_weights(names[0]) for names in by_key.values()]
    for i, one in enumerate(written):
        assert not any(torch.equal(one, other) for other in written[:i])


def output_weights(variant: str) -> torch.Tensor:
    return torch.cat([block.attn.c_proj.weight for block in measured(variant).model.transformer.h])


def test_random_circuit_is_drawn_by_the_seed_with_the_layers_of_the_true_one():
    truth = planted.truth("random_circuit").heads
    drawn = [planted.claimed_circuits("random_circuit", seed)["ioi"].heads for seed in range(20)]
    assert drawn[0] == planted.claimed_circuits("random_circuit", 0)["ioi"].heads
    assert len(set(drawn)) >= 18
    for heads in drawn:
        assert [node.layer for node in heads] == [node.layer for node in truth]
        assert not set(heads) & set(truth)


def test_special_features_leave_the_sound_model_as_it_was():
    embedded = planted.build("sound").model.transformer.wte.weight
    marked = planted.build("one_template").model.transformer.wte.weight
    assert embedded[:, features.columns("template_cue")].abs().max() == 0
    assert marked[:, features.columns("template_cue")].sum() == 1
    assert (embedded != marked).sum() == 2  # the mark and what balances it


def test_every_variant_has_its_configuration():
    assert {path.stem for path in CONFIGS.glob("*.yaml")} >= set(planted.VARIANTS)
    for name in planted.VARIANTS:
        text = (CONFIGS / f"{name}.yaml").read_text()
        expected = {"name": f"planted/{name}", "kind": "planted", "variant": name, "seed": 0}
        assert yaml.safe_load(text) == {**expected, "device": None, "dtype": "float32"}
        sentence = " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("# "))
        assert name == "sound" or sentence == planted.truth(name).pathology


def test_claims_carry_signs_orders_and_pathways():
    claims = {name: planted.claimed_circuits(name)["ioi"] for name in planted.VARIANTS}
    assert claims["negative_head"].roles["negative_mover"].sign == -1
    assert "negative_mover" not in claims["negative_left_out"].roles
    assert "s_inhibition" not in claims["missing_role"].roles
    assert claims["roles_swapped"].roles["name_mover"].heads == (head(0, 2), head(0, 5))
    assert claims["roles_swapped"].roles["name_mover"].ordinal == 4
    assert claims["roles_swapped"].roles["name_mover"].assigned_by == "construction"
    (only,) = claims["random_circuit"].roles.values()
    assert only.ordinal is None and only.assigned_by == "none"
    sizes = {name: len(claims[name].heads) for name in ("missing_head", "missing_role", "false_head", "overbroad")}
    assert sizes == {"missing_head": 6, "missing_role": 5, "false_head": 8, "overbroad": 17}
    for name, claim in claims.items():
        assert name == "random_circuit" or claim.pathways
