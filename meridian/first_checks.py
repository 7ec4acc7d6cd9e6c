"""What can be refused before torch is imported, which takes seconds: a circuit file that is none, a run of days."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meridian.context import RunContext
from results_io import UserError

GRAPHS = (".pt", ".pkl", ".json")  # of other tools, which are read later
KIB, HOUR = 1024, 3600


def check(context: RunContext) -> None:
    """UserError for a circuit file that is wrong in itself, and for more prompts than `limits` allow without force=true."""
    settings = context.settings
    _check_circuit(settings["circuit"])
    if not settings["force"]:
        _check_cost(settings["prompts"], settings["limits"])


def _check_circuit(asked: Mapping[str, Any]) -> None:
    if asked["kind"] != "file" or not asked.get("path") or asked.get("strongest") is not None:
        return
    path = Path(str(asked["path"]))
    if not path.is_file() or path.suffix not in GRAPHS:
        from circuits import circuit

        circuit.load(path)


def _check_cost(prompts: Mapping[str, Any], limits: Mapping[str, float]) -> None:
    sizes = {name: size for name, size in prompts.items() if isinstance(size, int)}
    total = sum(sizes.values())
    hours = total * limits["seconds_per_prompt"] / HOUR
    if hours <= limits["hours"]:
        return
    largest = max(sizes, key=lambda name: sizes[name])
    gib = total * limits["kib_per_prompt"] / KIB**2
    long = f"{hours:,.0f} hours" if hours < 48 else f"{hours / 24:,.0f} days"
    raise UserError(
        f"prompts.{largest}={sizes[largest]} asks for {total:,} prompts in all: about {long} and {gib:,.1f} GiB of "
        f"results on two CPU cores for the smallest model that ships, and more for others; use fewer prompts, or add force=true"
    )
