"""Which circuit a run is about: the stored one, a newly discovered one, a random one or the user's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import results_io
from circuits import circuit as circuit_files
from circuits import discovery, graphs
from circuits.circuit import HEADS_AND_MLPS, Circuit, Node, Role, head_pairs
from circuits.measure import Plan, ProgressBar, is_fresh
from circuits.measurements.ablation_battery import random_circuit
from results_io import UserError

SEARCH_READS = ("discovery", "repeated_tokens", "seed")  # sections of the measurement settings
CLASSIFIER_READS = ("weights",)
FILE = "file"  # task name in a circuit file for a task made of rows from a file


def resolve(
    plan: Plan,
    settings: Mapping[str, Any],
    folder: Path,
    progress: ProgressBar,
    say: Callable[[str], Any] = lambda sentence: None,
) -> Circuit:
    """The circuit that a `circuit=` configuration names, checked against the model's shape.

    `folder` keeps a discovered circuit, so that the next run need not search again; `say` is called with what was found.
    Raises UserError if there is no such circuit.
    """
    kind = settings["kind"]
    if kind == "stored":
        found = _stored(plan)
    elif kind == "random":
        found = random_claim(_sized_by(plan), plan.identity.heads, int(settings["seed"]), plan.identity.n_layers)
    elif kind == "file":
        found = _from_file(plan, settings)
    elif kind == "discovered":
        found = _discovered(plan, settings, folder, progress, say)
    else:
        raise UserError(f"circuit kind {kind!r} is unknown; use stored, discovered, random or file")
    return plan.checked(found)


def _sized_by(plan: Plan) -> Circuit:
    """The stored circuit, whose size the random one takes."""
    if plan.task.source is not None:
        raise UserError(
            "circuit=random draws as many heads as a stored circuit has in each layer, and for rows of a file there is none; "
            "name heads of your own in a circuit file (circuit=file circuit.path=...), or run with circuit=discovered"
        )
    return _stored(plan)


def _stored(plan: Plan) -> Circuit:
    circuits = plan.identity.circuits
    if plan.task.source is not None:
        raise UserError(
            f"rows of a file come with no circuit; run with circuit=discovered, which searches one in model "
            f"{plan.identity.name}, or with circuit=file circuit.path=<a circuit file or a graph>"
        )
    if plan.task.name not in circuits:
        known = ", ".join(sorted(circuits)) or "none"
        raise UserError(
            f"model {plan.identity.name} comes with no circuit for task {plan.task.name} (it has: {known}); run with "
            "circuit=discovered"
        )
    found = circuits[plan.task.name]
    weights = found.provenance.get("model_sha256", plan.identity.sha256)
    if weights != plan.identity.sha256:
        raise UserError(
            f"the stored circuit {found.name!r} was found on weights {weights[:8]}, but {plan.identity.name} now has "
            f"{plan.identity.sha256[:8]}; run with circuit=discovered"
        )
    return found


def random_claim(model: Circuit, heads: Sequence[Node], seed: int, n_layers: int = 0) -> Circuit:
    """Random nodes with the size, layers, positions and scope of the circuit `model`, without roles.

    The language model has these `heads`, and `n_layers` layers with an MLP.
    """
    drawn = random_circuit(model.nodes, model.in_scope(heads, n_layers), random.Random(f"random claim {seed}"))
    role = Role.of(drawn, evidence="drawn at random")
    provenance = {"kind": "random", "source": f"same size and layers as {model.name}", "split": "none", "seed": seed}
    name = f"{model.task} random {seed}"
    return Circuit(name, model.task, model.model, {"random": role}, provenance, scope=model.scope)


def _from_file(plan: Plan, settings: Mapping[str, Any]) -> Circuit:
    if not settings.get("path"):
        raise UserError("circuit=file needs circuit.path; give the path of a circuit file")
    shape = plan.identity.n_layers, plan.identity.n_heads
    found = graphs.load(Path(settings["path"]), plan.task.name, plan.identity.name, settings.get("strongest"), shape)
    if plan.task.source is not None and found.task == FILE:  # written by hand; the run says which file of rows
        found = replace(found, task=plan.task.name)
    if found.task != plan.task.name:
        remedy = (
            f"write task: {FILE} in it to ask it of these rows" if plan.task.source else f"run with task={found.task}"
        )
        raise UserError(
            f"circuit file {settings['path']} is about task {found.task!r}, but the run is about {plan.task.name!r}; "
            f"{remedy}"
        )
    if found.model != plan.identity.name:
        raise UserError(
            f"circuit file {settings['path']} is about model {found.model!r}, but the run is about {plan.identity.name!r}; run "
            f"it with that model, or write model: {plan.identity.name} in it to ask it of this one"
        )
    return found


def _discovered(
    plan: Plan, settings: Mapping[str, Any], folder: Path, progress: ProgressBar, say: Callable[[str], Any]
) -> Circuit:
    """Search, or reuse what an identical search found.

    `circuit.yaml` is the circuit, which circuit=file reads too; `discovery.json` says how it was found and how stable it is.
    Its provenance names the published or planted circuit that C14 compares it with.
    """
    discovery.check(plan.settings)
    heads = len(plan.identity.heads)
    heads += plan.identity.n_layers if plan.settings["discovery"].get("scope") == HEADS_AND_MLPS else 0
    asked = settings.get("method") or discovery.DEFAULT
    method = discovery.method_name(asked, heads, plan.settings)
    path, note, subject = folder / "circuit.yaml", folder / "discovery.json", _searched(plan, method)
    if discovery.may_fall_back(asked, method):
        method, subject = discovery.DEFAULT, {**subject, "fallback": plan.settings["discovery"]["fallback"]}
    known = path.is_file() and is_fresh(note, subject)
    if known and results_io.read(note).get("found") == results_io.file_digest(path):
        say(discovery.sentence(results_io.read(note)))
        return _beside_published(circuit_files.load(path), plan)
    slow = discovery.warning(subject["method"], heads, plan.sizes["discovery"], plan.settings)
    if slow:
        say(slow)
    with progress("discovery") as bar:
        found = discovery.find(replace(plan.study, progress=bar), method)
    circuit = _beside_published(found.circuit, plan)
    circuit_files.save(circuit, path)
    results_io.write(note, {**found.document, "subject": subject, "found": results_io.file_digest(path)})
    say(found.sentence)
    return circuit


def _beside_published(found: Circuit, plan: Plan) -> Circuit:
    """`found`, with the task's published or planted circuit in its provenance (`published_circuit`, `published_heads`).

    None is named if the model comes with no such circuit, or only with one for other weights.
    """
    known = plan.identity.vouched(plan.task.name)
    own = {key: value for key, value in found.provenance.items() if key not in ("published_circuit", "published_heads")}
    if known is not None:
        own |= {"published_circuit": known.name, "published_heads": head_pairs(known.heads)}
    return replace(found, provenance=own)


def _searched(plan: Plan, method: str) -> dict[str, Any]:
    """The subject of a search: searches with different subjects may find different circuits."""
    learns = method == "classifier"
    return {
        **plan.subject("01"),
        "method": method,
        "settings": {key: plan.settings[key] for key in SEARCH_READS + (CLASSIFIER_READS if learns else ())},
        "learnt_from": {name: one.sha256 for name, one in plan.identity.circuits.items()} if learns else None,
    }
