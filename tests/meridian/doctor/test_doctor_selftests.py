"""Self-tests without labels: scores against brute force, against uniform attention, and on a planted model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from circuits import models, tasks
from circuits import study as studies
from circuits.circuit import head
from circuits.measure import Plan
from circuits.measurements import attention
from circuits.study import Study
from meridian import doctor
from meridian.doctor import parity, rates, selftests
from results_io import UserError
from tests.circuits import toy

SIZES = {"evaluation": 16, "held_out": 4, "discovery": 4, "reference": 150}
SEQUENCES, LENGTH = 3, 10


@pytest.fixture(scope="module")
def pocket() -> Study:
    settings = {"name": "pocket", "kind": "embedded", "path": "pocket", "device": "cpu", "dtype": "float32"}
    model = models.load(settings)
    return studies.prepare(model, tasks.get("ioi"), SIZES, 0, toy.ENGINE, settings=toy.SETTINGS)


def by_hand(study: Study, settings) -> dict[str, dict]:
    """Each score one sequence, head and position at a time, from Hugging Face's own attention on the untouched weights."""
    plain = AutoModelForCausalLM.from_pretrained(
        models.EMBEDDED / "pocket", attn_implementation="eager", dtype=torch.float64
    )
    tokens = attention._repeated_tokens(replace(study, settings={"repeated_tokens": settings}))
    with torch.no_grad():
        patterns = plain.eval()(tokens, output_attentions=True).attentions
    length, found = settings["length"], {name: {} for name in selftests.SCORES}
    seen = {"previous_token": -1, "duplicate_token": -length, "induction": -length + 1}
    for node in study.model.heads:
        for name, back in seen.items():
            values = [
                float(patterns[node.layer][sequence, node.index, query, query + back])
                for sequence in range(len(tokens))
                for query in range(1 + length, 1 + 2 * length)
            ]
            found[name][node] = sum(values) / len(values)
    return found


@pytest.mark.slow
def test_scores_and_ranking_are_those_of_brute_force(pocket) -> None:
    expected = by_hand(pocket, {"seed": 0, "length": LENGTH, "sequences": SEQUENCES})
    found = selftests.repeated_scores(pocket, LENGTH, SEQUENCES, SEQUENCES)
    for name in selftests.SCORES:
        assert list(found[name].values()) == pytest.approx(list(expected[name].values()), abs=1e-6)
        ranked, own = (
            sorted(pocket.model.heads, key=lambda node, of=of: -of[node]) for of in (expected[name], found[name])
        )
        assert own[: selftests.SHOWN] == ranked[: selftests.SHOWN]


@pytest.mark.slow
def test_chunks_are_weighted_by_their_sequences(pocket) -> None:
    whole = selftests.repeated_scores(pocket, LENGTH, 3, 2)
    first, second = (
        by_hand(pocket, {"seed": seed, "length": LENGTH, "sequences": count}) for seed, count in ((0, 2), (1, 1))
    )
    for node in pocket.model.heads:
        expected = (2 * first["induction"][node] + second["induction"][node]) / 3
        assert whole["induction"][node] == pytest.approx(expected, abs=1e-6)


def test_the_report_ranks_all_heads(pocket) -> None:
    tests = selftests.run(pocket, None)
    assert tests.length == selftests.length_for(pocket)
    scores = selftests.repeated_scores(pocket, tests.length, tests.sequences, tests.sequences)
    for ranking in tests.rankings:
        values = sorted(scores[ranking.score].values(), reverse=True)[: selftests.SHOWN]
        assert ranking.values == pytest.approx(values)
        assert ranking.uniform == selftests.uniform_score(tests.length)
    assert tests.behaviour.prompts == 16
    assert tests.behaviour.present
    assert tests.behaviour.accuracy > 0.9


def test_heads_that_attend_to_all_alike_score_what_uniform_attention_does(tmp_path, tokenizer) -> None:
    built = toy.build("gpt2")
    with torch.no_grad():
        for block in built.transformer.h:  # queries of nothing
            block.attn.c_attn.weight[:, : toy.D_MODEL] = 0
            block.attn.c_attn.bias[: toy.D_MODEL] = 0
    model = toy.load(toy.save(built, Path(tmp_path) / "gpt2"))
    study = studies.prepare(model, tasks.get("ioi"), SIZES, 0, toy.ENGINE, settings=toy.SETTINGS)
    tests = selftests.run(study, None)
    assert tests.length == (toy.N_POSITIONS - 1) // 2 == 23
    assert tests.rankings[0].uniform == pytest.approx(sum(1 / n for n in range(25, 48)) / 23)
    for ranking in tests.rankings:
        assert ranking.values == pytest.approx([ranking.uniform] * selftests.SHOWN, rel=1e-5)


def test_facts_about_scores_and_heads_that_do_not_exist_are_refused(pocket) -> None:
    for facts, message in (
        (
            {"copying": {"top": 1, "heads": ["L0H0"]}},
            r"self_tests.copying is not a score; use previous_token, duplicate_tok",
        ),
        ({"induction": {"top": 1, "heads": ["L0H0", "L0H1"]}}, r"induction.top=1 has no room for 2 heads"),
        ({"induction": {"top": 5, "heads": ["5.5"]}}, r"names '5.5', which is not a head; write one as L4H11"),
        ({"induction": {"top": 5, "heads": ["L9H0"]}}, r"L9H0 is outside model pocket"),
    ):
        with pytest.raises(UserError, match=message):
            selftests.run(pocket, facts)


def test_a_fact_is_met_inside_its_top_and_missed_below() -> None:
    ranked = [head(0, index) for index in (3, 1, 0, 2)]
    fact = selftests.Expectation("induction", 2, ("L0H1", "L0H3"), ())
    assert selftests._checked(fact, ranked).met
    missed = selftests._checked(replace(fact, heads=("L0H1", "L0H0", "L0H2")), ranked)
    assert missed.missing == ("L0H0", "L0H2")


@pytest.mark.parametrize(("logit_diff", "error", "present"), [(1.0, 0.5, True), (1.0, 0.52, False), (-3.0, 0.1, False)])
def test_the_task_is_done_if_the_difference_is_above_its_error(logit_diff, error, present) -> None:
    behaviour = selftests.Behaviour(20, 0.9, logit_diff, error, 0.0)
    assert behaviour.present is present
    assert behaviour.sentence == f"the model {'does' if present else 'does not do'} the task"


@pytest.mark.slow
def test_a_planted_model_is_built_in_memory_and_healthy(monkeypatch) -> None:
    monkeypatch.setattr(rates, "SECONDS", 0.0)
    settings = {"name": "planted/sound", "kind": "planted", "variant": "sound", "seed": 0, "device": "cpu"}
    report = doctor.examine_model(Plan(settings, tasks.get("ioi"), SIZES, 0, toy.SETTINGS, toy.ENGINE))
    assert report.healthy
    assert report.parity.verdict == parity.SAME
    assert report.self_tests.behaviour.accuracy == 1.0
    assert report.self_tests.behaviour.sentence == "the model does the task"
    assert not report.estimate.assumed
    assert report.architecture.kind == "planted"
