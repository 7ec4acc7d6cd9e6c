# ruff: noqa: E501 (word lists)
"""Polarity conflicts: two sentences with the same words, one of which denies the other. Used by A5."""

from __future__ import annotations

import regex

from suites.normalise import normalise

NEGATIONS = frozenset("not no never none nobody nothing neither nor cannot without hardly nowhere".split())
NUMERALS = {
    word: str(value)
    for value, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
        "nineteen twenty".split()
    )
} | {"hundred": "100", "thousand": "1000", "million": "1000000", "billion": "1000000000"}
# words that say nothing about what a sentence is about
FUNCTION = frozenset(
    "a an the this that these those is are was were be been being am do does did done has have had will would shall should can could "
    "may might must to of in on at by for from with and or but as it its he she they we i you his her their our my your him them us me "
    "there here than then so very too also all any some every each both many more most just only always ever already still again "
    "who which what when where enough over about".split()
)
ANTONYMS = frozenset(
    frozenset(pair.split("/"))
    for pair in (
        "open/closed open/locked open/shut hot/cold warm/cold clean/dirty safe/unsafe safe/dangerous cheap/expensive cheaper/expensive easy/hard "
        "easy/difficult happy/sad alive/dead increased/decreased increase/decrease increases/decreases rose/fell rises/falls profit/loss "
        "passed/failed won/lost win/lose wins/loses early/late before/after inside/outside north/south east/west up/down left/right yes/no "
        "true/false black/white on/off long/short longer/shorter older/younger old/young big/small larger/smaller large/small high/low "
        "higher/lower fast/slow faster/slower full/empty rich/poor strong/weak light/dark light/heavy wet/dry tall/short allowed/forbidden "
        "allows/forbidden allowed/banned allowed/prohibited permitted/forbidden legal/illegal possible/impossible effective/ineffective "
        "agreed/disagreed agree/disagree agrees/disagrees improves/worsens improve/worsen improved/worsened better/worse best/worst free/pay "
        "guilty/innocent married/single male/female public/private accept/reject accepted/rejected approved/rejected likes/dislikes "
        "love/hate loves/hates loved/hated running/stopped starts/ends started/ended first/last present/absent healthy/ill healthy/sick "
        "visible/invisible known/unknown likely/unlikely able/unable success/failure succeeded/failed more/less most/least always/never "
        "everyone/nobody everybody/nobody asleep/awake day/night morning/evening fiction/true real/fake same/different arrived/left "
        "bought/sold maximum/minimum positive/negative optional/required optional/mandatory voluntary/compulsory winter/summer taller/shorter good/bad deeper/shallower much/little wider/narrower earlier/later "
        "closer/farther nearer/farther beautiful/ugly loud/quiet thick/thin deep/shallow wide/narrow near/far heavier/lighter".split()
    )
)
WORD = regex.compile(r"\p{L}+(?:[’'-]\p{L}+)*|\d+(?:[.,]\d+)*")


def conflict(first: str, second: str) -> str | None:
    """Why the two sentences cannot both be true, judged by their words alone; None if the words show no conflict.

    A conflict is an odd number of denials (an extra negation on a side, or a word against its antonym; two of them cancel), or
    different numbers. The other content words must show that both are about the same thing: for denials, those of one sentence
    must all be in the other; for numbers, they must be the same.
    """
    a, b = _words(first), _words(second)
    opposed = [(x, y) for x in a for y in b if frozenset((x, y)) in ANTONYMS]
    paired = {word for pair in opposed for word in pair}
    rest = [_content(words, paired) for words in (a, b)]
    if not (rest[0] <= rest[1] or rest[1] <= rest[0]):
        return None
    # "no" against "yes" is one denial, not two
    negations = [sum(word in NEGATIONS - paired for word in words) for words in (a, b)]
    numbers = [
        {NUMERALS.get(word, word) for word in words if word in NUMERALS or word[0].isdigit()} for words in (a, b)
    ]
    differ = bool(numbers[0]) and bool(numbers[1]) and numbers[0] != numbers[1]
    if (sum(negations) + len(opposed)) % 2:
        # "starts at 9" and "ends at 11", or "alive in 1700" and "dead by 1710", can both be true of one thing
        if opposed and differ:
            return None
        return f"{opposed[0][0]} against {opposed[0][1]}" if opposed else "one of them is negated"
    if differ and not opposed and rest[0] == rest[1]:
        return f"{' '.join(sorted(numbers[0]))} against {' '.join(sorted(numbers[1]))}"
    return None


def _words(sentence: str) -> list[str]:
    spelled = regex.sub(
        r"n['’]t\b", " not", normalise(sentence).replace("can't", "can not").replace("won't", "will not")
    )
    return WORD.findall(spelled)


def _content(words: list[str], opposed: set[str]) -> set[str]:
    kept = [word for word in words if word not in opposed and word not in NEGATIONS and word not in FUNCTION]
    return {_stem(word) for word in kept if word not in NUMERALS and not word[0].isdigit()}


def _stem(word: str) -> str:
    """The word without a common ending, used only to match different forms of a word."""
    for ending in ("'s", "’s", "ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)].rstrip("e")
    return word.rstrip("e")
