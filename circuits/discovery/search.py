"""Search a circuit by any of the methods, and say how good and how stable it is: one recipe for all of them.

1. On the discovery split only, the model has to do the task, and better than without any head.
2. The method ranks heads or edges.
3. The circuit is the smallest prefix of the ranking whose normalised faithfulness is within `tolerance` of 1; for heads
   under mean ablation of all others, for edges with all others patched from the corrupted run.
4. The curve of faithfulness at MIB's sizes, CPR and CMD, with 95 % bootstrap intervals over clusters of prompts.
5. Stability: the prefix of the same size is chosen anew on bootstrap resamples of the prompts; mean Jaccard index.

The prompts that rank also score, so faithfulness here is that of the sample at hand; the scored splits stay untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Int

from circuits.circuit import Circuit, Node
from circuits.discovery import atp, classifier, curve, eap_ig, greedy, resampling, roles
from circuits.discovery.nested import Nested
from circuits.discovery.ranking import HeadRanking
from circuits.interventions import Base, Sweep, ablate
from circuits.prompts import PromptSet
from circuits.study import Study
from results_io import UserError

METHODS: dict[str, ModuleType] = {module.NAME: module for module in (greedy, atp, eap_ig, classifier)}
DEFAULT = greedy.NAME
DIGITS = 4  # of provenance


@dataclass(frozen=True)
class Discovery:
    """The circuit found, and the document that says how: curve, areas, stability, scores."""

    circuit: Circuit
    document: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """What was found, for the person who watches."""
        return sentence(self.document)


def method_name(name: object) -> str:
    """The method of this name, however it is capitalised; UserError names the known ones."""
    known = {one.lower(): one for one in METHODS}
    if str(name).lower() not in known:
        raise UserError(f"discovery method {name!r} is unknown; use one of {', '.join(METHODS)}")
    return known[str(name).lower()]


def check(settings: Mapping[str, Any]) -> None:
    """UserError if a setting of `settings["discovery"]` is out of range, before a search costs minutes."""
    own = settings["discovery"]
    shares, base, tolerance = own["shares"], own["atp"]["base"], own["tolerance"]
    if not shares or list(shares) != sorted(set(shares)) or not 0 < shares[0] <= shares[-1] == 1:
        raise UserError(f"measurement.discovery.shares is {shares}; expected rising shares above 0 that end with 1")
    if base not in get_args(Base):
        raise UserError(f"measurement.discovery.atp.base is {base!r}; expected one of {', '.join(get_args(Base))}")
    if not tolerance >= 0:
        raise UserError(f"measurement.discovery.tolerance is {tolerance!r}; expected a number of at least 0")


def find(study: Study, method: str = DEFAULT) -> Discovery:
    """The circuit that a method finds on the discovery split.

    Reads `settings["discovery"]`. UserError if the method is unknown, a setting is out of range or the model does not do the
    task.
    """
    check(study.settings)
    module, settings = METHODS[method_name(method)], study.settings["discovery"]
    prompts = study.discovery.select(range(min(settings["prompts"], len(study.discovery))))
    counts = resampling.cluster_counts(prompts.clusters, settings["resamples"], settings["seed"])
    limits = require_ability(study, prompts, counts)
    nested = Nested(study, prompts, module.rank(study, prompts))
    areas = nested.curve(settings["shares"]).summary(counts)
    size = nested.smallest(settings["tolerance"], areas["curve"]["size"])
    heads = nested.ranking.heads(nested.components[:size])
    if not heads:
        raise UserError(
            f"method {module.NAME} finds no head that task {study.task.name} needs in model {study.model.name}: the "
            f"{size} strongest edges pass none; use another method or a smaller measurement.discovery.tolerance"
        )
    document = {
        **_choice(nested, size),
        **areas,
        "head_faithfulness": _head_faithfulness(study, prompts, heads, limits),
        "stability": stability(nested, size, settings["stability"][module.RESAMPLES], settings),
        "scores": _scores(nested),
        "method": module.NAME,
        "source": module.SOURCE,
        "all_heads": len(study.model.heads),
        "prompts": len(prompts),
        "clusters": len(set(prompts.clusters)),
    }
    return Discovery(_circuit(study, module, heads, document), document)


def sentence(document: Mapping[str, Any]) -> str:
    """One line of a discovery's document: size, faithfulness and which decided, areas, stability."""
    unit, chosen, stable = document["unit"], document["chosen"], document["stability"]
    parts = f"{len(document['heads'])} of {document['all_heads']} heads"
    if unit == "edges":
        parts += f" on {chosen['surviving']} of {document['total']} edges"
    same = stable[unit]["pairwise"]
    jaccard = "stability not measured" if same is None else f"Jaccard {same:.2f} over {stable['resamples']} resamples"
    verdict = "meets" if stable["meets_bar"] else "does not meet"
    every = (
        "; every head takes part, so of heads it claims nothing"
        if len(document["heads"]) == document["all_heads"]
        else ""
    )
    return (
        f"Discovery by {document['method']} on {document['prompts']} discovery prompts: {parts}, faithfulness "
        f"{chosen['faithfulness']:.3f} (other {unit}: {document['recipe']}), CPR {document['cpr']['estimate']:.3f}, CMD "
        f"{document['cmd']['estimate']:.3f}; {jaccard}, which {verdict} the bar of {stable['bar']:g} with at least "
        f"{stable['bar_resamples']}{every}"
    )


def require_ability(
    study: Study, prompts: PromptSet, counts: Int[np.ndarray, "resample prompt"]
) -> Float[np.ndarray, "limit prompt"]:
    """Logit differences of the intact model and without any head.

    UserError unless the first, and what it is above the second, are positive with 95 % confidence (or, on a single cluster
    of prompts, at all).
    """
    heads = study.model.heads
    variants = (ablate((), HeadRanking.recipe, "clean"), ablate(heads, HeadRanking.recipe, "empty"))
    clean, empty = limits = study.run(Sweep(variants), prompts).logit_diff.astype(float)
    draws = counts @ np.stack([clean, clean - empty], 1) / counts.sum(1, keepdims=True)
    (low, above), (high, _) = resampling.interval(draws)
    if low <= 0 or above <= 0:
        raise UserError(
            f"model {study.model.name} does not do task {study.task.name} (mean logit difference {clean.mean():.2f} "
            f"[{low:.2f}, {high:.2f}] on {len(prompts)} discovery prompts, {empty.mean():.2f} without any head), so "
            "there is no circuit to find"
        )
    return limits


def stability(nested: Nested, size: int, resamples: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """How alike the prefixes of one size are that bootstrap resamples of the prompts choose.

    Mean Jaccard index of pairs of resamples, and with the prefix on all prompts, of the ranked components and of heads;
    `inclusion`: in how many of the resamples each head is. The bar is that of Meloux et al. (2025): a mean pairwise index of
    at least `bar` over at least `bar_resamples` resamples.
    """
    ranking, bar = nested.ranking, settings["stability"]
    counts = resampling.cluster_counts(nested.prompts.clusters, resamples, settings["seed"])
    chosen = [ranking.first(size, weights.astype(float)) for weights in counts] if resamples > 1 else []
    whole, heads = nested.components[:size], [ranking.heads(kept) for kept in chosen]
    found = {
        ranking.unit: resampling.agreement([ranking.surviving(kept) for kept in chosen], ranking.surviving(whole)),
        "heads": resampling.agreement(heads, ranking.heads(whole)),
    }
    same = found[ranking.unit]["pairwise"]
    return {
        **found,
        "inclusion": {
            str(node): sum(node in one for one in heads) for node in sorted({n for one in heads for n in one})
        },
        "resamples": len(chosen),
        "size": size,
        "bar": bar["bar"],
        "bar_resamples": bar["bar_resamples"],
        "meets_bar": same is not None and same >= bar["bar"] and len(chosen) >= bar["bar_resamples"],
    }


# --- parts of the document ------------------------------------------------------------------------------------------


def _choice(nested: Nested, size: int) -> dict[str, Any]:
    """The circuit, and the faithfulness that chose it."""
    ranking, kept = nested.ranking, nested.components[:size]
    surviving = ranking.surviving(kept)
    return {
        "unit": ranking.unit,
        "recipe": str(ranking.recipe),
        "total": nested.total,
        "heads": [str(node) for node in ranking.heads(kept)],
        "components": [str(one) for one in kept if one in surviving],  # strongest first
        "chosen": {
            "size": size,
            "surviving": len(surviving),
            "faithfulness": float(nested.faithfulness([size])[0]),
        },
        "path": {"size": list(nested.path()), "faithfulness": list(nested.path().values())},
    }


def _head_faithfulness(
    study: Study, prompts: PromptSet, heads: tuple[Node, ...], limits: Float[np.ndarray, "limit prompt"]
) -> dict[str, Any]:
    """Of the circuit's heads with all others mean-ablated: the same for every method, whichever faithfulness decided."""
    ranking = HeadRanking(study.model.heads, order=lambda weights: np.arange(len(study.model.heads)))
    (kept,) = study.run(Sweep((ranking.only(heads, "heads"),)), prompts).logit_diff.astype(float)
    return {"value": float(curve.normalised(kept, *limits)), "recipe": str(ranking.recipe)}


def _scores(nested: Nested) -> dict[str, Any] | None:
    """Score of every component by name, strongest first; None for a method that orders without scores."""
    ranking = nested.ranking
    if ranking.scores is None:
        return None
    order = ranking.order(np.ones(len(nested.prompts)))
    return {"components": [str(one) for one in nested.components], "mean": ranking.scores[order]}


def _circuit(study: Study, module: ModuleType, heads: tuple[Node, ...], document: Mapping[str, Any]) -> Circuit:
    """The heads in roles by what they do, with where they come from."""
    unit, stable = document["unit"], document["stability"]
    same = stable[unit]["pairwise"]
    path = zip(document["path"]["size"], document["path"]["faithfulness"], strict=True)
    provenance = {
        "kind": "discovered",
        "method": module.NAME,
        "source": module.SOURCE,
        "split": "discovery",
        "prompts": document["prompts"],
        "seed": study.seed,
        "tolerance": float(study.settings["discovery"]["tolerance"]),
        "discovery_faithfulness": round(document["chosen"]["faithfulness"], DIGITS),
        "head_faithfulness": round(document["head_faithfulness"]["value"], DIGITS),
        f"{unit}_in_circuit": document["chosen"]["surviving"],
        "cpr": round(document["cpr"]["estimate"], DIGITS),
        "cmd": round(document["cmd"]["estimate"], DIGITS),
        "jaccard": None if same is None else round(same, DIGITS),
        "jaccard_resamples": stable["resamples"],
        "faithfulness_by_size": {str(size): round(value, DIGITS) for size, value in path if size},
        "model_sha256": study.model.sha256,
    }
    short = "greedy" if module is greedy else module.NAME
    return Circuit(
        f"{study.task.name} {short}", study.task.name, study.model.name, roles.assign(study, heads), provenance
    )
