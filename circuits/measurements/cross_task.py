"""27 Cross task: every head's patching effect on the prompts of other tasks.

Denoising, as in 02, on each companion task's own clean and corrupted prompts, so that any circuit's mean effect on any
task is a mean over columns. A task whose words this model's tokenizer splits (years, if each digit is a token) cannot be a
companion. Its stand-in takes its place if it has one, otherwise the next task on the list.
"""

from __future__ import annotations

from typing import Any

from circuits import tasks
from circuits.circuit import head_pairs
from circuits.interventions import Sweep, Variant, denoise
from circuits.study import Study, companion
from circuits.tasks.base import Task
from circuits.tasks.published import STAND_INS
from results_io import UserError

NUMBER, ID = "27", "cross_task"
SETTINGS = ("companions", "companion_prompts")
DEPENDS_ON_CIRCUIT = False


def stored_circuits(task: Task) -> tuple[str, ...]:
    """The tasks on whose prompts heads are patched: the result says which heads are in those tasks' stored circuits."""
    return (*task.companions, *(STAND_INS[name] for name in task.companions if name in STAND_INS))


def measure(study: Study) -> dict[str, Any]:
    """{task: per-prompt head effects, the scale of the task, whether the model does it, its stored circuit}; `unavailable` has
    the tasks that were skipped, with the reasons.
    """
    names, unavailable = chosen(study.task)
    return {
        "tasks": {name: _effects(study, name) for name in names[: study.settings["companions"]]},
        "unavailable": unavailable,
    }


def chosen(task: Task) -> tuple[list[str], dict[str, str]]:
    """(companions with prompts for this tokenizer, or their stand-ins; {other companion: why it has none})."""
    names: list[str] = []
    unavailable: dict[str, str] = {}
    for name in task.companions:
        for one in (name, STAND_INS[name]) if name in STAND_INS else (name,):
            reason = _reason(task, one)
            if reason is None:
                names += [one] if one not in (*names, task.name) else []
                break
            unavailable[one] = reason
    return names, unavailable


def _reason(task: Task, name: str) -> str | None:
    """Why a companion has no prompts for this model's tokenizer; None if it has."""
    if name in (task.others or {}):
        return None
    try:
        tasks.get(name, task.vocabulary)
    except UserError as reason:
        return str(reason)
    return None


def _effects(study: Study, name: str) -> dict[str, Any]:
    other = companion(study, name, study.settings["companion_prompts"])
    prompts = other.prompts.select(other.prompts.rows_of("evaluation"))
    heads = study.model.heads
    variants = [Variant("clean"), Variant("corrupted", base="corrupted")]
    variants += [denoise([node], str(node)) for node in heads]
    effects = other.run(Sweep(tuple(variants)), prompts)
    clean, corrupted = effects.logit_diff[:2]
    circuit = study.model.circuits.get(name)
    return {
        "prompt_id": prompts.ids,
        **({"row": other.task.source.rows_of(prompts.ids)} if other.task.source else {}),
        "template": prompts.templates,
        "cluster": prompts.clusters,
        "denoising": (effects.logit_diff[2:] - corrupted).T,
        "gap": float((clean - corrupted).mean()),
        "mean_clean": float(clean.mean()),
        "accuracy": float(effects.correct[0].mean()),
        "circuit": {
            "name": circuit.name if circuit else None,
            "heads": head_pairs(circuit.heads) if circuit else [],
        },
    }
