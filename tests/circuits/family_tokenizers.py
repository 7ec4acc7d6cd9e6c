"""Tokenizers of several families, built from GPT-2's merges without a download.

`llama3`: byte-level BPE that writes up to three digits as one token and leaves the space before them alone, with a BOS token.
`qwen`: likewise, one digit a token, without BOS, with a chat template. `llama2`: SentencePiece's marks and bytes, with BOS.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.circuits import gpt2_tokenizer

KINDS = ("gpt2", "llama3", "qwen", "llama2")
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARK = "▁"


def build(kind: str) -> PreTrainedTokenizerFast:
    """The tokenizer of this kind. Raises ValueError if there are no merges to build it from."""
    merges = gpt2_tokenizer.merges()
    if merges is None:
        raise ValueError("no merges of GPT-2 on this machine")
    if kind == "gpt2":
        return gpt2_tokenizer.build(merges)
    if kind == "llama2":
        return _sentence_pieces(merges)
    return _byte_level(merges, "{1,3}" if kind == "llama3" else "", kind)


def _pairs(merges: Path) -> list[tuple[str, str]]:
    lines = merges.read_text(encoding="utf-8").splitlines()
    return [
        (left, right) for left, _, right in (line.partition(" ") for line in lines) if right and left != "#version:"
    ]


def _byte_level(merges: Path, digits: str, kind: str) -> PreTrainedTokenizerFast:
    pairs = _pairs(merges)
    vocabulary = {symbol: place for place, symbol in enumerate(gpt2_tokenizer.byte_symbols())}
    for left, right in pairs:
        vocabulary[left + right] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES % digits), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    if kind == "llama3":
        return PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>"
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    made.chat_template = CHAT
    return made


def _sentence_pieces(merges: Path) -> PreTrainedTokenizerFast:
    """Pieces with the mark for a space, before the first word too, and bytes for whatever has no piece."""
    plain = [(a.replace("Ġ", MARK), b.replace("Ġ", MARK)) for a, b in _pairs(merges)]
    pairs = [(a, b) for a, b in plain if (a + b).replace(MARK, "").isascii()]
    symbols = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), MARK, *map(chr, range(33, 127))]
    vocabulary = {symbol: place for place, symbol in enumerate(dict.fromkeys(symbols))}
    known = []
    for left, right in pairs:
        if left in vocabulary and right in vocabulary:
            vocabulary.setdefault(left + right, len(vocabulary))
            known.append((left, right))
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=known, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    backend.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in ("<s>", "</s>")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
