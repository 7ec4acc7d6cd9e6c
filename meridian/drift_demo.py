"""The series `pocket-demo`: five snapshots of the embedded model, made from seeds, with known drifts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import results_io
from meridian import drift_series
from meridian.context import RunContext
from meridian.training import tuning
from results_io import UserError
from suites.drift import corpus, pocket_prompts, series_record
from suites.models.local import LocalModel

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": "float32"}
CORPUS = "pocket"
CHECKPOINTS, HELD_OUT = "checkpoints", "held-out.yaml"
STEP = 1000  # between two places in the series


def take(context: RunContext, folder: Path, settings: Mapping[str, Any]) -> None:
    """Take every snapshot that is not finished yet, after making its copy of the model. Finished ones are left as they are.

    UserError, before anything is written, for another corpus than the one that its drifts are planted in.
    """
    if settings["corpus"] != CORPUS:
        raise UserError(f"drift.corpus={settings['corpus']}: series=pocket-demo is asked {CORPUS} alone; leave it out")
    demo = settings["demo"]
    held_out = write_held_out(folder / HELD_OUT, demo["held_out_seed"])
    done = {one.id[:9] for one in series_record.read(folder / series_record.NAME).finished}
    for number, one in enumerate(demo["snapshots"]):
        order = number * STEP
        if f"c{order:08d}" in done:
            continue
        model = LocalModel(copy_of(folder, number, settings))
        context.reporter.say(f"{one['name']}: {one['kind']}, share {one['share']:g}")
        own = {**settings, "order": order, "version": one["version"], "held_out": str(held_out)}
        drift_series.take_with(context, folder, model, own)


def copy_of(folder: Path, number: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of one snapshot's model; the model is made if it does not exist yet."""
    one = settings["demo"]["snapshots"][number]
    wanted = tuning.Tuning(
        one["kind"], one["share"], settings["demo"]["seed"] * len(settings["demo"]["snapshots"]) + number
    )
    own = folder / CHECKPOINTS / f"{folder.name}-{number}"
    return tuning.checkpoint(LocalModel(POCKET), wanted, settings["tuning"], corpus.load(settings["corpus"]), own)


def write_held_out(path: Path, seed: str) -> Path:
    """Write the held-out half. It and its salts follow from the seed, which would be secret outside a demo."""
    public = corpus.load(CORPUS)
    taken = frozenset(prompt.text for prompt in public.prompts)
    prompts = pocket_prompts.draw(seed, taken=taken)
    rows = [{**one, "salt": hashlib.sha256(f"{seed} {one['id']}".encode()).hexdigest()} for one in prompts]
    text = yaml.safe_dump({"prompts": rows}, sort_keys=False)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        results_io.write_text(path, text)
    return path


def trace_first(context: RunContext, folder: Path) -> None:
    """Trace the first alarm that has changed outputs, with a null-tuned copy as the control."""
    from meridian import drift_trace

    settings = drift_series.settings_for(context, folder)
    for alarm in drift_trace.alarms(folder):
        if drift_trace.changed(folder, alarm, corpus.load(settings["corpus"])):
            drift_trace.command(context, folder, alarm, settings)
            return
    context.reporter.say("No alarm has outputs at temperature 0 that changed their class, so there is nothing to trace")
