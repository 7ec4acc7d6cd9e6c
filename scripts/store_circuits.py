"""Find the embedded model's circuit for every task and store it beside the weights.

    python -m scripts.store_circuits [task ...]

The search is that of `circuit=discovered` with the default configuration; it uses the discovery split only.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from omegaconf import OmegaConf

from circuits import circuit as circuit_files
from circuits import models, tasks
from circuits.discovery import discover
from circuits.measure import Plan
from circuits.prompts import sizes_of

CONFIGS = Path(__file__).parent.parent / "configs"


def main(names: list[str]) -> None:
    """Find and store the circuits of these tasks, one after the other."""
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / "config.yaml"))
    settings = OmegaConf.to_container(OmegaConf.load(CONFIGS / "model" / "pocket.yaml"))
    for name in names or list(tasks.EMBEDDED):
        started = time.monotonic()
        measurement = OmegaConf.to_container(OmegaConf.load(CONFIGS / "measurement" / "all.yaml"))
        engine = OmegaConf.to_container(OmegaConf.load(CONFIGS / "engine" / "common.yaml")) | {"name": "auto"}
        plan = Plan(settings, tasks.get(name), sizes_of(config["prompts"]), config["seed"], measurement, engine)
        found = discover(plan.study)
        path = models.EMBEDDED / settings["path"] / "circuits" / f"{name}.yaml"
        circuit_files.save(found, path)
        theta = found.provenance["discovery_faithfulness"]
        print(
            f"{name}: {len(found.heads)} heads, faithfulness {theta:.3f}, {time.monotonic() - started:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
