"""Finding: the answer to a question to a model, as numbers and as the figure that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from calibrations.evidence import sampling_units
from meridian.figures.intervals import clustered_means, finite
from meridian.figures.values import EstimateMark, Figure
from results_io import UserError

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from matplotlib.figure import Figure as Canvas

    from circuits.prompts import PromptSet


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that a notebook shows; `interactive()` gives the same figure with values on hover."""

    figure: Figure

    def draw(self) -> Canvas:
        """The figure drawn by matplotlib."""
        from meridian.figures import static

        return static.draw(self.figure, titled=True)

    def interactive(self) -> go.Figure:
        """The figure drawn by Plotly."""
        from meridian.figures import plotly

        return plotly.draw(self.figure)

    def _repr_png_(self) -> bytes:
        from meridian.figures import static

        return static.render(self.draw(), "png")

    def __repr__(self) -> str:
        return f"{self.figure.title}\n{self.figure.caption}"


@dataclass(frozen=True, eq=False)
class Finding(Drawing):
    """Numbers with their figure.

    `table`: one row for each thing asked about. It has at least the column `estimate` and, if prompts were sampled, `low` and
    `high` of the 95 % interval, which are missing if the prompts allow none. `values`: the values whose means the estimates are,
    or None.
    """

    table: pd.DataFrame
    values: Float[np.ndarray, "row prompt"] | None = None

    @property
    def estimate(self) -> float:
        """The number, if there is one. UserError for a table of several rows."""
        return self._only("estimate")

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of `estimate`. UserError for a table of several rows."""
        return self._only("low"), self._only("high")

    def _only(self, column: str) -> float:
        if len(self.table) != 1:
            raise UserError(f"{self.figure.name} has {len(self.table)} rows, not one; read them from .table")
        return float(self.table[column].iloc[0])

    def __repr__(self) -> str:
        return f"{self.figure.title}\n{self.table.to_string(float_format='{:.3f}'.format)}\n{self.figure.caption}"


def means(
    labels: Sequence[str], values: Float[np.ndarray, "row prompt"], prompts: PromptSet, **columns: Sequence[Any]
) -> pd.DataFrame:
    """One row for each label: mean over prompts, its 95 % interval, and further columns.

    The interval is mean -+ t SE over clusters within templates. A cluster is a template with a set of names, as in the
    calibrations. If some template has a single cluster, clusters count as drawn from all templates alike
    (`intervals.usable_strata`). The interval is missing if the prompts give no standard error.
    """
    values = np.asarray(values, dtype=float)
    estimate, *ends = clustered_means(values.T, clusters_of(prompts), np.array(prompts.templates))
    low, high = (np.array(column, dtype=float) for column in ends)
    return pd.DataFrame({"estimate": estimate, "low": low, "high": high, **columns}, index=pd.Index(labels))


def clusters_of(prompts: PromptSet) -> np.ndarray:
    """The sampling unit of each prompt: its template together with its set of names, as in the calibrations."""
    return sampling_units(prompts.templates, prompts.clusters)


def forest_rows(table: pd.DataFrame) -> tuple[EstimateMark, ...]:
    """The rows of a table for a forest plot; a column `group` puts them under headings."""
    groups = table["group"] if "group" in table else [""] * len(table)
    rows = zip(table.index, table["estimate"], table["low"], table["high"], groups, strict=True)
    return tuple(
        EstimateMark(str(label), finite(value), finite(low), finite(high), group=group)
        for label, value, low, high, group in rows
    )
