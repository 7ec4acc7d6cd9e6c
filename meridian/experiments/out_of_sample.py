"""Claims of known truth that were not used in making the rules: what was declared for each, and the tier that it gets.

`constructions` lists them all and loads nothing. The experiment measures and judges each one as a run does, and compares its
tier with the declaration. It uses the lighter settings of the in-sample experiment (`settings_of`). The unit is the construction.

    python run.py experiment=out_of_sample
    python -m meridian.experiments.out_of_sample [results/out_of_sample]     writes the page's table from these results
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scipy import stats

import code_digest
import results_io
from calibrations import calibrate, certificate
from calibrations.evidence import Evidence
from calibrations.registry import CALIBRATIONS
from calibrations.rules import Release, Rules
from circuits import devices, measure, models, planted, tasks
from circuits.circuit import Circuit
from circuits.models import Model
from circuits.prompts import sizes_of
from meridian import config_files, generated_parts
from meridian.experiments import processes
from meridian.experiments.validate_calibrations import merged
from meridian.experiments.validation.page import PAGE
from meridian.overrides import CONFIGS
from results_io import UserError
from shown_progress import NoProgress

if TYPE_CHECKING:
    from meridian.context import RunContext

TASK = "ioi"
TRUTHS = ("wrong", "incomplete", "true_complete")
FILE = "V4_out_of_sample.json"
BELOW = 3  # the tier that no wrong or incomplete claim may reach


@dataclass(frozen=True)
class ConstructionDeclaration:
    """What was declared about a construction before any verdict on it was known.

    `kind`: the class of mistake that it tests. `planted`: the truth about the model, in a sentence. `claim`: what is claimed.
    `highest_tier`: the most that a wrong or incomplete claim may reach. `lowest_tier`: the least that a true and complete claim
    must reach. One of the two is None. `must_say`: what the certificate must say in addition; for a true claim, what it must say
    if it stays below its tier. `same_tier_as`: a construction with the same heads under other roles.
    """

    name: str
    kind: str
    planted: str
    claim: str
    truth: str
    reason: str
    highest_tier: int | None = None
    lowest_tier: int | None = None
    must_say: str | None = None
    same_tier_as: str | None = None


@dataclass(frozen=True)
class Construction:
    """A planted model (`settings`, in the form of a `model=` configuration), the claim about it, and the declaration."""

    settings: Mapping[str, Any]
    circuit: Circuit
    declaration: ConstructionDeclaration

    def model(self) -> Model:
        """The model, built and ready for hooks."""
        return models.load(self.settings)


def constructions(config: Mapping[str, Any], device: str | None = None) -> list[Construction]:
    """The constructions that `only` names, or all of them, in the order of the experiment's configuration `config`.

    UserError for a name that is not declared, and for a declaration that has no planted design or contradicts itself.
    """
    declared, only = config["constructions"], config.get("only")
    if unknown := [name for name in only or () if name not in declared]:
        raise UserError(
            f"experiment.only names {unknown[0]!r}, which is not declared; use some of {', '.join(declared)}"
        )
    return [
        construction(declaration(name, fields), int(config["seed"]), device)
        for name, fields in declared.items()
        if not only or name in only
    ]


def construction(declared: ConstructionDeclaration, seed: int = 0, device: str | None = None) -> Construction:
    """The model and the claim of one declaration."""
    name = declared.name
    circuit = planted.claimed_circuits(name, seed)[TASK]
    settings = {"name": circuit.model, "kind": "planted", "variant": name, "seed": seed, "dtype": "float32"}
    return Construction({**settings, "device": device}, circuit, declared)


def declaration(name: str, fields: Mapping[str, Any]) -> ConstructionDeclaration:
    """One entry of the configuration. UserError if its tiers do not fit its truth, or there is no such design."""
    given = {"kind" if key == "class" else key: value for key, value in fields.items()}
    found = ConstructionDeclaration(name=name, **given)
    if name not in planted.OUT_OF_SAMPLE:
        raise UserError(f"{name} is declared and not planted; use one of {', '.join(planted.OUT_OF_SAMPLE)}")
    if found.truth not in TRUTHS:
        raise UserError(f"{name} has truth {found.truth!r}; use one of {', '.join(TRUTHS)}")
    true = found.truth == "true_complete"
    if (found.lowest_tier is None) == true or (found.highest_tier is None) != true:
        raise UserError(f"{name} is {found.truth}; a true claim has a lowest_tier, any other a highest_tier, none both")
    if found.highest_tier is not None and found.highest_tier >= BELOW:
        raise UserError(f"{name} is {found.truth}, so its highest_tier is below {BELOW}; it is {found.highest_tier}")
    return found


# --- tiers -----------------------------------------------------------------------------------------------------------


def run(context: RunContext) -> None:
    """Measure and judge every construction, write V4 below results/out_of_sample, print the table's sentences."""
    settings, folder = context.settings["experiment"], context.experiment_folder("out_of_sample")
    config = {**context.settings, "experiment": laid_over(settings)}
    declared = [one.declaration for one in constructions(settings)]
    workers = None if devices.device_of(config["model"]) == "cpu" else 1
    rows: dict[str, dict[str, Any]] = {}
    with context.reporter.counting("claims judged") as bar:
        bar.expect(len(declared))
        places = {name: place for place, name in enumerate(settings["constructions"])}  # independent of `only`
        asked = [(row, told, places[told.name], config, folder / told.name) for told in declared]
        for place, found in processes.results(asked, workers):
            rows[declared[place].name] = found
            bar.advance(1)
    ordered = [rows[told.name] for told in declared]
    results_io.write(folder / FILE, document(ordered, config))
    for line in sentences(ordered):
        context.reporter.say(line)


def laid_over(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment's settings, with numbers, measurement and calibration taken from `settings_of` unless given."""
    other = config_files.plain(config_files.read(CONFIGS / "experiment" / f"{settings['settings_of']}.yaml"))
    return {**{name: other[name] for name in ("numbers", "measurement", "calibration")}, **settings}


def row(told: ConstructionDeclaration, place: int, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Measure and judge one construction in `folder`; returns its declaration, its tier, and what blocks the next one."""
    one = construction(told, int(config["experiment"]["seed"]), config["model"].get("device"))
    folded = certified(one, place, config, folder)
    tier = folded["tier"] or 0
    blocking = folded["blocking"].get(str(tier + 1), [])
    return {
        **asdict(told),
        "heads": len(one.circuit.heads),
        "tier": tier,
        "met": tier <= told.highest_tier if told.highest_tier is not None else tier >= (told.lowest_tier or 0),
        "rules": judging_rules(),
        "blocked_by": [{name: gate[name] for name in ("metric", "verdict", "reason", "split")} for gate in blocking],
    }


def judging_rules() -> str:
    """The version of the rules used here: "0.11", or "changed from 0.11" if a file of the rules' code differs."""
    released = Release.read()
    now = Rules(released.rules.settings, code_digest.of_each("rules"))
    return f"changed from {released.version}" if now.differences(released.rules) else released.version


def certified(one: Construction, place: int, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The certificate of one construction, measured in `folder`. Its `place` among the declarations sets the prompts' seed."""
    torch.set_num_threads(1)
    settings = config["experiment"]
    plan = measure.Plan(
        model_settings=one.settings,
        task=tasks.get(TASK),
        sizes={**sizes_of(config["prompts"]), **settings["prompts"]},
        seed=settings["prompts_seed"] + place,  # different prompts for each
        settings={**config["measurement"], **settings["measurement"]},
        engine=config["engine"],
        circuit=one.circuit,
    )
    measure.measure(plan, folder, settings["numbers"], lambda title: contextlib.nullcontext(NoProgress()))
    calibration = merged(config["calibration"], settings["calibration"])
    judged = calibrate.judge(
        Evidence.load(folder, calibration["common"], settings["numbers"]), CALIBRATIONS, calibration
    )
    return certificate.certify(judged, config["certificate"])


def document(rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> dict[str, Any]:
    """The numbered result: every construction with its declaration and its tier."""
    return {
        "number": "V4",
        "id": "out_of_sample",
        "kind": "experiment",
        "records": [],
        "environment": calibrate.environment(),
        "subject": {
            "experiment": "out_of_sample",
            "settings": {name: value for name, value in config["experiment"].items() if name != "constructions"},
            "judged_by": code_digest.version_of("verdicts"),
        },
        "n": {"constructions": len(rows)},
        "data": {"constructions": list(rows), "permutations": permutations(rows)},
    }


def permutations(rows: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """{construction that renames another's roles: whether both have the same tier}."""
    tiers = {one["name"]: one["tier"] for one in rows}
    return {one["name"]: one["tier"] == tiers[one["same_tier_as"]] for one in rows if one["same_tier_as"] in tiers}


def upper_bound(count: int, n: int) -> float:
    """Exact one-sided 95 % bound of a rate (Clopper and Pearson 1934): 0 of 12 leaves up to .22."""
    return 1.0 if count == n else float(stats.beta.ppf(0.95, count + 1, n - count))


def sentences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A summary of the table, and every construction that missed its declaration."""
    wrong = [one for one in rows if one["truth"] != "true_complete"]
    true = [one for one in rows if one["truth"] == "true_complete"]
    lines = []
    for level, words in ((BELOW, f"at tier {BELOW} or above"), (2, "at tier 2 or above")):
        count = sum(one["tier"] >= level for one in wrong)
        if wrong:
            bound = upper_bound(count, len(wrong))
            lines.append(f"wrong or incomplete {words}: {count} of {len(wrong)} (exact 95 % bound {bound:.2f})")
    if true:
        lines.append(
            f"true and complete at tier {BELOW} or above: {sum(one['tier'] >= BELOW for one in true)} of {len(true)}"
        )
    under = Counter(one["rules"] for one in rows)
    lines.append(f"judged under rules {', '.join(f'{version}: {count}' for version, count in under.most_common())}")
    same = permutations(rows)
    if same:
        lines.append(f"roles renamed, same tier: {sum(same.values())} of {len(same)}")
    for one in rows:
        if not one["met"]:
            bound = (
                f"at least {one['lowest_tier']}" if one["highest_tier"] is None else f"at most {one['highest_tier']}"
            )
            why = "; ".join(f"{gate['metric']}: {gate['reason'] or gate['verdict']}" for gate in one["blocked_by"][:2])
            lines.append(
                f"missed: {_words(one['name'])}, tier {one['tier']}, declared {bound}" + (f" ({why})" if why else "")
            )
    return lines


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: every construction, its truth, what was declared, its tier, and what blocks the next."""
    lines = []
    for one in rows:
        bound = f"≥ {one['lowest_tier']}" if one["highest_tier"] is None else f"≤ {one['highest_tier']}"
        tier = str(one["tier"]) if one["met"] else f"**{one['tier']} !**"
        blocks = ", ".join(dict.fromkeys(gate["metric"] for gate in one["blocked_by"]))
        truth = one["truth"].replace("_", " and ")
        lines.append([_words(one["name"]), one["kind"], truth, bound, tier, blocks or "–", one["rules"]])
    return generated_parts.table(("construction", "class", "truth", "declared", "tier", "blocked by", "rules"), lines)


def _words(name: str) -> str:
    return name.replace("_", " ")


def update(results: Path, page: Path = PAGE) -> None:
    """Copy the experiment's result beside the page, and rewrite the page's table.

    A run of some constructions (`experiment.only`) replaces their rows only. The other rows stay, each with the version of the
    rules that judged it.
    """
    rows = generated_parts.keep(page, results / FILE, with_kept)["data"]["constructions"]
    generated_parts.update(page, {"out of sample": generated_parts.listed(sentences(rows), table(rows))})


def with_kept(kept: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The result `found`, completed by the rows of `kept` that it lacks, in the order of the experiment's configuration."""
    rows = {one["name"]: one for result in (kept, found) for one in result["data"]["constructions"]}
    declared = config_files.plain(config_files.read(CONFIGS / "experiment" / "out_of_sample.yaml"))["constructions"]
    ordered = [rows[name] for name in declared if name in rows]
    return {
        **found,
        "n": {"constructions": len(ordered)},
        "data": {"constructions": ordered, "permutations": permutations(ordered)},
    }


if __name__ == "__main__":
    update(Path(sys.argv[1] if len(sys.argv) > 1 else "results/out_of_sample"))
