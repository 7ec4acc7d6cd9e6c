"""Heads named from failures: the one that carries a synthetic effect, nobody on null data, and the second look at them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from circuits.circuit import Node
from suites.bridge import hypothesis

SETTINGS = {"minimum_share": 0.1, "level": 0.95}
HEADS, PER_CLUSTER = 32, 3


def traced(restored: np.ndarray, gap: np.ndarray, clusters: list[str], broken: np.ndarray | None = None) -> dict:
    names = [f"L{place // 8}H{place % 8}" for place in range(len(restored))]
    by_prompt = {"restored": restored, "broken": restored if broken is None else broken, "gap": gap}
    return {"heads": {"names": names, "clusters": clusters, "by_prompt": by_prompt}}


def clustered(rng: np.random.Generator, clusters: int, share: float) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Effects of 32 heads whose shares of the gap are all `share`, with scatter of clusters and of prompts within them.

    effect[h, i] = gap[i] (share + .1 a[h, cluster of i] + .1 e[h, i]), a and e standard normal.
    """
    member = np.repeat(np.arange(clusters), PER_CLUSTER)
    gap = rng.uniform(2, 6, len(member))
    scatter = 0.1 * rng.standard_normal((HEADS, clusters))[:, member] + 0.1 * rng.standard_normal((HEADS, len(member)))
    return gap * (share + scatter), gap, [str(number) for number in member]


def names_of(found: list[hypothesis.Carrier]) -> list[str]:
    return [carrier.head for carrier in found]


# --- who is named --------------------------------------------------------------------------------------------------


def test_exactly_the_head_that_carries_the_effect_is_named() -> None:
    effect, gap, clusters = clustered(np.random.default_rng(0), 20, share=0.0)
    effect[13] += 0.6 * gap
    (found,) = hypothesis.carriers(traced(effect, gap, clusters, broken=effect / 2), SETTINGS)
    assert found.head == "L1H5"
    assert found.restored == pytest.approx(effect[13].sum() / gap.sum(), rel=1e-12)
    assert found.broken == pytest.approx(found.restored / 2, rel=1e-12)
    assert 0.1 < found.low < found.restored < found.high
    # all theta whose paired t over clusters, corrected for 32 heads, does not reject effect = theta gap
    for theta in (found.low, found.high):
        totals = (effect[13] - theta * gap).reshape(20, PER_CLUSTER).sum(1)
        within = totals - totals.mean()
        t = totals.sum() / (20 / 19 * (within**2).sum()) ** 0.5
        assert abs(t) == pytest.approx(stats.t.ppf(1 - 0.05 / (2 * HEADS), 19), rel=1e-6)


def test_of_several_the_one_that_restores_most_comes_first() -> None:
    effect, gap, clusters = clustered(np.random.default_rng(1), 20, share=0.0)
    for head, share in ((3, 0.4), (30, 0.9), (8, 0.6)):
        effect[head] += share * gap
    assert names_of(hypothesis.carriers(traced(effect, gap, clusters), SETTINGS)) == ["L3H6", "L1H0", "L0H3"]


def test_a_head_with_no_scatter_is_named_above_the_minimum_share_and_not_at_it() -> None:
    gap, clusters = np.full(10, 4.0), [str(i // 2) for i in range(10)]
    effect = np.outer([0.1, 0.1001, 0.0], gap)
    assert names_of(hypothesis.carriers(traced(effect, gap, clusters), SETTINGS)) == ["L0H1"]


def test_the_order_of_prompts_within_clusters_of_one_label_does_not_matter() -> None:
    effect, gap, clusters = clustered(np.random.default_rng(2), 15, share=0.05)
    effect[4] += 0.5 * gap
    order = np.arange(len(gap)).reshape(-1, PER_CLUSTER)[:, ::-1].ravel()
    first, second = (
        hypothesis.carriers(traced(effect[:, rows], gap[rows], [clusters[i] for i in rows]), SETTINGS)
        for rows in (np.arange(len(gap)), order)
    )
    assert names_of(first) == names_of(second) == ["L0H4"]
    assert first[0].low == pytest.approx(second[0].low, rel=1e-9)


def test_prompts_of_one_cluster_name_nobody_however_large_the_effect() -> None:
    gap = np.full(30, 4.0)
    assert hypothesis.carriers(traced(np.outer([1.0, 0.9], gap), gap, ["same"] * 30), SETTINGS) == []


def test_copies_of_the_prompts_within_their_clusters_are_no_new_evidence() -> None:
    effect, gap, clusters = clustered(np.random.default_rng(3), 12, share=0.2)
    once = hypothesis.carriers(traced(effect, gap, clusters), SETTINGS)
    copied = traced(np.tile(effect, 4), np.tile(gap, 4), clusters * 4)
    again = hypothesis.carriers(copied, SETTINGS)
    assert names_of(once) == names_of(again) and once
    assert [one.low for one in once] == pytest.approx([one.low for one in again], rel=1e-9)


@pytest.mark.parametrize(("clusters", "share"), [(12, 0.0), (8, 0.1), (12, 0.1), (40, 0.1)], ids=str)
def test_null_data_name_a_head_in_at_most_five_percent(clusters, share) -> None:
    """No head restores more than the minimum share. The worst such null: all 32 restore exactly that."""
    runs, rng = 500, np.random.default_rng(clusters)
    data = (clustered(rng, clusters, share) for _ in range(runs))
    named = sum(bool(hypothesis.carriers(traced(*one), SETTINGS)) for one in data)
    assert named / runs <= 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5


# --- the second look -----------------------------------------------------------------------------------------------


def confirmed(shares: dict[str, np.ndarray], clusters: list[str]) -> dict[str, dict]:
    """confirm() where each head restores `shares` of a gap of 4 (clean 3, corrupted -1) prompt by prompt."""
    prompts = len(clusters)
    heads = [[0, 0], [0, 1], [1, 0], [1, 1]]
    table = np.zeros((prompts, len(heads)))
    for head, share in shares.items():
        table[:, [str(Node("head", *one)) for one in heads].index(head)] = 4.0 * share
    documents = {
        "01": {
            "data": {
                "clean_logit_diff": [3.0] * prompts,
                "corrupted_logit_diff": [-1.0] * prompts,
                "heads": heads,
                "cluster": clusters,
            }
        },
        "02": {"data": {"denoising": table.tolist()}},
    }
    named = {"named": [{"head": head} for head in shares]}
    return {one["head"]: one for one in hypothesis.confirm(named, documents, SETTINGS)}


def test_confirmed_undecided_and_refuted() -> None:
    clusters = [str(place // 2) for place in range(40)]
    wide = np.repeat(np.where(np.arange(20) % 2, 0.6, -0.3), 2)  # mean .15, standard error about .1
    found = confirmed({"L1H0": np.full(40, 0.5), "L0H1": np.full(40, 0.02), "L1H1": wide}, clusters)
    assert list(found) == ["L1H0", "L0H1", "L1H1"]
    assert [one["verdict"] for one in found.values()] == ["confirmed", "refuted", "undecided"]
    assert [one["restored"] for one in found.values()] == pytest.approx([0.5, 0.02, 0.15])
    assert found["L1H0"]["interval"] == pytest.approx([0.5, 0.5])
    low, high = found["L1H1"]["interval"]
    assert low < 0.1 < high


def test_a_single_cluster_confirms_nothing() -> None:
    (found,) = confirmed({"L1H0": np.full(8, 0.9)}, ["one"] * 8).values()
    assert found["verdict"] == "undecided" and found["interval"] is None
    assert found["restored"] == pytest.approx(0.9)


def test_a_second_named_head_widens_the_interval_of_the_first() -> None:
    rng = np.random.default_rng(0)
    clusters = [str(place) for place in range(30)]
    first, second = 0.5 + 0.2 * rng.standard_normal((2, 30))
    alone, both = confirmed({"L1H0": first}, clusters), confirmed({"L1H0": first, "L0H1": second}, clusters)
    width = [found["L1H0"]["interval"][1] - found["L1H0"]["interval"][0] for found in (alone, both)]
    assert width[0] < width[1]
