"""`run.py experiment=NAME`: many runs with one table at the end."""

from __future__ import annotations

from importlib import import_module

from meridian.context import RunContext


def command(context: RunContext) -> None:
    """Run the experiment; its configuration file and its module in meridian/experiments share the name."""
    import_module(f"meridian.experiments.{context.settings['experiment']['name']}").run(context)
