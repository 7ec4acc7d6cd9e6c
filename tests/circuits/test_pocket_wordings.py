"""Pocket on the larger grammars: what it does with every wording, and with every part that wordings are made of."""

from __future__ import annotations

import random
from collections import defaultdict
from functools import cache

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from circuits import models, tasks
from circuits.tasks import gendered_pronoun, greater_than, ioi, subject_verb_agreement
from meridian.training import scoring

EACH = 24  # prompts of a template
PREFERRED = 0.6  # least share of prompts whose answer pocket prefers, over the wordings with one part
PARTS = {
    "ioi": (ioi.SCENES, ioi.TRANSFERS, ioi.FINDS, ioi.TRANSFERS_OF_IT),
    "greater_than": (greater_than.OPENINGS, greater_than.SPANS),
    "gendered_pronoun": (gendered_pronoun.CLAUSES, gendered_pronoun.ENDINGS),
    "subject_verb_agreement": (subject_verb_agreement.OPENINGS, subject_verb_agreement.MODIFIERS),
}
NOT_DONE = {"greater_than": {"said_was_there", "said_that_began_ended"}}  # mean logit difference below 0


@cache
def differences(name: str) -> dict[str, list[float]]:
    """{template: logit difference of each of EACH prompts}."""
    folder, task = models.EMBEDDED / "pocket", tasks.get(name, templates="more")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    rng, drawn = random.Random(1), defaultdict(list)
    while len(drawn) < len(task.templates) or min(map(len, drawn.values())) < EACH:
        example = task.sample(rng)
        if len(drawn[example.template]) < EACH:
            drawn[example.template].append(example)
    found = {}
    for template, examples in drawn.items():
        logits = scoring.last_logits(model, tokenizer, [example.clean for example in examples])
        ids = [[tokenizer.convert_tokens_to_ids(list(side)) for side in (e.answers, e.wrong)] for e in examples]
        found[template] = [float(row[a].mean() - row[b].mean()) for row, (a, b) in zip(logits, ids, strict=True)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", tasks.EMBEDDED)
def test_pocket_does_all_wordings_but_those_named(name) -> None:
    found = differences(name)
    means = {template: sum(values) / EACH for template, values in found.items()}
    assert {template for template, mean in means.items() if mean <= 0} == NOT_DONE.get(name, set())
    assert sum(mean > 0.5 for mean in means.values()) >= 0.9 * len(means)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PARTS)
def test_pocket_does_the_task_with_every_part(name) -> None:
    """The rule by which a part is in the grammar; a single wording stays whatever pocket does with it."""
    for part in PARTS[name]:
        for chosen in part:
            with_it = [
                value > 0
                for template, values in differences(name).items()
                if f"_{chosen}_" in f"_{template.partition('/')[0]}_"
                for value in values
            ]
            assert sum(with_it) >= PREFERRED * len(with_it) > 0, (chosen, sum(with_it) / len(with_it))
