"""From recorded outputs to verdicts: never wrong by an error, never a rate from too few, the same again at any time."""

import json
import math
from dataclasses import asdict, replace

import pytest
from scipy import stats

from results_io import UserError
from suites import judgement, modes, runner
from suites.item import Item, SamplingLeg
from suites.log import generations
from suites.statistics import proportions
from tests.suites import scripted
from tests.suites.scripted import ScriptedModel

ITEMS = [Item(f"i{k}", f"prompt {k}", answers=(f"word{k}",)) for k in range(30)]
SCRIPT = {f"prompt {k}": "a forbidden word" if k % 3 == 0 else f"word{k}" for k in range(30)}


def judged(folder, suite, script=SCRIPT):
    found = runner.run([suite], ScriptedModel(script), folder, say=lambda line: None)
    return found.suites[0]


def test_outcomes_are_scored_by_the_suite(tmp_path):
    found = judged(tmp_path, scripted.suite(ITEMS, scorer={"kind": "exact"}))
    assert [case.first.correct for case, _ in found.cases] == [k % 3 != 0 for k in range(30)]
    assert found.counts == {"failed": 10, "passed": 20, "unknown": 0, "error": 0}
    assert [case.item.id for case, _ in found.failures] == [f"i{k}" for k in range(0, 30, 3)]


def test_without_a_scorer_nothing_is_right_or_wrong(tmp_path):
    found = judged(tmp_path, scripted.suite(ITEMS))
    assert {case.first.correct for case, _ in found.cases} == {None}


def test_an_error_is_never_wrong(tmp_path):
    lost = {prompt: text for prompt, text in SCRIPT.items() if prompt != "prompt 1"}
    found = judged(tmp_path, scripted.suite(ITEMS, scorer={"kind": "exact"}), lost)
    case, seen = found.cases[1]
    assert (case.first.correct, case.first.finish, seen.failed) == (None, "error", None)
    assert found.estimates["failure_rate"].n == 29
    assert found.estimates["failure_rate"].excluded == {"error": 1}


def test_confidence_is_the_probability_of_the_output(tmp_path):
    suite = scripted.suite(ITEMS)
    found = judged(tmp_path, suite)
    run = generations.latest(tmp_path / generations.NAME, suite)
    for case, _ in found.cases:
        line = run.generations[generations.Slot(case.item.id, "greedy", 0)]
        assert case.first.confidence == pytest.approx(math.exp(line["logprob"]))
        assert 0 < case.first.confidence <= 1


@pytest.mark.parametrize(("minimum", "status"), [(29, "ok"), (30, "ok"), (31, "insufficient_data")])
def test_fewer_cases_than_the_suite_asks_for_are_no_rate(tmp_path, minimum, status):
    rate = judged(tmp_path, scripted.suite(ITEMS, minimum=minimum)).estimates["failure_rate"]
    assert (rate.status, rate.n) == (status, 30)
    if status == "ok":
        assert rate.value == pytest.approx(1 / 3)
    else:
        assert rate.value is None and rate.detail["share_seen"] == pytest.approx(1 / 3)
        assert rate.reason == "30 judged cases, the suite asks for 31"


def test_variants_that_fail_together_count_as_their_originals(tmp_path):
    """Every original has four variants, of which all or none fail: 9 of 30 fail, and not 36 of 120."""
    gate = {"failure_rate": 0.5, "reason": "a test"}
    suite = scripted.padded({f"q {k}": f"a{k}" for k in range(30)}, ("well ", "oh ", "so ", "now "), gate=gate)
    script = {
        item.prompt: "no" if item.variant and int(item.id.split("-")[1]) < 9 else item.answers[0]
        for item in suite.items
    }
    rate = judged(tmp_path, suite, script).estimates["failure_rate"]
    of_originals, plain = proportions.wilson(9, 30).ci, proportions.wilson(36, 120).ci
    assert (rate.value, rate.n, rate.ci.method) == (0.3, 120, "Wilson, effective sample size")
    assert (rate.ci.low, rate.ci.high) == pytest.approx((of_originals.low, of_originals.high), abs=1e-12)
    assert rate.detail["independent"] == asdict(plain)
    assert (rate.detail["clusters"], rate.detail["design_effect"], rate.detail["effective_n"]) == (30, 4.0, 30.0)
    assert rate.p_value == pytest.approx(stats.norm.cdf(-0.2 / math.sqrt(0.25 / 30)))
    assert rate.assumptions[0] == "clusters are independent"
    assert not any("independent" in note for note in rate.assumptions[1:])
    lines = [json.loads(line) for line in (tmp_path / judgement.NAME).read_text().splitlines()]
    assert [line["cluster"] for line in lines] == [f"clean-{k}" for k in range(30) for _ in range(5)]


def test_a_label_joins_originals(tmp_path):
    """Two originals with the same names: their variants are one sampling unit."""
    items = scripted.padded({f"q {k}": f"a{k}" for k in range(60)}, ("well ",)).items
    items = [
        replace(item, cluster=f"c{int(item.id.split('-')[1]) // 2}") if item.variant is None else item for item in items
    ]
    suite = scripted.suite(items, mode="A10", scorer={"kind": "exact"}, parameters={})
    script = {item.prompt: item.answers[0] for item in items}
    rate = judged(tmp_path, suite, script).estimates["failure_rate"]
    assert (rate.n, rate.detail["clusters"], rate.detail["effective_n"]) == (60, 30, 30.0)


def test_cases_that_share_nothing_keep_the_plain_interval_and_without_a_gate_no_p(tmp_path):
    rate = judged(tmp_path, scripted.suite(ITEMS)).estimates["failure_rate"]
    assert rate == proportions.wilson(10, 30)


def test_outcomes_stand_in_the_order_of_legs_and_samples(tmp_path):
    legs = (SamplingLeg("sampled", 0.7, samples=3), SamplingLeg("greedy"))
    script = {prompt: ["a", "b", "c"] for prompt in SCRIPT}
    found = judged(tmp_path, scripted.suite(ITEMS, legs=legs), script)
    for case, _ in found.cases:
        assert [(one.leg, one.sample, one.text) for one in case.outcomes] == [
            ("sampled", 0, "a"),
            ("sampled", 1, "b"),
            ("sampled", 2, "c"),
            ("greedy", 0, "a"),
        ]


def test_a_corrected_detector_needs_no_model(tmp_path, monkeypatch):
    suite = scripted.suite(ITEMS)
    judged(tmp_path, suite)
    path = tmp_path / generations.NAME
    before = path.read_bytes()
    detect = modes.MODES["A3"].detect
    monkeypatch.setattr(
        modes.MODES["A3"], "detect", lambda case, parameters: replace(detect(case, parameters), failed=False)
    )
    again = judgement.derive(path, [suite])[0]
    assert again.estimates["failure_rate"].value == 0.0
    assert path.read_bytes() == before


def test_what_the_model_said_of_prompts_is_in_the_record(tmp_path):
    suite = scripted.padded({f"q {k}": f"a{k}" for k in range(30)}, ("  ", "well "))
    first = judged(tmp_path, suite, {item.prompt: item.answers[0] for item in suite.items})
    again = judgement.derive(tmp_path / generations.NAME, [suite])[0]
    assert again == first
    assert sum(found.reason.endswith("nothing was changed") for _, found in again.cases) == 30


def test_lines_have_what_a_reader_needs(tmp_path):
    judged(tmp_path, scripted.suite(ITEMS, scorer={"kind": "exact"}))
    lines = [json.loads(line) for line in (tmp_path / judgement.NAME).read_text().splitlines()]
    assert [line["item_id"] for line in lines] == [item.id for item in ITEMS]
    assert lines[0]["detection"] | {"evidence": ""} == {
        "mode": "A3",
        "failed": True,
        "tier": "verified",
        "reason": "",
        "subtype": "forbidden",
        "span": [2, 11],
        "evidence": "",
        "severity": "medium",
        "detail": {},
    }
    assert [line["outcomes"][0]["correct"] for line in lines] == [k % 3 != 0 for k in range(30)]


def test_a_log_without_the_suite(tmp_path):
    judged(tmp_path, scripted.suite(ITEMS))
    with pytest.raises(UserError, match="has no run of forbidden as it is now"):
        judgement.derive(tmp_path / generations.NAME, [scripted.suite(ITEMS[:20])])
