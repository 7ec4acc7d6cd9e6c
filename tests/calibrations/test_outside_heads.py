"""P.outside: heads that the claim leaves out, alone, in the worst set, and all of one sign."""

import json

import numpy as np
import pytest

from calibrations import outside_heads
from calibrations.evidence import Evidence
from tests.calibrations.settings import clean_of, config_of, set_intact
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("common")
QUICK = {**CONFIG, "bootstrap_resamples_p": 499}
SMALL = {"n_held_out": 0, "n_random": 20}


def one(subject, config=QUICK):
    (record,) = outside_heads.records(subject, config)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def test_heads_that_do_nothing_pass():
    record = one(evidence(), CONFIG)
    assert (record.metric, record.verdict, record.gating) == ("P.outside", "pass", True)
    assert abs(record.estimate) < 0.02 and record.reasons == ()


@pytest.mark.parametrize("side", ["model", "circuit"])
@pytest.mark.parametrize("share", [0.25, -0.25])
def test_one_outside_head_that_matters_fails_on_either_side_with_either_sign(side, share):
    """On the circuit's side alone: a redundant head that is silent as long as its twin is there."""
    record = one(evidence(outside={("L3H7", side): share}))
    assert record.verdict == "fail" and record.estimate == pytest.approx(share, abs=0.03)
    assert "L3H7" in record.reasons[0] and record.needs == "a claim that accounts for L3H7"


@pytest.mark.parametrize(
    ("kind", "share", "verdict"),
    [
        ("greedy", 0.15, "fail"),
        ("greedy", 0.06, "pass"),
        ("positive", 0.15, "pass"),  # all of one sign may be worth twice as much
        ("positive", 0.3, "fail"),
        ("negative", -0.3, "fail"),
    ],
)
def test_sets_have_limits_of_their_own(kind, share, verdict):
    assert one(evidence(outside={(kind, "model"): share})).verdict == verdict


def test_the_share_is_over_what_all_heads_are_worth():
    subject = evidence(outside={("L3H7", "model"): 0.2})
    empty = subject.ablated("empty", "mean").mean()
    heads = [tuple(head) for head in subject.data("22")["outside"]["heads"]]
    values = np.asarray(subject.data("22")["outside"]["recipes"]["mean"]["model"])[:, subject.rows]
    share = values[heads.index((3, 7))].mean() / (subject.clean.mean() - max(empty, 0.0))
    row = next(r for r in one(subject).companions["worst"] if r["recipe"] == "mean" and r["heads"] == [[3, 7]])
    assert row["share"] == pytest.approx(share) and row["ci90"][0] < share < row["ci90"][1]


def test_a_pair_that_cancels_is_seen_where_the_model_prefers_the_foil_without_heads():
    """A quarter of D each, and F without any head is -2 D: a twelfth of D - F(M without any head), under the limit of .1."""
    docs = documents(outside={("L0H5", "model"): 0.25, ("L1H6", "model"): -0.25})
    record = one(Evidence(set_intact(docs, "empty", -2 * clean_of(docs)), COMMON))
    assert record.verdict == "fail" and {reason.split()[2] for reason in record.reasons} == {"L0H5", "L1H6"}


@pytest.mark.parametrize("primary", ["mean", "resample", "zero"])
def test_no_primary_recipe_hides_what_the_mean_shows(primary):
    """Under resample the head outside is worth nothing: a claim under resample, or under zero, must not leave the mean out."""
    docs = documents(outside={("L3H7", "model"): 0.3})
    recipes = docs["22"]["data"]["outside"]["recipes"]
    place = docs["22"]["data"]["outside"]["heads"].index([3, 7])
    recipes["resample"]["model"][place] = recipes["resample"]["model"][0]
    recipes["zero"] = {side: [values[0]] * len(values) for side, values in recipes["resample"].items()}
    docs["20"]["data"]["circuit"]["primary_recipe"] = primary
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "fail" and record.reasons[0].startswith(
        "left_out: without L3H7 (mean) the model loses 0.3"
    )


@pytest.mark.slow
def test_a_single_head_at_the_limit_is_seldom_passed_and_seldom_failed():
    passes = fails = 0
    for seed in range(60):
        law = {"seed": seed, "noise": 1.0, "n_evaluation": 100, **SMALL}
        verdict = one(evidence(outside={("L3H7", "model"): 0.1}, **law)).verdict
        passes, fails = passes + (verdict == "pass"), fails + (verdict == "fail")
    tolerance = 3 * np.sqrt(60 * 0.05 * 0.95)
    assert passes <= 3 + tolerance and fails <= 3 + tolerance


def test_noise_leaves_it_undecided():
    record = one(evidence(noise=4.0, n_evaluation=40, **SMALL))
    assert record.verdict == "inconclusive" and record.needs.startswith(("about ", "a claim that"))


def test_what_was_not_measured_is_not_taken_for_nothing():
    docs = documents()
    del docs["22"]["data"]["outside"]["recipes"]["resample"]
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "insufficient" and record.needs == "resample in outside.recipes"
    del docs["22"]["data"]["outside"]
    assert one(Evidence(docs, COMMON)).reasons[0].startswith("not_run: measurement 22")
