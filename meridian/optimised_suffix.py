"""Whether a suffix may be optimised for the suites of a run (settings `suite.gcg`), and the suites that are made with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from meridian.context import RunContext
from results_io import UserError

if TYPE_CHECKING:
    from suites.item import Suite
    from suites.models.base import ModelUnderTest
    from suites.models.local import LocalModel
    from suites.suffix.suffix_record import OptimisedSuffix


def check(context: RunContext, suites: Sequence[Suite]) -> None:
    """UserError if a suffix is asked for on an endpoint or with heads silenced, or for a policy that is no placeholder."""
    from suites.suffix import placeholder

    if not _asked(context):
        return
    if context.model_settings["kind"] == "endpoint":
        raise UserError(
            "suite.gcg.optimise=true needs gradients, and model=endpoint gives none; take a local model, or leave it out"
        )
    if context.model_settings.get("intervention"):
        raise UserError(
            "suite.gcg.optimise=true is for the intact model, whose gradients it follows; leave model.intervention out"
        )
    for suite in suites:
        placeholder.require(suite)


def made(context: RunContext, folder: Path, suites: Sequence[Suite], model: ModelUnderTest) -> list[Suite]:
    """The suite of the optimised suffix for each of `suites`; none unless asked for, or if the suite does not apply."""
    if not _asked(context):
        return []
    from suites import applicability
    from suites.suffix import placeholder, suffix_record
    from suites.suffix.search import SuffixBudget

    wanted = context.settings["suite"]["gcg"]
    budget = SuffixBudget(**{name: value for name, value in wanted.items() if name != "optimise"})
    found = []
    for suite in suites:
        if (reason := applicability.before_asking(suite, model).reason) is not None:
            context.reporter.say(f"No suffix is optimised for {suite.id}, which does not apply: {reason}")
            continue
        path, local = folder / suffix_record.NAME, cast("LocalModel", model)
        before = suffix_record.read(path)
        suffix = placeholder.optimise(suite, local, budget, context.seed, path, context.reporter.counting)
        searches = suffix_record.searches({**before, suffix.key: suffix}, suffix)
        context.reporter.say(line_of(suffix, budget.passes, searches, suffix.key in before))
        found.append(placeholder.suite_of(suite, suffix, searches))
    return found


def line_of(found: OptimisedSuffix, most: int, searches: int, recorded: bool) -> str:
    """The search in one sentence: loss of the target before and after on both halves, its cost and the weights.

    `most`: forward passes that its budget allows. `searches`: on record for this suite and model. `recorded`: by an earlier run.
    """
    tuned, judged = (
        " to ".join(
            f"{sum(loss[item] for item in half) / len(half):.2f}" for loss in (found.loss_before, found.loss_after)
        )
        for half in (found.tuned, found.judged)
    )
    return (
        f"Optimised suffix: loss of the target {tuned} nats per token on the {len(found.tuned)} codewords that it was tuned on, "
        f"{judged} on the {len(found.judged)} others; {found.exchanged} of {found.tried} candidates kept, {found.passes} of "
        f"at most {most} forward passes, weights {found.weights_sha256[:8]}; {_which(searches, recorded)}"
    )


def _which(searches: int, recorded: bool) -> str:
    place = "from the record, not searched again" if recorded else "searched now"
    return place if searches == 1 else f"{place}, one of {searches} searches on record for this model"


def _asked(context: RunContext) -> bool:
    return bool(context.settings["suite"]["gcg"]["optimise"])
