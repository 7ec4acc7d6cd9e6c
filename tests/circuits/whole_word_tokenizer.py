"""A tokenizer that keeps every word of the published tasks whole: a stand-in where GPT-2's merges are not at hand.

Like a byte-level tokenizer it makes the space before a word part of its token, splits years into century and two
digits and acronyms into letters; unlike one it knows no word but these. `without` takes words away.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from circuits.tasks.example import SLOT
from circuits.tasks.published import BUILDERS, words

PIECE = r" ?[A-Z]?[a-z]+| ?[A-Z]| ?[0-9][0-9]|\n| ?[^\sA-Za-z0-9]| "
BOS, UNKNOWN = "<bos>", "<unk>"


def texts(value: object) -> Iterator[str]:
    """Yield every string in nested mappings and tuples."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in texts(part))
    elif isinstance(value, tuple):
        yield from (text for part in value for text in texts(part))


def constants(module: ModuleType) -> Iterator[str]:
    """Yield the texts of a module's constants: its frames and word lists."""
    for name, value in vars(module).items():
        if name.isupper():
            yield from texts(value)


def pieces() -> list[str]:
    """Every token: the pieces of all frames and lists with and without a space, capitals and two-digit numbers."""
    found = dict.fromkeys(string.ascii_uppercase)
    found |= dict.fromkeys(space + f"{number:02d}" for number in range(100) for space in ("", " "))
    found |= dict.fromkeys([" he", " she", " is", ":param", " :"])
    for module in (words, *BUILDERS.values()):
        for text in constants(module):
            plain = SLOT.sub("X", text)
            spaced = " ".join(["", *re.split(r"[\s/]+", plain)])
            found |= dict.fromkeys(re.findall(PIECE, plain) + re.findall(PIECE, spaced))
    return list(found)


def build(without: Collection[str] = ()) -> PreTrainedTokenizerFast:
    """Return the tokenizer; the words `without` are unknown to it."""
    known = [piece for piece in pieces() if piece.strip(" ") not in without]
    vocabulary = {token: i for i, token in enumerate((UNKNOWN, BOS, *known))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=BOS, unk_token=UNKNOWN)
