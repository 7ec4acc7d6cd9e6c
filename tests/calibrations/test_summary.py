"""The pooled table of all circuits and the multiplicity over them, with corrections worked out by hand."""

import pytest

import results_io
from calibrations import summary
from calibrations.rules import Standing
from results_io import UserError
from tests.calibrations.settings import config_of
from tests.result_samples import completed

CONFIG = {"common": config_of("common"), "m93": {}}
CONFIG["m93"] = {key: value for key, value in config_of("m93").items() if key not in CONFIG["common"]}


def record(metric, p, gating=True):
    pair = {"value": 1.0, "baseline": 0.0, "ci95": [0.5, 1.5]}  # z 3.92, p 8.9e-5
    told = {"published_verdict": "pass"} if gating and p is not None else {"published_verdict": "none"}
    told |= {"against_baseline": pair} if metric.startswith("C30") and p is not None else {}
    return {"metric": metric, "p": p, "p_kind": "t", "gating": gating, "verdict": "pass", **told}


def certificate(p_values, precondition=0.001, tier=2):
    """A certificate whose calibrations C11, C30 and C23 (advisory) have these p-values."""
    c11, c30, c23 = p_values
    return {
        "kind": "certificate",
        "subject": {
            "model": "m",
            "task": "t",
            **dict.fromkeys(("model_sha256", "circuit_sha256", "prompts_sha256"), "x"),
        },
        "tier": tier,
        "tier_name": "supported",
        "of": 4,
        "ceiling": 3,
        "rules": Standing("0.3", "x").to_dict(),
        "p_certificate": c30,
        "blocking": {"3": []},
        "warnings": [],
        "rows": [
            {"id": "C11", "verdict": "pass", "records": [record("C11.bootstrap_faithfulness", c11)]},
            {"id": "C23", "verdict": "pass", "records": [record("C23.role_depth_correlation", c23, gating=False)]},
            {"id": "C30", "verdict": "pass", "records": [record("C30.seed_variance", c30)]},
            {"id": "M93", "verdict": "pass", "records": [record("M93.multiple_comparisons", 0.9)]},
            {"id": "M98", "verdict": "not run", "records": []},
        ],
        "preconditions": [record("P.behaviour", precondition)],
    }


def pooled(tmp_path, certificates):
    for place, content in certificates.items():
        results_io.write(tmp_path / place / "certificate.json", content)
    return results_io.read(summary.summarise(tmp_path, CONFIG))


TWO = {
    "pocket/ioi": certificate((0.01, 0.02, 0.9)),
    "pocket/greater_than/seed=1": certificate((0.004, 0.01, None), tier=4),
}


def test_every_certificate_is_listed_under_its_folder_with_its_tier(tmp_path):
    found = pooled(tmp_path, TWO)
    assert list(found["circuits"]) == ["pocket/greater_than/seed=1", "pocket/ioi"]
    assert [entry["tier"] for entry in found["circuits"].values()] == [4, 2]
    told = {*summary.KEPT, "tier_name", "rules", "variant", "seed", "faithfulness", "verdicts"}
    assert all(set(entry) == told for entry in found["circuits"].values())
    assert found["circuits"]["pocket/ioi"]["subject"] == TWO["pocket/ioi"]["subject"]
    assert found["circuits"]["pocket/ioi"]["rules"] == {"version": "0.3", "sha256": "x", "differences": []}
    assert found["kind"] == "summary"


def test_claims_about_the_same_weights_and_task_are_counted_with_their_tiers(tmp_path):
    found = pooled(tmp_path, TWO)
    claims = {"model": "m", "model_sha256": "x", "task": "t", "tried": 2}
    assert found["claims"] == [{**claims, "tiers": [2, 4], "under_released_rules": [True, True]}]
    older = {name: value for name, value in TWO["pocket/ioi"].items() if name != "rules"}
    found = pooled(tmp_path, {"pocket/ioi": older})
    assert found["claims"] == [{**claims, "tiers": [2, 4], "under_released_rules": [False, True]}]
    assert found["circuits"]["pocket/ioi"]["tier_name"] == "under unknown rules"


def test_an_entry_has_seed_variant_faithfulness_and_every_verdict(tmp_path):
    ratio = {**record("P.faithfulness", 0.01), "estimate": 0.9, "ci95": [0.8, 1.0], "ci90": [0.82, 0.98]}
    told = certificate((0.01, 0.02, 0.9))
    told = {**told, "preconditions": [*told["preconditions"], ratio]}
    baseline = completed("01", environment={"seeds": {"prompts": 7, "interventions": 0}})
    results_io.write(tmp_path / "m" / "t" / "seed=7" / "01_baseline.json", baseline)
    found = pooled(tmp_path, {"m/t/seed=7": told, "m/t": certificate((0.01, 0.02, 0.9))})["circuits"]
    with_baseline, without = found["m/t/seed=7"], found["m/t"]
    assert (with_baseline["seed"], with_baseline["variant"]) == (7, "seed=7")
    assert with_baseline["faithfulness"] == {"estimate": 0.9, "ci95": [0.8, 1.0]}
    assert with_baseline["verdicts"] == {"C11": "pass", "C23": "pass", "C30": "pass", "M93": "pass", "M98": "not run"}
    assert (without["seed"], without["variant"], without["faithfulness"]) == (None, None, None)


def test_one_p_value_per_circuit_is_corrected_over_circuits(tmp_path):
    over = pooled(tmp_path, TWO)["multiplicity"]["companions"]["circuits"]
    # The certificates have p .01 and .02; BH gives .02 twice, BY 1.5 times that.
    for place, p in (("pocket/greater_than/seed=1", 0.01), ("pocket/ioi", 0.02)):
        assert over[place]["p"] == p
        assert over[place]["bh"] == pytest.approx(0.02)
        assert over[place]["by"] == pytest.approx(0.03)
        assert over[place]["survives"] is True


def test_the_published_share_pools_every_p_value_but_those_of_m93(tmp_path):
    found = pooled(tmp_path, TWO)["multiplicity"]
    # .001 .001 .004 .01 .01 .02 .9: six of seven are nominally significant and all six stay so.
    assert found["companions"]["pooled"]["tests"] == found["n"]["tests"] == 7
    assert found["companions"]["pooled"]["nominal"] == 6
    # published: C30 against its baseline and the verdict of C11 of both circuits, neither P nor M93 nor what has no verdict
    published = found["companions"]["published"]
    assert (published["tests"], published["nominal"], published["survive"]["bonferroni"]) == (4, 4, 4)
    assert found["published_value"] == 1.0 and found["published_verdict"] == "pass"
    assert found["verdict"] == "pass" and found["gating"] is False
    assert (
        summary.sentence(found) == "multiplicity over all of them: 100% of significant results survive BH, verdict pass"
    )


def test_a_circuit_whose_gate_dies_under_the_correction_fails(tmp_path):
    found = pooled(tmp_path, {f"m/{i}": certificate((0.001, 0.04, None)) for i in range(2)})["multiplicity"]
    assert found["companions"]["circuits"]["m/0"]["by"] == pytest.approx(0.06)
    assert found["verdict"] == "fail"
    assert found["reasons"] == [f"m/{i} is significant alone but not under BY" for i in range(2)]


def test_a_single_circuit_has_no_multiplicity(tmp_path):
    found = pooled(tmp_path, {"pocket/ioi": certificate((0.01, 0.02, 0.9))})["multiplicity"]
    assert found["verdict"] == "insufficient"
    assert found["reasons"] == ["n_tasks: 1 circuits; at least 2 are needed"]
    assert found["companions"]["circuits"]["pocket/ioi"]["by"] == 0.02


def test_a_circuit_with_an_untested_gate_does_not_survive_and_costs_the_others_nothing(tmp_path):
    untested = {**certificate((0.001, None, None)), "p_certificate": None}
    found = pooled(tmp_path, {**TWO, "pocket/induction": untested})["multiplicity"]
    over = found["companions"]["circuits"]
    assert over["pocket/induction"] == {"p": None, "bh": None, "by": None, "survives": False}
    assert over["pocket/ioi"]["by"] == pytest.approx(0.03)
    assert found["verdict"] == "inconclusive"
    assert found["reasons"] == ["pocket/induction has gates that were not tested"]


def test_no_p_value_at_all_is_said_in_words(tmp_path):
    found = pooled(tmp_path, {"m/t": certificate((None, None, None), precondition=None)})["multiplicity"]
    assert found["companions"]["circuits"]["m/t"]["survives"] is False
    assert summary.sentence(found) == (
        "multiplicity over all of them: no nominally significant result, verdict insufficient"
    )


def test_the_summary_does_not_depend_on_when_certificates_came_and_does_not_read_itself(tmp_path):
    pooled(tmp_path / "one", TWO)
    for place in TWO:
        pooled(tmp_path / "two", {place: TWO[place]})
    first, second = ((tmp_path / name / "summary.json").read_bytes() for name in ("one", "two"))
    assert first == second
    summary.summarise(tmp_path / "one", CONFIG)
    assert (tmp_path / "one" / "summary.json").read_bytes() == first
    assert str(tmp_path).encode() not in first


def test_an_unreadable_certificate_is_named(tmp_path):
    pooled(tmp_path, TWO)
    broken = tmp_path / "pocket" / "ioi" / "certificate.json"
    broken.write_text("{")
    with pytest.raises(UserError, match="is not readable JSON") as raised:
        summary.summarise(tmp_path, CONFIG)
    assert str(broken) in str(raised.value)
