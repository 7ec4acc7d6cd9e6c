"""The choices made for rows that leave them open, in sentences: shown before anything is measured, and stored with results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from circuits.tasks.file.pairs import FRAME, PromptTokenizer, TokenPair, spaces, unknown_words
from circuits.tasks.file.rows import SPLITS, shortened
from circuits.tasks.file.splits import Dealt

SHOWN_LINES = 10  # lines listed with answers of several tokens
SHOWN = 3  # templates and unknown words listed


def notes(rows: int, kept: Sequence[TokenPair], dealt: Dealt, reader: PromptTokenizer) -> tuple[str, ...]:
    """Sentences without the file's name, so that the same rows from another file give the same results."""
    said = [f"rows: {len(kept)} of {rows} can be used" + (f"; {rows - len(kept)} left out" if rows > len(kept) else "")]
    if not kept:
        return tuple(said)
    return (
        *said,
        _bos(reader),
        _space(kept, reader),
        *(["chat: every prompt is inside the tokenizer's chat template"] if reader.options.chat else []),
        *_alignment(kept, reader),
        *_several(kept, reader),
        _foils(kept, reader),
        _templates(kept),
        _clusters(kept),
        f"roles: {', '.join(kept[0].positions)}",
        _splits(kept, dealt),
        *_reference(dealt),
        *_unknown(kept, reader),
    )


def _bos(reader: PromptTokenizer) -> str:
    token = reader.tokenizer.bos_token
    if reader.bos:
        return f"BOS: {token!r} before every prompt"
    return "BOS: none" + (", as the tokenizer has none" if token is None else f", though the tokenizer has {token!r}")


SPACES = {
    "answer": "a part of the answer's token",
    "prompt": "a token of its own at the end of the prompt",
    "none": "none",
}


def _space(kept: Sequence[TokenPair], reader: PromptTokenizer) -> str:
    first = kept[0]
    counts, word = spaces(kept), first.answers[0]
    if reader.ids(word) == reader.ids(f" {word}"):
        return "leading space: makes no difference to this tokenizer"
    how = "inferred" if reader.options.space is None else "as task.space says"
    told = ", ".join(f"{SPACES[name]} ({counts[name]} rows)" for name in SPACES if counts[name])
    return f"leading space: {told}, {how}, as in {first.joint + word!r}"


FILLED = {"right": "on the left", "spans": "where they differ in length"}


def _alignment(kept: Sequence[TokenPair], reader: PromptTokenizer) -> list[str]:
    align = reader.options.align
    if align is None:
        return []
    count = sum(any(pair.filled) for pair in kept)
    return [
        f"alignment: {count} of {len(kept)} rows are filled {FILLED[align]} with {reader.filler!r}, which the model reads"
    ]


def _several(kept: Sequence[TokenPair], reader: PromptTokenizer) -> list[str]:
    lines = [str(pair.row.line) for pair in kept if pair.several]
    if not lines:
        return []
    told = ", ".join(lines[:SHOWN_LINES]) + (" ..." if len(lines) > SHOWN_LINES else "")
    how = {
        "sequence": "scored by the log-probability of all their tokens",
        "logit_difference": "scored at the first token at which they differ; task.metric=sequence scores all of them",
        "probability_difference": "scored at the first token at which they differ; task.metric=sequence scores all of them",
    }
    return [f"answers or foils of several tokens: {len(lines)} rows (line {told}), {how[reader.options.metric]}"]


def _foils(kept: Sequence[TokenPair], reader: PromptTokenizer) -> str:
    kinds = Counter(
        "wrong" if pair.row.wrong else "corrupted_answer" if pair.row.corrupted_answers else "model" for pair in kept
    )
    told = {
        "wrong": "the column wrong",
        "corrupted_answer": "the column corrupted_answer",
        "model": "the model's most probable other word after the corrupted prompt (task.foil=corrupted_top)",
    }
    if len(kinds) == 1:
        return f"foils: {told[next(iter(kinds))]}"
    return "foils: " + ", ".join(f"{told[kind]} for {kinds[kind]} rows" for kind in told if kinds[kind])


def _templates(kept: Sequence[TokenPair]) -> str:
    counts = Counter(pair.template for pair in kept)
    default = any(pair.row.template is None for pair in kept)
    how = "by token length and changed positions, the default" if default else "by the column template"
    largest = ", ".join(
        f"{shortened(name.removeprefix(FRAME + '/'))} ({count})"
        for name, count in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:SHOWN]
    )
    return f"templates: {len(counts)}, {how}; {largest}{', ...' if len(counts) > SHOWN else ''}"


def _clusters(kept: Sequence[TokenPair]) -> str:
    count = len({pair.cluster for pair in kept})
    default = any(pair.row.cluster is None for pair in kept)
    return f"clusters: {count}, {'by answers and foils, the default' if default else 'by the column cluster'}"


def _splits(kept: Sequence[TokenPair], dealt: Dealt) -> str:
    named = any(pair.row.split is not None for pair in kept)
    sizes = ", ".join(f"{len(dealt.examples[name])} {name.replace('_', '-')}" for name in SPLITS)
    dealt_by = "by the column split" if named else "by a hash of the prompt, the default"
    return (
        f"splits: {sizes}, {dealt_by}; groups of heads are chosen on the discovery prompts beyond prompts.discovery, or on "
        "those that find a circuit where there are no more"
    )


def _reference(dealt: Dealt) -> list[str]:
    if not dealt.twins:
        return []
    total = len(dealt.examples["reference"])
    return [
        f"reference prompts: {dealt.twins} of {total} are corrupted twins of reference and discovery rows, as rows are few"
    ]


def _unknown(kept: Sequence[TokenPair], reader: PromptTokenizer) -> list[str]:
    count = unknown_words(kept, reader)
    return [f"unknown words: {count} of {len(kept)} rows hold words that the tokenizer does not know"] if count else []
