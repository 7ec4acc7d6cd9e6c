"""The numbered results: every estimate with its keys, gates by the whole interval, the same bytes for the same outputs."""

import json
from dataclasses import replace

import pytest

import results_io
from calibrations import summary
from suites import modes, results, runner
from suites.estimate import Estimate, Interval, missing
from suites.item import Item
from suites.judgement import JudgedSuite
from suites.models.base import Likelihood
from suites.statistics import proportions
from tests.suites import scripted
from tests.suites.scripted import ScriptedModel

KEYS = set(
    "metric_id family role subject value unit direction baseline n n_excluded ci p_value test effect threshold passed status "
    "reason evidence".split()
)
GATE = {"failure_rate": 0.5, "reason": "a test"}
ITEMS = [Item(f"i{k}", f"prompt {k}", answers=(f"word{k}",)) for k in range(40)]


def forbidden(n_failed, **changes):
    script = {f"prompt {k}": "a forbidden word" if k < n_failed else "fine" for k in range(40)}
    return scripted.suite(ITEMS, **changes), script


def run(folder, *pairs, **settings):
    script = {prompt: text for _, texts in pairs for prompt, text in texts.items()}
    model = ScriptedModel(script, **settings.pop("model", {}))
    return runner.run([suite for suite, _ in pairs], model, folder, say=lambda line: None, **settings)


def test_the_file_of_a_mode(tmp_path):
    suite, script = forbidden(10, gate=GATE)
    run(tmp_path, (suite, script))
    document = results_io.read(tmp_path / "103_constraint.json")
    assert (document["number"], document["id"], document["kind"]) == ("103", "constraint", "behaviour")
    assert document["n"] == {"suites": 1, "failed": 10, "passed": 30, "unknown": 0, "error": 0}
    assert document["subject"]["suites"] == {"forbidden": suite.sha256}
    rate = document["records"][0]
    for path in tmp_path.glob("1*.json"):
        assert all(set(record) >= KEYS for record in results_io.read(path)["records"])
    assert (rate["metric_id"], rate["value"], rate["n"], rate["role"]) == (
        "B.constraint.forbidden.failure_rate",
        0.25,
        40,
        "confirmatory",
    )
    # Wilson 10/40 by hand: (p + z2/2n -+ z sqrt(p q/n + z2/4n2)) / (1 + z2/n)
    assert rate["ci"] == pytest.approx(
        {"low": 0.1418702, "high": 0.4019396, "level": 0.95, "method": "Wilson"}, abs=1e-6
    )
    assert (rate["threshold"], rate["passed"]) == (0.5, True)
    told = document["data"]["suites"]["forbidden"]
    assert told["counts"] == {"failed": 10, "passed": 30, "unknown": 0, "error": 0}
    assert told["failures"] == [f"i{k}" for k in range(10)]
    assert told["worst"][0] == {
        "item": "i0",
        "prompt": "prompt 0",
        "expected": ["word0"],
        "output": "a forbidden word",
        "subtype": "forbidden",
        "evidence": "'forbidden' is forbidden",
        "span": [2, 11],
        "severity": "medium",
        "tier": "verified",
    }


@pytest.mark.parametrize("number", range(1, 17))
def test_numbers_of_the_modes(number):
    mode = modes.MODES[f"A{number}"]
    document = results.mode_document(mode, [], results.TestedModel("m", {}, 0))
    assert document["number"] == str(100 + number)
    assert document["id"] == mode.NAME


def rated(low, value, high, gate=GATE):
    rate = Estimate(value, "share", 40, Interval(low, high, 0.95, "Wilson"))
    return JudgedSuite(replace(scripted.suite(ITEMS), gate=gate), True, estimates={"failure_rate": rate})


@pytest.mark.parametrize(
    ("low", "value", "high", "passed"),
    [
        (0.1, 0.2, 0.49, True),
        (0.1, 0.2, 0.5, True),  # the gate is the largest rate that passes
        (0.1, 0.2, 0.51, None),
        (0.49, 0.7, 0.9, None),
        (0.5, 0.7, 0.9, None),
        (0.51, 0.7, 0.9, False),
    ],
)
def test_a_gate_needs_the_whole_interval(low, value, high, passed):
    assert results.gate(rated(low, value, high)) is passed


def test_no_verdict_without_a_gate_or_a_rate():
    assert results.gate(rated(0, 0.1, 0.2, gate=None)) is None
    suite = replace(scripted.suite(ITEMS), gate=GATE)
    none = missing("insufficient_data", "too few", "share")
    assert results.gate(JudgedSuite(suite, True, estimates={"failure_rate": none})) is None
    assert results.gate(JudgedSuite(suite, False, "no chat")) is None


def test_pooled_corrections_find_one_p_value_for_each_gated_suite(tmp_path):
    one, script = forbidden(3, id="one", gate={"failure_rate": 0.25, "reason": "a test"})
    two = replace(one, id="two", gate={"failure_rate": 0.05, "reason": "a test"}, sha256="2")
    few = replace(one, id="few", minimum=41, sha256="3")
    free = replace(one, id="free", gate=None, sha256="4")
    run(tmp_path / "m" / "suites", (one, script), (two, script), (few, script), (free, script))
    records = {
        record["suite"]: record
        for record in results_io.read(tmp_path / "m" / "suites" / "103_constraint.json")["records"]
        if record["metric_id"].endswith(".failure_rate")
    }
    # (3/40 - .25) / sqrt(.25 .75 / 40) = -2.556, and (3/40 - .05) / sqrt(.05 .95 / 40) = .7255
    assert records["one"]["p_value"] == pytest.approx(0.005294, abs=2e-6)
    assert records["two"]["p_value"] == pytest.approx(0.76592, abs=2e-5)
    assert (records["one"]["passed"], records["two"]["passed"]) == (True, None)
    assert records["one"]["test"] == "one-sided score test, rate below 0.25"
    assert (records["free"]["role"], records["free"]["p_value"]) == ("descriptive", None)
    pooled = summary.behaviour(tmp_path, 0.05)["B"]
    assert (pooled["tests"], pooled["without_p"]) == (2, 1)
    assert pooled["adjusted_p"] == {
        "m/suites: B.constraint.one.failure_rate": pytest.approx(2 * records["one"]["p_value"]),
        "m/suites: B.constraint.two.failure_rate": pytest.approx(records["two"]["p_value"]),
    }


def test_too_few_never_pass(tmp_path):
    suite, script = forbidden(0, gate=GATE, minimum=41)
    run(tmp_path, (suite, script))
    rate = results_io.read(tmp_path / "103_constraint.json")["records"][0]
    assert (rate["status"], rate["value"], rate["passed"]) == ("insufficient_data", None, None)


@pytest.mark.parametrize("n", [19, 20])
def test_fewer_than_twenty_cases_have_no_interval_and_no_verdict(tmp_path, n):
    """Also in a suite that asks for fewer: no failure of 20 is below a gate of .5 with p = P(Z <= -sqrt(20))."""
    suite = scripted.suite(ITEMS[:n], gate=GATE, minimum=1)
    (judged,) = run(tmp_path, (suite, {item.prompt: "fine" for item in suite.items})).suites
    rate = results_io.read(tmp_path / "103_constraint.json")["records"][0]
    assert (rate["status"], rate["value"], rate["n"]) == ("ok", 0, n)
    if n == 20:
        assert (rate["passed"], rate["p_value"]) == (True, pytest.approx(3.87e-6, rel=1e-2))
        assert rate["ci"]["high"] == pytest.approx(0.1611, abs=5e-5)
    else:
        assert (rate["passed"], rate["p_value"], rate["ci"]) == (None, None, None)
        assert "no interval: over 19, fewer than 20" in rate["assumptions"]
    assert results.gate(judged) is (True if n == 20 else None)


def test_a_part_of_fewer_than_twenty_has_no_interval(tmp_path):
    clean = {f"question {k}": f"yes{k}" for k in range(25)}
    suite = scripted.padded(clean, ["well then "], minimum=1)
    script = {item.prompt: item.answers[0] if int(item.id.split("-")[1]) < 19 else "no" for item in suite.items}
    run(tmp_path, (suite, script))
    records = {
        one["metric_id"].split(".")[-1]: one for one in results_io.read(tmp_path / "110_padding.json")["records"]
    }
    # the rate is over the 19 right ones, both accuracies over all 25
    assert (records["failure_rate"]["status"], records["failure_rate"]["n"]) == ("ok", 19)
    assert records["failure_rate"]["ci"] is None
    assert (records["accuracy_clean"]["n"], records["accuracy_clean"]["value"]) == (25, 0.76)
    assert records["accuracy_clean"]["ci"]["low"] == pytest.approx(proportions.wilson(19, 25).ci.low)


def test_mcnemar_has_an_effect_and_a_baseline(tmp_path):
    suite = scripted.padded({f"question {k}": f"yes{k}" for k in range(40)}, ["well then "])
    script = {item.prompt: item.answers[0] for item in suite.items}
    script |= {"question 0": "no"} | {f"well then question {k}": "no" for k in range(10)}
    run(tmp_path, (suite, script))
    records = {
        one["metric_id"].split(".")[-1]: one for one in results_io.read(tmp_path / "110_padding.json")["records"]
    }
    found = records["mcnemar"]
    assert found["baseline"] == {"value": 0.975, "kind": "measured", "source": "accuracy_clean"}
    # h = 2 asin sqrt(.75) - 2 asin sqrt(.975) by hand
    assert found["effect"] == {"name": "Cohen's h", "value": pytest.approx(2.0943951 - 2.8240322, abs=1e-6)}
    assert {(one["baseline"], one["effect"]) for name, one in records.items() if name != "mcnemar"} == {(None, None)}
    assert (found["direction"], records["accuracy_changed"]["direction"]) == ("lower is better", "higher is better")


def test_not_applicable_is_no_record_and_no_failure(tmp_path):
    suite, script = forbidden(10, gate=GATE, requires=("chat",))
    run(tmp_path, (suite, script))
    document = results_io.read(tmp_path / "103_constraint.json")
    assert document["records"] == []
    told = document["data"]["suites"]["forbidden"]
    assert (told["applies"], told["gate"]["passed"]) == (False, None)
    assert told["reason"] == "the model takes no system message and no chat turns"


def test_the_same_bytes_again_and_no_time_in_them(tmp_path):
    pair = forbidden(10)
    for name in ("one", "two"):
        run(tmp_path / name, pair)
    names = sorted(path.name for path in (tmp_path / "one").glob("1*.json"))
    assert names == ["103_constraint.json", "131_taxonomy_coverage.json"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        assert '"ts"' not in (tmp_path / "one" / name).read_text()


def test_other_outputs_are_another_input(tmp_path):
    digests = set()
    for failed in (10, 11):
        run(tmp_path / str(failed), forbidden(failed))
        digests.add(results_io.read(tmp_path / str(failed) / "103_constraint.json")["inputs_sha256"]["scores"])
    assert len(digests) == 2


def test_the_worst_come_first(tmp_path):
    suite, script = forbidden(30)
    judged = run(tmp_path, (suite, script | {"prompt 7": "all forbidden", "prompt 9": "so forbidden"})).suites[0]
    shown = results.worst(judged)
    assert len(shown) == results.WORST
    confidences = [case.first.confidence for case, _ in shown]
    assert confidences == sorted(confidences, reverse=True)
    failures = sorted((case.first.confidence for case, _ in judged.failures), reverse=True)
    assert confidences == failures[: results.WORST]
    severe = replace(
        judged,
        cases=tuple(
            (case, replace(found, severity="high")) if case.item.id == "i29" else (case, found)
            for case, found in judged.cases
        ),
    )
    assert results.worst(severe)[0][0].item.id == "i29"


def test_coverage_of_the_taxonomy(tmp_path):
    live, script = forbidden(10, contexts=("extraction",))
    absent = scripted.suite(ITEMS[:20], id="absent", mode="A1", parameters={}, requires=("chat",), contexts=("agents",))
    found = run(tmp_path, (live, script), (absent, script)).coverage
    assert found["live"] == {"A3": ["forbidden"]}
    assert len(found["relevant"]) == 16 and set(found["missing"]) == set(modes.MODES) - {"A3"}
    assert found["missing"]["A1"] == "absent: the model takes no system message and no chat turns"
    assert found["missing"]["A2"] == "no suite"
    document = results_io.read(tmp_path / "131_taxonomy_coverage.json")
    assert document["records"][0]["value"] == pytest.approx(1 / 16)
    agents = run(tmp_path, (live, script), (absent, script), context="agents").coverage
    # A3's suite says that it matters for extraction alone; of modes without a suite nobody knows
    assert "A3" not in agents["relevant"] and "A1" in agents["relevant"] and len(agents["relevant"]) == 15


def test_likelihoods_of_choices(tmp_path):
    """O22: each way of normalising has its own winner."""
    items = [Item(f"q{k}", f"question {k}", answers=("absolutely",), choices=("yes", "absolutely")) for k in range(40)]
    suite = scripted.suite(items)

    class Model(ScriptedModel):
        def loglikelihood(self, pairs):
            found = {" yes": Likelihood(-2.0, True, 1), " absolutely": Likelihood(-3.0, False, 2)}
            return [found[choice] for _, choice in pairs]

    model = Model({item.prompt: "yes" for item in items}, capabilities=("generation", "logprobs"))
    judged = runner.run([suite], model, tmp_path, say=lambda line: None).suites[0]
    assert len(judged.likelihoods) == 40
    document = results_io.read(tmp_path / "121_likelihood.json")
    values = {record["metric_id"]: record["value"] for record in document["records"]}
    assert (values["L.forbidden.acc"], values["L.forbidden.acc_norm"], values["L.forbidden.acc_token"]) == (
        0.0,
        1.0,
        1.0,
    )
    # confidence 1/(1+1/e) in a choice that is always wrong: that is the ECE, the gap and, squared, the Brier score
    sure = 1 / (1 + 2.718281828459045**-1)
    assert values["L.forbidden.ece"] == pytest.approx(sure, abs=1e-6)
    assert values["L.forbidden.brier"] == pytest.approx(sure**2, abs=1e-6)
    assert values["L.forbidden.aurc"] == pytest.approx(1.0)
    assert document["data"]["risk_coverage"]["forbidden"] == {"threshold": [None], "coverage": [1.0], "risk": [1.0]}
    before = (tmp_path / "121_likelihood.json").read_bytes()
    model.loglikelihood = None  # known from the record
    runner.run([suite], model, tmp_path, say=lambda line: None)
    assert (tmp_path / "121_likelihood.json").read_bytes() == before


def test_results_are_strict_json(tmp_path):
    run(tmp_path, forbidden(10))
    for path in tmp_path.glob("1*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)
