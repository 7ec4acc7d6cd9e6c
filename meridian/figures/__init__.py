"""Figures of a run: values built from results, and the renderers that draw them."""

from __future__ import annotations

from collections.abc import Iterator

from meridian.figures import behaviour, distributions, forest, graph, heads, left_out, lens, patterns, traces
from meridian.figures.values import Figure
from meridian.run_folder import RunFolder


def _geometry(run: RunFolder) -> Iterator[Figure]:
    """The figures of the model's geometry, if it was measured. The import is here because the suites' statistics load slowly."""
    if run.geometry_folder is not None:
        from meridian.figures import geometry

        yield from geometry.of_run(run)


BUILDERS = {  # in the order of a report
    "forest": forest.build,
    "left_out": left_out.build,
    "circuit": graph.build,
    "heads": heads.build,
    "lens": lens.build,
    "traces": traces.build,
    "patterns": patterns.build,
    "distributions": distributions.build,
    "behaviour": behaviour.build,
    "geometry": _geometry,
}


def of(run: RunFolder) -> dict[str, Figure]:
    """Every figure that the results of `run` allow, by name, in the order of the report.

    If a result is missing (left out, or of an older version), so are its figures. UserError if the folder has no certificate,
    or if a result cannot be read.
    """
    return {name: figure for figures in by_section(run).values() for name, figure in figures.items()}


def by_section(run: RunFolder) -> dict[str, dict[str, Figure]]:
    """The same figures by section; the sections are the keys of BUILDERS."""
    return {section: {figure.name: figure for figure in build(run)} for section, build in BUILDERS.items()}
