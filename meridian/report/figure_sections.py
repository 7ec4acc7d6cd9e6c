"""The report's sections between certificate and record: their figures, and a sentence for each one that is missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from meridian.figures import distributions
from meridian.figures.heads import MEASURES
from meridian.figures.values import Figure
from meridian.report import number_links, sources
from meridian.report.certificate_section import words
from meridian.report.figure_numbers import NumberTable, numbers_of
from meridian.report.number_links import Links
from meridian.report.sources import FieldSource
from meridian.run_folder import RunFolder

Figures = Mapping[str, Figure]


@dataclass(frozen=True)
class FigureWithNumbers:
    """A figure, and its numbers as a table. `links`: the sources of single cells of the table."""

    figure: Figure
    table: NumberTable
    sources: tuple[FieldSource, ...] = ()
    links: Links = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The text that a screen reader reads instead of the figure."""
        return f"{self.figure.title}. {self.figure.caption}"


@dataclass(frozen=True)
class Section:
    """A part of the page. `grid`: whether its figures are side by side.

    `lacks(run, figures)` gives sentences about what is missing and why. `figures` and `missing` fill the page's template. In a
    section with `leading` figures, the others are shown one at a time.
    """

    name: str
    title: str
    short: str
    text: str
    lacks: Callable[[RunFolder, Figures], list[str]]
    grid: bool = False
    leading: tuple[str, ...] = ()
    figures: tuple[FigureWithNumbers, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def first(self) -> tuple[FigureWithNumbers, ...]:
        """The figures that are always drawn: all or, with `leading`, the leading ones; if there are none, as many others."""
        found = tuple(shown for shown in self.figures if shown.figure.name in self.leading)
        return found or self.figures[: len(self.leading) or None]

    @property
    def others(self) -> tuple[FigureWithNumbers, ...]:
        """The figures from which readers choose one at a time."""
        return tuple(shown for shown in self.figures if shown not in self.first)


def of(run: RunFolder, drawn: Mapping[str, Figures]) -> list[Section]:
    """Every section in order; one without figures says why."""
    links = number_links.of(run, drawn)
    return [
        replace(
            section,
            figures=tuple(
                FigureWithNumbers(
                    figure, numbers_of(figure), tuple(sources.of_figure(run, figure)), links.get(figure.name, {})
                )
                for figure in drawn.get(section.name, {}).values()
            ),
            missing=tuple(section.lacks(run, drawn.get(section.name, {}))),
        )
        for section in SECTIONS
    ]


def _without(number: str, what: str) -> str:
    absent = "is not in this folder; the measurement was left out or does not apply to the model."
    return f"{what}: result {number} {absent}"


def _no_examples(number: str, what: str) -> str:
    return f"{what}: result {number} has no example prompt."


def _no_forest(run: RunFolder, found: Figures) -> list[str]:
    wanted = {
        "forest_calibrations": "Estimates and limits: no gate has an estimate.",
        "forest_recipes": "Faithfulness by recipe: not reportable, see P.faithfulness in the certificate.",
        "forest_templates": "Faithfulness by template: C13 was not run or says insufficient.",
    }
    return [reason for name, reason in wanted.items() if name not in found]


def _no_left_out(run: RunFolder, found: Figures) -> list[str]:
    wanted = {
        "completeness_groups": "Groups of claimed heads: none was compared, see P.completeness in the certificate.",
        "outside_groups": "Groups of heads outside: none was judged, see P.outside in the certificate.",
        "outside_effects": "Heads outside the claim with large effects: none in 02 or 21 is above the share of the mean "
        f"{run.evidence.metric} that P.outside allows a head.",
    }
    return [reason for name, reason in wanted.items() if name not in found]


def _no_edges(run: RunFolder, found: Figures) -> list[str]:
    return [_without("28", "Edge weights")] if run.document("28") is None else []


def _no_heads(run: RunFolder, found: Figures) -> list[str]:
    there = {name.split("_")[1] for name in found}
    absent: dict[str, list[str]] = {}
    for measure in MEASURES:
        if measure.number not in there:
            absent.setdefault(measure.number, []).append(measure.title)
    return [_without(number, "; ".join(titles)) for number, titles in absent.items()]


def _no_lens(run: RunFolder, found: Figures) -> list[str]:
    data = run.data("04")
    if data is None:
        return [_without("04", "Logit lens")]
    return [] if data["examples"] else [_no_examples("04", "The lens on example prompts")]


def _no_traces(run: RunFolder, found: Figures) -> list[str]:
    wanted = {"trace_residual": ("06", "Causal traces"), "sites_residual": ("02", "Patched sites")}
    return [_without(*entry) for name, entry in wanted.items() if name not in found]


def _no_patterns(run: RunFolder, found: Figures) -> list[str]:
    if found:
        return []
    what = "Attention patterns"
    return [_without("25", what) if run.document("25") is None else _no_examples("25", what)]


def _no_distribution(run: RunFolder, found: Figures) -> list[str]:
    """Sentences about calibrations that judged nothing, with their reasons."""
    missing = []
    for source in distributions.SOURCES:
        if f"distribution_{source.name}" in found:
            continue
        reasons = (run.record(source.metric) or {"reasons": ()})["reasons"]
        missing.append(f"{source.title}: {words(reasons[0]) if reasons else 'this calibration was not run'}.")
    return missing


def _no_behaviour(run: RunFolder, found: Figures) -> list[str]:
    absent = (
        "No results of behavioural suites of these weights lie beside this run; python run.py suite=all makes them."
    )
    return [] if found else [absent]


def _complete(run: RunFolder, found: Figures) -> list[str]:
    """No sentences, for a section that has no figures or describes what is missing itself."""
    return []


FOUR_MAPS = ("heads_02_denoising", "heads_02_noising", "heads_03_attribution", "heads_21_effect")


def _no_geometry(run: RunFolder, found: Figures) -> list[str]:
    return (
        []
        if found
        else ["No results of geometry of these weights lie beside this run; python run.py geometry=all makes them."]
    )


SECTIONS = (
    Section("forest", "What the tiers ask for", "Estimates",
            "Estimates with their intervals, and the limits that the verdicts compare them with.", _no_forest),
    Section("left_out", "What the claim leaves out", "Left out",
            "Groups of claimed heads without which circuit and model lose unlike amounts, and heads outside the claim. The "
            "certificate's tables above name the heads.", _no_left_out),
    Section("disagree", "Methods disagree", "Disagree",
            "Heads about which the methods differ: outside the claim and yet among the first quarter by size in one of them, or "
            "claimed and yet in the last quarter, or with an interval that holds 0. The value that disputes the claim is bold; "
            "behind it is its rank among all heads.", _complete),
    Section("circuit", "The circuit", "Circuit",
            "Heads by layer, in the colour of their role; the stream flows upwards. Point at a head to see its edges alone, "
            "choose it for all that is known of it.", _no_edges),
    Section("heads", "Heads", "Heads",
            "Every measurement that says something about each head. The circuit's heads have a frame. Pointing at a "
            "cell shows value and interval, choosing it opens the head; the numbers below each map are the same.", _no_heads,
            grid=True, leading=FOUR_MAPS),
    Section("prompts", "Prompts", "Prompts",
            "Every scored prompt. First those on which the circuit alone is farthest from the model. The share that it keeps "
            "is the faithfulness of one prompt; sort by it for the prompts far below or above 1.", _complete),
    Section("lens", "Logit lens", "Lens",
            "What the residual stream already says about the answer, layer by layer.", _no_lens),
    Section("traces", "Causal traces", "Traces",
            "Where in the prompt, and in which layer, the answer is decided.", _no_traces, grid=True),
    Section("patterns", "Attention of all heads", "Attention",
            "Choose a token to see where every head looks from there. The circuit's heads have a frame.", _no_patterns),
    Section("distributions", "Distributions behind the verdicts", "Distributions",
            "Drawn again from the stored measurements with each calibration's own "
            "settings and seeds. Each caption says how the certificate's interval was made: the ends of a percentile interval "
            "are percentiles of these draws, those of any other are not.", _no_distribution, grid=True),
    Section("behaviour", "Behaviour", "Behaviour",
            "What the model gets wrong elsewhere, and which heads carry it.", _no_behaviour),
    Section("geometry", "Where its outputs lie", "Geometry",
            "The same questions in other words, behind personas and later in a text: where the answers lie, and how far they "
            "move. The paper's thresholds give no verdict here.", _no_geometry, grid=True),
)  # fmt: skip
