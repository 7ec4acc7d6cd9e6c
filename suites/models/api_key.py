"""API key: the secret for an endpoint, and its removal from everything that is recorded."""

from __future__ import annotations

import base64
import html.entities
import os
import re
from collections.abc import Iterator, Mapping

from results_io import UserError

HIDDEN = "***"
# characters; a shorter one ("EMPTY", "ollama") is a placeholder, which a model's text may well contain
SHORTEST_SECRET = 12
VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")  # a variable's name; any other text may be the key itself, given by mistake
NAMED = {character: name for name, character in html.entities.html5.items() if name.endswith(";")}


class ApiKey:
    """A key that appears only in `headers`. `text` is printable ASCII without white space around it; "" is no key."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._forms = re.compile("|".join(_ways(text))) if text else None

    def __repr__(self) -> str:
        return f"Key({HIDDEN if self._text else ''})"

    @classmethod
    def of_variable(cls, name: str | None) -> ApiKey:
        """The key in the environment variable `name`; no key without a name.

        UserError for a variable that is not set or empty, and for a key that no HTTP header accepts. The error shows no key.
        """
        if not name:
            return cls()
        called = name if VARIABLE.fullmatch(name) else "of that name"
        text = os.environ.get(name, "").strip()  # a key read from a file ends in a newline
        if not text:
            raise UserError(
                f"the environment variable {called} that api_key_env names is not set; set it to the endpoint's key"
            )
        if not (text.isascii() and text.isprintable()):
            raise UserError(
                f"the key in the environment variable {called} has characters other than printable ASCII, which no HTTP header "
                "takes; set it to the endpoint's key alone"
            )
        return cls(text)

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._text}"} if self._text else {}

    def clean(self, text: str) -> str:
        """`text` without the key, plain or escaped. Truncate a text only after this, since half a key is not found."""
        return self._forms.sub(HIDDEN, text) if self._forms else text

    def clean_answer(self, text: str) -> str:
        """As `clean`, for outputs: a short key is not removed, since it also occurs in texts without a secret."""
        return self.clean(text) if len(self._text) >= SHORTEST_SECRET else text


def _ways(text: str) -> Iterator[str]:
    """Patterns of a key: its characters, escaped or not; for a real secret also in other case, in hex and in base64."""
    written = "".join(map(_forms, text))
    if len(text) < SHORTEST_SECRET:
        yield written
        return
    yield f"(?i:{written})"
    yield f"(?i:{text.encode().hex()})"
    for before in range(3):  # offset in a group of three bytes: the text before the key changes its base64 letters
        encoded = base64.b64encode(b"\0" * before + text.encode()).decode().rstrip("=")
        sure = encoded[-(-before * 4 // 3) : len(encoded) - ((before + len(text)) % 3 > 0)]
        yield "".join(rf"(?:{re.escape(one)}|%[0-9A-Fa-f]{{2}})" if one in "+/" else one for one in sure)
        yield re.escape(sure.translate(str.maketrans("+/", "-_")))


def _forms(character: str) -> str:
    """A pattern of one character as itself or escaped by JSON, Python (also twice or thrice), a URL or HTML."""
    code, entity = ord(character), NAMED.get(character)
    escaped = [rf"\\{{0,8}}{re.escape(character)}", rf"\\{{1,8}}(?i:u00{code:02x}|x{code:02x})", f"(?i:%{code:02x})"]
    escaped += [f"(?i:&#0{{0,4}}{code};|&#x0{{0,4}}{code:x};)", *([f"(?i:&{entity})"] if entity else [])]
    return f"(?:{'|'.join(escaped)})"
