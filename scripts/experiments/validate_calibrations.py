"""How often are the verdicts wrong? Every calibration on circuits whose truth is known, sampled many times.

Measure a pool of prompts for each subject, draw samples from it, judge each like a run, count. The table says for each
subject and calibration how often the verdict was "pass", beside what was declared before measuring.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results_io
from calibrations import calibrate
from calibrations.validation import declared, rates
from calibrations.validation.declared import Subject
from calibrations.validation.rates import Outcome, Rate
from scripts.experiments import judging, page
from scripts.experiments.judging import Rules, Work
from scripts.experiments.stored import Pool

if TYPE_CHECKING:
    from session import Session

NAME = "validate_calibrations"
NUMBER, ID = "V1", "error_rates"
RANDOM = "random"

Outcomes = Mapping[tuple[str, int], Sequence[Outcome]]  # by subject and number of prompts


def run(session: Session) -> None:
    """Measure, judge, count; write results/validation/V1_error_rates.json and print the table."""
    settings, folder = session.config["experiment"], Path(session.config["results"]) / "validation"
    subjects = {**declared.subjects(settings), RANDOM: random_subject(settings)}
    pools = list(measured(session, folder))
    rules = Rules(
        merged(session.config["calibration"], settings["calibration"]), session.config["certificate"], settings["seed"]
    )
    works = [
        Work(pool, prompts, tuple(range(settings["replicates"][_kind(subjects[pool.subject])])))
        for pool in pools
        for prompts in settings["prompts"]
    ]
    found: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    with session.bar("samples judged") as bar:
        bar.expect(sum(len(work.replicates) for work in works))
        for work, outcomes in judging.judged(works, rules):
            found[work.pool.subject, work.prompts] += outcomes
            bar.advance(len(outcomes))
    path = folder / f"{NUMBER}_{ID}.json"
    results_io.write(path, document(subjects, found, settings, pools))
    for text in page.tables(results_io.read(path)):
        session.console.print(text)
    session.say(f"Results {path}")


def measured(session: Session, folder: Path) -> Iterable[Pool]:
    """The pools of the planted subjects, then those of random claims on the embedded model."""
    from scripts.experiments import pools

    subjects = declared.subjects(session.config["experiment"])
    return chain(
        pools.planted_pools(subjects, session.config, folder, session.bar),
        pools.random_pools(session.config, folder, session.bar),
    )


def random_subject(settings: Mapping[str, Any]) -> Subject:
    """Random claims on an ordinary model, as one more subject: of them nothing is true."""
    sentence = (
        f"Heads of {settings['random_circuits']['model']} drawn at random, as many in each layer as its circuit has."
    )
    only = {"subjects": {RANDOM: {"truth": "flawed", "sentence": sentence, "not_pass": settings["random_not_pass"]}}}
    return declared.subjects(only)[RANDOM]


def merged(base: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the sections of `changed` laid over its own."""
    return {**base, **{name: {**base.get(name, {}), **section} for name, section in changed.items()}}


def _kind(subject: Subject) -> str:
    return RANDOM if subject.name == RANDOM else subject.truth


def document(
    subjects: Mapping[str, Subject], found: Outcomes, settings: Mapping[str, Any], pools: Sequence[Pool]
) -> dict[str, Any]:
    """The numbered result: every cell, the tiers, whether the targets were met."""
    default, highest = settings["default_prompts"], settings["highest_tier"]
    cells = [
        cell.to_dict()
        for (name, prompts), outcomes in sorted(found.items())
        for cell in rates.cells(subjects[name], prompts, outcomes, settings["targets"], at_default=prompts == default)
    ]
    tiers = {
        name: {str(prompts): rates.tiers(found[name, prompts], highest) for prompts in settings["prompts"]}
        for name in subjects
    }
    return {
        "number": NUMBER,
        "id": ID,
        "kind": "experiment",
        "subject": {"experiment": NAME, "settings": settings, "judged_by": calibrate.code_digest()},
        "n": {"samples": sum(len(outcomes) for outcomes in found.values()), "pools": len(pools)},
        "data": {
            "subjects": {name: _described(one) for name, one in subjects.items()},
            "cells": cells,
            "tiers": tiers,
            "certified": _certified(subjects, found, settings),
            "metrics": {
                name: {str(prompts): rates.metric_rates(found[name, prompts]) for prompts in settings["prompts"]}
                for name in subjects
            },
        },
        "records": [],
        "inputs_sha256": {},
        "environment": {},
    }


def _described(subject: Subject) -> dict[str, Any]:
    return {
        "truth": subject.truth,
        "sentence": subject.sentence,
        "expected": subject.expected,
        "reasons": subject.reasons,
    }


def _certified(subjects: Mapping[str, Subject], found: Outcomes, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rate of the highest tier among all sound and all flawed samples, by number of prompts."""
    highest = settings["highest_tier"]
    return {
        truth: {
            str(prompts): rates.pooled(
                Rate(sum(one.tier == highest for one in found[name, prompts]), len(found[name, prompts]))
                for name, subject in subjects.items()
                if subject.truth == truth
            ).to_dict()
            for prompts in settings["prompts"]
        }
        for truth in declared.TRUTHS
    }
