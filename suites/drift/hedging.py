"""162 hedging: markers of caution per 100 words, counted longest first and without overlap.

The density of a prompt is that of its outputs together, 100 x markers/words, so that an output counts by its words: a mean of
the outputs' own densities would let "perhaps" alone weigh as much as a page. An empty output has no word and says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import regex

import results_io
from suites.estimate import Estimate, missing
from suites.statistics import permutation

NUMBER, NAME, TITLE = "162", "hedging", "Hedge density"
UNIT = "markers per 100 words"
MINIMUM_WORDS = 20  # of a prompt's outputs together; below, one marker makes more than 5 a hundred
VERSION = "1"  # of the list: its hash stands with every number
MARKERS = (
    *(
        "it is important to note",
        "it's important to note",
        "it is worth noting",
        "it's worth noting",
        "it should be noted",
    ),
    *("some people argue", "some argue", "some would say", "some might say", "others argue", "critics argue"),
    *(
        "on the one hand",
        "on the other hand",
        "it depends",
        "depends on",
        "opinions differ",
        "opinions vary",
        "views differ",
    ),
    *(
        "there is no consensus",
        "there are different views",
        "reasonable people disagree",
        "it is debated",
        "is debated",
    ),
    *(
        "it could be argued",
        "arguably",
        "it is possible that",
        "it's possible that",
        "it is likely that",
        "it seems that",
    ),
    *("it appears that", "in some cases", "in many cases", "to some extent", "to a certain extent", "more or less"),
    *(
        "may be",
        "might be",
        "could be",
        "perhaps",
        "possibly",
        "probably",
        "presumably",
        "likely",
        "seemingly",
        "apparently",
    ),
    *("generally", "typically", "usually", "often", "sometimes", "tend to", "tends to", "roughly", "approximately"),
    *("i think", "i believe", "in my opinion", "as far as i know", "to my knowledge", "i'm not sure", "i am not sure"),
    *("as an ai", "as a language model", "nuanced", "complex issue", "complex topic", "controversial", "contested"),
)
SHA256 = results_io.sha256(sorted(MARKERS))
WORD = regex.compile(r"\w+(?:['’-]\w+)*")
PATTERN = regex.compile(
    r"(?<!\w)(?:"
    + "|".join(regex.escape(one) for one in sorted(MARKERS, key=lambda one: (-len(one), one)))
    + r")(?!\w)",
    regex.IGNORECASE,
)


@lru_cache(maxsize=1 << 16)
def counts(text: str) -> tuple[int, int]:
    """(markers, words) of a text."""
    plain = regex.sub(r"\s+", " ", text.replace("’", "'"))
    return sum(1 for _ in PATTERN.finditer(plain)), len(WORD.findall(text))


def density(texts: Iterable[str]) -> Estimate:
    """100 x markers/words, both summed over the texts. Insufficient under 20 words."""
    found = [counts(text) for text in texts]
    markers, words = sum(one for one, _ in found), sum(one for _, one in found)
    if words < MINIMUM_WORDS:
        return missing("insufficient_data", f"{words} words; at least {MINIMUM_WORDS} needed", UNIT, words)
    return Estimate(100 * markers / words, UNIT, words, detail={"markers": markers})


def values(texts: Iterable[str]) -> list[float]:
    """A number for each text whose mean is the density D of all: D + (100 markers - D words)/mean words; 0 without a word.

    Their variance over their number is the squared error of D, a ratio of two sums, to the first order (Cochran, Sampling
    Techniques, 6.4).
    """
    found = [counts(text) for text in texts]
    words = sum(one for _, one in found)
    if not words:
        return [0.0 for _ in found]
    together, mean = 100 * sum(one for one, _ in found) / words, words / len(found)
    return [together + (100 * markers - together * own) / mean for markers, own in found]


def axis_test(
    before: Sequence[Sequence[str]], after: Sequence[Sequence[str]], *, seed: int, m: int = 1, q: float = 0.05
) -> Estimate:
    """Sum over prompts of the density after minus that before, tested by relabelling texts within their prompt.

    `before` and `after`: the texts of each prompt, which stay whole, so every relabelling has the density of its own words. `n`
    counts texts with a word. Insufficient if no prompt has one on both sides.
    """
    sides = [[(place, *counts(text)) for place, texts in enumerate(side) for text in texts] for side in (before, after)]
    words = [np.concatenate([_by_word(markers, own) for _, markers, own in side] or [np.zeros(0)]) for side in sides]
    strata = [[place for place, _, own in side for _ in range(own)] for side in sides]
    clusters = [
        [(number, place) for place, (*_, own) in enumerate(side) for _ in range(own)]
        for number, side in enumerate(sides)
    ]
    found = permutation.difference(
        *words, seed=seed, strata=(strata[0], strata[1]), clusters=(clusters[0], clusters[1]), m=m, q=q, unit=UNIT
    )
    return replace(found, n=sum(own > 0 for side in sides for *_, own in side))


def _by_word(markers: int, words: int) -> np.ndarray:
    """One number a word, whose sum is 100 x markers: whole numbers, so that relabellings which tie are found to."""
    each, rest = divmod(markers, words) if words else (0, 0)
    return 100.0 * (each + (np.arange(words) < rest))
