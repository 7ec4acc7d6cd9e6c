"""Answers: reads the answers of OpenAI-compatible completions and chat completions into values."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from shown_text import first_of
from suites.models.base import FILTERED, Generation, Likelihood, Request
from suites.models.connection import EndpointError, count_of

SAFETY_STOPS = ("content_filter", "safety", "refusal")
FINISHES = {  # every other reason counts as "stop"
    **{"length": "length", "max_tokens": "length"},
    **dict.fromkeys(SAFETY_STOPS, FILTERED),
}
PROVENANCE = ("model", "system_fingerprint", "api_version")
# not `created`, which some servers set to the time of the request
DECLARED = ("version", "revision", "digest", "root")
VERSIONS_SHOWN = 3  # in a sentence
OTHER_FORM = "something in it is missing or of another kind"


@dataclass(frozen=True)
class Echo:
    """A prompt's tokens as the server read them: where each starts in the text, its log p (None for the first), and whether it is
    the likeliest."""

    offsets: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    greedy: tuple[bool, ...]

    def likelihood_after(self, context: str, continuation: str) -> Likelihood:
        """log p (nats) of the continuation; white space at the end of the context belongs to the continuation.

        EndpointError if the continuation has no token, or the server gives no number, as for the first token of a text.
        """
        start = len(context.rstrip())
        own = [place for place, offset in enumerate(self.offsets) if offset >= start]
        numbers = [number for place in own if (number := self.logprobs[place]) is not None]
        if not own or len(numbers) < len(own):
            begins = "begins the text, of whose first token there is no number"
            why = begins if own else "adds no token to its context"
            raise EndpointError(f"the choice {continuation!r} {why}; change the item")
        return Likelihood(sum(numbers), all(self.greedy[place] for place in own), len(own))


class FormError(ValueError):
    """An answer that lacks something; the text goes on after "the answer is not of the expected form: it ..."."""


@contextmanager
def expected_form(answer: Mapping[str, Any], quoted: Callable[[str], str]) -> Iterator[None]:
    """Within this context, an `answer` that lacks something or has the wrong form raises EndpointError.

    The error says what the answer states as its `error`, if it states one, as `quoted` shows it: short and without the key.
    """
    try:
        yield
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        problem = f"it {error}" if isinstance(error, FormError) else OTHER_FORM
        said = f", and its error says {quoted(stated)!r}" if (stated := _error_of(answer)) else ""
        raise EndpointError(
            f"the endpoint's answer is not of the expected form: {problem}{said}; check base_url and the server"
        ) from error


def _error_of(answer: Mapping[str, Any]) -> str:
    """What an answer states as its error; "" without one."""
    found = answer.get("error") or ""
    message = found.get("message") if isinstance(found, dict) else found
    return message if isinstance(message, str) else json.dumps(found)


def text_of(answer: Mapping[str, Any], chat: bool) -> str:
    """The text of an answer; "" if it has none to say, or the refusal in its place. FormError where the text is missing."""
    choices = answer.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    place = choice.get("message") if chat and isinstance(choice, dict) else choice
    if isinstance(place, dict):
        text = place.get("content") if chat else place.get("text")
        if chat and text in (None, ""):
            text = place.get("refusal")
            text = "" if text is None else text
        if isinstance(text, str):
            return text
    raise FormError(f"has no text at choices[0].{'message.content' if chat else 'text'}")


def logprobs_of(answer: Mapping[str, Any], chat: bool) -> tuple[float, ...] | None:
    """Log-probabilities of the output's tokens; None if the server does not report them."""
    found = answer["choices"][0].get("logprobs")
    if not found:
        return None
    values = [token["logprob"] for token in found.get("content") or ()] if chat else found.get("token_logprobs")
    if not values or any(value is None for value in values):
        return None
    return tuple(float(value) for value in values)


def reported_by(answer: Mapping[str, Any]) -> str | None:
    """The version that an answer names: its fingerprint, or else its model."""
    found = answer.get("system_fingerprint") or answer.get("model")
    return None if found is None else str(found)


def provenance_of(answer: Mapping[str, Any], chat: bool) -> dict[str, Any]:
    """What an answer says of its origin: model, system_fingerprint, api_version; `safety`: whether the provider stopped it."""
    choice = answer["choices"][0]
    refusal = bool(choice["message"].get("refusal")) if chat else False
    named = {name: None if (value := answer.get(name)) is None else str(value) for name in PROVENANCE}
    return {**named, "safety": refusal or choice.get("finish_reason") in SAFETY_STOPS}


def declared_by(models: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """The keys DECLARED about the version of the model `name` in a list of models, if they are texts; None without any."""
    found = next((one for one in models["data"] if one.get("id") == name), {})
    return {field: found[field] for field in DECLARED if isinstance(found.get(field), str) and found[field]} or None


def change_of_version(reported: Iterable[str | None]) -> str | None:
    """A sentence if a model's outputs report more than one version (`reported`, in order of the outputs); None otherwise."""
    counts = Counter(version for version in reported if version is not None)
    if len(counts) < 2:
        return None
    shown = first_of([f"{version} ({n})" for version, n in counts.items()], VERSIONS_SHOWN)
    return (
        f"the endpoint reported {len(counts)} versions with the outputs on record, {shown}: they may not be of one "
        "model; for outputs of the present version alone, run into another results folder"
    )


def generation(answer: Mapping[str, Any], chat: bool, request: Request, seconds: float) -> Generation:
    """The answer to a request, cut before the first stop text if the server did not."""
    text, finish = text_of(answer, chat), FINISHES.get(answer["choices"][0].get("finish_reason"), "stop")
    if (before := request.before_stop(text)) is not None and finish != FILTERED:
        text, finish = before, "stop"
    usage, logprobs = answer.get("usage"), logprobs_of(answer, chat)
    return Generation(
        text=text,
        finish=finish,
        tokens_in=count_of(usage, "prompt_tokens"),
        tokens_out=count_of(usage, "completion_tokens"),
        logprob=None if logprobs is None else sum(logprobs),
        reported=reported_by(answer),
        seconds=seconds,
        logprobs=logprobs,
        provenance=provenance_of(answer, chat),
    )


def echo_of(answer: Mapping[str, Any], prompt: str) -> Echo:
    """The prompt's tokens in an answer with echo and logprobs, without the tokens generated after them.

    FormError if the text does not begin with the prompt, or if there is not one number for each token.
    """
    choice = answer["choices"][0]
    found = choice["logprobs"]
    if not choice["text"].startswith(prompt):
        raise FormError("has a text that does not begin with the prompt")
    tokens, logprobs = found["tokens"], found["token_logprobs"]
    offsets = _offsets(found.get("text_offset"), tokens)
    best = found.get("top_logprobs") or [None] * len(tokens)
    if not len(tokens) == len(logprobs) == len(offsets) == len(best) or not tokens:
        raise FormError("has not one log-probability for each token")
    own = [place for place, offset in enumerate(offsets) if offset < len(prompt)]
    if len(own) > 1 and any(logprobs[place] is None for place in own[1:]):
        raise FormError("has tokens of the prompt without a log-probability")
    return Echo(
        tuple(offsets[place] for place in own),
        tuple(logprobs[place] for place in own),
        tuple(_is_likeliest(logprobs[place], best[place]) for place in own),
    )


def _offsets(stated: Sequence[int] | None, tokens: Sequence[str]) -> list[int]:
    """The offsets at which tokens start, relative to the first one."""
    if stated:
        return [offset - stated[0] for offset in stated]
    ends = [0]
    for token in tokens:
        ends.append(ends[-1] + len(token))
    return ends[:-1]


def _is_likeliest(logprob: float | None, best: Mapping[str, float] | None) -> bool:
    return logprob is not None and bool(best) and logprob >= max(best.values())
