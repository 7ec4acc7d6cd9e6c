"""From an alarm to heads: the prompts whose output changed its class, as a suite, as pairs, and across the two checkpoints.

Heads are named on one half of the prompts, by intervals that hold for all heads simultaneously. They are tested again on the
other half, each alone and all together. The control is a null-tuned copy of the later checkpoint: its heads differ from the
checkpoint's by as much training, and should restore nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml

import results_io
from calibrations.statistics import Insufficient, ratio_of_means
from circuits import models
from circuits.circuit import parse_head
from meridian import drift_classes, drift_series
from meridian.context import RunContext
from meridian.drift_classes import class_of
from meridian.training import tuning
from result_types import ComparedHead, DriftTraceResult, RestoredShare
from results_io import UserError
from suites import declaration, lock, runner
from suites.bridge import hypothesis, pairing, stored_pairs
from suites.bridge.pair import MINIMUM_PAIRS
from suites.drift import analysis, centroid, corpus, hedging, length, refusal, schedule, series_record, silent_update
from suites.drift.corpus import Corpus
from suites.drift.cross_checkpoint import CrossCheckpoint, NextTokenQuestion, Restored
from suites.drift.snapshot import ZERO
from suites.item import Suite
from suites.models.base import Request
from suites.models.local import LocalModel

NUMBER, NAME = "170", "drift_trace"
FILE = f"{NUMBER}_{NAME}.json"
TRACED, NOT_ENOUGH = 0, 3  # exit codes
TRACEABLE = tuple(one.NAME for one in (refusal, hedging, length, centroid, silent_update))
CONFIRMED, NOT_CONFIRMED = "confirmed", "not confirmed"  # verdicts on a named head
MORE = (  # where a suite has too few pairs: taking prompts by what was answered would choose what is to be confirmed
    f"task=failures needs {MINIMUM_PAIRS}, and none may be chosen by its answer: give the corpus more prompts on this axis, or "
    "more equal_length_siblings, before the next snapshot"
)
CONTROL_SEED = 10_000  # of the null-tuned copy: no other copy has it


@dataclass(frozen=True)
class Alarm:
    """What is traced: one metric on one axis at one snapshot."""

    snapshot: str
    axis: str
    metric: str

    @property
    def name(self) -> str:
        """The folder of its trace."""
        return f"{self.snapshot}-{self.axis}-{self.metric}"

    @property
    def id(self) -> str:
        """The id of its suite."""
        return "drift_" + "".join(char if char.isalnum() else "_" for char in self.name.lower())


@dataclass(frozen=True)
class Change:
    """One text: what the two checkpoints say to it, as classes and in words, and the prompt that it belongs to."""

    text: str
    system: str | None
    cluster: str
    before: str
    after: str
    said: tuple[str, str]


def alarms(folder: Path) -> list[Alarm]:
    """The recorded alarms about what is said on an axis (those with a p-value), in order of their snapshots."""
    paths = {path.stem.removeprefix("manifest-"): path for path in folder.glob("manifest-*.json")}
    read = {one: analysis.read(paths[one]) for one in schedule.in_order(list(paths))}
    rows = [(one, row) for one, manifest in read.items() for row in manifest["alarms"]]
    return [Alarm(one, row["axis"], row["name"]) for one, row in rows if row["p"] is not None]


def read(path: Path) -> DriftTraceResult:
    """The result of a trace. ResultError if the file is not one, or was changed after it was written."""
    return cast(DriftTraceResult, results_io.read(path, NUMBER))


def changed(folder: Path, alarm: Alarm, questions: Corpus) -> dict[str, tuple[str, str]]:
    """{prompt: (class before, class after)} where the two differ on the zero leg; empty unless both sides have that leg."""
    series = series_record.read(folder / series_record.NAME)
    before = series_record.previous(series, alarm.snapshot)
    texts = []
    for side in (before, series.snapshots[alarm.snapshot]):
        rows = [row for row in series_record.rows_of(side, ZERO) if row["axis"] == alarm.axis] if side else []
        texts.append({key: own[0]["text"] for key, own in series_record.by_prompt(rows).items()})
    answers = {prompt.key: prompt.answer for prompt in questions.prompts}
    found = {}
    for key in sorted(texts[0].keys() & texts[1].keys() & answers.keys()):
        one, other = (class_of(side[key], answers[key], questions.markers) for side in texts)
        if one != other:
            found[key] = (one, other)
    return found


def asked_on(folder: Path, alarm: Alarm, questions: Corpus) -> list[corpus.Prompt]:
    """The public prompts on the alarm's axis that its snapshot was asked, whatever was answered.

    A suite of the prompts that changed would be chosen by the answers that it then judges. The axis was fixed before any answer;
    its other prompts have siblings that changed too.
    """
    rows = series_record.read(folder / series_record.NAME).snapshots[alarm.snapshot].rows
    asked = {cell.prompt for cell in rows}
    return [prompt for prompt in questions.prompts if prompt.axis == alarm.axis and prompt.key in asked]


def command(context: RunContext, folder: Path, alarm: Alarm, settings: Mapping[str, Any]) -> int:
    """Trace an alarm and print the findings.

    Exit code 3 if no output changed its class, or if the model gives no access to its activations.
    """
    say = context.reporter.say
    require_known(folder, alarm)
    series = series_record.read(folder / series_record.NAME)
    questions = drift_series.questions_of(settings, series.snapshots[alarm.snapshot])
    keys = changed(folder, alarm, questions)
    if not keys:
        say(
            f"No output at temperature 0 on {alarm.axis} changed its class at {alarm.snapshot}, or one of the two snapshots "
            "has no such leg, so there is nothing to trace"
        )
        return NOT_ENOUGH
    if schedule.kind(alarm.snapshot) == "week":
        for line in outputs_alone(keys):
            say(line)
        return NOT_ENOUGH
    paths = checkpoints(folder, alarm, {side: context.settings[side] for side in "ab"})
    with models.quiet():
        opened = {side: LocalModel(own) for side, own in paths.items()}
    texts = answered(opened, questions, asked_on(folder, alarm, questions))
    changes = [one for one in texts if one.before != one.after]
    say(
        f"Trace of {alarm.metric} on {alarm.axis}: {len(keys)} prompts changed their class, of the public ones; "
        f"with siblings {len(changes)} of {len(texts)} texts"
    )
    own = folder / "trace" / alarm.name
    say(failures(context, own, alarm, opened, texts, questions))
    backend = context.settings["engine"]["name"]
    found = across(paths, opened, changes, questions, settings["trace"], backend)
    control = null_control(folder, paths["b"], found, settings, opened, changes, questions, backend)
    lacking = "" if control else control_lacks(paths["b"], found)
    document = {
        "number": NUMBER,
        "id": NAME,
        "kind": "drift",
        "alarm": vars(alarm),
        "subject": {side: one.identity["weights"] for side, one in opened.items()},
        "settings": settings["trace"],
        **found,
        "control": control,
        "control_status": "not_applicable" if lacking else "ok",
        "control_reason": lacking,
    }
    results_io.write(own / FILE, document)
    for line in sentences(cast(DriftTraceResult, document)):
        say(line)
    say(f"Trace {own / FILE}")
    return TRACED


def require_known(folder: Path, alarm: Alarm) -> None:
    """UserError unless the snapshot is finished and has one before it in the series, and axis and metric exist."""
    series = series_record.read(folder / series_record.NAME)
    finished = [one.id for one in series.finished]
    if alarm.snapshot not in finished:
        raise UserError(
            f"snapshot={alarm.snapshot} is not a finished snapshot in {folder}; use one of {', '.join(finished) or 'none'}"
        )
    if series_record.previous(series, alarm.snapshot) is None:
        raise UserError(f"{alarm.snapshot} is the first of its series; there is no checkpoint before it to trace")
    asked = {row["axis"] for row in series.snapshots[alarm.snapshot].rows.values()}
    for name, value, known in (("axis", alarm.axis, sorted(asked)), ("metric", alarm.metric, TRACEABLE)):
        if value not in known:
            raise UserError(f"{name}={value} is none of those at {alarm.snapshot}; use one of {', '.join(known)}")


def outputs_alone(keys: Mapping[str, tuple[str, str]]) -> list[str]:
    """The lines that end the trace of an endpoint's alarm: the prompts that changed class, and why no head is named."""
    lines = [f"{len(keys)} prompts changed their class at temperature 0:"]
    lines += [f"  {key}: {before or 'empty'} -> {after or 'empty'}" for key, (before, after) in keys.items()]
    return [*lines, "An endpoint shows no activations, so the trace ends here; a local checkpoint's goes on to heads"]


def checkpoints(folder: Path, alarm: Alarm, given: Mapping[str, str | None]) -> dict[str, dict[str, Any]]:
    """Settings of the two local models, from the folders `given` (a= and b=), the series' own folder, or an embedded model.

    UserError if a snapshot's weights are in none of them.
    """
    series = series_record.read(folder / series_record.NAME)
    before, after = series_record.previous(series, alarm.snapshot), series.snapshots[alarm.snapshot]
    found = {}
    for side, one in (("a", before), ("b", after)):
        assert one is not None  # `require_known`
        weights = one.started["model"]["identity"]["weights"]
        name = f"{folder.name}-{one.id}"  # results lie below this name, and two folders may share theirs
        found[side] = next(
            (own for own in _candidates(folder, one, name, given.get(side)) if _weights(own) == weights), None
        )
        if found[side] is None:
            where = f"in {side}={given[side]}" if given.get(side) else "with the series"
            raise UserError(
                f"the weights {weights[:8]} of {one.id} are not {where}; give the folder of that checkpoint as {side}="
            )
    return found  # pyright: ignore[reportReturnType]


def _candidates(
    folder: Path, one: series_record.RecordedSnapshot, name: str, given: str | None
) -> list[dict[str, Any]]:
    """Where a snapshot's weights may be: the given folder; else the series' folder or the embedded model of the same name."""
    known = one.started["model"]["name"]
    local = {"kind": "local", "name": name, "device": "cpu", "dtype": "float32"}
    if given:
        return [{**local, "path": given}]
    return [{**local, "path": str(folder / "checkpoints" / known)}, {**local, "path": str(models.EMBEDDED / known)}]


def _weights(settings: Mapping[str, Any]) -> str | None:
    """The hash of the weights in a folder; None for a folder that holds no model."""
    try:
        return models.identify(settings).sha256
    except UserError:
        return None


def answered(opened: Mapping[str, LocalModel], questions: Corpus, prompts: Sequence[corpus.Prompt]) -> list[Change]:
    """The prompts and their equal-length siblings, with the classes of both checkpoints' answers at temperature 0."""
    asked = [(text, prompt) for prompt in prompts for text in (prompt.text, *prompt.siblings)]
    requests = [Request(text, prompt.system, questions.max_tokens, 0.0, questions.stop) for text, prompt in asked]
    said = {side: [output.text for output in model.generate(requests)] for side, model in opened.items()}
    found = []
    for (text, prompt), one, other in zip(asked, said["a"], said["b"], strict=True):
        before, after = (class_of(output, None, questions.markers) for output in (one, other))
        found.append(Change(text, prompt.system, prompt.key, before, after, (one, other)))
    return found


def failures(
    context: RunContext,
    folder: Path,
    alarm: Alarm,
    opened: Mapping[str, LocalModel],
    texts: Sequence[Change],
    questions: Corpus,
) -> str:
    """The suite of these texts, run on both checkpoints; the later one's failures as pairs for task=failures. One sentence."""
    suite = write_suite(folder / "suite", alarm, texts, questions)
    groups = {}
    for side, model in opened.items():
        target = context.results / model.name / stored_pairs.FOLDER / suite.id
        found = runner.run([suite], model, target, None, lambda sentence: None, seed=context.seed)
        groups[side] = pairing.group(found.suites[0], model)
        stored_pairs.write(target, [groups[side]], model.identity, {suite.id: suite.sha256})
    group = groups["b"]
    if group.traceable:
        return f"Suite {group.sentence}; {certifying(context, suite.id, opened['b'])}"
    return f"Suite {group.sentence}" + (f"; {MORE}" if group.pairs else "")


def certifying(context: RunContext, suite: str, later: LocalModel) -> str:
    """The command that certifies the heads of these failures, as for any other task."""
    own = shlex.quote(f"model.name={later.name}"), shlex.quote(f"model.path={later.source.folder}")
    named = f"model=local {' '.join(own)}"
    return f"certify it with: python run.py task=failures task.group={suite} {named}{context.choice('results')}"


def write_suite(folder: Path, alarm: Alarm, texts: Sequence[Change], questions: Corpus) -> Suite:
    """An A3 suite with its lock: every text must be answered in the class of the earlier checkpoint's answer."""
    answers = {prompt.key: prompt.answer for prompt in questions.prompts}
    refusal = drift_classes.refusal_pattern([said for one in texts for said in one.said], questions.markers)
    items: list[dict[str, Any]] = []
    first: dict[str, str] = {}
    for number, one in enumerate(texts):
        own = {"id": f"text-{number:03d}", "prompt": one.text, "system": one.system}
        item = {**own, "cluster": one.cluster, "template": alarm.axis}
        answer = None if one.cluster in first else answers[one.cluster]  # a sibling asks for another fact
        item["expect"] = drift_classes.expectation(one.said[0], answer, questions.markers, refusal)
        if one.cluster in first:
            item["variant"] = {"kind": "sibling", "parent": first[one.cluster]}
        first.setdefault(one.cluster, item["id"])
        items.append(item)
    data = {
        "id": alarm.id,
        "version": "1.0.0",
        "title": f"{alarm.metric} on {alarm.axis} as before {alarm.snapshot}",
        "description": "Prompts of an axis on which outputs changed their class between two checkpoints, all of them, with "
        "siblings: each must have the class that it had before.",
        "mode": "A3",
        "contexts": ["question_answering"],
        "requires": ["generation"],
        "items": items,
        "legs": [
            {
                "name": "greedy",
                "temperature": 0,
                "samples": 1,
                "max_tokens": questions.max_tokens,
                "stop": list(questions.stop),
            }
        ],
        "trace": {"strategy": "role_swap", "positions": []},
        "minimum": 1,
        "gate": None,
    }
    results_io.write_text(folder / declaration.FILE, yaml.safe_dump(data, sort_keys=False))
    (folder / lock.FILE).unlink(missing_ok=True)
    results_io.write_text(folder / lock.FILE, lock.freeze(declaration.read(folder)))
    return declaration.load(folder)


# --- across checkpoints -----------------------------------------------------------------------------------------------


def asked_of(opened: Mapping[str, LocalModel], changes: Sequence[Change], questions: Corpus) -> list[NextTokenQuestion]:
    """The changes as questions about the first token in which the two outputs differ.

    The tokens that both outputs share before it are appended to the prompt. Changes without such a token are left out.
    """
    requests = [Request(one.text, one.system, questions.max_tokens, 0.0, questions.stop) for one in changes]
    outputs = {side: model.generate(requests) for side, model in opened.items()}
    found = []
    for one, a, b in zip(changes, outputs["a"], outputs["b"], strict=True):
        said_a, said_b = a.tokens or (), b.tokens or ()
        place = next((n for n, (x, y) in enumerate(zip(said_a, said_b, strict=False)) if x != y), None)
        if place is not None:
            prompt = opened["b"].encoding.prompt(one.text, one.system)
            found.append(NextTokenQuestion((*prompt, *said_a[:place]), said_a[place], said_b[place], one.cluster))
    return found


def across(
    paths: Mapping[str, Mapping[str, Any]],
    opened: Mapping[str, LocalModel],
    changes: Sequence[Change],
    questions: Corpus,
    settings: Mapping[str, Any],
    backend: str = "auto",
) -> dict[str, Any]:
    """The heads named on the discovery half and what they restore on the other half, as plain data.

    If no head could be named, `reason` says why.
    """
    cross = CrossCheckpoint(
        models.load(paths["a"]), models.load(paths["b"]), asked_of(opened, changes, questions), backend
    )
    found = cross.restored()
    return {**named_and_confirmed(cross, found, settings), "compared": compared(cross, found, settings)}


def named_and_confirmed(cross: CrossCheckpoint, found: Restored, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a trace from the effects of every head: which are named, and what they restore on the other half."""
    clusters = np.array(found.clusters)
    kept = found.gap >= settings["minimum_gap"]
    discovery = np.array([corpus.kept_out(b"discovery", one, settings["discovery"]) for one in clusters])
    halves = {"discovery": kept & discovery, "confirmation": kept & ~discovery}
    counts = {
        name: {"questions": int(rows.sum()), "clusters": len(set(clusters[rows]))} for name, rows in halves.items()
    }
    result: dict[str, Any] = {"weak": int((~kept).sum()), "halves": counts, "named": [], "together": None, "reason": ""}
    if min(one["clusters"] for one in counts.values()) < 2:
        result["reason"] = "fewer than two prompts in a half: an anecdote"
        return result | {"ceiling": None, "floor": None, "heads": {}}
    rows = halves["discovery"]
    bounds = hypothesis.intervals(found.effect[:, rows], found.gap[rows], clusters[rows], settings)
    share = found.effect[:, rows].sum(1) / found.gap[rows].sum()
    order = np.argsort(-share, kind="stable")
    named = [int(n) for n in order if bounds[n][0] > settings["minimum_share"]][: settings["most_named"]]
    result["heads"] = {name: float(share[n]) for n, name in enumerate(found.heads)}
    other = halves["confirmation"]
    for name in ("ceiling", "floor"):
        result[name] = _share(getattr(found, name)[other], found.gap[other], clusters[other])
    if not named:
        result["reason"] = f"no head alone restores more than {settings['minimum_share']:g} for sure"
        return result
    again = confirmed(found.effect[named][:, other], found.gap[other], clusters[other], settings)
    for n, one in zip(named, again, strict=True):
        own = {"head": found.heads[n], "discovery": float(share[n]), "interval": list(bounds[n])}
        result["named"].append(own | one)
    joint = cross.together([parse_head(found.heads[n]) for n in named])
    result["together"] = _share(joint[other], found.gap[other], clusters[other])
    return result


def confirmed(
    effect: np.ndarray, gap: np.ndarray, clusters: np.ndarray, settings: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What each named head restores on the half that did not name it, and whether that confirms it.

    `effect`: [head, question]. The intervals hold all named heads at once; a head is confirmed if its lower end is above
    minimum_share, as for being named.
    """
    rows = []
    for own, (low, high) in zip(effect, hypothesis.intervals(effect, gap, clusters, settings), strict=True):
        interval = [float(low), float(high)] if np.isfinite(low) and np.isfinite(high) else None
        verdict = CONFIRMED if low > settings["minimum_share"] else NOT_CONFIRMED
        share = {"value": float(own.sum() / gap.sum()), "interval": interval}
        rows.append({"confirmation": share, "verdict": verdict})
    return rows


def compared(cross: CrossCheckpoint, found: Restored, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The heads whose direct part in the answer differs between the checkpoints, over all questions: gained, lost or changed.

    A head's part is its direct contribution to LD as a share of LD_A - LD_B. The parts differ if the simultaneous interval of
    A's part minus B's lies wholly above minimum_share or below -minimum_share. A head is gained if it has a part in B only, and
    lost if it has one in A only.
    """
    kept, least = found.gap >= settings["minimum_gap"], settings["minimum_share"]
    clusters = np.array(found.clusters)[kept]
    if len(set(clusters)) < 2:
        return []
    direct = {side: rows[:, kept] for side, rows in cross.direct().items()}
    gap = found.gap[kept]
    bounds = {side: hypothesis.intervals(rows, gap, clusters, settings) for side, rows in direct.items()}
    change = hypothesis.intervals(direct["a"] - direct["b"], gap, clusters, settings)
    rows = []
    for place, head in enumerate(found.heads):
        if _leaves_out(change[place], least):
            has = [_leaves_out(bounds[side][place], least) for side in "ab"]
            became = {(False, True): "gained", (True, False): "lost"}.get((has[0], has[1]), "changed")
            parts = {side: float(direct[side][place].sum() / gap.sum()) for side in "ab"}
            rows.append({"head": head, "became": became, **parts, "interval": list(change[place])})
    return sorted(rows, key=lambda row: -abs(row["a"] - row["b"]))


def _leaves_out(interval: tuple[float, float], least: float) -> bool:
    return interval[0] > least or interval[1] < -least


def _share(effect: np.ndarray, gap: np.ndarray, clusters: np.ndarray) -> dict[str, Any]:
    """sum of effects / sum of gaps with its 95 % Fieller interval over clusters, which is None if it has no bounds."""
    value = float(effect.sum() / gap.sum())
    try:
        low, high = ratio_of_means(effect, gap, clusters).fieller(0.95)
    except Insufficient:
        return {"value": value, "interval": None}
    return {"value": value, "interval": [float(low), float(high)]}


def control_lacks(later: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Why there is no null-tuned control; empty where there can be one: it is tuned on prompts of the embedded model's words."""
    if not found["named"]:
        return "no head is named"
    if models.identify(later).knows != "embedded":
        return "a null-tuned copy is made of checkpoints of the embedded model alone, as its prompts are drawn from its words"
    return ""


def null_control(
    folder: Path,
    later: Mapping[str, Any],
    found: Mapping[str, Any],
    settings: Mapping[str, Any],
    opened: Mapping[str, LocalModel],
    changes: Sequence[Change],
    questions: Corpus,
    backend: str = "auto",
) -> dict[str, Any] | None:
    """What the named heads of a null-tuned copy of B restore in B's run, as a share of the same gap.

    None where `control_lacks` says why.
    """
    if control_lacks(later, found):
        return None
    wanted = tuning.Tuning("null", 0.0, CONTROL_SEED)
    own = tuning.checkpoint(
        opened["b"],
        wanted,
        settings["tuning"],
        questions,
        folder / "checkpoints" / f"control-{opened['b'].identity['weights'][:8]}",
    )
    asked = asked_of(opened, changes, questions)
    cross = CrossCheckpoint(models.load(own), models.load(later), asked, backend)
    joint = cross.together([parse_head(one["head"]) for one in found["named"]])
    gaps = gap_of(opened, asked)
    clusters = np.array([one.cluster for one in asked])
    kept = gaps >= settings["trace"]["minimum_gap"]
    other = kept & ~np.array([corpus.kept_out(b"discovery", one, settings["trace"]["discovery"]) for one in clusters])
    return _share(joint[other], gaps[other], clusters[other])


def gap_of(opened: Mapping[str, LocalModel], asked: Sequence[NextTokenQuestion]) -> np.ndarray:
    """LD_A - LD_B of each question, nats, by the plain models."""
    rows = [list(one.tokens) for one in asked]
    differences = []
    for side in ("a", "b"):
        logits = opened[side].next_logits(rows)
        differences.append([float(row[q.said_by_a] - row[q.said_by_b]) for row, q in zip(logits, asked, strict=True)])
    return np.array(differences[0]) - np.array(differences[1])


def sentences(document: DriftTraceResult) -> list[str]:
    """The trace as lines for the terminal."""
    halves = document["halves"]
    counts = f"{halves['discovery']['questions']} texts to name heads, {halves['confirmation']['questions']} to confirm"
    parts = closing(document["compared"])
    if not document["named"]:
        return [f"Heads: none is named ({document['reason']}); {counts}", *parts]
    lines = [f"Heads of the checkpoint before, put into the run of the one after ({counts}):"]
    for one in document["named"]:
        verdict = one.get("verdict", "no verdict, of an older trace")
        lines.append(f"  {one['head']} restores {_shown(one['confirmation'])} on the other half: {verdict}")
    limits = f"everything {_shown(document['ceiling'])}; nothing {_shown(document['floor'])}"
    lines.append(f"  together {_shown(document['together'])}; {limits}")
    why = document.get("control_reason") or "the trace is an older one"
    control = _shown(document["control"]) if document["control"] else f"none, since {why}"
    lines.append(f"  the same heads of a null-tuned copy: {control}")
    return [*lines, *parts]


def closing(compared: Sequence[ComparedHead]) -> list[str]:
    """Lines about the heads gained, lost and changed, each with its part before and after."""
    lines = ["What heads add directly to the earlier checkpoint's answers, before -> after, as a share of the change:"]
    for became in ("gained", "lost", "changed"):
        own = [f"{row['head']} {row['a']:+.2f} -> {row['b']:+.2f}" for row in compared if row["became"] == became]
        lines.append(f"  {became}: {', '.join(own) or 'none'}")
    return lines


def _shown(share: RestoredShare | None) -> str:
    if share is None:
        return "unknown"
    ends = share["interval"]
    return f"{share['value']:.2f}" + (f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else "")
