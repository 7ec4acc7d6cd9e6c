"""Find a circuit where none is published.

greedy, atp, nap_ig, gim, classifier   methods that rank heads
eap_ig, eap_gim                        methods that rank edges
ranking                                what a method returns
nested, crossfit                       a ranking's circuits of every size; the same on prompts that did not rank
stopping                               which of these is the circuit
curve, resampling, recovery            faithfulness by size, CPR, CMD; intervals and Jaccard; known circuits: plain numbers
search                                 the recipe that they share
roles                                  labels for the heads found, by what they do
"""

from __future__ import annotations

from circuits.circuit import Circuit
from circuits.discovery.recovery import recovery
from circuits.discovery.search import (
    DEFAULT,
    METHODS,
    Discovery,
    check,
    find,
    may_fall_back,
    method_name,
    sentence,
    warning,
)
from circuits.study import Study

__all__ = [
    "DEFAULT",
    "METHODS",
    "Discovery",
    "check",
    "discover",
    "find",
    "may_fall_back",
    "method_name",
    "recovery",
    "sentence",
    "warning",
]


def discover(study: Study, method: str = DEFAULT) -> Circuit:
    """The circuit that `find` finds, without its document."""
    return find(study, method).circuit
