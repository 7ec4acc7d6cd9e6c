"""Claims of known truth against which no rule was made: each model with its claim and what was declared of it.

`constructions` lists them all and loads nothing. A certificate for one of them runs on `one.model()` with `one.circuit` in place
of the model's own claim; `python run.py experiment=out_of_sample` prints what is declared and asks for no verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from circuits import models, planted
from circuits.circuit import Circuit
from circuits.models import Model
from results_io import UserError

if TYPE_CHECKING:
    from meridian.context import RunContext

TASK = "ioi"
TRUTHS = ("wrong", "incomplete", "true_complete")
BELOW = 3  # the tier that no wrong or incomplete claim may reach


@dataclass(frozen=True)
class Declaration:
    """What was declared of a construction before any verdict on it was known.

    `kind` is the class of mistake it is about, `planted` the truth of the model in a sentence, `claim` what is claimed of it.
    `highest_tier` is what a wrong or incomplete claim may reach at most, `lowest_tier` what a true and complete one must reach;
    the other one is None. `must_say` is what a certificate has to say besides, or, of a true claim, if it stays below.
    `same_tier_as` names the same heads under other roles.
    """

    name: str
    kind: str
    planted: str
    claim: str
    truth: str
    reason: str
    highest_tier: int | None = None
    lowest_tier: int | None = None
    must_say: str | None = None
    same_tier_as: str | None = None


@dataclass(frozen=True)
class Construction:
    """A planted model, as a `model=` configuration names it, the claim about it and the declaration."""

    settings: Mapping[str, Any]
    circuit: Circuit
    declaration: Declaration

    def model(self) -> Model:
        """The model, built and ready for hooks."""
        return models.load(self.settings)


def constructions(config: Mapping[str, Any], device: str | None = None) -> list[Construction]:
    """Those that `only` names, or all, in the order of the experiment's configuration `config`.

    UserError for a name that is not declared, a declaration without a planted design, or one that contradicts itself.
    """
    declared, only = config["constructions"], config.get("only")
    if unknown := [name for name in only or () if name not in declared]:
        raise UserError(
            f"experiment.only names {unknown[0]!r}, which is not declared; use some of {', '.join(declared)}"
        )
    return [
        construction(declaration(name, fields), int(config["seed"]), device)
        for name, fields in declared.items()
        if not only or name in only
    ]


def construction(declared: Declaration, seed: int = 0, device: str | None = None) -> Construction:
    """The model and the claim of one declaration."""
    name = declared.name
    circuit = planted.claimed_circuits(name, seed)[TASK]
    settings = {"name": circuit.model, "kind": "planted", "variant": name, "seed": seed, "dtype": "float32"}
    return Construction({**settings, "device": device}, circuit, declared)


def declaration(name: str, fields: Mapping[str, Any]) -> Declaration:
    """One entry of the configuration. UserError if its tiers do not belong to its truth, or there is no such design."""
    given = {"kind" if key == "class" else key: value for key, value in fields.items()}
    found = Declaration(name=name, **given)
    if name not in planted.OUT_OF_SAMPLE:
        raise UserError(f"{name} is declared and not planted; use one of {', '.join(planted.OUT_OF_SAMPLE)}")
    if found.truth not in TRUTHS:
        raise UserError(f"{name} has truth {found.truth!r}; use one of {', '.join(TRUTHS)}")
    true = found.truth == "true_complete"
    if (found.lowest_tier is None) == true or (found.highest_tier is None) != true:
        raise UserError(f"{name} is {found.truth}; a true claim has a lowest_tier, any other a highest_tier, none both")
    if found.highest_tier is not None and found.highest_tier >= BELOW:
        raise UserError(f"{name} is {found.truth}, so its highest_tier is below {BELOW}; it is {found.highest_tier}")
    return found


def run(context: RunContext) -> None:
    """Print what is declared, one line for each construction."""
    for one in constructions(context.settings["experiment"]):
        told = one.declaration
        bound = f"at least {told.lowest_tier}" if told.highest_tier is None else f"at most {told.highest_tier}"
        context.reporter.say(
            f"{told.name} ({told.truth}, {len(one.circuit.heads)} heads, tier {bound}): {told.planted}"
        )
