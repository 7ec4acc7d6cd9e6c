"""Traffic: reads the file of logged requests that a gateway writes. The gateway itself is not contacted.

A line is a JSON object: `id` (a text, unique in the file), `prompt` (the last message) or `messages` (of {"role", "content"}),
`answer` (of the deployed model), `time` (ISO 8601 with a zone) and optionally `meta` (an object).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results_io import UserError
from suites import bounded_text

KEYS = ("id", "prompt", "messages", "answer", "time", "meta")
EVERYBODY = "all"  # as the flag: all users in the file have agreed
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Logged:
    """One request and the deployed model's answer."""

    id: str
    prompt: str
    answer: str
    time: datetime
    system: str | None = None
    earlier: tuple[tuple[str, str], ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def day(self) -> str:
        """The day in UTC."""
        return self.time.date().isoformat()

    def opted_in(self, flag: str) -> bool:
        """Whether `meta` has the flag set to true; with the flag "all", every request may be used."""
        return flag == EVERYBODY or self.meta.get(flag) is True


def read(path: Path) -> list[Logged]:
    """Every complete line, in order. A last line without a line end is still being written and is left for the next time.

    UserError, with the number of the line, for an invalid request and for a repeated id.
    """
    text = bounded_text.given(Path(path), "give a file of JSON lines, one request a line", "follow")
    found: dict[str, Logged] = {}
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        if not line.strip():
            continue
        one = _request(line, f"{path} line {number}")
        if one.id in found:
            raise UserError(f"{path} line {number}: the id {one.id!r} was there before; give every request its own")
        found[one.id] = one
    return list(found.values())


def _request(line: str, where: str) -> Logged:
    try:
        data = bounded_text.value(line)
    except ValueError as error:
        raise UserError(f"{where} is not JSON ({error}); write one request a line") from None
    if not isinstance(data, dict) or not set(data) <= set(KEYS):
        unknown = sorted(set(data) - set(KEYS)) if isinstance(data, dict) else [type(data).__name__]
        raise UserError(f"{where}: {unknown[0]} is unknown; expected an object with {', '.join(KEYS)}")
    for key in ("id", "answer"):
        if not isinstance(data.get(key), str) or (key == "id" and not data[key]):
            raise UserError(f"{where}: {key} is {data.get(key)!r}; expected a text")
    if not isinstance(data.get("meta", {}), dict):
        raise UserError(f"{where}: meta is {data['meta']!r}; expected an object")
    system, earlier, prompt = _messages(data, where)
    return Logged(
        data["id"], prompt, data["answer"], _time(data.get("time"), where), system, earlier, data.get("meta", {})
    )


def _messages(data: Mapping[str, Any], where: str) -> tuple[str | None, tuple[tuple[str, str], ...], str]:
    """(system text, earlier turns, last message of the user)."""
    if ("prompt" in data) == ("messages" in data):
        raise UserError(f"{where}: expected one of prompt and messages; give exactly one")
    if "prompt" in data:
        if not isinstance(data["prompt"], str):
            raise UserError(f"{where}: prompt is {data['prompt']!r}; expected a text")
        return None, (), data["prompt"]
    given = data["messages"]
    if not isinstance(given, list) or not all(
        isinstance(one, dict) and one.get("role") in ROLES and isinstance(one.get("content"), str) for one in given
    ):
        raise UserError(
            f"{where}: messages are not a list of objects with role ({', '.join(ROLES)}) and content; correct it"
        )
    turns = [(one["role"], one["content"]) for one in given]
    system = turns.pop(0)[1] if turns and turns[0][0] == "system" else None
    if not turns or turns[-1][0] != "user" or any(role == "system" for role, _ in turns):
        raise UserError(f"{where}: messages do not end with the user's, or have a system text in between; correct it")
    return system, tuple(turns[:-1]), turns[-1][1]


def _time(given: Any, where: str) -> datetime:
    try:
        time = datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise UserError(f"{where}: time is {given!r}; expected one such as 2026-05-04T10:00:00Z") from None
    if time.tzinfo is None:
        raise UserError(f"{where}: time {given} has no zone; write it as 2026-05-04T10:00:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise UserError(f"{where}: time {given} is before or after all that a clock shows; correct it") from None
