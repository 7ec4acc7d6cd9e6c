"""`run.py judge`: planted biases are found and refused, a fair judge is deployed; what is refused; a judge behind HTTP."""

from __future__ import annotations

import json

import pytest

import results_io
from suites.judging import demo
from tests.commandline import command


def records(path):
    return {one["metric_id"]: one for one in results_io.read(path)["records"]}


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    return results, command("judge", "do=validate", "judge=demo", f"results={results}")


def test_planted_biases_are_found_and_the_gate_refuses_these_judges(validated):
    results, done = validated
    assert done.code == 0, done.errors
    found = {name: results / "judging" / f"demo-{name}" for name in demo.PLANTED}
    passports = {name: results_io.read(folder / "judge.json") for name, folder in found.items()}
    assert {name: one["deploy"] for name, one in passports.items()} == {
        "fair": True, "first": False, "longer": False, "itself": False,
    }  # fmt: skip
    assert {name: one["biases"] for name, one in passports.items()} == {
        "fair": [], "first": ["order"], "longer": ["padding"], "itself": ["authors", "own"],
    }  # fmt: skip
    assert passports["fair"]["kappa"] > 0.9 and max(passports[name]["kappa"] for name in demo.PLANTED[1:]) < 0.5
    order = records(found["first"] / "183_judge_bias.json")
    assert order["J.judge_bias.jbs.order"]["value"] == 1 and order["J.judge_bias.jbs.padding"]["value"] == 0
    own = records(found["itself"] / "183_judge_bias.json")["J.judge_bias.own_texts"]
    assert own["ci"]["low"] > 0.1 and own["n"] >= 50
    fair = results_io.read(found["fair"] / "182_judge_agreement.json")
    assert fair["n"] == {"labelled": 111, "raters": 2, "excluded": {"no majority of raters": 9}}
    lines = [json.loads(line) for line in (found["fair"] / "judgements.jsonl").read_text().splitlines()]
    assert lines[-1]["kind"] == "validated" and lines[-1]["ts"] and lines[-1]["deploy"] is True


def test_a_comparison_by_a_judge_that_was_not_validated_is_exploratory(validated, tmp_path):
    results, _ = validated
    before = command("judge", "do=pairs", "judge=demo", "judge.planted=fair", f"results={tmp_path}")
    assert before.code == 0 and "exploratory, no decision rests on it: judge not validated" in before.output
    after = command("judge", "do=pairs", "judge=demo", "judge.planted=fair", f"results={results}")
    assert after.code == 0 and "exploratory" not in after.output and "better: demo-strong" in after.output
    (path,) = (results / "judging" / "demo-fair").rglob("181_pairwise.json")
    found = results_io.read(path)
    assert (found["verdict"], found["n"]["A"], found["n"]["B"], found["n"]["tie"]) == ("A", 24, 2, 34)
    assert records(path)["J.pairwise.win_rate"]["value"] == pytest.approx((24 + 17) / 60)
    assert records(path)["J.pairwise.win_rate"]["role"] == "confirmatory"
    again = path.read_bytes()
    assert command("judge", "do=pairs", "judge=demo", "judge.planted=fair", f"results={results}").code == 0
    assert path.read_bytes() == again
    first = command("judge", "do=pairs", "judge=demo", "judge.planted=first", f"results={results}")
    assert first.code == 3 and "judge refused: kappa is 0.000" in first.output and "the order decides" in first.output


def test_a_ranking(validated):
    results, _ = validated
    done = command("judge", "do=rank", "judge=demo", "judge.planted=fair", "judge.resamples=1000", f"results={results}")
    assert done.code == 0, done.errors
    (path,) = (results / "judging" / "demo-fair").rglob("184_ranking.json")
    ranks = results_io.read(path)["data"]["ranks"]
    assert ranks["demo-strong"] == {"best": 1, "worst": 1} and ranks["demo-weak"] == {"best": 3, "worst": 3}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["judge"], "judge needs do="),
        (["judge", "do=dance", "judge=demo"], "it is dance and can be pairs, grade, validate, rank"),
        (["judge", "do=pairs"], "judge needs judge="),
        (["judge", "do=grade", "judge=demo"], "judge=demo judges pairs alone"),
        (
            ["judge", "do=pairs", "judge=demo", "judge.rubric=correctness"],
            "is one of grade, and do=pairs needs one of pairs",
        ),
        (["judge", "do=pairs", "judge=demo", "judge.planted=tall"], "judge.planted=tall is unknown"),
        (["judge", "do=pairs", "judge=local"], "judge do=pairs needs a="),
        (["judge", "do=pairs", "judge=local", "a=x", "b=y"], "judge needs the suite"),
        (["judge", "do=pairs", "judge=local", "a=x", "b=y", "suite=a15_codeword"], "x has no generations.jsonl"),
        (["judge", "do=rank", "judge=local", "runs=[x]"], "is no list of two or more"),
        (["judge", "do=pairs", "judge=demo", "judge.most_flips=2.0"], "judge.most_flips=2.0 is out of range"),
        (["judge", "do=pairs", "judge=nosuch"], "judge=nosuch is unknown; use demo, endpoint, local"),
    ],
)
def test_wrong_input_is_one_sentence_and_writes_nothing(typed, said, tmp_path):
    results = tmp_path / "results"
    done = command(*typed, f"results={results}")
    assert done.code == 2 and said in done.errors and done.errors.count("\n") == 1
    assert not results.exists()
