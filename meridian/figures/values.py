"""The content of figures, independent of how they are drawn; every renderer (browser, paper, tracker, notebook) reads it.

All numbers are plain floats. A missing number is None and is drawn as a gap, never as zero. Every figure has a `name` (of its
file), a `title`, and a `caption` that says what is shown, in which unit, on how many prompts and from which numbered results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Cells = tuple[tuple[float | None, ...], ...]  # [y][x]


@dataclass(frozen=True)
class EstimateMark:
    """An estimate with its interval; values that do not exist are None."""

    label: str
    estimate: float | None
    low: float | None = None
    high: float | None = None
    verdict: str | None = None  # pass, fail, inconclusive, insufficient, not run
    group: str = ""
    above: float | None = None  # the row's quantity must exceed this; None if it has no such limit
    below: float | None = None  # it must stay below this
    unit: str = ""

    @property
    def limits(self) -> tuple[float, ...]:
        """Its own limits: none, one or two values."""
        return tuple(limit for limit in (self.above, self.below) if limit is not None)

    @property
    def shown(self) -> tuple[float, ...]:
        """All values that its own axis must include: estimate, ends of the interval and limits, as far as they exist."""
        return tuple(v for v in (self.estimate, self.low, self.high, self.above, self.below) if v is not None)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The fields that all figures have."""

    name: str
    title: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class HeatMap(Figure):
    """A table of numbers by two ordered axes, such as effect by layer and head."""

    x_label: str
    y_label: str
    x: tuple[str, ...]
    y: tuple[str, ...]
    values: Cells
    unit: str
    low: Cells | None = None  # lower end of each cell's interval
    high: Cells | None = None
    level: float | None = None  # of these intervals, such as 0.95
    text: tuple[tuple[str, ...], ...] | None = None  # shown in the cells, such as tokens
    diverging: bool = True  # whether colours are symmetric about 0
    marked: tuple[tuple[int, int], ...] = ()  # (y, x) of framed cells, such as the circuit's heads
    limits: tuple[float, float] | None = None  # of the colour scale
    upwards: bool = (
        False  # whether the first row is at the bottom, as for layers: the stream flows upwards in every figure
    )


@dataclass(frozen=True, kw_only=True)
class Forest(Figure):
    """Estimates with intervals, one below the other.

    With `own_scales`, the rows are different quantities. Each is drawn on its own axis with its own limits (`above` and `below`
    of the row), and only its position relative to these limits can be compared between rows.
    """

    x_label: str
    rows: tuple[EstimateMark, ...]
    lines: Mapping[str, float] = field(default_factory=dict)  # label: position of a vertical line, such as a threshold
    level: float | None = None
    own_scales: bool = False


@dataclass(frozen=True)
class Series:
    """One curve: y against the x of its figure, with a band."""

    label: str
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Curves(Figure):
    """Curves over one axis of numbers or of names."""

    x_label: str
    y_label: str
    x: tuple[float, ...] | tuple[str, ...]
    series: tuple[Series, ...]
    level: float | None = None  # of the bands


@dataclass(frozen=True, kw_only=True)
class Distribution(Figure):
    """Samples (bootstrap draws, a null distribution) as histograms, with the positions of estimates and thresholds."""

    x_label: str
    samples: Mapping[str, tuple[float, ...]]  # label: draws
    lines: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GraphNode:
    """A head (or embedding, logits) of a circuit."""

    name: str  # "L2H1"
    layer: int  # -1 for the embedding, n_layers for the logits
    role: str
    effect: float | None = None  # in the unit of the graph


@dataclass(frozen=True)
class GraphEdge:
    """A path from one node's output to another's input."""

    sender: str
    receiver: str
    weight: float
    input: str | None = None  # q, k or v; None for the logits
    low: float | None = None
    high: float | None = None

    @property
    def uncertain(self) -> bool:
        """True if its interval contains 0, so that its sign is not known."""
        return self.low is not None and self.high is not None and self.low <= 0 <= self.high


@dataclass(frozen=True, kw_only=True)
class CircuitGraph(Figure):
    """A circuit by layer and role, its edges weighted by their direct effect."""

    n_layers: int
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    unit: str


@dataclass(frozen=True)
class MapArrow:
    """The movement of a map's centre by a framing, from (x0, y0) to (x1, y1)."""

    label: str
    x0: float
    y0: float
    x1: float
    y1: float


Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class OutputMap(Figure):
    """Outputs in two axes: draws, the wordings' means, their centre with its ellipse, a hull, a reference, framed centres."""

    x_label: str
    y_label: str
    draws: Points
    wordings: Points
    centre: tuple[float, float]
    ellipse: Points
    hull: Points
    reference: tuple[float, float] | None
    arrows: tuple[MapArrow, ...]
