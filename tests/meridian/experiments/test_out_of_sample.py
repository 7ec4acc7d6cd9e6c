"""The out-of-sample constructions: every design is declared, every declaration is planted, and the two agree."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.console import Console

import results_io
from calibrations.rules import Release
from circuits import planted
from meridian import config_files, overrides
from meridian.experiments import out_of_sample
from meridian.reporter import Reporter
from meridian.trackers.base import NeverFatal, Tracker
from results_io import UserError

CONFIG = yaml.safe_load((Path(__file__).parents[3] / "configs" / "experiment" / "out_of_sample.yaml").read_text())
FOUND = {one.declaration.name: one for one in out_of_sample.constructions(CONFIG)}


def test_every_design_is_declared_with_its_own_sentence():
    assert set(FOUND) == set(planted.OUT_OF_SAMPLE) and not set(FOUND) & set(planted.VARIANTS)
    for name, one in FOUND.items():
        assert one.declaration.planted == planted.truth(name).pathology, name
        assert one.circuit == planted.claimed_circuits(name)["ioi"]


@pytest.mark.parametrize("name", FOUND)
def test_truth_is_what_the_claim_leaves_out_or_adds(name):
    told, claimed, true = FOUND[name].declaration, set(FOUND[name].circuit.heads), set(planted.truth(name).heads)
    assert planted.truth(name).sound == (told.truth == "true_complete")
    if told.truth == "true_complete":
        assert claimed == true
    elif told.truth == "incomplete":
        assert claimed < true
    else:
        assert claimed - true or len(claimed) == 1


def test_permutations_are_of_the_same_heads_and_weights():
    named = {name: one.declaration.same_tier_as for name, one in FOUND.items() if one.declaration.same_tier_as}
    assert len(named) == 5
    for name, other in named.items():
        assert FOUND[name].circuit.heads == FOUND[other].circuit.heads
        assert planted.weights_key(name) == planted.weights_key(other)
        assert FOUND[name].circuit.roles != FOUND[other].circuit.roles


def test_a_construction_is_loaded_with_its_claim():
    (one,) = out_of_sample.constructions({**CONFIG, "only": ["duplicate_left_out"]}, device="cpu")
    model = one.model()
    assert (model.n_layers, model.n_heads) == (4, 12)
    assert model.circuits["ioi"] == one.circuit and one.circuit.mlps == (3,)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"truth": "perfect"}, "has truth 'perfect'"),
        ({"highest_tier": 3}, "highest_tier is below 3"),
        ({"lowest_tier": 3}, "none both"),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(change, sentence):
    with pytest.raises(UserError, match=sentence):
        out_of_sample.declaration("one_head", {**CONFIG["constructions"]["one_head"], **change})


@pytest.mark.slow
def test_the_lighter_settings_measure_what_every_gate_reads(tmp_path):
    """A gate without its measurement would keep every claim below its tier, whatever the claim's quality."""
    config = config_files.plain(overrides.composed(["experiment=out_of_sample", "model.device=cpu"]))
    config["experiment"] = out_of_sample.laid_over(config["experiment"]) | {
        "prompts": {"evaluation": 100, "held_out": 30}
    }
    folded = out_of_sample.certified(FOUND["roles_one"], 0, config, tmp_path)
    blocking = [gate for gates in folded["blocking"].values() for gate in gates]
    assert not [gate for gate in blocking if gate["reason"].startswith("not_run: no ")]
    # as it was while nothing said what all heads are worth under resample
    assert "P.outside" not in {gate["metric"] for gate in blocking if gate["split"] == "evaluation"}


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="'nobody', which is not declared"):
        out_of_sample.constructions({**CONFIG, "only": ["nobody"]})
    with pytest.raises(UserError, match="declared and not planted"):
        out_of_sample.declaration("nobody", CONFIG["constructions"]["one_head"])


def test_prompts_of_a_construction_do_not_depend_on_which_others_are_run(monkeypatch, tmp_path):
    seen = {}

    def results(asked, workers):
        seen.update({told.name: place for _, told, place, _, _ in asked})
        return iter([(at, _row(told)) for at, (_, told, *_) in enumerate(asked)])

    monkeypatch.setattr(out_of_sample.processes, "results", results)
    only = ["many_small", "position_part"]
    out_of_sample.run(_context(tmp_path, {**CONFIG, "only": only}))
    names = list(CONFIG["constructions"])
    assert seen == {name: names.index(name) for name in only}


def test_a_run_of_some_keeps_the_rows_of_the_others_with_the_rules_that_judged_them(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- out of sample -->\n<!-- /out of sample -->\n")
    (tmp_path / "validation").mkdir()
    for rules, names, tier in (("0.1", ["many_small", "one_head"], 2), ("0.2", ["all_heads", "one_head"], 1)):
        rows = [{**_whole_row(name), "tier": tier, "rules": rules} for name in names]
        config = {"experiment": {**CONFIG, "only": None if rules == "0.1" else names}}
        results_io.write(tmp_path / out_of_sample.FILE, out_of_sample.document(rows, config))
        out_of_sample.update(tmp_path, page)
    kept = results_io.read(tmp_path / "validation" / out_of_sample.FILE)["data"]["constructions"]
    assert [(one["name"], one["tier"], one["rules"]) for one in kept] == [
        ("all_heads", 1, "0.2"),
        ("one_head", 1, "0.2"),
        ("many_small", 2, "0.1"),
    ]
    assert "- judged under rules 0.2: 2, 0.1: 1\n" in page.read_text()
    assert "| many small | many small heads | true and complete | ≥ 3 | **2 !** | – | 0.1 |" in page.read_text()
    other = {"experiment": {**CONFIG, "only": ["one_head"], "seed": 1}}
    results_io.write(tmp_path / out_of_sample.FILE, out_of_sample.document([_whole_row("one_head")], other))
    with pytest.raises(UserError, match=r"has other settings \(seed\) than this run"):
        out_of_sample.update(tmp_path, page)


def test_a_row_says_which_rules_judged_it(monkeypatch):
    released = Release.read()
    assert out_of_sample.judging_rules() == released.version
    code = {**released.rules.code, "calibrations/rules.py": "0" * 12}
    monkeypatch.setattr(out_of_sample.code_digest, "of_each", lambda stored: code)
    assert out_of_sample.judging_rules() == f"changed from {released.version}"


def _whole_row(name):
    told = FOUND[name].declaration
    return {**asdict(told), "heads": 7, "tier": 1, "met": told.lowest_tier is None, "blocked_by": [], "rules": "0.1"}


def _row(told):
    return {
        "name": told.name,
        "truth": told.truth,
        "tier": 0,
        "met": True,
        "same_tier_as": None,
        "blocked_by": [],
        "rules": "0.1",
    }


def _context(folder, experiment) -> Any:
    """As much of a run's context as the experiment reads."""
    settings = {"experiment": experiment, "model": {"device": "cpu"}}
    reporter = Reporter(Console(file=io.StringIO()))
    reporter.tracker = NeverFatal(Tracker(), print)
    return SimpleNamespace(settings=settings, experiment_folder=lambda name: folder / name, reporter=reporter)
