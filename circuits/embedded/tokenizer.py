"""The word-level tokenizer of the embedded models."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from circuits.tasks import lexicon


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per vocabulary word, punctuation mark and two-digit number.

    "1732" becomes 17 32 and "John," becomes John and a comma; leading spaces do not matter, so " Mary" and
    "Mary" are the same token and prompts written for GPT-2 keep working. No special token is added.
    """
    ids = {word: index for index, word in enumerate(lexicon.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=lexicon.UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d\d"), "isolated"),
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=lexicon.BOS,
        eos_token=lexicon.BOS,
        pad_token=lexicon.PAD,
        unk_token=lexicon.UNK,
        clean_up_tokenization_spaces=False,
    )
