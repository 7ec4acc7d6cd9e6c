"""How many claims were tried: counted by weights and task, every tier shown, copies once."""

from __future__ import annotations

import pytest

from calibrations import claims_tried
from calibrations.claims_tried import ClaimsTried
from calibrations.rules import RuleDifference, Standing

RELEASED, CHANGED = Standing("0.3", "r"), Standing("0.3", "c", (RuleDifference("seed", 1, 0),))


def certificate(tier, circuit="c", prompts="p", weights="w", task="ioi", model="pocket", standing=RELEASED):
    subject = {
        "model": model,
        "model_sha256": weights,
        "task": task,
        "circuit_sha256": circuit,
        "prompts_sha256": prompts,
    }
    return {"subject": subject, "tier": tier, "rules": standing.to_dict()}


def test_all_claims_are_counted_with_their_tiers_lowest_first():
    tried = [certificate(tier, circuit=f"c{i}") for i, tier in enumerate([1, 0, None, 2, 0])]
    (found,) = claims_tried.of(tried)
    assert found.sentence == "5 claims tried about ioi on pocket: tiers none 0 0 1 2"
    assert claims_tried.about(tried[3]["subject"], tried) == found
    assert claims_tried.of(tried[:1])[0].sentence == "1 claim tried about ioi on pocket: tiers 1"


def test_other_seeds_counts_and_rules_are_other_claims_and_copies_are_not():
    first = certificate(4)
    others = [certificate(0, prompts="other"), certificate(4, standing=CHANGED), certificate(4)]
    (found,) = claims_tried.of([first, *others])
    assert found.tiers == ((0, True), (4, False), (4, True))
    assert found.sentence == "3 claims tried about ioi on pocket: tiers 0 4* 4 (* under rules that are not released)"


def test_an_edited_copy_with_another_tier_does_not_hide_the_first():
    (found,) = claims_tried.of([certificate(0), certificate(4)])
    assert [tier for tier, _ in found.tiers] == [0, 4]


def test_other_weights_and_tasks_count_apart_and_another_name_of_the_same_weights_does_not():
    tried = [
        certificate(1),
        certificate(2, weights="v"),
        certificate(3, task="other"),
        certificate(4, "d", model="mine"),
    ]
    assert [(one.model, one.task, one.tiers) for one in claims_tried.of(tried)] == [
        ("mine", "ioi", ((1, True), (4, True))),
        ("pocket", "ioi", ((2, True),)),
        ("pocket", "other", ((3, True),)),
    ]


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_stored_reads_back_and_does_not_depend_on_the_order(order):
    tried = [certificate(tier, circuit=str(tier)) for tier in (2, None, 0)][::order]
    (found,) = claims_tried.of(tried)
    stored = found.to_dict()
    assert stored == {
        **{"model": "pocket", "model_sha256": "w", "task": "ioi", "tried": 3},
        **{"tiers": [None, 0, 2], "under_released_rules": [True, True, True]},
    }
    assert ClaimsTried.read(stored) == found
