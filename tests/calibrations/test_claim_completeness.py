"""P.completeness and the published score: groups taken out of circuit and model, planted by the law."""

import json
import re

import numpy as np
import pytest

from calibrations import claim_completeness as completeness
from calibrations.evidence import Evidence
from tests.calibrations.settings import config_of, shuffled
from tests.calibrations.synthetic import COMMON, documents, evidence

CONFIG = config_of("common")
QUICK = {**CONFIG, "bootstrap_resamples_p": 499}  # for rates over many samples
SMALL = {"n_held_out": 0, "n_random": 20}


def by_metric(subject, config=QUICK):
    found = completeness.records(subject, config)
    json.dumps([record.to_dict() for record in found], allow_nan=False)
    return {record.metric: record for record in found}


def one(subject, config=QUICK):
    return by_metric(subject, config)["P.completeness"]


def test_a_complete_claim_passes_all_three():
    found = by_metric(evidence(), CONFIG)
    assert [record.verdict for record in found.values()] == ["pass"] * 3
    assert all(record.gating and record.published_verdict == "none" for record in found.values())
    assert abs(found["P.completeness"].estimate) < 0.02 and found["P.completeness"].p == pytest.approx(1 / 10000)
    assert found["P.incompleteness_score"].companions["score"] == pytest.approx(0.05, abs=0.02)  # 1 - faithfulness


def test_inc_by_hand():
    """([F(C) - F(C without K)] - [F(M) - F(M without K)]) / (D - F(M without any head)), of every group."""
    subject = evidence(incompleteness={("L2H1", "mean"): 0.4})
    content = subject.data("22")["completeness"]["recipes"]["mean"]
    rows = subject.rows
    f = {name: np.asarray(content[name])[..., rows].mean(-1) for name in ("model", "circuit", "empty")}
    without = {name: np.asarray(content[name])[:, rows].mean(1) for name in ("model_without", "circuit_without")}
    normal = min(f["model"], f["model"] - f["empty"])
    inc = ((f["circuit"] - without["circuit_without"]) - (f["model"] - without["model_without"])) / normal
    worst = int(np.argmax(np.abs(inc)))
    record = one(subject)
    assert record.estimate == pytest.approx(inc[worst])
    row = record.companions["by_recipe"]["mean"]["groups"][0]
    assert (row["name"], row["incompleteness"]) == ("L2H1", pytest.approx(inc[worst]))
    assert row["lost_by_circuit"] == pytest.approx((f["circuit"] - without["circuit_without"][worst]) / normal)
    assert row["lost_by_model"] == pytest.approx((f["model"] - without["model_without"][worst]) / normal)
    assert row["published_score"] == pytest.approx(
        abs(without["model_without"][worst] - without["circuit_without"][worst]) / normal
    )


@pytest.mark.parametrize("share", [0.5, -0.5])
def test_a_group_that_costs_one_side_more_fails_and_is_named_with_both_losses(share):
    """Above 0 something outside stands in for L2H1, below 0 it works through something outside."""
    record = one(evidence(incompleteness={("L2H1", "resample"): share}))
    assert record.verdict == "fail" and record.estimate == pytest.approx(share, abs=0.05)
    circuit, model = (0.95 / 7 + max(share, 0), 0.95 / 7 + max(-share, 0))
    words = re.fullmatch(
        r"incomplete: without L2H1 \(resample\) the circuit loses (\d\.\d\d) and the model (\d\.\d\d) of N",
        record.reasons[0],
    )
    assert words and [float(number) for number in words.groups()] == pytest.approx([circuit, model], abs=0.02)
    assert record.needs == "a claim that includes the heads that stand in for L2H1, or through which those act"


def subject_heads(name, recipe):
    content = evidence().data("22")["completeness"]
    asked = [content["groups"][place] for place in content["recipes"][recipe]["groups"]]
    return next(group["heads"] for group in asked if group["name"] == name)


def test_a_recipe_off_the_distribution_gates_only_every_recipe():
    """A backup that wakes under zero alone: tier 2 does not ask, tier 3 does."""
    found = by_metric(evidence(incompleteness={("the whole claim", "zero"): 0.9}))
    assert found["P.completeness"].verdict == "pass"
    assert found["P.completeness_every_recipe"].verdict == "fail"
    score = found["P.incompleteness_score"]
    assert score.verdict == "fail"
    heads = " ".join(f"L{layer}H{head}" for layer, head in subject_heads("the whole claim", "zero"))
    assert score.needs == f"a claim that includes the heads that stand in for {heads}, or through which those act"
    assert score.reasons[0].endswith(f"of N without {heads} (zero)")
    assert "(zero)" in found["P.completeness_every_recipe"].reasons[0]


def test_the_primary_recipe_of_the_claim_is_the_one_that_gates():
    docs = documents(incompleteness={("L2H1", "mean"): 0.6})
    assert one(Evidence(docs, COMMON)).verdict == "fail"
    docs["20"]["data"]["circuit"]["primary_recipe"] = "mean_pooled"
    assert one(Evidence(docs, COMMON)).verdict == "pass"


def test_labels_decide_nothing():
    """The same heads under one role, and each a role of its own: the same record."""
    docs = documents(incompleteness={("L2H1", "mean"): 0.3})
    members = [head for role in docs["20"]["data"]["circuit"]["roles"].values() for head in role["heads"]]
    expected = one(Evidence(docs, COMMON)).to_dict()
    for roles in ({"all": members}, {f"role {i}": [head] for i, head in enumerate(members)}):
        docs["20"]["data"]["circuit"]["roles"] = {
            name: {"heads": heads, "ordinal": 1, "sign": 1, "assigned_by": "function", "evidence": "x"}
            for name, heads in roles.items()
        }
        assert one(Evidence(docs, COMMON)).to_dict() == expected


def test_the_score_of_wang_et_al_holds_what_faithfulness_lacks():
    """A complete claim of faithfulness .75 has inc 0 and a score of .25."""
    found = by_metric(evidence(faithfulness=0.75))
    assert found["P.completeness"].verdict == "pass"
    score = found["P.incompleteness_score"]
    assert score.verdict == "fail" and abs(score.estimate) == pytest.approx(0.25, abs=0.02)
    subject = evidence(faithfulness=0.75)
    nothing = completeness.losses(subject, "mean").published[0].mean() / subject.clean.mean()
    assert nothing == pytest.approx(0.25, abs=0.01)  # of the group that is nothing: 1 - faithfulness


def test_the_sets_of_the_score_are_named_by_their_heads_and_recipe():
    """Each recipe has the empty set, in which every claimed head stays, then its groups."""
    subject = evidence()
    mean, zero = (completeness.losses(subject, recipe) for recipe in ("mean", "zero"))
    first, count = mean.groups[0], len(mean.groups)
    heads = " ".join(f"L{layer}H{head}" for layer, head in first["heads"])
    said = [completeness._in_absence([mean, zero], place) for place in (0, 1, count + 1)]
    assert said == [
        "with every claimed head in place (mean)",
        f"without {heads} (mean)",
        "with every claimed head in place (zero)",
    ]
    with pytest.raises(IndexError):
        completeness._in_absence([mean, zero], count + len(zero.groups) + 2)


def test_a_claim_of_all_heads_is_never_passed():
    docs = documents()
    docs["22"]["data"]["completeness"].update(groups=[], recipes={})
    for record in by_metric(Evidence(docs, COMMON)).values():
        assert record.verdict == "insufficient" and record.reasons[0].startswith("claims_every_head")


def test_a_recipe_that_was_not_run_is_not_taken_for_passed():
    docs = documents()
    del docs["22"]["data"]["completeness"]["recipes"]["resample"]
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "insufficient" and record.needs == "resample in completeness.recipes"
    del docs["22"]["data"]["completeness"]
    assert one(Evidence(docs, COMMON)).reasons[0].startswith("not_run: measurement 22 has no groups")


@pytest.mark.parametrize(
    ("law", "reason"), [({"n_evaluation": 19}, "n_prompts"), ({"mean_clean": -1.0}, "behaviour_absent")]
)
def test_insufficient(law, reason):
    for record in by_metric(evidence(**{"n_templates": 2, **law})).values():
        assert record.verdict == "insufficient" and record.reasons[0].startswith(reason)


def test_noise_leaves_it_undecided_and_says_how_many_prompts_it_takes():
    record = one(evidence(incompleteness={("L2H1", "mean"): 0.12}, noise=4.0, n_evaluation=60, **SMALL))
    assert record.verdict == "inconclusive" and record.needs.startswith(("about ", "a claim that includes"))


def test_where_heads_do_little_the_losses_are_shares_of_d():
    """Without any head .8 of D is left: N would make five of every one. Without any the foil wins: N would make .7 of one."""
    clean = np.full(30, 5.0)
    assert completeness.normaliser(clean, 0.8 * clean) == pytest.approx(clean)
    assert completeness.normaliser(clean, 0.4 * clean) == pytest.approx(0.6 * clean)
    assert completeness.normaliser(clean, -0.4 * clean) == pytest.approx(clean)


def test_a_model_that_prefers_the_foil_without_heads_makes_no_limit_lax():
    """Half of D is missed, which is a sixth of all that heads overcome, and of faithfulness the band is one of D."""
    docs = documents(incompleteness={("L2H1", "mean"): 0.5})
    for found in docs["22"]["data"]["completeness"]["recipes"].values():
        found["empty"] = (-2 * np.array(found["model"])).tolist()
    record = one(Evidence(docs, COMMON))
    assert record.verdict == "fail" and record.estimate == pytest.approx(0.5, abs=0.05)
    assert record.companions["by_recipe"]["mean"]["all_heads"] == pytest.approx(3 * 5, abs=0.5)  # shown as it is


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, -0.2])
def test_a_group_at_the_limit_is_seldom_passed_and_seldom_failed(share):
    passes = fails = 0
    for seed in range(60):
        law = {"seed": seed, "noise": 1.0, "n_evaluation": 100, **SMALL}
        verdict = one(evidence(incompleteness={("L2H1", "mean"): share}, **law)).verdict
        passes, fails = passes + (verdict == "pass"), fails + (verdict == "fail")
    tolerance = 3 * np.sqrt(60 * 0.05 * 0.95)
    assert passes <= 3 + tolerance and fails <= 3 + tolerance


@pytest.mark.slow
def test_power_of_a_complete_claim_and_of_a_backup():
    law = {"noise": 1.0, "n_evaluation": 100, **SMALL}
    verdicts = [one(evidence(seed=seed, **law)).verdict for seed in range(40)]
    assert verdicts.count("pass") >= 38
    verdicts = [one(evidence(seed=seed, incompleteness={("L1H3", "mean"): 0.5}, **law)).verdict for seed in range(40)]
    assert verdicts.count("fail") >= 38


def test_worst_group_by_template():
    docs = documents(n_templates=4)
    content = docs["22"]["data"]["completeness"]["recipes"]["mean"]
    names = np.array(docs["01"]["data"]["template"])
    lost = np.array(content["circuit_without"])
    lost[0] -= 5.0 * 1.6 * (names == "template 1")
    content["circuit_without"] = lost.tolist()
    table = one(Evidence(docs, COMMON)).companions["worst_by_template"]
    assert table["template 1"] == pytest.approx(1.6, abs=0.1)
    assert max(abs(value) for name, value in table.items() if name != "template 1") < 0.1


def test_deterministic_and_blind_to_the_order_of_prompts():
    docs = documents(incompleteness={("L2H1", "mean"): 0.3})
    first, turned = by_metric(Evidence(docs, COMMON)), by_metric(Evidence(shuffled(docs), COMMON))
    for metric, record in first.items():
        again = turned[metric].to_dict()
        assert again["verdict"] == record.verdict and again["reasons"] == record.to_dict()["reasons"]
        assert again["estimate"] == pytest.approx(record.estimate) and again["ci90"] == pytest.approx(record.ci90)
