"""Designs against which no rule was made: `configs/experiment/out_of_sample.yaml` says what is true of each.

They are built by name like the variants that ship (`planted.build`), and are none of them: no shipped number counts them.
"""

from __future__ import annotations

from collections.abc import Callable

from circuits.planted import out_of_sample_heads, out_of_sample_mlps
from circuits.planted.design import Design

OUT_OF_SAMPLE: dict[str, Callable[[], Design]] = {**out_of_sample_heads.DESIGNS, **out_of_sample_mlps.DESIGNS}
