"""Whether a suite applies to a model. Not applicable is never failed: it has a reason, in words, and no rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from suites import abstention, modes
from suites.item import Item, SamplingLeg, Suite
from suites.models.base import CAPABILITIES, ModelUnderTest
from suites.outcome import Case

MISSING = {
    "generation": "the model generates no text",
    "sampling": "the model cannot sample at a temperature",
    "logprobs": "the model gives no log-probabilities",
    "chat": "the model takes no system message and no chat turns",
    "seed": "the model takes no seed",
    "activations": "the model's activations are out of reach",
}
READS, ABSTAINS, REFUSES = "reads", "abstains", "refuses"
PROBED = {  # key in the mode's `detail`, the phrase search used without it, why the suite does not apply
    ABSTAINS: ("abstained", abstention.abstained, "the model abstains on none of {n} prompts that have no answer"),
    REFUSES: ("refused", abstention.refused, "the model refuses none of {n} plain requests"),
}
SHOWN = 3  # ids of prompts in a reason


@dataclass(frozen=True)
class Applicability:
    """`reason` is None if the suite applies as far as is known. `legs` are those that the model can do.

    `dropped`: (name, reason) of every other leg. `unchanged`: ids of variants that the model's tokenizer encodes exactly as
    their parent item; such a change can have no effect.
    """

    reason: str | None
    legs: tuple[SamplingLeg, ...]
    dropped: tuple[tuple[str, str], ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, object]:
        """What the record keeps, so that outputs can be judged again without the model."""
        return {"legs_dropped": dict(self.dropped), "unchanged": list(self.unchanged)}


def before_asking(suite: Suite, model: ModelUnderTest) -> Applicability:
    """Applicability before the model is asked anything: `requires` against its capabilities, prompts against its vocabulary."""
    legs = tuple(leg for leg in suite.legs if leg.temperature == 0 or "sampling" in model.capabilities)
    dropped = tuple((leg.name, MISSING["sampling"]) for leg in suite.legs if leg not in legs)
    lacking = [MISSING[name] for name in suite.requires if name in CAPABILITIES and name not in model.capabilities]
    if not lacking and not legs:
        lacking = [dropped[0][1]]
    if not lacking and READS in suite.requires:
        bad = [item.id for item in suite.items if not model.reads(f"{item.system or ''}{item.prompt}")]
        shown = f"{len(bad)} of {len(suite.items)} prompts (for example {', '.join(bad[:SHOWN])})"
        lacking = [f"the model's vocabulary cannot write {shown}"] if bad else []
    if lacking:
        return Applicability("; ".join(lacking), legs, dropped)
    return Applicability(None, legs, dropped, _unchanged(suite, model))


def probes(suite: Suite) -> list[Item]:
    """The suite's own items that show whether the model ever abstains or refuses; none where that is not required."""
    asked = []
    if ABSTAINS in suite.requires:
        asked += [item for item in suite.items if item.expect.get("answerable") is False]
    if REFUSES in suite.requires:
        asked += [item for item in suite.items if item.expect.get("role") == "plain"]
    return asked


def after_probes(suite: Suite, answered: Sequence[Case]) -> str | None:
    """The reason if the probes' answers show that the suite does not apply: the model never abstains, or never refuses.

    None if the suite applies. Failed calls are ignored. If every call failed, the suite stays and its rates have status "error".
    """
    said = [case for case in answered if case.first.error is None]
    for need, (noted, phrases, reason) in PROBED.items():
        if need in suite.requires and said and not any(_does(suite, case, noted, phrases) for case in said):
            return reason.format(n=len(said))
    return None


def _does(suite: Suite, case: Case, noted: str, phrases: Callable[[str], object]) -> bool:
    """Whether an output abstains or refuses.

    The mode's detector decides if it reports this, because it knows the suite's own markers; otherwise phrases decide.
    """
    detail = modes.EVERY[suite.mode].detect(case, suite.parameters).detail
    return bool(detail[noted]) if noted in detail else phrases(case.first.text) is not None


def _unchanged(suite: Suite, model: ModelUnderTest) -> tuple[str, ...]:
    """Ids of variants whose change the tokenizer undoes: for example, white space that it merges or drops."""
    pairs = [(item, suite.by_id[item.variant.parent]) for item in suite.items if item.variant is not None]
    return tuple(
        item.id
        for item, parent in pairs
        if item.prompt != parent.prompt
        and item.system == parent.system
        and model.same_tokens(item.prompt, parent.prompt)
    )
