"""The experiment on planted faults: what is drawn, what is confirmed, and every rate over hand-made rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import results_io
from circuits.circuit import head
from circuits.tasks import lexicon
from meridian.experiments import planted_faults
from suites import declaration
from suites.statistics import proportions
from tests.result_samples import completed

SHIPPED = yaml.safe_load((Path(__file__).parents[3] / "configs/experiment/planted_faults.yaml").read_text())
HEADS = [head(layer, index) for layer in range(4) for index in range(8)]
LEVEL = {"supported_from": 1}
TRACEABLE = 20  # pairs


# --- what is drawn -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copies() -> list[planted_faults.FaultyCopy]:
    return planted_faults.draw_copies(SHIPPED, HEADS)


def test_twenty_faults_and_twenty_shams_each_on_heads_of_their_own(copies) -> None:
    for sham in (False, True):
        own = [copy for copy in copies if copy.sham is sham]
        assert len(own) == 20 == len({copy.fault.head for copy in own})
        assert [copy.name for copy in own] == [f"{'sham' if sham else 'fault'}_{number:02d}" for number in range(20)]


def test_a_sham_is_its_twin_but_for_the_words(copies) -> None:
    for copy in copies:
        months = copy.twin.words if copy.sham else copy.fault.words
        assert len(set(months)) == 3 and set(months) <= set(lexicon.MONTHS)
        if copy.sham:
            assert replace(copy.fault, words=copy.twin.words) == copy.twin
            assert len(set(copy.fault.words)) == 3 and set(copy.fault.words) <= set(SHIPPED["sham_words"])
            assert not set(copy.fault.words) & set(copy.twin.words)
        assert copy.fault.answer in lexicon.NAMES
        assert (copy.fault.pull, copy.fault.push) == (SHIPPED["pull"], SHIPPED["push"])


@pytest.mark.slow
def test_no_prompt_of_either_suite_has_a_word_of_a_sham() -> None:
    for name in (SHIPPED["suite"], SHIPPED["control"]):
        words = {word.strip(".,") for item in declaration.load(name).items for word in item.prompt.split()}
        assert not words & set(SHIPPED["sham_words"])
        assert words & set(lexicon.MONTHS)


def test_the_seed_draws_and_more_faults_than_heads_use_every_head_before_one_again() -> None:
    assert planted_faults.draw_copies(SHIPPED, HEADS) == planted_faults.draw_copies(SHIPPED, HEADS)
    assert planted_faults.draw_copies({**SHIPPED, "seed": 1}, HEADS) != planted_faults.draw_copies(SHIPPED, HEADS)
    many = planted_faults.draw_copies({**SHIPPED, "faults": 70, "shams": 0}, HEADS)
    on = [copy.fault.head for copy in many]
    assert set(on[:32]) == set(on[32:64]) == set(HEADS) and len(set(on[64:])) == 6


# --- the second look, and its control ------------------------------------------------------------------------------


def look(folder: Path, shares: dict[str, float], named: list[str]) -> dict[str, Any]:
    """confirmations() where every head restores the same share of a gap of 4 on 24 prompts of 12 clusters."""
    folder.mkdir()
    order = [[int(name[1]), int(name[3])] for name in shares]
    baseline = {
        "clean_logit_diff": [3.0] * 24,
        "corrupted_logit_diff": [-1.0] * 24,
        "heads": order,
        "cluster": [str(place // 2) for place in range(24)],
        "split": ["evaluation"] * 16 + ["held_out"] * 8,
    }
    n = {"evaluation": 16, "held_out": 8, "heads": len(shares)}
    results_io.write(folder / "01_baseline.json", completed("01", n=n, data=baseline))
    patched = {"denoising": [[4 * share for share in shares.values()]] * 24}
    results_io.write(folder / "02_activation_patching.json", completed("02", n=n, data=patched))
    return planted_faults.confirmations(folder, named, {"minimum_share": 0.1, "level": 0.95})


def test_the_named_heads_are_confirmed_and_the_control_is_a_head_that_was_not_named(tmp_path) -> None:
    found = look(tmp_path / "a", {"L0H0": 0.9, "L0H1": 0.0, "L1H0": 0.05}, ["L0H0", "L1H0"])
    assert found == {"confirmed": ["confirmed", "refuted"], "wrong_head": "L0H1", "wrong_head_verdict": "refuted"}


def test_the_control_can_be_confirmed(tmp_path) -> None:
    found = look(tmp_path / "a", {"L1H1": 0.5, "L0H0": 0.02}, ["L0H0"])
    assert found == {"confirmed": ["refuted"], "wrong_head": "L1H1", "wrong_head_verdict": "confirmed"}


def test_the_control_is_drawn_by_the_folder_s_name(tmp_path) -> None:
    shares = {str(node): 0.0 for node in HEADS}
    drawn = [look(tmp_path / f"fault_{number:02d}", shares, ["L2H2"])["wrong_head"] for number in range(12)]
    (tmp_path / "again").mkdir()
    assert look(tmp_path / "again" / "fault_03", shares, ["L2H2"])["wrong_head"] == drawn[3]
    assert len(set(drawn)) > 6 and "L2H2" not in drawn


# --- rates ---------------------------------------------------------------------------------------------------------


def fault(**changes: Any) -> dict[str, Any]:
    """A fault found, traced, confirmed and certified at tier 1."""
    row = {"sham": False, "fault": {"head": "L1H1"}, "gate": "fail", "pairs": 40, "named": ["L1H1"], "tier": 1}
    return {**row, "confirmed": ["confirmed"], "wrong_head_verdict": "refuted", **changes}


def sham(**changes: Any) -> dict[str, Any]:
    row = {"sham": True, "fault": {"head": "L1H1"}, "gate": "inconclusive", "pairs": 0, "named": [], "tier": None}
    return {**row, "pairs_of_control": 50, "named_on_control": ["L0H6"], **changes}


def untraced(**changes: Any) -> dict[str, Any]:
    """A fault with too few pairs: nothing was named, so nothing was confirmed."""
    row = fault(pairs=TRACEABLE - 1, named=[], tier=None, **changes)
    return {name: value for name, value in row.items() if name not in ("confirmed", "wrong_head_verdict")}


ROWS = [
    fault(),
    fault(tier=2, named=["L1H1", "L0H0"], confirmed=["confirmed", "refuted"]),
    fault(tier=0, wrong_head_verdict="confirmed"),
    fault(tier=1, confirmed=["undecided"]),
    fault(tier=None, confirmed=["refuted"], pairs=TRACEABLE),
    fault(tier=3, named=["L0H0", "L1H1"], confirmed=["confirmed", "confirmed"], gate="pass"),
    untraced(gate="inconclusive"),
    untraced(),
    sham(),
    sham(named=["L1H1"], pairs=20, gate="fail"),
    sham(named_on_control=["L0H6", "L1H1"]),
    sham(named_on_control=[], pairs=25),
    sham(pairs_of_control=TRACEABLE - 1, named_on_control=[]),
    sham(pairs_of_control=0, named_on_control=[]),
]
EXPECTED = {
    "faults that the gate fails": (6, 8),
    "faults with enough pairs to trace": (6, 8),
    "faults whose head is named first": (5, 8),
    "faults with another head named as well": (2, 8),
    "faults whose head is named first and confirmed on the other half": (3, 8),
    "faults whose head is confirmed, certificate of tier 1 or more": (2, 8),
    "faults of which a head that was not named would be confirmed": (1, 6),
    "shams that the gate fails": (1, 6),
    "shams with a head named": (1, 6),
    "shams with enough pairs to trace": (2, 6),
    "shams with enough pairs to trace on the control suite": (4, 6),
    "shams traced on the control suite with a head named that the intact model does not name": (1, 4),
    "of these, where it is the head that was changed": (1, 4),
}


def counts(found: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (rate["k"], rate["n"]) for name, rate in found.items()}


def test_every_rate_over_its_own_rows() -> None:
    found = planted_faults.rates(ROWS, LEVEL, {"named": ["L0H6"]})
    assert counts(found) == EXPECTED
    for rate in found.values():
        by_hand = proportions.wilson(rate["k"], rate["n"])
        assert rate["value"] == rate["k"] / rate["n"]
        assert rate["ci95"] == [by_hand.ci.low, by_hand.ci.high]


def test_none_of_twenty_leaves_a_rate_of_up_to_a_sixth() -> None:
    found = planted_faults.rates([sham()] * 20, LEVEL, {"named": ["L0H6"]})["shams with a head named"]
    assert (found["k"], found["n"], found["value"]) == (0, 20, 0)
    assert found["ci95"] == pytest.approx([0, 0.161125], abs=1e-6)  # z^2 / (n + z^2)


def test_heads_that_the_intact_model_names_too_are_no_fault_of_the_sham() -> None:
    rows = [sham(named_on_control=["L0H6", "L1H1"])]
    (name,) = [name for name in EXPECTED if name.startswith("shams traced on the control suite")]
    for known, hits in ((["L0H6"], 1), (["L0H6", "L1H1"], 0), ([], 1)):
        assert counts(planted_faults.rates(rows, LEVEL, {"named": known}))[name] == (hits, 1)


def test_the_tier_that_counts_as_support_is_the_experiment_s() -> None:
    for tier, hits in ((1, 2), (2, 1), (3, 0)):
        found = counts(planted_faults.rates(ROWS, {"supported_from": tier}, {"named": []}))
        assert found[f"faults whose head is confirmed, certificate of tier {tier} or more"] == (hits, 8)


def test_rates_over_nothing_are_undefined() -> None:
    """Shams of which none could be traced on the control suite say nothing about it."""
    found = planted_faults.rates([fault(), sham(pairs_of_control=0, named_on_control=[])], LEVEL, {"named": []})
    (name,) = [name for name in EXPECTED if name.startswith("shams traced on the control suite")]
    assert found[name] == {"k": 0, "n": 0, "value": None, "ci95": None}
    document = {"rows": [], "rates": found}
    assert f"{name}: 0 of 0" in planted_faults.table(document)


def test_the_table_has_a_line_for_every_copy_and_rate() -> None:
    rows = [{**row, "name": f"copy {place}", "size": 1.0, "rate": 0.25} for place, row in enumerate(ROWS)]
    document = {"rows": rows, "rates": planted_faults.rates(ROWS, LEVEL, {"named": ["L0H6"]})}
    lines = planted_faults.table(document)
    assert len(lines) == len(ROWS) + len(EXPECTED)
    assert lines[1] == "copy 1  L1H1  size 1.0  fails 25.0%  gate fail  pairs 40  named L1H1, L0H0  tier 2"
    assert lines[len(ROWS)] == "faults that the gate fails: 6 of 8 [0.409, 0.929]"
