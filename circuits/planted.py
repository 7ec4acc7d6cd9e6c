"""A hand-written GPT-2 whose circuits are known: the ground truth that measurements are checked against.

Every head is described by what its queries and keys compare and by what it copies from where to where, and one
compiler turns the descriptions into the weights of an ordinary `GPT2LMHeadModel`:

- The residual stream is a direct sum of named subspaces (`SUBSPACES`): codes of names, words and positions, flags,
  and what heads write. Token and position embeddings fill some of them, the unembedding reads others.
- The MLPs are zero. LayerNorm is made linear: the coordinate "balance" holds minus the sum of all others, so that
  every mean is zero, and epsilon is so large that the scale is sqrt(epsilon) up to rounding; its gain undoes it.
- Heads outside the circuits are decoys: random attention, random outputs of the same size, nothing that any
  circuit or the unembedding reads (junk writers), or a little noise everywhere (noise heads).

In the sound variant each task's circuit is all that works on it, under every kind of ablation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from circuits.circuit import INPUT, OUTPUT, Circuit, Node, Pathway, Role, head
from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import lexicon
from results_io import UserError

N_LAYERS, N_HEADS, D_HEAD = 4, 8, 64
D_MODEL = N_HEADS * D_HEAD
N_POSITIONS = 64  # the longest prompt has 20 tokens with BOS, the attention diagnostics 41
D_MLP = 8  # the MLPs are zero; GPT-2 has to have them
LAYER_NORM_EPSILON = 2.0**16  # residual variance is about 3: its effect on the scale is 3e-5, and sqrt is exact

NAME_WIDTH, POSITION_WIDTH, WORD_WIDTH, YEAR_WIDTH, CENTURY_WIDTH = 40, 23, 48, 16, 8
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
}
ATTENTION_SHARPNESS = 12.0  # score of a full match, before softmax


@dataclass(frozen=True)
class Attend:
    """One term of the attention score: weight * <query subspace of the reader, key subspace of the token read>."""

    query: str
    key: str
    weight: float


@dataclass(frozen=True)
class Copy:
    """One output: gain * what the attended token holds in `source`, added to `destination`."""

    source: str
    destination: str
    gain: float


@dataclass(frozen=True)
class Mechanism:
    """A head that does something: where it looks and what it moves. Widths of all terms add up to D_HEAD at most."""

    attends: tuple[Attend, ...]
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Decoy:
    """A head with random weights from `source` to `destination` (None: the whole residual stream); SDs of weights."""

    source: str | None
    destination: str | None
    attention_sd: float
    value_sd: float
    output_sd: float


@dataclass(frozen=True)
class Design:
    """What every head of a variant does, and the circuit claimed for each task: its roles and what feeds what."""

    heads: Mapping[Node, Mechanism | Decoy]
    claims: Mapping[str, Mapping[str, Role]]
    pathways: Mapping[str, tuple[Pathway, ...]]


@dataclass(frozen=True)
class PlantedModel:
    """A model with the circuits claimed for it, by task.

    TransformerBridge rewires the model that it is given: build again for a second use.
    """

    name: str
    model: GPT2LMHeadModel
    tokenizer: PreTrainedTokenizerFast
    circuits: Mapping[str, Circuit]

    @property
    def circuit(self) -> Circuit:
        """The circuit claimed for indirect object identification."""
        return self.circuits["ioi"]


def build(variant: str = "sound", seed: int = 0) -> PlantedModel:
    """The planted model of this variant, ready for measuring (eval mode, float32, CPU).

    `seed` draws the decoys and the junk that they read; the circuits do not depend on it. UserError if the variant
    is unknown.
    """
    name, design = f"planted/{variant}", _design(variant)
    return PlantedModel(name, compile_model(design, seed), tokenizer_with_bos(name), claimed_circuits(variant, seed))


def claimed_circuits(variant: str, seed: int = 0) -> dict[str, Circuit]:
    """The circuits that come with a variant, by task, without building its weights. UserError as `build`."""
    provenance = {"kind": "planted", "variant": variant, "seed": seed}
    name, design = f"planted/{variant}", _design(variant)
    return {
        task: Circuit(f"planted_{variant}_{task}", task, name, roles, provenance, design.pathways.get(task, ())).check(
            N_LAYERS, N_HEADS
        )
        for task, roles in design.claims.items()
    }


def _design(variant: str) -> Design:
    if variant not in DESIGNS:
        raise UserError(f"unknown planted variant {variant!r}: expected one of {', '.join(VARIANTS)}")
    return DESIGNS[variant]()


def tokenizer_with_bos(name: str) -> PreTrainedTokenizerFast:
    """The embedded models' tokenizer, set to start every text with BOS.

    TransformerBridge would set this by loading the tokenizer anew from its folder, which a planted model has not.
    """
    tokenizer = build_tokenizer()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        add_bos_token=True,
        name_or_path=name,
        clean_up_tokenization_spaces=False,
        **tokenizer.special_tokens_map,
    )


# ---------------------------------------------------------------------------------------------------------------
# What the heads do
# ---------------------------------------------------------------------------------------------------------------


def rest_on_bos(weight: float) -> Attend:
    """Look at BOS, which has nothing to copy, unless another term scores more than `weight`."""
    return Attend("constant", "bos", weight)


def duplicate_token() -> Mechanism:
    """From a name to its earlier occurrence: same name, other position. Marks the later one as a duplicate.

    It also copies the name: a mark alone would be the same in all prompts of a template, hence survive the mean
    over them.
    """
    return Mechanism(
        attends=(
            Attend("name", "name", ATTENTION_SHARPNESS),
            Attend("position", "position", -ATTENTION_SHARPNESS),
            rest_on_bos(0.6 * ATTENTION_SHARPNESS),
        ),
        copies=(Copy("is_name", "duplicate", 0.5), Copy("name", "duplicated_name", 0.5)),
    )


def s_inhibition() -> Mechanism:
    """From the end to the duplicate: tells the end which name not to say."""
    return Mechanism(
        attends=(Attend("expects_name", "duplicate", 14.0), rest_on_bos(6.0)),
        copies=(Copy("duplicated_name", "inhibited_name", 0.5),),
    )


def name_mover(gain: float) -> Mechanism:
    """From the end to every name that is not inhibited: raises that name's logit."""
    return Mechanism(
        attends=(
            Attend("expects_name", "is_name", 12.0),
            Attend("inhibited_name", "name", -6.0),
            rest_on_bos(8.0),
        ),
        copies=(Copy("name", "answer_name", gain),),
    )


def previous_token(*copies: Copy) -> Mechanism:
    """From every token to the one before it: notes what it was."""
    return Mechanism(
        attends=(Attend("previous_position", "position", 2 * ATTENTION_SHARPNESS),),
        copies=copies,
    )


def induction(gain: float) -> Mechanism:
    """From a word to what followed its earlier occurrence: raises that word's logit.

    Only inside lists of words, else greater-than ("from 1732 to 17") would be a case of induction.
    """
    outside, inside = 30.0, ATTENTION_SHARPNESS
    return Mechanism(
        attends=(
            Attend("word", "previous_word", 2 * ATTENTION_SHARPNESS),
            Attend("after_word", "bos", inside - outside),
            rest_on_bos(outside),
        ),
        copies=(Copy("word", "answer_word", gain),),
    )


def later_year(gain: float) -> Mechanism:
    """From a century to the year that follows its earlier occurrence: raises later years, lowers the others."""
    return Mechanism(
        attends=(
            Attend("number", "number", 12.0),
            Attend("century", "previous_century", 12.0),
            rest_on_bos(18.0),
        ),
        copies=(Copy("year", "answer_year", gain),),
    )


def gender_mover(gain: float) -> Mechanism:
    """From a word before a pronoun to the name: raises the pronouns of its gender."""
    return Mechanism(
        attends=(Attend("expects_pronoun", "is_name", 12.0), rest_on_bos(6.0)),
        copies=(Copy("gender", "answer_gender", gain),),
    )


def subject_number_mover(gain: float) -> Mechanism:
    """From a word before a verb to the first noun: raises the verb forms of its number."""
    return Mechanism(
        attends=(
            Attend("expects_verb", "noun", 40.0),
            Attend("expects_verb", "distance_from_bos", -40.0),
            rest_on_bos(6.0),
        ),
        copies=(Copy("plurality", "answer_plurality", gain),),
    )


JUNK_WRITER = Decoy("junk", "junk_written", attention_sd=0.15, value_sd=0.4, output_sd=0.15)
NOISE_HEAD = Decoy(None, None, attention_sd=0.02, value_sd=0.03, output_sd=0.005)


def decoys() -> dict[Node, Decoy]:
    """Junk writers and noise heads in a chequered pattern over the whole model."""
    return {
        head(layer, index): JUNK_WRITER if (layer + index) % 2 else NOISE_HEAD
        for layer in range(N_LAYERS)
        for index in range(N_HEADS)
    }


# ---------------------------------------------------------------------------------------------------------------
# Variants
# ---------------------------------------------------------------------------------------------------------------

EARLY, MIDDLE, LATE = 1, 2, 4  # ordinals of roles
SOUND_MECHANISMS: dict[Node, Mechanism] = {
    head(0, 2): duplicate_token(),
    head(0, 5): duplicate_token(),
    head(1, 3): s_inhibition(),
    head(2, 1): s_inhibition(),
    head(3, 0): name_mover(3.0),
    head(3, 2): name_mover(2.5),
    head(3, 5): name_mover(2.0),
    head(0, 4): previous_token(Copy("word", "previous_word", 1.0), Copy("has_word", "after_word", 1.0)),
    head(1, 2): induction(4.0),
    head(2, 4): induction(3.0),
    head(0, 6): previous_token(Copy("century", "previous_century", 1.0)),
    head(1, 7): later_year(2.0),
    head(2, 3): later_year(1.5),
    head(1, 5): gender_mover(2.0),
    head(2, 6): gender_mover(1.5),
    head(1, 0): subject_number_mover(2.0),
    head(2, 7): subject_number_mover(1.5),
}


def role(ordinal: int, evidence: str, *places: tuple[int, int]) -> Role:
    """A role given by construction to the heads at these (layer, head)."""
    return Role(tuple(head(*place) for place in places), ordinal, assigned_by="construction", evidence=evidence)


SOUND_CLAIMS: dict[str, dict[str, Role]] = {
    "ioi": {
        "duplicate_token": role(EARLY, "written to attend from S2 to S1, mark S2 and copy the name", (0, 2), (0, 5)),
        "s_inhibition": role(MIDDLE, "written to attend from the end to S2 and inhibit the name", (1, 3), (2, 1)),
        "name_mover": role(
            LATE, "written to attend from the end to names not inhibited and copy them", (3, 0), (3, 2), (3, 5)
        ),
    },
    "induction": {
        "previous_token": role(EARLY, "written to note at each token which word precedes it", (0, 4)),
        "induction": role(LATE, "written to copy the word that followed the current one before", (1, 2), (2, 4)),
    },
    "greater_than": {
        "previous_token": role(EARLY, "written to note at each token which century precedes it", (0, 6)),
        "later_year": role(LATE, "written to raise the years after the year of this century", (1, 7), (2, 3)),
    },
    "gendered_pronoun": {
        "gender_mover": role(LATE, "written to copy the name's gender to the pronouns", (1, 5), (2, 6)),
    },
    "subject_verb_agreement": {
        "subject_number_mover": role(LATE, "written to copy the first noun's number to the verbs", (1, 0), (2, 7)),
    },
}

SOUND_PATHWAYS: dict[str, tuple[Pathway, ...]] = {
    "ioi": (
        Pathway(INPUT, "duplicate_token"),
        Pathway(INPUT, "s_inhibition", "q"),
        Pathway(INPUT, "s_inhibition", "k"),
        Pathway("duplicate_token", "s_inhibition", "k"),
        Pathway("duplicate_token", "s_inhibition", "v"),
        Pathway(INPUT, "name_mover"),
        Pathway("s_inhibition", "name_mover", "q"),
        Pathway("name_mover", OUTPUT),
    ),
    "induction": (
        Pathway(INPUT, "previous_token"),
        Pathway(INPUT, "induction"),
        Pathway("previous_token", "induction", "q"),
        Pathway("previous_token", "induction", "k"),
        Pathway("induction", OUTPUT),
    ),
    "greater_than": (
        Pathway(INPUT, "previous_token"),
        Pathway(INPUT, "later_year"),
        Pathway("previous_token", "later_year", "k"),
        Pathway("later_year", OUTPUT),
    ),
    "gendered_pronoun": (Pathway(INPUT, "gender_mover"), Pathway("gender_mover", OUTPUT)),
    "subject_verb_agreement": (Pathway(INPUT, "subject_number_mover"), Pathway("subject_number_mover", OUTPUT)),
}


def sound() -> Design:
    """Five tasks on disjoint heads; every circuit is complete, minimal and true."""
    return Design(decoys() | SOUND_MECHANISMS, SOUND_CLAIMS, SOUND_PATHWAYS)


DESIGNS: dict[str, Callable[[], Design]] = {"sound": sound}
VARIANTS = tuple(DESIGNS)


# ---------------------------------------------------------------------------------------------------------------
# Vocabulary: what embeddings hold and the unembedding reads
# ---------------------------------------------------------------------------------------------------------------


SUBJECT_PRONOUN_FOLLOWS = ("because", "when", "so")
POSSESSIVE_PRONOUN_FOLLOWS = lexicon.LOSING_VERBS


@cache
def spread_codes(count: int, width: int, steps: int = 100, learning_rate: float = 0.05) -> Float[Tensor, "count width"]:
    """`count` unit vectors of `width` dimensions whose largest |inner product| is small, the same in every process.

    Gradient descent on the sum of 8th powers of the inner products.
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

    The best approximation of that sign matrix that the width allows (singular value decomposition).
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


def embedded_features(generator: torch.Generator) -> dict[str, dict[str, Tensor]]:
    """Subspace -> word -> what the word's embedding holds there (zero for words not listed)."""
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
    }


def answer_features() -> dict[str, dict[str, Tensor]]:
    """Subspace -> word -> the direction there that raises the word's logit."""
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


# ---------------------------------------------------------------------------------------------------------------
# Compiler
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadWeights:
    """Query, key and value read the residual stream, output writes it; scores are divided by sqrt(D_HEAD) later."""

    query: Float[Tensor, "d_head d_model"]
    key: Float[Tensor, "d_head d_model"]
    value: Float[Tensor, "d_head d_model"]
    output: Float[Tensor, "d_head d_model"]


@cache
def columns(subspace: str | None) -> slice:
    """Where the subspace lies in the residual stream; None is the whole of it."""
    if subspace is None:
        return slice(0, D_MODEL)
    start = 0
    for name, width in SUBSPACES.items():
        if name == subspace:
            return slice(start, start + width)
        start += width
    raise ValueError(f"unknown subspace {subspace!r}: expected one of {', '.join(SUBSPACES)}")


def compile_mechanism(mechanism: Mechanism) -> HeadWeights:
    """Weights of a described head: each term takes as many dimensions of the head as its subspaces are wide.

    Raises ValueError if the terms need more than D_HEAD dimensions or join subspaces of different widths.
    """
    scores = [(term.key, term.query, term.weight * math.sqrt(D_HEAD)) for term in mechanism.attends]
    copies = [(term.source, term.destination, term.gain) for term in mechanism.copies]
    key, query = joined(scores)
    value, output = joined(copies)
    return HeadWeights(query, key, value, output)


def joined(
    terms: Sequence[tuple[str, str, float]],
) -> tuple[Float[Tensor, "d_head d_model"], Float[Tensor, "d_head d_model"]]:
    """Two matrices whose product joins the first subspace of each term to the second, times its factor.

    Every term has rows of its own: rows shared between terms would mix them.
    """
    first_matrix, second_matrix = torch.zeros(D_HEAD, D_MODEL), torch.zeros(D_HEAD, D_MODEL)
    used = 0
    for first, second, factor in terms:
        width = SUBSPACES[first]
        if SUBSPACES[second] != width or used + width > D_HEAD:
            raise ValueError(
                f"{first} ({width} wide) and {second} ({SUBSPACES[second]} wide) cannot be joined in the "
                f"{D_HEAD - used} head dimensions that are left; use subspaces of one width that fit"
            )
        rows = slice(used, used + width)
        first_matrix[rows, columns(first)] = torch.eye(width)
        second_matrix[rows, columns(second)] = factor * torch.eye(width)
        used += width
    return first_matrix, second_matrix


def compile_decoy(decoy: Decoy, generator: torch.Generator) -> HeadWeights:
    """Gaussian weights with the decoy's standard deviations, zero outside its source and destination."""
    query, key, value, output = (torch.randn(D_HEAD, D_MODEL, generator=generator) for _ in range(4))
    inside_source, inside_destination = torch.zeros(D_MODEL), torch.zeros(D_MODEL)
    inside_source[columns(decoy.source)] = 1
    inside_destination[columns(decoy.destination)] = 1
    return HeadWeights(
        query * decoy.attention_sd,
        key * decoy.attention_sd,
        value * decoy.value_sd * inside_source,
        output * decoy.output_sd * inside_destination,
    )


def compile_head(design: Design, node: Node, seed: int) -> HeadWeights:
    """Weights of one head; a decoy's depend on the seed and its place only, not on the other heads."""
    description = design.heads[node]
    if isinstance(description, Mechanism):
        return compile_mechanism(description)
    place = node.layer * N_HEADS + node.index
    generator = torch.Generator().manual_seed(1 + place + seed * N_LAYERS * N_HEADS)
    return compile_decoy(description, generator)


def balanced(written: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
    """The same with "balance" set so that every row sums to zero: then the residual stream always has mean zero."""
    balance = columns("balance")
    written = written.clone()
    written[:, balance] = 0
    written[:, balance] = -written.sum(dim=1, keepdim=True)
    return written


def word_matrix(features: Mapping[str, Mapping[str, Tensor]]) -> Float[Tensor, "vocabulary d_model"]:
    """One row per word of the vocabulary with its features in their subspaces."""
    ids = {word: index for index, word in enumerate(lexicon.VOCABULARY)}
    matrix = torch.zeros(len(ids), D_MODEL)
    for subspace, of_word in features.items():
        for word, vector in of_word.items():
            matrix[ids[word], columns(subspace)] = vector
    return matrix


def position_matrix() -> Float[Tensor, "position d_model"]:
    """One row per position: its code, the code of the position before it, and its distance from BOS."""
    codes = spread_codes(N_POSITIONS, POSITION_WIDTH)
    matrix = torch.zeros(N_POSITIONS, D_MODEL)
    matrix[:, columns("position")] = codes
    matrix[1:, columns("previous_position")] = codes[:-1]
    matrix[:, columns("distance_from_bos")] = torch.arange(N_POSITIONS)[:, None] / 10
    return matrix


def empty_model() -> GPT2LMHeadModel:
    """A GPT-2 of the right shape with zero weights and LayerNorms that do (nearly) nothing."""
    bos = lexicon.VOCABULARY.index(lexicon.BOS)
    config = GPT2Config(
        vocab_size=len(lexicon.VOCABULARY),
        n_positions=N_POSITIONS,
        n_embd=D_MODEL,
        n_layer=N_LAYERS,
        n_head=N_HEADS,
        n_inner=D_MLP,
        layer_norm_epsilon=LAYER_NORM_EPSILON,
        tie_word_embeddings=False,
        bos_token_id=bos,
        eos_token_id=bos,
        pad_token_id=lexicon.VOCABULARY.index(lexicon.PAD),
    )
    with torch.random.fork_rng(devices=[]):  # the initial weights are thrown away: leave the caller's random state
        model = GPT2LMHeadModel(config)
    for parameter in model.parameters():
        parameter.data.zero_()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.weight.data.fill_(math.sqrt(LAYER_NORM_EPSILON))
    return model.eval()


def compile_model(design: Design, seed: int) -> GPT2LMHeadModel:
    """The model in which every head does what the design says."""
    model = empty_model()
    transformer = model.transformer
    embedded = embedded_features(torch.Generator().manual_seed(seed))
    transformer.wte.weight.data = balanced(word_matrix(embedded))
    transformer.wpe.weight.data = balanced(position_matrix())
    unembedding = word_matrix(answer_features())
    model.lm_head.weight.data = unembedding - unembedding.mean(dim=0)
    for layer, block in enumerate(transformer.h):
        heads = [compile_head(design, head(layer, index), seed) for index in range(N_HEADS)]
        read = [torch.cat([getattr(one, part) for one in heads]) for part in ("query", "key", "value")]
        block.attn.c_attn.weight.data = torch.cat(read).T.contiguous()
        block.attn.c_proj.weight.data = balanced(torch.cat([one.output for one in heads]))
    return model
