"""Find a circuit where none is published.

greedy, atp, eap_ig, classifier   the methods: each ranks heads or edges
ranking                           what a method gives
nested, crossfit                  the circuits of every size that a ranking makes; on prompts that did not rank
curve, resampling                 faithfulness by size, CPR, CMD; bootstrap intervals and Jaccard: plain numbers
search                            the recipe that they share
roles                             labels for the heads found, by what they do
"""

from __future__ import annotations

from circuits.circuit import Circuit
from circuits.discovery.search import DEFAULT, METHODS, Discovery, check, find, method_name, sentence, warning
from circuits.study import Study

__all__ = ["DEFAULT", "METHODS", "Discovery", "check", "discover", "find", "method_name", "sentence", "warning"]


def discover(study: Study, method: str = DEFAULT) -> Circuit:
    """The circuit that `find` finds, without the rest."""
    return find(study, method).circuit
