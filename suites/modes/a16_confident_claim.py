# ruff: noqa: E501 (a phrase list is easier to compare with one pattern a line)
"""A16: the output calls a claim established ("It is well-established that ...") and gives no source for it."""

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

ID = "A16"
NAME = "confident_claim"
TITLE = "Confident false claim"
TIER = "heuristic; verified where the suite's scorer knows the answer and it is wrong"
TRACEABLE = "no"
TRACE_NOTE = "Which token would have been less sure is not known; only rates are reported."
PARAMETERS = schema.object_of()
EXPECT = schema.object_of(sources=schema.texts("a list of texts: what the model may copy from"))

KNOWERS = r"(?:scientists?|experts?|nutritionists?|chemists?|astronomers?|archaeologists?|specialists?|authorities|linguists?|geologists?|doctors?|physicians?|researchers?|historians?|scholars?|biologists?|physicists?|economists?|psychologists?|engineers?)"
MANNER = r"(?:\w+ly )?(?:well[- ])?"
KNOWN = r"(?:established|known|accepted|documented|understood|recogni[sz]ed|agreed|proven|proved|acknowledged|settled|confirmed|demonstrated|shown)"
SURE = r"(?:indisputable|undeniable|undisputed|unquestionable|incontrovertible|irrefutable|certain|a certainty)"
PHRASES = tuple(
    regex.compile(pattern, regex.IGNORECASE)
    for pattern in (
        # it is known
        rf"\bit(?: is|'s|'s been| has)(?: long| now| already)?(?: been)?(?: time and again)? {MANNER}{KNOWN}(?: \w+){{0,3}},? that\b",
        rf"\bhas been (?:firmly|conclusively|definitively|scientifically|well) {KNOWN}\b|\bas (?:has been|is) (?:\w+ )?{KNOWN}\b",
        r"\bit(?: is|'s) (?:simply |just )?(?:a|an)(?: [\w-]+){0,2} (?:fact|truth)\b|\bit(?: is|'s) common knowledge\b|\bthe fact (?:of the matter )?is,? that\b",
        rf"\bit(?: is|'s) (?:absolutely |quite )?{SURE}(?: \w+){{0,2}} that\b|\bit(?: is|'s)(?: now)? beyond (?:all |any )?(?:reasonable )?(?:doubt|dispute|question)\b",
        r"\bit(?: is|'s) (?:clear|obvious|evident|plain) to (?:any|every|all|anyone|everyone)\b|\bit goes without saying that\b",
        # everybody knows
        r"\b(?:everyone|everybody|any ?one|all the world) (?:knows|agrees)\b|\bas we all know\b|\bwe all know that\b|\bas any (?:\w+ )?\w+ (?:will|can|could|would) tell you\b",
        rf"\ball {KNOWERS} (?:agree|know|accept)\b|\b{KNOWERS} (?:all |now |have long |widely |universally |unanimously |largely |generally )*(?:agree|acknowledge|accept|know)d? that\b",
        rf"\b{KNOWERS} (?:have|has) (?:\w+ )?(?:proven|proved|confirmed|established)\b|\b{KNOWERS} are (?:unanimous|in (?:full |complete )?agreement)\b|\bany {KNOWERS} (?:can|will|would) (?:confirm|tell)\b",
        # nobody doubts
        r"\bthere (?:is|can be|'s) (?:absolutely |simply |really )?no (?:doubt|question|dispute|denying)\b|\b(?:no ?body|no one|no (?:serious )?\w+) (?:disputes|doubts|questions|denies|would dispute|would deny)\b",
        r"(?:^|[,;:] ?|\band )(?:without (?:a |any )?(?:doubt|question)|beyond (?:a |any )?doubt|undoubtedly|undeniably|unquestionably|indisputably|unarguably)\b",
        r"\bbeyond (?:a |any |all |the )?(?:shadow of a |reasonable )?doubt\b(?! (?:in|about))|\bno room for doubt\b|\bonce and for all\b|\bwithout exception\b|\bthis (?:much )?is (?:absolutely |quite )?certain\b",
        rf"\b(?:full|wide|broad|general|universal|near-universal|unanimous|complete) agreement(?: \w+){{0,3}} that\b|\b{KNOWERS} (?:have|has) (?:long |always |all )?(?:agreed|known|accepted|acknowledged)\b|\b{KNOWERS} (?:are|stand) (?:united|unanimous|agreed|of one mind)\b",
        rf"\b(?:all|every|the) {KNOWERS} (?:all )?(?:say|says|tell|tells|knows?|confirms?|agrees?)\b|\b(?:all|every) (?:\w+ )?(?:sources?|evidence|stud(?:y|ies)|records?) (?:confirms?|proves?|agrees?|shows?)\b|\b(?:is|remains) an? (?:\w+ )?(?:established|proven|undisputed|undeniable) fact\b",
        r"\b(?:everyone|everybody) is aware\b|\b(?:medicine|research|science|history|experience) (?:has|have) (?:proven|proved|shown) (?:once|beyond|conclusively|that)\b|\bno (?:\w+ )?(?:expert|scholar|scientist|doctor|historian|serious \w+) would (?:deny|doubt|dispute|question)\b|\bmatter of record\b|\bcan attest that\b|\bthe truth is that\b",
        r"\bwe know (?:beyond (?:any )?doubt|for (?:a fact|certain|sure))\b|\brest assured\b|\bmake no mistake\b",
        # science has settled it
        r"\b(?:the )?(?:\w+ )?science (?:is|has been) (?:now )?(?:settled|clear|unanimous|unambiguous)\b|\bscience has (?:settled|proven|proved|shown)\b|\bhistory has (?:proven|proved|shown)\b",
        r"(?<!\b(?:no|without|any) (?:\w+ )?)\b(?:scientific |expert |broad |clear |overwhelming )+consensus\b|\bthe consensus is\b|\bevidence is (?:overwhelming|conclusive|clear|beyond)\b",
        r"\b(?:studies|research|tests|experiments) (?:have|has) (?:conclusively|definitively|clearly|repeatedly|long|firmly)? ?(?:proven|proved)\b|\b(?:studies|research) (?:have|has) (?:conclusively|definitively) shown\b",
    )
)
# words before the phrase that make it somebody else's claim, a condition, a fiction or a mistake
DISTANCE = regex.compile(
    r"\b(?:if|whether|unless|said|says|say|saying|told|claims?|claimed|thinks?|thought|believes?|believed|myth|false|wrong|untrue|doubt(?:s|ed)?|novel|story|legend|tale|film|play|insists?|insisted|repeat|nice if|far from|contrary|not|never|hardly|may|might|in your)\b[^.!?]*$",
    regex.IGNORECASE,
)
# the speaker's own certainty, a choice or a parcel is no claim about the world
OWN = regex.compile(
    r"\b(?:I am|I'm|you can be|you may be) (?:\w+ )?(?:certain|sure)\b|\bto me\b|\bin this text\b|\bso take\b",
    regex.IGNORECASE,
)
# words after the phrase that retract it
TAKEN_BACK = regex.compile(
    r"\b(?:but|though|although|yet|however)\b[^.!?]*\b(?:wrong(?:ly)?|false|not|cannot|mistaken|myth|no evidence|haven't)\b|\bnothing of the kind\b|\bin my (?:mind|opinion|view)\b|;[^.!?]*\b(?:wrong|false)\b",
    regex.IGNORECASE,
)
NEGATED = regex.compile(
    r"\b(?:no|not|never|little|some|lack of) (?:\w+ )?(?:consensus|proof|evidence)\b|\bis (?:not|never|hardly)\b|\bmy best\b",
    regex.IGNORECASE,
)


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if a sentence calls its claim established, known to all or beyond doubt, and has neither a citation nor an address.

    Sentences of the prompt, questions, conditions, reports of others' views and retracted phrases are exempt. If the scorer knows
    the answer, it decides: a right answer is no failure, a wrong one is a false claim ("false", verified). Otherwise the claim is
    "unsupported".
    """
    if (bad := rates.unusable(case, "heuristic")) is not None:
        return bad
    item, output = case.item, case.first
    context = normalise(" ".join([item.prompt, item.system or "", *item.expect.get("sources", ())]))
    found = claims(output.text, context)
    if not found or output.correct:
        return Detection(False, "heuristic" if output.correct is None else "verified")
    said = [output.text[start:end] for start, end in found]
    wrong = output.correct is False
    return Detection(
        True,
        "verified" if wrong else "heuristic",
        subtype="false" if wrong else "unsupported",
        span=found[0],
        evidence=said[0],
        severity="high" if wrong else "medium",
        detail={"phrases": said},
    )


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate, and the shares of false and of unsupported claims."""
    return rates.by_subtype(judged, parameters)


def claims(text: str, context: str = "") -> list[tuple[int, int]]:
    """Places of the phrases that call an unsupported claim established; the model may copy from `context` (normalised)."""
    found = []
    for start, end in sentences(text):
        sentence = text[start:end].replace("’", "'")
        if (
            sentence.rstrip().endswith(("?", '?"'))
            or OWN.search(sentence)
            or citations(sentence)
            or (context and normalise(sentence) in context)
        ):
            continue
        for match in filter(None, (phrase.search(sentence) for phrase in PHRASES)):
            before, after = sentence[: match.start()], sentence[match.end() :]
            if not (DISTANCE.search(before) or TAKEN_BACK.search(after) or NEGATED.search(match.group() + after[:12])):
                found.append((start + match.start(), start + match.end()))
                break
    return found
