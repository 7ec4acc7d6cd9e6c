"""Search for a circuit by any of the methods, and say how good and how stable it is. All methods share this procedure.

1. On the discovery split, the only one used, the model has to do the task, and better than without any head.
2. The method ranks heads or edges.
3. The circuit is the smallest prefix of the ranking that is faithful (within `tolerance` of 1) and complete, and after which
   the next head does not count (`stopping`). All other heads are mean-ablated; all other edges are patched from the corrupted
   run. It is chosen on all the prompts, so its own faithfulness is measured on the prompts that chose it.
4. With cross-fitting, so that no prompt scores what it ranked: the curve of faithfulness at MIB's sizes, CPR and CMD, with
   95 % bootstrap intervals over clusters of prompts, and faithfulness at the size of the circuit.
5. Stability: the prefix of the same size is chosen anew on bootstrap resamples of the prompts; mean Jaccard index.

The scored splits stay untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any, get_args

import numpy as np
from jaxtyping import Float, Int

from circuits.circuit import HEADS, HEADS_AND_MLPS, SCOPES, Circuit, Node
from circuits.discovery import atp, classifier, curve, eap_gim, eap_ig, gim, greedy, nap_ig, resampling, roles
from circuits.discovery.crossfit import CrossFit
from circuits.discovery.nested import Nested
from circuits.discovery.ranking import ComponentRanking, HeadRanking, Members, searched
from circuits.discovery.recovery import recovery
from circuits.discovery.stopping import Ending, Stopping, head_order
from circuits.engine.paths import UnknownWiringError
from circuits.interventions import Base, Sweep, ablate
from circuits.prompts import PromptSet
from circuits.study import Study, require_count
from results_io import UserError

METHODS: dict[str, ModuleType] = {
    module.NAME: module for module in (greedy, atp, nap_ig, gim, eap_ig, eap_gim, classifier)
}
DEFAULT = "auto"
COUNTS = {  # settings that count something, by section
    "discovery": ("prompts", "resamples", "clusters", "greedy_heads"),
    "discovery.eap_ig": ("steps",),
    "discovery.nap_ig": ("steps",),
    "discovery.completeness": ("groups",),
    "discovery.stability": ("resamples", "greedy_resamples", "bar_resamples"),
}
DIGITS = 4  # of numbers in the provenance
SCORES = 10_000  # strongest components stored: all 2.2 million edges of a model of a thousand heads would be 100 MB
CHOOSERS = "the prompts that ranked the components and chose the size"


@dataclass(frozen=True)
class Discovery:
    """The circuit that was found, and the document of the search: curve, areas, stability, scores."""

    circuit: Circuit
    document: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """What was found, in one sentence for the user."""
        return sentence(self.document)


def method_name(name: object, heads: int, settings: Mapping[str, Any]) -> str:
    """The method of this name in any case. Raises UserError with the known names otherwise.

    `auto` is greedy pruning for a model of at most `settings["discovery"]["greedy_heads"]` heads and EAP-IG for a larger one;
    `find` falls back if the model's wiring is unknown.
    """
    known = {one.lower(): one for one in METHODS}
    if str(name).lower() == DEFAULT:
        return greedy.NAME if heads <= settings["discovery"]["greedy_heads"] else eap_ig.NAME
    if str(name).lower() not in known:
        raise UserError(f"discovery method {name!r} is unknown; use {DEFAULT} or one of {', '.join(METHODS)}")
    return known[str(name).lower()]


def may_fall_back(asked: object, name: str) -> bool:
    """True if `auto` was asked for and means a method of edges, which needs a known wiring of the model."""
    return str(asked).lower() == DEFAULT and METHODS[name] in (eap_ig, eap_gim)


def warning(method: str, heads: int, prompts: int, settings: Mapping[str, Any]) -> str | None:
    """One line of warning before a search that takes long; None for one that does not.

    `prompts` is the size of the discovery split; reads `settings["discovery"]`.
    """
    own = settings["discovery"]
    if METHODS[method] is not greedy:
        return None
    pairs = greedy.pairs(heads, min(own["prompts"], prompts), own)
    if pairs <= own["warn_above"]:
        return None
    return (
        f"{greedy.NAME} on {heads} heads runs up to {pairs:,} (variant, prompt) pairs; method={eap_ig.NAME} takes far "
        "fewer, and so do measurement.discovery.prompts and measurement.discovery.stability.greedy_resamples=1"
    )


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError if a setting of `settings["discovery"]` is out of range, before a search that takes minutes."""
    own = settings["discovery"]
    shares, base, scope = own["shares"], own["atp"]["base"], own.get("scope", HEADS)
    if scope not in SCOPES:
        raise UserError(f"measurement.discovery.scope is {scope!r}; expected {' or '.join(map(repr, SCOPES))}")
    if not _are_shares(shares):
        raise UserError(f"measurement.discovery.shares is {shares}; expected rising shares above 0 that end with 1")
    if base not in get_args(Base):
        raise UserError(f"measurement.discovery.atp.base is {base!r}; expected one of {', '.join(get_args(Base))}")
    if own["gim"]["base"] not in get_args(Base):
        raise UserError(
            f"measurement.discovery.gim.base is {own['gim']['base']!r}; expected {' or '.join(get_args(Base))}"
        )
    if own["fallback"] not in METHODS:
        raise UserError(f"measurement.discovery.fallback is {own['fallback']!r}; expected one of {', '.join(METHODS)}")
    if not _is_number(own["gim"]["temperature"]) or not own["gim"]["temperature"] > 0:
        raise UserError(
            f"measurement.discovery.gim.temperature is {own['gim']['temperature']!r}; expected a number above 0"
        )
    stable = own["stability"]
    amounts = {
        "tolerance": own["tolerance"],
        **{f"completeness.{name}": own["completeness"][name] for name in ("incompleteness", "counts")},
        **{f"gim.{name}": own["gim"][name] for name in ("query", "key", "value")},
        "stability.bar": stable["bar"],
        "warn_above": own["warn_above"],
    }
    for name, value in amounts.items():
        if not _is_number(value) or not value >= 0:
            raise UserError(f"measurement.discovery.{name} is {value!r}; expected a number of at least 0")
    for section, names in COUNTS.items():
        for name in names:
            require_count(settings, section, name)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_shares(shares: object) -> bool:
    if not isinstance(shares, list | tuple) or not shares or not all(map(_is_number, shares)):
        return False
    return list(shares) == sorted(set(shares)) and 0 < shares[0] <= shares[-1] == 1


def find(study: Study, method: str = DEFAULT) -> Discovery:
    """The circuit that a method finds on the discovery split.

    Reads `settings["discovery"]`. Raises UserError if the method is unknown, a setting is out of range or the model does not
    do the task. If `auto` means edges and the model's wiring is unknown, `fallback` ranks heads, and the document says so.
    """
    check(study.settings)
    method_name(method, len(searched(study)), study.settings)  # refused before anything is run
    settings = study.settings["discovery"]
    prompts = study.discovery_subset(settings["prompts"])
    counts = resampling.cluster_counts(prompts.clusters, settings["resamples"], settings["seed"])
    limits = require_ability(study, prompts, counts)
    module, ranking, fell_back = ranked(study, prompts, method)
    nested = Nested(study, prompts, ranking)
    ending = Stopping(nested, settings).ending(curve.sizes(nested.total, settings["shares"]))
    size = ending.size
    members = nested.ranking.members(nested.order[:size])
    heads = nested.ranking.heads(members)
    if not heads:
        raise UserError(
            f"method {module.NAME} finds no head that task {study.task.name} needs in model {study.model.name}: the "
            f"{size} strongest edges pass none; use another method or a smaller measurement.discovery.tolerance"
        )
    resamples = settings["stability"][module.RESAMPLES] if module.RESAMPLES else 0
    document = {
        **_choice(nested, ending, members, heads),
        **_cross_fitted(CrossFit.of(nested, settings["seed"]), size, counts, settings),
        "head_faithfulness": _head_faithfulness(study, prompts, heads, limits),
        "stability": stability(nested, size, resamples, settings, getattr(module, "UNTESTED", None)),
        "scores": _scores(nested),
        "order": [str(node) for node in head_order(nested)],
        "method": module.NAME,
        "fell_back": fell_back,
        "known": _known(study, heads, head_order(nested)),
        "source": module.SOURCE,
        "all_heads": len(study.model.heads),
        **_mlps(study, heads),
        "prompts": len(prompts),
        "clusters": len(set(prompts.clusters)),
    }
    return Discovery(_circuit(study, module, heads, document), document)


def ranked(study: Study, prompts: PromptSet, method: str) -> tuple[ModuleType, ComponentRanking, str | None]:
    """(method, its ranking, reason for the fallback if `auto` could not take its first choice, else None)."""
    nodes = searched(study)
    name = method_name(method, len(nodes), study.settings)
    try:
        return METHODS[name], METHODS[name].rank(study, prompts), None
    except UnknownWiringError as reason:
        if not may_fall_back(method, name):
            raise
        only_heads = nodes == study.model.heads  # the fallback of the settings ranks only heads
        module = METHODS[study.settings["discovery"]["fallback"]] if only_heads else greedy
        return module, module.rank(study, prompts), f"{module.NAME} in place of {name}, because {reason}"


def sentence(document: Mapping[str, Any]) -> str:
    """One line of a discovery's document: size, faithfulness and on which prompts, areas, stability."""
    unit, chosen, crossed = document["unit"], document["chosen"], document["cross_fitted"]
    parts = f"{len(document['heads'])} of {document['all_heads']} heads"
    if "mlps" in document:
        parts += f" and {len(document['mlps'])} of {document['all_mlps']} MLPs"
    if unit == "edges":
        parts += f" on {chosen['surviving']} of {document['total']} edges"
    areas = f"CPR {document['cpr']['estimate']:.3f}, CMD {document['cmd']['estimate']:.3f}"
    if crossed["halves"]:
        areas = (
            f"ranked on one half of them and scored on the other, faithfulness {crossed['faithfulness']:.3f} at this size, "
            f"{areas}"
        )
    else:
        areas += " on the same"
    every = (
        "; every head takes part, so of heads it claims nothing"
        if len(document["heads"]) == document["all_heads"]
        and len(document.get("mlps", ())) == document.get("all_mlps", 0)
        else ""
    )
    fell_back = f" ({document['fell_back']})" if document.get("fell_back") else ""
    return (
        f"Discovery by {document['method']}{fell_back} on {document['prompts']} discovery prompts: {parts}, faithfulness "
        f"{chosen['faithfulness']:.3f} on the prompts that chose it (other {unit}: {document['recipe']})"
        f"{_ending_words(chosen)}; {areas}; {_stability_words(document['stability'], unit)}{_known_words(document)}{every}"
    )


def _ending_words(chosen: Mapping[str, Any]) -> str:
    if chosen.get("complete", True):
        return ""
    without = f"without {chosen['group']} circuit and model differ by {chosen['incompleteness']:.2f}"
    after = "" if chosen["next"] is None else f", and the next head adds {chosen['next']:.2f}"
    return (
        f"; the smallest faithful set, as no set but all is complete and beyond which no head counts: {without}{after}"
    )


def _known_words(document: Mapping[str, Any]) -> str:
    """The set and the ranking compared with a published or planted circuit, in words; empty if there is none."""
    known = document.get("known")
    if known is None:
        return ""
    names = (("precision", "precision"), ("recall", "recall"), ("R-precision", "r_precision"), ("AUROC", "auroc"))
    values = ", ".join(f"{name} {known[key]:.2f}" for name, key in names if known[key] is not None)
    return f"; against {known['circuit']}: {values}"


def _stability_words(stable: Mapping[str, Any], unit: str) -> str:
    if stable["untested"]:
        return f"stability not tested: {stable['untested']}"
    verdict = "meets" if stable["meets_bar"] else "does not meet"
    return (
        f"Jaccard {stable[unit]['pairwise']:.2f} at a fixed size over {stable['resamples']} resamples, which {verdict} the "
        f"bar of {stable['bar']:g} with at least {stable['bar_resamples']}"
    )


def require_ability(
    study: Study, prompts: PromptSet, counts: Int[np.ndarray, "resample prompt"]
) -> Float[np.ndarray, "limit prompt"]:
    """The task's metric per prompt: of the intact model, then with all searched nodes ablated.

    Raises UserError unless the metric of the intact model, and its excess over that with all of them ablated, are positive:
    with 95 % confidence, or for a single cluster of prompts as point estimates.
    """
    nodes = searched(study)
    variants = (ablate((), HeadRanking.recipe, "clean"), ablate(nodes, HeadRanking.recipe, "empty"))
    clean, empty = limits = study.run(Sweep(variants), prompts).logit_diff.astype(float)
    draws = counts @ np.stack([clean, clean - empty], 1) / counts.sum(1, keepdims=True)
    (low, above), (high, _) = resampling.interval(draws)
    if low <= 0 or above <= 0:
        metric = study.task.quantity
        raise UserError(
            f"model {study.model.name} does not do task {study.task.name} (mean {metric} {clean.mean():.2f} "
            f"[{low:.2f}, {high:.2f}] on {len(prompts)} discovery prompts, {empty.mean():.2f} without any head), so "
            "there is no circuit to find"
        )
    return limits


def stability(
    nested: Nested, size: int, resamples: int, settings: Mapping[str, Any], untested: str | None = None
) -> dict[str, Any]:
    """How similar the prefixes of one size are that bootstrap resamples of the prompts choose.

    Mean Jaccard index between resamples, and between resamples and the prefix on all prompts, for the ranked components and for
    heads. `inclusion`: the number of resamples that include each head. The bar is that of Méloux et al. (2025): a mean pairwise
    index of at least `bar` over at least `bar_resamples` resamples. The size is fixed, so its variability is not included. If
    `untested` gives a reason, or if resamples could not differ, nothing is tested and the bar is not met.
    """
    ranking, bar = nested.ranking, settings["stability"]
    untested = untested or _untested(nested, size, resamples, settings)
    draws = 0 if untested else resamples
    counts = resampling.cluster_counts(nested.prompts.clusters, draws, settings["seed"]).astype(float)
    whole = ranking.members(nested.order[:size])
    chosen = np.zeros((draws, nested.total), bool)
    for row, weights in enumerate(counts):
        chosen[row] = ranking.members(ranking.order(weights)[:size])
    heads = [set(ranking.heads(one)) for one in chosen]
    some = sorted({*ranking.heads(whole), *(node for one in heads for node in one)})
    has = np.array([[node in one for node in some] for one in [*heads, set(ranking.heads(whole))]])
    found = {"heads": resampling.agreement(has[:-1], has[-1]), ranking.unit: resampling.agreement(chosen, whole)}
    same = found[ranking.unit]["pairwise"]
    return {
        **found,
        "inclusion": {str(node): int(times) for node, times in zip(some, has[:-1].sum(0), strict=True) if times},
        "resamples": draws,
        "size": size,
        "untested": untested,
        "bar": bar["bar"],
        "bar_resamples": bar["bar_resamples"],
        "meets_bar": same is not None and same >= bar["bar"] and draws >= bar["bar_resamples"],
    }


def _untested(nested: Nested, size: int, resamples: int, settings: Mapping[str, Any]) -> str | None:
    """Why resamples would say nothing about a circuit's stability; None if they are informative."""
    clusters = len(set(nested.prompts.clusters))
    if resamples < 2:
        return "the settings leave it out"
    if size == nested.total:
        return f"a circuit of all {nested.ranking.unit} is the same in every resample"
    return _few_clusters(clusters, settings)


def _few_clusters(clusters: int, settings: Mapping[str, Any]) -> str | None:
    if clusters >= settings["clusters"]:
        return None
    return f"the prompts come from {clusters} clusters (at least {settings['clusters']} are needed)"


def _known(study: Study, heads: tuple[Node, ...], order: tuple[Node, ...]) -> dict[str, Any] | None:
    """The set and the ranking compared with the published or planted circuit; None if the model comes with none."""
    known = study.model.identity.vouched(study.task.name)
    if known is None:
        return None
    inside = {Node(node.kind, node.layer, node.index) for node in known.nodes} & set(order)
    return {"circuit": known.name, **recovery(heads, order, inside)} if inside else None


# --- parts of the document ------------------------------------------------------------------------------------------


def _choice(nested: Nested, ending: Ending, members: Members, heads: tuple[Node, ...]) -> dict[str, Any]:
    """The circuit, the numbers that chose it, and the size that faithfulness alone would have chosen."""
    ranking, size = nested.ranking, ending.size
    return {
        "unit": ranking.unit,
        "recipe": str(ranking.recipe),
        "total": nested.total,
        "heads": [str(node) for node in heads if node.kind == "head"],
        "components": [str(ranking.components[index]) for index in nested.order[:size] if members[index]],
        "chosen": {
            "size": size,
            "surviving": int(members.sum()),
            "faithfulness": float(nested.faithfulness([size])[0]),
            "scored_on": CHOOSERS,
            **asdict(ending),
        },
        "path": {
            "size": list(nested.path()),
            "faithfulness": list(nested.path().values()),
            "scored_on": CHOOSERS,
        },
    }


def _cross_fitted(
    crossed: CrossFit, size: int, counts: Int[np.ndarray, "resample prompt"], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Curve, CPR and CMD, and faithfulness at the chosen size, on prompts that did not rank."""
    clusters = len(set(crossed.whole.prompts.clusters))
    summary = crossed.curve(settings["shares"]).summary(counts, _few_clusters(clusters, settings))
    for part in ("curve", "cpr", "cmd"):
        summary[part]["scored_on"] = crossed.scored_on
    halves = len(crossed.halves) > 1
    own = {"size": size, "faithfulness": crossed.faithfulness(size) if halves else None, "halves": halves}
    return {**summary, "cross_fitted": {**own, "scored_on": crossed.scored_on}}


def _head_faithfulness(
    study: Study, prompts: PromptSet, heads: tuple[Node, ...], limits: Float[np.ndarray, "limit prompt"]
) -> dict[str, Any]:
    """Faithfulness of the circuit's heads with all other heads mean-ablated, comparable between methods of heads and edges."""
    others = [node for node in searched(study) if node not in heads]
    (kept,) = study.run(Sweep((ablate(others, HeadRanking.recipe, "heads"),)), prompts).logit_diff.astype(float)
    value = float(curve.normalised(kept, *limits))
    return {"value": value, "recipe": str(HeadRanking.recipe), "scored_on": CHOOSERS}


def _mlps(study: Study, nodes: tuple[Node, ...]) -> dict[str, Any]:
    """The MLPs of the circuit, if they were searched."""
    if searched(study) == study.model.heads:
        return {}
    return {"mlps": [node.name for node in nodes if node.kind == "mlp"], "all_mlps": study.model.n_layers}


def _scores(nested: Nested) -> dict[str, Any] | None:
    """Scores of the `SCORES` strongest components by name, strongest first; None for a method without scores."""
    ranking, strongest = nested.ranking, nested.order[:SCORES]
    if ranking.scores is None:
        return None
    names = [str(ranking.components[index]) for index in strongest]
    return {"components": names, "mean": ranking.scores[strongest], "total": nested.total}


def _circuit(study: Study, module: ModuleType, heads: tuple[Node, ...], document: Mapping[str, Any]) -> Circuit:
    """The heads in roles by what they do, with their provenance."""
    unit, stable = document["unit"], document["stability"]
    same, crossed = stable[unit]["pairwise"], document["cross_fitted"]["faithfulness"]
    path = zip(document["path"]["size"], document["path"]["faithfulness"], strict=True)
    provenance = {
        "kind": "discovered",
        "method": module.NAME,
        "source": module.SOURCE,
        "split": "discovery",
        "prompts": document["prompts"],
        "seed": study.seed,
        "tolerance": float(study.settings["discovery"]["tolerance"]),
        "smallest_faithful": document["chosen"]["smallest_faithful"],
        "complete": document["chosen"]["complete"],
        "incompleteness": round(document["chosen"]["incompleteness"], DIGITS),
        "discovery_faithfulness": round(document["chosen"]["faithfulness"], DIGITS),
        "head_faithfulness": round(document["head_faithfulness"]["value"], DIGITS),
        "cross_fitted_faithfulness": None if crossed is None else round(crossed, DIGITS),
        f"{unit}_in_circuit": document["chosen"]["surviving"],
        "cpr": round(document["cpr"]["estimate"], DIGITS),
        "cmd": round(document["cmd"]["estimate"], DIGITS),
        "scored_on": {
            "discovery_faithfulness, head_faithfulness, faithfulness_by_size, incompleteness": CHOOSERS,
            "cross_fitted_faithfulness, cpr, cmd": document["cross_fitted"]["scored_on"],
        },
        "jaccard": None if same is None else round(same, DIGITS),
        "jaccard_resamples": stable["resamples"],
        "jaccard_untested": stable["untested"],
        "faithfulness_by_size": {str(size): round(value, DIGITS) for size, value in path if size},
        "model_sha256": study.model.sha256,
    }
    short = "greedy" if module is greedy else module.NAME
    scope = "" if searched(study) == study.model.heads else HEADS_AND_MLPS
    found = roles.assign(study, heads)
    return Circuit(f"{study.task.name} {short}", study.task.name, study.model.name, found, provenance, scope=scope)
