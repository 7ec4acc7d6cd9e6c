"""Counts the bytes of tensor storages that are alive while something runs: the peak that a planner has to predict."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages that operations have made since the mode was entered: alive now, and at most at one time.

    Whatever an operation allocates and frees within itself is not seen. `but` are tensors that are not counted.
    """

    def __init__(self, but: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known = weakref.WeakSet[Any](tensor.untyped_storage() for tensor in but)
        self._left_out = list(but)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._known.add(tensor.untyped_storage())  # made before the mode was entered, or seen already
        found = function(*args, **kwargs or {})
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return found

    def _see(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size
