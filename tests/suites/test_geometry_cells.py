"""Table 179 cell by cell: what each holds, and that a cell without a value says why in the words of its own metric."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suites.geometry import coverage, findings, matrix, measure, width
from tests.suites import test_geometry_measure as shared

REFUSAL = "I'm sorry, but I can't help with that."
GERMAN = [{"id": f"de{k}", "method": "language", "language": "de", "prompt": f"auf {k}"} for k in range(8)]


def cells_of(run):
    own = run.sets[0]
    return {(one.trait, one.method): one for one in matrix.cells(own, findings.of(own, 0))}


def test_an_english_embedder_leaves_no_cell_of_languages_and_languages_are_no_way_of_asking(tmp_path):
    """Position and width of German outputs stood in the table beside an LDS that is off, and German was a method."""
    rng = np.random.default_rng(0)
    axes = [{"name": "x", "plus": ["liking 9 cost 1"], "minus": ["liking 1 cost 9"]}]
    told = shared.question("q", personas={"cook": "As a cook,"}, variants=GERMAN)
    own = shared.written(tmp_path / "mine", [told])
    placed = tuple(replace(one, reference=(0.0,)) for one in own.constructs)
    own = replace(own, coordinates={"kind": "anchors", "axes": axes}, constructs=placed)
    model = shared.Rater(lambda prompt, sample: shared.says(5 + rng.normal(), 5 + 3 * prompt.startswith("auf")))
    run = measure.run([own], model, tmp_path / "out", shared.SETTINGS, embedder=shared.EMBEDDER)
    cells = cells_of(run)
    for trait in matrix.mtmm.TRAITS:
        found = cells[trait, "language"]
        assert (found.status, found.reason, found.value) == ("off", findings.ENGLISH_ONLY, None), trait
    assert matrix.scores(run.sets[0])[1] == ("paraphrase", "cook")
    assert matrix.halves(run.sets[0]).shape == (matrix.SPLITS, 2, 1, 3, 2)
    (wide,) = [one.found for one in findings.of(run.sets[0], 0) if one.metric is width and one.construct]
    (single,) = run.sets[0].measured
    english = findings.wordings(single.construct)  # and no persona: that is PSS's to find
    assert wide.estimate.n == 8 and wide.estimate.reason == "8 prompts; at least 20 are needed"
    assert wide.published.value == width.ow(single.means(english)).published.value


def test_a_cell_without_a_value_says_what_its_own_metric_lacks(tmp_path):
    """One refused persona and three German wordings: both were said of every cell, and the first reason of any metric in each."""

    def rule(prompt, sample):
        refused = prompt == "As a cook, q put in way 3"
        return REFUSAL if refused else shared.says(5 + 0.1 * sample + 0.3 * float(prompt[-1]))

    few = shared.question("q", reference=[5, 5], personas={"cook": "As a cook,"}, variants=GERMAN[:3])
    run = measure.run([shared.written(tmp_path / "mine", [few])], shared.Rater(rule), tmp_path / "o", shared.SETTINGS)
    cells = cells_of(run)
    whole = [
        cells[key].status for key in (("position", "direct"), ("stability", "direct"), ("stability", "paraphrase"))
    ]
    assert whole == ["ok"] * 3
    for trait in matrix.mtmm.TRAITS:
        found = cells[trait, "persona"]
        assert found.status == "insufficient_data" and found.reason.startswith("variant cook_w4 has 0 outputs"), trait
    assert cells["stability", "language"].reason == "3 wordings of a language; at least 5 are needed"
    assert cells["position", "language"].reason == "3 wordings; at least 5 are needed"
    assert cells["coverage", "direct"].reason == "8 prompts; at least 20 are needed"
    assert cells["coverage", "language"].reason.startswith("fewer than 20 outputs by this method")
    lone = [shared.question("q", wordings=3, reference=[5, 5])]
    run = measure.run([shared.written(tmp_path / "few", lone)], shared.Rater(rule), tmp_path / "f", shared.SETTINGS)
    assert cells_of(run)["stability", "paraphrase"].reason == "3 wordings; at least 5 are needed, 8 for an interval"
    assert cells_of(run)["position", "direct"].reason == "3 wordings; at least 5 are needed"


def test_baseline_coverage_is_that_of_the_neutral_prompts_with_ps_beside_it(tmp_path):
    """A persona five away widened it, PS stood nowhere, and a refused side took its construct out of all cells."""
    rng = np.random.default_rng(1)
    sides = [{"id": side, "method": f"side_{side}", "prompt": f"side {side}"} for side in "ab"]
    anchors = {side: [shared.says(at + 0.01 * k) for k in range(12)] for side, at in (("a", 1.0), ("b", 9.0))}

    def rule(prompt, sample):
        if prompt.startswith("side"):
            return shared.says(1.0 if prompt == "side a" else 9.0)
        return shared.says(5 + 5 * prompt.startswith("As a cook,") + rng.normal(), 5 + rng.normal())

    def refusing(prompt, sample):
        return REFUSAL if prompt == "side a" else rule(prompt, sample)

    told = {"personas": {"cook": "As a cook,"}, "variants": sides, "regions": anchors}
    own = shared.written(tmp_path / "mine", [shared.question("q", wordings=24, **told)])
    run = measure.run([own], shared.Rater(rule), tmp_path / "out", shared.SETTINGS)
    (one,) = run.sets[0].measured
    found, neutral = cells_of(run)["coverage", "direct"], width.ow(one.means(findings.wordings(one.construct)))
    assert (found.status, found.value, found.published) == ("ok", neutral.estimate.value, neutral.published.value)
    assert found.value < 3 and (found.share, found.share_status) == (1.0, "ok")
    assert found.name == "baseline PS and OW" and cells_of(run)["coverage", "persona"].share_status is None
    eight = shared.written(tmp_path / "eight", [shared.question("q", reference=[5, 5], **told)])
    run = measure.run([eight], shared.Rater(refusing), tmp_path / "e", shared.SETTINGS)
    found = cells_of(run)["coverage", "direct"]
    assert (found.status, found.value, found.reason) == ("insufficient_data", None, "8 prompts; at least 20 are needed")
    assert (found.share, found.share_status) == (0.0, "ok") and cells_of(run)["position", "persona"].status == "ok"
    without = measure.run(
        [shared.written(tmp_path / "no", [shared.question("q")])], shared.Rater(rule), tmp_path / "n", shared.SETTINGS
    )
    found = cells_of(without)["coverage", "direct"]
    assert (found.share, found.share_status) == (None, "not_applicable")
    assert found.share_reason == "no construct declares two sides with anchors" and coverage.NUMBER == "178"
