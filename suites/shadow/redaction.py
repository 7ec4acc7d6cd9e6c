"""Redaction: removes personal data from every text before anything of it is recorded, embedded or judged.

The default patterns find e-mail addresses, phone numbers, payment cards (with a valid check digit) and keys. A YAML file
{name: regular expression} adds patterns. Patterns find forms, not people's names; users who need more must add it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import regex
import yaml

from results_io import UserError
from suites import bounded_yaml, patterns

DEFAULT = "default"
CARD = "card"
# in this order, so that a card is not taken for a phone number, nor a key for an address
PATTERNS: Mapping[str, str] = {
    "key": r"(?i)\b(?:sk|pk|rk|ghp|gho|ghs|xox[abp]|AKIA|AIza|hf)[-_]?[A-Za-z0-9_-]{12,}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----"
    r"|\b(?:api[_-]?key|token|secret|password)\s*[:=]\s*\S{6,}|\bBearer\s+[A-Za-z0-9._~+/-]{12,}=*",
    "email": r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    CARD: r"(?<!\d)(?:\d[ -]?){12,18}\d(?!\d)",
    "phone": r"(?<![\w.,])(?:\+\d{1,3}[ ./-]?)?(?:\(\d{1,5}\)[ ./-]?)?\d{1,5}(?:[ ./-]?\d{2,5}){1,5}(?![\w]|[.,]\d)",
}
FEWEST_DIGITS = 7  # of a phone number
NO_PHONE = regex.compile(r"\d{4}[-/.]\d{2}[-/.]\d{2}|\d+\.\d+")  # a date, a fraction


class Redactor:
    """Removes the matches of its patterns from texts and counts them by name. UserError for an unusable file."""

    def __init__(self, source: str | Path | None = None) -> None:
        own = {} if source in (None, DEFAULT) else _read(Path(str(source)))
        self.patterns = {**PATTERNS, **own}
        self.counts: Counter[str] = Counter()
        for pattern in self.patterns.values():
            patterns.compiled(pattern)

    def __call__(self, text: str) -> str:
        """The text with each match replaced by its name, for example "[email]".

        UserError for a pattern that takes longer than a second, since a text that was not searched must not be recorded.
        """
        for name, pattern in self.patterns.items():
            try:
                found = patterns.every(pattern, text)
            except TimeoutError:
                raise UserError(
                    f"the redaction pattern {name} takes longer than {patterns.TIMEOUT:g} s on a request; write a simpler one"
                ) from None
            for match in reversed([one for one in found if _counts(name, one.group())]):
                self.counts[name] += 1
                text = f"{text[: match.start()]}[{name}]{text[match.end() :]}"
        return text


def luhn(text: str) -> bool:
    """Whether the digits of a text have the check digit of payment cards (ISO/IEC 7812-1)."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [2 * digit - 9 * (digit > 4) for digit in digits[-2::-2]]
    return bool(digits) and (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def _counts(name: str, text: str) -> bool:
    if name == CARD:
        return luhn(text)
    digits = sum(sign.isdigit() for sign in text)
    return name != "phone" or (digits >= FEWEST_DIGITS and NO_PHONE.fullmatch(text) is None)


def _read(path: Path) -> dict[str, str]:
    try:
        data = bounded_yaml.read(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"shadow.redact={path} cannot be read ({reason}); give a YAML file of name: pattern") from None
    if not isinstance(data, dict) or not all(isinstance(one, str) for pair in data.items() for one in pair):
        raise UserError(
            f"shadow.redact={path} is not a mapping of names to patterns; write one a line, name: 'pattern'"
        )
    return data
