"""Probe: finds out what an OpenAI-compatible endpoint can do by asking it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from results_io import UserError
from suites.models import answers
from suites.models.connection import CHAT, BudgetError, Connection, EndpointError, UnansweredError

Found = TypeVar("Found")

PROMPT = "One two three four five six"
DRAWN = 8  # tokens of the outputs that are compared
SEEDS = (1, 1, 2, 3)  # seeds work if the first two draws agree but not all four
COMPLETIONS, MODELS = "completions", "models"
MISSING = "status 404"  # of a route that a server does not have, which refuses nothing


@dataclass(frozen=True)
class Probe:
    """`echo`: it gives log-probabilities of a prompt's own tokens, which likelihoods need; `echo_tokens`: how many tokens it must
    then generate. `logprobs`: it gives those of generated tokens. `seed`: samples repeat with a seed. `deterministic`: two greedy
    outputs agree. `reported`: the version that its first answer names, and whether it is a `fingerprint`. `declared`: what its
    list of models says of the version, which holds for more than one answer. `greedy`: it accepts temperature 0; otherwise it
    samples in its own way. `why`: its error messages, by missing capability."""

    completions: bool
    chat: bool
    echo: bool
    echo_tokens: int
    logprobs: bool
    seed: bool
    deterministic: bool
    fingerprint: bool
    reported: str | None
    declared: Mapping[str, str] | None
    greedy: bool
    why: Mapping[str, str]


class Prober:
    """Asks one endpoint; every question is a request within the budget."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.why: dict[str, str] = {}
        self.unanswered: set[str] = set()  # questions that the server failed to answer, rather than refused

    def ask(self, chat: bool, max_tokens: int = 1, **settings: Any) -> dict[str, Any]:
        """One answer to PROMPT. EndpointError if there is none, or it is not of the expected form."""
        asked = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
        body = {"model": self.name, "max_tokens": max_tokens, "temperature": 0, **asked, **settings}
        answer = self.connection.post(CHAT if chat else COMPLETIONS, body, max_tokens + len(PROMPT.encode()))
        with answers.expected_form(answer, self.connection.quoted):
            answers.text_of(answer, chat)
        return answer

    def attempt(self, what: str, question: Callable[[], Found]) -> Found | None:
        """The result of `question`, or None if it fails, with the reason stored. BudgetError is raised."""
        try:
            return question()
        except BudgetError:
            raise
        except EndpointError as error:
            self.why[what] = str(error)
            if isinstance(error, UnansweredError):
                self.unanswered.add(what)
            return None

    def echo_tokens(self) -> int | None:
        """How many tokens the endpoint must generate to give the prompt's log-probabilities; None if it never gives them."""
        for count in (0, 1):  # some servers refuse to generate no token

            def echo(count: int = count) -> answers.Echo:
                answer = self.ask(False, count, echo=True, logprobs=1)
                with answers.expected_form(answer, self.connection.quoted):
                    return answers.echo_of(answer, PROMPT)

            if self.attempt("echo", echo) is not None:
                self.why.pop("echo", None)
                return count
        return None

    def declared(self) -> dict[str, str] | None:
        """What the list of models says of this model's version; None if there is no list or it says nothing."""
        try:
            models = self.connection.get(MODELS)
            with answers.expected_form(models, self.connection.quoted):
                return answers.declared_by(models, self.name)
        except BudgetError:
            raise
        except EndpointError:  # not every server has such a list
            return None

    def has_logprobs(self, chat: bool) -> bool:
        def read() -> tuple[float, ...] | None:
            answer = self.ask(chat, logprobs=True if chat else 1)
            with answers.expected_form(answer, self.connection.quoted):
                return answers.logprobs_of(answer, chat)

        return bool(self.attempt("logprobs", read))

    def repeats(self, chat: bool) -> bool:
        """Whether two greedy outputs agree."""
        return len({answers.text_of(self.ask(chat, DRAWN), chat) for _ in range(2)}) == 1

    def has_seed(self, chat: bool) -> bool:
        def outputs() -> list[str]:
            return [answers.text_of(self.ask(chat, DRAWN, temperature=1.0, seed=seed), chat) for seed in SEEDS]

        drawn = self.attempt("seed", outputs)
        return drawn is not None and drawn[0] == drawn[1] and len(set(drawn)) > 1


def probe(connection: Connection, name: str, chat: bool | None = None) -> Probe:
    """Ask the endpoint for everything, about a dozen short requests. UserError if it answers neither completions nor chat:
    UnansweredError where it may do so later.

    `chat`: use chat (True) or completions (False); None: chat if it works.
    """
    prober = Prober(connection, name)
    plain = prober.attempt("completions", lambda: prober.ask(False))
    chatted = prober.attempt("chat", lambda: prober.ask(True))
    first = (chatted if chat is not False else None) or (plain if chat is not True else None)
    if first is None:
        reasons = "; ".join(dict.fromkeys(prober.why.values())) or f"chat={chat} is not what it does"
        tried = {"chat"} if chat else {"completions"} if chat is False else {"chat", "completions"}
        refused = {what for what in tried & prober.why.keys() - prober.unanswered if MISSING not in prober.why[what]}
        error = UnansweredError if tried & prober.unanswered and not refused else UserError
        raise error(f"the endpoint {connection.base_url} does not answer as {name}: {reasons}")
    chat = first is chatted
    count = prober.echo_tokens() if plain else None
    return Probe(
        completions=plain is not None,
        chat=chat,
        echo=count is not None,
        echo_tokens=count or 0,
        logprobs=prober.has_logprobs(chat),
        seed=prober.has_seed(chat),
        deterministic=prober.repeats(chat),
        fingerprint=bool(first.get("system_fingerprint")),
        reported=answers.reported_by(first),
        declared=prober.declared(),
        greedy="temperature" not in connection.replaced(CHAT if chat else COMPLETIONS),
        why=prober.why,
    )
