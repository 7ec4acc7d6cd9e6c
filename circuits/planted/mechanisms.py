"""The kinds of heads of planted models: mechanisms (what a head attends to and copies) and decoys, and those in use."""

from __future__ import annotations

from dataclasses import dataclass

from circuits.circuit import Node, head

N_LAYERS, N_HEADS, D_HEAD = 4, 8, 64
ATTENTION_SHARPNESS = 12.0  # score of a full match, before softmax


@dataclass(frozen=True)
class Attend:
    """One term of the attention score: weight * <query subspace of the reader, key subspace of the token read>."""

    query: str
    key: str
    weight: float


@dataclass(frozen=True)
class CopyMechanism:
    """One output: gain * the attended token's `source` subspace, added to `destination`."""

    source: str
    destination: str
    gain: float


@dataclass(frozen=True)
class Mechanism:
    """A head with a function: what it attends to and what it copies. The widths of all terms sum to at most D_HEAD."""

    attends: tuple[Attend, ...]
    copies: tuple[CopyMechanism, ...]


@dataclass(frozen=True)
class MLPGate:
    """An MLP's function of the names in `source`, applied to each name separately.

    A name with strength x in `source` is written to `destination` as `gain` * (x - low) / (high - low), clipped to [0, `gain`].
    Several heads that write to `source` form a logical "or" if each alone reaches `high`, and an "and" if none reaches `low`
    without the others. A destination of one dimension receives only that there is a name, not which one.
    """

    source: str
    destination: str
    low: float
    high: float
    gain: float


@dataclass(frozen=True)
class Relay:
    """An MLP's linear copy: `gain` * the content of `source`, added to `destination`."""

    source: str
    destination: str
    gain: float


@dataclass(frozen=True)
class Decoy:
    """A head with random weights from `source` to `destination` (None: the whole residual stream), with the weights' SDs."""

    source: str | None
    destination: str | None
    attention_sd: float
    value_sd: float
    output_sd: float


def rest_on_bos(weight: float) -> Attend:
    """Attend to BOS, which has nothing to copy, unless another term scores more than `weight`."""
    return Attend("constant", "bos", weight)


def duplicate_token(gain: float = 0.5) -> Mechanism:
    """From a name to its earlier occurrence: same name, other position. Marks the later one as a duplicate.

    It also copies the name. A mark alone would be the same in all prompts of a template, and so survive mean ablation.
    """
    return Mechanism(
        attends=(
            Attend("name", "name", ATTENTION_SHARPNESS),
            Attend("position", "position", -ATTENTION_SHARPNESS),
            rest_on_bos(0.6 * ATTENTION_SHARPNESS),
        ),
        copies=(CopyMechanism("is_name", "duplicate", gain), CopyMechanism("name", "duplicated_name", gain)),
    )


def s_inhibition(gain: float = 0.5) -> Mechanism:
    """From the end to the duplicate: copies to the end which name to avoid."""
    return Mechanism(
        attends=(Attend("expects_name", "duplicate", 14.0), rest_on_bos(6.0)),
        copies=(CopyMechanism("duplicated_name", "inhibited_name", gain),),
    )


def name_mover(
    gain: float, *further: Attend, query: str = "expects_name", names: str = "is_name", inhibition: float = 6.0
) -> Mechanism:
    """From the end to every name that is not inhibited: raises that name's logit (lowers it if `gain` is negative).

    It attends from tokens with the flag `query` to tokens with the flag `names`; `further` terms add to the score.
    """
    return Mechanism(
        attends=(
            Attend(query, names, 12.0),
            Attend("inhibited_name", "name", -inhibition),
            rest_on_bos(8.0),
            *further,
        ),
        copies=(CopyMechanism("name", "answer_name", gain),),
    )


def previous_token(*copies: CopyMechanism) -> Mechanism:
    """From every token to the one before it: copies what it was."""
    return Mechanism(
        attends=(Attend("previous_position", "position", 2 * ATTENTION_SHARPNESS),),
        copies=copies,
    )


def induction(gain: float) -> Mechanism:
    """From a word to what followed its earlier occurrence: raises that word's logit.

    It works only inside lists of words; otherwise greater-than ("from 1732 to 17") would be a case of induction.
    """
    outside, inside = 30.0, ATTENTION_SHARPNESS
    return Mechanism(
        attends=(
            Attend("word", "previous_word", 2 * ATTENTION_SHARPNESS),
            Attend("after_word", "bos", inside - outside),
            rest_on_bos(outside),
        ),
        copies=(CopyMechanism("word", "answer_word", gain),),
    )


def later_year(gain: float) -> Mechanism:
    """From a century to the year that follows its earlier occurrence: raises later years, lowers the others."""
    return Mechanism(
        attends=(
            Attend("number", "number", 12.0),
            Attend("century", "previous_century", 12.0),
            rest_on_bos(18.0),
        ),
        copies=(CopyMechanism("year", "answer_year", gain),),
    )


def gender_mover(gain: float) -> Mechanism:
    """From a word before a pronoun to the name: raises the pronouns of its gender."""
    return Mechanism(
        attends=(Attend("expects_pronoun", "is_name", 12.0), rest_on_bos(6.0)),
        copies=(CopyMechanism("gender", "answer_gender", gain),),
    )


def subject_number_mover(gain: float) -> Mechanism:
    """From a word before a verb to the first noun: raises the verb forms of its number."""
    return Mechanism(
        attends=(
            Attend("expects_verb", "noun", 40.0),
            Attend("expects_verb", "distance_from_bos", -40.0),
            rest_on_bos(6.0),
        ),
        copies=(CopyMechanism("plurality", "answer_plurality", gain),),
    )


def brought_to_end(*copies: CopyMechanism) -> Mechanism:
    """From the end to the token with the sources of these copies: copies them to the end."""
    return Mechanism(
        attends=(*(Attend("expects_name", one.source, 14.0) for one in copies), rest_on_bos(7.0)),
        copies=copies,
    )


def constant_writer(destination: str) -> Mechanism:
    """Writes 1 at every position, whatever is there, like a bias."""
    return Mechanism(attends=(rest_on_bos(ATTENTION_SHARPNESS),), copies=(CopyMechanism("constant", destination, 1.0),))


def with_terms(
    mechanism: Mechanism, attends: tuple[Attend, ...] = (), copies: tuple[CopyMechanism, ...] = ()
) -> Mechanism:
    """The same head with further terms in its score and further outputs."""
    return Mechanism(mechanism.attends + attends, mechanism.copies + copies)


JUNK_WRITER = Decoy("junk", "junk_written", attention_sd=0.15, value_sd=0.4, output_sd=0.15)
NOISE_HEAD = Decoy(None, None, attention_sd=0.02, value_sd=0.03, output_sd=0.005)


def decoys(
    junk_writer: Decoy = JUNK_WRITER,
    noise_head: Decoy = NOISE_HEAD,
    n_heads: int = N_HEADS,
    n_layers: int = N_LAYERS,
) -> dict[Node, Decoy]:
    """Junk writers and noise heads in a chequered pattern over the whole model."""
    return {
        head(layer, index): junk_writer if (layer + index) % 2 else noise_head
        for layer in range(n_layers)
        for index in range(n_heads)
    }
