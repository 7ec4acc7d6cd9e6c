"""01 Baseline: does the intact model do the task, and what exactly was it asked?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from circuits.circuit import head_pairs
from circuits.interventions import Sweep, Variant
from circuits.study import Study
from circuits.tasks.base import RowSource

NUMBER, ID = "01", "baseline"
SETTINGS = ()
DEPENDS_ON_CIRCUIT = False
EXAMPLES = 3


def measure(study: Study) -> dict[str, Any]:
    """Clean and corrupted effects on the task's metric, correctness and probabilities of every scored prompt."""
    prompts = study.prompts
    sweep = Sweep((Variant("clean"), Variant("corrupted", base="corrupted")), probabilities=True)
    effects = study.run(sweep)
    best = study.engine.end_logits(prompts).argmax(1, keepdim=True)
    top1 = (best == prompts.answers).any(1).numpy()
    assert effects.answer_probability is not None and effects.foil_probability is not None  # the sweep asks for them
    correct = effects.correct[0]
    splits = np.array(prompts.splits)
    source = study.task.source
    return {
        "prompt_id": prompts.ids,
        **(_of_rows(source, prompts.ids) if source else {}),
        "split": prompts.splits,
        "template": prompts.templates,
        "cluster": prompts.clusters,
        "factors": prompts.factors,
        "clean_logit_diff": effects.row("clean"),
        "corrupted_logit_diff": effects.row("corrupted"),
        "clean_in_logits": study.run(sweep, in_logits=True).row("clean"),
        "correct": correct,
        "top1": top1,
        "metric": study.task.metric,
        "answer_probability": effects.answer_probability[0],
        "foil_probability": effects.foil_probability[0],
        "accuracy": {str(split): float(correct[splits == split].mean()) for split in np.unique(splits)},
        "heads": head_pairs(study.model.heads),
        "n_layers": study.model.n_layers,
        "n_heads_per_layer": study.model.n_heads,
        "examples": [_example(study, row) for row in range(min(EXAMPLES, len(prompts)))],
    }


def _of_rows(source: RowSource, ids: Sequence[str]) -> dict[str, Any]:
    """For prompts from a file: the row of each prompt, the rows that were left out, and the choices made for them."""
    return {
        "row": source.rows_of(ids),
        "source": {"left_out": source.left_out, "notes": source.notes},
    }


def _example(study: Study, row: int) -> dict[str, Any]:
    """One prompt as the model saw it: every token, the BOS policy, the answers."""
    prompts, decode = study.prompts, study.model.tokenizer.convert_ids_to_tokens
    end = int(prompts.end[row]) + 1
    return {
        "bos": prompts.bos,
        "clean": decode(prompts.clean[row, :end].tolist()),
        "corrupted": decode(prompts.corrupted[row, :end].tolist()),
        "answers": decode([i for i in prompts.answers[row].tolist() if i >= 0]),
        "wrong": decode([i for i in prompts.wrong[row].tolist() if i >= 0]),
        "positions": {role: int(where[row]) for role, where in prompts.positions.items()},
    }
