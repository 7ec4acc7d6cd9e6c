"""Meridian: find a circuit and say how far it can be trusted.

python run.py task=ioi calibration=all                   the embedded model; a CPU is enough
python run.py task=all calibration=all                   every embedded task
python run.py task=ioi calibration=[c11,m98]             some calibrations
python run.py task=ioi circuit=discovered                find the circuit first
python run.py task=ioi model=planted/sound               a model whose circuit is known
python run.py task=ioi model=gpt2                        GPT-2 small from the hub, or from model.path=<folder>
python run.py task=file task.path=mine.csv circuit=discovered   prompt pairs of yours, as CSV or JSONL
python run.py check task=file task.path=mine.csv         which of them a tokenizer can take, in seconds
python run.py suite=all                                  behavioural suites: what the model gets wrong
python run.py geometry=all                               where outputs lie, how far wording and personas move them
python run.py task=failures calibration=all              the same pipeline on what failed
python run.py task=ioi calibration=all tracker=wandb     followed in Weights & Biases, offline unless logged in
python run.py figures from=<results>                     figures and tables of a finished run, for papers
python run.py compare a=<results> b=<results>            two finished runs side by side, with paired intervals
python run.py serve                                      a local page: runs, reports, comparisons, and a model to try out
python run.py verify from=<results>                      is a certificate still what its results, prompts and weights say?
python run.py gate baseline=<results> candidate=<results>  has a new checkpoint become worse?
python run.py drift series=pocket-demo                does it say something else than it said before?
python run.py judge do=validate judge=demo             may a judge be believed? which of two models does it prefer?
python run.py contamination corpus=<folder> suite=all  were the suites' items in what a model was trained on?
python run.py shadow follow=traffic.jsonl              is a candidate worse on live traffic that nobody is shown?
python run.py doctor model=gpt2                          is it me or the library?
python run.py experiment=validate_calibrations           how often are the verdicts wrong?
"""

from __future__ import annotations

import sys

import interruption

# not if a test imports this module
IS_PROGRAM = __name__ == "__main__" or sys.argv[0].endswith(("meridian", "meridian.exe"))
if IS_PROGRAM:  # before all other imports
    interruption.take_over()

from pathlib import Path

import console_streams

if IS_PROGRAM:
    console_streams.take_over()

import hydra
from omegaconf import DictConfig

from meridian import commandline, context
from meridian.commands import (
    check,
    compare,
    contamination,
    doctor,
    drift,
    experiment,
    figures,
    gate,
    geometry,
    judge,
    run,
    serve,
    shadow,
    suites,
    verify,
)

COMMANDS = {
    "run": run.command,                # task=...: measure, calibrate, certify
    "suites": suites.command,          # suite=...
    "geometry": geometry.command,      # geometry=...
    "experiment": experiment.command,  # experiment=...
    "doctor": doctor.command,
    "check": check.command,
    "gate": gate.command,
    "figures": figures.command,
    "compare": compare.command,
    "verify": verify.command,
    "drift": drift.command,
    "judge": judge.command,
    "contamination": contamination.command,
    "shadow": shadow.command,
    "serve": serve.command,
}  # fmt: skip


@hydra.main(version_base=None, config_path=str(Path(__file__).with_name("configs")), config_name="config")
@commandline.refusing
def main(config: DictConfig) -> None:
    """Run the command asked for; exit with its code unless that is 0."""
    command = COMMANDS[commandline.asked(config)]
    if code := command(context.start(config)):
        sys.exit(code)


def console() -> int:
    """Entry point of `python run.py` and of the installed command `meridian`; returns the exit code."""
    if commandline.asks_for_help(sys.argv):
        print(commandline.usage(__doc__ or ""))
        return 0
    return commandline.guarded(main, sys.argv[1:])


if __name__ == "__main__":
    sys.exit(console())
