"""Rows as one tokenizer reads them: aligned pairs with their answers, or why a row makes no pair."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from circuits.prompts import Encoder, shared_beginning
from circuits.tasks.base import Metric
from circuits.tasks.example import Example
from circuits.tasks.file import alignment
from circuits.tasks.file.options import Options
from circuits.tasks.file.rows import PairRow, Span, shown
from results_io import UserError

FIRST, END = "changed_first", "end"
FRAME = "rows"  # frame of templates without a column; their wordings are unknown, so they count as one
OPENING = ("\n", "\t", "(", "[", "{", '"', "'", "“", "‘", "$", "#", "@", "/", "_", "=")  # no space follows these
LONGEST_TOKEN = 128  # characters of the longest tokens of any model, which are runs of spaces
SHOWN_POSITIONS = 12  # in a template's label


class Rejected(NamedTuple):
    """A row that makes no pair, and why."""

    row: PairRow
    reason: str


@dataclass(frozen=True)
class TokenPair:
    """A row as tokens: `clean` and `corrupted` ids (BOS included), texts as the model reads them, `joint` before the answer.

    `wrong` is empty if the row names no foil. `positions` are character spans of the clean text by role, `end` last;
    `twin_positions` those of the same tokens in the corrupted text, None if the answers cannot follow it. `filled`: the
    positions of the filler tokens that task.align put into either prompt. `shared`: number of tokens that all answers and foils
    begin with, which are appended to the prompts; `several`: an answer or foil has several tokens; `scored`: number of scored
    tokens of the longest of them, 0 if the metric scores only one.
    """

    row: PairRow
    clean: tuple[int, ...]
    corrupted: tuple[int, ...]
    texts: tuple[str, str]
    joint: str
    answers: tuple[str, ...]
    wrong: tuple[str, ...]
    positions: Mapping[str, Span]
    twin_positions: Mapping[str, Span] | None = None
    filled: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    template: str = ""
    shared: int = 0
    several: bool = False
    scored: int = 0

    @property
    def changed(self) -> tuple[int, ...]:
        """Positions at which the two prompts have different tokens."""
        return tuple(i for i, (one, other) in enumerate(zip(self.clean, self.corrupted, strict=True)) if one != other)

    @property
    def unfilled(self) -> tuple[int, ...]:
        """The clean tokens without fillers; rows with equal ones have the same prompt."""
        return tuple(token for place, token in enumerate(self.clean) if place not in self.filled[0])

    @property
    def cluster(self) -> str:
        """The row's own cluster, or its answers and foils without their order, since swapping them makes no new draw."""
        return self.row.cluster or " ".join(sorted({*self.answers, *self.wrong}))


class PromptTokenizer:
    """A tokenizer with its options; `longest`: the largest number of tokens that the model reads, if known.

    Raises UserError for options that the tokenizer does not allow.
    """

    def __init__(self, tokenizer: Any, options: Options, longest: int | None = None) -> None:
        self.tokenizer, self.options, self.encode, self.longest = tokenizer, options, Encoder(tokenizer), longest
        self.bos = tokenizer.bos_token_id is not None if options.bos is None else options.bos
        if self.bos and tokenizer.bos_token_id is None:
            raise UserError(
                "task.bos=true, and this tokenizer has no BOS token; leave it out, or run with task.bos=false"
            )
        if options.chat and not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "task.chat=true, and this tokenizer has no chat template; leave it out, or use a chat model's"
            )
        self.filler = tokenizer.bos_token or tokenizer.pad_token or tokenizer.eos_token
        if options.align and self.filler is None:
            raise UserError(
                f"task.align={options.align} fills with a BOS, PAD or EOS token, and this tokenizer has none; leave it out"
            )

    @property
    def ends_itself(self) -> bool:
        """True if the chat template ends the model's input with whitespace, after which an answer needs no space."""
        return self.options.chat and self.rendered("x")[-1:].isspace()

    @property
    def start(self) -> tuple[int, ...]:
        return (self.tokenizer.bos_token_id,) if self.bos else ()

    def rendered(self, prompt: str) -> str:
        """The text that the model reads: the prompt, inside the chat template if requested, without its BOS token."""
        if not self.options.chat:
            return prompt
        said = [{"role": "user", "content": prompt}]
        text = self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        return text.removeprefix(self.tokenizer.bos_token) if self.bos else text

    def ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text)["input_ids"])

    def offsets(self, text: str) -> list[Span]:
        """Character span of every token of a text."""
        return [tuple(one) for one in self.encode(text, return_offsets_mapping=True)["offset_mapping"]]

    def filled(self, side: alignment.PromptSide, fills: Sequence[alignment.Fill]) -> alignment.PromptSide | None:
        """A prompt with its fillers; None if the fillers change the tokens around them."""
        token = self.tokenizer.convert_tokens_to_ids(self.filler)
        for keeps_space in (True, False):
            made = alignment.filled(side, fills, self.filler, token, keeps_space)
            if self.ids(made.text) == made.ids:
                return replace(made, offsets=self.offsets(made.text))
        return None

    def is_unknown(self, token: int) -> bool:
        unknown = self.tokenizer.unk_token_id
        return token == unknown != self.tokenizer.eos_token_id


def read(rows: Sequence[PairRow], reader: PromptTokenizer) -> tuple[list[TokenPair], list[Rejected]]:
    """(pairs with their templates, rows that make no pair), both in the order of the file."""
    pairs: list[TokenPair] = []
    rejected: list[Rejected] = []
    first: dict[tuple[int, ...], PairRow] = {}
    for row in rows:
        found = _read(row, reader)
        if isinstance(found, TokenPair) and first.setdefault(found.unfilled, row) is not row:
            found = f"has the clean prompt of row {first[found.unfilled].number} again; take one of them out"
        if isinstance(found, str):
            rejected.append(Rejected(row, found))
        else:
            pairs.append(found)
    return templated(pairs), rejected


def _read(row: PairRow, reader: PromptTokenizer) -> TokenPair | str:
    """The pair of one row, without a template label yet; or why there is none."""
    wrong = row.wrong or row.corrupted_answers
    answers, wrong = (tuple(dict.fromkeys(word.removeprefix(" ") for word in words)) for words in (row.answers, wrong))
    if refused := _unfit_texts(row, (*answers, *wrong), reader):
        return refused
    cut = row.clean.endswith(" ")
    clean, corrupted = (text.removesuffix(" ") if cut else text for text in (row.clean, row.corrupted))
    end, joint = _seam(row, clean, (*answers, *wrong), reader)
    texts = [reader.rendered(text + end) for text in (clean, corrupted)]
    sides = _sides(row, (clean + end, corrupted + end), texts, reader)
    aligned = sides if isinstance(sides, str) else _aligned(sides, reader)
    if isinstance(aligned, str):
        return aligned
    sides, filled = aligned
    texts, tokens = [side.text for side in sides], [(*reader.start, *side.ids) for side in sides]
    words = _words(answers, wrong, texts[0], joint, reader)
    if isinstance(words, str):
        return words
    if refused := _unfit_prompts(tokens, words, reader):
        return refused
    positions = _positions(sides[0], tokens, reader)
    alike = _words(answers, wrong, texts[1], joint, reader) == words
    twin = _same_tokens(positions, texts, reader) if alike else None
    return TokenPair(
        row=row,
        clean=tokens[0],
        corrupted=tokens[1],
        texts=(texts[0], texts[1]),
        joint=joint,
        answers=answers,
        wrong=wrong,
        positions=positions,
        twin_positions=twin,
        filled=filled,
        shared=words.shared,
        several=words.several,
        scored=words.longest if reader.options.metric == "sequence" else 0,
    )


def _unfit_texts(row: PairRow, words: Sequence[str], reader: PromptTokenizer) -> str | None:
    """Why the texts of a row make no pair; None if they may make one. Nothing is tokenized, since a cell may hold a book."""
    prompts = {"clean": row.clean, "corrupted": row.corrupted}
    for name, text in prompts.items():
        if reader.longest is not None and len(text) > reader.longest * LONGEST_TOKEN:
            return (
                f"has {len(text):,} characters in its {name} prompt, and the model reads at most {reader.longest} tokens; "
                "shorten it"
            )
    begins = [text[: len(text) - len(text.lstrip())] for text in prompts.values()]
    if begins[0] != begins[1]:
        one, other = map(shown, begins)
        return f"begins with {one} in its clean prompt and with {other} in the corrupted one; begin both alike"
    if row.clean.endswith(" ") and not row.corrupted.endswith(" "):
        return "ends in a space in its clean prompt and not in the corrupted one; end both alike"
    if trailing := next((word for word in words if word.endswith(" ")), None):
        return f"has the answer or foil {shown(trailing)}, which ends in a space that the model would have to say; take it away"
    return None


def _unfit_prompts(sides: Sequence[tuple[int, ...]], words: Words, reader: PromptTokenizer) -> str | None:
    """Why these two prompts of equal length cannot be compared; None if they can."""
    if sides[0] == sides[1]:
        return "has the same tokens in the clean and in the corrupted prompt; change what the answer depends on"
    return _too_long(len(sides[0]) + words.read_on(reader.options.metric), reader)


def _too_long(tokens: int, reader: PromptTokenizer) -> str | None:
    """Why a prompt of this many tokens cannot be read; None if it can."""
    if reader.longest is None or tokens <= reader.longest:
        return None
    return f"has {tokens} tokens, and the model reads at most {reader.longest}; shorten it"


def _seam(row: PairRow, clean: str, words: Sequence[str], reader: PromptTokenizer) -> tuple[str, str]:
    """(end of the prompt, text before the answer): a space in one of them, or in neither.

    A space that is written on either side of the seam is kept. If there is none, one is tried first, except after an opening
    bracket, a quotation mark and the like. Of the possible ways, it takes the first in which every answer and foil is one token:
    most tokenizers attach the space to the word after it, but some keep it separate before digits.
    """
    before, alone, none = ("", " "), (" ", ""), ("", "")
    written = clean != row.clean or any(
        word.startswith(" ") for word in (*row.answers, *row.wrong, *row.corrupted_answers)
    )
    if reader.options.space is not None:
        ways = [before, alone] if reader.options.space else [none]
    elif written:
        ways = [before, alone]
    else:
        ways = [none, before, alone] if clean.endswith(OPENING) or reader.ends_itself else [before, alone, none]
    return min(ways, key=lambda way: _longest_word(reader.rendered(clean + way[0]), way[1], words, reader))


def _longest_word(text: str, joint: str, words: Sequence[str], reader: PromptTokenizer) -> float:
    """Number of tokens of the longest of these words after a text; infinite if a word changes the tokens before it."""
    return max(len(reader.encode.continuation(text, joint, word)) or math.inf for word in words)


def _sides(
    row: PairRow, prompts: tuple[str, str], texts: Sequence[str], reader: PromptTokenizer
) -> tuple[alignment.PromptSide, alignment.PromptSide] | str:
    """Both prompts as tokens with their roles; or why a role cannot be found in them."""
    made = []
    for spans, prompt, text in zip((row.spans, row.corrupted_spans), prompts, texts, strict=True):
        moved = _moved(spans or {}, prompt, text)
        if moved is None:
            return "is changed by the chat template, so its roles cannot be found in it; leave the roles out"
        side = alignment.PromptSide(text, reader.ids(text), reader.offsets(text), moved)
        for role in moved:
            if not side.tokens_of(role):
                first, last = (spans or {})[role]
                return f"has the role {role} at {shown(prompt[first:last])}, where no token stands; name a word"
        made.append(side)
    return made[0], made[1]


Filled = tuple[tuple[int, ...], tuple[int, ...]]


def _aligned(
    sides: tuple[alignment.PromptSide, alignment.PromptSide], reader: PromptTokenizer
) -> tuple[tuple[alignment.PromptSide, alignment.PromptSide], Filled] | str:
    """(both prompts, with fillers if the options allow them; the fillers' positions), or why they do not correspond."""
    start, align = len(reader.start), reader.options.align
    if align is None and len(sides[0].ids) != len(sides[1].ids):
        return f"clean has {len(sides[0].ids) + start} tokens and corrupted {len(sides[1].ids) + start}; reword it"
    if refused := _too_long(start + max(len(side.ids) for side in sides), reader):
        return refused
    fills = ([], []) if align is None else alignment.WAYS[align](sides)
    if isinstance(fills, str):
        return fills
    made = [reader.filled(side, own) if own else side for side, own in zip(sides, fills, strict=True)]
    if made[0] is None or made[1] is None:
        return "changes its tokens when fillers stand in it; reword it so that both prompts have one length"
    for role in made[1].roles:
        here, there = (start + side.tokens_of(role)[-1] for side in made if side is not None)
        if here != there:
            return (
                f"has the role {role} at token {here} of its clean prompt and at {there} of the corrupted one, which patching "
                "would not exchange; reword it, or align it with task.align=spans"
            )
    first, second = (tuple(start + place for place in alignment.places(own)) for own in fills)
    return (made[0], made[1]), (first, second)


@dataclass(frozen=True)
class Words:
    """Answers and foils as tokens after a prompt."""

    answers: tuple[tuple[int, ...], ...]
    foils: tuple[tuple[int, ...], ...]

    @property
    def several(self) -> bool:
        """True if one of them has several tokens."""
        return any(len(ids) > 1 for ids in (*self.answers, *self.foils))

    @property
    def shared(self) -> int:
        """Number of tokens that they all begin with; 0 without foils."""
        return len(shared_beginning(self.answers, self.foils))

    @property
    def longest(self) -> int:
        """Number of tokens of the longest of them, without the shared ones."""
        return max(map(len, (*self.answers, *self.foils))) - self.shared

    def read_on(self, metric: Metric) -> int:
        """How many of their tokens a model reads: the shared ones, or under "sequence" all except the last."""
        return self.shared + (self.longest - 1 if metric == "sequence" else 0)


def _words(answers: Iterable[str], wrong: Iterable[str], text: str, joint: str, reader: PromptTokenizer) -> Words | str:
    """The answers and foils after this prompt; or why they cannot be scored there."""
    found: dict[str, list[tuple[int, ...]]] = {"answer": [], "foil": []}
    for kind, words in (("answer", answers), ("foil", wrong)):
        for word in words:
            ids = reader.encode.continuation(text, joint, word)
            if not ids:
                return f"{kind} {shown(word)} changes the tokens before it; end the prompt in a whole word"
            if any(map(reader.is_unknown, ids)):
                return f"{kind} {shown(word)} is unknown to the tokenizer; use another word"
            found[kind].append(tuple(ids))
    words = Words(tuple(found["answer"]), tuple(found["foil"]))
    if both := set(words.answers) & set(words.foils):
        word = next(word for word, ids in zip(answers, words.answers, strict=True) if ids in both)
        return f"has the answer {shown(word)}, which is also its foil; name another foil"
    every = (*words.answers, *words.foils)
    if words.shared and min(map(len, every)) == words.shared:
        return "has an answer or a foil that all the others begin with, so no token tells them apart; name another foil"
    firsts = [{ids[words.shared] for ids in side} for side in (words.answers, words.foils)]
    if firsts[0] & firsts[1]:
        return "has an answer that begins with the same token as a foil, while not all of them do; name another foil"
    return words


def _positions(
    clean: alignment.PromptSide, sides: Sequence[tuple[int, ...]], reader: PromptTokenizer
) -> dict[str, Span]:
    """Character spans in the text that the model reads: the row's roles, FIRST and END."""
    changed = next(place for place, (one, other) in enumerate(zip(*sides, strict=True)) if one != other)
    offsets = clean.offsets
    wide = [
        place for place, (start, end) in enumerate(offsets) if start < end
    ]  # some tokenizers give a space a token of width 0
    first = next((place for place in wide if place >= changed - len(reader.start)), wide[-1])
    return {**clean.roles, FIRST: offsets[first], END: offsets[wide[-1]]}


def _same_tokens(
    positions: Mapping[str, Span], texts: Sequence[str], reader: PromptTokenizer
) -> dict[str, Span] | None:
    """Spans in the second text of the tokens at the same indices as those of `positions` in the first; None if one is missing."""
    here, there = reader.offsets(texts[0]), reader.offsets(texts[1])
    found = {
        role: there[max(i for i, (start, end) in enumerate(here) if start < last and end > first)]
        for role, (first, last) in positions.items()
    }
    return found if all(first < last for first, last in found.values()) else None


def _moved(spans: Mapping[str, Span], prompt: str, text: str) -> dict[str, Span] | None:
    """The spans of `prompt`, moved to the text that the model reads; None if that text does not contain the prompt."""
    trimmed = prompt.strip()
    if prompt in text:
        start = text.rfind(prompt)
    elif trimmed in text:
        start = text.rfind(trimmed) - (len(prompt) - len(prompt.lstrip()))
    else:
        return None if spans else {}
    return {role: (start + first, start + last) for role, (first, last) in spans.items()}


def templated(pairs: Sequence[TokenPair]) -> list[TokenPair]:
    """Every pair with its template: that of its row, split by token length if there are several, or length and changes.

    Under a metric of whole answers, templates are also split by answer length, since each needs reference prompts as long.
    """
    lengths: dict[str, set[int]] = {}
    for pair in pairs:
        if pair.row.template is not None:
            lengths.setdefault(pair.row.template, set()).add(len(pair.clean) + pair.shared)
    made = []
    for pair in pairs:
        own, length = pair.row.template, f"{len(pair.clean) + pair.shared} tokens{_fillers(pair)}"
        if own is None:
            label = f"{FRAME}/{length}, changed {_places(pair.changed)}"
        else:
            label = own if len(lengths[own]) == 1 and not any(pair.filled) else f"{own}/{length}"
        label += f"/answers of {pair.scored}" if pair.scored > 1 else ""
        made.append(replace(pair, template=label))
    return made


def _fillers(pair: TokenPair) -> str:
    """Positions of fillers in either prompt; they are part of a template, whose words have equal positions in all prompts."""
    return f", filled {' and '.join(_places(own) or 'nowhere' for own in pair.filled)}" if any(pair.filled) else ""


def _places(changed: Sequence[int]) -> str:
    """ "3 7-9": positions, runs of them joined."""
    runs: list[list[int]] = []
    for place in changed:
        if runs and runs[-1][1] == place - 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def example(pair: TokenPair) -> Example:
    """The pair as text."""
    return Example(
        clean=pair.texts[0],
        corrupted=pair.texts[1],
        answers=pair.answers,
        wrong=pair.wrong,
        template=pair.template,
        cluster=pair.cluster,
        positions=dict(pair.positions),
        joint=pair.joint,
    )


def unknown_words(pairs: Sequence[TokenPair], reader: PromptTokenizer) -> int:
    """Number of pairs that contain the tokenizer's unknown token."""
    return sum(any(map(reader.is_unknown, (*pair.clean, *pair.corrupted))) for pair in pairs)


def spaces(pairs: Sequence[TokenPair]) -> Counter[str]:
    """Number of pairs whose space belongs to the answer ("answer"), ends the prompt ("prompt"), or is missing ("none")."""
    return Counter("answer" if pair.joint else "prompt" if pair.texts[0].endswith(" ") else "none" for pair in pairs)
