"""The form of a log's lines: which keys a line of each kind has, and of which types their values are.

A form is a type or a tuple of types; {key: form} of an object that has at least these keys; or [form] of a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import results_io
from suites import schema

Form = type | tuple[type, ...] | Mapping[str, Any] | list[Any]  # the last two hold forms
MAYBE_TEXT, NUMBER = (str, type(None)), (int, float)


def require(line: Any, forms: Mapping[str, Form], where: str) -> None:
    """UserError unless a line has one of these kinds and the form of it: a log of another command has other lines."""
    kind = line.get("kind") if isinstance(line, Mapping) else None
    form = forms.get(kind) if isinstance(kind, str) else None
    if form is None:
        fault = f"has the kind {schema.shown(kind)}, and such a log has {', '.join(forms)}"
    elif (at := misfit(line, form)) is not None:
        fault = f"is no line of kind {kind}: its {at or 'value'} is missing or of another type"
    else:
        return
    raise results_io.UserError(f"{where} {fault}; restore the file from a copy, or move it away")


def misfit(value: Any, form: Form, at: str = "") -> str | None:
    """The key path of the first value that is absent or of another type; None if the value has the form."""
    if isinstance(form, Mapping):
        if not isinstance(value, Mapping):
            return at
        found = (misfit(value.get(key, ...), below, f"{at}.{key}" if at else key) for key, below in form.items())
    elif isinstance(form, list):
        if not isinstance(value, list):
            return at
        found = (misfit(one, form[0], f"{at}[{place}]") for place, one in enumerate(value))
    else:
        return None if isinstance(value, form) else at
    return next((one for one in found if one is not None), None)
