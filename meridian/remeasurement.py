"""Measures a random share of the prompts of 01, 02 and 20 again, and compares the numbers with the stored ones.

Every number of these results belongs to one prompt. Means and donors come from the reference prompts, and random choices depend
on the prompt's own id. A subset of prompts therefore gives the same numbers as all of them, up to rounding.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import code_digest
import results_io
from meridian.verification import Break, Verification
from results_io import UserError

if TYPE_CHECKING:
    from circuits.study import Study

LABELS = ("prompt_id", "split", "template", "cluster", "correct", "top1")
EFFECTS = ("clean_logit_diff", "corrupted_logit_diff", "clean_in_logits", "answer_probability", "foil_probability")


@dataclass(frozen=True)
class Compared:
    """One field of a result, as stored and as measured again. `rows`: the prompts along its first axis."""

    what: str
    rows: Sequence[int]
    stored: np.ndarray
    again: np.ndarray

    @classmethod
    def of(cls, what: str, rows: Sequence[int], stored: Any, again: Any) -> Compared:
        return cls(what, rows, np.asarray(stored), np.asarray(again))

    def difference(self, tolerance: float) -> float:
        """The largest difference; 0 for labels. Break if it exceeds the tolerance, or if labels or shapes are not equal."""
        if self.stored.shape != self.again.shape:
            raise Break(f"{self.what} has the shape {self.stored.shape}, and measured again {self.again.shape}")
        is_label = self.again.dtype.kind != "f"
        gap = (self.stored != self.again).astype(float) if is_label else self._gap()
        if not gap.size:
            return 0.0
        worst = np.unravel_index(gap.argmax(), gap.shape)
        if gap[worst] > (0 if is_label else tolerance):
            raise Break(
                f"{self.what} is {self.stored[worst]} in row {self.rows[int(worst[0])]}, and measured again {self.again[worst]}; "
                + ("labels have to be equal" if is_label else f"they may differ by {tolerance:g}")
            )
        return 0.0 if is_label else float(gap[worst])

    def _gap(self) -> np.ndarray:
        """|stored - again|; infinite if exactly one of them is NaN, and 0 if both are."""
        stored, again = self.stored.astype(float), self.again.astype(float)
        unknown, alike = np.isnan(stored) | np.isnan(again), np.isnan(stored) & np.isnan(again)
        return np.where(alike | (stored == again), 0.0, np.where(unknown, np.inf, np.abs(stored - again)))


def check(settings: Mapping[str, Any]) -> None:
    """UserError unless `remeasure` is null or a share of the prompts, and `tolerance` is positive."""
    share, tolerance = settings["remeasure"], settings["tolerance"]
    if share is not None and (type(share) not in (int, float) or not 0 < share <= 1):
        raise UserError(
            f"verify.remeasure={share} is not a share of the prompts; write a number above 0 and up to 1, such as 0.05"
        )
    if not tolerance > 0:
        raise UserError(
            f"verify.tolerance={tolerance} is not positive; write the largest difference allowed, such as 0.001"
        )


def remeasure(found: Verification, settings: Mapping[str, Any]) -> str:
    """One sentence about what was measured again. Break at the first number that differs by more than the tolerance.

    `settings`: remeasure (share of the prompts), seed (selects the prompts), tolerance (in nats or probability). UserError if the
    model or the circuit is not available.
    """
    plan = found.plan
    circuit, share, total = found.claim(plan), float(settings["remeasure"]), len(plan.study.prompts)
    rows = sorted(random.Random(f"verify {settings['seed']}").sample(range(total), max(1, round(share * total))))
    count, largest, numbers, codes = 0, 0.0, [], set()
    for number, measured in MEASURED.items():
        if number not in found.certificate["inputs_sha256"]:
            continue
        document = found.document(number)
        asked = plan.with_settings(document["subject"]["settings"]).study
        study = replace(asked, circuit=circuit, prompts=asked.prompts.select(rows))
        for compared in measured(study, document["data"], rows):
            largest = max(largest, compared.difference(float(settings["tolerance"])))
            count += compared.again.size
        numbers.append(number)
        codes.add(document["subject"]["measured_by"])
    other = codes - {code_digest.version_of("measurements")}
    return (
        f"measured again: {len(rows)} of {total} prompts ({share:.3g}, drawn with seed {settings['seed']}) of "
        f"{', '.join(numbers)} on {plan.model.device.type}: {count:,} values, largest difference {largest:.1e} of "
        f"{float(settings['tolerance']):g} allowed"
        + (f"; stored by other code ({', '.join(sorted(other))})" if other else "")
    )


def _baseline(study: Study, stored: Mapping[str, Any], rows: list[int]) -> Iterator[Compared]:
    from circuits.measurements import baseline

    again = baseline.measure(study)
    for name in (*LABELS, *EFFECTS):
        yield Compared.of(f"{name} of 01", rows, np.asarray(stored[name])[rows], again[name])


def _activation_patching(study: Study, stored: Mapping[str, Any], rows: list[int]) -> Iterator[Compared]:
    from circuits.measurements import activation_patching

    again = activation_patching.patch_heads(study)
    for name, values in {
        "denoising": again.denoised - again.corrupted[:, None],
        "noising": again.clean[:, None] - again.noised,
    }.items():
        yield Compared.of(f"{name} of 02", rows, np.asarray(stored[name])[rows], values)


def _ablation_battery(study: Study, stored: Mapping[str, Any], rows: list[int]) -> Iterator[Compared]:
    """Every condition, and the random circuits on those selected prompts that they were originally run on."""
    from circuits.measurements import ablation_battery

    again = ablation_battery.measure(replace(study, settings={**study.settings, "random_circuit_prompt_share": 1}))
    for name in ("circuit", "conditions", "baselines"):
        if results_io.canonical(again[name]) != stored[name]:
            raise Break(f"{name} of 20 are others than its settings and its circuit give")
    yield Compared.of(
        "logit_diff of 20", rows, np.asarray(stored["logit_diff"]).T[rows], np.asarray(again["logit_diff"]).T
    )
    before, now = stored["random_circuits"], again["random_circuits"]
    yield Compared.of("heads of the random circuits of 20", range(len(before["heads"])), before["heads"], now["heads"])
    column = {row: place for place, row in enumerate(before["prompt_index"])}
    both = [(column[rows[one]], place) for place, one in enumerate(now["prompt_index"]) if rows[one] in column]
    old, new = ([pair[side] for pair in both] for side in (0, 1))
    yield Compared.of(
        "logit_diff of the random circuits of 20",
        [before["prompt_index"][place] for place in old],
        np.asarray(before["logit_diff"]).T[old],
        np.asarray(now["logit_diff"]).T[new],
    )


MEASURED = {"01": _baseline, "02": _activation_patching, "20": _ablation_battery}
