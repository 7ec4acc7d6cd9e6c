"""The limits by which judges are deployed: those of configs/judge/common.yaml. A validation with laxer ones deploys nothing."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

SETTINGS = Path(__file__).parents[2] / "configs" / "judge" / "common.yaml"


@cache
def standard() -> Mapping[str, Any]:
    """The settings of a judge as they ship: `most_invalid`, and `bias` with `cases` and `most`."""
    return yaml.safe_load(SETTINGS.read_text(encoding="utf-8"))


def laxer(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for every limit of `settings` that refuses fewer judges than the standard one."""
    known, found = standard(), []
    if settings["most_invalid"] > known["most_invalid"]:
        found.append(f"judge.most_invalid={settings['most_invalid']:g} is laxer than {known['most_invalid']:g}")
    if settings["bias"]["most"] > known["bias"]["most"]:
        found.append(f"judge.bias.most={settings['bias']['most']:g} is laxer than {known['bias']['most']:g}")
    if settings["bias"]["cases"] < known["bias"]["cases"]:
        found.append(f"judge.bias.cases={settings['bias']['cases']} is fewer than {known['bias']['cases']}")
    return tuple(found)
