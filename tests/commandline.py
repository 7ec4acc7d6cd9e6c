"""`run.py` inside the test's own process: what it returns and prints."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import run
import session

ROOT = Path(run.__file__).parent


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    errors: str


def command(*arguments: str) -> Outcome:
    """Run `python run.py *arguments` without a new process."""
    output, errors = io.StringIO(), io.StringIO()
    given = ["run.py", *session.arguments(arguments)]
    main_module = mock.patch.dict("os.environ", {"HYDRA_MAIN_MODULE": "__main__"})  # else Hydra looks for a package
    with mock.patch.object(sys, "argv", given), main_module:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = session.guarded(run.main)
    return Outcome(code, output.getvalue(), errors.getvalue())
