"""Meridian: find a circuit and say how far it can be trusted.

python run.py task=ioi calibration=all                   the embedded model; a CPU is enough
python run.py task=all calibration=all                   every embedded task
python run.py task=ioi calibration=[c11,m98]             some calibrations
python run.py task=ioi circuit=discovered                find the circuit first
python run.py task=ioi model=planted/sound               a model whose circuit is known
python run.py task=ioi model=gpt2                        GPT-2 small from the hub; model.path=<folder>: from there
python run.py suite=all                                  behavioural suites: what the model gets wrong
python run.py task=failures calibration=all              the same pipeline on what failed
python run.py task=ioi calibration=all tracker=wandb     followed in Weights & Biases, offline unless logged in
python run.py figures from=<results>                     figures and tables of a finished run, for papers
python run.py compare a=<results> b=<results>            two finished runs side by side, with paired intervals
python run.py gate baseline=<results> candidate=<results>  has a new checkpoint become worse?
python run.py doctor model=gpt2                          is it me or the library?
python run.py experiment=validate_calibrations           how often are the verdicts wrong?
"""

from __future__ import annotations

import sys

import hydra
from omegaconf import DictConfig

from meridian import commandline
from meridian.session import Session


@hydra.main(version_base=None, config_path="configs", config_name="config")
@commandline.refusing
def main(config: DictConfig) -> None:
    """Measure, calibrate, certify: once for each task asked for; or what was asked for in place of it."""
    run = Session(config)
    if run.instead():
        return
    for task in run.tasks():
        with run.one_of_several(task):
            folder = run.measure(task)
            documents = run.calibrate(folder)
            certificate = run.certify(folder, documents)
            run.report(folder)
            run.show(folder, certificate)
    run.summarise()


if __name__ == "__main__":
    if commandline.asks_for_help(sys.argv):
        sys.exit(print(commandline.usage(__doc__)))
    sys.argv = [sys.argv[0], *commandline.arguments(sys.argv[1:])]
    sys.exit(commandline.guarded(main))
