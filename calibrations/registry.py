"""Every calibration, under the identifier by which it was published."""

from __future__ import annotations

from types import ModuleType

import results_io
from calibrations import (
    c11_bootstrap_stability,
    c12_convergent_validity,
    c13_measurement_invariance,
    c14_derived_metrics,
    c16_reliability_suite,
    c17_discriminant_validity,
    c23_nomological_validity,
    c30_seed_variance,
    c36_incremental_validity,
    e1b_method_invariance,
    f59_inter_rater_reliability,
    m3b_certified_stability,
    m93_multiple_comparisons,
    m98_ablation_invariance,
    s1_distributional_characterization,
    s3_distributional_stability,
)

_IN_ORDER = (
    c11_bootstrap_stability,
    c12_convergent_validity,
    c13_measurement_invariance,
    c14_derived_metrics,
    c16_reliability_suite,
    c17_discriminant_validity,
    c23_nomological_validity,
    c30_seed_variance,
    c36_incremental_validity,
    f59_inter_rater_reliability,
    s1_distributional_characterization,
    s3_distributional_stability,
    m93_multiple_comparisons,
    m98_ablation_invariance,
    e1b_method_invariance,
    m3b_certified_stability,
)

CALIBRATIONS: dict[str, ModuleType] = {module.ID: module for module in _IN_ORDER}


def file_name(module: ModuleType) -> str:
    """The name that a calibration's code, configuration and test share, e.g. "c13_measurement_invariance"."""
    return module.__name__.rpartition(".")[2]


def get(name: str) -> ModuleType:
    """The calibration called `name`: its ID in any case ("c13", "C13") or its file name.

    Raises results_io.UserError naming the known IDs if there is none.
    """
    wanted = name.strip().lower()
    for identifier, module in CALIBRATIONS.items():
        if wanted in (identifier.lower(), file_name(module)):
            return module
    raise results_io.UserError(
        f"calibration {name!r} is unknown; expected one of {', '.join(CALIBRATIONS)} or a file name such as "
        f"{file_name(_IN_ORDER[0])}"
    )
