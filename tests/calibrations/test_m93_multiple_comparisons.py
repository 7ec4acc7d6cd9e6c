"""M93: survival under BH, the BY gate, and everything it must not read."""

import json
import math

import pytest
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


def table(p_values, gating=True, prefix="X"):
    return [
        {"metric": f"{prefix}{i:02d}.m", "p": p, "p_kind": "exact", "gating": gating, "verdict": "pass"}
        for i, p in enumerate(p_values)
    ]


def judged(p_values, **kwargs):
    (record,) = m93.calibrate(table(p_values, **kwargs), CONFIG)
    return record


def test_benjamini_hochberg_1995_fails_the_published_rule():
    record = judged(BH_1995)
    assert record.published_value == pytest.approx(4 / 9)
    assert record.published_verdict == "fail"
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
    assert judged(p_values).published_value == rate


def test_gate_passes_when_every_gate_survives_by():
    record = judged([0.001, 0.002, 0.003, 0.004])
    # BY of the largest: .004 x (1 + 1/2 + 1/3 + 1/4)
    assert record.estimate == pytest.approx(0.004 * 25 / 12)
    assert record.verdict == "pass" and record.gating


def test_gate_fails_when_the_correction_takes_one_away():
    record = judged([0.001, 0.002, 0.003, 0.045])
    assert record.verdict == "fail"
    assert record.reasons == ("X03.m is significant alone but not under BY",)


def test_a_gate_that_is_not_significant_alone_is_no_failure_of_multiplicity():
    record = judged([0.0001, 0.0001, 0.6])
    assert record.verdict == "inconclusive"
    assert "X02.m" in record.reasons[0]


def test_exploratory_p_values_do_not_enter_the_gate():
    alone = judged([0.001, 0.004])
    (crowded,) = m93.calibrate(table([0.001, 0.004]) + table([0.9] * 40, gating=False, prefix="Z"), CONFIG)
    assert crowded.estimate == alone.estimate
    assert crowded.companions["tests"] == 42


def test_nothing_significant_is_insufficient_not_a_failure():
    record = judged([0.2, 0.6, 0.9])
    assert (record.verdict, record.published_verdict, record.published_value) == (
        "insufficient",
        "none",
        None,
    )
    assert record.reasons[0].startswith("ratio_undefined")


@pytest.mark.parametrize("p_values", [[], [0.01], [None, math.nan, 0.01]])
def test_too_few_p_values_are_insufficient(p_values):
    record = judged(p_values)
    assert record.verdict == "insufficient" and record.reasons[0].startswith("not_run")


def test_missing_p_values_change_nothing():
    with_holes = judged([0.001, None, 0.002, math.nan])
    assert with_holes.estimate == judged([0.001, 0.002]).estimate
    assert with_holes.companions["gates_without_p"] == ["X01.m", "X03.m"]


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


def test_every_calibration_enters_whatever_its_file_name():
    """D33: E1b and M3b carry letters in their numbers and still count."""
    records = [{"metric": m, "p": 0.001, "p_kind": "t", "gating": True} for m in ("E1b.x", "M3b.x", "C11.x")]
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


def test_global_corrects_one_p_value_per_circuit():
    tables = {"a/ioi/x": table([0.001, 0.004]), "a/sva/y": table([0.0001, 0.002]), "b/ioi/z": table([None])}
    (record,) = m93.calibrate_global(tables, CONFIG)
    assert record.metric == "M93.multiple_comparisons_global" and not record.gating
    circuits = record.companions["circuits"]
    assert circuits["a/ioi/x"]["p"] == 0.004 and circuits["a/sva/y"]["p"] == 0.002
    # two circuits: BY factor 1 + 1/2
    assert circuits["a/ioi/x"]["by"] == pytest.approx(0.004 * 1.5)
    assert record.verdict == "pass"
    assert record.companions["circuits_without_p"] == ["b/ioi/z"]
    assert record.companions["pooled"]["tests"] == 4
    assert record.published_value == 1.0


def test_global_fails_when_many_circuits_take_a_certificate_away():
    tables = {f"circuit {i}": table([0.03, 0.9][: 1 + (i > 0)]) for i in range(10)}
    (record,) = m93.calibrate_global(tables, CONFIG)
    assert record.verdict == "fail"
    assert not record.companions["circuits"]["circuit 0"]["survives"]


def test_global_says_how_many_gates_were_not_tested():
    (record,) = m93.calibrate_global({"a": table([0.01, None]), "b": table([0.001])}, CONFIG)
    assert record.companions["circuits"]["a"]["gates_not_tested"] == 1


def test_records_are_plain_json():
    json.dumps(judged(BH_1995).to_dict(), allow_nan=False)


def test_global_null_is_rarely_passed():
    """Uniform p-values: the gate passes in none of 300 families of 16, the published rule in few."""
    import numpy as np

    rng = np.random.default_rng(0)
    records = [judged(rng.random(16).tolist()) for _ in range(300)]
    assert sum(record.verdict == "pass" for record in records) == 0
    assert np.mean([record.published_verdict == "pass" for record in records]) < 0.06
