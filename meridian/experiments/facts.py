"""Facts: prompts whose next token names an attribute of their subject, with the positions of the subject's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from circuits.prompts import PromptSet
from results_io import UserError
from suites import bounded_yaml

SHIPPED = Path(__file__).parent / "facts.yaml"
SLOT = "{}"
SUBJECT_LAST, END = "subject_last", "end"  # roles of positions


@dataclass(frozen=True)
class SubjectFact:
    """`prompt` ends right before `answer`; `start` and `end` are the character offsets of the subject."""

    prompt: str
    answer: str
    start: int
    end: int

    @property
    def subject(self) -> str:
        return self.prompt[self.start : self.end]


@dataclass(frozen=True)
class TokenizedFact:
    """A fact in tokens: the whole prompt, the positions of the subject, the first token of the answer."""

    fact: SubjectFact
    ids: tuple[int, ...]
    subject: tuple[int, ...]
    answer: int


def read(path: str | None) -> list[SubjectFact]:
    """The facts of a file, or the shipped ones if `path` is None. UserError if the file does not hold facts."""
    where = Path(path) if path else SHIPPED
    try:
        relations = bounded_yaml.read(where)
        return [
            _fact(str(one["relation"]), str(subject), str(answer))
            for one in relations
            for subject, answer in one["facts"].items()
        ]
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"experiment.facts={where} is no file of facts ({type(error).__name__}: {error}); write a list of relations, each "
            f"with its prompt (the subject's place {SLOT}) and facts (subject: answer)"
        ) from error


def _fact(relation: str, subject: str, answer: str) -> SubjectFact:
    start = relation.index(SLOT)
    return SubjectFact(relation.replace(SLOT, subject), answer, start, start + len(subject))


def tokenized(facts: Sequence[SubjectFact], tokenizer: Any, bos: bool) -> list[TokenizedFact]:
    """The facts whose tokens the tokenizer all knows; `bos` puts a BOS token before each.

    UserError if `bos` is set and the tokenizer has no BOS token.
    """
    if bos and tokenizer.bos_token_id is None:
        raise UserError(
            "experiment.bos=true: facts begin with a BOS token and this tokenizer has none; run with experiment.bos=false"
        )
    unknown = tokenizer.unk_token_id if tokenizer.unk_token_id != tokenizer.eos_token_id else None
    start = [tokenizer.bos_token_id] if bos else []
    found = []
    for fact in facts:
        encoded = tokenizer(fact.prompt, add_special_tokens=False, return_offsets_mapping=True)
        both = tokenizer(f"{fact.prompt} {fact.answer}", add_special_tokens=False)["input_ids"]
        ids = encoded["input_ids"]
        if both[: len(ids)] != ids or len(both) == len(ids) or unknown in both:
            continue
        inside = [
            len(start) + place
            for place, (first, last) in enumerate(encoded["offset_mapping"])
            if first < fact.end and last > fact.start
        ]
        found.append(TokenizedFact(fact, (*start, *ids), tuple(inside), both[len(ids)]))
    return found


def prompt_set(facts: Sequence[TokenizedFact], vocabulary: int) -> PromptSet:
    """The facts as prompts. The corrupted twins differ in the subject's tokens only, and are not run.

    They make the role "changed" name the subject's tokens.
    """
    clean = [torch.tensor(one.ids) for one in facts]
    twins = [tokens.clone() for tokens in clean]
    for twin, one in zip(twins, facts, strict=True):
        twin[list(one.subject)] = (twin[list(one.subject)] + 1) % vocabulary
    answers = torch.tensor([[one.answer] for one in facts])
    return _prompts(
        clean,
        twins,
        answers=answers,
        wrong=(answers + 1) % vocabulary,
        names=[one.fact.prompt for one in facts],
        positions={
            SUBJECT_LAST: torch.tensor([one.subject[-1] for one in facts]),
            END: torch.tensor([len(one.ids) - 1 for one in facts]),
        },
    )


def subjects(facts: Sequence[TokenizedFact]) -> PromptSet:
    """The subjects' tokens alone; the spread of their embeddings sets the size of the noise."""
    rows = [torch.tensor([one.ids[place] for place in one.subject]) for one in facts]
    none = torch.zeros(len(rows), 1, dtype=torch.long)
    names = [f"subject {number}" for number in range(len(rows))]
    return _prompts(rows, rows, answers=none, wrong=none + 1, names=names, positions={})


def _prompts(
    clean: Sequence[Tensor],
    corrupted: Sequence[Tensor],
    answers: Tensor,
    wrong: Tensor,
    names: Sequence[str],
    positions: dict[str, Tensor],
) -> PromptSet:
    labels = tuple(names)
    return PromptSet(
        task="facts",
        split="none",
        clean=pad_sequence(list(clean), batch_first=True),
        corrupted=pad_sequence(list(corrupted), batch_first=True),
        end=torch.tensor([len(row) - 1 for row in clean]),
        answers=answers,
        wrong=wrong,
        templates=labels,
        clusters=labels,
        positions=positions,
        ids=labels,
        splits=tuple(["none"] * len(labels)),
    )
