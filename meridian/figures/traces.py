"""Causal traces and patched sites: how much restoring one layer at one position recovers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meridian.figures.intervals import LEVEL, cells, normal_interval
from meridian.figures.names import human
from meridian.figures.values import HeatMap
from meridian.run_folder import RunFolder

SITES = {"residual": "residual stream", "attention": "attention output", "mlp": "MLP output"}


def build(run: RunFolder) -> Iterator[HeatMap]:
    """Heat maps by layer and position role: three of causal tracing (06), three of patched sites (02)."""
    yield from _traces(run.data("06"))
    yield from _patched(run.data("02"))


def _traces(data: Any) -> Iterator[HeatMap]:
    if data is None:
        return
    strategy = data["corruption"]["strategy"].replace("_", " ")
    for site, name in SITES.items():
        pairs = zip(data["impact"][site], data["standard_error"][site], strict=True)
        ends = [[normal_interval(*pair) for pair in zip(*row, strict=True)] for row in pairs]
        yield _site_map(
            data["impact"],
            site,
            name=f"trace_{site}",
            title=f"Causal trace, {name}",
            caption=f"Probability of the answer gained by restoring the {name} of one layer at one position after {strategy}; "
            f"{data['clean_probability']:.2f} clean, {data['corrupted_probability']:.2f} corrupted. Mean over "
            f"{len(data['rows'])} prompts, {LEVEL:.0%} interval from its standard error. Result 06.",
            x=tuple(map(human, data["roles"])),
            unit="probability",
            low=cells([[low for low, _ in row] for row in ends]),
            high=cells([[high for _, high in row] for row in ends]),
            level=LEVEL,
        )


def _patched(data: Any) -> Iterator[HeatMap]:
    sites = None if data is None else data.get("sites")
    if not sites:
        return
    for site, name in SITES.items():
        yield _site_map(
            sites["denoising"],
            site,
            name=f"sites_{site}",
            title=f"Patched sites, {name}",
            caption=f"Share of the gap between clean and corrupted run that the clean {name} of one layer at one position "
            f"restores. Mean over {len(sites['rows'])} prompts. Result 02.",
            x=tuple(map(human, sites["roles"])),
            unit="share restored",
        )


def _site_map(tables: Mapping[str, list[list[float]]], site: str, **figure: Any) -> HeatMap:
    """The table [layer][position] of one site. `figure`: the other fields of `HeatMap`.

    All three sites share one colour scale, symmetric about 0, so that small effects look small beside larger ones.
    """
    most = max(abs(value) for each in SITES for row in tables[each] for value in row)
    return HeatMap(
        x_label="position",
        y_label="layer",
        upwards=True,
        y=tuple(map(str, range(len(tables[site])))),
        values=cells(tables[site]),
        limits=(-most, most) if most > 0 else None,
        **figure,
    )
