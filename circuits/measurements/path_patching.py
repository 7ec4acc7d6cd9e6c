"""28 Path patching: what passes along each edge between the circuit's heads, and the circuit scored edge by edge.

An edge is the direct path, only through the residual stream, from a head to another head's query, key or value input or to the
logits (Goldowsky-Dill et al. 2023; the direct paths of Wang et al. 2022, section 3.1, also pass through MLPs, which are
separate nodes here). With D and C the clean and the corrupted logit difference,

    noising = D - LD(clean run in which only that edge carries the corrupted value)
    denoising = LD(corrupted run in which only that edge carries the clean value) - C

Under grouped-query attention the receiver of a key or value edge is a key-value group, which all its query heads share.

The claimed circuit is also a graph: its heads, all MLPs and the embedding. Node-wise, every edge between them is kept.
Edge-wise, an edge from one of its heads to another or to the logits is kept only if the size of its noising effect on the
discovery prompts is at least `edge_share` of the mean D. Every other edge carries its writer's value under the recipe. With F
the remaining logit difference, and F_empty that with all heads ablated, normalised faithfulness is

    (mean F - mean F_empty) / (mean D - mean F_empty)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from circuits.circuit import head_pairs
from circuits.edges import PROJECTIONS, Edge
from circuits.engine.gradients import GradientEngine
from circuits.hypothesis import circuit_edges
from circuits.interventions import Base, PathIntervention, Recipe, Sweep, Variant, ablate, on_parts, patch_paths
from circuits.prompts import PromptSet
from circuits.study import Study, require_count
from results_io import UserError

NUMBER, ID = "28", "path_patching"
SETTINGS = ("path_patching",)
DEPENDS_ON_CIRCUIT = True
CLEAN, CORRUPTED = Recipe("patch", source="clean"), Recipe("patch", source="corrupted")
RECIPES = {"mean": Recipe("mean"), "patch": CORRUPTED}


def check(settings: Mapping[str, Any]) -> None:
    """Raises UserError if a setting is not a number in the expected range."""
    for name in ("prompts", "discovery_prompts", "most_edges"):
        require_count(settings, "path_patching", name)
    _edge_share(settings)
    _edge_sizes(settings)


def measure(study: Study) -> dict[str, Any]:
    """Effects of every edge per prompt, and the logit difference of the edge-level circuits.

    Reads `settings["path_patching"]`: prompts and discovery_prompts (those of the lowest hash), edge_share, edge_sizes and
    most_edges. If there are more candidates than most_edges, those with the largest attribution are patched. The others are
    judged by their attribution, which is an approximation and does not bound the effect: they rank after every patched edge,
    and are kept edge-wise if their attribution is at least `edge_share` of the mean logit difference. `not_patched` reports
    this and their number. Raises UserError if a setting is not a number in the expected range.
    """
    rows, share, sizes = (
        study.subset(require_count(study.settings, "path_patching", "prompts")),
        _edge_share(study.settings),
        _edge_sizes(study.settings),
    )
    chosen_on = study.discovery_subset(require_count(study.settings, "path_patching", "discovery_prompts"))
    edges, others, attributed = patched_and_others(study, chosen_on)
    clean, noised = _patched(study, edges, chosen_on, "clean")
    discovery = (clean - noised).mean(1)
    every, order = (*edges, *others), np.concatenate((_strongest(discovery), len(edges) + _strongest(attributed)))
    in_nats = study.run(Sweep((Variant("clean"),)), chosen_on, in_logits=True).row("clean") if others else clean
    kept = np.concatenate(
        (np.abs(discovery) >= share * abs(clean.mean()), np.abs(attributed) >= share * abs(in_nats.mean()))
    )
    return {
        **_named(study, edges),
        **_effects(study, edges, rows),
        "discovery": {"prompts": len(chosen_on), "effect": discovery, "mean_clean": float(clean.mean())},
        "not_patched": _not_patched(attributed, kept[len(edges) :]),
        "circuit": _circuits(study, every, kept) | {"kept": kept[: len(edges)]},
        "edges_by_size": _by_size(study, every, order, sizes, rows),
    }


def said(data: Mapping[str, Any]) -> str | None:
    """The terminal's note on a result if not every edge was patched, with the substitute for the others; None otherwise."""
    others = data["not_patched"]
    if others is None:
        return None
    patched = len(data["senders"])
    return (
        f"28: {patched:,} of {patched + others['edges']:,} edges were patched one by one (measurement.path_patching.most_edges); "
        f"the others, ranked behind them, have attributions of {others['largest_attribution']:.2g} nats at most and "
        f"{others['sum_of_attributions']:.2g} in sum, which approximate their effects and bound none"
    )


def candidates(study: Study) -> tuple[Edge, ...]:
    """Edges from the circuit's heads to the inputs of its later heads and to the logits, ordered by the receivers' layers."""
    graph, inside = study.model.graph, circuit_edges(study.claim, study.model.graph)
    readers = (*PROJECTIONS, "logits")
    return tuple(e for e in graph.edges if e in inside and e.writer.kind == "head" and e.reader.kind in readers)


def patched_and_others(
    study: Study, prompts: PromptSet
) -> tuple[tuple[Edge, ...], tuple[Edge, ...], Float[np.ndarray, " edge"]]:
    """(candidates that are patched one by one, the others, attribution of the others).

    Up to `most_edges` candidates, all are patched. If there are more, those with the largest |attribution| are. Attribution is
    edge attribution patching (EAP; Syed et al. 2023): the gradient of the clean run on `prompts` times the change by noising, in
    nats.
    """
    edges, most = candidates(study), require_count(study.settings, "path_patching", "most_edges")
    if len(edges) <= most:
        return edges, (), np.zeros(0)
    engine = GradientEngine(study.model, decoder=getattr(study.engine, "decoder", None))
    study.progress.expect(engine.edge_passes("eap", 1) * len(prompts))
    scores = engine.edge_scores(prompts, "clean", "eap", 1, advance=study.progress.advance).mean
    graph = study.model.graph
    readers = {reader: place for place, reader in enumerate(graph.readers)}
    writers = {writer: place for place, writer in enumerate(graph.writers)}
    attributed = np.array([scores[readers[edge.reader], writers[edge.writer]] for edge in edges], dtype=float)
    chosen = set(np.argsort(-np.abs(attributed), kind="stable")[:most].tolist())
    rest = [place for place in range(len(edges)) if place not in chosen]
    return tuple(edges[i] for i in sorted(chosen)), tuple(edges[i] for i in rest), attributed[rest]


def _strongest(effect: Float[np.ndarray, " edge"]) -> Int[np.ndarray, " edge"]:
    """Indices sorted by |effect|, the largest first."""
    return np.argsort(-np.abs(effect), kind="stable")


def _not_patched(attributed: Float[np.ndarray, " edge"], kept: Bool[np.ndarray, " edge"]) -> dict[str, Any] | None:
    """What is known about the edges that were not patched: attributions of the logit difference, in nats whatever the metric.

    None if all were patched."""
    if not len(attributed):
        return None
    return {
        "edges": len(attributed),
        "unit": "nats of attribution, which bounds no effect; ranked behind the patched edges",
        "largest_attribution": float(np.abs(attributed).max()),
        "sum_of_attributions": float(np.abs(attributed).sum()),
        "kept": int(kept.sum()),
    }


def without_edges(study: Study, pruned: Iterable[Edge], recipe: Recipe, name: str) -> Variant:
    """The circuit without its edges `pruned`.

    Nodes outside the circuit are ablated, which is cheaper than replacing each of their edges and gives the same result. Edges
    connect whole nodes, whatever the positions at which these are claimed.
    """
    nodes, pruned = on_parts(sorted(study.outside), recipe), tuple(pruned)
    return Variant(name, (*nodes, PathIntervention(pruned, recipe)) if pruned else nodes)


def faithfulness(
    clean: Float[np.ndarray, " prompt"], scored: Float[np.ndarray, " prompt"], empty: Float[np.ndarray, " prompt"]
) -> float | None:
    """(mean F - mean F_empty) / (mean D - mean F_empty); None if the denominator is 0."""
    gap = float(clean.mean(dtype=float) - empty.mean(dtype=float))
    return float(scored.mean(dtype=float) - empty.mean(dtype=float)) / gap if gap else None


# --- single edges -----------------------------------------------------------------------------------------------


def _patched(
    study: Study, edges: tuple[Edge, ...], prompts: PromptSet, base: Base
) -> tuple[Float[np.ndarray, " prompt"], Float[np.ndarray, "edge prompt"]]:
    """Logit difference of the `base` run (D or C), and of the same run with one edge carrying the other run's value."""
    other = CORRUPTED if base == "clean" else CLEAN
    variants = (Variant(base, base=base), *(patch_paths([edge], other, str(edge), base) for edge in edges))
    found = study.run(Sweep(variants), prompts).logit_diff.astype(float)
    return found[0], found[1:]


def _effects(study: Study, edges: tuple[Edge, ...], rows: list[int]) -> dict[str, Any]:
    """Both effects of every edge on these prompts, and their means."""
    prompts = study.prompts.select(rows)
    clean, noised = _patched(study, edges, prompts, "clean")
    corrupted, restored = _patched(study, edges, prompts, "corrupted")
    noising, denoising = clean - noised, restored - corrupted
    return {
        "rows": rows,
        "noising": noising,
        "denoising": denoising,
        "noising_mean": noising.mean(1),
        "denoising_mean": denoising.mean(1),
    }


def _named(study: Study, edges: tuple[Edge, ...]) -> dict[str, Any]:
    """The sending head and the receiving input of every edge.

    `receivers` names the circuit's first head that uses the input, `receiver_heads` all heads of the model that use it.
    """
    sharing = [study.model.graph.heads_of(edge.reader) for edge in edges]
    claimed = set(study.claim.heads)
    return {
        "senders": head_pairs(edge.writer for edge in edges),
        "receivers": [
            head_pairs(node for node in heads if node in claimed)[0] if heads else "logits" for heads in sharing
        ],
        "receiver_heads": [head_pairs(heads) for heads in sharing],
        "input": [edge.reader.kind if heads else None for edge, heads in zip(edges, sharing, strict=True)],
    }


# --- edge-level circuits ----------------------------------------------------------------------------------------


def _circuits(study: Study, edges: tuple[Edge, ...], kept: np.ndarray) -> dict[str, Any]:
    """The circuit node-wise and edge-wise under every recipe, on all scored prompts."""
    pruned = [edge for edge, keep in zip(edges, kept, strict=True) if not keep]
    variants = [Variant("clean")]
    for name, recipe in RECIPES.items():
        variants.append(without_edges(study, (), recipe, f"{name}/node_wise"))
        variants.append(without_edges(study, pruned, recipe, f"{name}/edge_wise"))
        variants.append(ablate(study.every, recipe, f"{name}/empty"))
    effects = study.run(Sweep(tuple(variants)))
    scored = {
        name: {form: effects.row(f"{name}/{form}") for form in ("node_wise", "edge_wise", "empty")} for name in RECIPES
    }
    between = len(circuit_edges(study.claim, study.model.graph))
    return {
        "kept": kept,
        "edges": {
            "model": len(study.model.graph.edges),
            "candidates": len(edges),
            "node_wise": between,
            "edge_wise": between - len(pruned),
        },
        "recipes": {name: str(recipe) for name, recipe in RECIPES.items()},
        "clean": effects.row("clean"),
        "logit_diff": scored,
        "faithfulness": {name: _by_split(study, effects.row("clean"), scored[name]) for name in RECIPES},
    }


def _by_split(study: Study, clean: np.ndarray, scored: dict[str, np.ndarray]) -> dict[str, dict[str, float | None]]:
    """{node_wise | edge_wise: {split: normalised faithfulness}}"""
    splits = {name: study.prompts.rows_of(name) for name in dict.fromkeys(study.prompts.splits)}
    return {
        form: {
            split: faithfulness(clean[rows], scored[form][rows], scored["empty"][rows])
            for split, rows in splits.items()
        }
        for form in ("node_wise", "edge_wise")
    }


def _by_size(
    study: Study, edges: tuple[Edge, ...], order: Int[np.ndarray, " edge"], sizes: list[float], rows: list[int]
) -> dict[str, Any]:
    """The circuit with only its first n edges in this order, for n as shares of all edges, on the prompts `rows`."""
    counts = [round(size * len(edges)) for size in sizes]
    variants = [Variant("clean")]
    for name, recipe in RECIPES.items():
        variants.append(ablate(study.every, recipe, f"{name}/empty"))
        for place, count in enumerate(counts):
            pruned = [edges[i] for i in order[count:]]
            variants.append(without_edges(study, pruned, recipe, f"{name}/{place}"))
    effects = study.run(Sweep(tuple(variants)), study.prompts.select(rows))
    clean = effects.row("clean")
    scored = {name: [effects.row(f"{name}/{place}") for place in range(len(counts))] for name in RECIPES}
    empty = {name: effects.row(f"{name}/empty") for name in RECIPES}
    return {
        "share": sizes,
        "edges": counts,
        "logit_diff": scored,
        "empty": empty,
        "faithfulness": {name: [faithfulness(clean, one, empty[name]) for one in scored[name]] for name in RECIPES},
    }


# --- settings ---------------------------------------------------------------------------------------------------


def _edge_share(settings: Mapping[str, Any]) -> float:
    value = settings["path_patching"]["edge_share"]
    if not isinstance(value, int | float) or not value >= 0:
        raise UserError(f"measurement.path_patching.edge_share is {value!r}; expected a number of at least 0")
    return float(value)


def _edge_sizes(settings: Mapping[str, Any]) -> list[float]:
    values = settings["path_patching"]["edge_sizes"]
    wrong = [value for value in values if not isinstance(value, int | float) or not 0 <= value <= 1]
    if wrong:
        raise UserError(
            f"measurement.path_patching.edge_sizes holds {wrong[0]!r}; expected shares of the edges from 0 to 1"
        )
    return [float(value) for value in values]
