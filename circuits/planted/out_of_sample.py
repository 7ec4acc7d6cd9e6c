"""Designs that were not used to make any rule: `configs/experiment/out_of_sample.yaml` says what is true of each.

They are built by name like the shipped variants (`planted.build`) but do not belong to them: no shipped number includes them.
"""

from __future__ import annotations

from collections.abc import Callable

from circuits.planted import out_of_sample_heads, out_of_sample_mlps
from circuits.planted.design import Design

OUT_OF_SAMPLE: dict[str, Callable[[], Design]] = {**out_of_sample_heads.DESIGNS, **out_of_sample_mlps.DESIGNS}
