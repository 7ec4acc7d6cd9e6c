"""A9: a right answer turns wrong under a typing error.

Variants: slips of typing (swapped, dropped, doubled or neighbouring letters) outside the protected spans.
"""

from __future__ import annotations

from suites import schema
from suites.modes import flips

ID = "A9"
NAME = "typo_sensitivity"
TITLE = "Typo sensitivity"
TIER = "verified"
TRACEABLE = "yes"
TRACE_NOTE = "The original against a slip with as many tokens: the right answer against the emitted one."
PARAMETERS = schema.object_of()
detect, summarise, rated = flips.detect, flips.summarise, flips.rated
