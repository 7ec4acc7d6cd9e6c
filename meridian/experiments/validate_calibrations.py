"""How often are the verdicts wrong? Every calibration on circuits whose truth is known, sampled many times.

For each subject, measure a pool of prompts, draw samples from it, judge each sample like a run, and count verdicts. The table
shows how often the verdict was "pass" for each subject and calibration, beside what was declared before measuring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import code_digest
import results_io
from calibrations import calibrate
from meridian.experiments.validation import declared, figure, judging, page, rates
from meridian.experiments.validation.declared import RANDOM, KnownClaim
from meridian.experiments.validation.judging import JudgingSettings, SampleBatch
from meridian.experiments.validation.rates import JudgedSample, PassRate
from meridian.experiments.validation.stored import Pool
from results_io import UserError

if TYPE_CHECKING:
    from meridian.context import RunContext

NAME = "validate_calibrations"
RATES, INTERVALS = ("V1", "error_rates"), ("V2", "coverage")
EMBEDDED = ("pocket",)  # models with a stored circuit; random claims copy its size and layers

Outcomes = Mapping[tuple[str, int], Sequence[JudgedSample]]  # {(subject, number of prompts): its judged samples}


def run(context: RunContext) -> None:
    """Measure, judge, count and simulate; write V1 and V2 below results/validation and print their tables."""
    settings, folder = context.settings["experiment"], context.experiment_folder("validation")
    check(settings)
    subjects = {**declared.chosen(settings), RANDOM: random_subject(settings)}
    pools = measured(context, subjects, folder)
    found = judged(context, subjects, pools)
    digests = {name: digest for pool in pools for name, digest in pool.digests.items()}
    write(folder, RATES, digests, rates_document(subjects, found, context.settings, len(pools)))
    write(folder, INTERVALS, {}, coverage_document(settings["coverage"], simulated(context)))
    for shown in page.tables(*stored(folder)):
        context.reporter.console.print(shown)
    figure.save(stored(folder)[0], folder / "error_rates.svg")
    context.reporter.say(f"Results {folder}")


def check(settings: Mapping[str, Any]) -> None:
    """UserError for settings with which nothing could be sampled or shown; called before anything is measured."""
    for name in ("experiment.prompts", "experiment.coverage.prompts"):
        sizes = settings["prompts"] if name == "experiment.prompts" else settings["coverage"]["prompts"]
        if not sizes or len(set(sizes)) < len(sizes) or min(sizes) < 2:
            raise UserError(f"{name}={sizes} is no list of sample sizes; use different whole numbers from 2 on")
    needed = max(sum(judging.sizes(prompts).values()) for prompts in settings["prompts"])
    for name, pool in (("pool", settings["pool"]), ("random_circuits.pool", settings["random_circuits"]["pool"])):
        if pool < needed:
            raise UserError(
                f"experiment.{name}={pool} is too small for samples of {needed} prompts; use at least {needed}"
            )
    if settings["default_prompts"] not in settings["prompts"]:
        known, given = ", ".join(map(str, settings["prompts"])), settings["default_prompts"]
        raise UserError(f"experiment.default_prompts={given} is not among the sizes; use one of {known}")
    if settings["random_circuits"]["model"] not in EMBEDDED:
        given, known = settings["random_circuits"]["model"], ", ".join(EMBEDDED)
        raise UserError(f"experiment.random_circuits.model={given} is no model with a stored circuit; use {known}")
    if empty := [truth for truth, seeds in settings["model_seeds"].items() if not seeds]:
        raise UserError(f"experiment.model_seeds.{empty[0]}=[] leaves nothing to measure; give at least one seed")


def stored(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(error rates, coverage): the two results of this experiment in a folder."""
    return page.read(folder)


def write(folder: Path, which: tuple[str, str], inputs: Mapping[str, str], content: Mapping[str, Any]) -> None:
    """Write one numbered result. `inputs`: digests of the measurements that it was made from."""
    number, name = which
    common = {"kind": "experiment", "records": [], "inputs_sha256": inputs, "environment": calibrate.environment()}
    results_io.write(folder / f"{number}_{name}.json", {"number": number, "id": name, **common, **content})


def judged(context: RunContext, subjects: Mapping[str, KnownClaim], pools: Sequence[Pool]) -> Outcomes:
    """Every sample of every pool, judged."""
    settings = context.settings["experiment"]
    calibration = merged(context.settings["calibration"], settings["calibration"])
    rules = JudgingSettings(calibration, context.settings["certificate"], settings["seed"])
    works = [
        SampleBatch(pool, prompts, tuple(range(settings["replicates"][_kind(subjects[pool.subject])])))
        for pool in pools
        for prompts in settings["prompts"]
    ]
    found: dict[tuple[str, int], list[JudgedSample]] = defaultdict(list)
    with context.reporter.bar("samples judged") as bar:
        bar.expect(sum(len(work.replicates) for work in works))
        for work, outcomes in judging.judged(works, rules):
            found[work.pool.subject, work.prompts] += outcomes
            bar.advance(len(outcomes))
    return found


def simulated(context: RunContext) -> list[dict[str, Any]]:
    """Coverage of every interval at every number of prompts."""
    settings = context.settings["experiment"]["coverage"]
    found: list[dict[str, Any]] = []
    with context.reporter.bar("intervals simulated") as bar:
        bar.expect(settings["replicates"] * len(settings["prompts"]))
        for rows in judging.simulated({**settings, "calibration": context.settings["calibration"]}):
            found += rows
            bar.advance(settings["replicates"])
    return sorted(found, key=lambda row: (row["metric"], row["heads"], row["interval"], row["n"]))


def measured(context: RunContext, subjects: Mapping[str, KnownClaim], folder: Path) -> list[Pool]:
    """The pools of the planted subjects and of random claims on the embedded model, sorted by subject."""
    from meridian.experiments.validation import measuring, pools

    planted = {name: one for name, one in subjects.items() if name != RANDOM}
    groups = pools.groups(planted, context.settings["experiment"])
    found: list[Pool] = []
    with context.reporter.bar("claims measured") as bar:
        bar.expect(
            sum(len(group.subjects) for group in groups) + context.settings["experiment"]["random_circuits"]["claims"]
        )
        for made in measuring.measured(groups, context.settings, folder):
            found += made
            bar.advance(len(made))
    return sorted(found, key=lambda pool: (list(subjects).index(pool.subject), pool.files))


def random_subject(settings: Mapping[str, Any]) -> KnownClaim:
    """Random claims on an ordinary model as a further subject; none of them is true."""
    sentence = (
        f"Heads of {settings['random_circuits']['model']} drawn at random, as many in each layer as its circuit has."
    )
    only = {"subjects": {RANDOM: {"truth": "flawed", "sentence": sentence, "not_pass": settings["random_not_pass"]}}}
    return declared.subjects(only)[RANDOM]


def merged(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the sections of `changed` laid over its own."""
    return {**base, **{name: {**base.get(name, {}), **section} for name, section in changed.items()}}


def _kind(subject: KnownClaim) -> str:
    return RANDOM if subject.name == RANDOM else subject.truth


def coverage_document(settings: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The numbered result: every interval's coverage."""
    return {
        "subject": {
            "experiment": NAME,
            "settings": settings,
            "judged_by": code_digest.version_of("verdicts"),
            "simulated_by": code_digest.version_of("error rates"),
        },
        "n": {"samples": settings["replicates"] * len(settings["prompts"])},
        "data": {"coverage": rows},
    }


def rates_document(
    subjects: Mapping[str, KnownClaim], found: Outcomes, config: Mapping[str, Any], n_pools: int
) -> dict[str, Any]:
    """The numbered result: every cell, the tiers, and how often claims of each truth were certified."""
    settings = config["experiment"]
    default, highest = settings["default_prompts"], settings["highest_tier"]
    cells = [
        cell.to_dict()
        for (name, prompts), outcomes in sorted(found.items())
        for cell in rates.cells(subjects[name], prompts, outcomes, settings["targets"], at_default=prompts == default)
    ]

    def by_size(count: Callable[[Sequence[JudgedSample]], Any]) -> dict[str, dict[str, Any]]:
        return {name: {str(n): count(found[name, n]) for n in settings["prompts"]} for name in subjects}

    return {
        "subject": {
            "experiment": NAME,
            "settings": settings,
            "calibration": config["calibration"],
            "certificate": config["certificate"],
            "judged_by": code_digest.version_of("verdicts"),
            "simulated_by": code_digest.version_of("error rates"),
        },
        "n": {"samples": sum(map(len, found.values())), "pools": n_pools},
        "data": {
            "subjects": {name: _described(one) for name, one in subjects.items()},
            "cells": cells,
            "tiers": by_size(lambda outcomes: rates.tiers(outcomes, highest)),
            "certified": _certified(subjects, found, settings),
            "metric_passes": by_size(rates.metric_passes),
        },
    }


def _described(subject: KnownClaim) -> dict[str, Any]:
    return {
        "truth": subject.truth,
        "sentence": subject.sentence,
        "expected": subject.expected,
        "reasons": subject.reasons,
    }


def _certified(subjects: Mapping[str, KnownClaim], found: Outcomes, settings: Mapping[str, Any]) -> dict[str, Any]:
    """{truth: {number of prompts: rate of the highest tier over all subjects of that truth}}."""
    highest = settings["highest_tier"]
    return {
        truth: {
            str(prompts): rates.pooled(
                PassRate(sum(one.tier == highest for one in found[name, prompts]), len(found[name, prompts]))
                for name, subject in subjects.items()
                if subject.truth == truth
            ).to_dict()
            for prompts in settings["prompts"]
        }
        for truth in dict.fromkeys(subject.truth for subject in subjects.values())
    }
