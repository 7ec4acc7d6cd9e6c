"""Meridian from Python: run, read and explore.

    import meridian

    run = meridian.run("task=ioi", "calibration=all")     # what `python run.py task=ioi calibration=all` does
    run = meridian.open("results/pocket/ioi")             # or the folder of a run that is finished
    run.tier, run.verdicts, run.heads, run.figures        # what it says; a notebook shows `run` as its certificate
    meridian.compare(run, "results/gpt2/ioi")             # two finished runs, with paired intervals

    lab = meridian.explore(task="ioi")                    # a model, prompts and a circuit to try things on
    lab.ablate("L2H1")                                    # an effect with its interval, and the figure that shows it
    lab.prompt("When Mary and John ...", "Mary", "John")  # the same on a prompt of your own

    suites = meridian.run_suites("suite=a01_json_extraction")   # behavioural suites: what the model gets wrong

Importing this loads no model library; what needs torch imports it when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results_io import UserError

if TYPE_CHECKING:
    from circuits.circuit import Circuit
    from circuits.tasks import Task
    from meridian.finished_run import FinishedRun
    from meridian.lab import Lab
    from meridian.run_comparison import RunComparison
    from meridian.run_folder import RunFolder
    from meridian.suite_folder import SuiteFolder

__all__ = ["UserError", "compare", "explore", "open", "run", "run_suites"]


def __dir__() -> list[str]:
    """The public names alone."""
    return [*__all__]


def run(
    *settings: str,
    model: Any = None,
    task: str | Path | Task | None = None,
    circuit: str | Path | Circuit | Iterable[str] | None = None,
    tokenizer: Any = None,
    results: str | Path | None = None,
    show: bool = True,
) -> FinishedRun:
    """Measure, calibrate and certify one task, as `python run.py <settings>` does, and return the folder of results.

    `settings` are those of the command line ("task=ioi", "model=planted/sound", "prompts.evaluation=100"). What they cannot
    express is passed as an argument:

    - `model`: a name, a folder, or an object: a Hugging Face causal language model with its `tokenizer`, an unprocessed
      TransformerBridge, or nnsight's LanguageModel. A copy of the object is measured; the object itself stays as it is.
    - `task`: a name, a file of prompt pairs, or a `circuits.tasks.Task`.
    - `circuit`: as for `explore`.
    - `results`: the folder of all results. Fresh results are reused.
    - `show`: False prints neither progress nor the certificate.

    Hydra's own state and `sys.argv` are left as they were. UserError for anything that the command line refuses, and for
    anything that is given twice.
    """
    from meridian import in_process

    return in_process.run(settings, results, show, model, task, circuit, tokenizer)


def run_suites(*settings: str, results: str | Path | None = None, show: bool = True) -> SuiteFolder:
    """Run behavioural suites, as `python run.py suite=all` does, and return what failed. Arguments as for `run`."""
    from meridian import in_process

    return in_process.run_suites(settings, results, show)


def open(path: str | Path) -> FinishedRun:
    """The folder of a finished run, results/<model>/<task>. UserError if there is none or it has no certificate."""
    from meridian.finished_run import FinishedRun

    return FinishedRun.open(_folder(path))


def _folder(given: Any) -> str | Path:
    if not isinstance(given, str | Path):
        raise UserError(f"{given!r} is not a folder; give that of a finished run, for example results/pocket/ioi")
    return given


def compare(a: str | Path | RunFolder, b: str | Path | RunFolder) -> RunComparison:
    """Two finished runs, or their folders, side by side; every difference is b - a, as in `python run.py compare`.

    `print` tells the difference in a sentence; `table` holds the numbers with their intervals. UserError if a folder is not a
    finished run, if both are the same run, or if the runs share neither task nor weights.
    """
    from meridian import run_comparison

    first, second = (_folder(getattr(side, "path", side)) for side in (a, b))
    return run_comparison.compare(first, second)


def explore(
    task: str | Path | Task = "ioi",
    model: Any = "pocket",
    circuit: str | Path | Circuit | Iterable[str] | None = None,
    settings: Iterable[str] = (),
    *,
    tokenizer: Any = None,
    prompts: int = 100,
    split: str = "discovery",
    seed: int = 0,
    show: bool = True,
) -> Lab:
    """A loaded model on `prompts` prompts of a task, with a circuit, to try interventions on.

    `task`: a name, a file of prompt pairs, or a `circuits.tasks.Task` of your own. `model`, `tokenizer`: as for `run`.
    `circuit`: None for the one that comes with the model (if there is one), "discovered" for a search, "random", a circuit file,
    a `Circuit`, or names of heads. `split`: the split that the prompts are drawn from. The default leaves the evaluation prompts
    unseen, so that findings can still be tested on them. `settings`: further settings of the command line. `show`: False prints
    no progress. UserError for anything that the command line refuses.
    """
    from meridian import in_process

    given: dict[str, Any] = {"prompts": prompts, "split": split, "seed": seed, "tokenizer": tokenizer, "show": show}
    return in_process.explore(task, model, circuit, settings, **given)
