"""19: fresh prompts are the draws they say, none is run twice, and their numbers are those of the prompts run by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from circuits import prompts as prompt_sets
from circuits.interventions import Recipe, Sweep, Variant, ablate
from circuits.measurements import fresh_prompts
from results_io import UserError
from tests.circuits import toy

SIZE = toy.SIZES["evaluation"]


@pytest.fixture(scope="module")
def data(study):
    return fresh_prompts.measure(study)


def drawn(study, size, seed):
    examples = prompt_sets.draw_examples(study.task, {"evaluation": size}, seed)["evaluation"]
    return prompt_sets.tokenize(study.task, examples, study.model.tokenizer, "evaluation")


@pytest.mark.parametrize(("draw", "size", "seed"), [("42", SIZE, 42), ("123", SIZE, 123), ("pool", 3 * SIZE, 42)])
def test_a_draw_is_that_of_its_seed_with_the_numbers_of_a_run_by_itself(draw, size, seed, data, study) -> None:
    alone = drawn(study, size, seed)
    rows = data["draws"][draw]
    assert [data["prompt_id"][row] for row in rows] == list(alone.ids)
    outside = sorted(set(study.model.heads) - set(study.claim.heads))
    found = study.run(Sweep((Variant("clean"), ablate(outside, Recipe("mean"), "circuit"))), alone).logit_diff
    np.testing.assert_allclose(np.asarray(data["clean"])[rows], found[0], atol=1e-5)
    np.testing.assert_allclose(np.asarray(data["circuit"])[rows], found[1], atol=1e-5)


def test_no_prompt_is_run_twice_and_the_first_seed_shares_the_pool(data, study) -> None:
    assert len(set(data["prompt_id"])) == len(data["prompt_id"]) == len(data["clean"])
    assert set(data["draws"]["42"]) <= set(data["draws"]["pool"])
    assert fresh_prompts.pairs(study) == {"circuits": 2 * len(data["prompt_id"])}
    assert (data["size"], data["unavailable"]) == (SIZE, {})


def test_no_fresh_prompt_is_one_of_discovery_reference_or_held_out(data, study) -> None:
    other = {*study.discovery.ids, *study.engine.reference.prompts.ids}
    other |= {study.prompts.ids[row] for row in study.prompts.rows_of("held_out")}
    assert not other & set(data["prompt_id"])


def test_a_task_with_too_few_prompts_says_so_and_keeps_the_draws_it_can_make(study) -> None:
    few = prompt_sets.draw_examples(study.task, {"evaluation": SIZE + 5}, 0)["evaluation"]
    small = replace(study.task, sample=lambda rng: rng.choice(few), templates=())
    found = fresh_prompts.measure(replace(study, task=small))
    assert len(found["prompt_id"]) <= SIZE + 5
    assert list(found["draws"]) == ["42", "123", "456"]
    assert "distinct evaluation prompts" in found["unavailable"]["pool"]


def test_given_prompts_cannot_be_drawn_anew(study) -> None:
    given = replace(study, task=replace(study.task, given={}))
    found = fresh_prompts.measure(given)
    assert (found["prompt_id"], found["draws"], set(found["unavailable"])) == ([], {}, {"42", "123", "456", "pool"})
    assert fresh_prompts.pairs(given) == {"circuits": 0}


@pytest.mark.parametrize("factor", [0, -1, 1.5])
def test_a_pool_of_no_samples_is_refused(factor) -> None:
    with pytest.raises(UserError, match=r"fresh_prompts\.pool_factor"):
        fresh_prompts.check({"fresh_prompts": {"pool_factor": factor}})
