"""M3b: published subsample rule, and the per-head test against 2 % of the logit difference."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from calibrations import m3b_certified_stability as m3b
from calibrations.evidence import Evidence
from calibrations.m3b_certified_stability import calibrate, subsample_counts
from tests.calibrations.settings import clean_of, config_of, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("m3b")
ROLES = {
    "writer": {"heads": [[0, 1], [1, 2], [2, 3]], "ordinal": 4, "sign": 1},
    "opponent": {"heads": [[3, 0]], "ordinal": 4, "sign": -1},
}


def both(subject):
    records = calibrate(subject, CONFIG)
    for record in records:
        json.dumps(record.to_dict(), allow_nan=False)
    return records


def one(subject):
    return both(subject)[0]


def idle(subject):
    return both(subject)[1]


def alone_only(docs, seed=0, noise=0.15):
    """`docs` in which knocking a head out of the circuit, alone or beside others, shows nothing: 21 alone speaks."""
    content, rng = docs["22"]["data"], np.random.default_rng([seed, 4])
    del content["completeness"]
    for place in (content, content["greedy"]):
        place["effect"] = rng.normal(0, noise, np.shape(place["effect"])).tolist()
    return docs


def knocked_out(alone, beside, noise=0.5, seed=0, **law):
    """Circuit heads, in order, worth `alone` x D in 21, as much out of the circuit, and `beside` x D in the sets of 22,
    plus N(0, noise) each. No other recipe was run."""
    roles = {"all": {"heads": [[i % 4, i // 4] for i in range(len(alone))], "ordinal": 1, "sign": 1}}
    docs = documents(roles=roles, seed=seed, **{"n_random": 20, "n_held_out": 0, **law})
    clean, rng = clean_of(docs), np.random.default_rng([seed, 3])
    effect = np.zeros((len(clean), 32))
    effect[:, Evidence(docs, COMMON).in_circuit] = np.outer(clean, alone) + rng.normal(
        0, noise, (len(clean), len(alone))
    )
    docs["21"]["data"]["effect"] = effect.tolist()
    del docs["22"]["data"]["completeness"]
    for content, worth in ((docs["22"]["data"]["greedy"], beside), (docs["22"]["data"], alone)):
        content["effect"] = (np.outer(worth, clean) + rng.normal(0, noise, (len(worth), len(clean)))).tolist()
    return Evidence(docs, COMMON)


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
    docs = alone_only(documents())
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
    subject = Evidence(alone_only(documents(effect=0.24, effect_noise=1.0, n_evaluation=200)), COMMON)
    record = one(subject)
    p = np.sort(m3b.head_tests(subject, CONFIG).counts)
    assert record.p == pytest.approx(min(1.0, (7 - 4 + 1) * p[3]))


def test_an_overbroad_circuit_fails_though_the_published_rule_certifies_its_decoys():
    """7 real heads and 10 decoys of 0.5 % effect (overbroad of models.md passes as published at .59)."""
    roles = {
        "real": {"heads": [[0, h] for h in range(7)], "ordinal": 1, "sign": 1},
        "decoys": {"heads": [[1, h] for h in range(8)] + [[2, 0], [2, 1]], "ordinal": 4, "sign": 1},
    }
    docs = alone_only(documents(roles=roles))
    effect = np.random.default_rng(1).normal(0.025, 0.15, (600, 32))
    effect[:, :7] += 1.0
    docs["21"]["data"]["effect"] = effect.tolist()
    record = one(Evidence(docs, COMMON))
    assert record.published_verdict == "pass"
    assert record.verdict == "fail" and record.estimate == pytest.approx(7 / 17)


@pytest.mark.slow
def test_false_pass_rate_of_effects_at_the_threshold():
    passes = 0
    for seed in range(100):
        docs = alone_only(documents(seed=seed, n_evaluation=100, n_held_out=0, n_random=20), seed)
        effect = np.random.default_rng(500 + seed).normal(0.1, 1.0, (100, 32))
        docs["21"]["data"]["effect"] = effect.tolist()
        passes += one(Evidence(docs, COMMON)).verdict == "pass"
    assert passes <= 5


def test_clusters_count_as_one():
    docs = alone_only(documents(n_clusters=5, n_templates=2))
    names = sorted(set(docs["01"]["data"]["cluster"]))
    bump = dict(zip(names, (0.9, -0.6, 0.8, -0.5, 0.4), strict=True))
    effect = np.array([bump[name] for name in docs["01"]["data"]["cluster"]])[:, None] + np.zeros((600, 32))
    docs["21"]["data"]["effect"] = effect.tolist()
    record = one(Evidence(docs, COMMON))
    assert record.published_verdict == "pass" and record.verdict == "inconclusive"


# --- no idle heads ---------------------------------------------------------------------------------------------------


def test_every_head_of_a_planted_circuit_counts():
    record = idle(evidence())
    assert (record.metric, record.verdict, record.gating) == ("M3b.no_idle_heads", "pass", True)
    assert (record.published_value, record.published_verdict) == (None, "none")
    assert record.p < 1e-6 and record.effect_size == 1.0 and record.reasons == ()


def test_one_decoy_among_eight_heads_fails_although_seven_eighths_are_certified():
    """`false_head`: a decoy costs no faithfulness, and "at least half of the heads" passes it."""
    alone = [0.3] * 7 + [0.002]
    certified, record = both(knocked_out(alone, alone))
    assert (certified.published_verdict, certified.verdict) == ("pass", "pass")
    assert record.verdict == "fail" and record.reasons == ("idle, alone and beside other heads: L3H1",)
    assert record.companions["heads"]["3.1"]["label"] == "idle"
    assert record.p == 1.0 and record.estimate < 0.02


def test_an_overbroad_circuit_fails_with_every_decoy_named():
    alone = [0.2] * 7 + [0.001] * 10
    record = idle(knocked_out(alone, alone))
    assert record.verdict == "fail" and record.effect_size == pytest.approx(7 / 17)
    assert len(re.findall(r"L\d+H\d+", "".join(record.reasons))) == 10


def test_a_head_that_a_claimed_backup_covers_is_not_idle():
    """Worth nothing alone, but the circuit breaks without it once its backup is out."""
    alone, beside = [0.3] * 6 + [0.0, 0.0], [0.3] * 6 + [0.4, 0.4]
    assert idle(knocked_out(alone, beside)).verdict == "pass"
    assert idle(knocked_out(beside, alone)).verdict == "pass"


def test_a_head_against_the_answer_is_not_idle():
    alone = [0.3] * 6 + [-0.3, -0.05]
    assert idle(knocked_out(alone, alone)).verdict == "pass"


def test_a_head_that_noise_hides_is_neither_idle_nor_counted():
    alone = [0.3] * 7 + [0.02]
    record = idle(knocked_out(alone, alone, noise=2.0, n_evaluation=100))
    assert record.verdict == "inconclusive" and record.reasons == ("not shown to count: L3H1",)
    weak = idle(knocked_out([0.3] * 7 + [0.06], [0.3] * 7 + [0.06], noise=1.5, n_evaluation=40))
    assert weak.verdict == "inconclusive" and int(weak.needs.split()[1]) > 40


def test_p_values_by_hand():
    subject = knocked_out([0.3, 0.03, 0.01], [0.2, 0.02, 0.0], n_clusters=10**6)  # every prompt its own cluster
    tests = m3b.head_tests(subject, CONFIG)
    margin = 0.02 * subject.clean
    for head in range(3):
        both_ways = [way.effects[:, head] for way in m3b.knock_outs(subject)]
        above = [
            stats.ttest_1samp(sign * e - margin, 0, alternative="greater").pvalue for e in both_ways for sign in (1, -1)
        ]
        below = [
            stats.ttest_1samp(margin - sign * e, 0, alternative="greater").pvalue for e in both_ways for sign in (1, -1)
        ]
        assert tests.counts[head] == pytest.approx(min(1, 6 * min(above)), rel=0.05)  # 3 ways, 2 signs
        assert tests.idle[head] == pytest.approx(max(below), rel=0.05)


def test_idle_is_corrected_for_the_number_of_heads_and_counts_is_not():
    """ "Some head is idle" is one claim out of k, "every head counts" needs all of them."""
    nothing = np.zeros((2, 8))
    counts, idle = np.array([0.04, *[1.0] * 7]), np.array([1.0, 0.006, 0.007, *[1.0] * 5])
    tests = m3b.HeadTests(("alone, mean", "beside, mean"), nothing, nothing, nothing + 1, counts, idle)
    assert tests.labels(0.05) == ["counts", "idle", *["undecided"] * 6]  # 8 x .006 < .05 < 8 x .007


@pytest.mark.slow
def test_a_false_alarm_on_one_of_26_heads_is_rare_and_so_is_a_pass_of_an_idle_one():
    """All 26 heads worth exactly the threshold: some head must not be called idle, nor all be said to count."""
    alarms = passes = 0
    for seed in range(60):
        at = [0.02] * 26
        verdict = idle(knocked_out(at, at, seed=seed, noise=1.0, n_evaluation=100)).verdict
        alarms, passes = alarms + (verdict == "fail"), passes + (verdict == "pass")
    assert alarms <= 3 + 3 * np.sqrt(60 * 0.05 * 0.95) and passes == 0


def test_minimality_without_sets_is_not_run():
    docs = documents()
    del docs["22"]["data"]["greedy"]
    certified, record = both(Evidence(docs, COMMON))
    for found in (certified, record):
        assert found.verdict == "insufficient" and found.reasons[0].startswith("not_run: measurement 22")
    assert certified.published_value == 1.0  # the published rule reads 21 alone
    del docs["22"]
    assert idle(Evidence(docs, COMMON)).reasons == ("not_run: measurement 22 has not been run",)


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
    for record in both(evidence(**law)):
        assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(effect=0.2)
    first, turned = both(Evidence(docs, COMMON)), both(Evidence(shuffled(docs), COMMON))
    assert [record.to_dict() for record in first] == [record.to_dict() for record in turned]


# --- ways to count ---------------------------------------------------------------------------------------------------


def by_recipe(shown, hidden=0.0, head=7, **law):
    """Eight heads worth .1 of D by every way but the last, worth `shown` in the ways named and `hidden` in the others."""
    docs = documents(roles={"all": {"heads": [[i % 4, i // 4] for i in range(8)], "ordinal": 1, "sign": 1}}, **law)
    clean, rng = clean_of(docs), np.random.default_rng(7)
    split = np.arange(len(docs["01"]["data"]["split"]))

    def worth(way):
        shares = np.full(8, 0.1)
        shares[head] = shown.get(way, hidden)
        return np.outer(shares, np.resize(clean, len(split))) + rng.normal(0, 0.3, (8, len(split)))

    member = Evidence(docs, COMMON).in_circuit
    content, effect = docs["22"]["data"], np.zeros((len(split), 32))
    effect[:, member] = worth("alone, mean").T
    docs["21"]["data"]["effect"] = effect.tolist()
    content["effect"], content["greedy"]["effect"] = (
        worth("out of the circuit, mean").tolist(),
        worth("beside, mean").tolist(),
    )
    for recipe, found in content["completeness"]["recipes"].items():
        for intact, without, way in (
            ("model", "model_without", "alone"),
            ("circuit", "circuit_without", "out of the circuit"),
        ):
            value = np.array(found[without])
            value[:8] = np.array(found[intact]) - worth(f"{way}, {recipe}")
            found[without] = value.tolist()
    return Evidence(docs, COMMON)


def test_every_way_of_22_is_tried():
    assert [way.name for way in m3b.knock_outs(by_recipe({}))] == [
        *("alone, mean", "beside, mean", "out of the circuit, mean"),
        *(
            f"{way}, {recipe}"
            for recipe in ("zero", "mean_pooled", "resample", "noise")
            for way in ("alone", "out of the circuit")
        ),
    ]


@pytest.mark.parametrize(
    "way", ["alone, mean", "beside, mean", "out of the circuit, mean", "alone, zero", "out of the circuit, noise"]
)
def test_a_head_counts_that_matters_by_one_way_alone(way):
    certified, every = both(by_recipe({way: 0.1}))
    assert (certified.verdict, every.verdict, certified.estimate) == ("pass", "pass", 1.0)


def test_a_gate_that_matters_under_zero_alone_counts_and_is_named():
    certified, every = both(by_recipe({"alone, zero": 0.3, "out of the circuit, zero": 0.3}))
    assert (certified.verdict, every.verdict) == ("pass", "pass")
    assert certified.companions["needed_under_zero_alone"] == ["3.1"]
    assert one(by_recipe({"alone, zero": 0.3, "alone, noise": 0.3})).companions["needed_under_zero_alone"] == []


def test_a_head_that_matters_by_no_way_is_idle():
    assert idle(by_recipe({})).verdict == "fail"


@pytest.mark.slow
def test_one_head_of_eight_at_the_margin_by_every_way_is_seldom_said_to_count():
    """Eleven ways and two signs are corrected for: at an effect of exactly 2 % by each, 60 samples."""
    passes = 0
    for seed in range(60):
        subject = by_recipe({}, hidden=0.02, seed=seed, n_evaluation=100, n_held_out=0, n_random=20)
        passes += idle(subject).verdict == "pass"
    assert passes <= 3 + 3 * np.sqrt(60 * 0.05 * 0.95)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("share", "needed"), [(0.0, None), (0.05, None), (0.2, "about 40 prompts")])
def test_a_head_whose_effect_never_varies_divides_by_no_error(share, needed) -> None:
    one = np.ones((1, 1))
    tests = m3b.HeadTests(("alone, mean",), share * one, 0 * one, one, np.ones(1), np.ones(1))
    assert m3b._needs("inconclusive", tests, 0, 40, {"min_effect_fraction": 0.05, "alpha": 0.05}) == needed
