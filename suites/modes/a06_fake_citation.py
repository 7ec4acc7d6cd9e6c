"""A6: the output cites a source that nobody gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import regex

from suites import schema
from suites.estimate import Estimate
from suites.modes import rates
from suites.modes.citations import YEAR, Citation, citations, supplied
from suites.outcome import Case, Detection

ID = "A6"
NAME = "fake_citation"
TITLE = "Fake citation"
TIER = "heuristic; verified where the citation cannot exist (a year to come, a DOI that is none, a host in a reserved domain)"
TRACEABLE = "no"
TRACE_NOTE = "There is no right counterfactual token, except in a closed world where the only valid source is known."
PARAMETERS = schema.object_of(
    run_year={
        "type": "integer",
        "description": "a citation of a later year cannot exist; without it years are not checked",
    }
)
EXPECT = schema.object_of(sources=schema.texts("a list of texts: the sources that the model was given"))
RESERVED = ("test", "example", "invalid")  # top-level domains that no public host can have, RFC 2606 and RFC 6761
# the reader's own machine: an address to try, not a source
LOCAL = regex.compile(
    r"(?:[a-z][a-z+.-]*://)?(?:[\w-]+\.)*(?:localhost|127\.\d+\.\d+\.\d+)(?=[:/?#]|$)", regex.IGNORECASE
)
# "(Smith, 2031)", "Lee et al. (2031)": authors and a year; "the UN (2030) goals" and "Vision 2030" may be names
DATED = regex.compile(rf"(?:,\s*|\bet al\.?,? \(?)(?P<year>{YEAR})(?!\d)")
DOI = regex.compile(r"(?:doi(?:\.org/|:)\s*)?10\.\d{4,9}(?:\.\d+)*/\S+", regex.IGNORECASE)


def detect(case: Case, parameters: Mapping[str, Any]) -> Detection:
    """Fails if the output cites something that neither the prompt nor the item's `expect.sources` has.

    Without a network it is unknown whether a source exists, so this is a heuristic. A failure is verified if the source cannot
    exist: (Author, year) or "et al." with a year after `run_year`, a DOI with invalid syntax, or a host under .test, .example or
    .invalid. An address on localhost is no citation.
    """
    if (bad := rates.unusable(case, "heuristic")) is not None:
        return bad
    item = case.item
    sources = [item.prompt, item.system or "", *item.expect.get("sources", ())]
    cited = [one for one in citations(case.first.text) if one.form != "url" or not LOCAL.match(one.text)]
    unsupported = [one for one in cited if not supplied(one, sources)]
    if not unsupported:
        return Detection(False, "heuristic")
    fakes = [(one, why) for one in unsupported if (why := impossible(one, parameters.get("run_year")))]
    detail = {"citations": [one.text for one in unsupported], "impossible": [one.text for one, _ in fakes]}
    if fakes:
        fake, why = fakes[0]
        span, evidence = (fake.start, fake.end), f"{fake.text}: {why}"
        return Detection(
            True, "verified", subtype="impossible", span=span, evidence=evidence, severity="high", detail=detail
        )
    first = unsupported[0]
    span, evidence = (first.start, first.end), f"{first.text}: in no source that was given"
    return Detection(True, "heuristic", subtype=first.form, span=span, evidence=evidence, detail=detail)


def summarise(judged: Sequence[tuple[Case, Detection]], parameters: Mapping[str, Any]) -> dict[str, Estimate]:
    """Failure rate, the share that is verified, and the share of each form of citation."""
    decided = rates.decided(judged)
    verified = sum(seen.failed is True and seen.tier == "verified" for seen in decided)
    return {
        "failure_rate": rates.failure_rate(judged),
        "verified_rate": rates.proportion(verified, len(decided), "judged cases"),
        **rates.subtypes(judged),
    }


def impossible(citation: Citation, run_year: int | None) -> str:
    """Why the citation cannot exist; "" if it can."""
    if run_year is not None:
        late = [year for year in _years(citation) if year > run_year]
        if late:
            return f"{late[0]} is after {run_year}"
    if (citation.form == "doi" or "doi.org/" in citation.text) and not DOI.search(citation.text):
        return "a DOI begins with 10., a registrant's number and a slash"
    if citation.form == "url":
        address = citation.text if "://" in citation.text else f"//{citation.text}"
        try:
            host = urlsplit(address).hostname or ""
        except ValueError:
            return "not an address"
        if host.rstrip(".").rpartition(".")[2] in RESERVED:
            return f"no public host is under .{host.rstrip('.').rpartition('.')[2]}"
    return ""


def _years(citation: Citation) -> list[int]:
    """Years that certainly belong to a publication: after an author and a comma in brackets, or after "et al."."""
    authors = citation.form in ("author_year", "et_al")
    if not authors or not (citation.text.startswith("(") or regex.search(r"\bet al\b", citation.text)):
        return []
    return [int(match["year"]) for match in DATED.finditer(citation.text)]
