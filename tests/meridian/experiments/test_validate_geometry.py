"""The page's tables are those of the stored result, the bar is kept where it is said to be, and a cell repeats itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import results_io
from circuits.circuit import Node
from meridian import generated_parts, overrides
from meridian.experiments import geometry_cells, geometry_plants, validate_geometry
from results_io import UserError
from suites.geometry import construct, trace

ROOT = Path(__file__).parents[3]
STORED = results_io.read(ROOT / "docs" / "validation" / validate_geometry.FILE)
ROWS = STORED["data"]["rows"]
SETTINGS = overrides.group("experiment", "validate_geometry")


@pytest.mark.parametrize("name", validate_geometry.parts(STORED))
def test_the_page_has_what_was_measured(name):
    assert generated_parts.part(validate_geometry.PAGE, name) == validate_geometry.parts(STORED)[name].strip()


def test_every_cell_of_the_configuration_is_there():
    known = {results_io.sha256({k: row[k] for k in cell}) for cell in geometry_cells.conditions(SETTINGS) for row in ROWS
             if row["metric"] == cell["metric"] and all(row.get(k) == v for k, v in cell.items())}  # fmt: skip
    assert len(known) == len(geometry_cells.conditions(SETTINGS)) == len(ROWS)


def test_estimates_are_unbiased_and_the_published_numbers_are_not():
    squared = [
        row for row in ROWS if row["metric"] in ("ods", "pis", "pss", "ds", "lds", "jbs") and row["bias"] is not None
    ]
    scores = np.array([row["bias"] / row["bias_error"] for row in squared if row["bias_error"] > 0])
    assert abs(scores.mean()) < 0.2 and np.mean(np.abs(scores) < 1.96) > 0.9
    still = [row for row in squared if row["metric"] == "pis" and row["effect"] == 0]
    assert min(row["published"] for row in still) > 0.15 and max(abs(row["estimate"]) for row in still) < 0.05


def test_intervals_hold_the_truth_at_the_smallest_sizes_in_low_dimensions():
    low, high = SETTINGS["band"]
    without = {*validate_geometry.NOTES, "mtmm_components"}  # whose intervals are not shipped, and that has none
    for metric in set(geometry_cells.MAKERS) - without:
        cells = [
            row for row in validate_geometry.at_minimum(ROWS, metric) if row.get("axes", 2) <= 16 and row["coverage"]
        ]
        covered = [row["coverage"] for row in cells]
        pooled = sum(one["share"] * one["n"] for one in covered) / sum(one["n"] for one in covered)
        assert low <= pooled <= high, metric
        assert all(row["coverage"]["high"] >= low for row in cells), metric


def test_no_interval_that_ships_holds_less_than_the_bar_at_any_size():
    low, high = SETTINGS["band"]
    cells = [row for row in ROWS if row["coverage"] and row["metric"] not in validate_geometry.NOTES]
    assert sum(row.get("wording") == "t3" for row in cells) == 36
    assert len(cells) > 340 and [row for row in cells if row["coverage"]["high"] < low] == []
    wide = [row for row in cells if row["coverage"]["low"] > high]  # as the page says of t3 in 384 dimensions
    assert len(wide) < 8 and all((row.get("noise"), row.get("axes")) == ("t3", 384) for row in wide)


def test_what_a_run_reports_has_cells_of_its_own():
    """PIS of five wordings and of one draw, and PSS and DS of seven wordings in pairs."""
    five = [row for row in ROWS if row["metric"] == "pis" and row["wordings"] == 5]
    assert len(five) == 24 and all(row["coverage"] is None and row["estimate"] is not None for row in five)
    single = [row for row in ROWS if row["metric"] == "pis" and row["draws"] == 1]
    assert len(single) == 12 and {row["status"] for row in single} == {"insufficient_data"}
    assert all(row["published"] > 0.7 and row["estimate"] is None for row in single)  # of noise, if the effect is 0
    for metric in ("pss", "ds"):
        pairs = [row for row in validate_geometry.at_minimum(ROWS, metric) if row.get("paired")]
        assert len(pairs) == 24 and {row["outputs"] for row in pairs} == {7}
        assert all(row["coverage"] and row["coverage"]["high"] >= 0.92 for row in pairs)


def test_a_cell_without_a_number_says_so_and_a_paired_one_knows_no_wordings():
    few = {**SETTINGS, "repetitions": 40}
    single = {"metric": "pis", "axes": 2, "noise": "normal", "wordings": 8, "draws": 1, "effect": 0.0}
    found = geometry_cells.measured(single, few)
    assert (found["estimate"], found["status"]) == (None, "insufficient_data") and found["published"] > 0.7
    paired = {"metric": "ds", "axes": 2, "noise": "normal", "outputs": 20, "paired": True, "effect": 1.0}
    found = geometry_cells.measured(paired, few)
    assert found["bias_error"] < 0.08 and abs(found["bias"]) < 3 * found["bias_error"]  # unpaired: four times that


def test_a_mean_over_constructs_has_the_bootstrap_that_holds():
    means = STORED["data"]["means"]
    assert all(0.92 <= row["studentised"] <= 0.98 for row in means)
    assert min(row["percentile"] for row in means) < 0.9  # why it is not shipped


def test_false_positives_are_at_the_level():
    null = [row for row in ROWS if row["effect"] == 0 and row["rejected"] and row["metric"] != "mean_pis"]
    held = [row["rejected"]["low"] <= 0.05 <= row["rejected"]["high"] for row in null]
    assert np.mean(held) > 0.9 and np.mean([row["rejected"]["share"] for row in null]) < 0.06
    outside = [row for row in null if not validate_geometry._holds(row["rejected"], 0.05, 1 - 0.95 ** (1 / len(null)))]
    named = [(row["metric"], row["axes"], row["outputs"], row["rejected"]["share"]) for row in outside]
    assert named == [("pss", 2, 5, 0.088)]  # 8,000 more repetitions gave .047, as the page says
    assert {row["metric"] for row in null} >= {"ods", "ow", "ps", "jbs"}


def test_each_plant_is_found_by_its_metric_and_by_no_other():
    intact, persona, moved = STORED["data"]["planted"]
    assert intact["found"] == [] and persona["found"] == ["PSS teller_glad"] and moved["found"] == ["ODS"]
    for row, changed in (
        (persona, "pss"),
        (moved, "ods"),
    ):  # and by no other: shown to be unchanged, not merely not found
        assert {name for name, found in row["read"].items() if found != geometry_plants.UNCHANGED} == {changed}
        assert row["margin"] == pytest.approx(0.25 * intact["pis"])


def test_a_loss_of_all_that_wording_moves_is_a_change():
    """A tau^2 of .306 that falls to nothing was within the margin of .4, a tenth of the squared shift."""
    margin = 0.25 * 0.306
    assert geometry_plants.reading(-0.306, -0.29, margin) == geometry_plants.CHANGED
    assert geometry_plants.reading(0.057, 0.214, margin) == geometry_plants.UNDECIDED  # neither found nor shown to stay
    assert geometry_plants.reading(-0.029, 0.005, margin) == geometry_plants.UNCHANGED


def test_planted_heads_are_named_first_and_shams_name_none():
    """Trait heads move personas, method heads wordings. One that writes one answer always does so unevenly, and stays apart."""
    rows = [row for row in STORED["data"]["heads"] if row["plant"] != geometry_plants.INTACT]
    own = {kind: [row for row in rows if row["plant"] == kind] for kind in (*geometry_plants.READ_AS, "sham")}
    assert [len(found) for found in own.values()] == [10, 10, 10, 20]
    assert sum(row["right"] for row in own["persona"]) >= 9 and sum(row["right"] for row in own["wording"]) >= 9
    assert sum(row["right"] for row in own["sham"]) >= 19 and {row["kind"] for row in own["sham"]} == {""}
    assert {row["kind"] for row in own["persona"]} == {"trait"} and {row["kind"] for row in own["wording"]} == {
        "method"
    }
    assert Counter(row["kind"] for row in own["position"]) == {trace.UNDECIDED: 7, "trait": 2, "": 1}
    plants = {(row["plant"], row["head"], str(row["words"])) for row in rows}
    assert len(plants) == 50  # no plant is counted twice


def test_shams_name_no_head_that_stays_in_the_model_as_it_is_and_what_is_named_besides_is_counted():
    (intact,) = [row for row in STORED["data"]["heads"] if row["plant"] == geometry_plants.INTACT]
    rows = [row for row in STORED["data"]["heads"] if row["plant"] != geometry_plants.INTACT]
    shams = [row for row in rows if row["plant"] == "sham"]
    named = {head for row in shams for head in row["further"]}
    assert not named & {*intact["stayed"]} and named == {"L0H2"}
    assert sum(not row["further"] for row in shams) == 19 and not any(row["otherwise"] for row in shams)
    for plant, most in (("persona", {"trait": 9}), ("wording", {"both": 21, "trait": 3, "method": 1}), ("sham", {})):
        kinds = Counter(kind for row in rows if row["plant"] == plant for kind in row["further"].values())
        assert {kind: count for kind, count in kinds.items() if kind != trace.UNDECIDED} == most, plant


def test_plants_are_traced_as_they_ship():
    shipped, own = overrides.group("geometry", "pocket"), SETTINGS["heads"]
    assert (own["margin"], own["level"], own["resamples"]) == (
        shipped["trace_margin"], shipped["level"], shipped["trace_resamples"])  # fmt: skip
    pocket = construct.load("pocket").constructs
    assert own["constructs"] == len(pocket) and len(own["wordings"]) == len(pocket[0].of("paraphrase"))


def test_plants_are_never_the_same_and_no_more_are_made_than_there_are():
    config = {**SETTINGS["heads"], "faults": 4, "shams": 4}
    heads = [Node("head", layer, index) for layer in (1, 3) for index in (0, 5)]
    few = list(geometry_plants.plants(config, heads, 0))
    assert len({(kind, str(node), str(faults)) for kind, node, faults in few}) == 16
    assert {(kind, node.layer) for kind, node, _ in few if kind != "sham"} == {
        ("persona", 1), ("position", 3), ("wording", 3)}  # fmt: skip
    with pytest.raises(UserError, match="5 plants of the kind persona; 4 different ones"):
        list(geometry_plants.plants({**config, "faults": 5}, heads, 0))


def test_a_cell_is_the_same_each_time_and_an_unknown_metric_is_refused():
    few = {**SETTINGS, "repetitions": 5}
    cell = next(one for one in geometry_cells.conditions({**few, "only": ["rss"]}))
    assert geometry_cells.measured(cell, few) == geometry_cells.measured(cell, few)
    with pytest.raises(UserError, match="names 'width'; use some of ods, pis"):
        geometry_cells.conditions({**few, "only": ["width"]})


def test_a_run_of_some_metrics_replaces_their_rows_alone(tmp_path):
    page, run = tmp_path / "page.md", tmp_path / validate_geometry.FILE
    (tmp_path / "validation").mkdir()
    one = {row["metric"]: row for row in ROWS}

    def kept_with(rows, by, **changed):
        subject = {
            **STORED["subject"],
            "settings": {**STORED["subject"]["settings"], "only": None} | changed,
            "measured_by": by,
        }
        data = {**STORED["data"], "rows": [{**one[metric], "bias": bias} for metric, bias in rows]}
        results_io.write(run, {**STORED, "subject": subject, "n": {"cells": len(rows)}, "data": data})
        return generated_parts.keep(page, run, validate_geometry.merged)

    whole = kept_with([("ods", 1), ("pis", 2), ("pis", 3), ("rss", 4)], "old")
    assert whole["subject"]["measured_by"] == "old" and len(whole["data"]["rows"]) == 4
    found = kept_with([("pis", 9)], "new", only=["pis"])
    assert [row["bias"] for row in found["data"]["rows"]] == [1, 9, 4] and found["n"] == {"cells": 3}
    assert found["subject"]["measured_by"] == {"ods": "old", "pis": "new", "rss": "old"}
    assert found["data"]["planted"] == STORED["data"]["planted"] and found["subject"]["settings"]["only"] is None
    again = kept_with([("rss", 5)], "newer", only=["rss"])
    assert again["subject"]["measured_by"] == {"ods": "old", "pis": "new", "rss": "newer"}
    with pytest.raises(UserError, match=r"other settings \(seed\)"):
        kept_with([("pis", 9)], "new", only=["pis"], seed=1)
