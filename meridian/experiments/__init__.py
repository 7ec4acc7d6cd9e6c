"""What `run.py experiment=NAME` runs: one file per experiment, each with `run(session)`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meridian.session import Session


def run(session: Session) -> None:
    """Run the experiment that the configuration names; its configuration file and its module share the name."""
    import_module(f"{__name__}.{session.config['experiment']['name']}").run(session)
