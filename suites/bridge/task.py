"""The task `failures`: the pairs of one suite as prompts for the three stages of a run, in two halves.

One half gives the hypothesis (discovery), the other confirms it (two thirds evaluation, one third held-out). All pairs of a
cluster are in the same split, since they share words.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

from circuits import tasks
from circuits.tasks import Example, Task
from circuits.tasks.base import METRICS
from results_io import UserError
from suites.bridge.pair import MINIMUM_PAIRS, ReferencePrompt, SuitePairs, TracePair

NAME = "failures"
SHARES = {"discovery": 1 / 2, "evaluation": 1 / 3, "held_out": 1 / 6}


def choose(groups: Sequence[SuitePairs], name: str | None, model: str) -> SuitePairs:
    """The group of the suite `name`, or the largest one; UserError if there is none with enough pairs."""
    known = {group.suite: group for group in groups}
    if name is not None and name not in known:
        had = ", ".join(group.suite for group in groups if group.pairs) or "none"
        raise UserError(f"task.group={name} has no failures of {model} on record; with traceable ones: {had}")
    chosen = known[name] if name else max(groups, key=lambda group: (len(group.pairs), group.suite), default=None)
    if chosen is None or not chosen.pairs:
        why = f": {chosen.sentence}" if chosen else ""
        raise UserError(f"no failure of {model} can be traced{why}; run other suites with suite=all, or another model")
    if not chosen.traceable:
        raise UserError(
            f"{chosen.sentence}; at least {MINIMUM_PAIRS} pairs are needed before a hypothesis is tested, so run the suite "
            "with more items"
        )
    return chosen


def build(group: SuitePairs, vocabulary: tasks.Vocabulary | None, metric: str | None = None) -> Task:
    """The task of a group's pairs. UserError for too few clusters for all splits, and for an unknown metric."""
    if metric not in (None, *METRICS):
        raise UserError(f"task.metric={metric} is unknown; use {' or '.join(METRICS)}")
    given = split(group)
    if not all(given[name] for name in SHARES):
        raise UserError(
            f"{group.suite}: its {len(group.pairs)} pairs are of {len({pair.cluster for pair in group.pairs})} clusters, too few "
            f"for {', '.join(SHARES)}; run the suite with more distinct items"
        )
    roles = tuple(group.pairs[0].positions)
    companions = tuple(name for name in tasks.names(vocabulary) if name not in group.related)
    return Task(
        name=NAME,
        title=f"Failures of suite {group.suite}: {group.title}",
        sample=None,
        roles=roles,
        companions=companions,
        bos=group.bos,
        vocabulary=vocabulary,
        given=given,
        metric=metric or METRICS[0],
    )


def split(group: SuitePairs) -> dict[str, tuple[Example, ...]]:
    """Discovery, evaluation, held-out and reference examples.

    Clusters are assigned in the order of their hashes, each to the split that is furthest below its share. The same pairs thus
    give the same splits on every machine.
    """
    by_cluster: dict[str, list[TracePair]] = {}
    for pair in group.pairs:
        by_cluster.setdefault(pair.cluster, []).append(pair)
    given: dict[str, list[Example]] = {name: [] for name in SHARES}
    for cluster in sorted(by_cluster, key=lambda name: hashlib.sha256(name.encode()).digest()):
        target = max(SHARES, key=lambda name: SHARES[name] * len(group.pairs) - len(given[name]))
        given[target] += [_example(pair) for pair in by_cluster[cluster]]
    foils = {pair.template: pair for pair in group.pairs}
    given["reference"] = [
        # only the activations of the clean run are used, so answer and foil may be those of any pair of the template
        _example(
            replace(
                foils[one.template], clean=one.text, corrupted=one.text, cluster=one.cluster, positions=one.positions
            )
        )
        for one in _in_turn(group.references)
    ]
    return {name: tuple(examples) for name, examples in given.items()}


def _in_turn(references: Sequence[ReferencePrompt]) -> list[ReferencePrompt]:
    """Round-robin over templates, so that a run with few reference prompts has some of each template."""
    by_template: dict[str, list[ReferencePrompt]] = {}
    for one in references:
        by_template.setdefault(one.template, []).append(one)
    turns = itertools.zip_longest(*(by_template[name] for name in sorted(by_template)))
    return [one for turn in turns for one in turn if one is not None]


def _example(pair: TracePair) -> Example:
    return Example(
        clean=pair.clean,
        corrupted=pair.corrupted,
        answers=(pair.answer,),
        wrong=(pair.wrong,),
        template=pair.template,
        cluster=pair.cluster,
        positions=dict(pair.positions),
        joint=pair.joint,
    )
