"""What a suite can show before it is asked: clusters for a gate, and freezing that refuses one which no model could pass."""

from __future__ import annotations

import pytest

from calibrations.statistics import wilson_interval
from results_io import UserError
from scripts import freeze_suites
from suites import declaration, judgement, results, sizing
from suites.item import Item
from suites.modes import rates
from suites.outcome import Case, Detection
from suites.statistics import proportions
from tests.suites import scripted
from tests.suites.test_lock import write

GATED = [name for name in declaration.names() if declaration.read(declaration.find(name)).data["gate"]]


@pytest.mark.parametrize(("limit", "clusters"), [(0.05, 73), (0.1, 35), (0.2, 20), (0.01, 381)])
def test_so_many_clusters_without_a_failure_pass_a_gate(limit, clusters):
    assert sizing.needed(limit) == clusters
    assert wilson_interval(0, clusters)[1] <= limit
    if limit < 0.16:  # under 20 there is no interval at all
        assert wilson_interval(0, clusters - 1)[1] > limit


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", GATED)
def test_a_model_without_a_failure_passes_the_gate_of_every_suite(name):
    """Ten of the 20 that pocket reads had an upper end of .161 against a gate of .10."""
    suite = declaration.load(name)
    size = sizing.of(suite)
    assert size.upper <= suite.gate["failure_rate"]
    # the same end as a run of that model has, not one of its own arithmetic
    clusters = sizing.clusters_of(suite)
    judged = [(Case(Item(str(i), "", cluster=one), ()), Detection(False, "verified")) for i, one in enumerate(clusters)]
    rate = rates.clustered(rates.failure_rate(judged), judged)
    assert rate.bounds.high == pytest.approx(size.upper, abs=1e-12)
    verdicts = judgement.JudgedSuite(suite, True, cases=tuple(judged), estimates={judgement.RATE: rate})
    assert results.gate(verdicts) is True


def test_controls_and_originals_are_no_cases():
    sizes = {
        name: sizing.of(declaration.load(name)) for name in ("a15_codeword", "a10_padding_color", "a04_color_sampled")
    }
    assert (sizes["a15_codeword"].cases, round(sizes["a15_codeword"].worth)) == (246, 82)
    assert (sizes["a10_padding_color"].cases, round(sizes["a10_padding_color"].worth)) == (320, 80)
    assert sizes["a04_color_sampled"].cases == 40


def test_freezing_says_what_a_suite_can_show_and_refuses_an_impossible_gate(tmp_path, capsys):
    items = [{"id": f"i{k}", "prompt": f"Say {k}", "cluster": f"c{k // 2}"} for k in range(80)]
    gate = {"failure_rate": 0.1, "reason": "a test"}
    folder = write(tmp_path / "mine", items=items, gate=gate)
    assert freeze_suites.main([str(folder)]) == 0
    assert "80 cases worth 40, without a failure at most 8.8 %" in capsys.readouterr().out
    small = write(tmp_path / "small", items=items[:60], gate=gate)
    assert freeze_suites.main([str(small)]) == 2
    said = capsys.readouterr().err
    assert "gate.failure_rate is 0.1, which no model can pass: 60 cases in clusters are worth 30" in said
    assert "ends at 0.114; add contents until they are worth 35" in said and said.count("\n") == 1
    assert not (small / "suite.lock.jsonl").exists()
    write(small, items=items[:60], gate=gate | {"failure_rate": 0.12})
    assert freeze_suites.main(["--check", str(small)]) == 1  # not written yet, and no longer refused


def test_a_suite_of_few_cases_cannot_pass_whatever_its_gate():
    few = scripted.suite([Item(str(i), "") for i in range(19)], gate={"failure_rate": 0.5, "reason": "a test"})
    with pytest.raises(UserError, match="no model can pass: 19 cases"):
        sizing.require_passable(few, "few")


def test_items_for_a_width_count_the_design_effect():
    """381 independent items give an interval of .10 around a half (n of Wilson 1927); twins of one outcome are worth half."""
    alone = proportions.wilson(50, 100)
    assert sizing.items_for_width(alone) == 381
    twins = proportions.clustered([i % 4 < 2 for i in range(100)], [str(i // 2) for i in range(100)])
    assert twins.detail["design_effect"] == 2
    assert sizing.items_for_width(twins) == 762
