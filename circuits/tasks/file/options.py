"""How rows become prompts: the section `task` of the configuration, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from circuits.tasks.base import METRICS, Metric
from circuits.tasks.file import alignment, columns
from circuits.tasks.file.rows import SPLITS
from results_io import UserError

Foil = Literal["corrupted_top", "none"]
FOILS: tuple[Foil, ...] = get_args(Foil)
UNSOUND = {
    "left": "padding on the right would put the answer of the shorter prompt at another position than that of the longer one, so "
    "the last positions, where it is predicted, would not correspond",
}
SHARES = {"discovery": 0.2, "evaluation": 0.5, "held_out": 0.2, "reference": 0.1}


@dataclass(frozen=True)
class Options:
    """How rows become prompts.

    `align`: for pairs of unequal length, "right" adds fillers on the left of the shorter prompt, "spans" adds them where the
    prompts differ in length, None refuses the row. `chat`: put the chat template around every prompt. `space`: True or False if
    answers follow a space or not, None to infer it. `bos`: None for a BOS token if the tokenizer has one. `foil`: the substitute
    for rows without a foil. `columns`: {our column: its place in the file}. `shares`: shares of the rows by split, if no column
    gives the split.
    """

    align: str | None = None
    chat: bool = False
    space: bool | None = None
    bos: bool | None = None
    foil: Foil = "corrupted_top"
    metric: Metric = "logit_difference"
    columns: Mapping[str, str] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Self:
        """The options in a section `task` of the settings. Raises UserError for an invalid value."""
        _require_choices(asked)
        if asked.get("columns"):
            columns.check(asked["columns"])
        shares = asked.get("shares") or SHARES
        if set(shares) != set(SPLITS) or not all(type(one) in (int, float) and one > 0 for one in shares.values()):
            raise UserError(
                f"task.shares={dict(shares)} is no share above 0 for each of {', '.join(SPLITS)}; write all four"
            )
        return cls(
            asked.get("align"),
            asked.get("chat", False),
            asked.get("space"),
            asked.get("bos"),
            asked.get("foil") or FOILS[0],
            asked.get("metric") or METRICS[0],
            asked.get("columns") or {},
            shares,
        )


def _require_choices(asked: Mapping[str, Any]) -> None:
    align = asked.get("align")
    if align in UNSOUND:
        raise UserError(
            f"task.align={align} is not done: {UNSOUND[align]}; use task.align=spans or right, or give pairs of one length"
        )
    if align not in (None, *alignment.WAYS):
        ways = " or ".join(alignment.WAYS)
        raise UserError(f"task.align={align} is unknown; use {ways}, or null to leave pairs of unequal length out")
    for name, allowed in (("chat", (True, False)), ("space", (None, True, False)), ("bos", (None, True, False))):
        if asked.get(name, allowed[0]) not in allowed:
            raise UserError(f"task.{name}={asked[name]} is neither true nor false; write one of them")
    if asked.get("foil") not in (None, *FOILS):
        raise UserError(f"task.foil={asked['foil']} is unknown; use {' or '.join(FOILS)}")
    if asked.get("metric") not in (None, *METRICS):
        raise UserError(f"task.metric={asked['metric']} is unknown; use {' or '.join(METRICS)}")
    if asked.get("corruption") is not None:
        raise UserError(
            f"task.corruption={asked['corruption']} has no meaning for rows, which bring their corrupted prompts; leave it out"
        )
