"""What a model under test is asked and answers, whether it runs here or behind an endpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

CAPABILITIES = ("generation", "sampling", "logprobs", "chat", "seed", "activations")


def conversation(prompt: str, system: str | None, earlier: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Chat messages: a system text if there is one, the earlier turns, and the prompt as the user's."""
    before = [] if not system else [{"role": "system", "content": system}]
    return [*before, *({"role": role, "content": text} for role, text in earlier), {"role": "user", "content": prompt}]


@dataclass(frozen=True)
class Request:
    """One generation asked for. `seed` makes a sampled output repeatable where the model can; `sample` numbers the draws.

    `earlier`: (role, text) of the user's and assistant's turns that come before `prompt`, for models of the capability "chat".
    `temperature` None leaves it to the model: an endpoint is sent none, a local model draws at 1.
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
        """What of an output stands before its first stop text; None without a stop text in it."""
        places = [place for stop in self.stop if stop and (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else None


@dataclass(frozen=True)
class Generation:
    """One output: the text before any stop text, token counts, and why it ended ("stop", "length" or "error").

    `logprob`: summed over the output's tokens, nats; None where the model does not say; `logprobs` of each. `tokens` are the
    output's ids where they are known. `reported`: version or fingerprint that an endpoint gave with it; `provenance`: all that
    it says of itself (model, system_fingerprint, api_version, safety: that its provider stopped the output).
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
    """log p of a continuation given a context (nats), whether it is what greedy decoding gives, and its sizes.

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
        """Of CAPABILITIES, those that it has."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """What its outputs depend on: hashes of weights, tokenizer and intervention, or an endpoint's address and declared
        version; backend, dtype, versions. Part of every cache key and every record."""
        ...

    def generate(self, requests: Sequence[Request], done: Callable[[int], Any]) -> list[Generation]:
        """One generation for each request, in order. `done(k)` hears of every k more that are finished.

        A request that fails is a Generation with `finish` "error"; nothing is raised for it.
        """
        ...

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """log p(continuation | context) of each (context, continuation). Needs the capability "logprobs"."""
        ...

    def reads(self, text: str) -> bool:
        """False if the model's vocabulary has no way to write `text` (an unknown-word token would stand in for a part)."""
        ...

    def same_tokens(self, first: str, second: str) -> bool | None:
        """Whether two texts are the same tokens to the model; None where nobody can know."""
        ...
