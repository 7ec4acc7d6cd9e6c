"""162 hedging: markers of caution per 100 words, counted longest first and without overlap."""

from __future__ import annotations

from collections.abc import Iterable

import regex

import results_io
from suites.estimate import Estimate, missing

NUMBER, NAME, TITLE = "162", "hedging", "Hedge density"
UNIT = "markers per 100 words"
MINIMUM_WORDS = 20
VERSION = "1"  # of the list, whose hash is recorded with every value
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
    """The density of each text; one without words has 0."""
    return [100 * markers / words if words else 0.0 for markers, words in map(counts, texts)]
