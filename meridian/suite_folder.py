"""One folder with results of behavioural suites, as data frames and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pandas as pd

import results_io
from meridian.figures import behaviour
from meridian.finding import Drawing
from meridian.run_folder import failure_rates, suite_documents
from result_types import FailureModeResult, TracePairsResult
from results_io import UserError

PAIRS = "132"


@dataclass(frozen=True)
class SuiteFolder:
    """The results of `run.py suite=...` in `path` (results/<model>/suites). Nothing is generated or scored here."""

    path: Path

    @cached_property
    def documents(self) -> Mapping[str, FailureModeResult]:
        """{number: result} of failure modes (101 on), for the results that exist."""
        return suite_documents(self.path)

    @property
    def rates(self) -> pd.DataFrame:
        """The share of items that fail, by suite: n, failure rate with its 95 % interval, and the gate it must stay below."""
        columns = ("suite", "mode", "n", "rate", "low", "high", "gate", "passed")
        rows = []
        for data, record in failure_rates(self.documents):
            ci = record["ci"]
            rate = (record["n"], record["value"], ci and ci["low"], ci and ci["high"])
            rows.append((record["suite"], data["title"], *rate, record["threshold"], record["passed"]))
        return _frame(rows, columns).set_index("suite")

    @property
    def failures(self) -> pd.DataFrame:
        """The worst failures of every suite in full: the prompt and the answer."""
        rows = [
            {"suite": name, **worst}
            for document in self.documents.values()
            for name, suite in document["data"]["suites"].items()
            for worst in suite["worst"]
        ]
        return _frame(rows)

    @property
    def pairs(self) -> pd.DataFrame:
        """Failing prompts beside passing ones, which task=failures traces: `clean` passes, `corrupted` fails."""
        path = results_io.find(self.path, PAIRS)
        groups = [] if path is None else cast(TracePairsResult, results_io.read(path))["data"]["groups"]
        rows = [{"suite": group["suite"], **pair} for group in groups for pair in group["pairs"]]
        wanted = ("suite", "clean", "corrupted", "answer", "wrong", "clean_logit_diff", "corrupted_logit_diff")
        return _frame(rows, wanted)

    @property
    def figure(self) -> Drawing:
        """Failure rates with their intervals and gates, as in the report. UserError if no suite applied."""
        drawn = behaviour.failure_rates(self.documents)
        if not drawn.rows:
            raise UserError(f"no suite in {self.path} applied to the model, so there is no rate; run suite=all")
        return Drawing(drawn)

    def _repr_html_(self) -> str:
        return self.rates.to_html(float_format="{:.3f}".format)


def _frame(rows: Sequence[Any], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Rows (mappings, or values in the order of `columns`) as a data frame. It cannot hold half of a character, which is written
    out.
    """
    found = pd.DataFrame(rows, columns=None if columns is None else list(columns), dtype=object)
    return found.map(_whole).infer_objects() if len(found) else found


def _whole(value: Any) -> Any:
    """A text with half of a character as its escape, "\\ud800", which an endpoint can send; any other value as it is."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value
