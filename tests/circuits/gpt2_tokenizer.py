"""GPT-2's own tokenizer, built from its list of merges without a download."""

from __future__ import annotations

import os
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
BYTES = 256
VARIABLE = "GPT2_MERGES"
STORED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "gpt2-merges.txt"


def merges() -> Path | None:
    """The merges file: the one that GPT2_MERGES names, else the one stored beside the checkout, else None."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    return STORED if STORED.is_file() else None


def byte_symbols() -> list[str]:
    """The printable character that stands for each byte, in the order of GPT-2's vocabulary.

    Bytes that Latin-1 prints stand for themselves and come first; the other 68 follow, as the characters from
    code point 256 on. So a space is "Ġ" (256 + 32) and a line break "Ċ" (256 + 10).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    return [chr(byte) for byte in printable] + [chr(BYTES + i) for i in range(BYTES - len(printable))]


def build(path: Path) -> PreTrainedTokenizerFast:
    """Return the byte-level BPE tokenizer of this merges file; BOS, EOS and unknown are <|endoftext|>.

    Ids: the 256 bytes, then one per merge in the file's order, then <|endoftext|>.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    vocabulary = {symbol: i for i, symbol in enumerate(byte_symbols())}
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
    vocabulary[END_OF_TEXT] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, unk_token=END_OF_TEXT
    )
