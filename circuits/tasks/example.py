"""The text of one prompt pair, before any tokenizer has seen it."""

from __future__ import annotations

import hashlib
import re
import zlib
from dataclasses import dataclass, field

SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Example:
    """A clean and a corrupted prompt whose answers are known.

    `clean` and `corrupted` end right before the answer and have no BOS token. `answers` are words that continue the clean
    prompt correctly, `wrong` the foils they are compared with: the default metric is the mean logit of `answers` minus the mean
    logit of `wrong`. `positions` names character spans of the clean prompt (the last token that overlaps a span is that
    position). `template` is the wording, "frame" or "frame/variant" (see `frame_of`), `cluster` the sampling unit shared by
    dependent prompts (for example the set of names), `factors` further labels by which measurement invariance is tested.
    `joint` is the text between a prompt and its answer; it is empty if the answer continues the last word, as the two digits of
    a year do after "17".
    """

    clean: str
    corrupted: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    template: str
    cluster: str
    positions: dict[str, tuple[int, int]]
    factors: dict[str, str] = field(default_factory=dict)
    joint: str = " "

    @property
    def id(self) -> str:
        """16 hex digits of a digest of both texts: how results name the prompt."""
        return hashlib.sha256(f"{self.clean}\n{self.corrupted}".encode()).hexdigest()[:16]


def frame_of(template: str) -> str:
    """The frame of a template: its label up to the first slash, "when_went" for "when_went/ABBA".

    Templates of one frame have the same words around the same slots, in another order or with another slot as the answer.
    Frames, not templates, are the units over which wordings vary.
    """
    return template.partition("/")[0]


def last_word(text: str) -> tuple[int, int]:
    """Return the span of the text after the last space, that is the word before the answer."""
    return text.rindex(" ") + 1, len(text)


def fill(template: str, **words: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """Replace `{slot}` in `template` by `words[slot]`; return the text and each slot's character span.

    Raises KeyError if a slot has no word.
    """
    text, spans, end = "", {}, 0
    for match in SLOT.finditer(template):
        text += template[end : match.start()]
        start = len(text)
        text += words[match.group(1)]
        spans[match.group(1)] = (start, len(text))
        end = match.end()
    return text + template[end:], spans


def held_out(*words: str, share: int = 10) -> bool:
    """True for one in `share` combinations of words, those that the embedded model never sees in training.

    The rule uses crc32 of the sorted words, so it is the same on every machine and independent of order.
    """
    return zlib.crc32(" ".join(sorted(words)).encode()) % share == 0
