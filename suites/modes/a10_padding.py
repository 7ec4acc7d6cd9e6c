"""A10: a right answer turns wrong under padding.

Variants: white space, line ends or filler sentences at declared places.
"""

from __future__ import annotations

from suites import schema
from suites.modes import flips

ID = "A10"
NAME = "padding"
TITLE = "Padding sensitivity"
TIER = "verified"
TRACEABLE = "partly"
TRACE_NOTE = (
    "A filler that does not break it against one of the same token length that does; otherwise positions are "
    "aligned from the end."
)
PARAMETERS = schema.object_of()
detect, summarise, rated = flips.detect, flips.summarise, flips.rated
