"""Refusals that need no torch, whose import takes seconds: an invalid circuit file, and a run that would take days."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from meridian.context import RunContext
from results_io import UserError

GRAPHS = (".pt", ".pkl", ".json")  # files of other tools, which are read later
KIB, HOUR = 1024, 3600
DRAWN = ("resample", "noise")  # recipes that are repeated `draws` times
RESAMPLING = ("resamples", "resamples_p", "permutations", "subsamples", "splits", "halves")  # how such names end


def check(context: RunContext) -> None:
    """UserError for an invalid circuit file and, without force=true, for counts above `limits`.

    These are the numbers of prompts, of runs on them, and of resamples. Costs are those of pocket, the smallest shipped model,
    whichever model is run.
    """
    settings = context.settings
    _check_circuit(settings["circuit"])
    if not settings["force"]:
        _check_cost(settings["prompts"], settings["limits"])
        _check_counts(settings["measurement"], settings["prompts"], settings["limits"])
        _check_resamples(settings)


def _check_circuit(asked: Mapping[str, Any]) -> None:
    if asked["kind"] != "file" or not asked.get("path") or asked.get("strongest") is not None:
        return
    path = Path(str(asked["path"]))
    if not path.is_file() or path.suffix not in GRAPHS:
        from circuits import circuit

        circuit.load(path)


def _check_cost(prompts: Mapping[str, Any], limits: Mapping[str, float]) -> None:
    sizes = {name: size for name, size in prompts.items() if isinstance(size, int)}
    total = sum(sizes.values())
    hours = total * limits["seconds_per_prompt"] / HOUR
    if hours <= limits["hours"]:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    gib = total * limits["kib_per_prompt"] / KIB**2
    raise UserError(
        f"prompts.{largest}={sizes[largest]} asks for {total:,} prompts in all: about {_long(hours)} and {gib:,.1f} GiB of "
        f"results on two CPU cores for the smallest model that ships, and more for others; use fewer prompts, or add force=true"
    )


def _check_counts(measured: Mapping[str, Any], prompts: Mapping[str, Any], limits: Mapping[str, float]) -> None:
    counts = _runs(measured, prompts)
    largest = max(counts, key=lambda name: counts[name])
    hours = sum(counts.values()) * limits["seconds_per_run"] / HOUR
    if hours <= limits["hours"]:
        return
    raise UserError(
        f"measurement.{largest}={_value(measured, largest)} asks for at least {counts[largest]:,} runs of a prompt: about "
        f"{_long(hours)} on two CPU cores for the smallest model that ships, and more for others; use a smaller number, or add "
        "force=true"
    )


def _check_resamples(settings: Mapping[str, Any]) -> None:
    counts = {
        name: value
        for section in ("measurement", "calibration")
        for name, value in _resamples(settings[section], section)
    }
    refits = settings["measurement"]["ocse"]["bootstrap"]
    counts[f"measurement.ocse.bootstrap.{_largest(refits, refits)}"] = refits["refits"] * refits["permutations"]
    largest, limit = max(counts, key=lambda name: counts[name]), settings["limits"]["resamples"]
    if counts[largest] <= limit:
        return
    raise UserError(
        f"{largest}={_value(settings, largest)} draws {counts[largest]:,} times, and limits.resamples={limit:,}: more take "
        "gigabytes or hours; use a smaller number, or add force=true"
    )


def _resamples(section: Mapping[str, Any], above: str) -> Iterator[tuple[str, int]]:
    """(name, number) of every count of resamples or permutations in a section of the settings."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _resamples(value, f"{above}.{key}")
        elif key.endswith(RESAMPLING) and isinstance(value, int):
            yield f"{above}.{key}", value


def _runs(measured: Mapping[str, Any], prompts: Mapping[str, Any]) -> dict[str, int]:
    """{count in `measurement`: the least number of prompt runs it causes}, for counts not bounded by the model's size.

    A product of counts is listed under the largest of them.
    """
    evaluation, scored = prompts["evaluation"], prompts["evaluation"] + prompts["held_out"]
    groups, chains, scrubbed = measured["completeness"], measured["llc"], measured["scrubbing"]
    drawn = sum(recipe in DRAWN for recipes in measured["battery"].values() for recipe in dict.fromkeys(recipes))
    grouped = evaluation // groups["prompt_share"] + prompts["held_out"] // groups["held_out_share"]
    per_group = len(groups["recipes"]) * grouped
    steps = {name: chains[name] for name in ("chains", "burn_in", "draws", "pilot")}
    return {
        "random_circuits": measured["random_circuits"] * scored // measured["random_circuit_prompt_share"],
        "draws": measured["draws"] * drawn * scored,
        "companions": measured["companions"] * measured["companion_prompts"],
        "fresh_prompts.pool_factor": measured["fresh_prompts"]["pool_factor"] * evaluation,
        "repeated_tokens.sequences": measured["repeated_tokens"]["sequences"],
        "corruption.draws": measured["corruption"]["draws"] * evaluation,
        f"completeness.{_largest(groups, ('random_groups', 'draws'))}": groups["random_groups"]
        * groups["draws"]
        * per_group,
        "outside.draws": measured["outside"]["draws"] * grouped,
        "scrubbing.draws": scrubbed["draws"] * min(scrubbed["prompts"], evaluation),
        f"llc.{_largest(chains, steps)}": (
            chains["chains"] * (chains["burn_in"] + chains["draws"] + chains["pilot"]) * chains["batch"]
        ),
        "discovery.eap_ig.steps": measured["discovery"]["eap_ig"]["steps"] * prompts["discovery"],
        "discovery.nap_ig.steps": measured["discovery"]["nap_ig"]["steps"] * prompts["discovery"],
        "attribution_patching.steps": measured["attribution_patching"]["steps"]
        * min(measured["attribution_patching"]["prompts"], evaluation),
    }


def _value(settings: Mapping[str, Any], name: str) -> Any:
    """The setting with this dotted name."""
    return functools.reduce(operator.getitem, name.split("."), settings)


def _largest(counts: Mapping[str, Any], names: Iterable[str]) -> str:
    return max(names, key=lambda name: counts[name])


def _long(hours: float) -> str:
    return f"{hours:,.0f} hours" if hours < 48 else f"{hours / 24:,.0f} days"
