"""The size of a whole run: (variant, prompt) pairs of every measurement, from heads, layers, prompts and settings.

Pairs are counted as in the progress bars of a first run: a sweep that two measurements share runs once, in the earlier of
them. Work without a sweep (stored activations, weights, statistics) is not counted. A measurement without a function here
counts its own pairs in its function `pairs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import comb
from typing import Any

from circuits import claimed_groups, outside_heads
from circuits.circuit import Circuit, Role
from circuits.engine.gradients import METHODS, GradientEngine
from circuits.hypothesis import pathways
from circuits.measurements import (
    MEASUREMENTS,
    ablation_battery,
    causal_tracing,
    cross_task,
    local_learning_coefficient,
    minimality,
    path_patching,
)
from circuits.models import Model
from circuits.study import Study

KINDS = {
    "heads": "one head or site patched",
    "circuits": "many heads ablated",
    "paths": "single edges patched",
    "scrubs": "most edges scrubbed",
    "gradients": "gradients of heads, q, k, v",
    "edges": "gradients of edges",
    "chains": "sampling of one head's weights",
}
SHRINK = {  # settings that make a measurement cheaper; for one that is not listed, SHRINKS_ALL
    "01": "prompts.evaluation",
    "02": "prompts.evaluation, prompts.held_out, measurement.site_prompts",
    "03": "prompts.evaluation",
    "05": "prompts.evaluation, measurement.mediation.onward=false",
    "06": "measurement.site_prompts, measurement.corruption.draws",
    "07": "prompts.evaluation",
    "08": "measurement.attribution_patching.prompts, measurement.attribution_patching.steps",
    "10": "measurement.llc.most_heads, measurement.llc.draws, measurement.llc.chains",
    "19": "prompts.evaluation, measurement.fresh_prompts.pool_factor",
    "20": "measurement.random_circuits, measurement.draws, prompts.evaluation",
    "21": "prompts.evaluation, prompts.held_out",
    "22": "measurement.completeness.prompt_share, measurement.outside.prompt_share, measurement.minimality.greedy_heads",
    "24": "measurement.scrubbing.draws, measurement.scrubbing.prompts, prompts.evaluation",
    "27": "measurement.companions, measurement.companion_prompts",
    "28": "measurement.path_patching.most_edges, measurement.path_patching.prompts",
}
SHRINKS_ALL = "prompts.evaluation"
ASSUMED_SHARE = 26 / 144  # of all heads in a circuit that is not known yet; the share of the published IOI circuit


@dataclass(frozen=True)
class PlannedWork:
    """`pairs` of one kind in one measurement. `bound`: "exact", "at most", or "at least" if the measurement may try more."""

    number: str
    kind: str
    pairs: int
    bound: str = "exact"


@dataclass(frozen=True)
class RunSize:
    """The numbers that the work depends on."""

    heads: int
    layers: int
    roles: int
    evaluation: int
    held_out: int
    discovery: int
    companions: int
    rows_of_companions: tuple[int | None, ...] = ()  # rows of each companion from a file; None: as many as asked for

    @property
    def scored(self) -> int:
        return self.evaluation + self.held_out

    @property
    def sites(self) -> int:
        """The number of variants of 02 and 06 that patch a site at a named position, plus the two intact runs."""
        return 2 + len(causal_tracing.SITES) * self.layers * self.roles

    @classmethod
    def of(cls, study: Study) -> RunSize:
        companions, _ = cross_task.chosen(study.task)
        files = study.task.others or {}
        return cls(
            heads=len(study.model.heads),
            layers=study.model.n_layers,
            roles=len(study.prompts.positions),
            evaluation=study.prompts.splits.count("evaluation"),
            held_out=study.prompts.splits.count("held_out"),
            discovery=len(study.discovery),
            companions=len(companions),
            rows_of_companions=tuple(
                len((files[name].given or {})["evaluation"]) if name in files else None for name in companions
            ),
        )


def of(study: Study) -> tuple[PlannedWork, ...]:
    """All the work of a run on `study`, whose circuit is known or assumed."""
    shape, settings = RunSize.of(study), study.settings
    every = (
        *_patching(shape, settings),
        *_gradients(shape, settings, study.model),
        *_sampling(shape, settings),
        *_battery(study, shape),
        *_minimality(study, shape),
        *_claimed_groups(study),
        *_outside_heads(study),
        *_paths(study, shape),
        *_counted_by_measurements(study),
    )
    return tuple(one for one in every if one.number not in settings["left_out"])


def assume_circuit(model: Model, task: str) -> Circuit:
    """A circuit with the share of heads that the published IOI circuit has, spread evenly over the model, in one role."""
    heads = model.heads
    size = max(1, min(len(heads) - 1, round(ASSUMED_SHARE * len(heads))))
    chosen = tuple(heads[place * len(heads) // size] for place in range(size))
    provenance = {"kind": "user", "source": "assumed for an estimate", "split": "none"}
    return Circuit(f"assumed {task}", task, model.name, {"assumed": Role(chosen)}, provenance)


# --- one measurement each -----------------------------------------------------------------------------------------


def _patching(shape: RunSize, settings: Mapping[str, Any]) -> Iterator[PlannedWork]:
    """01 to 07, 21 and 27: single heads and sites; they do not depend on the circuit."""
    sites = shape.sites * min(settings["site_prompts"], shape.evaluation)
    corruption = settings["corruption"]
    runs = len(causal_tracing.corruptions(corruption))
    yield PlannedWork("01", "heads", 2 * shape.scored)
    yield PlannedWork("02", "heads", 2 * (1 + shape.heads) * shape.scored + sites)
    yield PlannedWork("03", "heads", shape.scored)
    if settings["mediation"]["onward"]:  # patching the heads themselves is part of 02
        yield PlannedWork("05", "heads", shape.heads * shape.scored)
    if corruption["strategy"] != "entity_swap":  # with entity_swap, 06 shares the sweep of 02
        yield PlannedWork("06", "heads", runs * sites)
    yield PlannedWork("07", "heads", shape.evaluation)
    yield PlannedWork("21", "heads", (1 + shape.heads) * shape.scored)
    asked = settings["companion_prompts"]
    rows = [asked if own is None else min(own, asked) for own in shape.rows_of_companions or [None] * shape.companions]
    yield PlannedWork("27", "heads", (2 + shape.heads) * sum(rows[: settings["companions"]]))


def _gradients(shape: RunSize, settings: Mapping[str, Any], model: Model) -> Iterator[PlannedWork]:
    """08: counts passes instead of variants."""
    own, engine = settings["attribution_patching"], GradientEngine(model)
    some = min(own["prompts"], shape.evaluation)
    dropping = own["gradient_dropping"] and shape.layers > 1
    heads = engine.head_passes(dropping) + engine.head_passes(False)
    nodes = engine.node_passes(own["query_key_correction"])
    yield PlannedWork("08", "gradients", heads * shape.scored + nodes * some)
    yield PlannedWork("08", "edges", sum(engine.edge_passes(method, own["steps"]) for method in METHODS) * some)


def _sampling(shape: RunSize, settings: Mapping[str, Any]) -> Iterator[PlannedWork]:
    """10: forward and backward passes of every row, in the first pilot run and in the sampling."""
    own = settings["llc"]
    batch = min(own["batch"], own["prompts"], shape.evaluation)
    evaluations = own["pilot"] + 1 + own["burn_in"] + own["draws"]
    rows = local_learning_coefficient.PASSES * min(shape.heads, own["most_heads"]) * own["chains"] * batch
    yield PlannedWork("10", "chains", rows * evaluations, "at least")


def _battery(study: Study, shape: RunSize) -> Iterator[PlannedWork]:
    """20: (sets of intact heads) x recipes, and random circuits on a share of each split."""
    settings = study.settings
    subsets = dict.fromkeys(ablation_battery.SUBSETS, 1) | {"without": len(study.claim.roles)}
    draws = {
        subset: sum(len(ablation_battery.recipes(study, m)) for m in ablation_battery.methods_of(study, subset))
        for subset in subsets
    }
    conditions = sum(count * draws[subset] for subset, count in subsets.items())
    share = 1 / int(settings["random_circuit_prompt_share"])
    some = sum(round(share * size) for size in (shape.evaluation, shape.held_out))
    yield PlannedWork("20", "circuits", conditions * shape.scored + settings["random_circuits"] * some)


def _minimality(study: Study, shape: RunSize) -> Iterator[PlannedWork]:
    """22: an upper bound on the distinct sets of heads removed; the greedy search ends early at a step without gain.

    On the discovery prompts: the empty set; each layer and suffix of the claim, without and with each head; and the sets tried
    by the greedy steps (at step k, for each head, sets of k others with and without it). On the scored prompts: the empty set,
    single heads, roles, and the set chosen for each head, without and with the head.
    """
    own, circuit = study.settings["minimality"], study.claim
    size = len(circuit.nodes)
    roles = [frozenset(role.nodes) for role in circuit.roles.values()]
    declared = {frozenset(), *(frozenset([node]) for node in circuit.nodes)}
    bases = minimality.label_free(circuit.nodes).values()
    for node in circuit.nodes:
        declared |= {base - {node} for base in bases} | {base | {node} for base in bases}
    larger = {count: sum(len(one) == count for one in declared) for count in range(2, size + 1)}
    for step in range(1, min(own["greedy_steps"], size - 1) + 1):
        tried = size * (size - step if size <= own["greedy_heads"] else own["greedy_heads"])
        if step > 2:  # sets without the head; those of steps 1 and 2 are already known
            larger[step] = min(comb(size, step), larger[step] + tried)
        larger[step + 1] = min(comb(size, step + 1), larger[step + 1] + tried)
    search = 1 + size + sum(larger.values())
    scored = {frozenset(), *(frozenset([node]) for node in circuit.nodes), *roles}
    chosen = min(len(scored) + 2 * size, 2**size)
    yield PlannedWork(
        "22", "circuits", search * min(own["discovery_prompts"], shape.discovery) + chosen * shape.scored, "at most"
    )


def _claimed_groups(study: Study) -> Iterator[PlannedWork]:
    """22, completeness: an upper bound on the sets of heads removed from model and circuit.

    Greedy groups may coincide or stop early.
    """
    own, claim = study.settings["completeness"], study.claim.nodes
    if not study.outside:
        return
    declared = claimed_groups.declared(claim)
    starts = [len(one.heads) for one in declared if one.kind in ("claim", "suffix")]
    deciding = claimed_groups.deciding_recipes(study)
    others = [name for name in own["others"] if name not in deciding]
    steps = range(min(own["greedy_steps"], len(claim) - 1))
    cut = {size: 1 + sum(size - step for step in steps) for size in starts}
    grown = sum(len(claim) - step for step in range(min(own["greedy_steps"], len(claim))))
    subsets = 2 ** len(claim)  # the number of distinct sets cannot exceed this
    search = len(deciding) * min(1 + grown + sum(cut.values()), subsets) + len(others) * min(
        1 + cut[len(claim)], subsets
    )
    yield PlannedWork("22", "circuits", 2 * search * len(study.grouping), "at most")
    random = len(claimed_groups.drawn(claim, own["random_groups"], "count"))
    greedy = len(deciding) * (1 + len(starts)) + len(others)
    distinct = len({one.heads for one in declared})
    draws = sum(min(own["draws"], len(ablation_battery.recipes(study, name))) for name in deciding)
    rows = len(minimality.rows(study, "completeness"))
    groups, fewer = (min(count, subsets - 1) for count in (distinct + random + greedy, distinct + greedy))
    runs = draws * (3 + 2 * groups) + len(others) * (3 + 2 * fewer)
    yield PlannedWork("22", "circuits", runs * rows, "at most")


def _outside_heads(study: Study) -> Iterator[PlannedWork]:
    """22, outside: single heads and the sets that a greedy search finds, for both sides."""
    own = study.settings["outside"]
    outside = len(study.outside)
    names = dict.fromkeys((study.claim.primary_recipe, *own["recipes"])) if outside else ()
    draws = sum(min(own["draws"], len(ablation_battery.recipes(study, name))) for name in names)
    tried = 1 + sum(outside - step for step in range(min(own["greedy_steps"], outside)))
    sets = 1 + outside + len(("greedy", "positive", "negative"))
    sides = len(outside_heads.SIDES)
    yield PlannedWork("22", "circuits", sides * tried * len(names) * len(study.grouping), "at most")
    yield PlannedWork("22", "circuits", sides * sets * draws * len(minimality.rows(study, "outside")), "at most")


def _paths(study: Study, shape: RunSize) -> Iterator[PlannedWork]:
    """24 and 28: the hypothesis scrubbed, and single edges patched."""
    scrubbing, own = study.settings["scrubbing"], study.settings["path_patching"]
    ways = len(pathways(study.claim))
    some = min(scrubbing["prompts"], shape.evaluation)
    yield PlannedWork("24", "scrubs", scrubbing["draws"] * (3 * shape.scored + ways * some) + shape.scored)
    edges, recipes = min(len(path_patching.candidates(study)), own["most_edges"]), len(path_patching.RECIPES)
    evaluation, discovery = min(own["prompts"], shape.evaluation), min(own["discovery_prompts"], shape.discovery)
    if len(path_patching.candidates(study)) > edges:
        yield PlannedWork("28", "edges", GradientEngine(study.model).edge_passes("eap", 1) * discovery)
    yield PlannedWork("28", "paths", (1 + edges) * (discovery + 2 * evaluation))
    by_size = 1 + recipes * (1 + len(own["edge_sizes"]))
    yield PlannedWork("28", "scrubs", (1 + 3 * recipes) * shape.scored + by_size * evaluation)


def _counted_by_measurements(study: Study) -> Iterator[PlannedWork]:
    """The measurements that count their own pairs."""
    for number, module in MEASUREMENTS.items():
        for kind, pairs in module.pairs(study).items() if hasattr(module, "pairs") else ():
            yield PlannedWork(number, kind, pairs)


def with_circuit(study: Study, circuit: Circuit | None) -> tuple[Study, bool]:
    """(the study with the circuit, False); (the study with an assumed circuit, True) if none is known."""
    known = circuit or study.model.circuits.get(study.task.name)
    return replace(study, circuit=known or assume_circuit(study.model, study.task.name)), known is None
