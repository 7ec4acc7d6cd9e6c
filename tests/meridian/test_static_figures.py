"""Figures for a paper: the same bytes twice, text as text, the numbers that were given, and every kind of figure."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle

from meridian import figures, paper, report
from meridian.figures import colours, names, plotly, static, static_forest, static_graph, values
from meridian.figures.layout import HELPS, LOGITS, OPPOSES, axis_ends, drawn_edges
from meridian.figures.values import (
    CircuitGraph,
    Curves,
    Distribution,
    EstimateMark,
    Forest,
    GraphEdge,
    GraphNode,
    HeatMap,
    Series,
)
from meridian.run_folder import RunFolder
from results_io import UserError
from tests.meridian.in_browser import contrast

NAMED = {"title": "A title", "caption": "What one sees."}
HEAT = HeatMap(
    name="heat", **NAMED, x_label="head", y_label="layer", x=("0", "1", "2"), y=("0", "1"), unit="nats",
    values=((0.5, -2.0, None), (1.0, 0.0, 0.25)), marked=((1, 2),),
)  # fmt: skip
TOKENS = HeatMap(
    name="tokens", **NAMED, x_label="token", y_label="layer", x=("$x$ & y", "<b>"), y=("0",), unit="probability",
    values=((0.1, 0.9),), text=(("$\\alpha$", "extraordinarily_long_token"),), diverging=False, limits=(0.0, 1.0),
)  # fmt: skip
FOREST = Forest(
    name="forest", **NAMED, x_label="estimate", level=0.9, lines={"limit 0.8": 0.8},
    rows=(
        EstimateMark("first", 0.97, 0.93, 1.01, "pass", "one"),
        EstimateMark("second", None, verdict="insufficient", group="two"),
    ),
)  # fmt: skip
OWN = replace(
    FOREST, name="own", own_scales=True, rows=(EstimateMark("C", 0.4, 0.2, 0.9, "inconclusive", above=0.5, unit="rho"),)
)
CURVES = Curves(
    name="curves", **NAMED, x_label="layer", y_label="nats", x=(0.0, 1.0, 2.0), level=0.95,
    series=(Series("a", (1.0, None, 3.0), (0.5, None, 2.5), (1.5, None, 3.5)), Series("b", (0.0, 0.0, 0.0))),
)  # fmt: skip
DRAWS = Distribution(
    name="draws", **NAMED, x_label="faithfulness", lines={"circuit": 0.9},
    samples={"null": tuple(np.linspace(0, 1, 50)), "constant": (0.3,) * 20},
)  # fmt: skip
GRAPH = CircuitGraph(
    name="graph", **NAMED, n_layers=2, unit="nats",
    nodes=(GraphNode("L0H1", 0, "reader", 0.5), GraphNode("L1H0", 1, "mover", 2.0), GraphNode("logits", 2, "logits")),
    edges=(GraphEdge("L0H1", "L1H0", -0.5, "q"), GraphEdge("L1H0", "logits", 1.5)),
)  # fmt: skip
MAP = values.OutputMap(
    name="map",
    title="Outputs",
    caption="Two axes.",
    x_label="first",
    y_label="second",
    draws=((0.0, 0.0), (1.0, 0.5), (2.0, 2.0)),
    wordings=((0.0, 0.0), (2.0, 2.0)),
    centre=(1.0, 1.0),
    ellipse=((0.5, 1.0), (1.0, 1.5), (1.5, 1.0), (1.0, 0.5)),
    hull=((0.0, 0.0), (1.0, 0.5), (2.0, 2.0)),
    reference=None,
    arrows=(values.MapArrow("clerk", 1.0, 1.0, 2.0, 0.0),),
)
ALL = (HEAT, TOKENS, FOREST, OWN, CURVES, DRAWS, GRAPH, MAP)


def texts(figure: values.Figure, **options: str) -> list[str]:
    """The text elements of the SVG."""
    root = ElementTree.fromstring(static.render(static.draw(figure, **options), "svg"))
    return [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]


def test_every_kind_of_figure_can_be_drawn() -> None:
    kinds = {kind for kind in vars(values).values() if isinstance(kind, type) and issubclass(kind, values.Figure)}
    assert kinds - {values.Figure} == {type(figure) for figure in ALL}


@pytest.mark.slow
@pytest.mark.parametrize("form", static.FORMATS)
@pytest.mark.parametrize("figure", (TOKENS, DRAWS, GRAPH), ids=lambda figure: figure.name)
def test_the_same_figure_gives_the_same_bytes_without_a_date(figure: values.Figure, form: str) -> None:
    first, second = (static.render(static.draw(figure), form) for _ in range(2))
    assert first == second
    assert not re.search(rb"CreationDate|ModDate|dc:date|20\d\d-\d\d-\d\d", first)


def test_another_value_gives_other_bytes() -> None:
    other = replace(HEAT, values=((0.5, -1.0, None), (1.0, 0.0, 0.25)))
    assert static.render(static.draw(HEAT), "svg") != static.render(static.draw(other), "svg")


def test_text_stays_text_and_dollar_signs_are_no_formula() -> None:
    found = texts(TOKENS)
    assert {"$x$ & y", "<b>", "$\\alpha$", "token", "layer", "probability"} <= set(found)
    fonts = static.render(static.draw(TOKENS), "pdf")
    assert b"/FontFile2" in fonts and b"/Type3" not in fonts  # TrueType


@pytest.mark.sampled(4)
@pytest.mark.parametrize("figure", ALL, ids=lambda figure: figure.name)
@pytest.mark.parametrize("width", static.WIDTHS)
def test_nothing_leaves_the_page_and_the_page_has_the_width_of_its_columns(figure: values.Figure, width: str) -> None:
    canvas = static.draw(figure, width)
    box = canvas.get_tightbbox()
    assert canvas.get_figwidth() == static.WIDTHS[width] and canvas.get_figheight() <= static.TALLEST
    assert box.x0 > -0.06 and box.y0 > -0.06
    assert box.x1 < canvas.get_figwidth() + 0.06 and box.y1 < canvas.get_figheight() + 0.06


@pytest.mark.sampled(4)
@pytest.mark.parametrize("figure", ALL, ids=lambda figure: figure.name)
def test_no_letter_is_smaller_than_five_points(figure: values.Figure) -> None:
    sizes = [
        text.get_fontsize() for text in static.draw(figure, "single").findobj(lambda a: hasattr(a, "get_fontsize"))
    ]
    assert min(sizes) >= static.SMALLEST


def test_a_missing_value_is_a_gap_and_not_zero() -> None:
    image = static.draw(HEAT).axes[0].images[0].get_array()
    assert image.mask.tolist() == [[False, False, True], [False, False, False]]
    line = static.draw(CURVES).axes[0].lines[0]
    assert np.isnan(line.get_ydata()).tolist() == [False, True, False]
    assert "insufficient" in texts(FOREST) and "0.97" not in texts(FOREST)


def test_colours_span_the_values_and_are_symmetric_only_if_diverging() -> None:
    above = replace(HEAT, values=((0.5, 2.0, None),), diverging=False)
    assert colours.limits(HEAT) == (-2.0, 2.0) and colours.limits(TOKENS) == (0.0, 1.0)
    assert colours.limits(above) == (0.5, 2.0) and colours.limits(above, from_zero=True) == (0.0, 2.0)
    assert colours.limits(replace(above, values=((3.0,),))) == (3.0, 4.0)  # one value still spans something
    nothing = replace(HEAT, values=((None,),))
    assert colours.limits(nothing) == (-1.0, 1.0) and colours.limits(replace(nothing, diverging=False)) == (0.0, 1.0)


def test_a_row_on_its_own_scale_keeps_its_place_between_its_limit_and_its_ends() -> None:
    row = OWN.rows[0]
    low, high = axis_ends(row.shown, static_forest.MARGIN)
    assert (low, high) == pytest.approx((0.2 - 0.12 * 0.7, 0.9 + 0.12 * 0.7))
    axes = static.draw(OWN).axes[0]
    marker = next(line for line in axes.lines if line.get_marker() == "D")
    assert marker.get_xdata()[0] == pytest.approx((0.4 - low) / (high - low))
    assert "0.4 [0.2, 0.9] rho" in texts(OWN) and "0.5" in texts(OWN)
    assert "0.4 [0.2, 0.9]" in texts(OWN, width="single")


def test_a_histogram_shows_shares_of_its_own_sample() -> None:
    heights = [
        [patch.get_height() for patch in group]
        for group in static.draw(DRAWS).axes[0].containers[::1]
        if len(group) > 1
    ]
    assert [sum(group) for group in heights] == pytest.approx([1.0, 1.0])
    assert len(static.bins([(0.3,) * 20])) == 2


def test_discs_grow_in_area_with_the_effect_and_signs_have_their_colour() -> None:
    nodes = [GraphNode(name, 0, "r", effect) for name, effect in (("a", 0.0), ("b", 1.0), ("c", -2.0))]
    areas = static_graph.disc_areas(nodes)
    assert areas["c"] - areas["a"] == static_graph.GROWTH == pytest.approx(2 * (areas["b"] - areas["a"]))
    script = (Path(report.__file__).parent / "graph.js").read_text(encoding="utf-8")  # the browser says the same
    assert all(f"— {words}" in script for words in (HELPS, OPPOSES)) and f'? "{LOGITS}"' in script
    assert {HELPS, OPPOSES, LOGITS, "into queries", "reader", "mover", "1.5 nats"} <= set(texts(GRAPH))


def test_titles_only_where_asked_for() -> None:
    assert "A title" not in texts(HEAT)
    root = static.render(static.draw(HEAT, titled=True), "svg").decode()
    assert "A title" in root


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(UserError, match="width=triple is unknown; use single or double"):
        static.draw(HEAT, "triple")
    with pytest.raises(UserError, match="format gif is unknown; use svg, pdf, png"):
        static.render(static.draw(HEAT), "gif")
    with pytest.raises(TypeError, match="Figure has no static drawing"):
        static.draw(values.Figure(name="x", **NAMED))


def test_captions_are_escaped_for_latex_and_name_the_file() -> None:
    figure = replace(HEAT, title="50 % of a_b & $c", caption="~^{}#")
    text = paper.as_latex([figure, FOREST], {"heat": "png"}, "single")
    assert "forest" not in text
    assert r"50 \% of a\_b \& \$c. \textasciitilde{}\textasciicircum{}\{\}\#" in text
    assert r"\includegraphics[width=\columnwidth]{figures/heat.png}" in text and r"\begin{figure}" in text
    assert "**50 % of a_b & $c.** ~^{}#" in paper.as_markdown([figure])


def test_a_selection_takes_names_and_patterns_and_refuses_what_matches_nothing() -> None:
    names = ["heads_02_denoising", "heads_02_noising", "certificate"]
    assert paper.chosen(names, None) == set(names)
    assert paper.chosen(names, "certificate") == {"certificate"}
    assert paper.chosen(names, ["*denoising", "cert*"]) == {"heads_02_denoising", "certificate"}
    with pytest.raises(
        UserError, match=r"figures.only=lens\* matches none of the run's figures; use a name or heads\*"
    ):
        paper.chosen(names, ["lens*"])


SIGNED = CircuitGraph(
    name="g",
    title="g",
    caption="g",
    n_layers=2,
    nodes=(GraphNode("L1H0", 1, "late", 1.0), GraphNode("L0H0", 0, "early", 2.0), GraphNode("logits", 2, "logits")),
    edges=(
        GraphEdge("L0H0", "L1H0", 1.0, "q", 0.5, 1.5),
        GraphEdge("L1H0", "logits", -2.0, None, -3.0, -1.0),
        GraphEdge("L0H0", "logits", 1.5, None, -0.5, 3.5),
    ),
    unit="nats",
)


def test_browser_and_paper_have_one_colour_for_roles_signs_estimates_and_limits() -> None:
    drawn, canvas = plotly.specification(SIGNED)["data"], static.draw(SIGNED)
    fills = {
        trace["name"]: trace["marker"]["color"] for trace in drawn if "marker" in trace and trace["mode"] != "markers"
    }
    axes = canvas.axes[0]
    discs = [to_hex(one.get_facecolor()[0]) for one in axes.collections]
    assert fills == {"early": colours.LIGHT[0], "late": colours.LIGHT[1], "logits": colours.PLAIN}
    assert discs == [fills["late"], fills["early"], fills["logits"]]
    lines = [trace["line"]["color"] for trace in drawn if trace["mode"] == "lines"]
    arrows = [to_hex(arrow.get_edgecolor()) for arrow in axes.findobj(FancyArrowPatch)]
    assert lines == arrows == [colours.POSITIVE, colours.NEGATIVE]

    rows = (EstimateMark("judged", 1.0, 0.5, 2.0, "fail", above=0.8), EstimateMark("not judged", 1.0, 0.5, 2.0))
    forest = Forest(name="f", title="f", caption="f", x_label="x", rows=rows)
    trace = plotly.specification(forest)["data"][0]
    paper = list(static.draw(forest).axes[0].lines)
    markers = [to_hex(line.get_color()) for line in paper if line.get_marker() not in ("None", "")]
    assert trace["marker"]["color"] == markers == [colours.VERDICTS["fail"], colours.ESTIMATE]
    intervals = {to_hex(line.get_color()) for line in paper if line.get_marker() in ("None", "")}  # and the limit
    assert intervals == {trace["error_x"]["color"]} == {colours.INK}
    own = replace(forest, own_scales=True)
    (shade,) = [shape for shape in plotly.specification(own)["layout"]["shapes"] if shape["type"] == "rect"]
    (patch,) = [patch for patch in static.draw(own).axes[0].patches if isinstance(patch, Rectangle)]
    red, green, blue, alpha = patch.get_facecolor()
    assert shade["fillcolor"] == f"rgba({255 * red:.0f},{255 * green:.0f},{255 * blue:.0f},{alpha})"


def test_style_and_scripts_of_the_report_have_the_colours_of_the_table() -> None:
    """Signs, text and the frame of the selected head; verdicts are words there, in darker colours than their marks in figures."""
    style, script = report.style(), report.script(report.SCRIPTS)
    helps, opposes = (re.findall(rf"--{name}: (#\w+)", style) for name in ("helps", "opposes"))
    light, dark = (
        (colours.POSITIVE, colours.NEGATIVE),
        (colours.ON_DARK[colours.POSITIVE], colours.ON_DARK[colours.NEGATIVE]),
    )
    assert list(zip(helps, opposes, strict=True)) == [light, dark, dark, light]  # dark by system, by choice; print
    assert f'INK = "{colours.INK}", INK_IN_THE_DARK = "{colours.ON_DARK[colours.INK]}"' in script
    assert f'MARK = "{colours.NEGATIVE}"' in script
    assert set(re.findall(r"--ink: (#\w+)", style)) == {colours.INK, colours.ON_DARK[colours.INK]}


def test_text_of_the_report_stands_out_from_its_ground_in_every_theme() -> None:
    """4.5 for what is read as text, 3 for verdicts and signs, which also have a mark or a word."""
    themes = re.findall(r"--ink:[^}]*", report.style())
    assert len(themes) == 4  # light, dark by system, dark by choice, print
    for theme in themes:
        own = dict(re.findall(r"--([\w-]+): (#\w+)", theme))
        for name, least in {"ink": 4.5, "soft": 4.5, "accent": 4.5, "pass": 3, "fail": 3, "inconclusive": 3, "insufficient": 3,
                            "helps": 3, "opposes": 3}.items():  # fmt: skip
            for ground in ("ground", "raised"):
                assert contrast(_rgb(own[name]), _rgb(own[ground])) >= least, (name, own[name], own[ground])


def _rgb(colour: str) -> str:
    return f"rgb({', '.join(str(round(255 * channel)) for channel in to_rgb(colour))})"


def test_vertical_lines_have_one_colour_by_their_name_in_browser_and_paper() -> None:
    for lines in ({"estimate": 1.0, "limit": 2.0}, {"limit": 1.0, "estimate": 2.0}):  # whichever of them is the larger
        draws = replace(DRAWS, lines=lines)
        browser = [shape["line"]["color"] for shape in plotly.specification(draws)["layout"]["shapes"]]
        paper = [
            to_hex(line.get_color()) for line in static.draw(draws).axes[0].lines if len(set(line.get_xdata())) == 1
        ]
        wanted = [colours.OBSERVED_LINE if name == "estimate" else colours.INK for name in lines]
        assert browser == wanted == paper


def test_layers_run_up_in_every_figure_of_both_renderers() -> None:
    layers = replace(HEAT, upwards=True)
    for figure, first_below in ((layers, True), (HEAT, False)):
        axis = plotly.specification(figure)["layout"]["yaxis"]
        bottom, top = static.draw(figure).axes[0].get_ylim()
        assert (axis["autorange"] is True) == (bottom < top) == first_below
    assert plotly.specification(SIGNED)["layout"]["yaxis"]["range"] == [-0.5, 2.5]
    assert static.draw(SIGNED).axes[0].get_ylim() == (-0.45, 2.45)


def test_an_edge_whose_sign_is_not_known_is_in_no_drawing() -> None:
    assert [edge.uncertain for edge in SIGNED.edges] == [False, False, True]
    assert list(drawn_edges(SIGNED).values()) == [0.5, 1.0]  # of the largest of all
    assert not any(replace(edge, low=None, high=None).uncertain for edge in SIGNED.edges)
    assert replace(SIGNED.edges[0], low=0.0).uncertain


@pytest.fixture(scope="module")
def run(finished: Path) -> RunFolder:
    return RunFolder.open(finished)


@pytest.mark.slow
def test_names_stand_inside_their_discs_and_no_drawn_edge_is_fainter_than_a_third(run: RunFolder) -> None:
    for width in ("single", "double"):
        canvas = static.draw(figures.of(run)["circuit"], width)
        renderer = FigureCanvasAgg(canvas).get_renderer()
        (axes,) = canvas.axes
        discs = [one for one in axes.collections if isinstance(one, PathCollection)]
        names = [text for text in axes.texts if text.get_text()]
        assert len(discs) == len(names) >= 14
        for disc, name in zip(discs, names, strict=True):
            diameter = disc.get_sizes()[0] ** 0.5 * renderer.dpi / 72
            assert name.get_window_extent(renderer).width < diameter, name.get_text()
        opacities = [one.get_alpha() for one in axes.patches if isinstance(one, FancyArrowPatch)]
        assert opacities and min(opacities) >= 0.35 and max(opacities) == pytest.approx(0.92)


@pytest.mark.parametrize(
    ("identifier", "said"),
    [
        ("P.faithfulness_every_recipe, mean pooled", "faithfulness every recipe, mean pooled"),
        ("C13.measurement_invariance", "C13 measurement invariance"),
        ("M3b.certified_stability", "M3b certified stability"),
        ("s1_plus_1", "s1 plus 1"),
        ("0.1 of D, L2H1", "0.1 of D, L2H1"),
    ],
)
def test_identifiers_are_words_on_paper(identifier, said) -> None:
    assert names.human(identifier) == said


def test_no_identifier_stands_in_the_labels_of_a_figure_on_paper(run: RunFolder) -> None:
    for name, figure in figures.of(run).items():
        if not name.startswith(("forest", "trace", "sites", "completeness", "outside", "circuit", "distribution")):
            continue
        canvas = static.draw(figure)
        for axes in canvas.axes:
            labels = [*axes.get_yticklabels(), *axes.get_xticklabels(), *axes.texts]
            raw = [one.get_text() for one in labels if "_" in one.get_text() or "P." in one.get_text()]
            assert not raw, (name, raw)
