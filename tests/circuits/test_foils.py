"""Foils that the model chooses: its most probable other word after the corrupted prompt, against brute force."""

from __future__ import annotations

import torch

from circuits import foils, models
from circuits.tasks import file
from circuits.tasks.file import Options, PromptTokenizer, pairs
from tests.circuits.file_rows import FRAMES, ioi_rows


def without_foils(count: int) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "wrong"} for row in ioi_rows(count, FRAMES[:2])]


def test_a_foil_is_the_most_probable_word_after_the_corrupted_prompt_that_is_no_answer(
    folder, plain, tokenizer
) -> None:
    settings = {"name": "toy", "kind": "local", "path": str(folder("gpt2")), "device": "cpu", "dtype": "float32"}
    choose = foils.corrupted_top(settings, models.identify(settings))
    rows = without_foils(14)
    kept, _ = pairs.read(file.read(rows), PromptTokenizer(tokenizer, Options()))
    found = choose(kept)
    assert len(found) == 14 and len(set(found)) > 1
    for pair, foil in zip(kept, found, strict=True):
        logits = plain("gpt2")(torch.tensor([pair.corrupted])).logits[0, -1]
        allowed = [token for token in range(len(tokenizer)) if token not in tokenizer.all_special_ids]
        allowed = [token for token in allowed if tokenizer.convert_ids_to_tokens(token) not in pair.answers]
        best = max(allowed, key=lambda token: float(logits[token]))
        assert tokenizer.convert_tokens_to_ids(foil) == best


def test_a_task_without_foils_is_built_with_those_of_the_model(folder, tokenizer) -> None:
    settings = {"name": "toy", "kind": "local", "path": str(folder("gpt2")), "device": "cpu", "dtype": "float32"}
    choose = foils.corrupted_top(settings, models.identify(settings))
    task = file.load(without_foils(40), tokenizer, foils=choose)
    assert all(len(example.wrong) == 1 for example in task.given["evaluation"])
    assert "task.foil=corrupted_top" in "".join(task.source.notes)
    again = file.load(without_foils(40), tokenizer, foils=choose)
    assert again == task
