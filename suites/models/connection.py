"""Connection: requests to one HTTP server, with a budget, a limited number of retries, and a key that is never recorded."""

from __future__ import annotations

import concurrent.futures
import contextlib
import email.utils
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import httpx

from results_io import UserError
from suites.models.api_key import ApiKey

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})  # statuses that a later try may not have
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds; the wait doubles with each retry up to the longest
SHOWN = 200  # characters of an answer that an error quotes
MOST_BYTES = 8 * 2**20  # read of an answer: log-probabilities of about 50,000 tokens
REFUSALS = frozenset({400, 422})  # statuses with which servers refuse a parameter
REPLACEABLE = ("max_tokens", "temperature", "stop")
CHAT = "chat/completions"
LAST_PORT = 65_535
EXAMPLE = "http://localhost:8000/v1"
SYSTEM_NUMBER = re.compile(
    r"^(\[(Errno -?\d+|[A-Z]+: \w+)\] )+"
)  # before a system's words: "[Errno 111] Connection refused"
CLOSED = re.compile(r"closed|disconnected|reset")  # of a connection that ended within an answer, in httpx's words
MOST_TOKENS = 10**12  # of one answer; a larger count is none
NOT_RECORDED = re.compile(r"\?|(^|//)[^/?#]*@|//[^/:]*:(?!\d+/).*@")  # a query, or user:password@; a path may hold an @
Trace = Callable[[str, Mapping[str, Any]], None]  # called by httpx with an event of a request and its data
Answer = tuple[httpx.Response, bytes]


class EndpointError(UserError):
    """A request without a usable answer: refused, out of budget, or still failing after all retries."""


class UnansweredError(EndpointError):
    """A request that a server did not answer, or could not just then: another try later may do."""


class BudgetError(EndpointError):
    """A request that was not sent because it might have exceeded the budget."""


@dataclass
class Budget:
    """Limits on the number of requests (retries count) and on their tokens, read and written.

    Before a request is sent, an upper bound of its tokens is reserved: `max_tokens` plus one per byte of the prompt. The usage
    that the server reports replaces the reservation; without a report the reservation stays.
    """

    max_requests: int
    max_tokens: int
    requests: int = 0
    tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def take(self, tokens: int) -> None:
        """Count a request. BudgetError if it might exceed the budget; it is then not counted."""
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
        """Replace the reserved tokens by the used ones; None keeps the reservation."""
        if used is not None:
            with self._lock:
                self.tokens += used - reserved


@dataclass(frozen=True)
class Failure:
    """`problem`: what was wrong. `wait`: at least so many seconds before the next try; None: another try is of no use.
    `charged`: the server may have worked all the same, so its tokens count. `refused`: parameters that a refusal names.
    `passing`: it may be another answer later on, whether or not it is worth waiting for."""

    problem: str
    wait: float | None
    charged: bool = False
    refused: frozenset[str] = frozenset()
    passing: bool = False


class Exchange:
    """One request in its own thread, which is abandoned after `seconds`, whatever it is waiting for.

    httpx limits the time for each arriving piece and for each address of a name, but not the time of the name lookup or of the
    whole answer: a server that sends one header a second never exceeds its limits. Here the caller waits at most `seconds`. Then
    the socket is shut down, which ends the thread at once. A thread in a name lookup ends when the system's resolver gives up,
    and one that is connecting when httpx's own limit is over; neither sends a request after that.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._sockets: list[socket.socket] = []
        self._over = False
        self._lock = threading.Lock()

    def result(self, ask: Callable[[Trace], Answer]) -> Answer:
        """What `ask` returns or raises; it must pass its argument to httpx as "trace".

        httpx.ConnectTimeout if the time is over before there is a connection, ReadTimeout if it is over afterwards.
        """
        asked: Future[Answer] = Future()
        threading.Thread(target=self._run, args=(asked, ask), daemon=True).start()
        try:
            done = concurrent.futures.wait([asked], self.seconds).done
            # httpx's own limit is as long, and may be over first
            if not done or isinstance(asked.exception(), httpx.TimeoutException):
                raise self._timed_out()
            return asked.result()
        finally:
            self._end()

    def _run(self, asked: Future[Answer], ask: Callable[[Trace], Answer]) -> None:
        try:
            asked.set_result(ask(self._connected))
        except BaseException as error:  # raised in the caller's thread
            asked.set_exception(error)

    def _timed_out(self) -> httpx.TimeoutException:
        with self._lock:
            connected = bool(self._sockets)
        if connected:
            return httpx.ReadTimeout(f"no whole answer in {self.seconds:g} s")
        return httpx.ConnectTimeout(f"no connection in {self.seconds:g} s")

    def _connected(self, event: str, about: Mapping[str, Any]) -> None:
        """Trace function: keeps a second handle of the connected socket, since encryption takes over the first one."""
        if not event.endswith((".connect_tcp.complete", ".connect_unix_socket.complete")):
            return
        with self._lock:
            self._sockets.append(about["return_value"].get_extra_info("socket").dup())
        if self._over:
            self._end()

    def _end(self) -> None:
        """Shut down all sockets, also those connected later. This works below encryption and for all handles of a socket."""
        with self._lock:
            self._over = True
            for one in self._sockets:
                with contextlib.suppress(OSError):  # the other side has closed it already
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._sockets.clear()


class Connection:
    """JSON to and from a server under `base_url`.

    Retried with exponential backoff and full jitter: statuses in RETRIED, timeouts, broken connections, and answers that are no
    JSON object. A server's Retry-After is obeyed, but one longer than LONGEST_WAIT is an error. `timeout` seconds limit an answer
    from the name lookup to its last byte, so a call ends within `timeout` x (`retries` + 1) plus the waits in between. An answer
    longer than MOST_BYTES is a failure that is not retried.

    If a refusal names a parameter that can be sent in another form (`replaced`), the request is sent again in that form, and so
    are all later ones to that path. A parameter that the path accepted before is never replaced.

    The key comes from the environment variable `key_name` and is removed from everything that comes back. UserError for a
    `base_url` that is no HTTP address or holds a password, a query or the key, and as `ApiKey.of_variable`.
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
        self._key = ApiKey.of_variable(key_name)
        self.base_url = _address(base_url, self._key)
        self.budget = budget
        self.retries = retries
        self.timeout = timeout
        self._sleep = sleep
        self._jitter = random.Random()  # spreads clients out; outputs do not depend on it
        # Each request has its own connection, so that it can be cut alone. A limit of 0 kept connections does not suffice: one
        # that has just become idle can be given to another request before the pool closes it, which then loses its connection.
        self._client = httpx.Client(
            headers={**self._key.headers, "Connection": "close"},
            timeout=timeout,
            limits=httpx.Limits(max_connections=None),
        )
        self._replaced: dict[str, frozenset[str]] = {}  # by path: parameters that it accepts only in another form
        self._settled: set[tuple[str, str]] = set()  # (path, parameter) accepted as it is, or refused in both forms

    def __repr__(self) -> str:
        return f"Connection({self.base_url!r})"

    def close(self) -> None:
        self._client.close()

    def replaced(self, path: str) -> frozenset[str]:
        """Parameters that the server refuses at `path`; requests have them in another form or not at all."""
        return self._replaced.get(path, frozenset())

    def get(self, path: str) -> dict[str, Any]:
        """The server's JSON object under `path`; EndpointError as `post`."""
        answer = self._ask("GET", path, None, 0)
        return answer if not isinstance(answer, Failure) else self._fail(path, answer)

    def post(self, path: str, body: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        """The server's answer; `tokens`: an upper bound of its tokens. EndpointError if there is no usable answer."""
        changes = self.replaced(path)
        while True:
            sent = replaced(path, body, changes)
            answer = self._ask("POST", path, sent, tokens)
            if not isinstance(answer, Failure):
                self._replaced[path] = self.replaced(path) | changes
                self._settled |= {(path, name) for name in _replaceable(path, sent)}
                return answer
            others = {name for name in _replaceable(path, sent) & answer.refused if (path, name) not in self._settled}
            if not others:
                self._settled |= {(path, name) for name in changes - self.replaced(path)}
                self._fail(path, answer)
            changes |= others

    def _fail(self, path: str, failure: Failure) -> NoReturn:
        error = UnansweredError if failure.passing else EndpointError
        raise error(f"{self.base_url}/{path} gave no answer{failure.problem}")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, tokens: int) -> dict[str, Any] | Failure:
        """The answer, or the last failure after all tries that are allowed and useful. BudgetError if the budget is used up."""
        for attempt in range(self.retries + 1):
            self.budget.take(tokens)
            answer = self._try(method, path, body)
            if not isinstance(answer, Failure):
                self.budget.settle(tokens, _used(answer))
                return answer
            self.budget.settle(tokens, tokens if answer.charged else 0)
            if answer.wait is None or attempt == self.retries:
                break
            self._sleep(max(answer.wait, self._jitter.uniform(0, min(FIRST_WAIT * 2**attempt, LONGEST_WAIT))))
        tries = f" after {attempt + 1} tries" if attempt else ""
        return replace(answer, problem=f"{tries}: {answer.problem}")

    def _try(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any] | Failure:
        try:
            response, content = self._read(method, path, body)
        except httpx.RequestError as error:  # a broken connection, a timeout, a body that is not compressed as it says
            return Failure(self._in_words(error), 0.0, charged=True, passing=True)
        if response.status_code != httpx.codes.OK:
            return self._refusal(response, content.decode(errors="replace"))
        if len(content) > MOST_BYTES:
            return Failure(f"an answer of more than {MOST_BYTES / 2**20:.0f} MiB", None, charged=True)
        try:
            answer = json.loads(self._key.clean_answer(content.decode()))
        except (ValueError, RecursionError):  # no UTF-8, no JSON, or JSON nested too deep
            answer = None
        if not isinstance(answer, dict):
            quoted = self.quoted(content.decode(errors="replace"))
            return Failure(f"an answer that is not a JSON object, {quoted!r}", 0.0, charged=True)
        return answer

    def _read(self, method: str, path: str, body: Mapping[str, Any] | None) -> Answer:
        """A response and its content. Reading ends with the piece that exceeds MOST_BYTES.

        httpx.TimeoutException if name lookup, connection, TLS handshake, headers and content together take longer than `timeout`.
        """

        def ask(trace: Trace) -> Answer:
            content = bytearray()
            with self._client.stream(
                method, f"{self.base_url}/{path}", json=body, extensions={"trace": trace}
            ) as response:
                for piece in response.iter_bytes():
                    content += piece
                    if len(content) > MOST_BYTES:
                        break
            return response, bytes(content)

        return Exchange(self.timeout).result(ask)

    def _refusal(self, response: httpx.Response, text: str) -> Failure:
        status, wait = response.status_code, _retry_after(response)
        quoted = f"status {status}, {self.quoted(text)}"
        if wait > LONGEST_WAIT:
            asked = f"{quoted}; it asks to wait {wait:.0f} s, longer than {LONGEST_WAIT:.0f} s"
            return Failure(asked, None, passing=status in RETRIED)
        named = (name for name in REPLACEABLE if status in REFUSALS and re.search(rf"\b{name}\b", text))
        passing = status in RETRIED
        return Failure(quoted, wait if passing else None, refused=frozenset(named), passing=passing)

    def _in_words(self, error: httpx.RequestError) -> str:
        """What a server did in place of an answer."""
        said = self.quoted(SYSTEM_NUMBER.sub("", str(error)))
        detail = f" ({said})" if said else ""
        if isinstance(error, httpx.TimeoutException):
            return f"it did not answer in time{detail}"
        if isinstance(error, httpx.DecodingError):
            return "it sent an answer that cannot be decoded"
        if isinstance(error, (httpx.ConnectError, httpx.ProxyError)):
            return f"it cannot be reached{detail}"
        if isinstance(error, httpx.RemoteProtocolError) and not CLOSED.search(said):
            return f"it sent an answer that is not as HTTP has it{detail}"
        if isinstance(error, (httpx.RemoteProtocolError, httpx.NetworkError)):
            return "it broke off its answer"
        return f"the request cannot be sent{detail}"

    def quoted(self, text: str) -> str:
        """The beginning of a text, without the key. The key is removed before truncation, since half a key is not found."""
        return self._key.clean(text)[:SHOWN]


def replaced(path: str, body: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """`body` for servers that refuse the parameters `names`; parameters without another form stay unchanged.

    max_tokens of chats becomes max_completion_tokens. temperature 0 is omitted, so the server samples in its own way. stop is
    omitted; the reader of the answer cuts the text.
    """
    names, sent = set(names), dict(body)
    if "max_tokens" in names and "max_tokens" in sent and path == CHAT:
        sent["max_completion_tokens"] = sent.pop("max_tokens")
    if "temperature" in names and sent.get("temperature") == 0:
        del sent["temperature"]
    if "stop" in names:
        sent.pop("stop", None)
    return sent


def _replaceable(path: str, body: Mapping[str, Any]) -> frozenset[str]:
    """The parameters of a body that have another form."""
    return frozenset(name for name in REPLACEABLE if replaced(path, body, {name}) != body)


def _address(base_url: str, key: ApiKey) -> str:
    if key.clean_answer(str(base_url)) != base_url:
        raise UserError(
            f"base_url holds the key, which records would show; write the address alone, for example {EXAMPLE}"
        )
    if NOT_RECORDED.search(base_url):  # before all sentences that show the address
        raise UserError("base_url holds a password or a query, which records would show; name the key in api_key_env")
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError) as error:
        raise UserError(f"base_url={base_url!r} is not an address ({error}); write for example {EXAMPLE}") from error
    whole = bool(url.host) and "%" not in url.host and (url.port is None or 1 <= url.port <= LAST_PORT)
    if url.scheme not in ("http", "https") or not whole:
        raise UserError(f"base_url={base_url!r} is no HTTP address; write for example {EXAMPLE}")
    return str(url).rstrip("/")


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


def count_of(usage: Any, name: str) -> int | None:
    """The number of tokens that an answer's usage states as `name`; None if it states none, or one that cannot be."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and 0 <= count <= MOST_TOKENS else None


def _used(answer: Mapping[str, Any]) -> int | None:
    """The total tokens that an answer reports; None if it reports none."""
    return count_of(answer.get("usage"), "total_tokens")
