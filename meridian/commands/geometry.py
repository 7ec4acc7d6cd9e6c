"""`run.py geometry=...`: where a model's outputs lie, how far wording, personas and turns move them, what they cover."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import results_io
from meridian.context import RunContext
from results_io import UserError

if TYPE_CHECKING:
    from suites.geometry.construct import ConstructSet
    from suites.geometry.measure import GeometryRun

ALL, FILE, FOLDER = "all", "file", "geometry"


def command(context: RunContext) -> None:
    """Measure the sets asked for, write results 171 to 179 (180 with geometry.trace=true), and print a summary."""
    settings, reporter = context.settings["geometry"], context.reporter
    sets = asked(context)
    folder = folder_asked(context, sets)
    _check_fix(settings, sets)
    with context.followed(folder, FOLDER):
        from meridian.report import pages
        from suites.geometry import measure, results, summary
        from suites.models import open_model

        model = open_model(context.model_settings)
        run = measure.run(sets, model, folder, settings, reporter.counting, seed=context.seed)
        if settings["fix_scale"] is not None:
            fix_scale(run, settings["fix_scale"])
            run = measure.run(asked(context), model, folder, settings, reporter.counting, seed=context.seed)
        shown = folder if settings["coordinates"] is None else folder / f"coordinates={settings['coordinates']}"
        _, found = results.write(shown, run)
        lines = _trace(context, run, shown) if settings["trace"] else []
        summary.show(run, found, reporter.console, shown, lines)
        pages.write(shown, reporter.say)
        reporter.tracker("asked", shown)


def asked(context: RunContext) -> list[ConstructSet]:
    """The construct sets asked for. UserError for a folder that is not named or does not exist."""
    from suites.geometry import construct

    settings = context.settings["geometry"]
    if settings["name"] == ALL:
        return [construct.load(name) for name in construct.names()]
    if settings["name"] != FILE:
        return [construct.load(settings["name"])]
    if not settings.get("path"):
        raise UserError(
            f"geometry=file needs geometry.path; give the folder that holds {construct.REFERENCE} and the constructs"
        )
    loaded = construct.load(settings["path"])
    if loaded.name in (ALL, FILE, *construct.names()):
        raise UserError(
            f"the folder {settings['path']} has the name {loaded.name}, under which others keep their results; rename it"
        )
    return [loaded]


def fix_scale(run: GeometryRun, kind: str) -> None:
    """Write the scale of this run into the set's reference.yaml and freeze the set anew.

    UserError if the set does not apply or has a scale already.
    """
    from suites.geometry import construct, fixed_scale

    (own,) = run.sets
    if own.reason is not None:
        raise UserError(
            f"{own.constructs.name} does not apply to {run.model} ({own.reason}); fix the scale on another model"
        )
    outputs = [[output.points for output in one.outputs.values()] for one in own.measured if one.outputs]
    draws = [points for one in outputs if len(points := np.concatenate(one))]  # none of a construct that is refused
    plane = own.coordinates is not None and not own.coordinates.axes
    folder = own.constructs.folder
    fixed_scale.write(folder / construct.REFERENCE, fixed_scale.of(draws, run.model, kind, with_plane=plane))
    results_io.write_text(folder / construct.LOCK, construct.freeze(construct.load(folder, locked=False)))


def folder_asked(context: RunContext, sets: list[ConstructSet]) -> Path:
    """The folder of the record: results/<model>/geometry, with a subfolder for a single set and one for changed sampling.

    Results in coordinates other than the declared ones have a folder of their own below it, and share the record.
    """
    from meridian import overrides

    name = context.settings["geometry"]["name"]
    folder = context.model_folder / FOLDER
    if name != ALL:
        folder = folder / sets[0].name
    ignored = (
        "geometry.trace",
        "geometry.path",
        "geometry.trace_resamples",
        "geometry.trace_margin",
        "geometry.level",
        "geometry.fix_scale",
        "geometry.coordinates",
    )
    differs = [
        text for text in context.differs
        if overrides.setting(text) not in ("geometry", *ignored) and not text.startswith(("model", "suite"))
    ]  # fmt: skip
    return overrides.below(folder, [text for text in differs if text.startswith(("geometry.", "seed"))])


def _check_fix(settings: Mapping[str, Any], sets: list[ConstructSet]) -> None:
    """UserError if the scale that geometry.fix_scale asks for could not be written at the end of the run."""
    from suites.geometry import fixed_scale

    if settings["fix_scale"] is None:
        return
    if settings["fix_scale"] not in fixed_scale.KINDS:
        raise UserError(
            f"geometry.fix_scale={settings['fix_scale']} is unknown; use one of {', '.join(fixed_scale.KINDS)}"
        )
    if settings["name"] != FILE or settings["coordinates"] is not None:
        raise UserError(
            "geometry.fix_scale writes into the reference.yaml of a set of your own, in the coordinates that it declares; use "
            "it with geometry=file and without geometry.coordinates"
        )
    fixed_scale.require_none(sets[0].folder / "reference.yaml")


def _trace(context: RunContext, run: GeometryRun, folder: Path) -> list[str]:
    """Write result 180; returns the lines for the terminal."""
    from suites.geometry import trace

    return trace.command(context.model_settings, run, folder, context.settings["geometry"], context.seed)
