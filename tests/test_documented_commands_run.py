"""Every command on every page is run to its end: its exit code is the page's, and what it promises is there.

The commands of a page run in its order and in one folder, since later ones read what earlier ones wrote. Long jobs are made
shorter by smaller defaults in the configuration, so that a command is run word for word. What a reader puts in place of DIR,
NAME and the like is in FILLED, and the reader's own files are in tests/readers_files.py. A command without an entry in
PROMISED fails, and so does a placeholder that nothing fills.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import yaml
from omegaconf import OmegaConf

import results_io
from meridian import commandline
from tests import readers_files
from tests.commandline import ROOT, SMALL, Outcome, command
from tests.meridian.test_judge_command import Server
from tests.test_documented_commands import PLACEHOLDER, READERS, documented
from tests.test_extending import COPIED, FILES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]  # a page has up to thirty commands

Words = tuple[str, ...]
RUN_PY = ("python", "run.py")
LOCALHOST = "http://localhost:8000/v1"

# --- what makes long jobs short --------------------------------------------------------------------------------------

# Defaults of configuration files, laid over those that ship. All of them shorten: no step of a command is left out.
SMALLER: dict[str, tuple[str, ...]] = {
    "config.yaml": (*(one for one in SMALL if one.startswith("prompts.")), "contamination.most_embedded=0"),
    "measurement/all.yaml": (
        *(one.removeprefix("measurement.") for one in SMALL if one.startswith("measurement.")),
        "discovery.prompts=30",
        "discovery.stability.resamples=2",
        "discovery.stability.greedy_resamples=1",
    ),
    "drift/default.yaml": (
        "default_samples=8",
        "zero_samples=2",
        "prompt_level=false",
        "resamples=1000",
        "tuning.documents=320",
        "demo.snapshots=[{name: intact, kind: intact, share: 0, version: v1}, "
        "{name: refusal added, kind: refuse, share: 1, version: v3}]",
    ),
    "judge/common.yaml": ("resamples=1000",),
    "geometry/common.yaml": ("trace_resamples=999",),
    "experiment/planted_contamination.yaml": ("repetitions=[0,4]", "copies=1", "clean_copies=1", "clean_sets=1"),
    "experiment/discovery_truth.yaml": ("only=[sound]", "methods=[AtP]"),
}  # fmt: skip
SHORTER: dict[str, str] = {  # words added to a script, which has no configuration
    "python scripts/benchmark.py": "--quick",
    "scripts.train_pocket": "--steps 2 --documents 4",
    "scripts.export_pocket": "--out EXPORTED",  # other scripts read the model that ships
    "scripts.plant_by_training": "--steps 1",
    "scripts.store_circuits": "ioi",
}


def laid_over(path: Path, found: Any) -> Any:
    """The settings of a configuration file with those of SMALLER."""
    name = path.relative_to(ROOT / "configs").as_posix() if path.is_relative_to(ROOT / "configs") else ""
    return OmegaConf.merge(found, OmegaConf.from_dotlist(list(SMALLER[name]))) if name in SMALLER else found


# --- what a reader puts in place of a name ---------------------------------------------------------------------------

STORED = "python run.py task=ioi calibration=all"
RANDOM = f"{STORED} circuit=random"
SUITES, GEOMETRY = "python run.py suite=all", "python run.py geometry=all"
A_SUITE = "python run.py suite=a13_distractor_two_facts"
# Results that a page takes from another one: the command that makes them is run first where the folder is not there.
MADE_BY = {
    "results/pocket/ioi/circuit=random": RANDOM,
    "results/pocket/ioi": STORED,
    "results/pocket/suites": SUITES,
    "results/pocket/geometry": GEOMETRY,
}
CHECKPOINTS = tuple(
    f"python run.py drift do=snapshot series={series} model=local model.path={path} drift.order={order} drift.version=v{order}"
    for series, path, order in (("mine", "BEFORE", 7000), ("mine", "AFTER", 8000), ("other", "AFTER", 1))
)
ANALYSED = tuple(f"python run.py drift do=analyse series={series}" for series in ("mine", "other"))
# Commands before those of a page, which lists its own without what they need.
VALIDATED = (
    f"python run.py judge do=validate judge=endpoint judge.base_url={LOCALHOST} judge.name=NAME labels=human.jsonl"
)
BEFORE: dict[str, tuple[str, ...]] = {
    "docs/drift.md": (f"{CHECKPOINTS[0]} drift.held_out=HELD", CHECKPOINTS[2]),
    "docs/compare.md": (*CHECKPOINTS, *ANALYSED),
    "docs/shadow.md": (VALIDATED,),
    "docs/behaviour.md": ("python -m scripts.freeze_suites my/suite",),
}


def finished(page: Page, place: int) -> str:
    """The folder of a finished run: the stored circuit's, or a random one's beside it."""
    page.made("results/pocket/ioi/circuit=random" if place else "results/pocket/ioi")
    return "results/pocket/ioi/circuit=random" if place else "results/pocket/ioi"


def of_own_rows(page: Page) -> str:
    """The folder of the run on mine.csv that has a certificate."""
    return page.last("results/pocket/file-*/**/certificate.json").parent.relative_to(page.folder).as_posix()


def edited(page: Page) -> str:
    """The run of docs/hardening.md with another verdict in one result."""
    target = page.copy_of_run("results/edited")
    (path,) = target.glob("12_*.json")
    path.write_text(re.sub(r'"verdict": "\w+"', '"verdict": "pass"', path.read_text(), count=1))
    return "results/edited"


def forged(page: Page) -> str:
    """Its certificate with the highest tier, under a digest of its own."""
    path = page.copy_of_run("results/forged") / "certificate.json"
    content = {name: value for name, value in results_io.read(path).items() if name != results_io.DIGEST}
    results_io.write(path, {**content, "tier": 4})
    return "results/forged"


def judged(page: Page, place: int) -> str:
    """A run of a suite by a chat model, the first better than the next."""
    path = page.folder / "results" / ("good", "fair", "bad")[place] / "suites"
    if not path.exists():
        readers_files.suite_run(path, path.parent.name, (10, 8, 3)[place])
    return path.relative_to(page.folder).as_posix()


def suites_run(page: Page, place: int) -> str:
    """A run of one suite by pocket, or by a model of one layer."""
    model = ("", " model=local model.path=OLD")[place]
    name = ("pocket", "OLD")[place]
    page.made(f"results/{name}/suites/a13_distractor_two_facts", f"{A_SUITE}{model}")
    return f"results/{name}/suites/a13_distractor_two_facts"


def made_by(name: str, make: Callable[[Path], Any]) -> Callable[[Page], str]:
    """Fills a placeholder with a file or folder of that name, which is made first."""

    def fill(page: Page) -> str:
        if not (page.folder / name).exists():
            make(page.folder / name)
        return name

    return fill


def alarm(page: Page, key: str) -> str:
    """A column of the first alarm of the series that the page analysed last."""
    manifests = [json.loads(path.read_text()) for path in page.all("results/drift/*/manifest-*.json")]
    latest = next(one for one in reversed(manifests) if one["alarms"])
    return str(latest["snapshot"] if key == "snapshot" else latest["alarms"][0][key])


def manifest(page: Page, place: int) -> str:
    return page.all("results/drift/mine/manifest-*.json")[place].relative_to(page.folder).as_posix()


def secret(page: Page, name: str) -> str:
    """A prompt of a file of held-out prompts."""
    return f"{yaml.safe_load((page.folder / name).read_text())['prompts'][0]['id']}@1"


def pocket(page: Page) -> str:
    return str(readers_files.POCKET)


def shadow_suite(page: Page) -> str:
    return page.last("results/shadow/*/suite/suite.yaml").parent.relative_to(page.folder).as_posix()


OF_A_JUDGE = made_by("of_a_judge", readers_files.suite_of_a_judge)
TRAINED = ("BEFORE", "AFTER")
JUDGED = "gate.metrics=[judged_pass_rate,win_rate_against_baseline]"
PAIRS = "results/*/suites/drift_*/132_trace_pairs.json"  # of a trace


def trained(name: str) -> Callable[[Page], str]:
    def fill(page: Page) -> str:
        if not (page.folder / name).exists():
            page.lay_out(name)
        return name

    return fill


CONSTRUCTS = made_by("constructs", readers_files.constructs)
# By the command and the word: what takes the word's place.
FILLED: dict[str, Callable[[Page], str]] = {
    "verify from=<results>": lambda page: finished(page, 0),
    "verify from=DIR": lambda page: finished(page, 0),
    "verify from=FOLDER": of_own_rows,
    "verify from=results/edited": edited,
    "verify from=results/forged": forged,
    "figures from=DIR": lambda page: finished(page, 0),
    "compare a=DIR": lambda page: finished(page, 0),
    "compare b=DIR": lambda page: finished(page, 1),
    "compare a=results/drift/mine/manifest-EARLIER.json": lambda page: manifest(page, 0),
    "compare b=results/drift/mine/manifest-LATER.json": lambda page: manifest(page, -1),
    f"gate baseline=DIR {JUDGED}": lambda page: judged(page, 0),
    f"gate candidate=DIR {JUDGED}": lambda page: judged(page, 2),
    "gate baseline=DIR": lambda page: suites_run(page, 0),
    "gate candidate=DIR": lambda page: suites_run(page, 1),
    "gate baseline=...": lambda page: suites_run(page, 0),
    "gate candidate=...": lambda page: suites_run(page, 0),
    "judge a=DIR": lambda page: judged(page, 0),
    "judge b=DIR": lambda page: judged(page, 2),
    "judge runs=[DIR,DIR,DIR]": lambda page: f"[{','.join(judged(page, place) for place in range(3))}]",
    "judge judge.path=DIR": pocket,
    "judge judge.name=NAME": lambda page: "grader",
    "suites judge.path=DIR": made_by("OLD", readers_files.checkpoint),  # pocket is the candidate
    "suites suite.path=DIR": lambda page: OF_A_JUDGE(page) if page.name == "docs/judging.md" else shadow_suite(page),
    "suites model.path=DIR": made_by("OLD", readers_files.checkpoint),
    "suites model.name=NAME": lambda page: "served",
    "run model.path=DIR": pocket,
    "shadow model.name=NAME": lambda page: "served",
    "shadow judge.name=NAME": lambda page: "grader",
    "geometry geometry.path=DIR": made_by("frozen", readers_files.frozen_constructs),
    "geometry model.name=...": lambda page: "served",
    "contamination corpus=DIR": made_by("texts", readers_files.corpus_of_texts),
    "contamination contamination.reference=DIR": made_by("OLD", readers_files.checkpoint),
    "drift model.name=...": lambda page: "served",
    "drift model.path=DIR drift.version=v1": trained("BEFORE"),
    "drift model.path=DIR drift.version=v2": trained("AFTER"),
    "drift snapshot=ID": lambda page: alarm(page, "snapshot"),
    "drift axis=AXIS": lambda page: alarm(page, "axis"),
    "drift metric=METRIC": lambda page: alarm(page, "name"),
    "drift drift.held_out=FILE do=reveal": lambda page: "HELD",
    "drift snapshot=PROMPT@1 do=reveal": lambda page: secret(page, "HELD"),
    "drift snapshot=PROMPT@1 do=retire": lambda page: secret(page, "FILE"),
    "drift drift.held_out=HELD": made_by("HELD", readers_files.held_out),
    "run task.group=...": lambda page: page.last(PAIRS).parent.name,
    "run model.name=...": lambda page: page.last(PAIRS).parents[2].name,
    "run model.path=...": trained("AFTER"),
    "scripts.freeze_constructs DIR": CONSTRUCTS,
    "scripts.freeze_constructs SET": CONSTRUCTS,
    "suites.drift.corpus NAME": lambda page: "pocket",
    "scripts.freeze_suites aNN_what": lambda page: "a15_codeword",
    "scripts.freeze_suites FILE": made_by("seed.txt", lambda path: path.write_text("a secret\n")),
}
STANDS_FOR_ITSELF = {
    "RUN",
    "FOLDER",
    "DIR",
    "out=PUBLIC",
    "drift.held_out=FILE",
    "drift.corpus=ALL",
}  # a name to be written
STANDS_FOR_ITSELF |= {f"{key}={name}" for key in ("a", "b", "model.path") for name in ("BEFORE", "AFTER", "OLD", "NEW")}
STANDS_FOR_ITSELF |= {"baseline=old/OLD/suites", "candidate=new/NEW/suites", "model.api_key_env=MY_KEY"}
STANDS_FOR_ITSELF |= {"method=EAP-IG", "experiment.methods=[ACDC-greedy]"}  # names of methods

# --- what a command promises -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Promise:
    """Of a command that has all of `words`: its exit code, a pattern in what it says, a pattern of files that it leaves."""

    words: str
    shows: str = ""
    leaves: str = ""
    code: int = 0

    def __post_init__(self) -> None:
        assert self.shows or self.leaves, f"{self.words}: a promise names an outcome"

    def holds_for(self, words: Words) -> bool:
        return set(shlex.split(self.words)) <= set(words)


NOT_HERE = r"is not on this machine and HF_HUB_OFFLINE forbids the network; run `hf download"
CERTIFIED = "results/pocket/ioi/**/certificate.json"
PROMISED = (  # the first whose words a command has counts
    *(Promise(f"model={name}", NOT_HERE, code=2) for name in ("gpt2", "gpt2-medium")),
    Promise("experiment=reproduce_ioi", NOT_HERE, code=2),  # of GPT-2 small, unless a model is named
    Promise("experiment=discovery_truth", leaves="results/**/V5_discovery_truth.json"),
    Promise("experiment=planted_contamination", leaves="results/**/V*.json"),
    Promise("verify from=results/edited", "was edited after it was written: its digest is of another content", code=1),
    Promise("verify from=results/forged", "has another tier than its calibrations give", code=1),
    Promise("verify", r"^No break\."),
    Promise("figures figures.formats=[pdf]", leaves="results/pocket/ioi/**/*.pdf"),
    Promise("figures from=results/pocket/suites", leaves="results/pocket/suites/report.html"),
    Promise("figures from=results/pocket/geometry", leaves="results/pocket/geometry/**/report.html"),
    Promise("figures", leaves="results/pocket/ioi/**/*.svg"),
    Promise("compare", leaves="results/compare/*/comparison.json"),
    Promise("check", r"rows: \d+ of \d+ can be used"),
    Promise(f"gate {JUDGED}", "judged_pass_rate: .* graded", code=3),  # one run alone was graded
    Promise("gate baseline=old/OLD/suites", "verdict: "),
    Promise("gate baseline=...", "verdict: inconclusive", code=3),  # a run of few items beside itself
    Promise("gate", "verdict: fail", code=1),  # a random model beside pocket
    Promise("judge do=validate judge=demo", r"demo-fair +111 .* yes *$", "results/judging/demo-fair/judge.json"),
    Promise("judge do=validate", leaves="results/judging/grader/judge.json"),
    # nobody wins: the scripted judge knows sums alone, and pocket reads neither answer
    Promise("judge do=pairs judge=endpoint", "no verdict", "results/judging/**/181_pairwise.json", code=3),
    Promise("judge do=rank judge=local", "no finite estimate", "results/judging/**/184_ranking.json", code=3),
    Promise("judge do=grade", "no verdict", "results/*/suites/judged.jsonl", code=3),
    Promise("judge do=pairs", leaves="results/judging/**/181_pairwise.json"),
    Promise("judge do=rank", leaves="results/judging/**/184_ranking.json"),
    Promise("judge do=sample", leaves="to_label.jsonl"),
    Promise("drift series=pocket-demo", "refusal", "results/drift/pocket-demo/site/index.html", code=1),
    Promise("drift do=snapshot series=prod", r"\d+ outputs", "results/drift/prod/run_log.jsonl"),
    Promise("drift do=snapshot", r"\d+ outputs, 0 failed", "results/drift/*/run_log.jsonl"),
    Promise("drift do=analyse series=live", leaves="results/drift/live/manifest-*.json", code=3),
    Promise("drift do=analyse", "refusal-boundary", "results/drift/*/manifest-*.json", code=1),
    Promise("drift do=site", leaves="site/index.html"),
    Promise("drift do=trace", leaves="results/drift/*/trace/**/170_drift_trace.json"),
    Promise("drift do=register", leaves="results/drift/mine/run_log.jsonl"),
    Promise("drift do=hold_out", leaves="PUBLIC/prompts.lock.jsonl"),
    Promise("drift do=retire", leaves="FILE"),
    Promise("drift do=reveal", leaves="results/drift/mine/revealed-*.json"),
    Promise("drift do=verify", leaves="results/drift/mine/run_log.jsonl"),
    Promise("contamination suite=a08_unanswerable", leaves="results/pocket/contamination/**/193_loss_gap.json"),
    Promise("contamination do=probe", leaves="results/pocket/contamination/**/193_loss_gap.json"),
    Promise("contamination", "An overlap shows", "results/pocket/contamination/**/191_overlap.json"),
    # pocket cannot add up, and the judge says so from the second pass on
    Promise("shadow judge=endpoint", r"^wins +\d+ +0\.000", "results/shadow/*/suite/suite.yaml", code=1),
    Promise("shadow shadow.series=live", "for drift: python run.py drift series=live do=analyse", code=1),
    Promise("shadow", leaves="results/shadow/*/189_shadow.json"),
    Promise("geometry=opinions", leaves="results/served/geometry/**/report.html"),
    Promise("geometry=file", leaves="results/pocket/geometry/frozen/171_*.json"),
    Promise("geometry.trace=true", leaves="results/pocket/geometry/**/180_*.json"),
    Promise("geometry=all", leaves="results/pocket/geometry/**/179_*.json"),
    Promise("suite=x01_small_functions code.sandbox=process", "use docker", code=2)  # root may run nothing in a process
    if os.geteuid() == 0
    else Promise(
        "suite=x01_small_functions code.sandbox=process", leaves="results/OLD/suites/x01_small_functions/185_*.json"
    ),
    Promise("suite=s02_codeword_families suite.gcg.optimise=true", "No suffix is optimised for s02_codeword_families"),
    Promise("suite=all results=old", "outputs asked", "old/OLD/suites/generations.jsonl"),
    Promise("suite=all results=new", "outputs asked", "new/NEW/suites/generations.jsonl"),
    Promise("suite=all model=endpoint", "outputs asked", "results/*/suites/generations.jsonl"),
    Promise("suite=all", "Traceable failures", "results/pocket/suites/generations.jsonl"),
    Promise("suite=s01_refusals", leaves="results/my-model/suites/s01_refusals/186_*.json"),
    Promise("results=ablated", leaves="ablated/pocket/suites/a13_distractor_two_facts/scores.jsonl"),
    Promise("suite=file suite.path=my/suite", r"33\.3 %", "results/pocket/suites/who_received_it/scores.jsonl"),
    Promise("suite=file", leaves="results/pocket/suites/*/report.html"),
    Promise("suite=a13_distractor_two_facts", leaves="results/*/suites/a13_distractor_two_facts/scores.jsonl"),
    # AFTER refuses always, so no sibling passes; the page says that such a drift leaves nothing to trace
    Promise("task=failures model=local", "no failures", code=2),
    Promise("task=failures", leaves="results/*/failures/**/141_trace.json"),
    Promise("serve", r"pocket.*ioi(.|\n)*Stopped serving"),
    Promise("run.py -m", r"\d certificates pooled in", "results/summary.csv"),
    Promise("tracker=wandb", "W&B offline run; upload it with: wandb sync results/wandb/offline-run-", CERTIFIED),
    Promise("task=all", leaves="results/summary.json"),
    Promise("task=file calibration=[c11]", leaves="results/pocket/file-*/**/11_*.json"),
    Promise("task=file calibration=[c17]", leaves="results/pocket/file-*/**/17_*.json"),
    Promise("task=file", r"Tier \d of 4", "results/pocket/file-*/circuit=discovered*/report.html"),
    Promise("calibration=[c11,m98]", leaves="results/pocket/ioi/11_*.json"),
    Promise("circuit=random", "Tier 0 of 4", "results/pocket/ioi/circuit=random/certificate.json"),
    Promise("model=planted/sound", r"Tier \d of 4", "results/planted/sound/ioi/certificate.json"),
    Promise("model=planted/backup", r"Tier \d of 4", "results/planted/backup/ioi/certificate.json"),
    Promise("model=local", r"Tier \d of 4", "results/pocket/ioi/**/certificate.json"),
    Promise("task=ioi", r"Tier \d of 4", CERTIFIED),
    Promise("run.py", r"Tier \d of 4", CERTIFIED),
    # scripts
    Promise("scripts.freeze_constructs", r"8 constructs frozen"),
    Promise("scripts.freeze_suites my/suite", "who_received_it 1.0.0: 3 items", "my/suite/suite.lock.jsonl"),
    Promise("scripts.freeze_suites", r"a15_codeword \S+: \d+ items"),
    Promise("scripts.release_rules", "The rules that ship are released"),
    Promise("scripts.drift_definitions", leaves="configs/drift/default.yaml"),
    Promise("scripts.store_circuits", r"ioi: \d+ heads", "circuits/embedded/pocket/circuits/ioi.yaml"),
    Promise("scripts.train_pocket", leaves="RUN/record.json"),
    Promise("scripts.export_pocket", leaves="EXPORTED/model.safetensors"),
    Promise("scripts.plant_by_training", leaves="*/model.safetensors"),
    Promise("scripts.plant", r"planted/backup with seed 0 in DIR", "DIR/model.safetensors"),
    Promise("suites.drift.corpus", r"pocket: \d+ prompts frozen"),
    Promise("suites.golden", r"refusal"),
    Promise("suites.harness.importing", "python run.py judge and gate read it", "results/imported/*/scores.jsonl"),
    Promise("meridian.experiments.validation.page", leaves="docs/how-far-can-you-trust-a-certificate.md"),
    Promise("meridian.experiments.discovery_truth", leaves="docs/how-well-is-a-circuit-found.md"),
    Promise("scripts/benchmark.py --update-page", leaves="docs/performance.md"),
    Promise("scripts/benchmark.py --predict", "NVIDIA H200"),
    Promise("scripts/benchmark.py --targets", r"first sweep .*at most"),
    Promise("scripts/benchmark.py", "pocket"),
    Promise("-c 'import uuid; print(uuid.uuid4())'", r"^[0-9a-f-]{36}$"),
    Promise("-c", r"^(True|False)$"),
)

# --- what is not run -------------------------------------------------------------------------------------------------

BY_PROGRAM = {  # program: why none of its commands is run here, and the test that covers them
    "make": "builds environments and runs whole tests; targets: tests/test_documented_commands.py",
    "pip": "changes the environment; extras: tests/test_documented_commands.py, the lock: tests/test_install.py",
    "bash": "scripts/gpu_check.sh needs a GPU; its parts: tests/scripts/test_gpu_check.py",
}
NOT_RUN: dict[str, str] = {  # words: the reason, and the test that covers the command or why none can
    "hydra/launcher=submitit_local": "starts processes that read the shipped defaults; tests/meridian/test_scale_out.py",
    "hydra/launcher=slurm": "needs a cluster; no test can, tests/meridian/test_scale_out.py has what jobs are shown",
    "hydra/launcher=ray_local": "needs the package ray; tests/meridian/test_scale_out.py",
    "hydra/launcher=gpus": "needs GPUs; tests/meridian/test_scale_out.py",
    "code.image=NAME@sha256:...": "needs an image from a registry; tests/suites/test_code_execution.py",
    "scripts.wandb_dashboard": "needs an account; its specification: tests/meridian/test_weights_and_biases.py",
    "scripts.convert_legacy": "needs the hub; a file of that form: tests/meridian/test_legacy_checkpoints.py",
    **{
        f"experiment={name}": f"takes minutes even at its smallest; tests/meridian/experiments/test_{name}.py"
        for name in (
            *("validate_calibrations", "validate_geometry", "out_of_sample", "natural_circuits", "planted_faults"),
            "planted_drift",
        )
    },
    "force=true": "takes days; refused without force in tests/meridian/test_command_line.py",
}


def why_not(words: Words) -> str | None:
    return BY_PROGRAM.get(words[0]) or next((NOT_RUN[one] for one in words if one in NOT_RUN), None)


# --- running ---------------------------------------------------------------------------------------------------------


def kind(words: Words) -> str:
    """What is run: a command of run.py, or the name of a script."""
    if words[0] == "python" and words[1] != "run.py":
        return words[2] if words[1] == "-m" else words[1]
    implied = [name for key, name in commandline.BY_SETTING.items() if any(one.startswith(f"{key}=") for one in words)]
    return next((one for one in words if one in commandline.WORDS), (*implied, commandline.RUN)[0])


@dataclass
class Kept:
    """Files that a command wrote, for the next page that has the same command."""

    folder: Path
    files: dict[str, list[Path]]


@dataclass
class Page:
    """A folder in which the commands of one page are run."""

    name: str
    folder: Path
    tree: Path
    address: str
    kept: Kept

    def all(self, pattern: str) -> list[Path]:
        """What lies in the folder, the oldest first."""
        return sorted(self.folder.glob(pattern), key=lambda path: (path.stat().st_mtime_ns, path))

    def last(self, pattern: str) -> Path:
        return self.all(pattern)[-1]

    def lay_out(self, name: str) -> None:
        """Put a file or folder of the reader's into the page's folder. Trained checkpoints are made once for all pages."""
        make = readers_files.MAKERS[name]
        if name not in TRAINED:
            make(self.folder / name)
            return
        if not (self.kept.folder / name).exists():
            make(self.kept.folder / name)
        shutil.copytree(self.kept.folder / name, self.folder / name)

    def copy_of_run(self, name: str) -> Path:
        """A copy of the run of the stored circuit."""
        self.made("results/pocket/ioi")
        run, target = self.folder / "results" / "pocket" / "ioi", self.folder / name
        return shutil.copytree(
            run, target, ignore=lambda folder, names: [one for one in names if (Path(folder) / one).is_dir()]
        )

    def made(self, folder: str, line: str | None = None) -> None:
        """Run the command that makes a folder of results, unless it is there."""
        if not (self.folder / folder).exists():
            outcome = self.run(tuple(shlex.split(line or MADE_BY[folder])))
            assert outcome.code in (0, 1, 3), outcome.errors

    def filled(self, words: Words) -> Words:
        """The command with everything that the reader adds; AssertionError for a word that nothing fills."""
        for word in words:
            for name in (
                one for one in readers_files.MAKERS if re.search(rf"(?<![\w/.]){re.escape(one)}(?![\w.])", word)
            ):
                if not (self.folder / name).exists() and word != f"out={name}":
                    self.lay_out(name)
            if (folder := word.partition("=")[2]) in MADE_BY:
                self.made(folder)
        return tuple(self.word(word, words) for word in words)

    def word(self, word: str, words: Words) -> str:
        if word.endswith(f"base_url={LOCALHOST}") or word.endswith("base_url=..."):
            return f"{word.partition('=')[0]}={self.address}"
        for name, fill in FILLED.items():
            command, placeholder, *others = name.split()
            if command == kind(words) and placeholder == word and set(others) <= set(words):
                return f"{word.partition('=')[0]}={fill(self)}" if "=" in word else fill(self)
        assert word in STANDS_FOR_ITSELF or not PLACEHOLDER.search(word) or words[1] == "-c", f"nothing fills {word}"
        return word

    def run(self, words: Words) -> Outcome:
        """Run a command to its end, after laying out what the same command wrote on another page."""
        words = self.filled(words)
        if words[0] == "python" and words[1] != "run.py":
            return script(words, self)
        if kind(words) == "serve":
            self.made("results/pocket/ioi")
            return served(words, self.folder)
        key = key_line(words)
        for path in self.kept.files.get(key, ()):
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            if not (self.folder / path).exists():
                shutil.copy2(self.kept.folder / key_of(key) / path, self.folder / path)
        before = times(self.folder)
        outcome = command(*words[2 if words[0] == "python" else 1 :])
        if key in REPEATED and key not in self.kept.files:
            self.keep(key, [path for path, time in times(self.folder).items() if before.get(path) != time])
        return outcome

    def keep(self, key: str, paths: list[Path]) -> None:
        for path in paths:
            target = self.kept.folder / key_of(key) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.folder / path, target)
        self.kept.files[key] = paths

    def broken(self, words: Words) -> str | None:
        """What a command promises and does not do; None if it does all."""
        promise = next((one for one in PROMISED if one.holds_for(words)), None)
        if promise is None:
            return "promises nothing: it needs an entry in PROMISED"
        try:
            outcome = self.run(words)
        except AssertionError as reason:
            return str(reason)
        said = outcome.output + outcome.errors
        if outcome.code != promise.code:
            return f"exit code {outcome.code}, not {promise.code}: {said[-1500:]}"
        if promise.shows and not re.search(promise.shows, said, re.MULTILINE):
            return f"does not say {promise.shows!r}: {said[-1500:]}"
        place = self.tree if words[0] == "python" and words[1] != "run.py" else self.folder
        if promise.leaves and not any(path.stat().st_size for path in place.glob(promise.leaves)):
            return f"leaves no {promise.leaves}: {said[-500:]}"
        return None


def key_of(key: str) -> str:
    return str(abs(hash(key)))


def times(folder: Path) -> dict[Path, int]:
    """When each file below a folder was written."""
    found = (
        path for path in folder.rglob("*") if path.is_file() and not path.is_symlink() and ".locks" not in path.parts
    )
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in found}


def script(words: Words, page: Page) -> Outcome:
    """Run a script in the copy of the repository, which has the reader's files of the page as well."""
    added = next((text.split() for name, text in SHORTER.items() if set(name.split()) <= set(words)), [])
    for path in [path for path in page.tree.iterdir() if path.is_symlink()]:  # of another page
        path.unlink()
    for path in page.folder.iterdir():
        if not (page.tree / path.name).exists():
            (page.tree / path.name).symlink_to(path)
    environment = {**os.environ, "PYTHONPATH": str(page.tree), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    line = [sys.executable, *words[1:], *added]
    done = subprocess.run(line, cwd=page.tree, env=environment, capture_output=True, text=True, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


def served(words: Words, folder: Path) -> Outcome:
    """Start the server, open the page whose address it says, and stop it as a reader does."""
    line = [sys.executable, str(ROOT / words[1]), *words[2:]]
    with subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            with urllib.request.urlopen(said.split()[0], timeout=60) as page:
                shown = page.read().decode()
        finally:
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    return Outcome(process.returncode, f"{said}{shown}{output}", errors)


COMMANDS: dict[str, list[Words]] = {}
for page_name, page_words in documented():
    COMMANDS.setdefault(page_name, []).append(page_words)
RUN: dict[str, list[Words]] = {
    name: found for name, every in COMMANDS.items() if (found := [words for words in every if not why_not(words)])
}
STARTS = (
    "run",
    "suites",
    "geometry",
    "experiment",
)  # kinds of command that read nothing that differs from page to page


def key_line(words: Words) -> str:
    """The same for a command however it is started, and with the default calibrations named or not."""
    return shlex.join(word for word in words[1:] if word not in ("run.py", "calibration=all"))


ALONE = [words for every in RUN.values() for words in every if kind(words) in STARTS or "series=pocket-demo" in words]
TAKEN = [tuple(shlex.split(line)) for line in (STORED, RANDOM, SUITES, GEOMETRY, A_SUITE)]  # MADE_BY runs them as well
REPEATED = {key for key, count in Counter(map(key_line, (*ALONE, *TAKEN, *TAKEN))).items() if count > 1}


@pytest.fixture(scope="module", autouse=True)
def smaller() -> Iterator[None]:
    """Every configuration file is read with what SMALLER lays over it."""
    parse, threads = OmegaConf.load, torch.get_num_threads()

    def load(file: Any) -> Any:
        found, name = parse(file), getattr(file, "name", file)
        return laid_over(Path(name).absolute(), found) if isinstance(name, str | Path) else found

    torch.set_num_threads(1)
    with mock.patch.object(OmegaConf, "load", load):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A scripted server of chat completions."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the repository, in which scripts may write, with the smaller configuration."""
    found = tmp_path_factory.mktemp("tree")
    for name in (*COPIED, "docs"):
        shutil.copytree(ROOT / name, found / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        (found / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, found / name)
    shutil.copytree(ROOT / "results" / "benchmarks", found / "results" / "benchmarks")
    for name in ("validation", "discovery_truth"):  # of experiments that took hours
        shutil.copytree(ROOT / "docs" / "validation", found / "results" / name)
    return found


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Kept:
    return Kept(tmp_path_factory.mktemp("kept"), {})


@pytest.mark.parametrize("name", RUN)
def test_every_command_of_the_page_does_what_it_promises(name, address, tree, kept, tmp_path, monkeypatch) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MY_KEY", "sk-of-a-test")
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "circuits"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    page = Page(name, tmp_path, tree, address, kept)
    for line in BEFORE.get(name, ()):
        assert (outcome := page.run(tuple(shlex.split(line)))).code in (0, 1, 3), outcome.errors
    faults = {shlex.join(words): page.broken(words) for words in RUN[name]}
    assert {line: said for line, said in faults.items() if said} == {}


def test_what_is_not_run_is_on_a_page_and_covered_by_a_test_that_is_there() -> None:
    every = {word for commands in COMMANDS.values() for words in commands for word in words}
    assert set(NOT_RUN) | set(BY_PROGRAM) <= every
    for reason in (*NOT_RUN.values(), *BY_PROGRAM.values()):
        named = re.findall(r"tests/[\w/]+\.py", reason)
        assert named and all((ROOT / path).is_file() for path in named), reason


def test_every_table_names_what_is_on_a_page() -> None:
    commands = [words for every in RUN.values() for words in every]
    firsts = [next((one for one in PROMISED if one.holds_for(words)), None) for words in commands]
    assert [shlex.join(words) for words, first in zip(commands, firsts, strict=True) if first is None] == []
    assert [one.words for one in PROMISED if one not in firsts] == []
    assert set(READERS) <= set(readers_files.MAKERS)
    for name in SHORTER:
        assert any(set(name.split()) <= set(words) for words in commands), name
