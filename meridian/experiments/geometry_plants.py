"""Planted geometry: pocket fine-tuned to move some answers, and pocket with heads that move them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from calibrations.statistics import bootstrap_counts, percentile_interval
from circuits.circuit import Node
from meridian.experiments import captured_head
from meridian.experiments.captured_head import Fault, Reading
from results_io import UserError
from suites import likelihood
from suites.geometry import construct, coordinates, findings, framing, paraphrase, position, simultaneous, trace, width
from suites.geometry.construct import Construct, ConstructVariant
from suites.geometry.coordinates import Coordinates
from suites.geometry.measure import MeasuredConstruct, VariantOutputs
from suites.models.local import LocalModel

POCKET = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu"}
PERSONA, OTHER = "teller_glad", "teller_glum"
METHODS = ("paraphrase", "persona")
Swept = tuple[list[Node], list[trace.Table], list[list[trace.Table]]]  # what `trace.sweep` gives
BATCH, RESAMPLES = 64, 2000
PUSH = (
    80.0  # for heads that move no answer to which it could be fitted, as in shams; fitted last-layer ones are 47 to 100
)
FITS, MOST_OF_A_STEP = 6, 2.0  # steps from PUSH to the fitted push, and the largest factor of one step
NEAR = 0.02  # share of the wanted effect by which a fitted one may miss


# --- fine-tunes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plant:
    """A fine-tune: which variants' answers it moves, and whether it trains all weights or only the last layer norm's bias.

    That bias adds the same vector to the logits of every prompt, so it shifts all answers without changing their spread.
    """

    name: str
    moved: Callable[[ConstructVariant], bool]
    bias_alone: bool = False


PLANTS = (
    Plant("one persona answers otherwise", lambda variant: variant.persona == PERSONA),
    Plant("every answer moves", lambda variant: True, bias_alone=True),
)


def fine_tuned(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """ODS, PIS and PSS of three models: pocket as it is, a fine-tune that answers one persona differently, and a fine-tune whose
    answers all move.

    The margin is a share of the intact model's tau^2, which is the value of PIS and the scale of the distances. A metric is read
    by the 95 % bootstrap interval of its mean change over constructs: `changed` if the interval lies beyond the margin on one
    side, `unchanged` if it lies within the margin on both sides, else `undecided`.
    """
    config, own = settings["planted"], construct.load("pocket")
    space = coordinates.declared(own.coordinates, "pocket")
    intact = LocalModel(POCKET)
    before = scores(intact, own.constructs, space)
    rows = [_row("pocket as it is", before, before, config)]
    for plant in PLANTS:
        model = tuned(intact, own.constructs, space, plant, config, settings["seed"])
        rows.append(_row(plant.name, before, scores(model, own.constructs, space), config))
    return rows


def tuned(
    intact: LocalModel,
    constructs: Sequence[Construct],
    space: Coordinates,
    plant: Plant,
    config: Mapping[str, Any],
    seed: int,
) -> LocalModel:
    """A copy of the model, trained so that only the first axis rises, by `shift` nats, and only for the plant's moved variants.

    The target is the intact model's own distribution with the logits of the axis's words raised. The loss is the KL divergence
    plus `odds` times the mean squared error of the coordinates. These are log-odds of words too rare for the KL divergence to
    preserve. The optimiser is Adam; its rate falls to 0 along a cosine.
    """
    variants = [v for one in constructs for v in one.variants if v.method in METHODS]
    rows = [intact.encoding.tokens(v.prompt) for v in variants]
    sides = _words(intact, variants[0].prompt, space)
    targets = torch.stack(intact.next_logits(rows))
    targets[:, sides[0][0]] += torch.tensor([config["shift"] if plant.moved(v) else 0.0 for v in variants])[:, None]
    model, targets = with_weights(intact, copy.deepcopy(intact.model)), targets.log_softmax(-1)
    network: Any = model.model.train()
    trained = [network.transformer.ln_f.bias] if plant.bias_alone else list(network.parameters())
    optimiser = torch.optim.Adam(trained, lr=config["bias_rate" if plant.bias_alone else "rate"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, config["steps"])
    order = torch.Generator().manual_seed(seed)
    for _ in range(config["steps"]):
        chosen = torch.randint(len(rows), (BATCH,), generator=order).tolist()
        logits = _last(network, [rows[k] for k in chosen]).log_softmax(-1)
        loss = torch.nn.functional.kl_div(logits, targets[chosen], log_target=True, reduction="batchmean")
        loss = loss + config["odds"] * (_odds(logits, sides) - _odds(targets[chosen], sides)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    network.eval()
    return model


def _words(model: LocalModel, prompt: str, space: Coordinates) -> list[tuple[list[int], list[int]]]:
    """For each axis, the tokens of its words on the plus and on the minus side."""

    def tokens(words: Sequence[str]) -> list[int]:
        return [
            likelihood.split(model.encoding.tokens, prompt, f" {word}", model.encoding.prefix)[1][0] for word in words
        ]

    return [(tokens(axis["plus"]), tokens(axis["minus"])) for axis in space.axes]


def _odds(logs: torch.Tensor, sides: Sequence[tuple[list[int], list[int]]]) -> torch.Tensor:
    """log p(plus) - log p(minus), [prompt, axis]."""
    return torch.stack([logs[:, plus].logsumexp(-1) - logs[:, minus].logsumexp(-1) for plus, minus in sides], dim=1)


def with_weights(intact: LocalModel, network: Any) -> LocalModel:
    """The model under test with another network. It keeps the identity of `intact`, so nothing it answers may be recorded."""
    model = copy.copy(intact)
    model.model = network
    return model


def _last(network: Any, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    places = (mask.cumsum(1) - 1).clamp(min=0)
    return network(input_ids=tokens, attention_mask=mask, position_ids=places, use_cache=False).logits[:, -1]


def scores(model: LocalModel, constructs: Sequence[Construct], space: Coordinates) -> dict[str, np.ndarray]:
    """Squared ODS, tau^2, squared PSS of both personas, and the width of the neutral wordings, by construct."""
    found: dict[str, list[float]] = {name: [] for name in ("ods", "pis", "pss", "pss_other", "ow")}
    for one in read(model, constructs, space):
        base = findings.wordings(one.construct)
        means = one.means(base)
        reference = one.construct.reference or (0.0,) * means.shape[1]
        found["ods"].append(position.ods(means, reference).estimate.detail["squared"])
        found["ow"].append(width.ow(means, fewest=2).estimate.number)
        found["pis"].append(paraphrase.pis(one.draws(base), deterministic=True).estimate.number)
        for name, persona in (("pss", PERSONA), ("pss_other", OTHER)):
            pairs = findings.pairs(base, one.construct.of("persona", persona=persona))
            first, second = (one.means([pair[k] for pair in pairs]) for k in (0, 1))
            estimate = framing.pss(first, second, paired=True, resamples=1).estimate
            found[name].append(estimate.detail["squared"])
    return {name: np.array(values) for name, values in found.items()}


def read(model: LocalModel, constructs: Sequence[Construct], space: Coordinates) -> Iterable[MeasuredConstruct]:
    """The constructs' neutral and framed variants with their points; nothing is written to a record."""
    for one in constructs:
        variants = [v for v in one.variants if v.method in METHODS]
        items = [item for v in variants for item in space.items(v.id, v.prompt, v.system)]
        found = likelihood.ask(model, items)
        k = len(space.axes)
        outputs = {
            v.id: VariantOutputs(space.of_choices(found[place * k : (place + 1) * k])[None], {})
            for place, v in enumerate(variants)
        }
        yield MeasuredConstruct(one, outputs)


def _row(
    name: str, before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], config: Mapping[str, Any]
) -> dict[str, Any]:
    margin = config["margin"] * float(before["pis"].mean())
    changes = {metric: after[metric] - before[metric] for metric in before}
    intervals = {metric: _interval(values) for metric, values in changes.items()}
    read = {metric: reading(*ends, margin) for metric, ends in intervals.items()}
    return {
        "model": name,
        **{metric: float(values.mean()) for metric, values in after.items()},
        "margin": margin,
        "changes": {metric: [float(values.mean()), *intervals[metric]] for metric, values in changes.items()},
        "read": read,
        "found": [LABELS[metric] for metric, found in read.items() if found == CHANGED],
    }


def reading(low: float, high: float, margin: float) -> str:
    """CHANGED if the interval lies beyond the margin on one side, UNCHANGED if within it on both sides, else UNDECIDED."""
    if low > margin or high < -margin:
        return CHANGED
    return UNCHANGED if -margin < low and high < margin else UNDECIDED


CHANGED, UNCHANGED, UNDECIDED = "changed", "unchanged", "undecided"
LABELS = {"ods": "ODS", "pis": "PIS", "pss": f"PSS {PERSONA}", "pss_other": f"PSS {OTHER}", "ow": "OW"}


def _interval(values: np.ndarray) -> tuple[float, float]:
    counts = bootstrap_counts(len(values), RESAMPLES, seed=0)
    return percentile_interval(counts @ values / len(values), 0.95)


# --- heads ------------------------------------------------------------------------------------------------------------


def persona_head(head: Node, words: Sequence[str] = ("May",), answer: str = "good") -> list[Fault]:
    """A head that writes one answer at the persona's opening: it moves framed prompts and no neutral wording."""
    return [Fault(head, tuple(words), answer)]


def position_head(head: Node, words: Sequence[str] = ("is", "was"), answer: str = "good") -> list[Fault]:
    """A head that writes one answer in every prompt, because every prompt has one of these words.

    Its effect differs between prompts by about a tenth, so tau^2 moves too: by less than the margin only if the effect is small.
    """
    return [Fault(head, tuple(words), answer)]


def wording_head(
    head: Node,
    words: Sequence[str] = ("Today", "Yesterday"),
    answers: Sequence[str] = ("good", "bad"),
    push: float = PUSH,
) -> list[Fault]:
    """A head that writes opposite answers in two of the wordings: it spreads them and leaves their mean unchanged."""
    return [Fault(head, (word,), answer, push=push) for word, answer in zip(words, answers, strict=True)]


def fitted(
    intact: LocalModel,
    faults: Sequence[Fault],
    constructs: Sequence[Construct],
    space: Coordinates,
    nats: float,
    readings: Mapping[int, Reading | None] | None = None,
) -> list[Fault]:
    """The faults of one head with their pushes fitted together: where the words of one stand, the first axis moves by `nats` on
    average, in either direction, in the neutral wordings.

    The baseline is the same head attending to the words but writing nothing there. UserError if no wording has a fault's words.
    """
    own = [replace(one, variants=tuple(findings.wordings(one))) for one in constructs]
    prompts = [{*re.findall(r"\w+", variant.prompt)} for one in own for variant in one.variants]
    chosen = [[bool(prompt & {*fault.words}) for prompt in prompts] for fault in faults]
    for fault, found in zip(faults, chosen, strict=True):
        if not any(found):
            raise UserError(f"no wording has one of {', '.join(fault.words)}; choose words of the wordings")
    if readings is None:
        readings = ablated_readings(intact, constructs, {fault.head.layer for fault in faults})

    def answers(pushes: Sequence[float]) -> np.ndarray:
        made = [replace(fault, push=push) for fault, push in zip(faults, pushes, strict=True)]
        model = with_heads(intact, made, constructs, readings)
        points = np.concatenate([one.means(findings.wordings(one.construct)) for one in read(model, own, space)])
        return np.array([points[found, 0].mean() for found in chosen])

    pushes, silent = np.array([fault.push for fault in faults]), answers([NOTHING] * len(faults))
    for _ in range(FITS):
        moved = np.abs(answers(pushes.tolist()) - silent)
        if (np.abs(moved - nats) <= NEAR * nats).all():
            break
        pushes = pushes * np.clip(nats / np.maximum(moved, NOTHING), 1 / MOST_OF_A_STEP, MOST_OF_A_STEP)
    return [replace(fault, push=float(push)) for fault, push in zip(faults, pushes, strict=True)]


NOTHING = 1e-3  # a push that moves nothing, but is not 0, so that it can be divided by


def with_heads(
    intact: LocalModel,
    faults: Sequence[Fault],
    constructs: Sequence[Construct],
    readings: Mapping[int, Reading | None] | None = None,
) -> LocalModel:
    """The model with these heads captured; `readings`: what `ablated_readings` gives for their layers, if it is known already."""
    if readings is None:
        readings = ablated_readings(intact, constructs, {fault.head.layer for fault in faults})
    texts, network = _texts(constructs), intact.model
    for fault in faults:
        own = texts if any(word in text for word in fault.words for text in texts) else [*texts, *fault.words]
        network = captured_head.plant(network, intact.tokenizer, fault, own, readings[fault.head.layer])
    return with_weights(intact, network)


def ablated_readings(
    intact: LocalModel, constructs: Sequence[Construct], layers: Iterable[int]
) -> dict[int, Reading | None]:
    """For each layer, its inputs on all prompts with each head below it ablated, as a trace ablates them; None for layer 0.

    A planted head has to stay silent there too. Otherwise ablating a head below sets it off, and the trace rightly finds that
    this head moves what it moves in no intact model.
    """
    texts, found = _texts(constructs), dict[int, Reading | None]()
    for layer in layers:
        below = [Node("head", lower, k) for lower in range(layer) for k in range(intact.source.n_heads)]
        read = []
        for hooks in trace.single_ablations(intact, constructs, below):
            with hooks.active():
                read.append(captured_head.read(intact.model, intact.tokenizer, layer, texts))
        inputs, tokens = [one.inputs for one in read], [one.tokens for one in read]
        found[layer] = Reading(torch.cat(inputs), torch.cat(tokens)) if read else None
    return found


def _texts(constructs: Sequence[Construct]) -> list[str]:
    return [v.prompt for one in constructs for v in one.variants if v.method in METHODS]


def traced(
    model: LocalModel, constructs: Sequence[Construct], space: Coordinates, settings: Mapping[str, Any]
) -> Trace:
    """The trace of a model on the neutral and framed variants of these constructs."""
    own = _asked(constructs)
    options = {name: settings[name] for name in ("level", "margin", "resamples", "seed")}
    swept = trace.sweep(model, own, space, {})
    return Trace(trace.analyse(own, space.names, swept, **options), trace.changes(own, space.names, swept), swept)


def _asked(constructs: Sequence[Construct]) -> list[Construct]:
    return [replace(one, variants=tuple(v for v in one.variants if v.method in METHODS)) for one in constructs]


@dataclass(frozen=True, eq=False)
class Trace:
    """A trace's heads, every head's changes, and the points that these are of, which `compared` needs."""

    heads: list[trace.TracedHead]
    changes: Float[np.ndarray, "topic head_quantity"]
    swept: Swept | None = None


def compared(now: Trace, before: Trace, constructs: Sequence[Construct], axes: Sequence[str]) -> tuple[Trace, Trace]:
    """Both traces with their changes along the directions of either model, so that a quantity is the same in both.

    A plant turns the shift of its persona. If each model had its own directions alone, every head that moves this persona would
    seem to move it otherwise.
    """
    assert now.swept is not None and before.swept is not None
    both, own = (before.swept[1], now.swept[1]), _asked(constructs)

    def along(swept: Swept) -> Float[np.ndarray, "topic head_quantity"]:
        found = [trace.changes(own, axes, swept, directed) for directed in both]
        by_head = [one.reshape(len(one), len(swept[0]), -1) for one in found]
        return np.concatenate(by_head, axis=2).reshape(len(found[0]), -1)

    return replace(now, changes=along(now.swept)), replace(before, changes=along(before.swept))


def otherwise(now: Trace, before: Trace, settings: Mapping[str, Any]) -> list[str]:
    """The heads that move some quantity by more than the margin more or less than in another model, the largest first.

    Both are `compared` before. Their changes are paired by topic, and the intervals of the differences hold for all heads and
    quantities at once. So a head on the margin in both models is none of these, while it may be named in one of them alone.
    """
    differences, margin = now.changes - before.changes, settings["margin"]
    ends = simultaneous.intervals(differences, settings["level"], settings["resamples"], settings["seed"])
    beyond = np.reshape([low > margin or high < -margin for low, high in ends], (len(now.heads), -1))
    largest = np.abs(differences.mean(0)).reshape(len(now.heads), -1).max(1)
    return [str(now.heads[place].head) for place in np.argsort(-largest) if any(beyond[place])]


def planted_heads(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for the intact model, then one for each plant: heads that answer a persona differently, heads that write one answer
    in every prompt, heads that spread wordings, and shams.

    - `right`: for a fault, whether the planted head is named first of its kind; for a sham, whether every head that is named at
      all, as undecided too, is named the same in the intact model.
    - `kind`: what the planted head was read as.
    - `otherwise`: the heads that move something otherwise than in the intact model, the largest difference first (`otherwise`).
    - `further`: {head: kind} of other heads that have a kind here and none in the intact model. A user sees these beside the
      planted head.

    Plants are drawn without replacement, in heads of their layers that were shown to change neither position nor spread in the
    intact model, so that a head does only what was planted.
    """
    config, own = settings["heads"], construct.load("pocket")
    space, intact = coordinates.declared(own.coordinates, "pocket"), LocalModel(POCKET)
    keep = {*config["wordings"], *(f"{PERSONA}_{name}" for name in config["wordings"])}
    small = [replace(one, variants=tuple(v for v in one.variants if v.id in keep)) for one in own.constructs]
    small = small[: config["constructs"]]
    before = traced(intact, small, space, config)
    stayed = [one.head for one in before.heads if (one.position, one.spread) == (trace.STAYED, trace.STAYED)]
    by_kind = {kind: [str(one.head) for one in trace.named(before.heads, kind)] for kind in trace.NAMED}
    rows: list[dict[str, Any]] = [{"plant": INTACT, "named": by_kind, "stayed": [str(node) for node in stayed]}]
    readings = ablated_readings(intact, small, {layer for layers in config["layers"].values() for layer in layers})
    for kind, node, faults in plants(config, stayed, config["seed"]):
        if kind in config["nats"]:
            faults = fitted(intact, faults, small, space, config["nats"][kind], readings)
        now = traced(with_heads(intact, faults, small, readings), small, space, config)
        planted = {
            "words": [[*fault.words, fault.answer] for fault in faults],
            "pushes": [fault.push for fault in faults],
            "otherwise": otherwise(*compared(now, before, small, space.names), config),
        }
        rows.append({"plant": kind, "head": str(node), **planted, **_judged(kind, node, now.heads, before.heads)})
    return rows


def _judged(
    kind: str, node: Node, heads: Sequence[trace.TracedHead], before: Sequence[trace.TracedHead]
) -> dict[str, Any]:
    """The result for one plant: `kind`, `further` and `right` of `planted_heads`."""
    known = {one.head: one.kind for one in before}
    read = next(one.kind for one in heads if one.head == node)
    others = [one for one in heads if one.kind and (kind == "sham" or one.head != node)]
    further = {str(one.head): one.kind for one in others if not known[one.head]}
    if kind == "sham":
        right = all(one.kind == known[one.head] for one in others)
    else:
        right = [one.head for one in trace.named(heads, READ_AS[kind])[:1]] == [node]
    return {"kind": read, "further": further, "right": right}


INTACT = "intact"
READ_AS = {"persona": "trait", "position": "trait", "wording": "method"}  # the kind that each plant should be read as


def plants(config: Mapping[str, Any], heads: Sequence[Node], seed: int) -> Iterator[tuple[str, Node, list[Fault]]]:
    """(kind, head, faults) of every plant, all different, in some of `heads`. UserError if more are asked for than exist."""
    rng, layers = np.random.default_rng(seed), config["layers"]
    nodes = {kind: [node for node in heads if node.layer in layers[kind]] for kind in layers}
    orders = [order for pair in config["wording_words"] for order in permutations(pair)]
    possible = {
        "persona": [(node, persona_head(node, answer=answer)) for node in nodes["persona"] for answer in ANSWERS],
        "position": [(node, position_head(node, answer=answer)) for node in nodes["position"] for answer in FEELINGS],
        "wording": [
            (node, wording_head(node, words, answers))
            for node in nodes["wording"]
            for words in orders
            for answers in OPPOSITES
        ],
        "sham": [(node, faults) for node in nodes["sham"] for faults in _shams(node, config)],
    }
    for kind, made in possible.items():
        times = config["shams" if kind == "sham" else "faults"]
        if times > len(made):
            raise UserError(f"{times} plants of the kind {kind}; {len(made)} different ones can be made: ask for fewer")
        for place in rng.choice(len(made), times, replace=False):
            yield kind, *made[place]


def _shams(node: Node, config: Mapping[str, Any]) -> list[list[Fault]]:
    """What is planted in this layer as persona or wording heads, but for words of no prompt."""
    if node.layer in config["layers"]["persona"]:
        return [persona_head(node, (word,), answer) for word in config["sham_words"] for answer in ANSWERS]
    return [wording_head(node, words) for words in permutations(config["sham_words"], 2)]


ANSWERS = ("good", "bad")
OPPOSITES = (ANSWERS, ("happy", "sad"), ("rich", "poor"))
FEELINGS = (*ANSWERS, "happy", "sad")  # the last layer has few heads that move nothing, so each writes more answers
