"""A finished run in a notebook: its folder of results, with verdicts, heads and figures a word away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pandas as pd

from calibrations.registry import CALIBRATIONS
from meridian import carriers, figures, tables, verdicts
from meridian.figures.values import Figure
from meridian.finding import Drawing, Finding
from meridian.run_folder import CERTIFICATE, RunFolder
from results_io import UserError


class FinishedRun(RunFolder):
    """What one run left in `path`, as numbers and as what shows them. A notebook shows it as its certificate."""

    @property
    def blocking(self) -> pd.DataFrame:
        """Gates that keep the next tier from being reached: metric, verdict, reason, what it needs, split."""
        return verdicts.blocking(self.certificate)

    @property
    def verdicts(self) -> pd.DataFrame:
        """One row for each calibration: published value and verdict, estimate with 90 % interval, verdict, why."""
        return verdicts.table(self._rows)

    @property
    def heads(self) -> pd.DataFrame:
        """One row for each head of the model ("L2H1"): role, and its mean in every measurement with the interval's ends."""
        frame = tables.head_table(self).frame
        return frame.set_axis([f"L{layer}H{head}" for layer, head in zip(frame["layer"], frame["head"], strict=True)])

    @property
    def carriers(self) -> Finding:
        """Of a run on failures: how much of them each head carries. UserError for any other run."""
        return carriers.of(self)

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """Every figure that the results allow, by name, in the order of the report."""
        return figures.of(self)

    def figure(self, name: str) -> Drawing:
        """The figure of this name, ready to be shown. UserError if the results have none."""
        if name not in self.figures:
            raise UserError(f"{self.path} has no figure {name!r}; use one of {', '.join(self.figures)}")
        return Drawing(self.figures[name])

    def _repr_html_(self) -> str:
        if not (self.path / CERTIFICATE).is_file():
            return "<p>No certificate: not all calibrations were asked for</p>" + verdicts.html_table(self._rows)
        return verdicts.html(self.certificate)

    @property
    def _rows(self) -> Sequence[Mapping[str, Any]]:
        """The certificate's rows, or without one those of the calibrations that were run."""
        if (self.path / CERTIFICATE).is_file():
            return self.certificate["rows"]
        return verdicts.rows({name: self.document(module.NUMBER) for name, module in CALIBRATIONS.items()})
