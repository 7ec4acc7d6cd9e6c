"""Figures say what the results say: means, intervals, distributions and places against the stored numbers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import plotly.graph_objects as go
import pytest
from scipy import stats

import results_io
from calibrations.statistics import percentile_interval, ratio_of_means
from meridian import figures
from meridian.figures import colours, distributions, estimates, plotly
from meridian.figures.layout import place_nodes
from meridian.figures.values import CircuitGraph, Distribution, Figure, Forest, GraphEdge, GraphNode, HeatMap, Interval
from meridian.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(finished) -> RunFolder:
    return RunFolder.open(finished)


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


def test_its_frames_are_the_heads_of_the_circuit(run, drawn) -> None:
    stored = {tuple(h) for role in run.data("20")["circuit"]["roles"].values() for h in role["heads"]}
    assert set(drawn["heads_02_noising"].marked) == stored
    shapes = plotly.specification(drawn["heads_02_noising"])["layout"]["shapes"]
    assert {((s["y0"] + s["y1"]) / 2, (s["x0"] + s["x1"]) / 2) for s in shapes} == stored


def test_one_prompt_per_cluster_and_one_stratum_give_students_interval() -> None:
    values = np.random.default_rng(0).normal(2.0, 1.0, (40, 1))
    mean, low, high = estimates.clustered_means(values, np.arange(40), np.zeros(40))
    expected = stats.t.interval(0.95, 39, values.mean(), values.std(ddof=1) / np.sqrt(40))
    assert mean[0] == pytest.approx(values.mean())
    # the degrees of freedom are estimated (at most 39), so the interval is no narrower, and little wider
    assert low[0] <= expected[0] + 1e-9
    assert high[0] - low[0] == pytest.approx(expected[1] - expected[0], rel=0.1)


def test_copies_of_a_prompt_in_its_cluster_do_not_narrow_the_interval() -> None:
    values, place = np.random.default_rng(1).normal(0.0, 1.0, (30, 2)), np.arange(30)
    once = estimates.clustered_means(values, place, np.zeros(30))
    thrice = estimates.clustered_means(np.repeat(values, 3, axis=0), np.repeat(place, 3), np.zeros(90))
    np.testing.assert_allclose(once, thrice)


def test_a_column_that_does_not_vary_has_no_interval() -> None:
    mean, low, high = estimates.clustered_means(np.ones((6, 1)), np.arange(6), np.zeros(6))
    assert (mean, low, high) == ([1.0], [None], [None])


DRAWN_INTERVALS = {  # figure: (sample, calibration, metric); the 90 % interval of the certificate is of these draws
    "distribution_c30": ("bootstrap over clusters", "C30", "C30.seed_variance"),
    "distribution_c16_test_retest": ("bootstrap over clusters", "C16", "C16.test_retest"),
    "distribution_c36": ("bootstrap over clusters", "C36", "C36.incremental_validity"),
    "distribution_s1": ("bootstrap over clusters", "S1", "S1.distributional_characterization"),
    "distribution_faithfulness": ("mean", "P", "P.faithfulness"),
    "distribution_s3": ("bootstrap over clusters", "S3", "S3.distributional_stability"),
}


@pytest.mark.parametrize("name", DRAWN_INTERVALS)
def test_the_interval_of_the_certificate_is_that_of_the_draws(run, drawn, name) -> None:
    sample, identifier, metric = DRAWN_INTERVALS[name]
    record = next(r for r in run.calibration(identifier)["records"] if r["metric"] == metric)
    assert (name in drawn) == (record["verdict"] != "insufficient")
    if name in drawn:
        draws = np.array(drawn[name].samples[sample])
        assert percentile_interval(draws, 0.90) == pytest.approx(record["ci90"], rel=1e-6)


def test_split_half_draws_are_those_of_the_record(run, drawn) -> None:
    record = next(r for r in run.calibration("C16")["records"] if r["metric"] == "C16.split_half")
    assert (record["verdict"] == "insufficient") == ("distribution_c16_split_half" not in drawn)
    if "distribution_c16_split_half" in drawn:
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
    if record["verdict"] == "insufficient":
        assert "distribution_c14" not in drawn
        return
    null = np.array(drawn["distribution_c14"].samples["heads relabelled"])
    observed = drawn["distribution_c14"].lines["circuit"]
    p = (1 + int((null >= observed - 1e-12).sum())) / (len(null) + 1)
    assert p == pytest.approx(record["companions"]["p_relabelling"])


def test_an_insufficient_verdict_has_no_distribution(run, tmp_path) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    path = results_io.find(tmp_path / "run", "30")
    document = json.loads(path.read_text())
    document["records"][0]["verdict"] = "insufficient"
    path.write_text(json.dumps(document))
    found = {figure.name for figure in distributions.build(RunFolder.open(tmp_path / "run"))}
    assert "distribution_c30" not in found
    assert "distribution_random_circuits" in found


def test_the_forest_has_every_gate_with_the_limit_that_its_verdict_was_read_from(run, drawn) -> None:
    rows = {row.label: row for name, f in drawn.items() if name.startswith("forest_calibrations") for row in f.rows}
    stored = [r for row in run.certificate["rows"] for r in row["records"] if r["gating"]]
    wanted = {r["metric"]: r for r in [*stored, *run.certificate["preconditions"]] if r["estimate"] is not None}
    assert set(rows) == set(wanted)
    for metric, row in rows.items():
        assert row.estimate == wanted[metric]["estimate"]
        if row.low is not None and (row.above is None) != (row.below is None) and row.verdict == "pass":
            assert row.low >= row.above if row.below is None else row.high <= row.below


def test_faithfulness_by_recipe_is_the_ratio_of_sums(run, drawn) -> None:
    record = next(r for r in run.calibration("P")["records"] if r["metric"] == "P.faithfulness")
    assert ("forest_recipes" in drawn) == (
        "by_method" in record["companions"]
    )  # without it the ratio is not reportable
    rows = {row.label: row.estimate for row in drawn["forest_recipes"].rows} if "forest_recipes" in drawn else {}
    for method in rows.keys() & {"zero", "mean", "noise"}:
        expected = ratio_of_means(run.evidence.ablated("circuit", method), run.evidence.clean).value
        assert rows[method] == pytest.approx(expected)


def test_the_three_sites_of_a_trace_share_a_scale_that_holds_them(run, drawn) -> None:
    impact = run.data("06")["impact"]
    most = max(abs(value) for table in impact.values() for row in table for value in row)
    assert {drawn[f"trace_{site}"].limits for site in impact} == {(-most, most)}


def test_edges_are_means_of_the_stored_effects(run, drawn) -> None:
    stored = run.data("28")
    edges = drawn["circuit"].edges
    assert len(edges) == len(stored["senders"])
    assert [edge.weight for edge in edges] == pytest.approx(stored["noising_mean"], abs=1e-6)
    assert all(edge.low is None or edge.low <= edge.weight <= edge.high for edge in edges)


def test_each_row_of_attention_sums_to_one_over_the_keys_so_far(drawn) -> None:
    for name, figure in drawn.items():
        if name.startswith("pattern_"):
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
    rows = (Interval("C11.x", 0.02, 0.01, 0.03, "pass", below=0.1), Interval("C12.x", 0.6, 0.4, 0.7, "fail", above=0.5))
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
    for number in ("28", "25", "06"):
        results_io.find(tmp_path / "run", number).unlink()
    path = results_io.find(tmp_path / "run", "04")
    document = json.loads(path.read_text())
    del document["data"]["by_position"], document["data"]["examples"]
    path.write_text(json.dumps(document))
    found = figures.of(RunFolder.open(tmp_path / "run"))
    assert found["circuit"].edges == () and "No edge weights" in found["circuit"].caption
    assert not [name for name in found if name.startswith(("pattern_", "trace_", "lens_example", "heads_25"))]
    assert "lens_probability" in found
