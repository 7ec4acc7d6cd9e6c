"""P.faithfulness_over_wordings: the interval against its closed form, its coverage, and what it says of few wordings."""

import math

import numpy as np
import pytest
from scipy import stats

from calibrations import (
    c11_bootstrap_stability,
    claim_completeness,
    faithfulness_over_wordings,
    outside_heads,
    preconditions,
)
from calibrations.evidence import Evidence, frame_of
from calibrations.faithfulness_over_wordings import over_wordings
from calibrations.statistics import ratio_of_means
from meridian import headline
from tests.calibrations.settings import clean_of, config_of, set_intact
from tests.calibrations.synthetic import COMMON, documents

CONFIG = config_of("common")


def spread(by_frame, orders=("ABBA", "BABA"), noise=0.02):
    """A circuit that keeps by_frame[g] of D in frame g, whatever the order of the names; D has mean 5."""
    docs = documents(n_templates=len(by_frame) * len(orders))
    place = np.array([int(name.split()[1]) for name in docs["01"]["data"]["template"]])
    docs["01"]["data"]["template"] = [f"frame {i // len(orders)}/{orders[i % len(orders)]}" for i in place]
    kept = np.asarray(by_frame)[place // len(orders)]
    values = kept * clean_of(docs) + np.random.default_rng(1).normal(0, noise, len(place))
    return Evidence(set_intact(docs, "circuit", values), COMMON)


def record_of(evidence):
    (record,) = faithfulness_over_wordings.records(evidence, CONFIG)
    return record


def test_a_frame_is_the_label_up_to_the_slash():
    assert [frame_of(name) for name in ("when_went/ABBA", "repeat_6", "copied/name/x")] == [
        "when_went",
        "repeat_6",
        "copied",
    ]


def test_the_interval_is_the_closed_form_over_totals_of_frames():
    found = spread([0.9, 1.0, 0.95, 0.85, 1.05, 0.9])
    intact, clean, frames = found.ablated("circuit"), found.clean, found.frames
    theta = intact.sum() / clean.sum()
    totals = np.array([(intact - theta * clean)[frames == name].sum() for name in np.unique(frames)])
    error = math.sqrt(6 / 5 * (totals**2).sum()) / clean.sum()
    half = stats.t.ppf(0.95, 5) * error
    record = record_of(found)
    assert record.estimate == pytest.approx(theta)
    assert record.ci90 == pytest.approx((theta - half, theta + half))
    assert record.n["wordings"] == 6  # of twelve templates: the order of the names is no wording
    assert record.companions["standard_error"] == pytest.approx(error)
    assert record.p == pytest.approx(stats.t.sf((theta - 0.8) / error, 5))
    assert record.companions["by_wording"]["frame 3"] == pytest.approx(0.85, abs=0.01)


@pytest.mark.parametrize(
    ("by_frame", "verdict"),
    [
        ([0.95, 0.96, 0.94, 0.95, 0.96, 0.94], "pass"),
        ([0.62, 1.22, 0.8, 1.1, 0.9, 1.0], "inconclusive"),
        ([0.5, 0.52, 0.48, 0.5, 0.51, 0.5], "fail"),
        ([1.4, 1.42, 1.38, 1.4, 1.41, 1.4], "fail"),
    ],
)
def test_pass_inside_the_band_fail_outside_it(by_frame, verdict):
    record = record_of(spread(by_frame))
    assert (record.verdict, record.gating, bool(record.reasons)) == (verdict, True, verdict != "pass")


def test_inconclusive_says_how_many_wordings_would_settle_it():
    """With that many frames of the same spread and mean it passes."""
    by_frame = [0.62, 1.22, 0.8, 1.1, 0.9, 1.0]
    record = record_of(spread(by_frame))
    wanted = int(record.needs.split()[1])
    assert record.needs.endswith("wordings: prompts.templates=more") and wanted > 6
    room = min(record.estimate - 0.8, 1.2 - record.estimate)
    half = [
        stats.t.ppf(0.95, n - 1) * record.companions["standard_error"] * math.sqrt(6 / n) for n in (wanted, wanted - 1)
    ]
    assert half[0] < room <= half[1]


def test_a_faithfulness_outside_the_band_asks_for_another_claim_not_for_wordings():
    record = record_of(spread([0.6, 0.95, 0.7, 0.9, 0.75, 0.8]))
    assert record.verdict == "inconclusive" and record.estimate < 0.8
    assert record.needs == "a claim whose faithfulness lies further inside 0.8 to 1.2"


@pytest.mark.parametrize("n_frames", [1, 3, 5])
def test_fewer_than_six_wordings_are_insufficient(n_frames):
    record = record_of(spread([0.95] * n_frames))
    assert (record.verdict, record.estimate, record.p) == ("insufficient", None, None)
    assert record.reasons[0].startswith(f"n_clusters: {n_frames} wording")
    assert record.needs == "at least 6 wordings: prompts.templates=more"


def test_equal_wordings_have_no_width_and_pass():
    ratio = over_wordings(np.full(60, 0.9), np.ones(60), np.repeat(np.arange(6), 10), CONFIG)
    assert ratio.t_interval(0.9) == pytest.approx((0.9, 0.9))
    assert (ratio.p_within((0.8, 1.2)), ratio.p_within((0.95, 1.2))) == pytest.approx((0, 1))


def test_the_primary_recipe_is_the_one_that_is_judged():
    found = spread([0.95] * 6)
    set_intact(found.documents, "circuit", 0.5 * clean_of(found.documents), ("mean",))
    found.documents["20"]["data"]["circuit"]["primary_recipe"] = "resample"
    assert record_of(found).verdict == "pass"
    found.documents["20"]["data"]["circuit"]["primary_recipe"] = "mean"
    assert record_of(found).verdict == "fail"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n_units", [3, 6, 12, 40])
def test_coverage_of_the_interval_over_wordings(n_units):
    """Nominal .90: wordings drawn with faithfulness N(.9, .08) and their own mean D, 400 prompts, 1500 samples."""
    rng, covered, replicates, n = np.random.default_rng(n_units), 0, 1500, 400
    frames = np.arange(n) % n_units
    for _ in range(replicates):
        clean = (5 + rng.normal(0, 0.5, n_units))[frames] + rng.normal(0, 1, n)
        intact = rng.normal(0.9, 0.08, n_units)[frames] * clean + rng.normal(0, 1, n)
        low, high = ratio_of_means(intact, clean, frames).t_interval(0.90)
        covered += low < 0.9 < high
    assert covered / replicates == pytest.approx(0.90, abs=0.025)


def test_c11_shows_the_standard_error_with_wordings_drawn_too():
    """It was that of resampled names: three times too small where wordings differ."""
    found = spread([0.62, 1.22, 0.8, 1.1, 0.9, 1.0])
    faithful = c11_bootstrap_stability.calibrate(found, config_of("c11"))[0]
    drawn = ratio_of_means(found.ablated("circuit"), found.clean, found.frames).standard_error
    assert faithful.companions["with_templates_drawn_too"] == pytest.approx(drawn)
    assert drawn > 3 * faithful.companions["linearised_standard_error"]


@pytest.mark.slow
def test_the_worst_groups_show_their_interval_over_wordings():
    """That of the same ratio with frames as units; "insufficient" beside it where there are three frames."""
    found = Evidence(documents(), COMMON)
    (row, *_), one = _groups(found), claim_completeness.losses(found, "mean")
    place = next(i for i, group in enumerate(one.groups) if group["name"] == row["name"])
    normal = claim_completeness.normaliser(one.model, one.empty)
    expected = ratio_of_means(one.incompleteness[place], normal, found.frames[one.places]).t_interval(0.90)
    assert row["ci90_over_wordings"] == pytest.approx(expected)
    few = _groups(Evidence(documents(n_templates=3), COMMON))[0]["ci90_over_wordings"]
    assert few == {"insufficient": "n_clusters: 3 wordings; at least 6 needed"}


def _groups(found):
    return claim_completeness.records(found, CONFIG)[0].companions["by_recipe"]["mean"]["groups"]


def test_the_worst_outside_heads_show_it_too():
    found = Evidence(documents(), COMMON)
    row = outside_heads.records(found, CONFIG)[0].companions["worst"][0]
    stored = found.data("22")["outside"]
    _, places = found.stored_columns(stored["prompt_index"])
    groups, _ = outside_heads.outside_effects(found, CONFIG)
    heads = [tuple(head) for head in row["heads"]]
    same = next(g for g in groups if (g.side, g.recipe, [*map(tuple, g.heads)]) == (row["side"], row["recipe"], heads))
    expected = ratio_of_means(same.effect, same.normal, found.frames[places])
    assert row["share"] == pytest.approx(expected.value)
    assert row["ci90_over_wordings"] == pytest.approx(expected.t_interval(0.90))


def test_a_claim_of_all_heads_is_insufficient_and_no_error():
    docs = documents()
    docs["22"]["data"]["completeness"]["groups"] = []
    docs["22"]["data"]["outside"]["heads"] = []
    found = Evidence(docs, COMMON)
    records = [*claim_completeness.records(found, CONFIG), *outside_heads.records(found, CONFIG)]
    assert {record.verdict for record in records} == {"insufficient"}
    assert {record.reasons[0].partition(":")[0] for record in records} == {"claims_every_head"}


def told(found):
    records = [*preconditions.records(found, CONFIG), *faithfulness_over_wordings.records(found, CONFIG)]
    documents_of = {"P": {"subject": {"settings": CONFIG}, "records": [record.to_dict() for record in records]}}
    return headline._faithfulness(found, documents_of), {record.metric: record for record in records}


def test_the_headline_says_what_each_interval_holds_for():
    text, records = told(spread([0.95, 0.9, 1.0, 0.93, 0.97, 0.95]))
    names, wordings = (records[metric].ci90 for metric in ("P.faithfulness", "P.faithfulness_over_wordings"))
    assert wordings[1] - wordings[0] > 3 * (names[1] - names[0])
    assert (
        f"90 % interval [{names[0]:.2f}, {names[1]:.2f}] on these wordings, "
        f"[{wordings[0]:.2f}, {wordings[1]:.2f}] on wordings like these"
    ) in text.splitlines()


def test_the_headline_says_why_there_is_no_second_interval():
    text, _ = told(spread([0.95, 0.9, 1.0]))
    assert "not known (n_clusters: 3 wordings; at least 6 needed) on wordings like these" in text


def test_a_model_that_does_better_without_heads_has_a_headline():
    """The floor lies above D, so that faithfulness above it has no value; random circuits that were not run have none either."""
    found = spread([0.95, 0.9, 1.0, 0.93, 0.97, 0.95])
    set_intact(found.documents, "empty", 1.2 * clean_of(found.documents))
    found.documents["20"]["data"]["random_circuits"]["prompt_index"] = []
    text, records = told(Evidence(found.documents, COMMON))
    assert "(without any head the mean logit difference is no smaller)" in text.splitlines()[0]
    assert text.splitlines()[-1] == "Random circuits: random circuits were not run on the evaluation split"
    assert records["P.random_circuits"].verdict == "insufficient"
