"""Wang et al. (2022) on IOI: behaviour, faithfulness, completeness and minimality, by their own recipe.

Nodes are (head, position); all others are replaced by the mean over ABC prompts (three unrelated names) of the same
template, position by position; MLPs stay. F(C) is the mean logit difference with everything outside C replaced.

    faithfulness     |F(M) - F(C)|
    incompleteness   |F(C without K) - F(M without K)|   for sets K of circuit nodes
    minimality of v  F(C without K) and F(C without K and v), with the paper's own K for each head
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from circuits.circuit import Circuit, Node, parse_head
from circuits.interventions import Recipe, Sweep, Variant
from circuits.prompts import PromptSet
from circuits.study import Study
from meridian.experiments import head_positions, reproduction
from meridian.experiments.estimates import PromptEstimate, PromptSample, undefined
from meridian.experiments.head_positions import Nodes
from meridian.experiments.reproduction import ReproducedRow, Reproduction

if TYPE_CHECKING:
    from meridian.context import RunContext

TASK = "ioi"
MEAN = Recipe("mean")

Removed = frozenset[Node]
Losses = Mapping[str, Sequence[float]]  # logit difference of every prompt, by variant


@dataclass(frozen=True)
class Beside:
    """One line of the minimality table: a head v, the set K removed along with it, and the two published values of F."""

    head: Node
    beside: Removed
    paper: tuple[float, float] | None = None

    @property
    def without(self) -> str:
        return f"{self.head}: circuit without K"

    @property
    def without_both(self) -> str:
        return f"{self.head}: circuit without K and {self.head}"


def run(context: RunContext) -> None:
    """Measure behaviour, knock-outs and the sets that the greedy search finds, and print the table."""
    work = Reproduction(context, TASK)
    work.claim()
    work.part("behaviour", behaviour)
    work.part("knock-outs", lambda study: knockouts(study, work.settings))
    work.part("greedy sets", lambda study: {"sets": greedy_sets(study, work.settings)})
    work.part("incompleteness", lambda study: incompleteness(study, work.settings, work.data["greedy sets"]["sets"]))
    sample, intact = reproduction.sample_of(work.settings, work.study.prompts), work.data["behaviour"]
    work.finish(
        [*rows_of_the_whole(work, sample), *rows_of_completeness(work, sample), *rows_of_minimality(work, sample)],
        [
            *reproduction.absence(
                sample.mean(intact["logit_diff"]), float(np.mean(intact["correct"])), work.identity.name, TASK
            ),
            *head_positions.unplaced(work.circuit, work.settings["positions"]),
        ],
    )


# --- what is measured ------------------------------------------------------------------------------------------------


def behaviour(study: Study) -> dict[str, Any]:
    """Logit difference, correctness and P(IO) of the intact model on every scored prompt."""
    effects = study.run(Sweep((Variant("model"),), probabilities=True), in_logits=True)
    return {
        "logit_diff": effects.logit_diff[0],
        "correct": effects.correct[0].astype(int),
        "answer_probability": effects.probabilities[0][0],
        "positions": float(study.prompts.end.float().mean()) + 1,
    }


def knockouts(study: Study, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Logit differences of the circuit, the naive circuit, and both without the sets K of minimality and completeness."""
    nodes = head_positions.nodes_of(study.claim, settings["positions"])
    heads = study.model.heads
    variants = [
        head_positions.only(nodes, heads, MEAN, "circuit"),
        head_positions.only(naive(study.claim, nodes, settings), heads, MEAN, "naive circuit"),
        head_positions.only({}, heads, MEAN, "nothing"),
        *_pair(nodes, set(movers(study.claim)), heads, "name movers"),
    ]
    for line in lines(study.claim, settings):
        variants.append(head_positions.only(head_positions.minus(nodes, line.beside), heads, MEAN, line.without))
        both = head_positions.minus(nodes, line.beside | {line.head})
        variants.append(head_positions.only(both, heads, MEAN, line.without_both))
    return losses(study, variants)


def incompleteness(study: Study, settings: Mapping[str, Any], greedy: Sequence[Sequence[str]]) -> dict[str, Any]:
    """F(C without K) and F(M without K), where K is each class, each random set, and each set of the greedy search."""
    nodes = head_positions.nodes_of(study.claim, settings["positions"])
    sets = {f"class {name}": frozenset(role.heads) for name, role in study.claim.roles.items()}
    sets |= {f"random {i}": chosen for i, chosen in enumerate(random_sets(nodes, settings["completeness"]))}
    sets |= {f"greedy {i}": frozenset(map(parse_head, names)) for i, names in enumerate(greedy)}
    return losses(study, [v for name, removed in sets.items() for v in _pair(nodes, removed, study.model.heads, name)])


def losses(study: Study, variants: Sequence[Variant], prompts: PromptSet | None = None) -> dict[str, Any]:
    """{variant: logit difference of every prompt}, whatever the task's metric. Mean ablation uses the ABC prompts."""
    own = replace(study, engine=reproduction.corrupted_reference(study))
    effects = own.run(Sweep(tuple(variants)), prompts, in_logits=True)
    return dict(zip(effects.names, effects.logit_diff, strict=True))


def _pair(nodes: Nodes, removed: Iterable[Node], heads: Iterable[Node], name: str) -> tuple[Variant, Variant]:
    """The circuit without some of its heads, and the model without them."""
    removed = set(removed)
    gone = {node: places for node, places in nodes.items() if node in removed}
    return (
        head_positions.only(head_positions.minus(nodes, removed), heads, MEAN, f"circuit without {name}"),
        head_positions.without(gone, MEAN, f"model without {name}"),
    )


# --- which sets ------------------------------------------------------------------------------------------------------


def movers(circuit: Circuit) -> tuple[Node, ...]:
    """The heads of the role `name_mover`; empty without that role."""
    return circuit.roles["name_mover"].heads if "name_mover" in circuit.roles else ()


def naive(circuit: Circuit, nodes: Nodes, settings: Mapping[str, Any]) -> dict[Node, Any]:
    """The naive circuit: the circuit without the roles and, in the paper's model, the heads that `naive` leaves out."""
    left_out = settings["naive"]
    gone = {node for name in left_out["roles"] if name in circuit.roles for node in circuit.roles[name].heads}
    heads = left_out["heads"] if circuit.model == settings["about"] else ()
    return head_positions.minus(nodes, gone | set(map(parse_head, heads)))


def lines(circuit: Circuit, settings: Mapping[str, Any]) -> list[Beside]:
    """The lines of the minimality table: the paper's where there are any; for every other head, K is the rest of its own roles.

    The paper's lines apply to the paper's model only. Their published values are dropped if the circuit lacks a head of K.
    """
    known = []
    for line in settings["minimality"] if circuit.model == settings["about"] else ():
        node = parse_head(line["head"])
        if node in circuit.heads:
            beside = frozenset(map(parse_head, line["beside"])) & set(circuit.heads)
            paper = tuple(line["paper"]) if len(beside) == len(line["beside"]) else None
            known.append(Beside(node, beside, paper))
    missing = [node for node in circuit.heads if node not in {line.head for line in known}]
    return [*known, *(Beside(node, _own_roles(circuit, node)) for node in missing)]


def _own_roles(circuit: Circuit, node: Node) -> Removed:
    own = (role.heads for role in circuit.roles.values() if node in role.heads)
    return frozenset(other for heads in own for other in heads) - {node}


def random_sets(nodes: Nodes, settings: Mapping[str, Any]) -> list[Removed]:
    """`random_sets` random subsets of the circuit's heads; each head is included with probability 1/2."""
    rng = random.Random(f"random sets {settings['seed']}")
    return [frozenset(node for node in sorted(nodes) if rng.random() < 0.5) for _ in range(settings["random_sets"])]


def greedy_sets(study: Study, settings: Mapping[str, Any]) -> list[list[str]]:
    """The sets of highest incompleteness found by `runs` greedy searches on discovery prompts, highest first."""
    chosen = settings["completeness"]
    nodes = head_positions.nodes_of(study.claim, settings["positions"])
    prompts = study.discovery_subset(chosen["discovery_prompts"])
    known: dict[Removed, float] = {}

    def score(sets: Iterable[Removed]) -> Mapping[Removed, float]:
        new = sorted({one for one in sets if one not in known}, key=sorted)
        pairs = [_pair(nodes, removed, study.model.heads, str(i)) for i, removed in enumerate(new)]
        if new:
            found = losses(study, [variant for pair in pairs for variant in pair], prompts)
            known.update({removed: _gap(found, str(i)) for i, removed in enumerate(new)})
        return known

    best = grow(sorted(nodes), score, chosen)
    return [[str(node) for node in sorted(removed)] for removed in best[: chosen["keep"]]]


def _gap(found: Losses, name: str) -> float:
    one, other = (np.mean(np.asarray(found[f"{whole} without {name}"], float)) for whole in ("circuit", "model"))
    return abs(float(one - other))


def grow(
    nodes: Sequence[Node],
    score: Callable[[Iterable[Removed]], Mapping[Removed, float]],
    settings: Mapping[str, Any],
) -> list[Removed]:
    """The best set K of each run of a greedy search, highest score first.

    At each step, the best of `candidates` random nodes joins K. Of `settings`, runs, steps, candidates and seed are used. `score`
    takes sets, and returns {set: score} for all sets that it has ever been given.
    """
    rngs = [random.Random(f"greedy {settings['seed']} {run}") for run in range(settings["runs"])]
    grown: list[Removed] = [frozenset() for _ in rngs]
    seen: list[list[Removed]] = [[] for _ in rngs]
    for _ in range(min(settings["steps"], len(nodes))):
        options = [
            [removed | {v} for v in rng.sample(left, min(settings["candidates"], len(left)))]
            for rng, removed in zip(rngs, grown, strict=True)
            for left in [[node for node in nodes if node not in removed]]
        ]
        scores = score(one for own in options for one in own)
        grown = [max(own, key=lambda one, scores=scores: (scores[one], sorted(one))) for own in options]
        for own, removed in zip(seen, grown, strict=True):
            own.append(removed)
    scores = score([])
    best = {max(own, key=scores.__getitem__) for own in seen}
    return sorted(best, key=lambda one: (-scores[one], sorted(one)))


# --- the table -------------------------------------------------------------------------------------------------------


def rows_of_the_whole(work: Reproduction, sample: PromptSample) -> Iterator[ReproducedRow]:
    """Behaviour, faithfulness, the naive circuit, the name movers."""
    paper, gap = work.settings["paper"], work.settings["recipe_differences"]
    intact, found = work.data["behaviour"], {k: np.asarray(v, float) for k, v in work.data["knock-outs"].items()}
    d = np.asarray(intact["logit_diff"], float)
    nodes = head_positions.nodes_of(work.circuit, work.settings["positions"])
    size = head_positions.share(nodes, len(work.identity.heads), intact["positions"])
    yield ReproducedRow("mean logit difference F(M)", sample.mean(d), paper["logit_diff"], gap=gap["prompts"])
    yield ReproducedRow("IO over S", sample.mean(intact["correct"]), paper["accuracy"], True, gap["prompts"])
    yield ReproducedRow(
        "mean P(IO)", sample.mean(intact["answer_probability"]), paper["probability"], True, gap["prompts"]
    )
    yield ReproducedRow(
        "circuit's share of (head, position) pairs",
        replace(undefined(""), value=size),
        paper["share"],
        True,
        gap["size"],
    )
    lost = d - found["circuit"]
    yield ReproducedRow("F(M) - F(C), signed", sample.mean(lost), paper["loss"], gap=gap["mean"], size=True)
    yield ReproducedRow(
        "faithfulness F(C) / F(M)", sample.ratio(found["circuit"], d), paper["faithfulness"], True, gap["faithfulness"]
    )
    yield ReproducedRow("F of nothing / F(M)", sample.ratio(found["nothing"], d), None, True, gap["nothing"])
    yield ReproducedRow(
        "naive circuit: F(M) - F(C), signed",
        sample.mean(d - found["naive circuit"]),
        paper["naive_loss"],
        gap=gap["naive"],
        size=True,
    )
    if movers(work.circuit):
        less = sample.ratio(found["model without name movers"], d).less_from(1)
    else:
        less = undefined("the circuit has no role name_mover")
    yield ReproducedRow("lost by the model without its name movers", less, paper["movers_lost"], True, gap["movers"])


def rows_of_completeness(work: Reproduction, sample: PromptSample) -> Iterator[ReproducedRow]:
    """F(C without K) - F(M without K) with its sign, where K is each class, the random sets and the first greedy set.

    The sign is kept because an interval of an absolute value never contains 0. The greedy sets are in their order on the
    discovery prompts.
    """
    paper, gap = work.settings["paper"], work.settings["recipe_differences"]
    found = work.data["incompleteness"]
    names = [name.removeprefix("circuit without ") for name in found if name.startswith("circuit without ")]
    gaps = {name: difference(found, name) for name in names}
    for name in (name for name in names if name.startswith("class ")):
        yield ReproducedRow(
            f"incompleteness without {name}, signed",
            sample.mean(gaps[name]),
            paper["class_words"],
            gap=gap["completeness"],
        )
    drawn = np.array([gaps[name] for name in names if name.startswith("random ")])
    yield ReproducedRow(
        f"incompleteness, mean of {len(drawn)} random K, signed",
        sample.mean(drawn.mean(0)),
        paper["class_words"],
        gap=gap["completeness"],
    )
    yield ReproducedRow(
        f"incompleteness, mean size over {len(drawn)} random K",
        PromptEstimate(float(np.abs(drawn.mean(1)).mean()), reason="a size is never below 0"),
        paper["class_words"],
        gap=gap["completeness"],
    )
    greedy = [name for name in names if name.startswith("greedy ")]
    yield ReproducedRow(
        f"incompleteness, first of {len(greedy)} greedy K, signed",
        sample.mean(gaps[greedy[0]]),
        paper["greedy"],
        gap=gap["greedy"],
        size=True,
    )


def difference(found: Losses, name: str) -> np.ndarray:
    """F(C without K) - F(M without K) of each prompt."""
    one, other = (np.asarray(found[f"{whole} without {name}"], float) for whole in ("circuit", "model"))
    return one - other


def rows_of_minimality(work: Reproduction, sample: PromptSample) -> Iterator[ReproducedRow]:
    """Two lines for every head v: F(C without K and v) and F(C without K)."""
    found, gap = work.data["knock-outs"], work.settings["recipe_differences"]["minimality"]
    for line in lines(work.circuit, work.settings):
        beside = ", ".join(map(str, sorted(line.beside))) or "nothing"
        both, alone = line.paper or (None, None)
        why = gap if line.paper else ""
        yield ReproducedRow(
            f"F(C without K and {line.head}), K: {beside}", sample.mean(found[line.without_both]), both, gap=why
        )
        yield ReproducedRow(f"F(C without K), K for {line.head}", sample.mean(found[line.without]), alone, gap=why)
