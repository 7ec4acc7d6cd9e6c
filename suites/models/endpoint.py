"""Endpoint: a model behind any OpenAI-compatible HTTP server, as a model under test."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import results_io
from results_io import UserError
from suites.models import answers
from suites.models.base import Generation, Likelihood, Request
from suites.models.connection import CHAT, Budget, Connection
from suites.models.probe import COMPLETIONS, probe

SETTINGS = {  # what each must be, and its default (budgets have none: the user must choose them)
    "base_url": (str, None),
    "name": (str, None),
    "api_key_env": (str, ""),
    "max_requests": (int, None),
    "max_tokens_total": (int, None),
    "concurrency": (int, 4),
    "timeout": ((int, float), 60.0),
    "retries": (int, 5),
    "chat": (bool, "where it works"),
}
MOST_STOPS = 4  # the most stop texts that the interface accepts; texts are cut here in any case
SEEDS = 2**31  # servers take 32-bit integers


class Endpoint:
    """`settings`: kind, base_url (with /v1), name, api_key_env, max_requests, max_tokens_total, concurrency, timeout in seconds,
    retries, chat (null: chat where the endpoint does it, otherwise raw completions).

    Its capabilities are probed at the start, within the budget, and stored in `probe`. It has "logprobs" only if completions echo
    a prompt's log-probabilities. The key is read from the environment variable that api_key_env names and is in no record.
    UserError for wrong settings and for an endpoint that does not answer.
    """

    def __init__(self, settings: Mapping[str, Any], sleep: Callable[[float], Any] = time.sleep) -> None:
        values = checked(settings)
        self.name = values["name"]
        self.budget = Budget(values["max_requests"], values["max_tokens_total"])
        self.connection = Connection(
            values["base_url"], self.budget, values["api_key_env"], values["timeout"], values["retries"], sleep
        )
        self.concurrency = values["concurrency"]
        chat = values["chat"]
        self.probe = probe(self.connection, self.name, chat if isinstance(chat, bool) else None)
        self.reported = {self.probe.reported}
        self._known: dict[tuple[str, str], Likelihood] = {}

    @property
    def capabilities(self) -> frozenset[str]:
        found = {"logprobs": self.probe.echo, "chat": self.probe.chat, "seed": self.probe.seed}
        return frozenset({"generation", "sampling", *(name for name, has in found.items() if has)})

    @property
    def identity(self) -> Mapping[str, Any]:
        """What is asked, where and how, and what the server declares of the model.

        The version that an answer reports, and properties that only samples show (the seed), are left out. With several servers
        behind one address they change from answer to answer, and a stopped run could not be resumed. Each generation records its
        own version.
        """
        return {
            "kind": "endpoint",
            "base_url": self.connection.base_url,
            "requested": self.name,
            "declared": self.probe.declared,
            "intervention": None,
            "backend": "chat completions" if self.probe.chat else "completions",
            "greedy": "temperature 0" if self.probe.greedy else "the server's own temperature",
        }

    def reads(self, text: str) -> bool:
        """True: an endpoint's vocabulary is unknown, and current ones represent every text."""
        return True

    def same_tokens(self, first: str, second: str) -> bool | None:
        return True if first == second else None

    def close(self) -> None:
        self.connection.close()

    def generate(
        self, requests: Sequence[Request], done: Callable[[int], Any] = lambda count: None
    ) -> list[Generation]:
        """As ModelUnderTest. A request beyond the budget, or without an answer after all retries, gives an error by itself."""
        return self._each(self._generation, requests, done)

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """As ModelUnderTest, with contexts as plain texts. Known pairs are not asked again, even after an error.

        UserError without the capability; EndpointError for a pair without an answer, after all other pairs were asked.
        """
        if not self.probe.echo:
            raise UserError(
                f"the endpoint gives no log-probabilities of prompts ({self.probe.why.get('echo', 'it has no completions')}), so "
                "likelihoods do not apply to it; run suites that generate"
            )
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in self._known]
        errors = [error for error in self._each(self._learn, missing, lambda count: None) if error is not None]
        if errors:
            raise errors[0]
        return [self._known[pair] for pair in pairs]

    def _each(self, work: Callable[[Any], Any], items: Sequence[Any], done: Callable[[int], Any]) -> list[Any]:
        """work(item) of every item, `concurrency` at a time, in order."""
        with ThreadPoolExecutor(self.concurrency) as pool:
            futures = [pool.submit(work, item) for item in items]
            try:
                for future in as_completed(futures):
                    future.result()
                    done(1)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return [future.result() for future in futures]

    def _generation(self, request: Request) -> Generation:
        start = time.perf_counter()
        try:
            path, body = self._body(request)
            told = _bytes(request.prompt, request.system, *(text for _, text in request.earlier))
            answer = self.connection.post(path, body, request.max_tokens + told)
            with answers.expected_form(answer, self.connection.quoted):
                found = answers.generation(answer, self.probe.chat, request, time.perf_counter() - start)
        except UserError as error:
            return Generation("", "error", error=str(error), seconds=time.perf_counter() - start)
        self.reported.add(found.reported)
        return found

    def _body(self, request: Request) -> tuple[str, dict[str, Any]]:
        """(path, JSON) of a request. UserError for a system text or earlier turns if the endpoint has no chat."""
        body: dict[str, Any] = {"model": self.name, "max_tokens": request.max_tokens}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stop:
            body["stop"] = list(request.stop[:MOST_STOPS])
        if self.probe.seed:
            # another one for each text: draws of two wordings with one seed would share their noise
            drawn = [request.seed, request.sample, request.messages]
            body["seed"] = int(results_io.sha256(drawn), 16) % SEEDS
        if self.probe.logprobs:
            body["logprobs"] = True if self.probe.chat else 1
        if not self.probe.chat:
            if request.system or request.earlier:
                what = "a system text" if request.system else "earlier turns"
                raise UserError(f"the request has {what} and the endpoint does no chat; write them into the prompt")
            return COMPLETIONS, {**body, "prompt": request.prompt}
        return CHAT, {**body, "messages": request.messages}

    def _learn(self, pair: tuple[str, str]) -> UserError | None:
        """Add the likelihood of one pair to the known ones; returns the error if there is none."""
        prompt, count = "".join(pair), self.probe.echo_tokens
        body = {
            "model": self.name,
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0,
            "echo": True,
            "logprobs": 1,
        }
        try:
            answer = self.connection.post(COMPLETIONS, body, count + _bytes(prompt))
            with answers.expected_form(answer, self.connection.quoted):
                echo = answers.echo_of(answer, prompt)
            self._known[pair] = echo.likelihood_after(*pair)
        except UserError as error:
            return error
        return None


def checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings completed with defaults. UserError for one that is unknown, missing, or of the wrong kind."""
    unknown = sorted(set(settings) - {*SETTINGS, "kind"})
    if unknown:
        raise UserError(f"endpoint setting {unknown[0]!r} is unknown; use {', '.join(SETTINGS)}")
    found = {}
    for name, (kind, default) in SETTINGS.items():
        value = settings.get(name)
        if value is None:
            if default is None:
                raise UserError(f"an endpoint needs {name}; add it to the model's settings")
            found[name] = default
            continue
        wrong = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
        least = 0 if name == "retries" else 1e-3
        if wrong or (kind not in (str, bool) and value < least):
            kinds = {str: "a text", bool: "true or false", int: "a whole number above 0"}
            expected = "a whole number from 0" if name == "retries" else kinds.get(kind, "a number above 0")
            raise UserError(f"endpoint setting {name}={value!r} is wrong; expected {expected}")
        found[name] = value
    return found


def _bytes(*texts: str | None) -> int:
    """Number of UTF-8 bytes of texts, an upper bound of their tokens."""
    return sum(len(text.encode()) for text in texts if text)
