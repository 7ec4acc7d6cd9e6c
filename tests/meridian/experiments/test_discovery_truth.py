"""The table of discovery on known circuits: its numbers, its page, and a row measured anew."""

from __future__ import annotations

import pytest

import results_io
from circuits.circuit import head
from circuits.discovery import METHODS
from meridian import config_files, generated_parts
from meridian.experiments import discovery_truth
from meridian.overrides import CONFIGS
from results_io import UserError
from tests.commandline import started

STORED = discovery_truth.PAGE.parent / "validation" / discovery_truth.FILE
SETTINGS = config_files.plain(config_files.read(CONFIGS / "experiment" / "discovery_truth.yaml"))


def a_row(model: str, method: str, **changed: object) -> dict:
    numbers = {"precision": 1.0, "recall": 0.5, "r_precision": 0.5, "auroc": 0.75, "cpr": 0.9, "cmd": 0.1}
    row = {"model": model, "method": method, "heads": 32, "true": ["L0H0", "L1H1"], "left_out": None, "set": ["L0H0"]}
    row |= {"complete": True, "by_faithfulness": {"precision": 1.0, "recall": 0.5}, **numbers}
    return {**row, "seconds": {"ranking": 1.0, "stopping": 2.0}, **changed}


def test_means_are_over_the_models_that_every_method_was_asked_of() -> None:
    rows = [a_row("a", "AtP"), a_row("b", "AtP", recall=1.0), a_row("c", "AtP", recall=0.0)]
    rows += [a_row("a", "GIM", recall=1.0), a_row("b", "GIM", recall=1.0), a_row("c", "GIM", left_out="too large")]
    found = discovery_truth.means(rows)
    assert (found["AtP"]["models"], found["AtP"]["recall"], found["GIM"]["recall"]) == (2, 0.75, 1.0)
    assert found["AtP"]["seconds"] == 3.0 and found["AtP"]["recall_by_faithfulness"] == 0.5


def test_sentences_count_sets_that_are_exactly_right_before_and_after() -> None:
    exact = {"precision": 1.0, "recall": 1.0}
    rows = [a_row("a", "AtP", **exact, r_precision=1.0), a_row("a", "GIM", **exact, by_faithfulness=exact)]
    rows.append(a_row("b", "GIM", left_out="144 heads, and it is asked of at most 32 here"))
    assert discovery_truth.sentences(rows) == [
        "rankings with all true heads first: 1 of 2",
        "sets that are exactly the true heads: 2 of 2; by faithfulness alone 1",
        "GIM was not asked of b: 144 heads, and it is asked of at most 32 here",
    ]


def test_a_table_has_both_sets_and_every_number_of_the_ranking() -> None:
    text = discovery_truth.model_table([a_row("a", "AtP", recall=1.0, complete=False)], "a")
    assert "| AtP | 1 (not complete) | 1.00 → 1.00 | 0.50 → 1.00 | 0.50 | 0.75 | 0.90 | 0.10 | 3.0 |" in text


def test_the_models_are_those_that_only_names() -> None:
    assert discovery_truth.subjects({**SETTINGS, "only": ["trained", "sound"]}) == {
        "trained": "trained",
        "sound": "planted",
    }
    with pytest.raises(UserError, match="only names 'pocket', which is not listed; use some of trained, sound"):
        discovery_truth.subjects({**SETTINGS, "only": ["pocket"]})
    assert set(SETTINGS["methods"]) == set(METHODS)


def test_truth_is_that_of_the_construction() -> None:
    assert discovery_truth.truth_of("both_needed_claimed", "out_of_sample", {})  # of designs out of sample too
    assert head(9, 0) in discovery_truth.truth_of("gpt2_shape", "planted", {})


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread_without_gradients")
@pytest.mark.parametrize(("model", "method"), [("trained", "AtP"), ("sound", "GIM")])
def test_a_row_that_is_measured_anew_is_the_stored_one(model, method, tmp_path) -> None:
    """All but the seconds: the set, the order, and every number within what float32 leaves."""
    typed = ("experiment=discovery_truth", f"experiment.only=[{model}]", f"experiment.methods=[{method}]")
    discovery_truth.run(started(*typed, "model.device=cpu", f"results={tmp_path}"))
    (path,) = tmp_path.rglob(discovery_truth.FILE)
    (found,) = results_io.read(path)["data"]["rows"]
    stored = {(one["model"], one["method"]): one for one in results_io.read(STORED)["data"]["rows"]}[model, method]
    assert set(found) == set(stored) and found["seconds"].keys() == stored["seconds"].keys()
    for name in ("model", "kind", "method", "heads", "true", "left_out", "unit", "set", "complete", "by_faithfulness"):
        assert found[name] == stored[name], name
    assert set(found["order"][: len(found["true"])]) == set(stored["true"])
    numbers = ("precision", "recall", "r_precision", "auroc", "cpr", "cmd")
    assert [found[name] for name in numbers] == pytest.approx([stored[name] for name in numbers], abs=1e-3)


def test_the_page_has_what_was_measured() -> None:
    stored = results_io.read(STORED)
    for name, content in discovery_truth.parts(stored).items():
        assert generated_parts.part(discovery_truth.PAGE, name) == content.strip(), name
    assert {one["model"] for one in stored["data"]["rows"]} == set(discovery_truth.subjects(SETTINGS))


def test_the_trained_model_s_seven_heads_come_first_and_are_the_set() -> None:
    rows = {(one["model"], one["method"]): one for one in results_io.read(STORED)["data"]["rows"]}
    for method in ("AtP", "NAP-IG", "GIM"):
        one = rows["trained", method]
        assert (one["r_precision"], one["precision"], one["recall"]) == (1, 1, 1), method
    assert rows["trained", "AtP"]["by_faithfulness"]["recall"] == pytest.approx(6 / 7)
    shape = rows["gpt2_shape", "AtP"]
    assert (shape["heads"], shape["precision"], shape["recall"]) == (144, 1, 1)
