"""Meridian: find a circuit and say how far it can be trusted.

python run.py task=ioi calibration=all                   the embedded model; a CPU is enough
python run.py task=all calibration=all                   every embedded task
python run.py task=ioi calibration=[c11,m98]             some calibrations
python run.py task=ioi circuit=discovered                find the circuit first
python run.py task=ioi model=planted/sound               a model whose circuit is known
python run.py task=ioi model=gpt2                        GPT-2 small from the hub; model.path=<folder>: from there
python run.py suite=all                                  behavioural suites: what the model gets wrong
python run.py task=failures calibration=all              the same pipeline on what failed
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
    """Measure, calibrate, certify: once for each task asked for; or an experiment, or an examination of the model."""
    run = Session(config)
    if run.config["command"] == "doctor":
        run.examine()
        return
    if run.config["command"] == "gate":
        run.compare()
        return
    if "experiment" in config:
        run.perform()
        return
    if "suite" in config:
        run.behave()
        return
    for task in run.tasks():
        with run.one_of_several(task):
            folder = run.measure(task)
            documents = run.calibrate(folder)
            certificate = run.certify(folder, documents)
            run.show(folder, certificate)
    run.summarise()


if __name__ == "__main__":
    sys.argv = [sys.argv[0], *commandline.arguments(sys.argv[1:])]
    sys.exit(commandline.guarded(main))
