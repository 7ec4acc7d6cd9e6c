"""Label heads by what they do, measured on the discovery split; layers and other models' labels are not used.

The first rule that matches wins. D is the mean logit difference, and shares are shares of D:

1. answer_promoter: direct effect on the logits >= `direct_share` of D (writes towards the answer; processing step 4);
2. answer_suppressor: direct effect <= -`direct_share` of D (writes away from it; step 4, expected sign -1);
3. end_reader_of_<role>: attends from the last position to that named position with at least `attention` (step 2);
4. <query>_reader_of_<key>: attends from another named position to a named position with at least `attention` (step 1);
5. previous_token / duplicate_token / induction: that score on repeated random tokens is at least `attention` (step 1);
6. unlabelled: none of these (no step, so it does not enter role-depth tests).

An MLP does not attend, so it can only get labels 1, 2 and 6.

A head gets the sign -1, whatever its label, if ablating it alone (to its mean) raises the logit difference by more than
`direct_share` of D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from circuits.circuit import Node, Role
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import attention, direct_logit_attribution
from circuits.study import Study

SCORES = ("previous_token", "duplicate_token", "induction")


def assign(study: Study, heads: Iterable[Node]) -> dict[str, Role]:
    """Roles of `heads` by name, each with the range of the evidence for its label."""
    heads = tuple(heads)
    facts = _facts(study, heads)
    labels: dict[tuple[str, int], list[Node]] = {}
    evidence: dict[tuple[str, int], list[str]] = {}
    steps: dict[str, int | None] = {}
    for node in heads:
        name, step, why = label(facts[node], study.settings["discovery"])
        sign = -1 if facts[node]["knockout"] < -study.settings["discovery"]["direct_share"] else 1
        sign = -1 if name == "answer_suppressor" else sign
        labels.setdefault((name, sign), []).append(node)
        evidence.setdefault((name, sign), []).append(f"{node.name} {why}")
        steps[name] = step
    return {
        name if sign > 0 or name == "answer_suppressor" else f"{name}_opposing": Role.of(
            nodes,
            ordinal=steps[name],
            sign=sign,
            assigned_by="none" if name == "unlabelled" else "function",
            evidence="; ".join(evidence[name, sign]),
        )
        for (name, sign), nodes in sorted(labels.items(), key=lambda item: (steps[item[0][0]] or 9, item[0]))
    }


def label(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[str, int | None, str]:
    """(role, processing step, evidence) of one head from its measured facts."""
    direct = facts["direct"]
    if abs(direct) >= settings["direct_share"]:
        name = "answer_promoter" if direct > 0 else "answer_suppressor"
        return name, 4, f"direct effect {direct:+.2f} of D"
    named = _largest_between(facts["between"], settings["attention"])
    if named is not None and named[2] >= settings["attention"]:
        query, key, weight = named
        return f"{query}_reader_of_{key}", 2 if query == "end" else 1, f"attention {query}->{key} {weight:.2f}"
    score = max(SCORES, key=lambda name: facts[name])
    if facts[score] >= settings["attention"]:
        return score, 1, f"{score} score {facts[score]:.2f}"
    looked = "no two named positions" if named is None else "largest named attention {}->{} {:.2f}".format(*named)
    return "unlabelled", None, f"{looked}, direct effect {direct:+.2f} of D"


def _largest_between(between: Mapping[tuple[str, str], float], enough: float) -> tuple[str, str, float] | None:
    """(query, key, weight) of the largest attention from the last position, or from any position if that is below `enough`.

    None for a task that names no position except the last.
    """
    if not between:
        return None
    (query, key), weight = max(between.items(), key=lambda item: (item[0][0] == "end", item[1]))
    if weight < enough:
        (query, key), weight = max(between.items(), key=lambda item: item[1])
    return query, key, weight


def _facts(study: Study, heads: tuple[Node, ...]) -> dict[Node, dict[str, Any]]:
    """Direct effect and knock-out effect (shares of D), named attention and repeat scores of each head."""
    prompts = study.discovery
    index = {node: i for i, node in enumerate(study.model.heads)}
    variants = [Variant("clean"), *(ablate([node], Recipe("mean"), str(node)) for node in heads)]
    logit_diff = study.run(Sweep(tuple(variants)), prompts, in_logits=True).logit_diff.astype(float).mean(1)
    parts = direct_logit_attribution.attribute(study, prompts)
    direct = parts["attribution"].numpy().mean(0) / logit_diff[0]
    by_mlps = parts["mlp"].numpy().mean(0) / logit_diff[0]
    where = prompts.positions
    between = {  # only pairs of distinct positions: two names may mean one token
        (query, key): values
        for (query, key), values in attention.between_positions(study, prompts).items()
        if query != key and not torch.equal(where[query], where[key])
    }
    scores = attention.repeated_token_scores(study)
    mlps = {
        node: {
            "direct": float(by_mlps[node.layer]),
            "knockout": float((logit_diff[0] - logit_diff[1 + place]) / logit_diff[0]),
            "between": {},
        }
        for place, node in enumerate(heads)
        if node.kind == "mlp"
    }
    return mlps | {
        node: {
            "direct": float(direct[index[node]]),
            "knockout": float((logit_diff[0] - logit_diff[1 + place]) / logit_diff[0]),
            "between": {pair: float(values[index[node]]) for pair, values in between.items()},
            **{name: float(np.asarray(scores[name])[index[node]]) for name in SCORES},
        }
        for place, node in enumerate(heads)
        if node.kind == "head"
    }
