"""`calibration=all`: every file of configs/calibration/, so that a new calibration needs no entry in a list.

`calibration: all` in configs/config.yaml has no file of its own. This module makes it in Hydra's configuration store, from the
files in configs/calibration/: the common settings and one section per calibration. They are overridden like any other setting
(`calibration.c11.max_sigma=0.05`). Code that composes the configuration must import this module first.
"""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_store import ConfigStore

from meridian import config_files
from results_io import UserError

CONFIGS = Path(__file__).parents[1] / "configs"
WHOLE = ("calibration", "all")  # the group, and its choice that stands for every file
COMMON = "common"  # the file that all calibrations share, and its section


def parts(folder: Path = CONFIGS / WHOLE[0]) -> list[str]:
    """The files of `folder`, without their ending: the common one, then the others in order of name."""
    return sorted((path.stem for path in folder.glob("*.yaml")), key=lambda name: (name != COMMON, name))


def check(folder: Path = CONFIGS / WHOLE[0]) -> None:
    """UserError if a calibration's file has another calibration's section, whose thresholds it would change.

    Hydra composes such a file without a warning, so it is checked here.
    """
    for name in parts(folder):
        loaded, expected = config_files.read(folder / f"{name}.yaml"), name.partition("_")[0]
        if list(loaded) != [expected]:
            raise UserError(
                f"configs/{folder.name}/{name}.yaml has the sections {', '.join(map(str, loaded)) or 'none'}; expected "
                f"{expected} alone, the identifier that the file's name begins with"
            )


ConfigStore.instance().store(group=WHOLE[0], name=WHOLE[1], node={"defaults": parts()})
