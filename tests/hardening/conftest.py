"""The finished run that the attacks are made on."""

from __future__ import annotations

from tests.meridian.conftest import finished, results

__all__ = ["finished", "results"]
