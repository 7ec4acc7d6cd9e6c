"""Named heads on prompts that have named nothing: verdicts and p against hand formulas, and the gate that reads them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

import results_io
from calibrations import certificate
from calibrations.calibrate import PRECONDITIONS
from circuits.circuit import Node
from result_schemas import mismatches
from result_types import HeadVerdict
from suites.bridge import confirmation

SETTINGS = {"minimum_share": 0.1, "level": 0.95}
HEADS = ([1, 1], [0, 0], [0, 1], [1, 0])  # in no order that a name could stand for
CLUSTERS = [str(place // 2) for place in range(40)]
SPLITS = ["evaluation"] * 26 + ["held_out"] * 14  # 13 and 7 clusters
RULES = yaml.safe_load((Path(__file__).parents[2] / "configs/certificate/tiers.yaml").read_text())


def measured(shares: dict[str, Any], clusters: list[str] = CLUSTERS, splits: list[str] = SPLITS) -> dict[str, Any]:
    """01 and 02 where each head restores `shares` of a gap of 4 (clean 3, corrupted -1) prompt by prompt."""
    prompts = len(clusters)
    table = np.zeros((prompts, len(HEADS)))
    for head, share in shares.items():
        table[:, [str(Node("head", *one)) for one in HEADS].index(head)] = 4.0 * np.asarray(share)
    baseline = {
        "clean_logit_diff": [3.0] * prompts,
        "corrupted_logit_diff": [-1.0] * prompts,
        "heads": list(HEADS),
        "cluster": clusters,
        "split": splits[:prompts],
    }
    return {"01": {"data": baseline}, "02": {"data": {"denoising": table.tolist()}}}


def confirmed(shares: dict[str, Any], clusters: list[str] = CLUSTERS, split: str | None = None) -> dict[str, dict]:
    found = confirmation.confirm(list(shares), measured(shares, clusters), SETTINGS, split)
    return {one["head"]: one for one in found}


def scattered(mean: float, spread: float = 0.2, seed: int = 0) -> np.ndarray:
    """Shares of 40 prompts in 20 clusters."""
    rng = np.random.default_rng(seed)
    return mean + spread * (np.repeat(rng.standard_normal(20), 2) + 0.3 * rng.standard_normal(40))


# --- the second look -----------------------------------------------------------------------------------------------


def test_confirmed_undecided_and_refuted() -> None:
    wide = np.repeat(np.where(np.arange(20) % 2, 0.6, -0.3), 2)  # mean .15, standard error about .1
    found = confirmed({"L1H0": np.full(40, 0.5), "L0H1": np.full(40, 0.02), "L1H1": wide})
    assert list(found) == ["L1H0", "L0H1", "L1H1"]
    assert [one["verdict"] for one in found.values()] == ["confirmed", "refuted", "undecided"]
    assert [one["restored"] for one in found.values()] == pytest.approx([0.5, 0.02, 0.15])
    assert found["L1H0"]["interval"] == pytest.approx([0.5, 0.5])
    assert [found[head]["p"] for head in ("L1H0", "L0H1")] == [0.0, 1.0]
    low, high = found["L1H1"]["interval"]
    assert low < 0.1 < high


def test_a_single_cluster_confirms_nothing() -> None:
    (found,) = confirmed({"L1H0": np.full(8, 0.9)}, ["one"] * 8).values()
    assert found["verdict"] == "undecided" and found["interval"] is None and found["p"] is None
    assert found["restored"] == pytest.approx(0.9)


def test_a_second_named_head_widens_the_interval_of_the_first() -> None:
    rng = np.random.default_rng(0)
    clusters = [str(place) for place in range(30)]
    first, second = 0.5 + 0.2 * rng.standard_normal((2, 30))
    alone, both = confirmed({"L1H0": first}, clusters), confirmed({"L1H0": first, "L0H1": second}, clusters)
    width = [found["L1H0"]["interval"][1] - found["L1H0"]["interval"][0] for found in (alone, both)]
    assert width[0] < width[1]
    assert alone["L1H0"]["p"] == both["L1H0"]["p"]


def test_interval_and_p_are_those_of_cluster_totals() -> None:
    """With a gap of 4 everywhere the share is a mean: its t test and interval over totals of 20 clusters, by hand."""
    share = scattered(0.25)
    (found,) = confirmed({"L0H0": share}).values()
    totals = (share - share.mean()).reshape(20, 2).sum(1)
    error = np.sqrt(20 / 19 * (totals**2).sum()) / 40
    assert found["p"] == pytest.approx(stats.t.sf((share.mean() - 0.1) / error, 19), rel=1e-9)
    half = stats.t.ppf(0.975, 19) * error
    assert found["interval"] == pytest.approx([share.mean() - half, share.mean() + half], rel=1e-9)


@pytest.mark.parametrize(("split", "rows"), [("evaluation", 26), ("held_out", 14), (None, 40)])
def test_each_split_by_itself_or_all(split, rows) -> None:
    share = np.where(np.array(SPLITS) == "evaluation", 0.8, 0.02)
    (found,) = confirmed({"L0H1": share}, split=split).values()
    expected = {"evaluation": 0.8, "held_out": 0.02, None: (26 * 0.8 + 14 * 0.02) / 40}[split]
    assert found["restored"] == pytest.approx(expected)
    assert (split is None) or found["verdict"] == {"evaluation": "confirmed", "held_out": "refuted"}[split]
    assert rows == sum(split in (None, one) for one in SPLITS)


def test_gaps_weigh_the_prompts() -> None:
    """A ratio of sums: prompts with twice the gap count twice."""
    documents = measured({"L0H0": np.ones(40)})
    documents["01"]["data"]["clean_logit_diff"] = [3.0] * 20 + [7.0] * 20
    (found,) = confirmation.confirm(["L0H0"], documents, SETTINGS)
    assert found["restored"] == pytest.approx(4 * 40 / (4 * 20 + 8 * 20))


def test_heads_that_restore_just_the_minimum_are_confirmed_in_at_most_a_fortieth() -> None:
    """One head, two-sided 95 %: 2.5 % on either side of the share that it truly has."""
    runs = 400
    found = [confirmed({"L0H0": scattered(0.1, seed=seed)})["L0H0"] for seed in range(runs)]
    limit = 0.025 * runs + 3 * (0.025 * 0.975 * runs) ** 0.5
    for verdict in ("confirmed", "refuted"):
        assert 0 < sum(one["verdict"] == verdict for one in found) <= limit
    p = np.array([one["p"] for one in found])
    assert abs((p < 0.5).mean() - 0.5) <= 3 * 0.5 / runs**0.5


# --- the gate ------------------------------------------------------------------------------------------------------


def all_passing() -> dict[str, Any]:
    """Documents in which every gate of every tier passes on both splits: a certificate of the highest tier."""
    tiers = RULES["tiers"].values()
    names = {name for rule in tiers for key in ("all", "any", "not_fail") for name in rule.get(key, ())}
    names = sorted({*names, certificate.BEHAVIOUR})
    records = [{"metric": name, "verdict": "pass", "reasons": [], "needs": None, "p": 0.001} for name in names]
    about = ("model", "model_sha256", "task", "prompts_sha256", "circuit", "circuit_sha256")
    document = {
        "number": "P",
        "subject": dict.fromkeys(about, "x"),
        "records": records,
        "data": {"held_out": copy.deepcopy(records), "verdict": "pass"},
    }
    return {PRECONDITIONS: document}


def certified(named: list[str], documents: dict[str, Any] | None) -> dict[str, Any]:
    return certificate.certify(*confirmation.gated(all_passing(), RULES, named, documents, SETTINGS))


def gate_of(folded: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in folded["preconditions"] if one["metric"] == confirmation.GATE]
    return found


def test_confirmed_heads_keep_the_tier_and_the_largest_p_counts() -> None:
    documents = measured({"L1H0": scattered(0.9), "L0H1": scattered(0.4, seed=1)})
    folded = certified(["L1H0", "L0H1"], documents)
    assert (folded["tier"], folded["blocking"]) == (4, {})
    gate, found = gate_of(folded), confirmation.confirm(["L1H0", "L0H1"], documents, SETTINGS, "evaluation")
    assert (gate["verdict"], list(gate["reasons"])) == ("pass", [])
    assert gate["p"] == max(one["p"] for one in found) > min(one["p"] for one in found)
    assert gate["estimate"] == pytest.approx(found[1]["restored"])


@pytest.mark.parametrize(
    ("second", "verdict"), [(0.02, "fail"), (np.repeat(np.where(np.arange(20) % 2, 0.6, -0.3), 2), "inconclusive")]
)
def test_one_head_that_is_not_confirmed_holds_all_at_tier_0(second, verdict) -> None:
    folded = certified(["L1H0", "L0H1"], measured({"L1H0": np.full(40, 0.9), "L0H1": np.zeros(40) + second}))
    assert folded["tier"] == 0
    (blocking,) = folded["blocking"]["1"]
    assert (blocking["metric"], blocking["verdict"]) == (confirmation.GATE, verdict)
    assert "L0H1 restores 0." in blocking["reason"] and "L1H0" not in blocking["reason"]


def test_a_refuted_head_outweighs_an_undecided_one() -> None:
    wide = np.repeat(np.where(np.arange(20) % 2, 0.6, -0.3), 2)
    folded = certified(["L1H1", "L0H1"], measured({"L1H1": wide, "L0H1": np.full(40, 0.02)}))
    assert gate_of(folded)["verdict"] == "fail"


def test_without_measurement_02_the_gate_is_not_run_and_blocks_tier_1() -> None:
    folded = certified(["L1H0"], None)
    assert folded["tier"] == 0
    (blocking,) = folded["blocking"]["1"]
    assert (blocking["metric"], blocking["verdict"]) == (confirmation.GATE, "insufficient")
    assert blocking["reason"].startswith("not_run")


def test_the_held_out_prompts_are_asked_again_for_the_highest_tier_alone() -> None:
    """Confirmed on the evaluation prompts and refuted on the held-out ones: tier 3."""
    share = np.where(np.array(SPLITS) == "evaluation", 0.8, 0.02)
    folded = certified(["L0H1"], measured({"L0H1": share}))
    assert folded["tier"] == 3
    (blocking,) = folded["blocking"]["4"]
    assert (blocking["metric"], blocking["split"], blocking["verdict"]) == (confirmation.GATE, "held_out", "fail")


def test_rules_and_documents_that_were_given_stay_as_they_are() -> None:
    documents, rules = all_passing(), copy.deepcopy(RULES)
    confirmation.gated(documents, rules, ["L1H0"], measured({"L1H0": np.full(40, 0.9)}), SETTINGS)
    assert documents == all_passing() and rules == RULES
    assert confirmation.GATE not in RULES["tiers"][1]["all"]


# --- the file ------------------------------------------------------------------------------------------------------


def test_the_file_names_what_it_rests_on(tmp_path) -> None:
    for name in ("01_baseline", "02_activation_patching", "141_trace"):
        results_io.write(tmp_path / f"{name}.json", {"of": name})
    records = list(confirmed({"L1H0": np.full(40, 0.9)}).values())
    traced = {"subject": {"model": "m"}, "group": {"suite": "a"}, "named": []}
    document = confirmation.document(records, traced, tmp_path)
    assert (document["number"], document["id"], document["group"]) == ("142", "carriers", {"suite": "a"})
    assert document["records"] == records
    assert [list(mismatches(one, HeadVerdict, "142")) for one in records] == [[]] * len(records)
    digests = {number: results_io.file_digest(results_io.find(tmp_path, number)) for number in ("01", "02", "141")}
    assert document["inputs_sha256"] == digests and len(set(digests.values())) == 3
