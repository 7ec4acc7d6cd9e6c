"""`run.py gate`: two runs of the same suites, paired by item."""

from __future__ import annotations

from pathlib import Path

from meridian.context import RunContext
from results_io import UserError


def command(context: RunContext) -> int:
    """Compare the candidate's run with the baseline's and print the verdict.

    Writes 151_regression_gate.json beside the candidate's results. Exit code 1 for a regression, 3 if there is no verdict.
    """
    from suites import gate
    from suites.bridge import stored_pairs
    from suites.judging import for_gate

    folders = {name: context.settings[name] for name in ("baseline", "candidate")}
    for name, folder in folders.items():
        if not folder:
            raise UserError(
                f"gate needs {name}=; give the folder of a finished suite run, for example results/pocket/suites"
            )
    stored_pairs.require_untouched(*(Path(str(folder)) for folder in folders.values()))
    baseline, candidate = (gate.read(Path(str(folder))) for folder in folders.values())
    asked = context.settings["gate"]["metrics"]
    judged = None
    if isinstance(asked, list) and {gate.GRADED, gate.WINS, gate.REFUSAL_J} & {str(one) for one in asked}:
        paths = [Path(str(folder)) for folder in folders.values()]
        level = 1 - 2 * context.settings["gate"]["alpha"]
        judged = for_gate.collect(paths[0], paths[1], context.results / "judging", context.seed, level)
    verdict = gate.compare(baseline, candidate, context.settings["gate"], judged)
    gate.write(verdict, Path(str(folders["candidate"])))
    gate.show(verdict, context.reporter.console)
    return verdict.exit_code
