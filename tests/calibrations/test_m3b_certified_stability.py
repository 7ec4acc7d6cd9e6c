"""M3b: published subsample rule, and the per-head test against 2 % of the logit difference."""

import json

import numpy as np
import pytest
from scipy import stats

from calibrations.evidence import Evidence
from calibrations.m3b_certified_stability import calibrate, subsample_counts
from tests.calibrations.settings import config_of, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("m3b")
ROLES = {
    "writer": {"heads": [[0, 1], [1, 2], [2, 3]], "ordinal": 4, "sign": 1},
    "opponent": {"heads": [[3, 0]], "ordinal": 4, "sign": -1},
}


def one(subject):
    (record,) = calibrate(subject, CONFIG)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def test_a_planted_circuit_is_certified():
    record = one(evidence())
    assert (record.published_value, record.published_verdict, record.verdict) == (1.0, "pass", "pass")
    assert record.estimate == 1.0 and record.p < 1e-6
    assert all(head["label"] == "robust" for head in record.companions["heads"].values())


def test_subsamples_without_replacement_by_exhaustion():
    """10 prompts, 80 %: 45 subsets; the rate of positive means of 1000 draws is close to the exact share."""
    x = np.array([1, -0.5, 0.8, 0.3, 0.2, -0.1, 0.9, 0.4, -0.2, -2.9])
    from itertools import combinations

    exact = np.mean([x[list(rows)].mean() > 0 for rows in combinations(range(10), 8)])
    assert subsample_counts(x[:, None], CONFIG)[0] / 1000 == pytest.approx(exact, abs=0.05)
    assert 0.2 < exact < 0.8


def test_the_published_rule_certifies_heads_without_any_effect():  # peer D25: 20.5 % of null heads, unseeded
    noise = np.random.default_rng(0).normal(size=(100, 400))
    certified = np.mean(np.array(subsample_counts(noise, CONFIG)) >= 950)
    assert certified == pytest.approx(stats.norm.sf(0.822), abs=0.06)
    assert subsample_counts(noise, CONFIG) == subsample_counts(noise, CONFIG)


def test_noise_heads_are_not_certified():
    """Every head has a true effect of 1 % of the logit difference: positive, but nothing to speak of."""
    docs = documents()
    rng = np.random.default_rng(0)
    docs["21"]["data"]["effect"] = rng.normal(0.05, 0.2, (600, 32)).tolist()
    record = one(Evidence(docs, COMMON))
    assert (record.published_value, record.published_verdict) == (1.0, "pass")
    assert record.verdict == "fail" and record.estimate == 0.0
    assert record.companions["robust_above_zero"] == 1.0


def test_a_real_negative_head_has_its_own_sign_hypothesis():  # peer D25
    record = one(evidence(roles=ROLES))
    opponent = record.companions["heads"]["3.0"]
    assert record.published_value == 0.75
    assert opponent["expected_sign"] == -1 and opponent["subsample_rate"] == 0.0
    assert opponent["label"] == "robust" and record.estimate == 1.0


def test_a_head_against_its_declared_sign_is_negative():
    roles = {**ROLES, "opponent": {**ROLES["opponent"], "sign": 1}}
    docs = documents(roles=ROLES)
    docs["20"]["data"]["circuit"]["roles"]["opponent"]["sign"] = roles["opponent"]["sign"]
    assert one(Evidence(docs, COMMON)).companions["heads"]["3.0"]["label"] == "negative"


def test_partial_conjunction_by_hand():
    subject = evidence(effect=0.12, effect_noise=1.0, n_evaluation=200)
    record = one(subject)
    p = np.sort([head["p"] for head in record.companions["heads"].values()])
    assert record.p == pytest.approx(min(1.0, (7 - 4 + 1) * p[3]))


def test_an_overbroad_circuit_fails_though_the_published_rule_certifies_its_decoys():
    """7 real heads and 10 decoys of 0.5 % effect (overbroad of models.md passes as published at .59)."""
    roles = {
        "real": {"heads": [[0, h] for h in range(7)], "ordinal": 1, "sign": 1},
        "decoys": {"heads": [[1, h] for h in range(8)] + [[2, 0], [2, 1]], "ordinal": 4, "sign": 1},
    }
    docs = documents(roles=roles)
    effect = np.random.default_rng(1).normal(0.025, 0.15, (600, 32))
    effect[:, :7] += 1.0
    docs["21"]["data"]["effect"] = effect.tolist()
    record = one(Evidence(docs, COMMON))
    assert record.published_verdict == "pass"
    assert record.verdict == "fail" and record.estimate == pytest.approx(7 / 17)


def test_false_pass_rate_of_effects_at_the_threshold():
    passes = 0
    for seed in range(100):
        docs = documents(seed=seed, n_evaluation=100, n_held_out=0, n_random=20)
        effect = np.random.default_rng(500 + seed).normal(0.1, 1.0, (100, 32))
        docs["21"]["data"]["effect"] = effect.tolist()
        passes += one(Evidence(docs, COMMON)).verdict == "pass"
    assert passes <= 5


def test_clusters_count_as_one():
    docs = documents(n_clusters=5, n_templates=2)
    names = sorted(set(docs["01"]["data"]["cluster"]))
    bump = dict(zip(names, (0.9, -0.6, 0.8, -0.5, 0.4), strict=True))
    effect = np.array([bump[name] for name in docs["01"]["data"]["cluster"]])[:, None] + np.zeros((600, 32))
    docs["21"]["data"]["effect"] = effect.tolist()
    record = one(Evidence(docs, COMMON))
    assert record.published_verdict == "pass" and record.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("law", "reason"),
    [
        ({"n_evaluation": 19, "n_templates": 2}, "n_prompts"),
        ({"roles": {"only": {"heads": [[1, 1]], "ordinal": 1, "sign": 1}}}, "n_heads"),
        ({"faithfulness": 0.1}, "not_faithful"),
        ({"mean_clean": -1.0}, "behaviour_absent"),
    ],
)
def test_insufficient(law, reason):
    record = one(evidence(**law))
    assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(effect=0.2)
    assert one(Evidence(docs, COMMON)).to_dict() == one(Evidence(shuffled(docs), COMMON)).to_dict()
