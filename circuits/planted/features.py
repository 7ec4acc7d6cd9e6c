"""The residual stream of a planted model: its subspaces, what embeddings write to them, what logits read from them."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from circuits.tasks import lexicon

D_MODEL = 512  # width of models with eight heads in a layer
N_POSITIONS = 64  # the longest prompt has 20 tokens with BOS, the attention diagnostics 41

NAME_WIDTH, POSITION_WIDTH, WORD_WIDTH, YEAR_WIDTH, CENTURY_WIDTH = 40, 23, 48, 16, 8
N_CLASSES = 6
OBJECT_CLASSES = tuple(f"object_{number}" for number in range(N_CLASSES))
MENTIONED_CLASSES = tuple(f"mentioned_object_{number}" for number in range(N_CLASSES))
SUBSPACES = {
    "constant": 1,
    "bos": 1,
    "name": NAME_WIDTH,
    "is_name": 1,
    "gender": 1,  # +1 male, -1 female
    "word": WORD_WIDTH,
    "has_word": 1,  # the token has a code in "word"
    "number": 1,
    "century": CENTURY_WIDTH,
    "year": YEAR_WIDTH,
    "noun": 1,
    "plurality": 1,  # +1 singular, -1 plural
    "position": POSITION_WIDTH,
    "previous_position": POSITION_WIDTH,
    "distance_from_bos": 1,  # in tens of tokens
    "expects_name": 1,
    "expects_pronoun": 1,
    "pronoun_case": 1,  # +1 possessive, -1 subject
    "expects_verb": 1,
    "duplicate": 1,
    "duplicated_name": NAME_WIDTH,
    "inhibited_name": NAME_WIDTH,
    "previous_word": WORD_WIDTH,
    "after_word": 1,
    "previous_century": CENTURY_WIDTH,
    "answer_name": NAME_WIDTH,
    "answer_word": WORD_WIDTH,
    "answer_year": YEAR_WIDTH,
    "answer_gender": 1,
    "answer_plurality": 1,
    "junk": 24,
    "junk_written": 40,
    "balance": 1,
    # Only some variants use the subspaces below; in the others they hold only the noise of noise heads.
    "template_cue": 1,  # the token reveals the template
    "cued_template": 1,
    "common_name": 1,
    "rare_name": 1,
    **dict.fromkeys(OBJECT_CLASSES, 1),
    **dict.fromkeys(MENTIONED_CLASSES, 1),
    "mover_present": 1,
    "gate": 1,
    "unread": 1,
    "helped_name": 1,
    "name_written": 1,
}
WIDE_SUBSPACES = {  # further subspaces, in models with more than eight heads in a layer
    "draft": NAME_WIDTH,
    "draft_a": NAME_WIDTH,
    "draft_b": NAME_WIDTH,
    "drafted_duplicate": NAME_WIDTH,
    "duplicated_position": POSITION_WIDTH,
    "inhibited_position": POSITION_WIDTH,
}

SUBJECT_PRONOUN_FOLLOWS = ("because", "when", "so")
POSSESSIVE_PRONOUN_FOLLOWS = lexicon.LOSING_VERBS
CUE = "Friends"  # one of the six templates of indirect object identification has this word
RARE_NAMES = lexicon.NAMES[9::10]
HELPED_NAMES = lexicon.NAMES[3::7]


@cache
def spread_codes(count: int, width: int, steps: int = 100, learning_rate: float = 0.05) -> Float[Tensor, "count width"]:
    """`count` unit vectors of `width` dimensions whose largest |inner product| is small, the same in every process.

    They come from gradient descent on the sum of 8th powers of the inner products.
    """
    generator = torch.Generator().manual_seed(0)
    free = torch.randn(count, width, generator=generator, requires_grad=True)
    optimizer = torch.optim.Adam([free], lr=learning_rate)
    with torch.enable_grad():
        for _ in range(steps):
            codes = torch.nn.functional.normalize(free, dim=1)
            loss = (codes @ codes.T - torch.eye(count)).pow(8).sum().log()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return torch.nn.functional.normalize(free.detach(), dim=1)


@cache
def year_codes() -> tuple[Float[Tensor, "year width"], Float[Tensor, "year width"]]:
    """Codes of start and end years whose inner product is about +1 if the end is later and -1 if not.

    They are the best approximation of that sign matrix at this width (by singular value decomposition).
    """
    years = torch.arange(len(lexicon.NUMBERS))
    later = torch.where(years[:, None] < years[None, :], 1.0, -1.0)
    left, singular, right = torch.linalg.svd(later)
    scale = singular[:YEAR_WIDTH].sqrt()
    return left[:, :YEAR_WIDTH] * scale, right[:YEAR_WIDTH].T * scale


def flag(*words: str, value: float = 1.0) -> dict[str, Tensor]:
    """The same number for each of these words, in a subspace of one dimension."""
    return {word: torch.tensor([value]) for word in words}


def coded(words: Sequence[str], codes: Float[Tensor, "word width"]) -> dict[str, Tensor]:
    """One code for each of these words."""
    return dict(zip(words, codes, strict=True))


def embedded_features(generator: torch.Generator, wanted: Container[str] = ()) -> dict[str, dict[str, Tensor]]:
    """{subspace: {word: the part of the word's embedding there}}; zero for words not listed.

    Special features are left out unless `wanted`, since a feature that no mechanism reads would still affect noise heads.
    """
    junk = torch.randn(len(lexicon.VOCABULARY), SUBSPACES["junk"], generator=generator)
    return {
        "constant": flag(*lexicon.VOCABULARY),
        "bos": flag(lexicon.BOS),
        "name": coded(lexicon.NAMES, spread_codes(len(lexicon.NAMES), NAME_WIDTH)),
        "is_name": flag(*lexicon.NAMES),
        "gender": flag(*lexicon.MALE_NAMES) | flag(*lexicon.FEMALE_NAMES, value=-1.0),
        "word": word_codes(),
        "has_word": flag(*lexicon.REPEATABLE_WORDS),
        "number": flag(*lexicon.NUMBERS),
        "century": coded(lexicon.CENTURIES, spread_codes(len(lexicon.CENTURIES), CENTURY_WIDTH)),
        "year": coded(lexicon.NUMBERS, year_codes()[0]),
        "noun": flag(*lexicon.NOUNS, *lexicon.PLURAL_NOUNS),
        "plurality": flag(*lexicon.NOUNS) | flag(*lexicon.PLURAL_NOUNS, value=-1.0),
        "expects_name": flag("to"),
        "expects_pronoun": flag(*SUBJECT_PRONOUN_FOLLOWS, *POSSESSIVE_PRONOUN_FOLLOWS),
        "pronoun_case": flag(*SUBJECT_PRONOUN_FOLLOWS, value=-1.0) | flag(*POSSESSIVE_PRONOUN_FOLLOWS),
        "expects_verb": flag(*lexicon.NOUNS, *lexicon.PLURAL_NOUNS, *lexicon.SINGULAR_VERBS, *lexicon.PLURAL_VERBS),
        "junk": coded(lexicon.VOCABULARY, junk / math.sqrt(SUBSPACES["junk"])),
        **{subspace: values for subspace, values in special_features().items() if subspace in wanted},
    }


def special_features() -> dict[str, dict[str, Tensor]]:
    """{subspace: {word: value}} of features that only the heads of some variants read."""
    return {
        "template_cue": flag(CUE),
        "common_name": flag(*(name for name in lexicon.NAMES if name not in RARE_NAMES)),
        "rare_name": flag(*RARE_NAMES),
        "helped_name": flag(*HELPED_NAMES),
        **{name: flag(*lexicon.OBJECTS[number::N_CLASSES]) for number, name in enumerate(OBJECT_CLASSES)},
    }


def answer_features() -> dict[str, dict[str, Tensor]]:
    """{subspace: {word: the direction there that raises the word's logit}}."""
    return {
        "answer_name": coded(lexicon.NAMES, spread_codes(len(lexicon.NAMES), NAME_WIDTH)),
        "answer_word": word_codes(),
        "answer_year": coded(lexicon.NUMBERS, year_codes()[1]),
        "pronoun_case": flag("his", "her", value=2.0) | flag("he", "she", value=-2.0),
        "answer_gender": flag("he", "his") | flag("she", "her", value=-1.0),
        "answer_plurality": flag(*lexicon.SINGULAR_VERBS) | flag(*lexicon.PLURAL_VERBS, value=-1.0),
    }


def word_codes() -> dict[str, Tensor]:
    """A code for each word that occurs in lists of random words."""
    return coded(lexicon.REPEATABLE_WORDS, spread_codes(len(lexicon.REPEATABLE_WORDS), WORD_WIDTH))


@cache
def columns(subspace: str | None) -> slice:
    """The coordinates of the subspace in the residual stream; None means the whole stream of any width."""
    if subspace is None:
        return slice(None)
    for start, subspaces in ((0, SUBSPACES), (D_MODEL, WIDE_SUBSPACES)):
        for name, width in subspaces.items():
            if name == subspace:
                return slice(start, start + width)
            start += width
    raise ValueError(f"unknown subspace {subspace!r}: expected one of {', '.join((*SUBSPACES, *WIDE_SUBSPACES))}")


def width_of(subspace: str) -> int:
    """The number of dimensions of the subspace."""
    place = columns(subspace)
    return place.stop - place.start


def word_matrix(
    features: Mapping[str, Mapping[str, Tensor]], d_model: int = D_MODEL
) -> Float[Tensor, "vocabulary d_model"]:
    """One row per word of the vocabulary with its features in their subspaces."""
    ids = {word: index for index, word in enumerate(lexicon.VOCABULARY)}
    matrix = torch.zeros(len(ids), d_model)
    for subspace, of_word in features.items():
        for word, vector in of_word.items():
            matrix[ids[word], columns(subspace)] = vector
    return matrix


def position_matrix(d_model: int = D_MODEL) -> Float[Tensor, "position d_model"]:
    """One row per position: its code, the code of the position before it, and its distance from BOS."""
    codes = spread_codes(N_POSITIONS, POSITION_WIDTH)
    matrix = torch.zeros(N_POSITIONS, d_model)
    matrix[:, columns("position")] = codes
    matrix[1:, columns("previous_position")] = codes[:-1]
    matrix[:, columns("distance_from_bos")] = torch.arange(N_POSITIONS)[:, None] / 10
    return matrix
