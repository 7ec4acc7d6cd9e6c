"""Meng et al. (2022), ROME: which restored states recover a fact when noise hides its subject.

Normal noise of three standard deviations is added to the embeddings of the subject's tokens. Then clean states are restored at
the last subject token. With P the probability of the answer, averaged over draws of the noise and over facts:

    total effect      ATE = P(clean) - P(noise)
    indirect effect   AIE = P(noise, states restored) - P(noise)

Either the residual stream after one layer is restored, or the outputs of MLPs or attention in a window of layers around it.
Only facts that the model knows are used: its likeliest next token is the answer's first token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from jaxtyping import Float

from circuits.circuit import Node
from circuits.edges import EMBEDDING
from circuits.engine import LensEngine, choose
from circuits.interventions import Intervention, Recipe, Sweep, Variant
from circuits.models import Model
from circuits.prompts import CHANGED, PromptSet
from meridian.experiments import facts
from meridian.experiments.estimates import PromptEstimate, PromptSample
from meridian.experiments.reproduction import ReproducedRow, Reproduction
from results_io import UserError

if TYPE_CHECKING:
    from meridian.context import RunContext

TASK = "induction"  # a plan needs a task; no prompts of this one are drawn
CLEAN = Recipe("patch", source="clean")
StateKind = Literal["state", "mlp", "attention"]
STATE: Final = "state"
MLP: Final = "mlp"
ATTENTION: Final = "attention"
KINDS: tuple[StateKind, ...] = (STATE, MLP, ATTENTION)
FEWEST = 10  # with fewer known facts, all facts are used


def run(context: RunContext) -> None:
    """Choose the facts, trace them once for each draw of the noise, and print the table."""
    read = facts.read(context.settings["experiment"]["facts"])
    work = Reproduction(context, TASK, about={"facts": [vars(fact) for fact in read]}, drawn=False)
    settings = work.settings
    asked = _asked(work, read)
    numbers = work.measure("known", lambda bar: known(work.plan.model, asked))
    chosen, sentence = choose_facts(asked, numbers, work.identity.name)
    prompts = facts.prompt_set(chosen, int(work.plan.model.bridge.cfg.d_vocab))
    engine = choose(work.context.settings["engine"], work.plan.model, facts.subjects(chosen), prompts)
    for draw in range(settings["noise"]["draws"]):
        made = variants(engine.model.n_layers, settings, draw)
        work.measure(f"draw {draw}", lambda bar, made=made: traced(engine, prompts, made, bar))
    draws = [work.data[f"draw {draw}"] for draw in range(settings["noise"]["draws"])]
    sample = PromptSample(tuple(prompts.clusters), **settings["bootstrap"])
    work.finish(rows(draws, work.identity.n_layers, sample, settings), sentence)


def _asked(work: Reproduction, read: Sequence[facts.SubjectFact]) -> list[facts.TokenizedFact]:
    """The facts whose tokens the tokenizer knows. UserError if these are fewer than two."""
    found = facts.tokenized(read, work.plan.model.tokenizer, work.settings["bos"])
    if len(found) < 2:
        raise UserError(
            f"the tokenizer of {work.identity.name} knows the words of {len(found)} facts; use a model that reads natural "
            "language, or your own experiment.facts=<file>"
        )
    return found


# --- what is measured ------------------------------------------------------------------------------------------------


def known(model: Model, asked: Sequence[facts.TokenizedFact]) -> list[int]:
    """The indices of the facts that the model knows."""
    prompts = facts.prompt_set(asked, int(model.bridge.cfg.d_vocab))
    best = LensEngine(model, facts.subjects(asked)).end_logits(prompts).argmax(1)
    return [number for number, one in enumerate(asked) if int(best[number]) == one.answer]


def choose_facts(
    asked: Sequence[facts.TokenizedFact], known_: Sequence[int], name: str
) -> tuple[Sequence[facts.TokenizedFact], list[str]]:
    """(the known facts, or all facts if fewer than FEWEST are known; sentences that say which)."""
    if len(known_) >= min(FEWEST, len(asked)):
        return [asked[number] for number in known_], [f"{name} knows {len(known_)} of the {len(asked)} facts."]
    return asked, [
        f"{name} knows {len(known_)} of the {len(asked)} facts, so the numbers are about all of them. The published ones "
        "are about facts that the model knows."
    ]


def variants(n_layers: int, settings: Mapping[str, Any], draw: int) -> list[Variant]:
    """Clean, noise, and noise with each kind of state restored around each layer.

    A state is the residual stream after a layer; the last layer's is left out, because nothing reads it at the subject.
    """
    noise = settings["noise"]
    recipe = Recipe("noise", additive=True, scale=float(noise["scale"]), seed=int(noise["seed"]), draw=draw)
    hidden = Intervention((EMBEDDING,), recipe, (CHANGED,))
    made = [Variant("clean"), Variant("noise", (hidden,))]
    for kind in KINDS:
        for layer in range(n_layers - (kind == STATE)):
            restore = Intervention(restored(kind, layer, n_layers, settings["window"]), CLEAN, (facts.SUBJECT_LAST,))
            made.append(Variant(f"{kind} {layer}", (hidden, restore)))
    return made


def restored(kind: StateKind, layer: int, n_layers: int, window: int) -> tuple[Node, ...]:
    """The restored nodes: the stream after `layer`, or the outputs of `window` layers from layer - window // 2 on."""
    if kind == STATE:
        return (Node("residual", layer + 1),)
    first = layer - window // 2
    return tuple(Node(kind, one) for one in range(max(0, first), min(n_layers, first + window)))


def traced(engine: LensEngine, prompts: PromptSet, made: Sequence[Variant], bar: Any) -> dict[str, Any]:
    """{run: P(answer) of every prompt}."""
    bar.expect(len(made) * len(prompts))
    effects = engine.run(Sweep(tuple(made), probabilities=True), prompts, bar.advance)
    return dict(zip(effects.names, effects.probabilities[0], strict=True))


# --- the table -------------------------------------------------------------------------------------------------------


def total_effect(draws: Sequence[Mapping[str, Sequence[float]]]) -> Float[np.ndarray, " prompt"]:
    """P(clean) - P(noise), mean over draws."""
    return np.mean([np.subtract(one["clean"], one["noise"]) for one in draws], axis=0)


def indirect_effects(
    draws: Sequence[Mapping[str, Sequence[float]]], kind: StateKind, n_layers: int
) -> Float[np.ndarray, "layer prompt"]:
    """P(noise, restored) - P(noise) of each layer, mean over draws."""
    layers = range(n_layers - (kind == STATE))
    return np.mean([[np.subtract(one[f"{kind} {layer}"], one["noise"]) for layer in layers] for one in draws], axis=0)


def rows(
    draws: Sequence[Mapping[str, Sequence[float]]], n_layers: int, sample: PromptSample, settings: Mapping[str, Any]
) -> Iterator[ReproducedRow]:
    """The total effect; indirect effects at the published layer (in other models at the same depth), and the largest."""
    paper, gap = settings["paper"], settings["recipe_differences"]
    effects = {kind: indirect_effects(draws, kind, n_layers) for kind in KINDS}
    layer = min(round(paper["layer"] * n_layers / paper["layers"]), n_layers - 2)
    best = {kind: int(values.mean(1).argmax()) for kind, values in effects.items()}
    clean = np.mean([one["clean"] for one in draws], axis=0)

    def line(quantity: str, kind: StateKind, where: int, number: float | None, remark: str) -> ReproducedRow:
        return ReproducedRow(quantity.format(where), sample.mean(effects[kind][where]), number, True, remark)

    yield ReproducedRow("P(answer), clean", sample.mean(clean), None, True, gap["facts"])
    yield ReproducedRow("total effect (ATE)", sample.mean(total_effect(draws)), paper["total"], True, gap["facts"])
    yield line("AIE of the state that leaves layer {}", STATE, layer, paper["state"], gap["noise"])
    yield line("largest AIE of a state: layer {}", STATE, best[STATE], paper["state"], gap["peak"])
    place = PromptEstimate(float(best[STATE]), reason="a place")
    yield ReproducedRow(
        "layer of the largest AIE of a state", place, f"{paper['layer']} of {paper['layers']}", gap=gap["depth"]
    )
    yield line("largest AIE of MLPs: window around layer {}", MLP, best[MLP], paper["mlp"], gap["peak"])
    yield line("AIE of attention, the same window ({})", ATTENTION, best[MLP], paper["attention"], gap["noise"])
    yield ReproducedRow(
        "MLPs minus attention there",
        sample.mean(effects[MLP][best[MLP]] - effects[ATTENTION][best[MLP]]),
        paper["mlp"] - paper["attention"],
        True,
        gap["noise"],
    )
