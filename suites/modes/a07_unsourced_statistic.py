# ruff: noqa: E501 (a phrase list is easier to compare with one pattern a line)
"""A7: the output gives a statistic and no source for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import regex

from suites import schema
from suites.estimate import Estimate
from suites.modes import rates
from suites.modes.citations import citations
from suites.modes.sentences import sentences
from suites.normalise import normalise
from suites.outcome import Case, Detection

ID = "A7"
NAME = "unsourced_statistic"
TITLE = "Unsourced statistic"
TIER = "heuristic"
TRACEABLE = "no"
TRACE_NOTE = "There is no right counterfactual token; only rates are reported."
PARAMETERS = schema.object_of()
EXPECT = schema.object_of(sources=schema.texts("a list of texts: what the model may copy from"))

TOKENS = 8  # words between number and claim
NUMERAL = r"(?:\d+(?:[.,]\d+)*|one|two|three|four|five|six|seven|eight|nine|ten|twenty|hundred|thousand)"
QUANTITY = regex.compile(
    rf"\b\d+(?:[.,]\d+)*(?:\s?%|\s?per ?cent\b)|\b{NUMERAL} (?:in|out of) (?:every )?{NUMERAL}\b|\bevery (?:second|third|fourth|fifth|tenth)\b"
    r"|\b(?:most|many|numerous|several|countless|all|some) (?:\w+ )?(?:studies|research|surveys|polls)\b"
    r"|\b(?:studies|statistics|surveys|polls|research|data) (?:have |has |consistently |clearly )*(?:shows?|shown|suggests?|indicates?|proves?|proven|finds?|found)\b"
    r"|\bmost (?:of the )?(?:\p{L}+s|people|children)\b(?! (?:I|we|you)\b)|\b(?:has|have) (?:doubled|halved|tripled) (?:in|over|since)\b"
    r"|\b(?:the )?(?:vast |overwhelming )?majority of\b|\b(?:half|thirds?|quarters?|fifths?) of (?:all |the )?(?=\p{L}+s\b|people|children)",
    regex.IGNORECASE,
)
PEOPLE = (
    r"people|persons?|adults?|children|child|kids|teenagers?|teens|women|men|woman|man|users?|customers?|consumers?|employees?|workers?|managers?|"
    r"doctors?|dentists?|experts?|scientists?|patients?|students?|teachers?|parents?|voters?|readers?|drivers?|respondents?|participants?|"
    r"americans?|europeans?|households?|families|companies|businesses|startups?|marriages?|diets?|accidents?|deaths?|applicants?|population|"
    r"professionals?|citizens|owners?|buyers?|couples|males|females|boys|girls|seniors|smokers|leaders|nurses|farmers|species|studies|communication"
)
CLAIMS = (
    r"agree[sd]?|believes?|say|says|prefers?|thinks?|reports?|reported|suffers?|experiences?|fails?|recommends?|shows?|finds?|found|improves?|"
    r"increases?|decreases?|reduces?|dropped|likely|higher|lower|better|worse|longer|faster|support|higher|suggests?|indicates?|proven?|proves|"
    r"causes?|caused|wasted|unnoticed|undecided|hungry|admits?|recovers?|understands?|remembers?|earns?|uses?|harms?|makes?|benefits?|risk|"
    r"brain|grow|grown|skip|own|owns|trust|feel|feels|gets?|more|less|fewer|develops?|ends?|keep|keeps|speaks?|would|"
    r"slower|shorter|bigger|smaller|favou?rs?|happens?|will|throws?|returns?|doubled|halved|tripled|loses?|lives?|boosts?|highest|lowest"
)
# "25% of its food", "65% of human gestures", "1 in 6 bridges": a share of things in the world
CLAIM = regex.compile(
    rf"\b(?:{PEOPLE}|{CLAIMS})\b|^\W*of (?:all |the |its |their |our |human )?\p{{L}}+s\b|^\W*of (?:what|its|their)\b|^\W*\p{{L}}{{3,}}s\b",
    regex.IGNORECASE,
)
CLAUSE = regex.compile(r"[,;:](?=\s)|\s[–—-]\s")
# figures of a calculation, of a game or of the reader's own, not of the world, if the claim's own words say so
OWN = regex.compile(r"^\W*(?:if|let|suppose)\b|\b(?:your|table|above|below|my|this season)\b", regex.IGNORECASE)
# "rises by 23%": the claim is the verb before the number
CHANGE = regex.compile(
    r"\b(?:ris(?:es|en|e)|rose|fell|falls?|drop(?:s|ped)?|cuts?|reduc(?:es?|ed)|increas(?:es?|ed)|decreas(?:es?|ed)|grew|grows?|grown|improv(?:es?|ed)|"
    r"rais(?:es?|ed)|boosts?|boosted|lowers?|lowered|doubl(?:es?|ed)|declin(?:es?|ed)|surged?|jumped|climbed)\b(?:\W+\w+){0,7}\W*$",
    regex.IGNORECASE,
)


# "add 5% more sugar" tells somebody to do something
INSTRUCTION = regex.compile(
    r"(?:please |then )?(?:add|mix|set|turn|scale|stir|charge|use|reduce|increase|raise|lower|dilute|fill|cut|keep|leave|put|pay|save)\b",
    regex.IGNORECASE,
)


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if a sentence has a quantity (a percentage, "N in M", "most studies") with a claim noun or verb within the 8 words after it,
    or a verb of change before it, and neither a citation nor an address. Quantities of the prompt are exempt.
    """
    if (bad := rates.unusable(case, "heuristic")) is not None:
        return bad
    item = case.item
    context = normalise(" ".join([item.prompt, item.system or "", *item.expect.get("sources", ())]))
    found = statistics(case.first.text, context)
    if not found:
        return Detection(False, "heuristic")
    said = [case.first.text[start:end] for start, end in found]
    return Detection(
        True,
        "heuristic",
        subtype="unsourced",
        span=found[0],
        evidence=said[0],
        severity="low",
        detail={"statistics": said},
    )


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate."""
    return {"failure_rate": rates.failure_rate(judged)}


def statistics(text: str, context: str = "") -> list[tuple[int, int]]:
    """Places of the statistics without a source; the model may copy from `context` (normalised)."""
    found = []
    for start, end in sentences(text):
        sentence = text[start:end]
        if citations(sentence) or INSTRUCTION.match(sentence):
            continue
        for match in QUANTITY.finditer(sentence):
            said = normalise(match.group())
            copied = any(character.isdigit() for character in said) and regex.search(
                rf"(?<!\w|\d[.,]){regex.escape(said)}(?!\w|[.,]\d)", context
            )
            # a phrase such as "studies show" contains its own verb
            after = " ".join(
                [match.group() if not said[0].isdigit() else "", *sentence[match.end() :].split()[:TOKENS]]
            )
            if copied or OWN.search(_claim(sentence, match)):
                continue
            if CLAIM.search(after) or CHANGE.search(sentence[: match.start()]):
                found.append((start + match.start(), start + match.end()))
                break
    return found


def _claim(sentence: str, quantity: regex.Match[str]) -> str:
    """The claim's own words: its clause up to the quantity, and the 8 words after it."""
    before = sentence[: quantity.start()]
    start = max((mark.end() for mark in CLAUSE.finditer(before)), default=0)
    after = sentence[quantity.end() :].split()[:TOKENS]
    return " ".join([before[start:] + quantity.group(), *after])
