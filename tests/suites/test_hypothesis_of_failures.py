"""Heads named from failures: the one that carries a synthetic effect, nobody on null data, and the circuit that holds them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from circuits.circuit import Circuit, Role, parse_head
from results_io import UserError
from suites.bridge import hypothesis
from suites.bridge.pair import SuitePairs

SETTINGS = {"minimum_share": 0.1, "level": 0.95, "stable": 0.9, "halves": 50, "seed": 0}
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clusters", "share"),
    [
        pytest.param(12, 0.0, marks=pytest.mark.slow),
        (8, 0.1),
        pytest.param(12, 0.1, marks=pytest.mark.slow),
        pytest.param(40, 0.1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_null_data_name_a_head_in_at_most_five_percent(clusters, share) -> None:
    """No head restores more than the minimum share. The worst such null: all 32 restore exactly that."""
    runs, rng = 500, np.random.default_rng(clusters)
    data = (clustered(rng, clusters, share) for _ in range(runs))
    named = sum(bool(hypothesis.carriers(traced(*one), SETTINGS)) for one in data)
    assert named / runs <= 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5


def near(rng: np.random.Generator, clusters: int = 40) -> dict:
    """One strong head, one that carries a third, and six whose share is little more than the minimum: 0.13 to 0.17."""
    effect, gap, labels = clustered(rng, clusters, share=0.0)
    for head, share in ((5, 0.8), (9, 0.35), *((20 + k, 0.13 + 0.008 * k) for k in range(6))):
        effect[head] += share * gap
    return traced(effect, gap, labels)


def test_heads_beyond_the_strongest_are_those_that_halves_name_too() -> None:
    """Two data sets of one truth agreed on a quarter of the weak heads; what is named now is the same set in nearly all pairs."""
    rng = np.random.default_rng(11)
    agree = {"candidates": [], "named": []}
    for _ in range(6):
        pair = [hypothesis.candidates(near(rng), SETTINGS) for _ in range(2)]
        for name, sets in (
            ("candidates", [set(names_of(one)) for one in pair]),
            ("named", [set(names_of(hypothesis.stable(one, SETTINGS))) for one in pair]),
        ):
            agree[name].append(len(sets[0] & sets[1]) / len(sets[0] | sets[1]))
            if name == "named":
                assert all({"L0H5", "L1H1"} <= one for one in sets)
    assert np.mean(agree["candidates"]) < 0.75 and np.mean(agree["named"]) > 0.95


def test_the_strongest_is_named_whatever_the_halves_say_and_the_share_is_that_of_the_halves() -> None:
    effect, gap, clusters = clustered(np.random.default_rng(4), 40, share=0.0)
    effect[3] += 0.19 * gap
    effect[7] += 0.18 * gap
    able = hypothesis.candidates(traced(effect, gap, clusters), SETTINGS)
    assert len(able) == 2 and able[1].selected < 0.9
    assert hypothesis.stable(able, SETTINGS) == able[:1]
    # the same count by hand
    labels, rng, hits = np.unique(clusters), np.random.default_rng(0), 0
    head = int(able[1].head[-1])
    for _ in range(SETTINGS["halves"]):
        order = rng.permutation(len(labels))
        for half in (labels[order[:20]], labels[order[20:]]):
            rows = np.isin(clusters, half)
            low, _ = hypothesis.intervals(effect[:, rows], gap[rows], np.array(clusters)[rows], SETTINGS)[head]
            hits += low > SETTINGS["minimum_share"]
    assert able[1].selected == hits / (2 * SETTINGS["halves"])


# --- the circuit ---------------------------------------------------------------------------------------------------


NAMED = [hypothesis.Carrier("L1H5", 0.9, 0.8, 1.0, 0.7), hypothesis.Carrier("L0H2", 0.3, 0.2, 0.4, 0.1)]
STUDY = SimpleNamespace(
    task=SimpleNamespace(name="failures"), model=SimpleNamespace(name="m", sha256="00"), settings={}
)
GROUP = SuitePairs("months", "A10", "Padding", 20, (), ())


def circuit_with(found: list[str] | None, monkeypatch) -> tuple[Circuit, dict]:
    """What becomes of the named heads where the search finds these heads (None: it refuses)."""

    def find(study, method):
        if found is None:
            raise UserError("no behaviour to search")
        role = Role(tuple(map(parse_head, found)), assigned_by="function", evidence="")
        return SimpleNamespace(circuit=Circuit("c", "failures", "m", {"mover": role}, {}))

    monkeypatch.setattr(hypothesis.discovery, "find", find)
    return hypothesis._circuit(STUDY, NAMED, "ACDC-greedy", GROUP)


@pytest.mark.parametrize(
    ("found", "added"),
    [
        (["L3H1"], ["L0H2", "L1H5"]),
        (["L3H1", "L1H5"], ["L0H2"]),
        (["L0H2", "L1H5"], []),
        (None, ["L0H2", "L1H5"]),
    ],
)
def test_every_named_head_is_in_the_circuit_once(found, added, monkeypatch) -> None:
    circuit, searched = circuit_with(found, monkeypatch)
    assert sorted(map(str, circuit.heads)) == sorted({"L0H2", "L1H5", *(found or ())})
    own = circuit.roles.get(hypothesis.CARRIER)
    assert [str(node) for node in own.heads] == added if added else own is None
    if found:
        assert [str(node) for node in circuit.roles["mover"].heads] == found
    assert searched["found"] == (sorted(found) if found else None) and searched["reason"] == (
        "" if found else "no behaviour to search"
    )
    if added:
        assert ("L1H5 restores 0.90" in own.evidence) is ("L1H5" in added)
    assert circuit.provenance["named"] == ["L1H5 restores 0.900", "L0H2 restores 0.300"]
