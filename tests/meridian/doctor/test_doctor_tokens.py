"""What the doctor shows of the tokenizer: the example as the model sees it, BOS, padding, lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerFast

from circuits import tasks
from circuits.planted import tokenizer_with_bos
from meridian.doctor import tokens
from tests.circuits import toy


def test_the_example_is_the_first_prompt_token_by_token(study) -> None:
    found, prompts = tokens.describe(study), study.prompts
    end = int(prompts.end[0]) + 1
    assert [place.position for place in found.places] == list(range(end))
    assert [place.clean[0] for place in found.places] == prompts.clean[0, :end].tolist()
    assert [place.corrupted[0] for place in found.places] == prompts.corrupted[0, :end].tolist()
    decode = study.model.tokenizer.convert_ids_to_tokens
    assert [place.clean[1] for place in found.places] == decode(prompts.clean[0, :end].tolist())
    named = {role: place.position for place in found.places for role in place.roles}
    assert named == {role: int(where[0]) for role, where in prompts.positions.items()}
    assert found.answers == ((int(prompts.answers[0, 0]), decode([int(prompts.answers[0, 0])])[0]),)
    assert [place.changed for place in found.places] == (prompts.clean[0, :end] != prompts.corrupted[0, :end]).tolist()
    assert found.lengths == dict(sorted(prompts.lengths.items()))


def test_bos_policy_and_habit(study) -> None:
    found = tokens.describe(study)
    assert (found.bos_wanted, found.bos, found.by_itself) == (True, "<bos>", "nothing")
    assert found.places[0].clean[1] == "<bos>"


def test_a_tokenizer_that_adds_bos_by_itself_is_told(tokenizer) -> None:
    adding = tokenizer_with_bos("planted/sound")
    assert tokens._habit(adding) == "<bos> before every text"
    task = tasks.get("ioi")
    assert tokens.bos_warning(task, adding) is None
    assert "would begin a text with '<bos>' and task ioi leaves it out" in tokens.bos_warning(
        replace(task, bos=False), adding
    )
    assert "adds no BOS token by itself; task ioi puts '<bos>' first" in tokens.bos_warning(task, tokenizer)
    assert tokens.bos_warning(replace(task, bos=False), tokenizer) is None


def test_a_missing_bos_token_is_a_fault_only_if_the_task_wants_one(tokenizer) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, pad_token="<pad>")
    task = tasks.get("ioi")
    assert "this tokenizer has none; run with task.bos=false" in tokens.bos_fault(task, bare)
    assert tokens.bos_fault(replace(task, bos=False), bare) is None
    assert tokens.bos_fault(task, tokenizer) is None
    assert tokens.bos_warning(task, bare) is None  # the fault says it


@pytest.mark.parametrize("architecture", toy.ARCHITECTURES)
def test_padding_on_the_right_moves_no_logit(architecture, load, scored) -> None:
    assert int(scored.end.min()) + 1 < scored.clean.shape[1]
    assert tokens.padding_error(load(architecture), scored) < 2e-6
