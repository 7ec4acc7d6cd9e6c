"""Trace (180): which attention heads hold the position of a local model's answers, and which add spread to them.

One head at a time is replaced by its mean over the neutral wordings, and every variant is read again. A head moves the position
if ablating it changes the centre or the shift of a framing. It moves the spread if ablating it changes tau^2 (PIS), up or down. A
trait head moves the position and is shown not to move the spread. A method head moves the spread and is shown not to move the
position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

import results_io
from circuits.circuit import Node
from results_io import UserError
from suites import likelihood
from suites.geometry import findings, fixed_scale, simultaneous, spread
from suites.geometry.construct import Construct
from suites.geometry.coordinates import Coordinates
from suites.geometry.measure import GeometryRun, SetRun
from suites.geometry.metric import centre as centre_of
from suites.geometry.metric import settled
from suites.models import head_ablation
from suites.models.head_ablation import AblationHooks, HeadAblation
from suites.models.local import LocalModel

NUMBER, ID, NAME = "180", "G.trace", "trace"
SPREAD, POSITION, FRAMING = "spread", "position", "framing"
MOVED, STAYED, OPEN = "moved", "stayed", "open"
KINDS = {(MOVED, STAYED): "trait", (STAYED, MOVED): "method", (MOVED, MOVED): "both"}  # of position and spread
UNDECIDED = "undecided"  # one of the two moves, and the other is neither shown to move nor to stay
NAMED = (*KINDS.values(), UNDECIDED)
MEANING = {  # as the terminal says it
    "trait": "they move the position and not the spread over wordings",
    "method": "they move the spread over wordings and not the position",
    "both": "they move both",
    UNDECIDED: "they move one, and the other is not shown to stay",
}
CLAIMS = 2  # of each head: that its position stayed, and that its spread did
FEWEST = 8  # topics: their 256 sign flips suffice for a level of .95
FEWEST_FLIPS = 999
Table = Mapping[str, Float[np.ndarray, " axis"]]  # the point of every variant of one construct


@dataclass(frozen=True)
class Effect:
    """The change by ablating a head: mean over topics, with a simultaneous interval over all heads and quantities.

    `inner`: the interval that must lie within the margin for the quantity to have stayed (`simultaneous.equivalence`).
    """

    quantity: str
    estimate: float
    low: float
    high: float
    inner: tuple[float, float]

    def moves(self, margin: float) -> bool:
        """Whether the whole interval lies beyond the margin, on either side."""
        return self.high < -margin or self.low > margin

    def stays(self, margin: float) -> bool:
        """Whether the whole inner interval lies within the margin, on both sides."""
        return self.inner[0] > -margin and self.inner[1] < margin


@dataclass(frozen=True)
class TracedHead:
    """A head with its effects. `position` (with framings) and `spread`: each shown to move, shown to stay, or open."""

    head: Node
    effects: tuple[Effect, ...]
    position: str
    spread: str

    @property
    def kind(self) -> str:
        """trait, method or both; undecided if one moves and the other is open; "" if nothing was shown to move."""
        found = (self.position, self.spread)
        return KINDS.get(found, UNDECIDED if MOVED in found else "")

    def largest(self, *quantities: str) -> float:
        """The largest |change| of these quantities, or of all if none are given."""
        own = [e for e in self.effects if not quantities or e.quantity.partition(" ")[0] in quantities]
        return max((abs(e.estimate) for e in own), default=0.0)


def read_head(head: Node, effects: Sequence[Effect], margin: float) -> TracedHead:
    """The head classified by its effects. "Stays" needs intervals within the margin; the lack of a finding does not show it."""

    def found(own: Sequence[Effect]) -> str:
        if any(effect.moves(margin) for effect in own):
            return MOVED
        return STAYED if all(effect.stays(margin) for effect in own) else OPEN

    position = found([effect for effect in effects if effect.quantity != SPREAD])
    return TracedHead(head, tuple(effects), position, found([e for e in effects if e.quantity == SPREAD]))


def named(heads: Sequence[TracedHead], kind: str) -> list[TracedHead]:
    """The heads of a kind, largest effect first: on tau^2 for method heads, position and framing for trait heads, else any."""
    quantities = {"method": (SPREAD,), "trait": (POSITION, FRAMING)}.get(kind, ())
    return sorted((one for one in heads if one.kind == kind), key=lambda one: -one.largest(*quantities))


def sweep(
    model: LocalModel,
    constructs: Sequence[Construct],
    space: Coordinates,
    scale: Mapping[str, Any],
    done: Callable[[int], Any] = lambda count: None,
) -> tuple[list[Node], list[Table], list[list[Table]]]:
    """(heads, intact points by construct, points by head and construct), by mean ablation of single heads.

    Means are over all positions of the neutral wordings. UserError for coordinates other than choices, and for choices that are
    not single tokens of the model.
    """
    if not space.exact:
        raise UserError(
            f"a trace reads coordinates of kind choices, and these are of kind {space.kind}; declare choices"
        )
    prompts = [(place, v) for place, one in enumerate(constructs) for v in one.variants]
    tokens = [model.encoding.tokens(str(constructs[place].written(v))) for place, v in prompts]
    ids = _choices(model, prompts[0][1].prompt, space)

    def read() -> list[Table]:
        points = fixed_scale.apply(_points(model, tokens, ids), scale)
        found: list[dict[str, np.ndarray]] = [{} for _ in constructs]
        for (place, variant), point in zip(prompts, points, strict=True):
            found[place][variant.id] = point
        return list(found)

    heads = [
        Node("head", layer, index) for layer in range(model.source.n_layers) for index in range(model.source.n_heads)
    ]
    intact, ablated = read(), []
    for hooks in single_ablations(model, constructs, heads):
        with model.silenced(hooks):
            ablated.append(read())
        done(1)
    return heads, intact, ablated


def single_ablations(model: LocalModel, constructs: Sequence[Construct], heads: Sequence[Node]) -> list[AblationHooks]:
    """For each head, the hooks that replace it alone by its mean over all positions of the neutral wordings."""
    if not heads:
        return []
    reference = [model.encoding.tokens(str(one.written(v))) for one in constructs for v in findings.wordings(one)]
    everything = head_ablation.prepare(
        HeadAblation(tuple(heads), "mean", ("the neutral wordings",)), model.model, model.source, reference
    )
    return [_one(everything, head) for head in heads]


def _one(everything: AblationHooks, head: Node) -> AblationHooks:
    """The hooks of one head, from the hooks of all heads."""
    own = everything.indices[head.layer] == head.index
    index, values = everything.indices[head.layer][own], everything.values[head.layer][own]
    return AblationHooks(
        {head.layer: everything.projections[head.layer]}, {head.layer: index}, {head.layer: values}, everything.n_heads
    )


def _choices(model: LocalModel, prompt: str, space: Coordinates) -> list[tuple[list[int], list[int]]]:
    """(plus tokens, minus tokens) of the choices of each axis."""
    found = []
    for axis in space.axes:
        sides = []
        for words in (axis["plus"], axis["minus"]):
            after = [
                likelihood.split(model.encoding.tokens, prompt, likelihood.DELIMITER + word, model.encoding.prefix)[1]
                for word in words
            ]
            if long := [word for word, ids in zip(words, after, strict=True) if len(ids) != 1]:
                raise UserError(
                    f"the choice {long[0]!r} is more than one token to {model.name}; a trace needs single ones"
                )
            sides.append([ids[0] for ids in after])
        found.append((sides[0], sides[1]))
    return found


def _points(
    model: LocalModel, tokens: Sequence[Sequence[int]], ids: Sequence[tuple[list[int], list[int]]]
) -> Float[np.ndarray, "variant axis"]:
    rows = np.stack([logits.double().numpy() for logits in model.next_logits(tokens)])
    return np.stack(
        [
            np.logaddexp.reduce(rows[:, plus], axis=1) - np.logaddexp.reduce(rows[:, minus], axis=1)
            for plus, minus in ids
        ],
        axis=1,
    )


# --- statistics -------------------------------------------------------------------------------------------------------


def quantities(
    one: Construct, table: Table, axes: Sequence[str], towards: np.ndarray, shifts: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """The quantities of one construct that a head may change.

    They are: the position, by axis and along the ODS direction `towards`; tau^2; each framing's shift along its mean direction
    over all constructs (`shifts`).
    """
    base = findings.wordings(one)
    means = np.array([table[v.id] for v in base])
    centre = centre_of(means)
    found = {f"{POSITION} {name}": float(centre[k]) for k, name in enumerate(axes)}
    found[f"{POSITION} away from the reference"] = float(centre @ towards)
    found[SPREAD] = spread.total_variance(means)
    own = _shifts(one, table)
    return found | {
        f"{FRAMING} {persona}": float(own[persona] @ way) for persona, way in shifts.items() if persona in own
    }


def _shifts(one: Construct, table: Table) -> dict[str, np.ndarray]:
    """The mean shift of each persona over the wordings that it shares with the neutral variants."""
    found, base = {}, findings.wordings(one)
    for persona in dict.fromkeys(v.persona for v in one.of("persona")):
        both = findings.pairs(base, one.of("persona", persona=persona))
        if both:
            plain, framed = (np.array([table[pair[k].id] for pair in both]) for k in (0, 1))
            found[persona] = settled(centre_of(framed - plain), plain, framed)
    return found


def _directions(constructs: Sequence[Construct], intact: Sequence[Table]) -> dict[str, np.ndarray]:
    """The unit vector of each persona's shift in the intact model, averaged over constructs."""
    by_persona: dict[str, list[np.ndarray]] = {}
    for one, table in zip(constructs, intact, strict=True):
        for persona, shift in _shifts(one, table).items():
            by_persona.setdefault(persona, []).append(shift)
    means = {persona: np.mean(shifts, axis=0) for persona, shifts in by_persona.items()}
    return {persona: mean / length for persona, mean in means.items() if (length := np.linalg.norm(mean)) > 0}


def left_out(constructs: Sequence[Construct], intact: Sequence[Table]) -> dict[str, str]:
    """Framings that are traced in no construct, with the reason: heads are compared on what all constructs have."""
    asked = [set(_shifts(one, table)) for one, table in zip(constructs, intact, strict=True)]
    directions, found = _directions(constructs, intact), {}
    for persona in dict.fromkeys(v.persona for one in constructs for v in one.of("persona")):
        lacking = [one.id for one, own in zip(constructs, asked, strict=True) if persona not in own]
        if lacking:
            found[f"{FRAMING} {persona}"] = (
                f"{len(lacking)} of {len(constructs)} constructs do not ask it before a neutral wording: {', '.join(lacking)}"
            )
        elif persona not in directions:
            found[f"{FRAMING} {persona}"] = (
                "it moves nothing on average in the intact model, so that it has no direction"
            )
    return found


def analyse(
    constructs: Sequence[Construct],
    axes: Sequence[str],
    swept: tuple[list[Node], list[Table], list[list[Table]]],
    *,
    level: float,
    margin: float,
    resamples: int,
    seed: int,
) -> list[TracedHead]:
    """Every head with its effects, ablated minus intact, averaged over topics, with simultaneous intervals.

    `margin`: the size that a change has to exceed, in nats (nats squared for tau^2). A framing that one construct lacks is traced
    in none: `left_out` names it. UserError under 8 topics.
    """
    topics = len({one.topic for one in constructs})
    if topics < FEWEST:
        raise UserError(
            f"constructs of {topics} topics; a trace takes topics as its sample and needs at least {FEWEST}: add some"
        )
    heads, names = swept[0], names_of(constructs, axes, swept[1])
    flat = changes(constructs, axes, swept)
    intervals = simultaneous.intervals(flat, level, resamples, seed)
    inner = simultaneous.equivalence(flat, level, CLAIMS * len(heads))
    found = []
    for place, head in enumerate(heads):
        own = slice(place * len(names), (place + 1) * len(names))
        effects = tuple(
            Effect(name, float(mean), *ends, within)
            for name, mean, ends, within in zip(names, flat.mean(0)[own], intervals[own], inner[own], strict=True)
        )
        found.append(read_head(head, effects, margin))
    return found


def names_of(constructs: Sequence[Construct], axes: Sequence[str], intact: Sequence[Table]) -> list[str]:
    """The quantities that every construct has."""
    by_construct = _quantities(constructs, axes, intact, intact)
    return [name for name in by_construct[0] if all(name in one for one in by_construct)]


def changes(
    constructs: Sequence[Construct],
    axes: Sequence[str],
    swept: tuple[list[Node], list[Table], list[list[Table]]],
    directed: Sequence[Table] | None = None,
) -> Float[np.ndarray, "topic head_quantity"]:
    """Ablated minus intact by topic, head after head, for the quantities of `names_of`.

    `directed`: the tables that give the directions, by default the intact ones. To compare two models, give both the same ones.
    """
    _, intact, ablated = swept
    directed = intact if directed is None else directed
    names, before = names_of(constructs, axes, directed), _quantities(constructs, axes, directed, intact)
    found = [
        [[after[name] - own[name] for name in names] for own, after in zip(before, now, strict=True)]
        for now in (_quantities(constructs, axes, directed, tables) for tables in ablated)
    ]  # [head, construct, quantity]
    by_construct = np.moveaxis(np.array(found), 1, 0).reshape(len(constructs), -1)
    return simultaneous.by_topic(by_construct, [one.topic for one in constructs])


def _quantities(
    constructs: Sequence[Construct], axes: Sequence[str], directed: Sequence[Table], tables: Sequence[Table]
) -> list[dict[str, float]]:
    """`quantities` of every construct, along the directions that the tables `directed` give."""
    shifts = _directions(constructs, directed)
    return [
        quantities(one, table, axes, _towards(one, own), shifts)
        for one, own, table in zip(constructs, directed, tables, strict=True)
    ]


def _towards(one: Construct, table: Table) -> np.ndarray:
    """The unit vector from the reference (or the origin, without one) to the centre of the intact wordings."""
    means = np.array([table[v.id] for v in findings.wordings(one)])
    away = settled(centre_of(means) - np.array(one.reference or (0.0,) * means.shape[1]), means)
    length = float(np.linalg.norm(away))
    return away / length if length else np.zeros(len(away))


# --- the result -------------------------------------------------------------------------------------------------------


def traceable(run: SetRun) -> str | None:
    """Why a set cannot be traced; None if it can."""
    if run.reason is not None:
        return run.reason
    if run.coordinates is None or not run.coordinates.exact:
        return "a trace reads coordinates of kind choices"
    live = len({one.construct.topic for one in run.measured if one.reason is None})
    return None if live >= FEWEST else f"{live} topics; a trace takes them as its sample and needs at least {FEWEST}"


def command(
    model_settings: Mapping[str, Any],
    run: GeometryRun,
    folder: Path,
    settings: Mapping[str, Any],
    seed: int,
    done: Callable[[int], Any] = lambda count: None,
) -> list[str]:
    """Write result 180 for every traceable set; returns lines for the terminal. UserError for a model without activations."""
    _check(settings)
    if model_settings["kind"] == "endpoint":
        raise UserError("geometry.trace=true needs a model on this machine: an endpoint shows no heads; take it out")
    data, lines = {}, []
    for own in run.sets:
        if (reason := traceable(own)) is not None:
            data[own.constructs.name] = {"reason": reason}
            continue
        constructs = own.in_unit()
        assert own.coordinates is not None
        swept = sweep(LocalModel(model_settings), constructs, own.coordinates, own.constructs.scale, done)
        options = {"level": settings["level"], "margin": settings["trace_margin"], "seed": seed}
        heads = analyse(constructs, own.coordinates.names, swept, resamples=settings["trace_resamples"], **options)
        missing = left_out(constructs, swept[1])
        data[own.constructs.name] = _data(heads, constructs) | {"left_out": missing}
        for kind in NAMED:
            shown = ", ".join(str(one.head) for one in named(heads, kind)) or "none"
            lines.append(f"Trace of {own.constructs.name}: {kind} heads ({MEANING[kind]}): {shown}")
        lines += [f"Trace of {own.constructs.name}: {what} is left out, {why}" for what, why in missing.items()]
    document = {
        "number": NUMBER,
        "id": NAME,
        "kind": "geometry",
        "subject": {
            "model": run.model,
            "identity": dict(run.identity),
            "model_fingerprint": results_io.sha256(run.identity),
            "constructs": {one.constructs.name: one.constructs.sha256 for one in run.sets},
            "settings": {key: settings[key] for key in ("level", "trace_margin", "trace_resamples")},
        },
        "n": {"sets": sum("heads" in one for one in data.values())},
        "data": data,
        "records": [],
    }
    results_io.write(Path(folder) / f"{NUMBER}_{NAME}.json", document)
    return lines


def _check(settings: Mapping[str, Any]) -> None:
    """UserError for a level outside of (0, 1), a margin below 0, and too few sign flips for the level's quantile."""
    if not isinstance(settings["level"], float) or not 0 < settings["level"] < 1:
        raise UserError(f"geometry.level={settings['level']} is wrong; expected a number between 0 and 1, such as 0.95")
    if not isinstance(settings["trace_margin"], int | float) or not 0 <= settings["trace_margin"] < np.inf:
        raise UserError(f"geometry.trace_margin={settings['trace_margin']} is wrong; expected a number from 0, in nats")
    flips = settings["trace_resamples"]
    if isinstance(flips, bool) or not isinstance(flips, int) or flips < FEWEST_FLIPS:
        raise UserError(f"geometry.trace_resamples={flips} is wrong; expected a whole number from {FEWEST_FLIPS}")


def _data(heads: Sequence[TracedHead], constructs: Sequence[Construct]) -> dict[str, Any]:
    return {
        "constructs": len(constructs),
        "recipe": "mean over all positions of the neutral wordings",
        "heads": [
            {
                "head": str(one.head),
                "kind": one.kind,
                "position": one.position,
                "spread": one.spread,
                "effects": [asdict(effect) for effect in one.effects],
            }
            for one in heads
        ],
        "named": {kind: [str(one.head) for one in named(heads, kind)] for kind in NAMED},
    }
