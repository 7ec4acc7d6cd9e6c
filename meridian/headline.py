"""The headline of a certificate: the few lines above its table that say what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrations import calibrate, faithfulness_over_wordings, preconditions
from calibrations.certificate import RECIPE_NAMES
from calibrations.claimed_nodes import SCOPE_WORDS
from calibrations.evidence import Evidence
from calibrations.statistics import Insufficient
from meridian import outside_effects
from node_names import HEADS_AND_MLPS

READ = ("01", "20", *sorted({number for number, _ in outside_effects.MEASURED.values()}))  # the results that it reads
WORDED_BY = "by"  # in a stored headline: version of the code that worded it
HOLDS = {  # the records of faithfulness, by what their intervals hold for
    "P.faithfulness": "on these wordings",
    faithfulness_over_wordings.METRIC: "on wordings like these",
}
FOUND = {
    "discovered": "found on the discovery split",
    "planted": "claimed of a planted model",
    "traced": "traced on the discovery half",
}


def headline(
    evidence: Evidence, documents: calibrate.Documents, settings: Mapping[str, Any], origin: str
) -> dict[str, str]:
    """Subject, data, faithfulness, and heads outside the claim with large effects, one or two lines each.

    `settings`: those of the run, which name the kind of circuit and the preset. `origin`: where the model is from.
    """
    circuit, prompts = evidence.circuit, evidence.data("01")
    provenance = circuit["provenance"]
    named = circuit["name" if provenance["kind"] == "traced" else "task"]  # for failures, the name includes the suite
    model, asked = documents[calibrate.PRECONDITIONS]["subject"]["model"], settings["circuit"]["kind"]
    shape = f"{evidence.n_layers} layers x {prompts['n_heads_per_layer']} heads, {origin}"
    split = prompts["split"]
    return {
        "subject": f"{named} on {model} ({shape})  circuit: {asked}, {_claimed(evidence)}, "
        f"{FOUND.get(provenance['kind'], provenance['kind'])}",
        "scope": f"Claim about {SCOPE_WORDS[evidence.scope]}",
        "data": f"{split.count('evaluation')} evaluation + {split.count('held_out')} held-out prompts, "
        f"{len(set(prompts['template']))} templates, BOS {prompts['examples'][0]['bos']}, {evidence.metric}{at_most(settings)}",
        "faithfulness": _faithfulness(evidence, documents),
        "outside": outside_effects.sentence(
            evidence, documents[calibrate.PRECONDITIONS]["subject"]["settings"]["max_outside"]
        ),
    }


def at_most(settings: Mapping[str, Any]) -> str:
    """The highest tier under a preset, to stand behind the data; empty without one."""
    preset = settings.get("preset")
    return f"; preset {preset['name']}: tier {preset['ceiling']} at most" if preset else ""


def _claimed(evidence: Evidence) -> str:
    """How many heads are claimed, how many MLPs if the scope includes them, and whether nodes are claimed at positions."""
    told = f"{len(evidence.circuit_heads)} of {len(evidence.heads)} heads"
    if evidence.scope == HEADS_AND_MLPS:
        mlps = {node.layer for node in evidence.claimed if node.kind == "mlp"}
        told += f" and {len(mlps)} of {evidence.n_layers} MLPs"
    placed = {node.whole for node in evidence.claimed if node.position}
    return told + (f" ({len(placed)} at named positions)" if placed else "")


def _faithfulness(evidence: Evidence, documents: calibrate.Documents) -> str:
    """Faithfulness under every recipe in one line, each with the recipe's name."""
    config, primary = documents[calibrate.PRECONDITIONS]["subject"]["settings"], evidence.primary_recipe
    try:
        preconditions.require_behaviour(evidence, config)
        ratios = {
            m: preconditions.faithfulness(evidence, config, method=m) for m in preconditions.every_recipe(evidence)
        }
    except Insufficient as missing:
        return f"Faithfulness not reportable: {missing}"
    others = " · ".join(
        f"{ratio.value:.2f} {method.replace('_', ' ')}" for method, ratio in ratios.items() if method != primary
    )
    return (
        f"Faithfulness {ratios[primary].value:.2f} {RECIPE_NAMES[primary]} "
        f"({_above_floor(evidence, primary)}) · {others}\n"
        f"90 % interval {_intervals(documents)}\n"
        f"{_random_circuits(evidence)}"
    )


def _above_floor(evidence: Evidence, recipe: str) -> str:
    """Faithfulness corrected for what the model achieves without any head, or why it has no value."""
    try:
        return f"{preconditions.normalised_faithfulness(evidence, recipe):.2f} above all-heads-ablated"
    except Insufficient as missing:
        return missing.detail


def _random_circuits(evidence: Evidence) -> str:
    """Faithfulness of random circuits, or why there is none."""
    try:
        null = preconditions.random_faithfulness(evidence)
    except Insufficient as missing:
        return f"Random circuits: {missing.detail}"
    alike = preconditions.null_words(not evidence.matched_by_layer)
    return f"Random circuits of {alike}, mean ablation: median {np.median(null):.2f}, largest {null.max():.2f}"


def _intervals(documents: calibrate.Documents) -> str:
    """Both intervals of faithfulness, each with what it generalises to: new names, or new names and new wordings."""
    records = {record["metric"]: record for record in documents[calibrate.PRECONDITIONS]["records"]}
    told = []
    for metric, holds in HOLDS.items():
        interval, reasons = records[metric]["ci90"], records[metric]["reasons"]
        low_high = f"[{interval[0]:.2f}, {interval[1]:.2f}]" if interval else f"not known ({'; '.join(reasons)})"
        told.append(f"{low_high} {holds}")
    return ", ".join(told)
