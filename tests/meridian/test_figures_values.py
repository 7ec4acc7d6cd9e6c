"""Figures say what the results say: means, intervals, distributions and places against the stored numbers."""

from __future__ import annotations

import json
import re
import shutil
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import pytest
from matplotlib.patches import FancyArrowPatch
from scipy import stats

import results_io
from calibrations import certificate
from calibrations.number_format import number
from calibrations.statistics import Insufficient, clustered_mean, percentile_interval, ratio_of_means
from calibrations.worst_groups import WorstGroups
from meridian import figures, finding
from meridian.figures import colours, distributions, forest, intervals, plotly, static, static_graph
from meridian.figures.forest import BY_RECIPE
from meridian.figures.layout import place_nodes
from meridian.figures.values import (
    CircuitGraph,
    Distribution,
    EstimateMark,
    Figure,
    Forest,
    GraphEdge,
    GraphNode,
    HeatMap,
)
from meridian.run_folder import RunFolder
from tests.meridian.judged import judged


@pytest.fixture(scope="module")
def run(finished, tmp_path_factory) -> RunFolder:
    return RunFolder.open(judged(finished, tmp_path_factory.mktemp("figures") / "run"))


@pytest.fixture(scope="module")
def drawn(run) -> dict[str, Figure]:
    return figures.of(run)


def test_every_kind_of_figure_is_there_under_its_own_name(drawn) -> None:
    assert {"forest_calibrations", "circuit", "heads_02_denoising", "lens_probability"} <= set(drawn)
    assert {"trace_residual", "sites_mlp", "lens_example_1", "lens_probability_by_position"} <= set(drawn)
    assert all(name == figure.name for name, figure in drawn.items())
    assert sum(name.startswith("pattern_1_") for name in drawn) == sum(n.layer < 4 for n in drawn["circuit"].nodes)


def test_a_heat_map_holds_the_mean_over_the_evaluation_prompts_of_each_head(run, drawn) -> None:
    data, baseline = run.data("21")["effect"], run.data("01")
    rows = [i for i, split in enumerate(baseline["split"]) if split == "evaluation"]
    for (layer, head), column in zip(baseline["heads"], np.array(data)[rows].T, strict=True):
        assert drawn["heads_21_effect"].values[layer][head] == pytest.approx(column.mean())


def by_hand(values: np.ndarray, rows: list[int], baseline: dict) -> tuple[float | None, ...]:
    """Mean over the stored prompts `rows` and its 95 % interval, clusters of names within templates."""
    template, names = (np.array(baseline[key])[rows] for key in ("template", "cluster"))
    clusters = np.char.add(np.char.add(template, "|"), names)
    alone = any(len(set(names[template == t])) == 1 for t in set(template))
    try:
        found = clustered_mean(values, clusters, np.zeros(len(rows)) if alone else template)
    except Insufficient:
        return float(values.mean()), None, None
    half = stats.t.ppf(0.975, found.degrees_of_freedom) * found.standard_error
    return values.mean(), values.mean() - half, values.mean() + half


def test_every_map_of_prompts_has_mean_and_clustered_interval_of_its_own_field(run, drawn) -> None:
    baseline, seen, unlike = run.data("01"), 0, 0
    rows = [i for i, split in enumerate(baseline["split"]) if split == "evaluation"]
    for name, figure in drawn.items():
        if not name.startswith("heads_"):
            continue
        _, number, field = name.split("_", 2)
        stored = np.array(run.data(number)[field], dtype=float)
        per_prompt, errors = stored.ndim == 2, run.data(number).get("standard_error")
        for place, (layer, head) in enumerate(baseline["heads"]):
            if per_prompt:
                column = stored[rows, place]
                expected = by_hand(column, rows, baseline)
                naive = stats.sem(column) * stats.t.ppf(0.975, len(rows) - 1)
                unlike += expected[1] is not None and abs(expected[0] - expected[1] - naive) > 1e-3 * naive
            elif number == "10" and errors[place] is not None:
                half = stats.norm.ppf(0.975) * errors[place]
                expected = stored[place], stored[place] - half, stored[place] + half
            else:
                expected = stored[place], None, None
            cell = tuple(side[layer][head] for side in (figure.values, figure.low, figure.high))
            assert cell == pytest.approx(tuple(None if e is None or np.isnan(e) else e for e in expected)), name
            seen += 1
    assert seen >= 18 * 32 and unlike > 100  # the intervals are not those of independent prompts


def test_the_lens_is_read_on_the_evaluation_prompts(run, drawn) -> None:
    baseline, data = run.data("01"), run.data("04")
    rows = [i for i, split in enumerate(baseline["split"]) if split == "evaluation"]
    for field in ("probability", "logit_diff"):
        (series,) = drawn[f"lens_{field}"].series
        for layer, values in enumerate(np.array(data[field])[:, rows]):
            cell = (series.y[layer], series.low[layer], series.high[layer])
            assert cell == pytest.approx(by_hand(values, rows, baseline), rel=1e-6, abs=1e-9)
        assert drawn[f"lens_{field}_by_position"].values == tuple(map(tuple, data["by_position"][field]))


def test_a_template_with_one_cluster_joins_the_others_and_a_lab_says_the_same(run, finished) -> None:
    values, rng = np.random.default_rng(3).normal(size=(12, 2)), np.arange(12)
    strata = np.array(["a"] * 6 + ["b"] * 5 + ["c"])
    np.testing.assert_array_equal(intervals.usable_strata(rng, strata), np.zeros(12))
    np.testing.assert_array_equal(intervals.usable_strata(rng[:11], strata[:11]), strata[:11])
    pooled = intervals.clustered_means(values, rng, strata)
    assert pooled == intervals.clustered_means(values, rng, np.zeros(12)) and None not in pooled[1]
    prompts = SimpleNamespace(templates=tuple(strata), clusters=tuple(map(str, rng)))
    table = finding.means(["x", "y"], values.T, prompts)
    assert (table["low"].tolist(), table["high"].tolist()) == pooled[1:]
    sparse = figures.of(RunFolder.open(finished))  # twelve templates, one of them with a single evaluation prompt
    assert all(edge.low < edge.weight < edge.high for edge in sparse["circuit"].edges if edge.weight)


def test_captions_name_an_interval_only_where_there_is_one() -> None:
    assert intervals.interval_words([None, None]) == "the prompts allow no interval"
    assert intervals.interval_words([None, 0.5]) == "95% cluster-robust interval where the values allow one"
    assert intervals.interval_words([0.1, 0.5]) == "95% cluster-robust interval"


def test_traces_and_sites_are_those_of_their_own_site(run, drawn) -> None:
    traced, patched = run.data("06"), run.data("02")["sites"]
    for site in ("residual", "attention", "mlp"):
        mean, error = np.array(traced["impact"][site]), np.array(traced["standard_error"][site])
        figure = drawn[f"trace_{site}"]
        np.testing.assert_allclose(figure.values, mean)
        np.testing.assert_allclose(figure.low, mean - 1.959964 * error, atol=1e-6)
        np.testing.assert_allclose(figure.high, mean + 1.959964 * error, atol=1e-6)
        np.testing.assert_allclose(drawn[f"sites_{site}"].values, patched["denoising"][site])


def test_nodes_have_the_denoising_effect_of_their_head(run, drawn) -> None:
    baseline, stored = run.data("01"), np.array(run.data("02")["denoising"])
    rows = [i for i, split in enumerate(baseline["split"]) if split == "evaluation"]
    named = {f"L{layer}H{head}": stored[rows, place].mean() for place, (layer, head) in enumerate(baseline["heads"])}
    heads = [node for node in drawn["circuit"].nodes if node.name != "logits"]
    assert [node.effect for node in heads] == pytest.approx([named[node.name] for node in heads])


def test_each_pattern_is_that_of_its_head_and_prompt(run, drawn) -> None:
    index = {f"L{layer}H{head}": place for place, (layer, head) in enumerate(run.data("01")["heads"])}
    shown = [name.split("_") for name in drawn if name.startswith("pattern_")]
    assert len(shown) >= 3 * 9
    for _, place, head in shown:
        stored = np.tril(run.data("25")["examples"][int(place) - 1]["pattern"][index[head]])
        values = drawn[f"pattern_{place}_{head}"].values
        np.testing.assert_array_equal([[w or 0.0 for w in row] for row in values], stored)


SIDES = {  # metric: (setting of an estimate that has to be above, below)
    "P.denominator": ("min_denominator_t", None),
    "P.faithfulness": ("faithfulness_low", "faithfulness_high"),
    "C11.bootstrap_faithfulness": (None, "max_sigma"),
    "C12.convergent_validity": ("threshold_rho", None),
    "C13.measurement_invariance": (None, "equivalence_margin"),
    "C14.d_prime": ("threshold_d_prime", None),
    "C16.test_retest": ("test_retest_above", None),
    "C16.split_half": ("split_half_above", None),
    "C30.seed_variance": (None, "acceptable_below"),
    "C36.incremental_validity": ("adds_value_above", None),
    "F59.mean_kappa": ("threshold_kappa", None),
    "M98.ablation_invariance": (None, "max_divergence"),
}


def test_limits_lie_on_the_side_that_the_rule_says(run, drawn) -> None:
    rows = {row.label: row for name, f in drawn.items() if name.startswith("forest_calibrations") for row in f.rows}
    for metric, sides in SIDES.items():
        settings = run.calibration(metric.partition(".")[0])["subject"]["settings"]
        row = rows.get(metric) or rows[f"{metric}, mean"]  # of a gate on several recipes, one row of them
        assert (row.above, row.below) == tuple(side and settings[side] for side in sides), metric
    factor = run.calibration("C17")["subject"]["settings"]["threshold_ratio"]
    assert rows["C17.discriminant_validity"].unit == f"own effect - {factor:g} x other's"
    assert rows["P.faithfulness, mean"].unit == "faithfulness, mean ablation"


def test_differences_of_recipes_are_the_first_less_the_second(run, drawn) -> None:
    kept = {m: run.evidence.ablated("circuit", m).mean() / run.evidence.clean.mean() for m in ("zero", "mean", "noise")}
    samples = drawn["distribution_m98"].samples
    assert np.mean(samples["zero - mean"]) == pytest.approx(kept["zero"] - kept["mean"], abs=0.03)
    assert np.mean(drawn["distribution_e1b"].samples["mean - noise"]) == pytest.approx(
        kept["mean"] - kept["noise"], abs=0.03
    )


def test_other_intervals_are_not_said_to_be_of_the_draws(run, drawn) -> None:
    assert "chi-square of the linearised standard error" in drawn["distribution_c11"].caption
    assert "Bonett" in drawn["distribution_c14"].caption and "simultaneous" in drawn["distribution_m98"].caption
    assert "has no interval" in drawn["distribution_random_circuits"].caption


def test_only_draws_with_a_value_are_counted() -> None:
    drawn = distributions.Draws({"a": np.array([1.0, np.nan, 2.0])}, {})
    assert distributions.count_words(drawn, {"a": (1.0, 2.0)}) == "2 draws; 1 more have no value"


def test_attention_scores_say_that_they_are_of_random_tokens(run, drawn) -> None:
    for field in ("previous_token", "duplicate_token", "induction"):
        assert "random tokens said twice" in drawn[f"heads_25_{field}"].caption
    assert "over 20 of the task's prompts" in drawn["heads_25_entropy"].caption  # as the small run was asked


def test_both_renderers_encode_a_graph_alike() -> None:
    nodes = tuple(GraphNode(f"L{place}H0", place, "role", effect) for place, effect in enumerate((0.0, 1.0, -4.0)))
    edges = (GraphEdge("L0H0", "L1H0", 1.0, "k"), GraphEdge("L1H0", "L2H0", -2.0, "v"), GraphEdge("L0H0", "L2H0", 0.03))
    graph = CircuitGraph(name="g", title="g", caption="g", n_layers=3, nodes=nodes, edges=edges, unit="nats")
    lines = [trace for trace in plotly.specification(graph)["data"] if trace["mode"] == "lines"]
    arrows = static.draw(graph).axes[0].findobj(FancyArrowPatch)
    assert len(lines) == len(arrows) == 2  # 0.03 is below 2 % of 2
    assert [line["line"]["dash"] for line in lines] == ["dot", "solid"]
    assert [arrow.get_linestyle() for arrow in arrows] == [":", "-"]
    assert [line["line"]["color"] for line in lines] == [colours.POSITIVE, colours.NEGATIVE]
    sizes = np.array(plotly.specification(graph)["data"][-1]["marker"]["size"]) ** 2
    areas = np.array([static_graph.disc_areas(nodes)[node.name] for node in nodes])
    for area in (sizes, areas):
        assert (area[1] - area[0]) / (area[2] - area[0]) == pytest.approx(0.25)


def test_its_frames_are_the_heads_of_the_circuit(run, drawn) -> None:
    stored = {tuple(h) for role in run.data("20")["circuit"]["roles"].values() for h in role["heads"]}
    assert set(drawn["heads_02_noising"].marked) == stored
    shapes = plotly.specification(drawn["heads_02_noising"])["layout"]["shapes"]
    assert {((s["y0"] + s["y1"]) / 2, (s["x0"] + s["x1"]) / 2) for s in shapes} == stored


def test_one_prompt_per_cluster_and_one_stratum_give_students_interval() -> None:
    values = np.random.default_rng(0).normal(2.0, 1.0, (40, 1))
    mean, low, high = intervals.clustered_means(values, np.arange(40), np.zeros(40))
    expected = stats.t.interval(0.95, 39, values.mean(), values.std(ddof=1) / np.sqrt(40))
    assert mean[0] == pytest.approx(values.mean())
    # the degrees of freedom are estimated (at most 39), so the interval is no narrower, and little wider
    assert low[0] <= expected[0] + 1e-9
    assert high[0] - low[0] == pytest.approx(expected[1] - expected[0], rel=0.1)


def test_copies_of_a_prompt_in_its_cluster_do_not_narrow_the_interval() -> None:
    values, place = np.random.default_rng(1).normal(0.0, 1.0, (30, 2)), np.arange(30)
    once = intervals.clustered_means(values, place, np.zeros(30))
    thrice = intervals.clustered_means(np.repeat(values, 3, axis=0), np.repeat(place, 3), np.zeros(90))
    np.testing.assert_allclose(once, thrice)


def test_a_column_that_does_not_vary_has_no_interval() -> None:
    mean, low, high = intervals.clustered_means(np.ones((6, 1)), np.arange(6), np.zeros(6))
    assert (mean, low, high) == ([1.0], [None], [None])


DRAWN_INTERVALS = {  # figure: (sample, calibration, metric); the 90 % interval of the certificate is of these draws
    "distribution_c30": ("bootstrap over clusters", "C30", "C30.seed_variance"),
    "distribution_c16_test_retest": ("bootstrap over clusters", "C16", "C16.test_retest"),
    "distribution_c36": ("bootstrap over clusters", "C36", "C36.incremental_validity"),
    "distribution_s1": ("bootstrap over clusters", "S1", "S1.distributional_characterization"),
    "distribution_faithfulness": ("mean", "P", "P.faithfulness"),
}


@pytest.mark.parametrize("name", DRAWN_INTERVALS)
def test_the_interval_of_the_certificate_is_that_of_the_draws(run, drawn, name) -> None:
    sample, identifier, metric = DRAWN_INTERVALS[name]
    record = next(r for r in run.calibration(identifier)["records"] if r["metric"] == metric)
    draws = np.array(drawn[name].samples[sample])
    assert percentile_interval(draws, 0.90) == pytest.approx(record["ci90"], rel=1e-6)
    assert drawn[name].caption.endswith(
        f"The certificate's interval: {record['ci_method']}. Result {run.calibration(identifier)['number']}."
    )


def test_split_half_draws_are_those_of_the_record(run, drawn) -> None:
    record = next(r for r in run.calibration("C16")["records"] if r["metric"] == "C16.split_half")
    draws = np.array(drawn["distribution_c16_split_half"].samples["random halves"])
    assert np.median(draws) == pytest.approx(record["estimate"], rel=1e-6)
    assert percentile_interval(draws, 0.95) == pytest.approx(record["ci95"], rel=1e-6)


def test_published_bootstrap_has_the_published_sigma_and_interval(run) -> None:
    """Drawn whatever the verdict: the published half has its own."""
    document = run.calibration("C11")
    record = next(r for r in document["records"] if r["metric"] == "C11.bootstrap_faithfulness")
    draws = distributions.published_bootstrap(run.evidence, document["subject"]["settings"])
    values = draws.samples["faithfulness"]
    low, high = percentile_interval(values, 0.95)
    assert record["published_label"] == f"sigma {np.nanstd(values):.4f}, 95 % interval {low:.4f} to {high:.4f}"
    assert draws.lines["faithfulness"] == pytest.approx(record["published_value"])


def test_random_circuits_give_the_p_of_the_certificate(run, drawn) -> None:
    record = next(r for r in run.calibration("P")["records"] if r["metric"] == "P.random_circuits")
    null = np.array(drawn["distribution_random_circuits"].samples["random circuits"])
    theta = drawn["distribution_random_circuits"].lines["circuit"]
    assert theta == pytest.approx(record["estimate"])
    above = (1 + int((null >= theta - 1e-5).sum())) / (len(null) + 1)
    assert record["p"] == pytest.approx(max(above, record["companions"]["smallest_attainable_p"]))


def test_relabelled_heads_give_the_p_of_the_certificate(run, drawn) -> None:
    record = next(r for r in run.calibration("C14")["records"] if r["metric"] == "C14.d_prime")
    null = np.array(drawn["distribution_c14"].samples["heads relabelled"])
    observed = drawn["distribution_c14"].lines["circuit"]
    p = (1 + int((null >= observed - 1e-12).sum())) / (len(null) + 1)
    assert p == pytest.approx(record["companions"]["p_relabelling"])


def test_an_insufficient_verdict_has_no_distribution(run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    path = results_io.find(tmp_path / "run", "30")
    document = results_io.read(path)
    document["records"][0]["verdict"] = "insufficient"
    results_io.write(path, document)
    found = {figure.name for figure in distributions.build(RunFolder.open(tmp_path / "run"))}
    assert "distribution_c30" not in found
    assert "distribution_random_circuits" in found


def test_the_forest_has_every_gate_with_the_limit_that_its_verdict_was_read_from(run, drawn) -> None:
    rows = {row.label: row for name, f in drawn.items() if name.startswith("forest_calibrations") for row in f.rows}
    stored = [r for row in run.certificate["rows"] for r in row["records"] if r["gating"]]
    wanted = {r["metric"]: r for r in [*stored, *run.certificate["preconditions"]] if r["estimate"] is not None}
    assert {label.partition(",")[0] for label in rows} == set(wanted)
    single = {metric: row for metric, row in rows.items() if metric in wanted}
    assert set(wanted) - set(single) == set(BY_RECIPE)
    for metric, row in single.items():
        assert row.estimate == wanted[metric]["estimate"] and row.verdict == wanted[metric]["verdict"]
        if row.unit.endswith(forest.ALONE):
            continue
        assert (row.low, row.high) == tuple(wanted[metric]["ci90"] or (None, None))
        if row.low is not None and (row.above is None) != (row.below is None) and row.verdict == "pass":
            assert row.low >= row.above if row.below is None else row.high <= row.below


def drawn_within(row) -> bool:
    """True if estimate and interval lie where the gate wants them."""
    ends = [value for value in (row.estimate, row.low, row.high) if value is not None]
    above = row.above is None or min(ends) > row.above
    return above and (row.below is None or max(ends) < row.below)


def test_no_row_is_drawn_against_its_verdict(run, drawn) -> None:
    """A fail lies nowhere inside its pass zone, and a pass with an interval nowhere outside."""
    rows = [row for name, f in drawn.items() if name.startswith("forest_calibrations") for row in f.rows if row.limits]
    assert [row.label for row in rows if row.verdict == "fail" and drawn_within(row)] == []
    assert [row.label for row in rows if row.verdict == "pass" and not drawn_within(row)] == []
    assert {"fail", "pass", "inconclusive"} <= {row.verdict for row in rows}


def test_a_gate_on_several_recipes_has_each_with_what_its_own_interval_says(run, drawn) -> None:
    """P.faithfulness_every_recipe fails for zero; the mean alone, drawn as that fail, would lie inside its pass zone."""
    rows = {row.label: row for name, f in drawn.items() if name.startswith("forest_calibrations") for row in f.rows}
    record = run.record("P.faithfulness_every_recipe")
    own = {
        label.partition(", ")[2]: row for label, row in rows.items() if label.startswith("P.faithfulness_every_recipe")
    }
    assert record["verdict"] == "fail" and set(own) == {"zero", "mean", "mean pooled", "resample", "noise"}
    assert {name for name, row in own.items() if row.verdict == "fail"} == {"zero", "mean pooled", "noise"}
    assert own["mean"].verdict == "pass" and own["mean"].estimate == pytest.approx(record["estimate"], rel=1e-6)
    assert own["zero"].high < 0.8 <= own["mean"].low
    for label, row in own.items():
        assert (row.low, row.high) == pytest.approx(run.recipe_intervals[label.replace(" ", "_")])
    supported = [label for label in rows if label.startswith("P.faithfulness,")]
    assert supported == ["P.faithfulness, mean", "P.faithfulness, resample"]


def test_a_gate_on_groups_that_passes_has_the_interval_that_passed(run, tmp_path) -> None:
    """P.outside of pocket passes at .16 [.11, .21] for all groups at once: drawn so it would leave its zone at .20."""
    shutil.copytree(run.path, tmp_path / "run")
    path = results_io.find(tmp_path / "run", "P")
    document = results_io.read(path)
    (record,) = (r for r in document["records"] if r["metric"] == "P.outside")
    worst = {
        "kind": "positive",
        "side": "circuit",
        "recipe": "mean",
        "heads": [[0, 1]],
        "share": 0.16,
        "ci90": [0.13, 0.19],
    }
    limits = {"head or greedy set": 0.1, "all of one sign": 0.2}
    record |= {
        "verdict": "pass",
        "estimate": 0.16,
        "ci90": [0.11, 0.21],
        "companions": {"limits": limits, "worst": [worst]},
    }
    results_io.write(path, document)
    drawn = [row for f in forest.build(RunFolder.open(tmp_path / "run")) for row in f.rows if row.label == "P.outside"]
    assert [(row.low, row.high, row.above, row.below, row.verdict) for row in drawn] == [
        (0.13, 0.19, -0.2, 0.2, "pass")
    ]


def test_random_circuits_have_a_row_of_their_own_and_cross_no_recipe(run, drawn) -> None:
    """They were run under mean ablation: a line through all rows would compare them with four recipes they never saw."""
    figure, null = drawn["forest_recipes"], run.companions("P.random_circuits")
    assert set(figure.lines) == {"at least 0.8", "at most 1.2"}
    (row,) = (row for row in figure.rows if row.label == forest.RANDOM_CIRCUITS)
    assert (row.estimate, row.low, row.high) == (null["random_median"], *null["random_90"])
    assert run.data("20")["random_circuits"]["recipe"] == certificate.RECIPE_NAMES["mean"] and row.label.endswith(
        ", mean"
    )
    for drawn_as in (plotly.specification(figure), static.draw(figure, "double").axes[0]):
        xs = (
            [shape["x0"] for shape in drawn_as["layout"]["shapes"]]
            if isinstance(drawn_as, dict)
            else [line.get_xdata()[0] for line in drawn_as.lines if len(set(line.get_xdata())) == 1]
        )
        crossing = [x for x in xs if x == pytest.approx(null["random_median"])]
        assert len(crossing) <= 1  # the marker of its own row at most


def test_each_recipe_says_what_its_own_interval_says(run, drawn) -> None:
    verdicts = {row.label: row.verdict for row in drawn["forest_recipes"].rows}
    assert verdicts == {
        "zero": "fail",
        "mean": "pass",
        "mean pooled": "fail",
        "resample": "pass",
        "noise": "fail",
        forest.RANDOM_CIRCUITS: None,
    }


def test_worst_groups_are_those_of_the_record_in_the_order_of_the_certificate(run, drawn) -> None:
    named, claimed = WorstGroups.read(run.certificate), drawn["completeness_groups"].rows
    assert len(claimed) == forest.PAGE and len(named.claimed) == 25
    stored = run.companions("P.completeness")["by_recipe"]
    found = {
        (g["lost_by_circuit"], g["lost_by_model"], g["incompleteness"]) for t in stored.values() for g in t["groups"]
    }
    sizes = sorted((abs(group.incompleteness) for group in named.claimed), reverse=True)
    places = [int(row.label.partition(".")[0]) for row in claimed]
    assert places == sorted(places) and min(abs(row.estimate) for row in claimed) == sizes[forest.PAGE - 1]
    assert "The 12 of 25 groups that are farthest from 0" in drawn["completeness_groups"].caption
    assert {named.claimed[place - 1].gate for place in places} >= {"P.completeness_every_recipe"}
    for place, row in zip(places, claimed, strict=True):
        group = named.claimed[place - 1]
        assert (row.estimate, row.low, row.high) == (group.incompleteness, *group.ci90)
        assert (row.above, row.below) == (-0.2, 0.2) and row.label.startswith(f"{place}. ")
        assert row.unit == f"inc; circuit loses {number(group.lost_by_circuit)}, model {number(group.lost_by_model)}"
        if place <= 10:
            assert (group.lost_by_circuit, group.lost_by_model, group.incompleteness) in found
            assert group.lost_by_circuit - group.lost_by_model == pytest.approx(group.incompleteness, abs=1e-6)
    outside = drawn["outside_groups"].rows
    by_size = sorted(named.outside, key=lambda group: -abs(group.share))[: forest.PAGE]
    assert [row.estimate for row in outside] == [group.share for group in named.outside if group in by_size]
    assert {row.below for row in outside} == {0.1, 0.2} and all(row.above == -row.below for row in outside)


def test_outside_heads_with_large_effects_are_named_with_their_ranks(run, drawn) -> None:
    """L0H2 of pocket's circuit: its noising effect is among the largest of all heads, its other effects are not."""
    evidence, rows = run.evidence, {row.label: row for row in drawn["outside_effects"].rows}
    noising = evidence.head_effect("02", "noising").mean(axis=0)
    place = evidence.heads.index((0, 2))
    assert (0, 2) not in evidence.circuit_heads and np.abs(noising).argmax() == place
    label = f"L0H2, noising {noising[place]:.2f} (1st of 32)"
    assert rows[label].estimate == pytest.approx(noising[place]) and rows[label].estimate > 4
    assert rows[label].low < rows[label].estimate < rows[label].high
    limit = 0.1 * evidence.clean.mean()
    assert drawn["outside_effects"].lines == pytest.approx({"0.1 of D": limit, "-0.1 of D": -limit})
    named = {row.partition(",")[0] for row in rows}
    measured = (
        noising,
        evidence.head_effect("02", "denoising").mean(axis=0),
        evidence.head_effect("21", "effect").mean(axis=0),
    )
    large = {f"L{h[0]}H{h[1]}" for i, h in enumerate(evidence.heads) if max(abs(m[i]) for m in measured) > limit}
    assert named == large - {f"L{layer}H{head}" for layer, head in evidence.circuit_heads}


def test_faithfulness_by_recipe_is_the_ratio_of_sums(run, drawn) -> None:
    record = next(r for r in run.calibration("P")["records"] if r["metric"] == "P.faithfulness")
    rows = {row.label: row for row in drawn["forest_recipes"].rows if row.verdict}
    assert set(rows) == {"zero", "mean", "mean pooled", "resample", "noise"}
    draws = drawn["distribution_faithfulness"].samples
    for label, row in rows.items():
        kept = run.evidence.ablated("circuit", label.replace(" ", "_"))
        assert row.estimate == pytest.approx(ratio_of_means(kept, run.evidence.clean).value)
        assert (row.low, row.high) == pytest.approx(tuple(np.quantile(draws[label], (0.05, 0.95))), rel=1e-6)
    assert [rows["mean"].low, rows["mean"].high] == pytest.approx(record["ci90"], rel=1e-6)
    for reason in record["reasons"]:  # the blocker's sentence and the drawing say the same
        recipe, reached = re.fullmatch(r"not_faithful: (.+) reaches down to (.+), below 0.8", reason).groups()
        assert f"{rows[recipe].low:.2f}" == reached


def test_the_three_sites_of_a_trace_share_a_scale_that_holds_them(run, drawn) -> None:
    impact = run.data("06")["impact"]
    most = max(abs(value) for table in impact.values() for row in table for value in row)
    assert {drawn[f"trace_{site}"].limits for site in impact} == {(-most, most)}


def test_edges_are_means_of_the_stored_effects(run, drawn) -> None:
    stored = run.data("28")
    edges = drawn["circuit"].edges
    effects = np.array(stored["noising"])
    assert len(edges) == len(stored["senders"]) == len(effects)
    baseline = run.data("01")
    for edge, sender, receiver, into, values in zip(
        edges, stored["senders"], stored["receivers"], stored["input"], effects, strict=True
    ):
        ends = [head if isinstance(head, str) else "L{}H{}".format(*head) for head in (sender, receiver)]
        assert [edge.sender, edge.receiver, edge.input] == [*ends, into]
        assert (edge.weight, edge.low, edge.high) == pytest.approx(by_hand(values, stored["rows"], baseline))


def test_each_row_of_attention_sums_to_one_over_the_keys_so_far(drawn) -> None:
    for name, figure in drawn.items():
        if name.startswith("pattern_"):
            assert figure.y == figure.x
            for query, row in enumerate(figure.values):
                assert sum(row[: query + 1]) == pytest.approx(1.0, abs=5e-3)  # stored with three decimals
                assert row[query + 1 :] == (None,) * (len(row) - query - 1)


def test_plotly_accepts_every_figure(drawn) -> None:
    for name, figure in drawn.items():
        if not name.startswith("pattern_") or name.startswith("pattern_1_L0"):
            assert isinstance(plotly.draw(figure), go.Figure)  # it validates every property


def test_a_diverging_scale_is_symmetric_and_a_given_one_is_kept() -> None:
    shared = {"name": "x", "title": "x", "caption": "x", "x_label": "head", "y_label": "layer", "unit": "nats"}
    figure = HeatMap(**shared, x=("0", "1"), y=("0",), values=((-3.0, None),))
    trace = plotly.specification(figure)["data"][0]
    assert (trace["zmin"], trace["zmax"]) == (-3.0, 3.0)
    assert "no value" in trace["hovertext"][0][1]
    limited = HeatMap(**shared, x=("0",), y=("0",), values=((0.5,),), diverging=False, limits=(0.0, 1.0))
    assert plotly.specification(limited)["data"][0]["zmax"] == 1.0


def test_text_of_tokens_never_becomes_markup() -> None:
    token = "<b onload=x>&\n"
    shared = {"name": "x", "title": "x", "caption": "x", "x_label": "key", "y_label": "query", "unit": "w"}
    figure = HeatMap(**shared, x=(token,), y=(token,), values=((1.0,),), text=((token,),))
    text = json.dumps(plotly.specification(figure))
    assert "<b onload" not in text
    assert "&lt;b onload=x&gt;&amp;\\\\n" in text


def test_bins_hold_every_draw() -> None:
    draws = tuple(np.random.default_rng(3).normal(size=501).tolist())
    figure = Distribution(name="d", title="d", caption="d", x_label="x", samples={"a": draws}, lines={"limit": 9.0})
    drawn = plotly.specification(figure)
    assert sum(drawn["data"][0]["y"]) == 501
    low, high = drawn["layout"]["xaxis"]["range"]
    assert low < min(draws) and high > 9.0


def test_the_side_that_passes_is_shaded() -> None:
    rows = (
        EstimateMark("C11.x", 0.02, 0.01, 0.03, "pass", below=0.1),
        EstimateMark("C12.x", 0.6, 0.4, 0.7, "fail", above=0.5),
    )
    drawn = plotly.specification(Forest(name="f", title="f", caption="f", x_label="x", rows=rows, own_scales=True))
    shade = [shape for shape in drawn["layout"]["shapes"] if shape["type"] == "rect"]
    assert shade[0]["x1"] == 0.1 and shade[0]["x0"] == drawn["layout"]["xaxis"]["range"][0]
    assert shade[1]["x0"] == 0.5 and shade[1]["x1"] == drawn["layout"]["xaxis2"]["range"][1]


def test_nodes_of_a_layer_keep_apart_and_lie_in_their_layer() -> None:
    nodes = tuple(GraphNode(f"L{layer}H{head}", layer, f"role {head % 3}") for layer in range(3) for head in range(5))
    graph = CircuitGraph(
        name="g",
        title="g",
        caption="g",
        n_layers=3,
        nodes=nodes,
        edges=(GraphEdge("L0H0", "L2H4", -1.0, "q"),),
        unit="nats",
    )
    places = place_nodes(graph)
    for node in nodes:
        assert round(places[node.name][1]) == node.layer
    for layer in range(3):
        xs = sorted(places[node.name][0] for node in nodes if node.layer == layer)
        assert min(np.diff(xs)) >= 1.0
    edge = plotly.specification(graph)["data"][0]
    assert edge["line"]["color"] == colours.NEGATIVE and edge["line"]["dash"] == "dash"
    assert (edge["x"][0], edge["y"][-1]) == pytest.approx((places["L0H0"][0], places["L2H4"][1]), abs=1e-3)


def test_an_older_folder_gives_the_figures_that_it_can(run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    for absent in ("28", "25", "06"):
        results_io.find(tmp_path / "run", absent).unlink()
    found = figures.of(RunFolder.open(tmp_path / "run"))
    assert found["circuit"].edges == () and "No edge weights" in found["circuit"].caption
    assert not [name for name in found if name.startswith(("pattern_", "trace_", "heads_25"))]
    assert "lens_probability" in found
