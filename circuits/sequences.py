"""Answers of several tokens: their log-probability under an intervention, summed over their tokens.

    log p(a_1 ... a_n | prompt) = sum over k of log p(a_k | prompt, a_1 ... a_k-1)

An engine reads logits at one position of a prompt. So each prompt becomes one row for each token of each of its answers and
foils: the prompt followed by the preceding tokens of the sequence, compared with the whole vocabulary. Interventions act on
these tokens as on those of the prompt. Reference prompts are followed by their own answers (or by foils, if only these are long
enough), for scored answers and foils alike: a mean that differed between the two would reveal the answer. A sequence takes its
means and donors from sequences at least as long as itself, so that all its rows have the same donor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float

from circuits.interventions import Effects
from circuits.prompts import PADDING, PromptSet

Side = Literal["answers", "wrong"]
Sided = tuple[Side, int, tuple[int, ...]]  # side, index on that side, token ids of the sequence


@dataclass(frozen=True)
class SequenceToken:
    """Token `step` of a sequence on `side` of prompt `prompt`: the sequence's index on its side, and its ids.

    For reference prompts, longer sequences stand in for shorter ones.
    """

    prompt: int
    side: Side
    number: int
    step: int
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class SequenceRows:
    """The rows on which the sequences of `prompts` are scored, or for `reference` prompts the corresponding reference rows.

    Every prompt has at least one answer and one foil.
    """

    prompts: PromptSet
    reference: bool = False

    @cached_property
    def rows(self) -> tuple[SequenceToken, ...]:
        return tuple(self._rows())

    def _rows(self) -> Iterator[SequenceToken]:
        for prompt, sequences in enumerate(self.prompts.sequences):
            sides: tuple[tuple[Side, tuple[tuple[int, ...], ...]], ...]
            sides = (("answers", sequences.answers), ("wrong", sequences.wrong))
            every: list[Sided] = [(side, number, ids) for side, own in sides for number, ids in enumerate(own)]
            chosen = self._longer_stand_in(every) if self.reference else every
            for side, number, ids in chosen:
                yield from (SequenceToken(prompt, side, number, step, ids) for step in range(len(ids)))

    @staticmethod
    def _longer_stand_in(every: Sequence[Sided]) -> Iterator[Sided]:
        """For every length, the first sequence that has it, cut to this length, so that a prompt counts once."""
        for length in range(1, max(len(ids) for _, _, ids in every) + 1):
            side, number, ids = next(one for one in every if len(one[2]) >= length)
            yield side, number, ids[:length]

    @cached_property
    def expanded(self) -> PromptSet:
        """A prompt set with one prompt per row and no foils; templates also name the sequence's length and the step."""
        old, rows = self.prompts, self.rows
        longest = max(row.step for row in rows)
        width = old.clean.shape[1] + longest
        where = [row.prompt for row in rows]

        def tokens(base: torch.Tensor) -> torch.Tensor:
            wide = torch.nn.functional.pad(base, (0, longest))[where]
            for at, row in enumerate(rows):
                end = int(old.end[row.prompt]) + 1
                wide[at, end : end + row.step] = torch.tensor(row.ids[: row.step], dtype=wide.dtype)
            return wide[:, :width]

        return PromptSet(
            task=f"{old.task}, sequences",
            split=old.split,
            clean=tokens(old.clean),
            corrupted=tokens(old.corrupted),
            end=torch.tensor([int(old.end[row.prompt]) + row.step for row in rows]),
            answers=torch.tensor([[row.ids[row.step]] for row in rows]),
            wrong=torch.full((len(rows), 1), PADDING),
            templates=tuple(f"{old.templates[r.prompt]}, token {r.step + 1} of {len(r.ids)}" for r in rows),
            clusters=tuple(old.clusters[at] for at in where),
            positions={role: places[where] for role, places in old.positions.items()},
            ids=tuple(old.ids[at] for at in where),
            splits=tuple(old.splits[at] for at in where),
            factors={name: tuple(values[at] for at in where) for name, values in old.factors.items()},
            bos=old.bos,
        )

    def fold(self, effects: Effects, sweep_sha256: str) -> Effects:
        """Effects on the prompts from those on the rows: mean log-probability of answers minus that of foils, in nats.

        `correct`: the answers are more probable than the foils. `answer_probability` and `foil_probability` are sums over the
        answers and over the foils.
        """
        answers, foils = self._sums(effects.logit_diff, "answers"), self._sums(effects.logit_diff, "wrong")
        mass, other = (np.logaddexp.reduce(np.where(np.isnan(side), -np.inf, side), 2) for side in (answers, foils))
        kind = effects.logit_diff.dtype
        return Effects(
            names=effects.names,
            logit_diff=(np.nanmean(answers, 2) - np.nanmean(foils, 2)).astype(kind),
            correct=mass > other,
            answer_probability=np.exp(mass).astype(kind),
            foil_probability=np.exp(other).astype(kind),
            sweep_sha256=sweep_sha256,
            prompts_sha256=self.prompts.sha256,
        )

    def _sums(
        self, log_p: Float[np.ndarray, "variant row"], side: Side
    ) -> Float[np.ndarray, "variant prompt sequence"]:
        """Log-probability of every sequence on one side; NaN where a prompt has fewer sequences than others."""
        most = max(len(getattr(sequences, side)) for sequences in self.prompts.sequences)
        sums = np.full((len(log_p), len(self.prompts), most), np.nan)
        for at, row in enumerate(self.rows):
            if row.side == side:
                before = 0.0 if row.step == 0 else sums[:, row.prompt, row.number]
                sums[:, row.prompt, row.number] = before + log_p[:, at]
        return sums
