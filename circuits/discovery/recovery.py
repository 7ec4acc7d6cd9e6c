"""How much of a known circuit a method finds, by the set it finds and by its ranking before any stopping rule."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from circuits.circuit import Node


def recovery(found: Collection[Node], order: Sequence[Node], known: Collection[Node]) -> dict[str, float | None]:
    """Precision and recall of the set `found`; R-precision and AUROC of `order`, all heads with the most important first.

        precision     found and known / found                   None if nothing was found
        recall        found and known / known
        r_precision   known among the first R / R,              R the number of known heads
        auroc         P(a known head comes before an unknown one); None if there are no unknown heads

    Raises ValueError if no head is known, or if a known head is not in `order`.
    """
    from sklearn.metrics import roc_auc_score  # imported here: scikit-learn takes a while

    known, hits = set(known), len(set(found) & set(known))
    if not known or known - set(order):
        raise ValueError(f"{len(known)} known heads, {len(known - set(order))} of them not in the order of all heads")
    member = np.array([node in known for node in order])
    return {
        "precision": hits / len(found) if found else None,
        "recall": hits / len(known),
        "r_precision": float(member[: len(known)].mean()),
        "auroc": None if member.all() else float(roc_auc_score(member, -np.arange(len(order)))),
    }
