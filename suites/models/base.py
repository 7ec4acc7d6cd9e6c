"""The interface of a model under test, which runs here or behind an endpoint: requests, outputs and likelihoods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

FILTERED = "filtered"  # the finish of an output that the provider stopped for safety
CAPABILITIES = ("generation", "sampling", "logprobs", "chat", "seed", "activations")


def conversation(prompt: str, system: str | None, earlier: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Chat messages: a system text if there is one, the earlier turns, and the prompt as the user's."""
    before = [] if not system else [{"role": "system", "content": system}]
    return [*before, *({"role": role, "content": text} for role, text in earlier), {"role": "user", "content": prompt}]


@dataclass(frozen=True)
class Request:
    """A request for one generation. `seed` makes sampling repeatable if the model supports it; `sample` numbers the draws.

    `earlier`: (role, text) of the user's and assistant's turns before `prompt`, for models with the capability "chat".
    `temperature` None leaves it to the model: an endpoint gets no temperature, a local model samples at 1.
    """

    prompt: str
    system: str | None = None
    max_tokens: int = 8
    temperature: float | None = 0.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    sample: int = 0
    earlier: tuple[tuple[str, str], ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        """The request as chat messages: the system's, the earlier turns, the prompt."""
        return conversation(self.prompt, self.system, self.earlier)

    @property
    def sampling(self) -> dict[str, Any]:
        """How the output is drawn, as data."""
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "stop": list(self.stop),
            "seed": self.seed,
        }

    def before_stop(self, text: str) -> str | None:
        """The part of an output before its first stop text; None if it has no stop text."""
        places = [place for stop in self.stop if stop and (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else None


@dataclass(frozen=True)
class Generation:
    """One output: the text before any stop text, token counts, and why it ended ("stop", "length", FILTERED or "error").

    `logprob`: summed over the output's tokens, nats; None if the model does not report it; `logprobs`: of each token. `tokens`:
    the output's ids, if known. `reported`: version or fingerprint that an endpoint gave with the output; `provenance`: all that
    it says of its origin (model, system_fingerprint, api_version; safety: whether the provider stopped the output).
    """

    text: str
    finish: str
    tokens_in: int | None = None
    tokens_out: int | None = None
    logprob: float | None = None
    tokens: tuple[int, ...] | None = None
    error: str | None = None
    reported: str | None = None
    seconds: float = 0.0
    logprobs: tuple[float, ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Likelihood:
    """log p of a continuation given a context (nats), whether greedy decoding gives it, and its number of tokens.

    `truncated`: tokens dropped from the left of the context because it was longer than the model's.
    """

    logprob: float
    greedy: bool
    n_tokens: int
    truncated: int = 0


class ModelUnderTest(Protocol):
    """A model that suites run on."""

    name: str

    @property
    def capabilities(self) -> frozenset[str]:
        """The subset of CAPABILITIES that it has."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its outputs depend on: hashes of weights, tokenizer and intervention, backend, dtype and library versions; or an
        endpoint's address and declared version. It is part of every cache key and every record."""
        ...

    def generate(self, requests: Sequence[Request], done: Callable[[int], Any]) -> list[Generation]:
        """One generation for each request, in order. `done(k)` is called whenever k more are finished.

        A failed request gives a Generation with `finish` "error" and raises nothing.
        """
        ...

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """log p(continuation | context) of each (context, continuation). Needs the capability "logprobs"."""
        ...

    def reads(self, text: str) -> bool:
        """False if the model's vocabulary cannot represent `text` (a part would become an unknown-word token)."""
        ...

    def same_tokens(self, first: str, second: str) -> bool | None:
        """Whether the model's tokenizer encodes two texts as the same tokens; None if that is unknown."""
        ...
