"""Samples that no mode looks at are in the results: pass@k of drawn ones, determinism of repeats, by counts made by hand."""

from __future__ import annotations

from math import comb

import pytest
from scipy import stats

import results_io
from suites import repeats, runner
from suites.item import Item, SamplingLeg
from suites.statistics import proportions
from tests.suites import scripted
from tests.suites.scripted import ScriptedModel

N, K = 40, 4
AGREEMENT = "pairwise_agreement[leg=sampled]"
ITEMS = [Item(f"i{k}", f"prompt {k}", answers=("yes",)) for k in range(N)]
RIGHT = [k % (K + 1) for k in range(N)]  # of 4 samples: as many items with 0, 1, 2, 3 and 4 right
SCRIPT = {f"prompt {k}": ["yes"] * right + ["no"] * (K - right) for k, right in enumerate(RIGHT)}


def judged(folder, legs, items=ITEMS, script=SCRIPT, capabilities=("generation", "sampling"), scorer="exact"):
    suite = scripted.suite(items, legs=legs, scorer={"kind": scorer}, minimum=1)
    model = ScriptedModel(script, capabilities=capabilities)
    return runner.run([suite], model, folder, say=lambda line: None).suites[0]


def test_drawn_samples_give_pass_at_k_and_pass_hat_k(tmp_path):
    found = repeats.estimates(judged(tmp_path, (SamplingLeg("sampled", 0.7, samples=K),)))
    one, some, every = (
        f"{name}[leg=sampled,k={k}]" for name, k in (("pass_at_k", 1), ("pass_at_k", K), ("pass_hat_k", K))
    )
    assert list(found) == [one, some, every, AGREEMENT]
    pairs = sum(comb(c, 2) + comb(K - c, 2) for c in RIGHT) / (N * comb(K, 2))
    assert [found[name].value for name in found] == pytest.approx([sum(RIGHT) / (N * K), 0.8, 0.2, pairs])
    assert pairs == pytest.approx(2 / 3)
    assert {one.n for one in found.values()} == {N}
    # of k = 2 the subsets by hand, so that it is known to be over draws without replacement
    assert sum(1 - comb(K - c, 2) / comb(K, 2) for c in RIGHT) / N == pytest.approx((0 + 0.5 + 5 / 6 + 1 + 1) / 5)


def test_they_are_records_of_the_results(tmp_path):
    judged(tmp_path, (SamplingLeg("sampled", 0.7, samples=K),))
    records = {one["metric_id"]: one for one in results_io.read(tmp_path / "103_constraint.json")["records"]}
    record = records["B.constraint.forbidden.pass_hat_k[leg=sampled,k=4]"]
    assert (record["value"], record["n"], record["role"], record["direction"]) == (
        0.2,
        N,
        "descriptive",
        "higher is better",
    )
    assert record["ci"]["low"] < 0.2 < record["ci"]["high"]


def test_a_leg_after_the_first_counts_with_one_sample(tmp_path):
    found = repeats.estimates(judged(tmp_path, (SamplingLeg(), SamplingLeg("sampled", 0.7))))
    assert {name: one.value for name, one in found.items()} == {"pass_at_k[leg=sampled,k=1]": pytest.approx(0.8)}


def test_repeats_at_temperature_zero_give_determinism(tmp_path):
    found = repeats.estimates(judged(tmp_path, (SamplingLeg(samples=K),)))
    assert list(found) == ["determinism[leg=greedy]", "pass_at_k[leg=greedy,k=4]", "pairwise_agreement[leg=greedy]"]
    same, passed, pairs = found.values()
    assert (passed.status, passed.reason) == ("undefined", "one draw: the 4 samples were taken at temperature 0")
    # all four right or none: 16 of 40
    assert pairs.value == pytest.approx(2 / 3) and pairs.ci.low < 2 / 3 < pairs.ci.high
    assert (same.value, same.n, same.ci, same.detail["repeats"]) == (0.4, N, proportions.wilson(16, N).ci, K)


def test_failed_calls_leave_their_item_out(tmp_path):
    lost = {prompt: texts for prompt, texts in SCRIPT.items() if prompt not in ("prompt 0", "prompt 4")}
    drawn = repeats.estimates(judged(tmp_path / "a", (SamplingLeg("sampled", 0.7, samples=K),), script=lost))
    agreeing = drawn.pop(AGREEMENT)
    assert (agreeing.n, agreeing.excluded) == (N - 2, {"fewer than three outputs": 2})
    assert {(one.n, tuple(one.excluded.items())) for one in drawn.values()} == {(N - 2, (("error", 2),))}
    assert drawn["pass_hat_k[leg=sampled,k=4]"].value == pytest.approx(7 / 38)
    same, *_ = repeats.estimates(judged(tmp_path / "b", (SamplingLeg(samples=K),), script=lost)).values()
    assert (same.value, same.n, same.excluded) == (pytest.approx(14 / 38), N - 2, {"error": 2})


def test_without_a_scorer_there_is_no_pass_and_it_is_said(tmp_path):
    found = repeats.estimates(judged(tmp_path, (SamplingLeg("sampled", 0.7, samples=K),), scorer="none"))
    assert found.pop(AGREEMENT).value == pytest.approx(2 / 3)  # whether outputs agree needs no scorer
    assert {(one.status, one.value) for one in found.values()} == {("not_applicable", None)}
    assert {tuple(one.excluded.items()) for one in found.values()} == {(("not scored", N),)}


def test_one_output_of_one_leg_has_no_repeats(tmp_path):
    assert repeats.estimates(judged(tmp_path / "a", (SamplingLeg(),))) == {}
    dropped = judged(
        tmp_path / "b", (SamplingLeg(), SamplingLeg("sampled", 0.7, samples=K)), capabilities=("generation",)
    )
    assert dropped.dropped_legs and repeats.estimates(dropped) == {}


def test_samples_of_alike_items_count_as_fewer(tmp_path):
    """Items in pairs that pass together: as wide as 20 items, not 40, by quantiles of Binomial(n, .5)/n."""
    pairs = [Item(one.id, one.prompt, answers=one.answers, cluster=f"c{k // 2}") for k, one in enumerate(ITEMS)]
    script = {f"prompt {k}": ["yes" if k // 2 % 2 else "no"] * K for k in range(N)}
    width = {}
    for name, items in (("alone", ITEMS), ("pairs", pairs)):
        legs = (SamplingLeg("sampled", 0.7, samples=K),)
        found = repeats.estimates(judged(tmp_path / name, legs, items, script))["pass_hat_k[leg=sampled,k=4]"]
        width[name] = found.ci.high - found.ci.low
        assert found.value == 0.5
    for name, n in (("alone", N), ("pairs", N // 2)):
        low, high = stats.binom(n, 0.5).ppf([0.025, 0.975]) / n
        assert width[name] == pytest.approx(high - low, abs=1e-9)
    assert width["pairs"] > width["alone"]
