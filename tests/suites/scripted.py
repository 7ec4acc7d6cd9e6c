"""A model that says what a script says, and small suites, for tests of what is built around models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import results_io
from suites.item import Item, ItemVariant, SamplingLeg, Suite
from suites.models.base import Generation, Likelihood, Request


class ScriptedModel:
    """Answers from a dict prompt -> text, or prompt -> list with one text for each sample. What is not in it is an error.

    A key (system, earlier, prompt) goes before the prompt alone.
    """

    def __init__(
        self,
        script: Mapping[Any, Any],
        *,
        name: str = "scripted",
        capabilities: Sequence[str] = ("generation", "sampling", "seed"),
        identity: Mapping[str, Any] | None = None,
        unknown: Sequence[str] = (),
        before: Callable[[Request], Any] = lambda request: None,
        logprobs: Mapping[tuple[str, str], float] | None = None,
    ) -> None:
        self.script, self.name, self.capabilities = dict(script), name, frozenset(capabilities)
        self._identity = {"weights_sha256": "00" * 32, "backend": "scripted"} if identity is None else dict(identity)
        self.unknown, self.before, self.logprobs = unknown, before, dict(logprobs or {})
        self.heard: list[Request] = []
        self.batches: list[int] = []

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._identity

    def generate(self, requests: Sequence[Request], done: Callable[[int], Any]) -> list[Generation]:
        self.batches.append(len(requests))
        found = []
        for request in requests:
            self.before(request)
            self.heard.append(request)
            found.append(self._answer(request))
            done(1)
        return found

    def _answer(self, request: Request) -> Generation:
        text = self.script.get((request.system, request.earlier, request.prompt), self.script.get(request.prompt))
        if isinstance(text, list):
            text = text[request.sample]
        if text is None:
            return Generation("", "error", error="ConnectionError: no answer")
        # a confidence that depends on the text alone
        logprob = -int(hashlib.sha256(text.encode()).hexdigest()[:4], 16) / 65536
        return Generation(
            text, "stop", tokens_in=len(request.prompt.split()), tokens_out=len(text.split()), logprob=logprob
        )

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        return [Likelihood(self.logprobs[pair], greedy=False, n_tokens=len(pair[1].split())) for pair in pairs]

    def reads(self, text: str) -> bool:
        return not any(word in text for word in self.unknown)

    def same_tokens(self, first: str, second: str) -> bool | None:
        return first.split() == second.split()


def suite(items: Sequence[Item], **changes: Any) -> Suite:
    """A suite of mode A3 (no forbidden word) unless `changes` say otherwise; its hash is that of all that it holds."""
    declared: dict[str, Any] = {
        "id": "forbidden",
        "version": "1.0.0",
        "title": "No forbidden word",
        "description": "Outputs without a word",
        "mode": "A3",
        "contexts": ("extraction",),
        "requires": ("generation",),
        "legs": (SamplingLeg(),),
        "scorer": {"kind": "none"},
        "parameters": {"must_not": ["forbidden"]},
        "trace": {"strategy": "none", "reason": "a test"},
        "minimum": 20,
        "gate": None,
        **changes,
    }
    return Suite(
        **declared, items=tuple(items), sha256=results_io.sha256([repr(declared), [repr(item) for item in items]])
    )


def padded(originals: Mapping[str, str], paddings: Sequence[str], **changes: Any) -> Suite:
    """A suite of mode A10: every prompt -> answer, and the same prompt behind each padding."""
    items = []
    for place, (prompt, answer) in enumerate(originals.items()):
        items.append(Item(f"clean-{place}", prompt, answers=(answer,)))
        items += [
            Item(
                f"padded-{place}-{k}",
                padding + prompt,
                kind="invariance",
                answers=(answer,),
                variant=ItemVariant("padding", f"clean-{place}", {"padding": padding}),
            )
            for k, padding in enumerate(paddings)
        ]
    declared = {"id": "padding", "mode": "A10", "scorer": {"kind": "exact"}, "parameters": {}, **changes}
    return suite(items, **declared)
