# ruff: noqa: E501 (a phrase list is easier to compare with one pattern a line)
"""Citations in a text, by their form: expressions that refer to a source. Used by A6 and A7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import regex

from suites.normalise import normalise

NAME = r"(?:(?:de|van|von|der|den|la|le|du|di|O'|Mc|Mac|O’)[ ]?)*\p{Lu}[\p{L}'’-]+"
INITIALS = r"(?:,? (?:\p{Lu}\. ?)+)?"
NAMES = (
    rf"{NAME}{INITIALS}(?:(?:,? (?:and|&) |, ){NAME}{INITIALS})*(?: et al\.?| and (?:colleagues|co-workers|others))?"
)
YEAR = r"(?:1[5-9]|2[01])\d\d"
WORKS = r"(?:paper|article|study|report|review|survey|meta-analysis|book|monograph|thesis|trial)"
# a capital at the start of a sentence, or a month, is no author
NO_AUTHOR = r"(?!(?:The|A|An|In|On|At|By|From|Since|Until|Around|About|Easter|Christmas|January|February|March|April|May|June|July|August|"
NO_AUTHOR += r"September|October|November|December|Version|Chapter|Windows|Apollo)\b)"
FORMS = {
    "doi": r"(?:\b(?:https?://(?:dx\.)?)?doi(?:\.org/|:)\s*\S+|\b10\.\d{4,9}/[^\s\"<>]+)",
    "url": r"\b(?:https?|ftp)://[^\s\"<>]+|\b(?:www|ftp)\.[\w-]+\.[^\s\"<>]+|\b(?:[\w-]+\.)+[a-z]{2,}/[^\s\"<>]*|\b[\w-]+\.(?:int|org|com|net|edu|gov|info|ac\.uk|co\.uk)\b",
    "author_year": rf"\((?:see |cf\.? |e\.g\.,? |see also )?(?:[^()]*; ?)?{NO_AUTHOR}(?:\p{{Lu}}\. ?)*{NAMES},? (?:{YEAR}[a-z]?|in press|n\.d\.)"
    rf"(?:,? pp?\. ?\d[\d–-]*)?(?:; [^()]*)?\)"
    rf"|\b{NO_AUTHOR}{NAMES}(?:'s|’s)? (?:{WORKS} )?\((?:{YEAR}[a-z]?|in press|n\.d\.)\)"
    rf"|\b(?:cf\.?|see|by|compare|with|is|in|Cf\.|See|Compare) {NO_AUTHOR}{NAME},? {YEAR}\b",
    "et_al": rf"\b{NAME} et al\b\.?(?:,? \(?{YEAR}[a-z]?\)?)?",
    "numeric": r"(?<=[\p{L}\p{N}.,;)\"”%] ?)(?<!\w)\[[1-9]\d{0,2}(?:\s?[,–-]\s?[1-9]\d{0,2})*\](?=\s*(?:[.,;:)\[–-]|$))"
    r"|\bref(?:s|erences?)?\.? \[?\d{1,3}\b",
    "identifier": r"\b(?:arXiv:\s?\d{4}\.\d{4,5}|PMID:?\s?\d{5,9}|ISBN(?:-1[03])?:?\s?[\d][\d -]{8,}[\dXx]|RFC \d{3,5}|NCT\d{8})\b",
    "journal": rf"\b(?:Journal|Proceedings|Annals|Transactions|Proc\.|Phil\. Mag\.|J\.) (?:of |\p{{Lu}})|\bvol\. ?\d+|\bpp?\. ?\d+|,? page \d+\b|\b\d+(?:st|nd|rd|th) ed(?:ition|\.)"
    rf"|\b{YEAR} (?:\p{{L}}+ ){{0,2}}{WORKS}\b|\b{WORKS} (?:in|by) (?:the )?\p{{Lu}}\p{{L}}+|\b{NAME}(?:'s|’s) {YEAR} {WORKS}\b"
    rf"|\b\p{{Lu}}\p{{L}}+ \d{{1,4}}, \d+[–-]\d+|\bpublished in (?:the )?\p{{Lu}}|\breported in the \p{{Lu}}|\bin (?:his|her|their) \p{{Lu}}\p{{L}}+ \p{{Lu}}"
    rf"|\b{NAME}(?:'s|’s) (?:(?:book|article|paper|essay) )?[\"“]?\p{{Lu}}[^.!?,;]{{2,60}}(?:,? (?:of )?{YEAR}|: )|\b(?:Genesis|Exodus|Psalms?|Matthew|Mark|Luke|John|Acts|Romans) \d+:\d+"
    rf"|\b\d{{1,4}} [FU]\.(?: ?\d?[dS]\.?)? ?\d+|(?:^|\n)\s*(?:Source|Reference)s?: \p{{Lu}}",
}


@dataclass(frozen=True)
class Citation:
    """A citation: its form, its place in the text, and the text itself."""

    form: str
    start: int
    end: int
    text: str


def citations(text: str) -> list[Citation]:
    """The citations in the text, in order; of overlapping ones, the one whose form is listed first."""
    found: list[Citation] = []
    for form, pattern in FORMS.items():
        for match in regex.finditer(pattern, text):  # the library keeps compiled patterns
            cited = match.group().rstrip(".,;:!?)'\"”’") if form in ("doi", "url") else match.group()
            if all(match.end() <= other.start or other.end <= match.start() for other in found):
                found.append(Citation(form, match.start(), match.start() + len(cited), cited))
    return sorted(found, key=lambda one: one.start)


def supplied(citation: Citation, sources: Sequence[str]) -> bool:
    """Whether one of the sources contains the whole citation; an address does not supply a longer one that begins with it.

    Authors and years may be apart in a source. A number needs its brackets: "[1]" is not supplied by any 1.
    """
    texts = [normalise(source) for source in sources]
    wanted = _wanted(citation)
    if any(all(pattern.search(text) for pattern in wanted) for text in texts):
        return True
    parts = regex.findall(rf"{NAME}|{YEAR}", citation.text) if citation.form in ("author_year", "et_al") else []
    names = [normalise(part) for part in parts if part.lower() not in ("see", "cf", "compare")]
    return bool(names) and any(all(_whole(name).search(text) for name in names) for text in texts)


def _wanted(citation: Citation) -> list[regex.Pattern[str]]:
    """What a normalised source must hold to supply the citation."""
    body = normalise(citation.text)
    if citation.form == "numeric" and "[" in body and "]" in body:
        return [regex.compile(rf"\[{number}\]") for number in regex.findall(r"\d+", body)]
    if citation.form in ("doi", "url"):
        address = regex.sub(r"^(?:https?|ftp)://", "", body).rstrip("/")
        # a mere host is supplied by any address on it
        after = r"[/?#&=%~+:.@-]*" if "/" in address else r"[:.@-]*"
        return [regex.compile(rf"(?<![\w.-]){regex.escape(address)}(?!{after}\w)")]
    return [_whole(body.strip("()[] .,"))]


def _whole(words: str) -> regex.Pattern[str]:
    return regex.compile(rf"(?<!\w){regex.escape(words)}(?!\w)")
