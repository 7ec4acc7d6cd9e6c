"""The tier logic on hand-made verdicts: every rule, gate by gate."""

import json
from pathlib import Path

import pytest
import yaml

from calibrations import certificate, certificate_table
from calibrations.record import Record, overall
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Standing

RULES = yaml.safe_load((Path(__file__).parents[2] / "configs" / "certificate" / "tiers.yaml").read_text())
RELEASED = Standing("0.3", "x")
SUPPORTED = "supported under mean per template and position"
NAMES = ["proposed", "lead", SUPPORTED, "triangulated", "certified"]
METRICS = {
    "P": [
        "P.behaviour",
        "P.denominator",
        "P.faithfulness",
        "P.faithfulness_every_recipe",
        "P.random_circuits",
        "P.completeness",
        "P.completeness_every_recipe",
        "P.incompleteness_score",
        "P.outside",
        "P.faithfulness_over_wordings",
    ],
    "C11": ["C11.bootstrap_faithfulness", "C11.bootstrap_completeness"],
    "C12": ["C12.convergent_validity"],
    "C13": ["C13.measurement_invariance"],
    "C14": ["C14.sparsity", "C14.d_prime"],
    "C16": ["C16.test_retest", "C16.split_half", "C16.cronbach_alpha"],
    "C17": ["C17.discriminant_validity"],
    "C23": ["C23.layer_density_correlation", "C23.role_depth_correlation"],
    "C30": ["C30.seed_variance"],
    "C36": ["C36.incremental_validity"],
    "F59": ["F59.kendalls_w", "F59.mean_spearman", "F59.mean_kappa"],
    "S1": ["S1.distributional_characterization", "S1.total_effect"],
    "S3": ["S3.distributional_stability"],
    "M93": ["M93.multiple_comparisons"],
    "M98": ["M98.ablation_invariance"],
    "E1b": ["E1b.method_invariance"],
    "M3b": ["M3b.certified_stability", "M3b.no_idle_heads"],
}
ADVISORY = {"C14.sparsity", "C16.cronbach_alpha", "C23.layer_density_correlation", "F59.mean_spearman"}
ROLE_DEPTH = "C23.role_depth_correlation"  # advisory too, but a contradiction blocks
TIER_OF = {
    "P.behaviour": 1,
    "P.denominator": 1,
    "P.random_circuits": 1,
    "C11.bootstrap_faithfulness": 1,
    "P.faithfulness": 2,
    "P.completeness": 2,
    "P.outside": 2,
    "C36.incremental_validity": 2,
    "M3b.certified_stability": 2,
    "C16.test_retest": 2,
    "C16.split_half": 2,
    "C30.seed_variance": 2,
    "C11.bootstrap_completeness": 2,
    "P.faithfulness_every_recipe": 3,
    "P.completeness_every_recipe": 3,
    "P.incompleteness_score": 3,
    "C12.convergent_validity": 3,
    "F59.kendalls_w": 3,
    "F59.mean_kappa": 3,
    "M98.ablation_invariance": 3,
    "E1b.method_invariance": 3,
    "C13.measurement_invariance": 3,
    "C17.discriminant_validity": 4,
    "S3.distributional_stability": 4,
    "P.faithfulness_over_wordings": 4,
    "M93.multiple_comparisons": 4,
}
S1, D_PRIME, C13 = "S1.distributional_characterization", "C14.d_prime", "C13.measurement_invariance"
IDLE = "M3b.no_idle_heads"
TOTAL = "S1.total_effect"
LENIENT = {ROLE_DEPTH: 3, IDLE: 2}  # the tier for which each must not fail
S3, M93 = "S3.distributional_stability", "M93.multiple_comparisons"
NO_PROMPTS = ("insufficient", "n_prompts: 60 prompts; at least 90 needed")
NOT_FAITHFUL = ("insufficient", "not_faithful: faithfulness 0.097 is below 0.5")


def record(metric, outcome="pass", p=0.001, published="pass"):
    verdict, reason = (outcome, "") if isinstance(outcome, str) else outcome
    return Record(
        metric=metric,
        published_value=0.5,
        published_rule="by hand",
        published_verdict=published,
        verdict=verdict,
        p=p,
        gating=metric not in ADVISORY | {ROLE_DEPTH},
        reasons=(reason,) if reason else (),
        needs=None if verdict in ("pass", "fail") else f"more for {metric}",
        n={"prompts": 400},
        companions={"table": [1, 2, 3]},
    ).to_dict()


def documents(evaluation=None, held_out=None, p=None, published="pass"):
    """What `calibrate` returns when every metric passes but those named: {metric: verdict or (verdict, reason)}."""
    evaluation, held_out, p = evaluation or {}, held_out or {}, p or {}
    subject = dict.fromkeys(("model", "model_sha256", "task", "prompts_sha256", "circuit", "circuit_sha256"), "x")
    found = {}
    for identifier, metrics in METRICS.items():
        records = [record(m, evaluation.get(m, "pass"), p.get(m, 0.001), published) for m in metrics]
        found[identifier] = {
            "number": CALIBRATIONS[identifier].NUMBER if identifier in CALIBRATIONS else "P",
            "subject": {**subject, "settings": {}},
            "records": records,
            "data": {
                "verdict": overall([Record(**values) for values in records]),
                "held_out": [record(m, held_out.get(m, "pass")) for m in metrics],
            },
        }
    return found


def certify(evaluation=None, held_out=None, **rest):
    return certificate.certify(documents(evaluation, held_out, **rest), RULES, RELEASED)


def blocked(folded, level):
    return [(gate["metric"], gate["verdict"], gate["split"]) for gate in folded["blocking"][str(level)]]


# --- tiers ---------------------------------------------------------------------------------------------------------


def test_all_gates_pass_is_the_highest_tier():
    folded = certify()
    assert (folded["tier"], folded["tier_name"], folded["of"], folded["ceiling"]) == (4, "certified", 4, 4)
    assert folded["blocking"] == {} and folded["warnings"] == [] and folded["rules"] == RELEASED.to_dict()
    assert folded["p_certificate"] == pytest.approx(
        0.003
    )  # 3 x the smallest p of the clause of S1, C14 and total effect
    json.dumps(folded, allow_nan=False)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4])
def test_a_preset_s_certificate_shows_no_higher_tier_than_the_preset_states(most):
    """Whatever passes: every gate does here."""
    rules = {**RULES, "preset": {"name": "quick", "ceiling": most}}
    folded = certificate.certify(documents(), rules, RELEASED)
    assert (folded["tier"], folded["tier_name"], folded["ceiling"]) == (most, NAMES[most], most)
    assert sorted(folded["blocking"]) == [str(level) for level in range(most + 1, 5)]
    for level in range(most + 1, 5):
        assert blocked(folded, level) == [("preset.quick", "insufficient", "evaluation")]
        (gate,) = folded["blocking"][str(level)]
        assert (
            gate["reason"] == f"preset: quick certifies tier {most} at most" and gate["needs"] == "a run without quick"
        )
    failing = {"P.faithfulness": "fail"}
    lower = certificate.certify(documents(failing), rules, RELEASED)
    assert lower["tier"] == min(certify(failing)["tier"], most)


def test_the_tiers_hold_the_gates_of_the_specification():
    stated = {metric: int(level) for level, rule in RULES["tiers"].items() for metric in rule["all"]}
    assert stated == {**TIER_OF, IDLE: 3}
    assert RULES["tiers"][2]["any"] == [S1, D_PRIME, TOTAL] and "any" not in RULES["tiers"][1]
    lenient = {metric: int(level) for level, rule in RULES["tiers"].items() for metric in rule.get("not_fail", ())}
    assert lenient == LENIENT
    assert [bool(RULES["tiers"][level].get("held_out")) for level in (1, 2, 3, 4)] == [False, False, False, True]
    assert RULES["names"] == [name.replace("mean per template and position", "{recipe}") for name in NAMES]


@pytest.mark.parametrize("verdict", ["fail", "inconclusive", "insufficient"])
@pytest.mark.parametrize("metric", [metric for metric in TIER_OF if metric != "P.behaviour"])
def test_a_gate_that_does_not_pass_caps_the_tier_below_its_own(metric, verdict):
    outcome = verdict if verdict != "insufficient" else NOT_FAITHFUL
    folded = certify({metric: outcome})
    level = TIER_OF[metric]
    assert (folded["tier"], folded["tier_name"]) == (level - 1, NAMES[level - 1])
    assert blocked(folded, level) == [(metric, verdict, "evaluation")]
    assert all(blocked(folded, higher) == [] for higher in range(level + 1, 5))
    assert folded["ceiling"] == 4


def test_a_fail_in_a_tier_two_gate_caps_at_one_whatever_else_passes():
    folded = certify({"C30.seed_variance": "fail"})
    assert (folded["tier"], folded["ceiling"]) == (1, 4)


def test_undecided_gates_say_what_they_need_and_failed_ones_do_not():
    folded = certify(
        {"C36.incremental_validity": "inconclusive", "C16.split_half": "fail", "M98.ablation_invariance": NO_PROMPTS}
    )
    assert folded["tier"] == 1
    needs = {gate["metric"]: gate["needs"] for gates in folded["blocking"].values() for gate in gates}
    assert needs == {
        "C36.incremental_validity": "more for C36.incremental_validity",
        "C16.split_half": None,
        "M98.ablation_invariance": "more for M98.ablation_invariance",
    }
    assert folded["blocking"]["3"][0]["reason"] == NO_PROMPTS[1]


@pytest.mark.parametrize("metric", sorted(ADVISORY))
@pytest.mark.parametrize("verdict", ["fail", "inconclusive", NOT_FAITHFUL])
def test_advisory_metrics_gate_nothing(metric, verdict):
    folded = certify({metric: verdict}, {metric: verdict})
    assert (folded["tier"], folded["ceiling"]) == (4, 4)


def test_published_verdicts_gate_nothing_and_stand_beside():
    folded = certify(published="fail")
    assert folded["tier"] == 4
    assert {r["published_verdict"] for row in folded["rows"] for r in row["records"]} == {"fail"}
    numbers = {key for key, value in folded.items() if isinstance(value, (int, float))}
    assert numbers == {"tier", "of", "ceiling", "p_certificate"}  # no count of published passes


@pytest.mark.parametrize(
    ("s1", "d_prime", "total", "tier"),
    [
        ("pass", "fail", "fail", 4),
        ("fail", "pass", "fail", 4),
        ("fail", "fail", "pass", 4),  # heads that feed an MLP
        (NO_PROMPTS, "fail", "pass", 4),
        ("pass", "inconclusive", NO_PROMPTS, 4),
        ("fail", "fail", "fail", 1),
        ("inconclusive", "fail", "inconclusive", 1),
        (NO_PROMPTS, NO_PROMPTS, NO_PROMPTS, 1),
    ],
)
def test_the_second_tier_needs_one_way_in_which_the_heads_stand_out(s1, d_prime, total, tier):
    folded = certify({S1: s1, D_PRIME: d_prime, TOTAL: total})
    assert folded["tier"] == tier
    if tier == 1:
        assert [metric for metric, *_ in blocked(folded, 2)] == [S1, D_PRIME, TOTAL]


@pytest.mark.parametrize("verdict", ["fail", "inconclusive", NOT_FAITHFUL, NO_PROMPTS])
def test_tier_three_needs_c13_decided(verdict):
    folded = certify({C13: verdict})
    assert folded["tier"] == 2
    name = verdict if isinstance(verdict, str) else verdict[0]
    assert blocked(folded, 3) == [(C13, name, "evaluation")] and blocked(folded, 4) == []


# --- names of tiers ------------------------------------------------------------------------------------------------


def under(recipe, **rest):
    """The certificate of a claim whose primary recipe this is."""
    found = documents(**rest)
    for one in found["P"]["records"]:
        if one["metric"] == "P.faithfulness":
            one["companions"]["recipes"] = [recipe, "resample"]
    return certificate.certify(found, RULES, RELEASED)


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ("mean", "supported under mean per template and position"),
        ("zero", "supported under zero, the heads' constants kept"),
        ("mean_pooled", "supported under mean over all positions"),
        ("resample", "supported under resample"),
    ],
)
def test_the_name_of_tier_two_carries_the_recipe(recipe, name):
    assert under(recipe, evaluation={"M98.ablation_invariance": "fail"})["tier_name"] == name
    assert under(recipe)["tier_name"] == "certified"


def test_above_tier_two_the_name_says_that_labels_are_untested():
    unassigned = ("insufficient", "roles_not_by_function: no role was assigned by function")
    assert certify({ROLE_DEPTH: unassigned})["tier_name"] == "certified, labels untested"
    assert certify({ROLE_DEPTH: unassigned, "C17.discriminant_validity": "fail"})["tier_name"] == (
        "triangulated, labels untested"
    )
    assert certify({ROLE_DEPTH: unassigned, "C12.convergent_validity": "fail"})["tier_name"] == SUPPORTED
    assert certify({ROLE_DEPTH: "inconclusive"})["tier_name"] == "certified"  # looked at, and no trend shown


@pytest.mark.parametrize(("verdict", "tier"), [("fail", 1), ("inconclusive", 2), (NOT_FAITHFUL, 2), ("pass", 4)])
def test_an_idle_head_caps_at_one_and_a_head_not_shown_to_count_at_two(verdict, tier):
    assert certify({IDLE: verdict})["tier"] == tier
    assert certify(held_out={IDLE: verdict})["tier"] == (4 if verdict == "pass" else 3)


@pytest.mark.parametrize(
    ("verdict", "tier"),
    [("fail", 2), ("inconclusive", 4), (("insufficient", "n_heads: 3 heads"), 4), (NO_PROMPTS, 4), ("pass", 4)],
)
def test_only_a_contradiction_between_roles_and_depth_blocks(verdict, tier):
    folded = certify({ROLE_DEPTH: verdict}, {ROLE_DEPTH: verdict})
    assert folded["tier"] == tier and folded["ceiling"] == 4
    assert [gate["metric"] for gate in folded["warnings"]] == ([ROLE_DEPTH] if verdict == "fail" else [])
    if verdict == "fail":
        assert blocked(folded, 3) == [(ROLE_DEPTH, "fail", "evaluation")]


def test_what_must_not_fail_must_have_been_looked_at():
    asked = documents()
    del asked["C23"]
    folded = certificate.certify(asked, RULES, RELEASED)
    assert (folded["tier"], folded["ceiling"]) == (2, 2)
    assert [gate[:2] for gate in blocked(folded, 3)] == [(ROLE_DEPTH, "insufficient")]


# --- ceiling -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", RULES["data_reasons"])
@pytest.mark.parametrize(
    "metric", ["P.random_circuits", "C30.seed_variance", "F59.kendalls_w", "C17.discriminant_validity"]
)
def test_a_gate_that_wants_data_lowers_the_ceiling_below_its_tier(metric, reason):
    folded = certify({metric: ("insufficient", f"{reason}: by hand")})
    assert folded["ceiling"] == folded["tier"] == TIER_OF[metric] - 1


@pytest.mark.parametrize(
    "reason", ["not_faithful", "over_faithful", "zero_variance", "denominator", "n_heads", "min_p_unreachable"]
)
def test_a_gate_that_wants_another_circuit_leaves_the_ceiling(reason):
    folded = certify({"C30.seed_variance": ("insufficient", f"{reason}: by hand")})
    assert (folded["tier"], folded["ceiling"]) == (1, 4)


def test_the_ceiling_is_set_by_the_lowest_gate_that_wants_data():
    folded = certify(
        {"M98.ablation_invariance": NO_PROMPTS, "S3.distributional_stability": NO_PROMPTS, "P.behaviour": "fail"}
    )
    assert (folded["tier"], folded["ceiling"]) == (None, 2)


@pytest.mark.parametrize(
    ("verdict", "name"),
    [
        ("insufficient", "the behaviour is absent"),
        ("fail", "the behaviour is absent"),
        ("inconclusive", "the behaviour is not shown"),
    ],
)
def test_without_the_behaviour_there_is_no_tier(verdict, name):
    folded = certify({"P.behaviour": verdict})
    assert (folded["tier"], folded["tier_name"]) == (None, name)
    assert certificate_table.tier_sentence(folded).startswith(f"No tier: {name}, so there is nothing")
    assert folded["blocking"]["1"][0]["metric"] == "P.behaviour"
    assert not any("Blocks" in line for line in certificate_table.blocking_lines(folded))


@pytest.mark.parametrize(
    ("d_prime", "ceiling"), [(NO_PROMPTS, 1), (("insufficient", "n_heads: 2"), 4), ("fail", 4), (NOT_FAITHFUL, 4)]
)
def test_an_alternative_limits_the_ceiling_only_if_every_one_wants_data(d_prime, ceiling):
    assert certify({S1: NO_PROMPTS, TOTAL: NO_PROMPTS, D_PRIME: d_prime})["ceiling"] == ceiling


def test_a_single_task_has_ceiling_three():
    folded = certify({"C17.discriminant_validity": ("insufficient", "n_tasks: 1 tasks with a behaviour")})
    assert (folded["tier"], folded["ceiling"]) == (3, 3)


def test_what_was_not_asked_for_was_not_run():
    asked = documents()
    del asked["M98"], asked["C23"]
    folded = certificate.certify(asked, RULES, RELEASED)
    assert (folded["tier"], folded["ceiling"]) == (2, 2)
    assert folded["blocking"]["3"][0] == {
        "metric": "M98.ablation_invariance",
        "verdict": "insufficient",
        "reason": "not_run: this calibration was not asked for",
        "needs": "run calibration=all",
        "p": None,
        "split": "evaluation",
    }
    rows = {row["id"]: row for row in folded["rows"]}
    assert rows["M98"] == {"id": "M98", "title": "ablation invariance", "verdict": "not run", "records": []}


# --- held-out prompts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [metric for metric in (*TIER_OF, IDLE) if metric not in (S3, M93, C13)])
@pytest.mark.parametrize(
    "verdict", ["fail", "inconclusive", NOT_FAITHFUL, NO_PROMPTS, ("insufficient", "not_run: 05 has not been run")]
)
def test_a_verdict_that_held_out_prompts_do_not_repeat_blocks_tier_four_only(metric, verdict):
    folded = certify(held_out={metric: verdict})
    name = verdict if isinstance(verdict, str) else verdict[0]
    assert folded["tier"] == 3
    assert blocked(folded, 4) == [(metric, name, "held_out")]


@pytest.mark.parametrize("reason", ["n_prompts", "n_clusters"])
def test_a_held_out_split_too_small_for_the_gates_is_no_evidence(reason):
    folded = certify(held_out=dict.fromkeys((*TIER_OF, C13), ("insufficient", f"{reason}: too few")))
    assert (folded["tier"], folded["ceiling"]) == (3, 3)


def test_only_the_gates_named_in_the_rules_are_exempt_on_held_out_prompts():
    assert RULES["tiers"][4]["held_out"] == {"except": [S3, M93], "not_fail": [C13]}  # M93 lacks the p that S3 has not
    assert certify(held_out={S3: NO_PROMPTS, M93: ("insufficient", "not_run: 1 gates have no p-value")})["tier"] == 4
    assert certify({S3: NO_PROMPTS})["tier"] == certify({M93: "inconclusive"})["tier"] == 3  # on evaluation they count


@pytest.mark.parametrize(
    ("s1", "d_prime", "total", "tier"),
    [
        ("pass", "fail", "fail", 4),
        ("fail", "pass", NO_PROMPTS, 4),
        ("fail", NO_PROMPTS, "pass", 4),
        (NO_PROMPTS, "fail", "fail", 3),
        ("fail", "inconclusive", NOT_FAITHFUL, 3),
    ],
)
def test_held_out_prompts_have_to_repeat_one_of_the_ways_to_stand_out(s1, d_prime, total, tier):
    folded = certify(held_out={S1: s1, D_PRIME: d_prime, TOTAL: total})
    assert folded["tier"] == tier
    if tier == 3:
        assert [gate[::2] for gate in blocked(folded, 4)] == [(one, "held_out") for one in (S1, D_PRIME, TOTAL)]


@pytest.mark.parametrize(("verdict", "tier"), [("pass", 4), ("inconclusive", 4), (NO_PROMPTS, 4), ("fail", 3)])
def test_held_out_prompts_may_be_too_few_to_show_invariance_but_can_refute_it(verdict, tier):
    folded = certify(held_out={C13: verdict})
    assert folded["tier"] == tier
    assert tier == 4 or blocked(folded, 4) == [(C13, "fail", "held_out")]


def test_held_out_verdicts_never_help():
    folded = certify({"C30.seed_variance": "fail"}, {"C30.seed_variance": "pass"})
    assert folded["tier"] == 1


# --- warnings, p-value, rows ----------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [C13, "C17.discriminant_validity", "M98.ablation_invariance"])
@pytest.mark.parametrize("broken", ["P.behaviour", "C30.seed_variance", "S3.distributional_stability"])
def test_boundary_failures_are_shown_at_every_tier(metric, broken):
    folded = certify({metric: "fail", broken: "fail"})
    assert [gate["metric"] for gate in folded["warnings"]] == [metric]
    assert (folded["tier"] or 0) <= TIER_OF[broken] - 1
    assert f"Failed, whatever the tier: {metric}" in certificate_table.blocking_lines(folded)


def test_nothing_but_a_fail_is_warned_about():
    folded = certify({C13: "inconclusive", "C17.discriminant_validity": NO_PROMPTS, "C12.convergent_validity": "fail"})
    assert folded["warnings"] == []


def test_p_of_the_certificate_is_the_largest_of_its_gates():
    p = {"C12.convergent_validity": 0.004, "C30.seed_variance": 0.03, "C17.discriminant_validity": 0.01}
    assert certify(p=p)["p_certificate"] == 0.03
    assert certify(p={**p, "C23.role_depth_correlation": 0.9, "F59.mean_spearman": 0.8})["p_certificate"] == 0.03


@pytest.mark.parametrize(
    ("s1", "d_prime", "total", "expected"),
    [
        (0.02, 0.9, 0.9, 0.06),
        (0.9, 0.03, 0.9, 0.09),
        (0.9, 0.9, 0.01, 0.03),
        (None, 0.03, None, 0.03),
        (None, 0.03, 0.04, 0.06),
        (None, None, None, None),
        (0.7, 0.6, 0.5, 1.0),
    ],
)
def test_a_choice_of_gates_costs_their_number_times_the_smallest_p(s1, d_prime, total, expected):
    assert certify(p={S1: s1, D_PRIME: d_prime, TOTAL: total})["p_certificate"] == pytest.approx(expected)


def test_a_gate_without_p_leaves_the_certificate_untested():
    everything = [metric for metrics in METRICS.values() for metric in metrics]
    assert certify(p={C13: 0.02})["p_certificate"] == 0.02
    assert certify(p={"C12.convergent_validity": None, C13: 0.02})["p_certificate"] is None
    assert certify(p=dict.fromkeys(("P.denominator", M93)))["p_certificate"] == pytest.approx(0.003)
    assert certify(p=dict.fromkeys(everything))["p_certificate"] is None


def test_rows_carry_the_sixteen_published_identifiers_in_registry_order():
    folded = certify()
    assert [row["id"] for row in folded["rows"]] == list(CALIBRATIONS)
    assert [row["title"] for row in folded["rows"]] == [module.TITLE for module in CALIBRATIONS.values()]
    rows = [row for row in folded["rows"] if row["id"] in METRICS]
    assert len(rows) == 16
    assert [[r["metric"] for r in row["records"]] for row in rows] == [METRICS[row["id"]] for row in rows]
    assert [r["metric"] for r in folded["preconditions"]] == METRICS["P"]
    assert folded["inputs"] == {"P": "P", **{row["id"]: CALIBRATIONS[row["id"]].NUMBER for row in rows}}


def test_a_row_names_the_gating_record_that_decided_it():
    folded = certify({"C16.split_half": "fail", "C16.test_retest": "inconclusive", "C16.cronbach_alpha": "fail"})
    rows = {row["id"]: row for row in folded["rows"]}
    assert (rows["C16"]["verdict"], rows["C16"]["decisive"], rows["C16"]["gating"]) == ("fail", "C16.split_half", True)


def test_rows_say_what_the_tiers_ask_of_each_metric():
    rows = {row["id"]: row for row in certify({ROLE_DEPTH: "fail"})["rows"]}
    assert (rows["C23"]["verdict"], rows["C23"]["decisive"], rows["C23"]["gating"]) == ("fail", ROLE_DEPTH, True)
    assert rows["C23"]["asked"] == {ROLE_DEPTH: "not fail"}
    flags = {record["metric"]: record["gating"] for row in rows.values() for record in row["records"]}
    assert {metric for metric, gating in flags.items() if not gating} == ADVISORY
    assert rows["M3b"]["asked"] == {"M3b.certified_stability": "pass", IDLE: "pass"}
    assert rows["C14"]["asked"] == {D_PRIME: "pass"} and rows["C13"]["asked"] == {C13: "pass"}


def test_the_certificate_does_not_depend_on_the_order_of_the_documents():
    found = documents({"C30.seed_variance": "fail"}, {"C12.convergent_validity": "fail"})
    backwards = dict(reversed(found.items()))
    assert certificate.certify(found, RULES, RELEASED) == certificate.certify(backwards, RULES, RELEASED)
