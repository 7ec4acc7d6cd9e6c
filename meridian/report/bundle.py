"""What the report carries for the browser: text packed with gzip, as base64, which is safe inside a script element."""

from __future__ import annotations

import base64
import gzip
from functools import cache

from plotly.offline import get_plotlyjs


def pack(text: str) -> str:
    """`text` as base64 of gzip, without a time stamp: the same text gives the same characters."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), compresslevel=9, mtime=0)).decode("ascii")


@cache
def library() -> str:
    """The drawing library of the installed plotly, packed: 4.8 MB become 2."""
    return pack(get_plotlyjs())
