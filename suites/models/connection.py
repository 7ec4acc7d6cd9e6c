"""Connection: one HTTP server asked with a budget, a limited number of retries, and a key that is never written down."""

from __future__ import annotations

import email.utils
import json
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from results_io import UserError

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # what may be different a moment later
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds: doubled from retry to retry, and never longer
SHOWN = 200  # characters of an answer that an error quotes


class EndpointError(UserError):
    """A request that got no answer to use: refused, out of budget, or still failing after all retries."""


class BudgetError(EndpointError):
    """A request that was not sent, as it might have passed the budget."""


@dataclass
class Budget:
    """The most requests that are sent (retries count) and the most tokens, read and written, that they may take.

    Tokens are reserved before a request is sent: `max_tokens` and one for every byte of the prompt, which is more than it has.
    What the server reports as used replaces the reservation; where it reports nothing the reservation stays.
    """

    max_requests: int
    max_tokens: int
    requests: int = 0
    tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, tokens: int) -> None:
        """BudgetError if the request might pass the budget; it is then not counted."""
        with self._lock:
            if self.requests >= self.max_requests:
                raise BudgetError(
                    f"the budget of max_requests={self.max_requests} is used; raise it and run again, what was answered is kept"
                )
            if self.tokens + tokens > self.max_tokens:
                raise BudgetError(
                    f"the budget of max_tokens_total={self.max_tokens} has {self.max_tokens - self.tokens} tokens left and the "
                    f"request may take {tokens}; raise it and run again: what was answered is kept"
                )
            self.requests += 1
            self.tokens += tokens

    def settle(self, reserved: int, used: int | None) -> None:
        """Put what was used in place of what was reserved."""
        if used is not None:
            with self._lock:
                self.tokens += used - reserved


@dataclass(frozen=True)
class Failure:
    """What was wrong, seconds to wait at least before the next try (None: there is no use in one), and whether the server may
    have worked all the same, so that its tokens count."""

    problem: str
    wait: float | None
    charged: bool = False


class Connection:
    """POST of JSON to a server under `base_url`.

    Retried with exponential backoff and full jitter: statuses in RETRIED, timeouts, broken connections, and answers that are no
    JSON object. A server's Retry-After is waited for; longer than LONGEST_WAIT is an error. The key comes from the environment
    variable `key_name` and is cut out of everything that an error quotes. UserError for an address that is none or holds a
    password, and for a variable that is not set.
    """

    def __init__(
        self,
        base_url: str,
        budget: Budget,
        key_name: str | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self.base_url = _address(base_url)
        self.budget = budget
        self.retries = retries
        self._key = _key(key_name)
        self._sleep = sleep
        self._jitter = random.Random()  # spreads clients out; outputs do not depend on it
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx.Client(headers=headers, timeout=timeout)

    def __repr__(self) -> str:
        return f"Connection({self.base_url!r})"

    def close(self) -> None:
        self._client.close()

    def post(self, path: str, body: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        """The server's answer; `tokens`: the most that it may take. EndpointError if there is none to use."""
        for attempt in range(self.retries + 1):
            self.budget.take(tokens)
            answer = self._try(path, body)
            if not isinstance(answer, Failure):
                self.budget.settle(tokens, _used(answer))
                return answer
            self.budget.settle(tokens, tokens if answer.charged else 0)
            if answer.wait is None or attempt == self.retries:
                break
            self._sleep(max(answer.wait, self._jitter.uniform(0, min(FIRST_WAIT * 2**attempt, LONGEST_WAIT))))
        tries = f" after {attempt + 1} tries" if attempt else ""
        raise EndpointError(f"{self.base_url}/{path} gave no answer{tries}: {self._clean(answer.problem)}")

    def _try(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | Failure:
        try:
            response = self._client.post(f"{self.base_url}/{path}", json=body)
        except httpx.TransportError as error:
            return Failure(f"{type(error).__name__} {error}".strip(), 0.0, charged=True)
        if response.status_code != httpx.codes.OK:
            wait = _retry_after(response)
            quoted = f"status {response.status_code}, {response.text[:SHOWN]}"
            if wait > LONGEST_WAIT:
                return Failure(f"{quoted}; it asks to wait {wait:.0f} s, longer than {LONGEST_WAIT:.0f} s", None)
            return Failure(quoted, wait if response.status_code in RETRIED else None)
        try:
            answer = response.json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            answer = None
        if not isinstance(answer, dict):
            return Failure(f"an answer that is not a JSON object, {response.text[:SHOWN]!r}", 0.0, charged=True)
        return answer

    def _clean(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _address(base_url: str) -> str:
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError) as error:
        raise UserError(
            f"base_url={base_url!r} is no address ({error}); write for example http://localhost:8000/v1"
        ) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"base_url={base_url!r} is no HTTP address; write for example http://localhost:8000/v1")
    if url.userinfo or url.query:
        raise UserError("base_url holds a password or a query, which records would show; name the key in api_key_env")
    return str(url).rstrip("/")


def _key(name: str | None) -> str | None:
    if not name:
        return None
    if not os.environ.get(name):
        raise UserError(
            f"the environment variable {name} that api_key_env names is not set; set it to the endpoint's key"
        )
    return os.environ[name]


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait: a number or a date; 0 if it asks for none."""
    value = response.headers.get("retry-after", "").strip()
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


def _used(answer: Mapping[str, Any]) -> int | None:
    """Tokens that an answer says it took; None if it does not say."""
    usage = answer.get("usage")
    used = usage.get("total_tokens") if isinstance(usage, dict) else None
    return used if isinstance(used, int) else None
