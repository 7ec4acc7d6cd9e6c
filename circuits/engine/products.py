"""How the fused backend multiplies by the weights of queries, keys, values and MLPs: in IEEE float32, or split for tensor cores.

A product that is not IEEE is used only if it gives the same numbers on the model, and results record which one was used.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

IEEE, TF32X3, AUTO = "ieee", "tf32x3", "auto"
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Products:
    """x W^T + b: by `functional.linear` until `adopt` has accepted another implementation.

    `name` is what results record, `why` the reason in words.
    """

    def __init__(self) -> None:
        self.name, self.why = IEEE, "asked for"
        self._other: Linear | None = None

    def __call__(
        self, x: Float[Tensor, "*row from"], weights: Float[Tensor, "to from"], bias: Tensor | None = None
    ) -> Float[Tensor, "*row to"]:
        if self._other is None or torch.is_grad_enabled():  # kernels have no gradient
            return functional.linear(x, weights, bias)
        return self._other(x, weights, bias)

    def adopt(self, name: str, other: Linear, run: Callable[[], np.ndarray], tolerance: float) -> bool:
        """Use `other`, called `name`, if `run` (logit differences) gives the same numbers with it; returns whether it does.

        The same means within `tolerance` times the largest logit difference. If `other` raises or differs, only `why` changes.
        """
        expected = run()
        self._other = other
        try:
            found = run()
            scale = float(np.abs(expected).max(initial=0.0)) or 1.0
            error = float(np.abs(found - expected).max(initial=0.0)) / scale
            reason = None if error <= tolerance else f"differs from IEEE by {error:.1e} of the largest logit difference"
        except Exception as problem:  # whatever a compiler raises, fall back to IEEE
            error, reason = 0.0, f"failed ({type(problem).__name__}: {(str(problem).splitlines() or [''])[0]})"
        if reason is not None:
            self._other, self.why = None, f"{name} {reason}, and at most {tolerance:.0e} is allowed"
            return False
        self.name, self.why = name, f"within {error:.1e} of IEEE, of the largest logit difference"
        return True
