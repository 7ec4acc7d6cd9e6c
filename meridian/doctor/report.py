"""What the doctor found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import results_io
from meridian.doctor.architecture import Architecture
from meridian.doctor.estimate import RunEstimate
from meridian.doctor.parity import Parity
from meridian.doctor.selftests import SelfTests
from meridian.doctor.tokens import ExamplePrompt


@dataclass(frozen=True)
class Report:
    """One section for each question. `faults` make results untrustworthy or a run impossible; `warnings` do not."""

    architecture: Architecture
    parity: Parity
    task: str
    tokens: ExamplePrompt
    self_tests: SelfTests
    estimate: RunEstimate
    faults: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        return not self.faults

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: the fields, and what is derived from them."""
        document = asdict(self)
        for own, comparison in zip(document["parity"]["comparisons"], self.parity.comparisons, strict=True):
            own["agrees"] = comparison.agrees
        behaviour = self.self_tests.behaviour
        document["self_tests"]["behaviour"] |= {"present": behaviour.present, "sentence": behaviour.sentence}
        return results_io.canonical({**document, "healthy": self.healthy})
