"""M93: survival under BH, the intersection-union p within a circuit, BY over circuits, and what it must not read."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from settings import config_of

from calibrations import m93_multiple_comparisons as m93

CONFIG = config_of("m93")
BH_1995 = [
    0.0001,
    0.0004,
    0.0019,
    0.0095,
    0.0201,
    0.0278,
    0.0298,
    0.0344,
    0.0459,
    0.324,
    0.4262,
    0.5719,
    0.6528,
    0.759,
    1.0,
]


S1, D_PRIME, TOTAL = "S1.distributional_characterization", "C14.d_prime", "S1.total_effect"


def table(p_values, gating=True, prefix="X"):
    return [
        {"metric": f"{prefix}{i:02d}.m", "p": p, "p_kind": "exact", "gating": gating, "verdict": "pass"}
        for i, p in enumerate(p_values)
    ]


def gate(metric, p):
    return {"metric": metric, "p": p, "p_kind": "exact", "gating": True, "verdict": "pass"}


def judged(p_values, **kwargs):
    (record,) = m93.calibrate(table(p_values, **kwargs), CONFIG)
    return record


def approximated(p_values):
    """Records whose approximate p-values are these: a value as far from its baseline as each p says."""
    away = stats.norm.isf(np.asarray(p_values) / 2)
    return [
        {
            "metric": f"C{i:02d}.m", "p": None, "gating": False, "verdict": "inconclusive", "published_verdict": "pass",
            "against_baseline": {"value": 2.0 + z, "baseline": 2.0, "ci95": [z - 1.96, z + 1.96]},
        }
        for i, z in enumerate(away)
    ]  # fmt: skip


def published(records):
    return m93.calibrate(records, CONFIG)[0]


def test_benjamini_hochberg_1995_fails_the_published_rule():
    record = published(approximated(BH_1995))
    assert record.published_value == pytest.approx(4 / 9)
    assert record.published_verdict == "fail"
    found = record.companions["published"]
    assert [test["p"] for test in found["per_test"]] == pytest.approx(BH_1995)
    assert (found["nominal"], found["survive"]["bh"], found["survive"]["bonferroni"]) == (9, 4, 3)


def test_corrections_of_benjamini_hochberg_1995():
    record = judged(BH_1995)
    assert record.companions["nominal"] == 9
    assert record.companions["survive"]["bh"] == 4
    assert record.companions["survive"]["bonferroni"] == 3
    adjusted = [test["bh"] for test in record.companions["per_test"]]
    assert adjusted[:5] == pytest.approx([0.0015, 0.003, 0.0095, 0.035625, 0.0603])


@pytest.mark.parametrize(
    ("p_values", "rate"),
    [([0.01] + [0.5] * 9, 0.0), ([0.01] * 2 + [0.5] * 8, 1.0), ([0.01] * 9 + [0.5] * 41, 0.0)],
)
def test_survival_oracles(p_values, rate):
    assert published(approximated(p_values)).published_value == rate


def test_the_published_value_takes_a_verdict_where_there_is_no_baseline():
    """Five passes at .01 and two failures at .5, beside a pair at p .001; preconditions are in no numbered result."""
    told = [
        {"metric": f"M3b.{i}", "p": 0.9, "gating": True, "verdict": "pass", "published_verdict": verdict}
        for i, verdict in enumerate(["pass"] * 5 + ["fail"] * 2 + ["none"])
    ]
    records = [*approximated([0.001]), *told, {**told[0], "metric": "P.behaviour"}]
    found = published(records)
    tests = {test["metric"]: (test["p"], test["p_kind"]) for test in found.companions["published"]["per_test"]}
    assert tests == {
        "C00.m": (pytest.approx(0.001), "approx: value against baseline"),
        **{f"M3b.{i}": (0.01, "approx: published verdict") for i in range(5)},
        **{f"M3b.{i}": (0.5, "approx: published verdict") for i in (5, 6)},
    }
    assert found.published_value == 1.0  # all six significant ones survive .05 x 6 / 8
    assert found.companions["published"]["survive"]["bonferroni"] == 1
    assert (found.estimate, found.verdict) == (0.9, "inconclusive")  # these p-values are used for nothing else


def test_a_pair_without_width_counts_by_its_verdict():
    (one,) = approximated([0.5])
    flat = {**one, "against_baseline": {"value": 2.0, "baseline": 1.0, "ci95": [1.0, 1.0]}}
    assert m93.approximate([flat], CONFIG)[0]["p"] == 0.01


def test_a_failed_gate_leaves_no_verdict_of_its_own():
    records = [*table([0.001, 0.6, 0.7])]
    records[1]["verdict"] = records[2]["verdict"] = "fail"
    (record,) = m93.calibrate(records, CONFIG)
    assert (record.verdict, record.estimate) == ("insufficient", None)
    assert record.reasons == ("follows_from: X01.m, X02.m",)


@pytest.mark.parametrize(
    ("s1", "d_prime", "total", "verdict"),
    [
        ("fail", "pass", "inconclusive", "pass"),
        ("insufficient", "fail", "pass", "pass"),  # a circuit that acts through MLPs
        ("fail", "fail", "fail", "insufficient"),
        ("insufficient", "fail", "fail", "insufficient"),
    ],
)
def test_one_alternative_that_fails_is_no_failed_gate(s1, d_prime, total, verdict):
    p = {"pass": 0.001, "inconclusive": 0.3, "fail": 0.9, "insufficient": None}
    either = [
        {**gate(metric, p[own]), "verdict": own, "gating": metric != TOTAL, "reasons": []}
        for metric, own in zip((S1, D_PRIME, TOTAL), (s1, d_prime, total), strict=True)
    ]
    (record,) = m93.calibrate([*table([0.001]), *either], CONFIG)
    assert record.verdict == verdict
    assert record.reasons == () if verdict == "pass" else record.reasons[0].startswith("follows_from: C14.d_prime")


def test_the_largest_p_is_the_p_of_the_conjunction():
    record = judged([0.004, 0.001, 0.003, 0.002])
    assert record.estimate == 0.004
    assert record.verdict == "pass" and record.gating and record.reasons == ()


def test_gates_joined_by_and_pay_no_correction_among_themselves():
    """.045 is lost under BY (and BH pays nothing for it), yet the conjunction holds at .045."""
    record = judged([0.001, 0.002, 0.003, 0.045])
    assert (record.verdict, record.estimate) == ("pass", 0.045)
    last = record.companions["per_test"][3]
    # the largest of four: BH x 1, BY x (1 + 1/2 + 1/3 + 1/4)
    assert last["bh"] == pytest.approx(0.045)
    assert last["by"] == pytest.approx(0.045 * 25 / 12) and last["by"] > CONFIG["alpha"]
    assert record.companions["survive"] == {"bonferroni": 3, "holm": 4, "bh": 4, "by": 3}


def test_a_hundred_gates_cost_no_more_than_one():
    record = judged([0.049] * 100)
    assert (record.verdict, record.estimate) == ("pass", 0.049)
    assert record.companions["survive"]["bonferroni"] == 0


def test_a_gate_that_is_not_significant_alone_is_no_failure_of_multiplicity():
    record = judged([0.0001, 0.07, 0.0001, 0.6])
    assert (record.verdict, record.estimate) == ("inconclusive", 0.6)
    assert record.reasons == tuple(f"{name} is not significant even alone" for name in ("X01.m", "X03.m"))


def test_a_p_value_of_exactly_alpha_is_not_below_it():
    record = judged([0.001, 0.05])
    assert (record.verdict, record.estimate) == ("inconclusive", 0.05)
    assert record.reasons == ("X01.m is not significant even alone",)


@pytest.mark.parametrize(
    ("s1", "d_prime", "p", "verdict"),
    [
        (0.01, 0.9, 0.02, "pass"),  # 2 x the smaller; the larger costs nothing
        (0.9, 0.01, 0.02, "pass"),
        (0.03, 0.03, 0.06, "inconclusive"),  # each significant alone, the choice of the better one is not
        (0.8, 0.7, 1.0, "inconclusive"),
        (0.03, None, 0.03, "pass"),  # one of them asked: no choice, no price
        (math.nan, 0.03, 0.03, "pass"),
        (0.0001, 0.0001, 0.001, "pass"),  # then the other gate is the largest
    ],
)
def test_alternatives_enter_as_one_gate(s1, d_prime, p, verdict):
    (record,) = m93.calibrate([*table([0.001]), gate(S1, s1), gate(D_PRIME, d_prime)], CONFIG)
    assert record.estimate == pytest.approx(p)
    assert record.verdict == verdict
    assert record.companions["gates_without_p"] == []
    expected = () if verdict == "pass" else (f"{S1} or {D_PRIME} is not significant even alone",)
    assert record.reasons == expected


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (("n_prompts: 200 prompts; at least 255",), "n_prompts"),
        (("n_prompts: 200 prompts", "not_run: measurement 21 has not been run"), "not_run"),
        (("not_run: measurement 21 has not been run",), "not_run"),
    ],
)
def test_an_untested_gate_gives_its_own_reason(reasons, expected):
    lacking = [
        {**gate(f"Y{i}.m", None), "verdict": "insufficient", "reasons": [reason]} for i, reason in enumerate(reasons)
    ]
    (record,) = m93.calibrate([*table([0.001, 0.002]), *lacking], CONFIG)
    assert record.verdict == "insufficient"
    assert record.reasons[0].startswith(f"{expected}: {len(reasons)} gates have no p-value: Y0.m")


def test_alternatives_that_both_lack_a_p_value_leave_the_circuit_untested():
    (record,) = m93.calibrate([*table([0.001, 0.002]), gate(S1, None), gate(D_PRIME, None)], CONFIG)
    assert (record.verdict, record.estimate) == ("insufficient", None)
    assert record.reasons == (f"not_run: 2 gates have no p-value: {D_PRIME}, {S1}",)


@pytest.mark.parametrize("metric", CONFIG["no_test"])
def test_a_gate_that_is_no_hypothesis_needs_no_p_value(metric):
    (record,) = m93.calibrate([*table([0.001, 0.002]), gate(metric, None)], CONFIG)
    assert (record.verdict, record.estimate) == ("pass", 0.002)
    assert record.companions["gates_without_p"] == []


def test_the_denominator_is_no_hypothesis():
    assert "P.denominator" in CONFIG["no_test"]


def test_exploratory_p_values_do_not_enter_the_gate():
    alone = judged([0.001, 0.004])
    (crowded,) = m93.calibrate(table([0.001, 0.004]) + table([0.9] * 40, gating=False, prefix="Z"), CONFIG)
    assert crowded.estimate == alone.estimate == 0.004
    assert crowded.verdict == alone.verdict == "pass"
    assert crowded.companions["tests"] == 42


def test_nothing_significant_has_no_published_value_and_is_inconclusive():
    record = published([*approximated([0.2, 0.6, 0.9]), *table([0.2, 0.6, 0.9])])
    assert (record.published_verdict, record.published_value) == ("none", None)
    assert record.published_label.startswith("ratio_undefined")
    assert (record.verdict, record.estimate) == ("inconclusive", 0.9)
    assert len(record.reasons) == 3


def test_too_few_results_have_no_published_share():
    record = published([*approximated([0.01]), *table([0.01, 0.02])])
    assert (record.published_value, record.published_verdict) == (None, "none")
    assert record.published_label == "not_run: 1 valid p-values; at least 2 are needed"


@pytest.mark.parametrize("records", [[], table([0.01, 0.02], gating=False), [gate("P.denominator", None)]])
def test_without_any_gate_nothing_has_been_tested(records):
    (record,) = m93.calibrate(records, CONFIG)
    assert record.verdict == "insufficient" and record.reasons[0].startswith("not_run")


def test_a_single_gate_needs_no_correction():
    record = judged([0.01])
    assert (record.verdict, record.estimate) == ("pass", 0.01)


def test_a_gate_without_a_p_value_leaves_the_circuit_untested():
    record = judged([0.001, None, 0.002, math.nan])
    assert (record.verdict, record.estimate) == ("insufficient", None)
    assert record.reasons == ("not_run: 2 gates have no p-value: X01.m, X03.m",)
    assert record.companions["gates_without_p"] == ["X01.m", "X03.m"]
    assert record.companions["tests"] == 2


def test_an_untested_gate_is_never_made_up_for_by_a_weak_one():
    assert judged([0.6, None]).verdict == "insufficient"


def test_exploratory_records_without_a_p_value_change_nothing():
    (record,) = m93.calibrate(table([0.001, 0.002]) + table([None, math.nan], gating=False, prefix="Z"), CONFIG)
    assert (record.verdict, record.estimate) == ("pass", 0.002)
    assert record.companions["gates_without_p"] == []


def test_own_records_are_never_read():
    """D33: a second run over a folder with M93's own output counts the same tests as the first."""
    records = table([0.001, 0.02, 0.3])
    first = m93.calibrate(records, CONFIG)
    own = {**first[0].to_dict(), "p": 0.0001}
    assert m93.calibrate([*records, own], CONFIG) == first


def test_verdicts_are_never_turned_into_p_values():
    """D33: passes without a p-value are no evidence, however many there are."""
    records = [{**record, "p": None} for record in table([0.01] * 20)]
    (record,) = m93.calibrate(records, CONFIG)
    assert record.verdict == "insufficient" and record.companions["tests"] == 0
    assert record.reasons[0].startswith("not_run: 20 gates have no p-value: X00.m, X01.m")


def test_every_calibration_enters_whatever_its_file_name():
    """D33: E1b and M3b carry letters in their numbers and still count."""
    records = [
        {"metric": m, "p": 0.001, "p_kind": "t", "gating": True, "verdict": "pass"} for m in ("E1b.x", "M3b.x", "C11.x")
    ]
    (record,) = m93.calibrate(records, CONFIG)
    assert [test["metric"] for test in record.companions["per_test"]] == ["C11.x", "E1b.x", "M3b.x"]


def test_order_of_records_does_not_matter():
    records = table([0.001, 0.04, 0.2, 0.003])
    assert m93.calibrate(records, CONFIG) == m93.calibrate(records[::-1], CONFIG)


def test_a_p_value_outside_0_1_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        m93.calibrate(table([0.01, 1.4]), CONFIG)


def test_storey_needs_fifty():
    assert judged([0.01] * 49).companions["storey_pi0"] is None
    assert judged([0.01] * 25 + [0.75] * 25).companions["storey_pi0"] == pytest.approx(1.0)


def over_circuits(certificates, tables=None):
    tables = {name: table([0.001]) for name in certificates} if tables is None else tables
    (record,) = m93.calibrate_global(tables, certificates, CONFIG)
    return record


def test_global_corrects_the_certificates_over_circuits():
    tables = {"a/ioi/x": table([0.001, 0.004]), "a/sva/y": table([0.0001, 0.9], gating=False)}
    record = over_circuits({"a/sva/y": 0.002, "a/ioi/x": 0.006}, tables)
    assert record.metric == "M93.multiple_comparisons_global" and not record.gating
    # two circuits: BY factor 1 + 1/2; the p-values are the certificates', not those of the tables
    assert list(record.companions["circuits"]) == ["a/ioi/x", "a/sva/y"]
    assert record.companions["circuits"]["a/ioi/x"] == pytest.approx(
        {"p": 0.006, "bh": 0.006, "by": 0.009, "survives": True}
    )
    assert record.companions["circuits"]["a/sva/y"] == pytest.approx(
        {"p": 0.002, "bh": 0.004, "by": 0.006, "survives": True}
    )
    assert (record.verdict, record.reasons) == ("pass", ())
    assert record.estimate == pytest.approx(0.009)
    assert record.n == {"tests": 4, "circuits": 2}
    assert record.companions["pooled"]["tests"] == 4
    pairs = over_circuits({"a": 0.01, "b": 0.01}, {"a": approximated([0.001, 0.04]), "b": approximated([0.9, 0.8])})
    assert (pairs.companions["published"]["tests"], pairs.published_value) == (4, 0.5)  # .04 x 4 / 2 > .05


def test_global_a_circuit_not_tested_in_full_does_not_survive():
    record = over_circuits({"a": 0.002, "b": None, "c": 0.004})
    assert record.companions["circuits"]["b"] == {"p": None, "bh": None, "by": None, "survives": False}
    # the untested one is not counted among the hypotheses: factor 1 + 1/2
    assert record.companions["circuits"]["c"]["by"] == pytest.approx(0.006)
    assert record.companions["circuits"]["a"]["survives"] and record.companions["circuits"]["c"]["survives"]
    assert record.verdict == "inconclusive" and record.estimate == pytest.approx(0.006)
    assert record.reasons == ("b has gates that were not tested",)


def test_global_fails_when_many_circuits_take_a_certificate_away():
    record = over_circuits({f"circuit {i}": 0.03 if i == 0 else 0.9 for i in range(10)})
    first = record.companions["circuits"]["circuit 0"]
    assert first["bh"] == pytest.approx(0.3)
    assert first["by"] == pytest.approx(0.3 * sum(1 / i for i in range(1, 11)))
    assert not first["survives"]
    assert (record.verdict, record.estimate) == ("fail", 1.0)
    assert record.reasons[0] == "circuit 0 is significant alone but not under BY"
    assert record.reasons[1:] == tuple(f"circuit {i} is not significant even alone" for i in range(1, 10))


def test_global_a_loss_outweighs_an_untested_circuit():
    record = over_circuits({"a": 0.001, "b": 0.04, "c": None})
    # .04 is the larger of two: BY .04 x 1.5
    assert (record.verdict, record.estimate) == ("fail", pytest.approx(0.06))
    assert record.reasons == ("b is significant alone but not under BY", "c has gates that were not tested")


def test_global_a_weak_circuit_alone_is_inconclusive():
    record = over_circuits({"a": 0.001, "b": 0.6})
    assert (record.verdict, record.estimate) == ("inconclusive", pytest.approx(0.9))
    assert record.companions["circuits"]["a"]["by"] == pytest.approx(0.003)
    assert record.reasons == ("b is not significant even alone",)


@pytest.mark.parametrize(
    ("certificates", "reason"),
    [
        ({}, "n_tasks: 0 circuits; at least 2 are needed"),
        ({"a": 0.001}, "n_tasks: 1 circuits; at least 2 are needed"),
        ({"a": None}, "n_tasks: 1 circuits; at least 2 are needed"),
        ({"a": None, "b": None}, "not_run: no circuit has had every one of its gates tested"),
    ],
)
def test_global_is_insufficient_without_circuits_to_correct_over(certificates, reason):
    record = over_circuits(certificates)
    assert (record.verdict, record.estimate, record.reasons) == ("insufficient", None, (reason,))
    assert list(record.companions["circuits"]) == list(certificates)


def test_global_one_tested_circuit_of_two_is_corrected_for_one():
    record = over_circuits({"a": 0.04, "b": None})
    assert record.companions["circuits"]["a"]["by"] == pytest.approx(0.04)
    assert (record.verdict, record.reasons) == ("inconclusive", ("b has gates that were not tested",))


def test_global_never_reads_own_records():
    tables = {name: table([0.001, 0.02, 0.3]) for name in "ab"}
    levels = {"a": 0.02, "b": 0.01}
    first = over_circuits(levels, tables)
    own = {**first.to_dict(), "metric": "M93.multiple_comparisons", "p": 0.0001}
    assert over_circuits(levels, {name: [*rows, own] for name, rows in tables.items()}) == first


def test_global_order_of_circuits_does_not_matter():
    levels = {"a": 0.04, "b": None, "c": 0.001, "d": 0.6}
    assert over_circuits(levels) == over_circuits(dict(reversed(levels.items())))


def test_records_are_plain_json():
    json.dumps(judged(BH_1995).to_dict(), allow_nan=False)


def test_global_null_is_rarely_passed():
    """Uniform p-values: the gate passes in none of 300 families of 16, the published rule in few."""
    rng = np.random.default_rng(0)
    drawn = [rng.random(16).tolist() for _ in range(300)]
    records = [published([*approximated(p), *table(p)]) for p in drawn]
    assert {record.verdict for record in records} == {"inconclusive"}
    assert np.mean([record.published_verdict == "pass" for record in records]) < 0.06


def test_one_false_gate_among_true_ones_is_passed_at_most_at_alpha():
    """The null of a conjunction is that one gate fails: the rate is then that gate's own, .05."""
    rng = np.random.default_rng(1)
    passed = [judged([1e-6] * 5 + [p]).verdict == "pass" for p in rng.random(600)]
    assert np.mean(passed) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_two_null_alternatives_are_passed_at_most_at_alpha():
    """Choosing the better of two null gates would pass at 1 - .95^2 = .0975 without the factor 2."""
    rng = np.random.default_rng(2)
    passed = [
        m93.calibrate([*table([1e-6]), gate(S1, a), gate(D_PRIME, b)], CONFIG)[0].verdict == "pass"
        for a, b in rng.random((600, 2))
    ]
    assert np.mean(passed) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_null_circuits_rarely_survive_by():
    """Six null certificates: some circuit survives in at most alpha of 600 families."""
    rng = np.random.default_rng(3)
    tables = {f"c{i}": [] for i in range(6)}
    some = [
        any(
            row["survives"]
            for row in over_circuits(dict(zip(tables, p, strict=True)), tables).companions["circuits"].values()
        )
        for p in rng.random((600, 6)).tolist()
    ]
    assert np.mean(some) <= 0.05
