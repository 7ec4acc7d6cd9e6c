"""Models under test: local causal models and HTTP endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from suites.models.base import ModelUnderTest


def open_model(settings: Mapping[str, Any]) -> ModelUnderTest:
    """The model that a configuration names: `kind: endpoint` is asked over HTTP, every other kind runs here.

    UserError if there is none; see `suites.models.local` and `suites.models.endpoint`.
    """
    if settings["kind"] == "endpoint":
        from suites.models.endpoint import Endpoint

        return cast(ModelUnderTest, Endpoint(settings))  # whose properties are cached: to pyright none
    from suites.models.local import LocalModel  # needs torch, which endpoints do without

    return cast(ModelUnderTest, LocalModel(settings))
