"""PromptSet: clean and corrupted prompts aligned position by position, with their answers and labels."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

import results_io
from circuits import runnable
from circuits.tasks.base import Task
from circuits.tasks.example import Example
from results_io import UserError

GROUPS = "groups"  # prompts drawn for the discovery split beyond its size
SPLITS = {"discovery": 0.30, "evaluation": 0.65, "held_out": 0.85, "reference": 1.0}  # upper edges of hash shares
PADDING = -1
CHANGED = "changed"  # reserved role: every position where the clean and the corrupted token differ
PATIENCE = 20_000  # consecutive draws without a new prompt after which a task counts as exhausted


@dataclass(frozen=True)
class Sequences:
    """The token ids of each answer and of each foil of a prompt, after the tokens they all share at the beginning."""

    answers: tuple[tuple[int, ...], ...]
    wrong: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class PromptSet:
    """Prompts of one task, tokenized; every row is one clean/corrupted pair.

    `clean` and `corrupted` are token ids padded on the right with the pad id (causal attention never sees it). `end` is the
    index of the last real token, where the answer is predicted. `answers` and `wrong` are token ids padded with -1; a row
    without foils is compared with the whole vocabulary. `positions` maps a role to its token index in each row. Prompts of one
    template have equal lengths. If some answers or foils have several tokens, `sequences` has those of each row as token ids
    from `end` on, and `answers` and `wrong` are their first tokens.
    """

    task: str
    split: str
    clean: Int[Tensor, "prompt position"]
    corrupted: Int[Tensor, "prompt position"]
    end: Int[Tensor, " prompt"]
    answers: Int[Tensor, "prompt answer"]
    wrong: Int[Tensor, "prompt foil"]
    templates: tuple[str, ...]
    clusters: tuple[str, ...]
    positions: Mapping[str, Int[Tensor, " prompt"]]
    ids: tuple[str, ...]
    splits: tuple[str, ...]
    factors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bos: str | None = None
    sequences: tuple[Sequences, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def sha256(self) -> str:
        """Identity of the rows and their order."""
        return results_io.sha256([self.task, self.ids])

    def select(self, index: Iterable[int]) -> PromptSet:
        """The rows `index`, in that order."""
        rows = torch.as_tensor(list(index), dtype=torch.long)
        pick = rows.tolist()
        width = int(self.end[rows].max()) + 1 if len(pick) else 0
        return PromptSet(
            task=self.task,
            split=self.split,
            clean=self.clean[rows, :width],
            corrupted=self.corrupted[rows, :width],
            end=self.end[rows],
            answers=self.answers[rows],
            wrong=self.wrong[rows],
            templates=tuple(self.templates[i] for i in pick),
            clusters=tuple(self.clusters[i] for i in pick),
            positions={role: where[rows] for role, where in self.positions.items()},
            ids=tuple(self.ids[i] for i in pick),
            splits=tuple(self.splits[i] for i in pick),
            factors={name: tuple(values[i] for i in pick) for name, values in self.factors.items()},
            bos=self.bos,
            sequences=tuple(self.sequences[i] for i in pick) if self.sequences else (),
        )

    @cached_property
    def without_foils(self) -> Bool[Tensor, " prompt"]:
        """True for rows without foils, which are compared with the whole vocabulary."""
        return (self.wrong == PADDING).all(1)

    def rows_of(self, split: str) -> list[int]:
        return [i for i, name in enumerate(self.splits) if name == split]

    def require_disjoint(self, other: PromptSet) -> None:
        """Raises UserError if a clean prompt of one set is also in the other."""
        shared = self.texts & other.texts
        if shared:
            raise UserError(
                f"{len(shared)} prompts stand in both the {self.split} and the {other.split} set of {self.task}; "
                "reference and discovery prompts must come from outside the scored ones, so draw them anew"
            )

    def require_same_lengths(self, other: PromptSet) -> None:
        """Raises UserError if a template has another number of tokens in `other`, since positions would not correspond."""
        for template in sorted(set(self.lengths) & set(other.lengths)):
            if self.lengths[template] != other.lengths[template]:
                raise UserError(
                    f"{self.task}: template {template!r} has {self.lengths[template]} tokens in the {self.split} set "
                    f"and {other.lengths[template]} in the {other.split} set; give them different template labels"
                )

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Number of tokens of each template's prompts."""
        return dict(zip(self.templates, (self.end + 1).tolist(), strict=True))

    @cached_property
    def texts(self) -> frozenset[tuple[int, ...]]:
        """Every distinct clean token sequence of the set."""
        rows = zip(self.clean.tolist(), self.end.tolist(), strict=True)
        return frozenset(tuple(tokens[: end + 1]) for tokens, end in rows)


def sizes_of(settings: Mapping[str, Any]) -> dict[str, int]:
    """The number of prompts of each split in the configuration's section `prompts`, that is all of it except `templates`."""
    return {name: value for name, value in settings.items() if name != "templates"}


def split_of(example: Example) -> str:
    """The split that an example belongs to, determined only by the hash of its clean text.

    The rule depends neither on seed nor on size, so no prompt can be in two splits.
    """
    share = int.from_bytes(hashlib.sha256(example.clean.encode()).digest()[:8], "big") / 2**64
    return next(name for name, edge in SPLITS.items() if share < edge)


class Places:
    """The room that a split has left: `size` prompts, equally many of each template if there are `templates`."""

    def __init__(self, size: int, templates: Sequence[str]) -> None:
        self.left = size
        self.each = size // len(templates) if templates else size
        self.extra = size - self.each * len(templates) if templates else 0
        self.taken: dict[str, int] = {}

    def take(self, template: str) -> bool:
        """Take a place for a prompt of this template; False if there is none."""
        taken = self.taken.get(template, 0)
        if not self.left or taken > self.each or (taken == self.each and not self.extra):
            return False
        self.extra -= taken == self.each and self.extra > 0
        self.taken[template] = taken + 1
        self.left -= 1
        return True


def draw_examples(task: Task, sizes: Mapping[str, int], seed: int) -> dict[str, list[Example]]:
    """Distinct examples for each split, drawn until every split is full.

    Discovery prompts beyond the split's size go to "groups", if `sizes` has it; no circuit is chosen on these. A task that names
    its k templates has each of them n // k or one more times in a split of n. For a task with given examples, each split has
    its first `size` examples, or fewer if there are fewer. Raises UserError if the task cannot produce enough distinct prompts.
    """
    if task.given is not None:
        given = {**task.given, GROUPS: task.given["discovery"][sizes.get("discovery", 0) :]}
        return {name: list(given[name][:size]) for name, size in sizes.items()}
    assert task.sample is not None  # only a task with given examples has none
    rng = random.Random(f"{task.name}/{seed}")
    drawn: dict[str, list[Example]] = {name: [] for name in sizes}
    places = {name: Places(size, task.templates) for name, size in sizes.items()}
    seen: set[str] = set()
    wanted, in_vain = sum(sizes.values()), 0
    while in_vain < PATIENCE:
        if len(seen) == wanted:
            return drawn
        example = task.sample(rng)
        in_vain += 1
        if example.clean in seen:
            continue
        own = split_of(example)
        for split in (own, GROUPS) if own == "discovery" else (own,):
            if split in places and places[split].take(example.template):
                seen.add(example.clean)
                drawn[split].append(example)
                in_vain = 0
                break
    short = next(name for name, size in sizes.items() if len(drawn[name]) < size)
    raise UserError(
        f"task {task.name} yields only {len(drawn[short])} distinct {short} prompts of the {sizes[short]} asked for; "
        "ask for fewer prompts"
    )


def tokenize(task: Task, examples: Sequence[Example], tokenizer: Any, split: str) -> PromptSet:
    """Tokenize examples into one PromptSet.

    Raises UserError, with the row, if a clean and a corrupted prompt differ in length, an answer is not one token, answers and
    foils overlap, or prompts of one template differ in length.
    """
    if not examples:
        raise UserError(f"no {split} prompts for task {task.name}; ask for at least one")
    if task.bos and tokenizer.bos_token_id is None:
        raise UserError(
            f"task {task.name} begins its prompts with a BOS token and this tokenizer has none; run with task.bos=false"
        )
    encode = Encoder(tokenizer)
    rows = [_tokenize_row(task, example, encode) for example in examples]
    _require_one_length_per_template(task, examples, rows)
    rows_known = getattr(tokenizer, "embedding_rows", None) or math.inf
    ids = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    pad = next(index for index in ids if index is not None and index < rows_known)  # never attended to
    roles = list(rows[0]["positions"])
    return PromptSet(
        task=task.name,
        split=split,
        clean=_pad([row["clean"] for row in rows], pad),
        corrupted=_pad([row["corrupted"] for row in rows], pad),
        end=torch.tensor([len(row["clean"]) - 1 for row in rows]),
        answers=_pad([row["answers"] for row in rows], PADDING),
        wrong=_pad([row["wrong"] for row in rows], PADDING),
        templates=tuple(example.template for example in examples),
        clusters=tuple(example.cluster for example in examples),
        positions={role: torch.tensor([row["positions"][role] for row in rows]) for role in roles},
        ids=tuple(example.id for example in examples),
        splits=tuple([split] * len(examples)),
        factors={name: tuple(example.factors.get(name, "") for example in examples) for name in examples[0].factors},
        bos=tokenizer.bos_token if task.bos else None,
        sequences=tuple(row["sequences"] for row in rows) if several_tokens(task) else (),
    )


def several_tokens(task: Task) -> bool:
    """True if answers and foils of this task may have several tokens."""
    return task.several_tokens or task.metric == "sequence"


def join(first: PromptSet, second: PromptSet) -> PromptSet:
    """Both sets, one after the other; each row remembers its split."""
    width = max(first.clean.shape[1], second.clean.shape[1])
    sides = (first, second)

    def tokens(name: str) -> Tensor:
        pad = [torch.nn.functional.pad(getattr(s, name), (0, width - s.clean.shape[1])) for s in sides]
        return torch.cat(pad)

    def ids(name: str) -> Tensor:
        both = [getattr(s, name) for s in sides]
        most = max(part.shape[1] for part in both)
        pad = [torch.nn.functional.pad(part, (0, most - part.shape[1]), value=PADDING) for part in both]
        return torch.cat(pad)

    return PromptSet(
        task=first.task,
        split="scored",
        clean=tokens("clean"),
        corrupted=tokens("corrupted"),
        end=torch.cat([first.end, second.end]),
        answers=ids("answers"),
        wrong=ids("wrong"),
        templates=first.templates + second.templates,
        clusters=first.clusters + second.clusters,
        positions={role: torch.cat([first.positions[role], second.positions[role]]) for role in first.positions},
        ids=first.ids + second.ids,
        splits=first.splits + second.splits,
        factors={name: first.factors[name] + second.factors[name] for name in first.factors},
        bos=first.bos,
        sequences=first.sequences + second.sequences,
    )


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([list(row) + [value] * (width - len(row)) for row in rows])


class Encoder:
    """A tokenizer that adds no special tokens, and the tokens that continue a text."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.continuations: dict[str, list[int]] = {}

    def __call__(self, text: str, **options: Any) -> Any:
        """The encoded text. Raises UserError if the tokenizer fails at it, or makes a token without a row in the embedding."""
        try:
            encoded = self.tokenizer(
                text, add_special_tokens=False, verbose=False, **options
            )  # we report texts that are too long ourselves
        except BaseException as error:  # the tokenizers library raises a bare Exception, or panics
            if type(error) is not Exception and not runnable.is_panic(error):
                raise
            raise UserError(f"the tokenizer cannot encode {text!r}{runnable.reason(error)}; reword it") from error
        rows, largest = getattr(self.tokenizer, "embedding_rows", None), max(encoded["input_ids"], default=0)
        if rows and largest >= rows:
            raise UserError(f"a token of {text!r} has the id {largest}, and the embedding has {rows} rows; reword it")
        return encoded

    def continuation(self, text: str, joint: str, word: str) -> list[int]:
        """Ids that `joint` and `word` add to those of `text`; none if they change the ids at its end.

        Tokenizers depend only on a few characters on either side of a seam, so the last word of `text` stands in for all of it.
        """
        end = text[max(text.rfind(" "), 0) :]
        key = f"{end}\0{joint}{word}"
        if key not in self.continuations:
            before, both = (self(part)["input_ids"] for part in (end, f"{end}{joint}{word}"))
            self.continuations[key] = both[len(before) :] if both[: len(before)] == before else []
        return self.continuations[key]


def _tokenize_row(task: Task, example: Example, encode: Encoder) -> dict[str, Any]:
    start = [encode.tokenizer.bos_token_id] if task.bos else []
    encoded = encode(example.clean, return_offsets_mapping=True)
    clean = start + encoded["input_ids"]
    corrupted = start + encode(example.corrupted)["input_ids"]
    if len(clean) != len(corrupted):
        raise UserError(
            f"{task.name}: clean prompt {example.clean!r} has {len(clean)} tokens and its corrupted twin "
            f"{example.corrupted!r} has {len(corrupted)}; pairs must be equally long, so drop or reword it"
        )
    places = {}
    for role, span in example.positions.items():
        at = _token_at(encoded["offset_mapping"], span)
        if at is None:
            raise UserError(
                f"{task.name}: the tokenizer has no token for {example.clean[slice(*span)]!r}, which is {role} in "
                f"{example.clean!r}; reword the prompt"
            )
        places[role] = len(start) + at
    if several_tokens(task):
        shared, sequences = _sequences(task, example, encode)
        clean, corrupted = clean + shared, corrupted + shared
        answers, wrong = ([ids[0] for ids in side] for side in (sequences.answers, sequences.wrong))
        if "end" in places:  # where the answer is predicted
            places["end"] = len(clean) - 1
    else:
        sequences = None
        answers = [_single_token(task, word, example, encode) for word in example.answers]
        wrong = [_single_token(task, word, example, encode) for word in example.wrong]
    if set(answers) & set(wrong):
        begins = "begins with the same token as" if several_tokens(task) else "is also"
        raise UserError(f"{task.name}: an answer of {example.clean!r} {begins} one of its foils; reword the prompt")
    row = {"clean": clean, "corrupted": corrupted, "answers": answers, "wrong": wrong, "positions": places}
    return {**row, "sequences": sequences}


def shared_beginning(answers: Sequence[Sequence[int]], foils: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all answers and foils begin with; none if there are no foils."""
    columns = zip(*answers, *foils, strict=False) if foils else ()
    return [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]


def _sequences(task: Task, example: Example, encode: Encoder) -> tuple[list[int], Sequences]:
    """(tokens that all answers and foils begin with, the remaining tokens of each).

    Raises UserError if a word does not continue the prompt, or if an answer and a foil do not differ where both have a token.
    """
    sides = [[_tokens(task, word, example, encode) for word in words] for words in (example.answers, example.wrong)]
    every, shared = [*sides[0], *sides[1]], shared_beginning(*sides)
    if shared and min(map(len, every)) == len(shared):
        shortest = (*example.answers, *example.wrong)[min(range(len(every)), key=lambda at: len(every[at]))]
        raise UserError(
            f"{task.name}: {shortest!r} is the beginning of every other answer and foil of {example.clean!r}, so that there is "
            "no token at which they differ; give it other ones"
        )
    if task.metric == "sequence" and not (sides[0] and sides[1]):
        raise UserError(
            f"{task.name}: {example.clean!r} has no foil to compare its answer's probability with; name one"
        )
    answers, wrong = (tuple(tuple(ids[len(shared) :]) for ids in side) for side in sides)
    return shared, Sequences(answers, wrong)


def _tokens(task: Task, word: str, example: Example, encode: Encoder) -> list[int]:
    """Ids of `word` after the clean prompt, one or more. Raises UserError if there are none or if one is unknown."""
    ids = encode.continuation(example.clean, example.joint, word)
    unknown = {encode.tokenizer.unk_token_id} - {encode.tokenizer.eos_token_id}
    if not ids or unknown & set(ids):
        raise UserError(
            f"{task.name}: {_side(word, example)} {word!r} does not continue {example.clean!r} in tokens that the tokenizer "
            "knows; use another"
        )
    return ids


def _single_token(task: Task, word: str, example: Example, encode: Encoder) -> int:
    """Id of `word` after the clean prompt. In byte-level tokenizers the space before it is part of the token."""
    ids = encode.continuation(example.clean, example.joint, word)
    side = _side(word, example)
    if len(ids) != 1:
        raise UserError(f"{task.name}: {side} {word!r} is {len(ids)} tokens; expected 1: use another word")
    if ids[0] == encode.tokenizer.unk_token_id != encode.tokenizer.eos_token_id:
        raise UserError(f"{task.name}: {side} {word!r} is unknown to the tokenizer; use another word")
    return ids[0]


def _side(word: str, example: Example) -> str:
    return "answer" if word in example.answers else "foil"


def _token_at(offsets: Sequence[tuple[int, int]], span: tuple[int, int]) -> int | None:
    """Index of the last token that overlaps a character span; None if there is none."""
    return max((i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]), default=None)


def _require_one_length_per_template(task: Task, examples: Sequence[Example], rows: Sequence[Mapping]) -> None:
    lengths: dict[str, int] = {}
    for example, row in zip(examples, rows, strict=True):
        expected = lengths.setdefault(example.template, len(row["clean"]))
        if expected != len(row["clean"]):
            raise UserError(
                f"{task.name}: template {example.template!r} has prompts of {expected} and {len(row['clean'])} tokens "
                f"({example.clean!r}); give them different template labels"
            )
