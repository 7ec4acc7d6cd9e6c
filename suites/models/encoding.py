"""Encoding: how prompts become tokens and tokens become answers, including BOS and the chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from results_io import UserError
from suites.models.base import conversation


@dataclass(frozen=True, eq=False)
class Encoding:
    """A tokenizer with the policies that outputs depend on.

    `bos`: every text begins with exactly one BOS token, as in the tasks of `circuits`. `chat`: a prompt is the user's message in
    the tokenizer's chat template, which adds a BOS token itself if it needs one.
    """

    tokenizer: Any
    bos: bool
    chat: bool

    @property
    def prefix(self) -> int | None:
        """The token that replaces an empty context: BOS, or else end of text."""
        return self.tokenizer.eos_token_id if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id

    @cached_property
    def sha256(self) -> str:
        """sha256 of the tokenizer's serialisation, its special tokens and its chat template."""
        parts = (self.tokenizer.backend_tokenizer.to_str(), sorted(self.tokenizer.special_tokens_map.items()))
        return hashlib.sha256(repr((*parts, self.tokenizer.chat_template)).encode()).hexdigest()

    def tokens(self, text: str, bos: bool | None = None) -> list[int]:
        """Ids of a text; `bos` overrides the policy. A text that begins with BOS does not get a second one."""
        ids = self._ids(text)
        first = self.tokenizer.bos_token_id
        if first is None or ids[:1] == [first] or not (self.bos if bos is None else bos):
            return ids
        return [int(first), *ids]

    def prompt(self, prompt: str, system: str | None = None, earlier: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Ids of a request. UserError for a system text or earlier turns without a chat template, and for an empty prompt."""
        if self.chat:
            return self.tokens(self.rendered(prompt, system, earlier), bos=False)
        if earlier:
            raise UserError(
                "the request has earlier turns and this model's tokenizer no chat template; write them into the prompt"
            )
        if system:
            raise UserError(
                "the request has a system text and this model's tokenizer no chat template; write the text into the prompt"
            )
        ids = self.tokens(prompt)
        if not ids:
            raise UserError("the prompt is empty and this model's tokenizer has no BOS token; write a prompt")
        return ids

    def rendered(self, prompt: str, system: str | None = None, earlier: Sequence[tuple[str, str]] = ()) -> str:
        """The text of a request: the prompt itself, or the prompt in the chat template."""
        if not self.chat:
            return prompt
        messages = conversation(prompt, system, earlier)
        return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        return self.tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def reads(self, text: str) -> bool:
        """False if a part of `text` would become the unknown-word token.

        Byte-level vocabularies represent every text; some declare their end-of-text token as the unknown one.
        """
        unknown = self.tokenizer.unk_token_id
        if unknown is None or unknown == self.tokenizer.eos_token_id:
            return True
        return unknown not in self._ids(text)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]


def of_tokenizer(tokenizer: Any, bos: bool | None = None, chat: bool | None = None) -> Encoding:
    """The encoding of a tokenizer, by default with BOS and chat template if it has them.

    `bos` and `chat` require them (True) or turn them off (False). UserError if one is required that the tokenizer lacks.
    """
    for wanted, has, what in (
        (bos, tokenizer.bos_token_id is not None, "BOS token"),
        (chat, bool(tokenizer.chat_template), "chat template"),
    ):
        if wanted and not has:
            raise UserError(f"the model's tokenizer has no {what}; leave the setting out or write false")
    return Encoding(
        tokenizer,
        bos=tokenizer.bos_token_id is not None if bos is None else bool(bos),
        chat=bool(tokenizer.chat_template) if chat is None else bool(chat),
    )
