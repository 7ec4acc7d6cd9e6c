"""The words and years that a model's tokenizer keeps whole, so that all prompts of a template have one length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from results_io import UserError

CARRIER = "The"  # a text before tested words, because some tokenizers treat the first word as if a space preceded it


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Questions to a Hugging Face tokenizer about words; results about single words are cached."""

    tokenizer: Any
    _whole: dict[str, bool] = field(default_factory=dict, repr=False)

    def ids(self, text: str) -> list[int]:
        """Token ids of `text` without special tokens."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def continuations(self, text: str, endings: Iterable[str]) -> tuple[str, ...]:
        """The members of `endings`, in order, that add exactly one known token to `text` and do not change its own tokens.

        An ending e is kept if ids(text + e) = ids(text) + [one id] and that id is not the unknown token's.
        """
        endings = list(endings)
        if not endings:
            return ()
        start = self.ids(text)
        whole = self.tokenizer([text + ending for ending in endings], add_special_tokens=False)["input_ids"]
        unknown = self.tokenizer.unk_token_id
        return tuple(
            ending
            for ending, ids in zip(endings, whole, strict=True)
            if len(ids) == len(start) + 1 and ids[:-1] == start and ids[-1] != unknown
        )

    def single(self, words: Iterable[str]) -> tuple[str, ...]:
        """The members of `words`, in order, that are one known token after a space."""
        words = list(words)
        new = [" " + word for word in dict.fromkeys(words) if word not in self._whole]
        kept = set(self.continuations(CARRIER, new))
        self._whole.update({word.removeprefix(" "): word in kept for word in new})
        return tuple(word for word in words if self._whole[word])

    def require(self, kind: str, words: Sequence[str], at_least: int) -> tuple[str, ...]:
        """`single(words)`. Raises UserError if fewer than `at_least` remain; `kind` describes them: "names of task ioi"."""
        kept = self.single(words)
        require_enough(len(kept), len(words), kind, at_least)
        return kept


def require_enough(kept: int, of: int, kind: str, at_least: int, how: str = "one token") -> None:
    """Raises UserError if fewer than `at_least` of the `of` things called `kind` are left; `how` they have to tokenize."""
    if kept < at_least:
        raise UserError(
            f"only {kept} of the {of} {kind} are {how} in this model's tokenizer and at least {at_least} are needed; "
            "choose another task, or a model whose tokenizer keeps common English words whole"
        )
