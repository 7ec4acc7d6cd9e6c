"""Study: one model, one task, its prompts and an engine, the input of every measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jaxtyping import Float
from torch import Tensor

from circuits import prompts as prompt_sets
from circuits import tasks
from circuits.circuit import Circuit, Node, complement
from circuits.engine import LensEngine, choose
from circuits.interventions import Effects, Sweep
from circuits.models import Model
from circuits.prompts import PromptSet
from circuits.sequences import SequenceRows
from circuits.tasks.base import Task
from results_io import UserError
from shown_progress import NoProgress, Progress


@dataclass(frozen=True, eq=False)
class Study:
    """A model on a task.

    `prompts` are the scored prompts (evaluation and held-out, distinguished by `splits`). `discovery`, `groups` and the engine's
    reference prompts are disjoint from them. `groups` are discovery prompts on which no circuit was chosen (the discovery prompts
    themselves if there are no more). `sizes` and `seed` say how prompts were drawn, so that a companion task's study can be
    drawn in the same way. `settings` is the measurement section of the configuration. `done` caches the effects of sweeps on
    this model, so that measurements that need the same sweep run it once. `ahead` names cached sweeps that were run beside
    another one and have not been requested yet.
    """

    model: Model
    task: Task
    prompts: PromptSet
    discovery: PromptSet
    engine: LensEngine
    sizes: Mapping[str, int]
    seed: int
    groups: PromptSet | None = None
    circuit: Circuit | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = field(default_factory=NoProgress)
    done: dict[tuple[LensEngine, str, str], Effects] = field(default_factory=dict)
    ahead: set[tuple[LensEngine, str, str]] = field(default_factory=set)

    @property
    def claim(self) -> Circuit:
        """The circuit that the study is about. Raises UserError if there is none."""
        if self.circuit is None:
            raise UserError(f"the study of {self.task.name} on {self.model.name} has no circuit; give it one")
        return self.circuit

    @cached_property
    def every(self) -> tuple[Node, ...]:
        """All nodes in the claim's scope; with all of them ablated nothing of the scope is left."""
        return self.claim.in_scope(self.model.heads, self.model.n_layers)

    @cached_property
    def outside(self) -> frozenset[Node]:
        """The unclaimed nodes of the scope, which every measurement of the circuit alone ablates."""
        return frozenset(complement(self.claim.nodes, self.every))

    def run(
        self,
        sweep: Sweep,
        prompts: PromptSet | None = None,
        in_logits: bool = False,
        beside: Sweep | None = None,
    ) -> Effects:
        """Run a sweep on the scored prompts (or others of this task) and report progress.

        The effects are on the task's metric, or on the logit difference if `in_logits` (for what is additive in logits). `beside`
        is a sweep that will be requested later and shares most of its states with this one; both are run together.
        """
        prompts = self.prompts if prompts is None else prompts
        if self.task.metric == "sequence" and not in_logits:
            return self._run_sequences(sweep, prompts)
        by_probability = self.task.metric == "probability_difference"
        sweep = replace(sweep, probabilities=True) if by_probability else sweep
        effects = self._done(sweep, prompts, replace(beside, probabilities=sweep.probabilities) if beside else None)
        if in_logits or not by_probability:
            return effects
        answers, foils = effects.probabilities
        return replace(effects, logit_diff=answers - foils)

    def _done(self, sweep: Sweep, prompts: PromptSet, beside: Sweep | None) -> Effects:
        """The effects of a sweep, from the cache or a run; progress counts each sweep when it is requested."""
        key, pairs = (self.engine, sweep.sha256, prompts.sha256), len(sweep) * len(prompts)
        if key in self.done:
            if key in self.ahead:
                self.ahead.remove(key)
                self.progress.expect(pairs)
                self.progress.advance(pairs)
            return self.done[key]
        self.progress.expect(pairs)
        if beside is None:
            self.done[key] = self.engine.run(sweep, prompts, self.progress.advance)
            return self.done[key]
        left = pairs

        def advance(finished: int) -> None:
            nonlocal left
            own = min(left, finished)
            left -= own
            self.progress.advance(own)

        both = self.engine.run(replace(sweep, variants=(*sweep.variants, *beside.variants)), prompts, advance)
        other = (self.engine, beside.sha256, prompts.sha256)
        self.done[key] = both.part(slice(None, len(sweep)), sweep)
        self.done[other] = both.part(slice(len(sweep), None), beside)
        self.ahead.add(other)
        return self.done[key]

    def _run_sequences(self, sweep: Sweep, prompts: PromptSet) -> Effects:
        """`run` on the log-probabilities of whole answers and foils."""
        key = (self.engine, sweep.sha256, f"sequences of {prompts.sha256}")
        if key not in self.done:
            rows = SequenceRows(prompts)
            engine = self._sequence_engine
            self.progress.expect(len(sweep) * len(rows.expanded))
            found = engine.run(replace(sweep, probabilities=False), rows.expanded, self.progress.advance)
            self.done[key] = rows.fold(found, sweep.sha256)
        return self.done[key]

    @cached_property
    def _sequence_engine(self) -> LensEngine:
        """The engine with the reference prompts followed by their own answers and foils."""
        return self.engine.on(SequenceRows(self.engine.reference.prompts, reference=True).expanded)

    def subset(self, size: int, split: str = "evaluation") -> list[int]:
        """Indices of the `size` scored prompts of a split with the lowest hashes, whatever order they were drawn in."""
        return sorted(self.prompts.rows_of(split), key=lambda row: self.prompts.ids[row])[:size]

    def one_in(self, share: int, held_out: int | None = None) -> list[int]:
        """Indices of one in `share` scored prompts of every split (one in `held_out` of the held-out split), those with the
        lowest hashes."""
        splits = self.prompts.splits
        shares = {"held_out": held_out or share}
        return [
            row
            for split in dict.fromkeys(splits)
            for row in self.subset(round(splits.count(split) / shares.get(split, share)), split)
        ]

    def discovery_subset(self, size: int) -> PromptSet:
        """The `size` discovery prompts with the lowest hashes, whatever order they were drawn in."""
        ids = self.discovery.ids
        return self.discovery.select(sorted(range(len(ids)), key=ids.__getitem__)[:size])

    @property
    def grouping(self) -> PromptSet:
        """The prompts on which groups of heads are chosen, so that their effects on scored prompts are unbiased."""
        return self.groups if self.groups is not None else self.discovery

    def answer_direction(self, prompts: PromptSet) -> Float[Tensor, "prompt d_model"]:
        """Mean unembedding of the answers minus that of the foils, the direction along which the logit difference is read."""
        weights = self.model.unembedding.T
        return _mean_rows(weights, prompts.answers) - _mean_rows(weights, prompts.wrong)


def prepare(
    model: Model,
    task: Task,
    sizes: Mapping[str, int],
    seed: int,
    engine: Mapping[str, Any] | str | LensEngine = "auto",
    **rest: Any,
) -> Study:
    """Draw and tokenize the disjoint prompt sets of a task and set up the engine.

    `engine` is a name, settings, or an existing engine on the same model. `sizes` has evaluation, held_out, discovery and
    reference, and optionally groups. Without groups, or if a task's given prompts do not suffice, groups of heads are chosen on
    the discovery prompts. Raises UserError if prompts are not aligned, not distinct enough, or in two sets, or if there is no
    such engine.
    """
    drawn = prompt_sets.draw_examples(task, sizes, seed)
    drawn = {name: examples for name, examples in drawn.items() if examples or name != prompt_sets.GROUPS}
    sets = {name: prompt_sets.tokenize(task, examples, model.tokenizer, name) for name, examples in drawn.items()}
    for one in sets.values():
        _require_readable(model, one)
    scored = prompt_sets.join(sets["evaluation"], sets["held_out"])
    sets["evaluation"].require_disjoint(sets["held_out"])
    scored.require_disjoint(sets["discovery"])
    scored.require_disjoint(sets["reference"])
    reference = sets["reference"]
    engine = engine.on(reference) if isinstance(engine, LensEngine) else choose(engine, model, reference, scored)
    return Study(
        model, task, scored, sets["discovery"], engine, sizes, seed, groups=sets.get(prompt_sets.GROUPS), **rest
    )


def _require_readable(model: Model, prompts: PromptSet) -> None:
    """Raises UserError for a token without an embedding in the model, or a prompt longer than the model's positions."""
    words, positions = int(model.bridge.cfg.d_vocab), int(model.bridge.cfg.n_ctx)
    largest = max(int(ids.max()) for ids in (prompts.clean, prompts.corrupted, prompts.answers, prompts.wrong))
    if largest >= words:
        raise UserError(
            f"the tokenizer of {model.name} gives token {largest}, and the model has embeddings of {words}; use the tokenizer "
            "that the model was trained with"
        )
    longest = prompts.clean.shape[1]
    if longest > positions:
        raise UserError(
            f"a {prompts.split} prompt has {longest} tokens, and {model.name} reads at most {positions}; shorten it"
        )


def companion(study: Study, name: str, size: int) -> Study:
    """A smaller study of another task on the same model: `size` evaluation prompts, the same reference size.

    A companion from a file has as many prompts as its rows give.
    """
    own = (study.task.others or {}).get(name)
    task = own or tasks.get(name, study.task.vocabulary, bos=study.task.bos)
    sizes = {**study.sizes, "evaluation": size, "held_out": 1, "discovery": 1, prompt_sets.GROUPS: 0}
    return prepare(
        study.model,
        task,
        sizes,
        study.seed,
        study.engine,
        settings=study.settings,
        progress=study.progress,
    )


def require_count(settings: Mapping[str, Any], section: str, name: str) -> int:
    """The setting measurement.section.name; `section` may be dotted. Raises UserError unless it is a whole number from 1."""
    value: Any = settings
    for key in (*section.split("."), name):
        value = value[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"measurement.{section}.{name} is {value!r}; expected a whole number of at least 1")
    return value


def _mean_rows(weights: Float[Tensor, "vocabulary d_model"], ids: Tensor) -> Float[Tensor, "prompt d_model"]:
    real = ids >= 0
    rows = weights[ids.clamp(min=0)].masked_fill(~real[..., None], 0)  # 0 times a non-finite row is not 0
    return rows.sum(1) / real.float().sum(1, keepdim=True)
