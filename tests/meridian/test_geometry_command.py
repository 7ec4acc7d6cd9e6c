"""`run.py geometry=...` from the command line to its figures: record, results, trace, terminal, refusals."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import results_io
from meridian.figures import geometry, geometry_csv, plotly, static
from meridian.figures.values import Curves, Forest, HeatMap, OutputMap
from meridian.report import figure_numbers
from scripts import freeze_constructs
from suites.geometry import construct, width
from tests.commandline import command

SMALL = 8  # constructs, the fewest that a trace takes


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Eight of pocket's constructs, without the turns after the first."""
    folder = tmp_path_factory.mktemp("sets") / "mine"
    folder.mkdir()
    shipped = construct.CATALOGUE / "pocket"
    shutil.copy(shipped / construct.REFERENCE, folder)
    for path in sorted(shipped.glob(f"*/{construct.FILE}"))[:SMALL]:
        (folder / path.parent.name).mkdir()
        text = (
            path.read_text()
            .replace("- It was a short meeting in June.\n", "")
            .replace("- The market was loud today.\n", "")
        )
        (folder / path.parent.name / construct.FILE).write_text(text)
    assert freeze_constructs.main([str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def ran(own, tmp_path_factory):
    results = tmp_path_factory.mktemp("results")
    asked = ("geometry=file", f"geometry.path={own}", f"results={results}")
    return results / "pocket" / "geometry" / "mine", asked, command(*asked)


def test_the_run_is_whole_and_says_what_it_found(ran):
    folder, _, outcome = ran
    assert outcome.code == 0, outcome.errors
    numbers = [int(path.name.partition("_")[0]) for path in sorted(folder.glob("*.json"))]
    assert numbers == list(range(171, 180))
    said = " ".join(outcome.output.split())
    for line in ("172 paraphrase", "173 framing", "not applicable", "512 outputs or choices asked, 0 known before"):
        assert line in said
    estimate = next(r for r in results_io.read(folder / "173_framing.json")["records"] if not r["construct"])
    row = next(line for line in outcome.output.splitlines() if "teller_glad" in line).split()
    assert row[3:7] == [f"{estimate['published']['value']:.3f}", "ratio", f"{estimate['value']:.3f}", "d²"]
    assert "179 mtmm: means over constructs, corrected (published), d" in said and "stability not applicable" in said
    assert (
        f"Report {folder / 'report.html'}" in "".join(outcome.output.split("\n")) and (folder / "report.html").is_file()
    )
    assert f"figures from={folder}" in "".join(outcome.output.split("\n"))
    records = [record for path in folder.glob("*.json") for record in results_io.read(path)["records"]]
    assert all((record["value"] is None) == (record["status"] != "ok") for record in records)
    assert all("published" in record for record in records)


def test_the_second_run_asks_nothing_and_writes_the_same_bytes(ran):
    folder, asked, _ = ran
    before = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    outcome = command(*asked)
    assert "0 outputs or choices asked, 512 known before" in " ".join(outcome.output.split())
    assert {path.name: path.read_bytes() for path in folder.glob("*.json")} == before


@pytest.mark.slow
def test_a_scale_is_fixed_once_and_every_distance_is_then_in_its_unit(own, ran, tmp_path):
    copy = shutil.copytree(own, tmp_path / "fixed")
    asked = ("geometry=file", f"geometry.path={copy}", f"results={tmp_path / 'r'}")
    outcome = command(*asked, "geometry.fix_scale=rms")
    assert outcome.code == 0, outcome.errors
    fixed, plain = tmp_path / "r" / "pocket" / "geometry" / "fixed", ran[0]
    scale = results_io.read(fixed / "171_position.json")["data"]["sets"]["fixed"]["scale"]
    assert scale["run"] == "pocket" and scale["rms"] == pytest.approx(np.hypot(*scale["sd"]))
    values = [
        [r["value"] for r in results_io.read(folder / "172_paraphrase.json")["records"] if r["construct"]]
        for folder in (fixed, plain)
    ]
    assert np.allclose(np.array(values[0]) * scale["rms"] ** 2, values[1])
    again = command(*asked, "geometry.fix_scale=rms")
    assert again.code == 2 and "has a scale already" in again.errors
    for wrong, sentence in (("sd", "geometry.fix_scale=sd is unknown; use one of rms, mahalanobis"),):
        assert sentence in command(*asked, f"geometry.fix_scale={wrong}").errors
    assert (
        "use it with geometry=file"
        in command("geometry=pocket", "geometry.fix_scale=rms", f"results={tmp_path}").errors
    )


@pytest.mark.slow
def test_figures_are_drawn_in_both_themes_with_their_numbers(ran, tmp_path):
    folder, _, _ = ran
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    bytes_of = {}
    for theme in ("light", "dark"):
        outcome = command("figures", f"from={copy}", "figures.formats=[svg,png]", f"figures.theme={theme}")
        assert outcome.code == 0 and "Figures: 9" in " ".join(outcome.output.split()), outcome.errors
        bytes_of[theme] = {path.name: path.read_bytes() for path in (copy / "figures").iterdir()}
    assert bytes_of["light"]["matrix_mine.svg"] != bytes_of["dark"]["matrix_mine.svg"]
    assert bytes_of["light"]["matrix_mine.csv"] == bytes_of["dark"]["matrix_mine.csv"]
    assert b"#14181d" in bytes_of["dark"]["turns_mine.svg"] and b"#14181d" not in bytes_of["light"]["turns_mine.svg"]
    outcome = command("figures", f"from={copy}", "figures.theme=sepia")
    assert outcome.code == 2 and "figures.theme=sepia is unknown; use light or dark" in outcome.errors


def test_what_the_figures_hold(ran):
    figures = list(geometry.build(ran[0]))
    maps = [one for one in figures if isinstance(one, OutputMap)]
    assert len(maps) == 6 and all(len(one.wordings) == 8 and len(one.draws) == 24 for one in maps)
    for one in maps:
        assert np.allclose(np.mean(one.wordings, axis=0), one.centre) and len(one.arrows) == 2
        assert np.allclose((one.arrows[0].x0, one.arrows[0].y0), one.centre) and one.reference == (0, 0)
        assert one.x_label == "good against bad (log-odds, nats)"  # no scale is fixed
    stored = results_io.read(ran[0] / "171_position.json")["data"]["sets"]["mine"]["constructs"]
    for one in maps:  # the kept set is OW's: 8 neutral prompts of 32
        variants = stored[one.name.removeprefix("map_mine_")]["variants"].values()
        prompts = np.array([np.mean(v["points"], axis=0) for v in variants if v["method"] == "paraphrase"])
        assert (len(variants), len(prompts)) == (32, 8) and np.allclose(one.hull, geometry.outline(width.kept(prompts)))
    assert geometry._axis({"axes": ["x"], "kind": "choices", "scale": {"rms": 2.0}}, 0) == "x (scaled log-odds)"
    (table,) = [one for one in figures if isinstance(one, HeatMap)]
    for values, texts in zip(table.values, table.text or (), strict=True):
        for value, text in zip(values, texts, strict=True):
            assert (value is None) == (text in ("not applicable", "insufficient data"))
    assert sum(value is None for row in table.values for value in row) == 7
    (drift,) = [one for one in figures if isinstance(one, Curves)]
    assert drift.y_label == "distance, nats" and not any("of a author" in one.title for one in maps)
    assert drift.x == ("0", "1") and drift.series[0].y[0] == 0 < drift.series[0].y[1]
    assert len(drift.series) == 1 and "no band" in drift.caption  # likelihoods are exact: nothing is random
    (compared,) = [one for one in figures if isinstance(one, Forest)]
    assert [row.label for row in compared.rows] == ["published", "estimate"] * 7  # OW of all constructs too
    shifts = [
        r["detail"]["shift"]
        for r in results_io.read(ran[0] / "173_framing.json")["records"]
        if r["label"] == "teller_glad" and r["construct"]
    ]
    assert compared.rows[4].estimate == pytest.approx(np.mean(shifts))  # a distance like all others
    rows = geometry_csv.of(maps[0]).splitlines()
    assert len(rows) == 1 + 24 + 8 + len(maps[0].hull) + geometry.CORNERS + 1 + 2 + 1
    corner = [float(number) for number in next(row for row in rows if row.startswith("ellipse")).split(",")[2:]]
    assert corner == list(maps[0].ellipse[0])


def test_maps_take_the_neutral_wordings_of_the_metrics_direct_ones_only_where_there_are_no_paraphrases():
    rng = np.random.default_rng(2)

    def shown(methods):
        variants = {
            f"v{k}": {"method": method, "persona": None, "points": rng.normal(size=(3, 2)).tolist()}
            for k, method in enumerate(methods)
        }
        constructs = {"q": {"title": "A question", "reference": None, "variants": variants}}
        return {"kind": "numbers", "axes": ["x", "y"], "scale": {}, "deterministic": False, "constructs": constructs}

    both = ["paraphrase"] * 4 + ["direct"] * 5
    (one,) = geometry.maps("mine", shown(both))
    assert len(one.wordings) == 4 and "neutral wordings (4)" in one.caption and len(one.draws) == 27
    (one,) = geometry.maps("mine", shown(["direct"] * 5))
    assert len(one.wordings) == 5


def test_the_browser_draws_the_same_points_and_hatches_what_has_no_value(ran):
    drawn = {one.name: (one, plotly.specification(one)) for one in geometry.build(ran[0])}
    shown, specification = next(pair for name, pair in drawn.items() if name.startswith("map_"))
    traces = {trace["name"]: trace for trace in specification["data"]}
    assert list(zip(traces["output"]["x"], traces["output"]["y"], strict=True)) == list(shown.draws)
    arrow = traces[f"framed: {shown.arrows[0].label}"]
    assert (arrow["x"], arrow["y"]) == (
        [shown.arrows[0].x0, shown.arrows[0].x1],
        [shown.arrows[0].y0, shown.arrows[0].y1],
    )
    assert traces["95 % ellipse"]["x"][0] == traces["95 % ellipse"]["x"][-1]  # closed
    table, specification = drawn["matrix_mine"]
    fields = [shape for shape in specification["layout"]["shapes"] if shape["type"] == "rect"]
    missing = {(x, y) for y, row in enumerate(table.values) for x, value in enumerate(row) if value is None}
    assert {(shape["x0"] + 0.5, shape["y0"] + 0.5) for shape in fields} == missing and len(missing) == 7
    strokes = [shape for shape in specification["layout"]["shapes"] if shape["type"] == "line"]
    assert len(strokes) == 8 * 7 and all(abs(s["x0"] + s["y0"] - s["x1"] - s["y1"]) < 1e-9 for s in strokes)
    assert drawn["turns_mine"][1]["layout"]["xaxis"]["type"] == "category"  # not half a turn
    rows = {row[0]: row[1:] for row in figure_numbers.numbers_of(shown).rows}
    assert float(rows["centre of the neutral wordings"][0]) == pytest.approx(shown.centre[0], rel=1e-2, abs=1e-3)
    assert "insufficient data" in str(figure_numbers.numbers_of(table).rows)


def test_the_band_of_turns_is_that_of_a_mean_over_constructs():
    detail = {"distances": [0.0, 0.5], "floor_mean": [0.0, 0.2], "floor_sd": [0.0, 0.1]}
    record = {"suite": "mine", "construct": "q", "status": "ok", "detail": detail}
    (drift,) = geometry.drift("mine", {"records": [record] * 4}, "distance")
    still = drift.series[1]
    assert (still.y[1], still.low[1], still.high[1]) == tuple(
        pytest.approx(0.2 + k * 0.098, abs=1e-4) for k in (0, -1, 1)
    )
    (band,) = [trace for trace in plotly.specification(drift)["data"] if "fill" in trace]
    assert band["mode"] == "lines"  # no marks at its ends, which would look like values


def test_an_ellipse_holds_the_centre_as_often_as_it_says():
    rng, inside = np.random.default_rng(0), 0
    for _ in range(400):
        means = rng.normal(size=(8, 2)) * (1.0, 0.3)
        outline = geometry.ellipse(means) - means.mean(0)
        axes = np.linalg.norm(outline, axis=1)
        inverse = np.linalg.inv(np.cov(means.T))
        radius = np.einsum("pi,ij,pj->p", outline, inverse, outline).mean()
        inside += means.mean(0) @ inverse @ means.mean(0) <= radius
        assert axes.min() > 0
    assert 0.92 <= inside / 400 <= 0.98


def test_a_hull_of_points_on_a_line_is_the_line():
    assert geometry.outline(np.array([(0.0, 0), (1, 1), (2, 2)])).tolist() == [[0, 0], [2, 2]]
    assert len(geometry.outline(np.array([(0.0, 0), (4, 0), (0, 4), (1, 1)]))) == 3


def test_a_cell_without_a_value_is_hatched_and_says_its_status(tmp_path):
    cells = [
        {"trait": t, "method": m, "value": None, "status": "insufficient_data", "reason": "few"}
        for t in geometry.mtmm.TRAITS
        for m in geometry.mtmm.METHODS
    ]
    cells[0] |= {"value": 1.0, "status": "ok"}
    (path,) = static.write(geometry.matrix("mine", cells, "distance"), tmp_path, ["svg"])
    assert path.read_text().count("insufficient data") == 11 and "1.00" in path.read_text()


def test_figures_of_a_folder_above_name_the_folder_that_has_a_page(tmp_path):
    below = tmp_path / "geometry" / "pocket"
    below.mkdir(parents=True)
    results_io.write(below / "171_position.json", {"number": "171"})
    outcome = command("figures", f"from={below.parent}")
    assert outcome.code == 2 and f"; use {below}" in outcome.errors and "task=ioi" not in outcome.errors
    (below / "171_position.json").unlink()
    assert "; give the folder of a finished run" in command("figures", f"from={below.parent}").errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("geometry=file",), "geometry=file needs geometry.path"),
        (("geometry=file", "geometry.path=nowhere"), "there is no set of constructs 'nowhere'"),
        (("geometry=maps",), "geometry=maps is unknown; use one of all, file, opinions, pocket"),
        (("figures", "from=docs"), "docs has no certificate.json"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path):
    outcome = command(*arguments, f"results={tmp_path / 'r'}")
    assert outcome.code == 2 and sentence in outcome.errors and not (tmp_path / "r").exists()


@pytest.mark.slow
def test_the_trace_writes_180_and_says_which_heads(ran, own):
    folder, asked, _ = ran
    outcome = command(*asked, "geometry.trace=true", "geometry.trace_resamples=1000")
    assert outcome.code == 0 and "Trace of mine: trait heads" in outcome.said
    data = results_io.read(folder / "180_trace.json")["data"]["mine"]
    assert len(data["heads"]) == 32 and data["constructs"] == SMALL
    for one in data["heads"]:
        assert {e["quantity"].partition(" ")[0] for e in one["effects"]} == {"position", "spread", "framing"}
        assert all(e["low"] <= e["estimate"] <= e["high"] for e in one["effects"])
        assert (one["kind"] in data["named"] and one["head"] in data["named"][one["kind"]]) or one["kind"] == ""
