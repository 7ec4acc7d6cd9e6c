"""Bytes that are no result, drawn by hypothesis from one that is: its text broken, or its content changed under a new digest."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import results_io

DEEP = "[" * 5000 + "]" * 5000
STRANGE = (
    *(
        None,
        True,
        False,
        0,
        -1,
        2**63,
        10**4000,
        0.5,
        1e308,
        "",
        "x",
        "NaN",
        "\ud800",
        [],
        {},
        [[]],
        [None],
        {"": None},
    ),
    *([[[0.5]]], ["x"] * 3, {"heads": "x"}, [1, 2, 3, 4], -(2**70)),
)
SPLICED = (
    *(
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 5000,
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
    ),
    *(b":", b"\\", b"null", b'"a": 1, "a": 2,', b"\xef\xbb\xbf", b"//", b"-", b"0x1", b"\r", DEEP.encode()),
)


def broken(content: bytes) -> st.SearchStrategy[bytes]:
    """The file with something cut out, put in, flipped or in another place."""
    place = st.integers(0, len(content) - 1)

    def cut(first: int, second: int) -> bytes:
        start, end = sorted((first, second))
        return content[:start] + content[end:]

    def flipped(at: int, bit: int) -> bytes:
        return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]

    def spliced(at: int, what: bytes, over: int) -> bytes:
        return content[:at] + what + content[at + over :]

    return st.one_of(
        st.builds(cut, place, place),
        st.builds(flipped, place, st.integers(0, 7)),
        st.builds(spliced, place, st.sampled_from(SPLICED), st.integers(0, 3)),
        st.builds(lambda at: content[:at], place),
        st.builds(lambda at: content[at:] + content[:at], place),
        st.binary(max_size=200),
    )


def changed(document: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """The content with one value replaced, dropped, doubled or added somewhere, and a digest of its own: what a forger leaves."""

    @st.composite
    def draw(pick: Callable[[st.SearchStrategy[Any]], Any]) -> bytes:
        forged = copy.deepcopy(document)
        inside, key = forged, pick(st.sampled_from(sorted(forged)))
        while isinstance(inside[key], (dict, list)) and inside[key] and pick(st.integers(0, 4)):
            inside = inside[key]
            key = (
                pick(st.sampled_from(sorted(inside)))
                if isinstance(inside, dict)
                else pick(st.integers(0, len(inside) - 1))
            )
        what = pick(st.sampled_from(("replace", "drop", "double", "add")))
        if what == "drop":
            del inside[key]
        elif what == "double" and isinstance(inside, list):
            inside.insert(key, inside[key])
        elif what == "add" and isinstance(inside, dict):
            inside["more"] = pick(st.sampled_from(STRANGE))
        else:
            inside[key] = pick(st.sampled_from(STRANGE))
        return signed(forged)

    return draw()


def signed(document: dict[str, Any]) -> bytes:
    """The bytes of a document with the digest that belongs to them."""
    content = {name: value for name, value in document.items() if name != results_io.DIGEST}
    lines = {key: f"  {json.dumps(key)}: {_text(value)}" for key, value in content.items()}
    text = "{\n" + ",\n".join(lines[key] for key in sorted(lines)) + "\n}\n"
    lines[results_io.DIGEST] = f'  "{results_io.DIGEST}": "{results_io.sha256(text.encode())}"'
    return ("{\n" + ",\n".join(lines[key] for key in sorted(lines)) + "\n}\n").encode()


def _text(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(", ", ": "))
    except ValueError:  # more digits than Python writes
        return "9" * 5000
