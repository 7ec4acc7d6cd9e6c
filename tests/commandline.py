"""`run.py` inside the test's own process: what it returns and prints."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import open_dict

import run
import shown_text
from meridian import commandline, context

ROOT = Path(run.__file__).parent
SIZES = {"evaluation": 40, "held_out": 20, "discovery": 30, "reference": 120}
SMALL = (
    "task=ioi",
    "model.device=cpu",
    *(f"prompts.{name}={size}" for name, size in SIZES.items()),
    "measurement.random_circuits=20",
    "measurement.site_prompts=10",
    "measurement.companion_prompts=10",
    "measurement.attention_prompts=20",
    "measurement.llc.draws=8",
    "measurement.llc.chains=2",
    "measurement.llc.burn_in=2",
    "measurement.llc.prompts=16",
    "measurement.minimality.greedy_steps=1",
    "measurement.llc.gammas=[64]",
    "measurement.attribution_patching.prompts=16",
    "measurement.path_patching.prompts=8",
    "measurement.completeness.greedy_steps=1",
    "measurement.completeness.random_groups=6",
    "measurement.outside.greedy_steps=1",
)


@dataclass(frozen=True)
class Outcome:
    code: int
    output: str
    errors: str

    @property
    def said(self) -> str:
        """The output with its lines joined by a space, because a long sentence is broken where a terminal ends."""
        return re.sub(r" *\n *", " ", self.output)


def command(*arguments: str) -> Outcome:
    """Run `python run.py *arguments` without a new process."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", ["run.py", *arguments]))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(errors))
        code = run.console()
    wide = [line for line in output.getvalue().splitlines() if shown_text.is_too_wide(line)]
    assert not wide, f"{len(wide)} lines have more than {shown_text.WIDTH} columns, such as {wide[0]!r}"
    return Outcome(code, output.getvalue(), errors.getvalue())


def started(*arguments: str) -> context.RunContext:
    """The context that `python run.py *arguments` makes before its first stage."""
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = compose("config", commandline.arguments(arguments), return_hydra_config=True)
    HydraConfig.instance().set_config(config)
    with open_dict(config):
        del config["hydra"]
    return context.start(config)
