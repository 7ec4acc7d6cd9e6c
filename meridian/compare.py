"""`run.py compare`: two finished runs side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meridian import run_comparison_table as compare_table
from meridian.run_comparison import FILE, compare, write
from results_io import UserError

if TYPE_CHECKING:
    from meridian.session import Session


def command(session: Session) -> None:
    """`run.py compare`: the runs in `a` and `b`, printed, and written below the results folder."""
    for side in "ab":
        if not session.config[side]:
            raise UserError(f"compare needs {side}=; give the folder of a finished run, for example results/pocket/ioi")
    found = compare(str(session.config["a"]), str(session.config["b"]))
    compare_table.show(found, session.console)
    session.say(f"Comparison {write(found, session.results) / FILE}")
