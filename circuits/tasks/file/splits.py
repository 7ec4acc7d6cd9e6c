"""Splits of the pairs: which find the circuit, which judge it, and which give the means; sized so that few rows fill all splits.

Pairs are sorted by a hash of their text, so the order of the rows does not matter. Every template first gives the rows that its
means need and its share of discovery rows; the rest is scored.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from circuits.engine.sources import MINIMUM_REFERENCE_PROMPTS
from circuits.tasks.example import Example
from circuits.tasks.file.pairs import Rejected, TokenPair, example
from circuits.tasks.file.rows import SPLITS, shown

SCORED = ("evaluation", "held_out")
NEEDED = ("discovery", *SCORED)  # none of these may be empty

Dealing = dict[str, list[TokenPair]]  # {split: its pairs}


@dataclass(frozen=True)
class Dealt:
    """The examples of every split, the pairs that could not be placed, and the number of corrupted twins among the reference
    prompts."""

    examples: Mapping[str, tuple[Example, ...]]
    rejected: tuple[Rejected, ...]
    twins: int


def deal(pairs: Sequence[TokenPair], shares: Mapping[str, float]) -> Dealt:
    """Assign pairs to the splits that their rows name, or by `shares`.

    Reference prompts of a template are the clean prompts of its reference rows. If these are fewer than the
    MINIMUM_REFERENCE_PROMPTS that a mean needs, the corrupted twins of these rows and of the discovery rows are added. A
    template that still does not reach the minimum, or has no row left to score, is rejected as a whole.
    """
    by_template: dict[str, list[TokenPair]] = {}
    for pair in sorted(pairs, key=_hash):
        by_template.setdefault(pair.template, []).append(pair)
    named = any(pair.row.split is not None for pair in pairs)
    clean = frozenset(pair.clean for pair in pairs)
    dealt: Dealing = {name: [] for name in SPLITS}
    references: list[list[Example]] = []
    rejected: list[Rejected] = []
    rest: list[TokenPair] = []
    twins = 0
    for template, own in sorted(by_template.items()):
        placed, left = (_as_named(own), []) if named else _reserved(own, shares, clean)
        prompts = reference_prompts(placed, clean)
        if len(prompts) < MINIMUM_REFERENCE_PROMPTS or not (left or named):
            why = too_few_named(template, len(own), len(prompts)) if named else too_few(template, len(own))
            rejected += [Rejected(pair.row, why) for pair in own]
            continue
        for name in SPLITS:
            dealt[name] += placed[name]
        rest += left
        references.append(prompts)
        twins += len(prompts) - len(placed["reference"])
    _score(rest, dealt, shares)
    examples = {name: tuple(map(example, sorted(dealt[name], key=_hash))) for name in NEEDED}
    return Dealt({**examples, "reference": tuple(_in_turn(references))}, tuple(rejected), twins)


def too_few(template: str, rows: int) -> str:
    """Why the rows of a template without enough reference prompts are left out."""
    those = "the only row" if rows == 1 else f"one of {rows} rows"
    return (
        f"is {those} of template {shown(template)}, too few for the {MINIMUM_REFERENCE_PROMPTS} reference prompts that its "
        "means need beside a row to score; add rows like it"
    )


def too_few_named(template: str, rows: int, reference: int) -> str:
    """`too_few` for rows that name their splits, since enough of them may exist in other splits."""
    those = "the only row" if rows == 1 else f"one of {rows} rows"
    return (
        f"is {those} of template {shown(template)}, whose rows of split reference give {reference} of the "
        f"{MINIMUM_REFERENCE_PROMPTS} reference prompts that its means need; give more of them the split reference"
    )


def _hash(pair: TokenPair) -> bytes:
    return hashlib.sha256(pair.texts[0].encode()).digest()


def _as_named(own: Sequence[TokenPair]) -> Dealing:
    return {name: [pair for pair in own if pair.row.split == name] for name in SPLITS}


def _reserved(
    own: Sequence[TokenPair], shares: Mapping[str, float], clean: frozenset
) -> tuple[Dealing, list[TokenPair]]:
    """(reference and discovery rows of one template, the remaining rows, which are scored).

    Reference rows are its share, and more if needed until there are as many reference prompts as a mean needs.
    """
    discovery = max(1, round(shares["discovery"] * len(own)))
    for reference in range(round(shares["reference"] * len(own)), len(own)):
        ends = reference, reference + discovery
        placed: Dealing = {name: [] for name in SPLITS}
        placed |= {"reference": list(own[: ends[0]]), "discovery": list(own[ends[0] : ends[1]])}
        if len(reference_prompts(placed, clean)) >= MINIMUM_REFERENCE_PROMPTS:
            return placed, list(own[ends[1] :])
    return {name: [] for name in SPLITS}, []


def reference_prompts(placed: Dealing, clean: frozenset) -> list[Example]:
    """The clean prompts of the reference rows; if these are too few, also corrupted twins that are not scored prompts."""
    found = [example(pair) for pair in placed["reference"]]
    if len(found) >= MINIMUM_REFERENCE_PROMPTS:
        return found
    unscored = {pair.clean for name in ("reference", "discovery") for pair in placed[name]}
    used = {pair.clean for pair in placed["reference"]}
    for pair in (*placed["reference"], *placed["discovery"]):
        if pair.twin_positions is not None and pair.corrupted not in used | (clean - unscored):
            used.add(pair.corrupted)
            found.append(_twin(pair))
    return found


def _twin(pair: TokenPair) -> Example:
    """The corrupted prompt as a reference prompt, of which only activations are read, never the answer."""
    assert pair.twin_positions is not None  # checked before
    own = example(pair)
    return replace(own, clean=own.corrupted, positions=dict(pair.twin_positions))


def _score(rest: Iterable[TokenPair], dealt: Dealing, shares: Mapping[str, float]) -> None:
    """Assign the remaining pairs to the scored splits, each to the split that is furthest below its share."""
    pairs = sorted(rest, key=_hash)
    total = sum(shares[name] for name in SCORED)
    for pair in pairs:
        target = max(SCORED, key=lambda name: shares[name] / total * len(pairs) - len(dealt[name]))
        dealt[target].append(pair)


def _in_turn(references: Sequence[Sequence[Example]]) -> list[Example]:
    """Interleave the templates, so that a run with few reference prompts has some of each template."""
    return [one for turn in itertools.zip_longest(*references) for one in turn if one is not None]
