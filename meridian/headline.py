"""What a certificate is about, in the few lines above its table."""

from __future__ import annotations

import numpy as np

from calibrations import calibrate, preconditions
from calibrations.evidence import PRIMARY, Evidence
from calibrations.statistics import Insufficient
from meridian import outside_effects

READ = ("01", "20", *sorted({number for number, _ in outside_effects.MEASURED.values()}))  # results that it is about
FOUND = {
    "discovered": "found on the discovery split",
    "planted": "claimed of a planted model",
    "traced": "traced on the discovery half",
}


def headline(evidence: Evidence, documents: calibrate.Documents, asked: str, origin: str) -> dict[str, str]:
    """Subject, data, faithfulness, and heads outside the claim with large effects, each as a line or two.

    `asked` is the kind of circuit that was asked for, `origin` says where the model is from.
    """
    circuit, prompts = evidence.circuit, evidence.data("01")
    provenance = circuit["provenance"]
    named = circuit["name" if provenance["kind"] == "traced" else "task"]  # for failures, the name also gives the suite
    shape = f"{evidence.n_layers} layers x {prompts['n_heads_per_layer']} heads, {origin}"
    split = prompts["split"]
    return {
        "subject": f"{named} on {circuit['model']} ({shape})  circuit: {asked}, "
        f"{len(evidence.circuit_heads)} of {len(evidence.heads)} heads, {FOUND.get(provenance['kind'], provenance['kind'])}",
        "data": f"{split.count('evaluation')} evaluation + {split.count('held_out')} held-out prompts, "
        f"{len(set(prompts['template']))} templates, BOS {prompts['examples'][0]['bos']}, {evidence.metric}",
        "faithfulness": _faithfulness(evidence, documents),
        "outside": outside_effects.sentence(
            evidence, documents[calibrate.PRECONDITIONS]["subject"]["settings"]["max_outside"]
        ),
    }


def _faithfulness(evidence: Evidence, documents: calibrate.Documents) -> str:
    """Faithfulness under every recipe in one line, each with the recipe's name beside it."""
    config = documents[calibrate.PRECONDITIONS]["subject"]["settings"]
    try:
        preconditions.require_behaviour(evidence, config)
        ratios = {
            m: preconditions.faithfulness(evidence, config, method=m) for m in preconditions.every_recipe(evidence)
        }
    except Insufficient as missing:
        return f"Faithfulness not reportable: {missing}"
    low, high = ratios[PRIMARY].fieller(0.95)
    others = " · ".join(
        f"{ratio.value:.2f} {method.replace('_', ' ')}" for method, ratio in ratios.items() if method != PRIMARY
    )
    null = preconditions.random_faithfulness(evidence)
    above_floor = preconditions.normalised_faithfulness(evidence)
    return (
        f"Faithfulness {ratios[PRIMARY].value:.2f} [{low:.2f}, {high:.2f}] mean per template and position "
        f"({above_floor:.2f} above all-heads-ablated) · {others}\n"
        f"Random circuits of its size and layers, mean ablation: median {np.median(null):.2f}, largest {null.max():.2f}"
    )
