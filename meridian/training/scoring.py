"""How well a model does the tasks: accuracy and logit difference on the tasks' own held-out examples."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from circuits.tasks.base import Task
from circuits.tasks.example import Example
from results_io import UserError

CONFIDENT = 0.9
ACCURACY_CRITERION = {
    "ioi": "top1",
    "induction": "top1",
    "greater_than": "likelier",
    "subject_verb_agreement": "ordered",
    "gendered_pronoun": "ordered",
}


@dataclass(frozen=True)
class TaskScores:
    """Shares and means over `n` clean prompts, read at the last position.

    top1: the likeliest word of the whole vocabulary is an answer. ordered: mean logit of the answers above
    that of the wrong words. likelier: more probability on the answers than on the wrong words. confident:
    more than 0.9 of all probability on the answers. logit_difference: mean over prompts of (mean answer logit
    - mean wrong logit). accuracy: the criterion that ACCURACY_CRITERION names for the task.
    """

    task: str
    n: int
    accuracy: float
    top1: float
    ordered: float
    likelier: float
    confident: float
    logit_difference: float


def last_logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str]) -> torch.Tensor:
    """Return the logits ["prompt word"] after the last token of each prompt, BOS in front, in fp32."""
    bos, padding = cast("int", tokenizer.bos_token_id), cast("int", tokenizer.pad_token_id)
    rows = [[bos, *ids] for ids in tokenizer(prompts).input_ids]
    width = max(map(len, rows))
    padded = torch.tensor([row + [padding] * (width - len(row)) for row in rows])
    last = torch.tensor([len(row) - 1 for row in rows])
    mask = (padded != padding).long()
    with torch.no_grad():
        logits = model(input_ids=padded, attention_mask=mask).logits
    return logits[torch.arange(len(rows)), last].float()


def draw_examples(task: Task, n: int, seed: int) -> list[Example]:
    """Return `n` examples drawn by the task. UserError if the task's prompts are a fixed list."""
    if task.sample is None:
        raise UserError(f"the prompts of task {task.name} are a list; score a task that draws them")
    rng = random.Random(f"{task.name}/{seed}")
    return [task.sample(rng) for _ in range(n)]


def score(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task, n: int, seed: int = 0) -> TaskScores:
    """Return the scores of the model on `n` clean prompts of the task."""
    examples = draw_examples(task, n, seed)
    logits = last_logits(model, tokenizer, [example.clean for example in examples])
    probabilities = logits.softmax(-1)
    counts = dict.fromkeys(("top1", "ordered", "likelier", "confident"), 0)
    differences = []
    for row, probability, example in zip(logits, probabilities, examples, strict=True):
        answers = [tokenizer.convert_tokens_to_ids(word) for word in example.answers]
        wrong = [tokenizer.convert_tokens_to_ids(word) for word in example.wrong]
        differences.append(float(row[answers].mean() - row[wrong].mean()))
        counts["top1"] += int(row.argmax()) in answers
        counts["ordered"] += differences[-1] > 0
        counts["likelier"] += bool(probability[answers].sum() > probability[wrong].sum())
        counts["confident"] += bool(probability[answers].sum() > CONFIDENT)
    shares = {name: count / n for name, count in counts.items()}
    return TaskScores(
        task=task.name,
        n=n,
        accuracy=shares[ACCURACY_CRITERION[task.name]],
        logit_difference=sum(differences) / n,
        **shares,
    )
