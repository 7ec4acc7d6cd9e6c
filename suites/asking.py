"""Ask every question of a run once. Known outputs come from the record; each chunk is on disk before the next is asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shown_progress import NoProgress, Progress
from suites.item import Item, SamplingLeg, Suite
from suites.log import cache
from suites.log.cache import Cache
from suites.log.generations import GenerationLog, Slot, to_generation
from suites.models.base import ModelUnderTest, Request


@contextlib.contextmanager
def no_bar(title: str) -> Iterator[Progress]:
    """A progress bar that shows nothing."""
    yield NoProgress()


@dataclass(frozen=True)
class PendingRequest:
    """A request, and the slot of the suite that its output is for."""

    suite: Suite
    slot: Slot
    request: Request


def questions(
    suite: Suite, legs: Sequence[SamplingLeg], seed: int, items: Sequence[Item] | None = None
) -> list[PendingRequest]:
    """One question for each item, leg and sample. Greedy legs get seed 0, since a seed changes nothing there."""
    found = []
    for item in suite.items if items is None else items:
        for leg in legs:
            drawn = seed if leg.temperature != 0 else 0
            for sample in range(leg.samples):
                sampling = (leg.max_tokens, leg.temperature, leg.stop, drawn, sample)
                request = Request(item.prompt, item.system, *sampling, item.earlier)
                found.append(PendingRequest(suite, Slot(item.id, leg.name, sample), request))
    return found


class Asker:
    """Asks one model, with its record and cache."""

    def __init__(self, model: ModelUnderTest, log: GenerationLog, store: Cache, chunk: int) -> None:
        self.model, self.log, self.store, self.chunk = model, log, store, chunk
        self.asked = 0  # requests that this model was really asked, in this run
        self._requests: set[Request] = set()
        self._known = {key: to_generation(line) for key, line in log.answered().items()}

    @property
    def reused(self) -> int:
        """Requests whose output was known from the record or the cache."""
        return len(self._requests) - self.asked

    def ask(self, asked: Sequence[PendingRequest], bar: Progress) -> None:
        """Record the output of every question that has none yet, or whose call failed.

        Identical requests are asked once. Chunks are cut from all requests, known or not. A resumed run therefore asks the same
        requests together as an uninterrupted one: with some models the last digits of an output depend on its batch.
        """
        wanted: dict[Request, list[PendingRequest]] = {}
        for question in asked:
            wanted.setdefault(question.request, []).append(question)
        bar.expect(len(wanted))
        requests = list(wanted)
        self._requests |= wanted.keys()
        for start in range(0, len(requests), self.chunk):
            self._ask_chunk({request: wanted[request] for request in requests[start : start + self.chunk]}, bar)

    def _ask_chunk(self, wanted: dict[Request, list[PendingRequest]], bar: Progress) -> None:
        open_ = {request: [q for q in slots if not self._has(q)] for request, slots in wanted.items()}
        keys = {request: cache.key(self.log.identity, request) for request, slots in open_.items() if slots}
        answers = {
            request: known
            for request, key in keys.items()
            if (known := self._known.get(key) or self.store.get(self.log.identity, request)) is not None
        }
        bar.advance(len(wanted) - len(keys) + len(answers))
        new = [request for request in keys if request not in answers]
        outputs = self.model.generate(new, bar.advance) if new else []
        if len(outputs) != len(new):  # a missing output must not shift the others to other prompts
            raise ValueError(f"{self.model.name} gave {len(outputs)} generations for {len(new)} requests")
        fresh = dict(zip(new, outputs, strict=True))
        # the cache first: if the run dies between the two writes, the resumed run knows the whole chunk
        self.store.put(self.log.identity, fresh.items())
        self.asked += len(new)
        lines = [
            self.log.generation(
                q.suite, q.slot, request, generation, keys[request], cached=request not in fresh or place > 0
            )
            for request, generation in (answers | fresh).items()
            for place, q in enumerate(open_[request])
        ]
        self._known |= {keys[request]: one for request, one in fresh.items() if one.error is None}
        if lines:
            self.log.add(lines)

    def _has(self, question: PendingRequest) -> bool:
        """Whether the log has an output for the question; a failed call is none."""
        line = self.log.run_of(question.suite).generations.get(question.slot)
        return line is not None and line["error"] is None
