"""E1b: 1 - divergence of zero, mean and noise."""

import json

import pytest

from calibrations import m98_ablation_invariance
from calibrations.e1b_method_invariance import calibrate
from calibrations.evidence import Evidence
from tests.calibrations.settings import clean_of, config_of, set_intact, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("e1b")


def one(subject):
    (record,) = calibrate(subject, CONFIG)
    json.dumps(record.to_dict(), allow_nan=False)
    return record


def test_value_is_one_minus_the_largest_divergence():
    docs = documents()
    for method, theta in {"zero": 0.85, "mean": 0.80, "noise": 0.70}.items():
        set_intact(docs, "circuit", theta * clean_of(docs), (method,))
    record = one(Evidence(docs, COMMON))
    assert record.published_value == pytest.approx(0.85) and record.published_verdict == "pass"
    assert record.estimate == pytest.approx(0.85)
    assert record.ci90 == pytest.approx((0.85, 0.85)) and record.verdict == "pass"


def test_noise_not_resample_is_judged():
    noisy = evidence(by_method={"noise": 0.5})
    assert one(noisy).verdict == "fail" and one(noisy).published_verdict == "fail"
    assert m98_ablation_invariance.calibrate(noisy, config_of("m98"))[0].verdict == "pass"
    assert one(evidence(by_method={"resample": 0.5})).verdict == "pass"


def test_what_a_role_s_knock_out_shows_is_no_part_of_it():
    docs = documents()
    for method, kept in {"zero": 0.99, "mean_pooled": 0.02, "resample": 0.9, "noise": 0.0}.items():
        set_intact(docs, "without:late", kept * clean_of(docs), (method,))
    record = one(Evidence(docs, COMMON))
    assert (record.published_verdict, record.verdict, record.reasons) == ("pass", "pass", ())
    assert "knockouts" not in record.companions


def test_interval_is_the_mirror_of_the_divergence():
    record = one(evidence(by_method={"zero": 0.6}))
    assert record.ci90[0] < record.estimate < record.ci90[1] < 0.8
    assert record.estimate == pytest.approx(0.65, abs=0.03)


def test_the_verdict_is_reproducible_and_draws_are_reported():  # peer D23: unseeded noise, two calls differ
    record = one(evidence())
    assert record.to_dict() == one(evidence()).to_dict()
    assert 0 < record.companions["spread_over_draws"]["noise"] < 0.02


def test_fewer_than_four_noise_draws_are_not_enough():
    docs = documents()
    data = docs["20"]["data"]
    keep = [i for i, c in enumerate(data["conditions"]) if c["name"] != "circuit/noise/0"]
    data["conditions"], data["logit_diff"] = (
        [data["conditions"][i] for i in keep],
        [data["logit_diff"][i] for i in keep],
    )
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "insufficient" and record.needs == "4 draws of noise"


@pytest.mark.parametrize(
    ("law", "reason"),
    [({"n_evaluation": 29, "n_templates": 2}, "n_prompts"), ({"faithfulness": 0.01}, "not_faithful")],
)
def test_insufficient(law, reason):
    record = one(evidence(**law))
    assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_blind_to_the_order_of_prompts():
    docs = documents(noise=2.0)
    assert one(Evidence(docs, COMMON)).to_dict() == one(Evidence(shuffled(docs), COMMON)).to_dict()
