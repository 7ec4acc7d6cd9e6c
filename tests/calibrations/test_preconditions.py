"""Preconditions: behaviour, denominator, two-sided faithfulness, random circuits."""

import json

import numpy as np
import pytest

from calibrations import preconditions
from calibrations.evidence import Evidence
from calibrations.statistics import Insufficient, mean_test
from tests.calibrations.settings import clean_of, config_of, set_intact
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("common")


def by_metric(subject):
    return {record.metric: record for record in preconditions.records(subject, CONFIG)}


def test_a_planted_circuit_meets_all_five_with_the_smallest_p_that_200_random_circuits_allow():
    found = by_metric(evidence())
    assert [record.verdict for record in found.values()] == ["pass"] * 5
    assert all(record.gating and record.published_verdict == "none" for record in found.values())
    assert found["P.random_circuits"].p == pytest.approx(1 / 201)
    assert found["P.faithfulness"].p == pytest.approx(1 / 10000)
    json.dumps([record.to_dict() for record in found.values()], allow_nan=False)


def test_faithfulness_is_the_ratio_of_means_and_not_clipped():
    docs = documents()
    theta = preconditions.faithfulness(Evidence(set_intact(docs, "circuit", 1.7 * clean_of(docs)), COMMON), CONFIG)
    assert theta.value == pytest.approx(1.7)


@pytest.mark.parametrize(
    ("theta", "verdict", "reason"),
    [(1.5, "fail", "over_faithful"), (0.6, "fail", "not_faithful"), (1.2, "inconclusive", "over_faithful")],
)
def test_faithfulness_is_judged_two_sided(theta, verdict, reason):
    record = by_metric(evidence(faithfulness=theta))["P.faithfulness"]
    assert record.verdict == verdict
    assert record.reasons[0].startswith(reason)


def test_a_circuit_no_better_than_random_ones_fails_below_their_median_only():
    worse = by_metric(evidence(faithfulness=0.1, random_faithfulness=0.4))["P.random_circuits"]
    level = by_metric(evidence(faithfulness=0.2, random_faithfulness=0.15))["P.random_circuits"]
    assert (worse.verdict, level.verdict) == ("fail", "inconclusive")
    with pytest.raises(Insufficient, match="not_faithful"):
        preconditions.require_faithful(evidence(faithfulness=0.6, random_faithfulness=0.6), CONFIG)


def test_random_circuit_p_by_brute_force():
    subject = evidence(faithfulness=0.2, random_faithfulness=0.15)
    values, index = subject.random_circuits
    theta = subject.ablated("circuit")[index].sum() / subject.clean[index].sum()
    above = sum(row.sum() / subject.clean[index].sum() >= theta for row in values)
    assert preconditions.random_circuits(subject, CONFIG).p == pytest.approx((1 + above) / 201)


def test_twenty_random_circuits_are_the_least_that_can_reach_alpha():
    few, enough = (by_metric(evidence(n_random=n))["P.random_circuits"] for n in (19, 20))
    assert few.verdict == "insufficient" and few.reasons[0].startswith("min_p_unreachable")
    assert enough.verdict == "pass" and enough.p == pytest.approx(1 / 21)
    assert few.needs == "at least 20 random circuits"


def test_an_absent_behaviour_gives_no_number():
    found = by_metric(evidence(mean_clean=-1.0))
    assert all(record.verdict == "insufficient" for record in found.values())
    assert all(record.reasons[0].startswith("behaviour_absent") for record in found.values())
    assert found["P.faithfulness"].estimate is None  # the peer returns 0.0 (a fake number)


def test_a_denominator_near_zero_is_refused_with_the_prompts_it_would_take():
    subject = evidence(mean_clean=0.1)
    record = by_metric(subject)["P.denominator"]
    assert record.verdict == "insufficient" and record.reasons[0].startswith("denominator")
    t = mean_test(subject.clean[:, None], subject.clusters).t[0]
    assert record.needs == f"about {int(np.ceil(400 * (3 / t) ** 2))} prompts"


def test_completeness_is_one_minus_the_rest():
    docs = documents()
    subject = Evidence(set_intact(docs, "complement", 0.3 * clean_of(docs)), COMMON)
    assert preconditions.completeness(subject, CONFIG).value == pytest.approx(0.7)


def test_one_head_among_eight_cannot_reach_alpha_however_many_draws():
    one = {"only": {"heads": [[0, 5]], "ordinal": 4, "sign": 1}}
    record = by_metric(evidence(roles=one, n_random=200))["P.random_circuits"]
    assert record.verdict == "insufficient" and record.reasons[0].startswith("min_p_unreachable: 8 circuits")
    two = {"only": {"heads": [[0, 5], [1, 1]], "ordinal": 4, "sign": 1}}  # 8 x 8 = 64 circuits: p at least 1/64
    record = by_metric(evidence(roles=two, n_random=200))["P.random_circuits"]
    assert record.verdict == "pass" and record.p == pytest.approx(1 / 64)


def test_a_claim_of_every_head_is_told_to_leave_some_out():
    whole = {"all": {"heads": [[0, head] for head in range(8)], "ordinal": 4, "sign": 1}}
    record = by_metric(evidence(roles=whole, n_random=1))["P.random_circuits"]
    assert record.verdict == "insufficient" and record.needs == "a claim of fewer heads"
    assert record.reasons[0] == "min_p_unreachable: the circuit holds every head of its layers, so no other is like it"


def test_one_head_among_all_heads_can_reach_alpha():
    """What 20 draws where a layer has too few heads: p is at least one over all of them."""
    docs = documents(roles={"only": {"heads": [[0, 5]], "ordinal": 4, "sign": 1}}, n_random=200)
    docs["20"]["data"]["random_circuits"]["any_layers"] = True
    found = Evidence(docs, COMMON)
    assert preconditions.matching_circuits(found) == len(found.heads) > 20
    record = by_metric(found)["P.random_circuits"]
    assert record.verdict == "pass" and record.p == pytest.approx(1 / len(found.heads))
    assert record.companions["any_layers"] is True
    assert preconditions.null_words(True).startswith("its size, from any layers")


SAME = dict.fromkeys(("zero", "mean", "mean_pooled", "resample", "noise"), 0.95)


def test_faithfulness_is_judged_under_the_recipes_that_stay_on_the_distribution():
    assert by_metric(evidence(by_method=SAME))["P.faithfulness"].verdict == "pass"
    over = by_metric(evidence(by_method=SAME | {"resample": 1.5}))["P.faithfulness"]
    assert over.verdict == "fail" and over.reasons[0].startswith("over_faithful: resample")
    for recipe in ("zero", "mean_pooled", "noise"):
        found = by_metric(evidence(by_method=SAME | {recipe: 0.4}))
        assert found["P.faithfulness"].verdict == "pass" and found["P.faithfulness"].reasons == ()
        every = found["P.faithfulness_every_recipe"]
        assert every.verdict == "fail" and every.reasons[0].startswith(f"not_faithful: {recipe.replace('_', ' ')} ")


def test_a_claim_is_judged_under_the_recipe_that_it_names():
    docs = documents(by_method=SAME | {"mean": 0.4, "mean_pooled": 0.9})
    docs["20"]["data"]["circuit"]["primary_recipe"] = "mean_pooled"
    record = by_metric(Evidence(docs, COMMON))["P.faithfulness"]
    assert record.verdict == "pass" and record.companions["recipes"] == ["mean_pooled", "resample"]
    assert record.estimate == pytest.approx(0.9, abs=0.01)
