"""The causal-tracing reproduction: facts in tokens, which layers are put back, a model whose one state carries everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import yaml

from circuits.circuit import Node
from circuits.embedded.tokenizer import build_tokenizer
from circuits.engine import LensEngine
from circuits.tasks import lexicon
from meridian.experiments import facts
from meridian.experiments import reproduce_causal_tracing as experiment
from meridian.experiments.estimates import PromptSample
from results_io import UserError
from shown_progress import NoProgress
from tests.circuits import gpt2_tokenizer, toy
from tests.commandline import command
from tests.meridian.experiments import reproduced

SETTINGS = reproduced.settings_of("reproduce_causal_tracing")
RELATION = "The capital of {} is"


@pytest.fixture(scope="module")
def capitals(tmp_path_factory):
    """Facts in the embedded models' words."""
    path = tmp_path_factory.mktemp("facts") / "capitals.yaml"
    path.write_text(yaml.safe_dump([{"relation": RELATION, "facts": dict(lexicon.CAPITALS)}]))
    return path


@pytest.fixture(scope="module")
def asked(capitals):
    return facts.tokenized(facts.read(str(capitals)), build_tokenizer(), bos=True)


# --- facts -------------------------------------------------------------------------------------------------------


def test_the_shipped_facts_are_many_and_stand_in_their_prompts() -> None:
    found = facts.read(None)
    assert len(found) >= 60
    assert len({fact.prompt for fact in found}) == len(found)
    for fact in found:
        assert fact.subject in fact.prompt
        assert "{}" not in fact.prompt
        assert not fact.prompt.endswith(" ")


def test_no_shipped_answer_can_be_copied_from_its_subject() -> None:
    for fact in facts.read(None):
        assert fact.answer.lower() not in fact.subject.lower(), fact
    path = gpt2_tokenizer.merges()
    if path is None:
        pytest.skip("no file of GPT-2's merges")
    tokenizer = gpt2_tokenizer.build(path)
    for one in facts.tokenized(facts.read(None), tokenizer, bos=False):
        said = {tokenizer.decode([one.ids[place]]).strip().lower() for place in one.subject}
        assert tokenizer.decode([one.answer]).strip().lower() not in said, one.fact


def test_positions_of_the_subject_in_gpt2_s_tokens() -> None:
    path = gpt2_tokenizer.merges()
    if path is None:
        pytest.skip("no file of GPT-2's merges")
    tokenizer = gpt2_tokenizer.build(path)
    found = facts.tokenized(facts.read(None), tokenizer, bos=False)
    assert len(found) == len(facts.read(None))
    for one in found:
        inside = tokenizer.decode([one.ids[place] for place in one.subject])
        assert inside.strip() == one.fact.subject
        assert one.subject == tuple(range(one.subject[0], one.subject[-1] + 1))
        assert tokenizer.decode(list(one.ids)) == one.fact.prompt
        assert one.fact.answer.startswith(tokenizer.decode([one.answer]).strip())


def test_prompts_differ_from_their_twins_in_the_subject_alone(asked) -> None:
    prompts = facts.prompt_set(asked, 680)
    for row, one in enumerate(asked):
        differ = (prompts.clean[row] != prompts.corrupted[row]).nonzero()[:, 0].tolist()
        assert tuple(differ) == one.subject
        assert int(prompts.positions[facts.SUBJECT_LAST][row]) == one.subject[-1] == 4  # after <bos> The capital of
        assert int(prompts.end[row]) == len(one.ids) - 1 == 5


def test_facts_with_unknown_words_are_left_out() -> None:
    assert facts.tokenized(facts.read(None), build_tokenizer(), bos=True) == []


def test_bos_that_the_tokenizer_has_not_is_refused() -> None:
    tokenizer = build_tokenizer()
    tokenizer.bos_token = None
    with pytest.raises(UserError, match=r"this tokenizer has none; run with experiment\.bos=false"):
        facts.tokenized(facts.read(None), tokenizer, bos=True)
    assert facts.tokenized(facts.read(None), tokenizer, bos=False) == []


def test_a_file_that_holds_no_facts_is_refused(tmp_path) -> None:
    (tmp_path / "a.yaml").write_text("- relation: no place for a subject\n  facts: {a: b}\n")
    for path in (tmp_path / "a.yaml", tmp_path / "none.yaml"):
        with pytest.raises(UserError, match="is no file of facts"):
            facts.read(str(path))


# --- what is restored --------------------------------------------------------------------------------------------


def test_windows_are_those_of_the_paper() -> None:
    """Layers max(0, l - 5) to l + 4 of a window of 10; the state that leaves layer l enters layer l + 1."""
    assert experiment.restored("state", 15, 48, 10) == (Node("residual", 16),)
    layers = [node.layer for node in experiment.restored("mlp", 15, 48, 10)]
    assert layers == list(range(10, 20))
    assert [node.layer for node in experiment.restored("attention", 2, 48, 10)] == list(range(7))
    assert [node.layer for node in experiment.restored("mlp", 46, 48, 10)] == list(range(41, 48))
    assert [node.layer for node in experiment.restored("mlp", 5, 48, 3)] == [4, 5, 6]


def test_every_draw_has_the_same_runs_under_another_noise() -> None:
    first, second = (experiment.variants(12, SETTINGS, draw) for draw in (0, 1))
    assert [v.name for v in first] == [v.name for v in second]
    assert len(first) == 2 + 11 + 12 + 12
    assert first[0] == second[0]
    noise = {v.interventions[0] for v in first[1:]}
    assert len(noise) == 1
    assert noise != {v.interventions[0] for v in second[1:]}


def test_effects_by_hand() -> None:
    draws = [
        {"clean": [0.9, 0.5], "noise": [0.1, 0.1], "state 0": [0.9, 0.3], "mlp 0": [0.1, 0.1], "mlp 1": [0.2, 0.2]},
        {"clean": [0.9, 0.5], "noise": [0.3, 0.1], "state 0": [0.5, 0.5], "mlp 0": [0.3, 0.1], "mlp 1": [0.3, 0.4]},
    ]
    assert experiment.total_effect(draws) == pytest.approx([0.7, 0.4])
    assert experiment.indirect_effects(draws, "state", 2) == pytest.approx(np.array([[0.5, 0.3]]))
    assert experiment.indirect_effects(draws, "mlp", 2) == pytest.approx(np.array([[0, 0], [0.05, 0.2]]))


def test_rows_by_hand() -> None:
    """12 layers: the published layer 15 of 48 is the fourth; states peak at 7, MLPs at 5, each with numbers of its own."""
    draw = {"clean": 0.9, "noise": 0.1}
    draw |= {f"state {layer}": 0.3 - 0.01 * abs(layer - 7) for layer in range(11)}
    draw |= {f"mlp {layer}": 0.25 - 0.02 * abs(layer - 5) for layer in range(12)}
    draw |= {f"attention {layer}": 0.12 + 0.003 * layer for layer in range(12)}
    sample = PromptSample(tuple(map(str, range(8))), resamples=100)
    reproduced.assert_rows(
        experiment.rows([{name: [value] * 8 for name, value in draw.items()}], 12, sample, SETTINGS),
        [
            ("P(answer), clean", 0.9, None),
            ("total effect (ATE)", 0.8, 0.186),
            ("AIE of the state that leaves layer 4", 0.17, 0.087),
            ("largest AIE of a state: layer 7", 0.2, 0.087),
            ("layer of the largest AIE of a state", 7, "15 of 48"),
            ("largest AIE of MLPs: window around layer 5", 0.15, 0.066),
            ("AIE of attention, the same window (5)", 0.035, 0.016),
            ("MLPs minus attention there", 0.115, pytest.approx(0.05)),
        ],
    )


# --- a model whose one state carries everything ------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_state(tmp_path_factory, asked):
    """An engine whose first layer does nothing at all: what leaves it at the subject is all that is known of it."""
    network = toy.build("gpt2")
    with torch.no_grad():
        for part in (network.transformer.h[0].attn.c_proj, network.transformer.h[0].mlp.c_proj):
            part.weight.zero_()
            part.bias.zero_()
    model = toy.load(toy.save(network, tmp_path_factory.mktemp("one") / "state"))
    return LensEngine(model, facts.subjects(asked))


def test_where_one_state_carries_everything_its_effect_is_the_total_one(one_state, asked) -> None:
    prompts = facts.prompt_set(asked, toy.VOCABULARY)
    made = [v for v in experiment.variants(3, SETTINGS, 0) if v.name.partition(" ")[0] in ("clean", "noise", "state")]
    found = experiment.traced(one_state, prompts, made, NoProgress())
    total, states = experiment.total_effect([found]), experiment.indirect_effects([found], "state", 3)
    assert np.abs(total).max() > 1e-4  # a hundred times the tolerance of the next line
    assert states[0] == pytest.approx(total, abs=1e-6)
    assert np.abs(states[1] - total).max() > 1e-4  # one layer later others have read the noise


def test_the_noise_is_three_deviations_of_the_subjects_embeddings(one_state, asked) -> None:
    reference = one_state.reference
    _, deviation = reference.pooled("hook_embed")
    rows = torch.stack([one_state.model.embedding[one.ids[4]] for one in asked])
    assert deviation.numpy() == pytest.approx(rows.std(0).numpy(), rel=1e-4)


# --- whole runs --------------------------------------------------------------------------------------------------


def test_few_known_facts_are_not_the_published_case(asked) -> None:
    chosen, (sentence,) = experiment.choose_facts(asked, [1, 2], "m")
    assert len(chosen) == len(asked)
    assert sentence.startswith("m knows 2 of the 20 facts, so")
    chosen, (sentence,) = experiment.choose_facts(asked, range(12), "m")
    assert len(chosen) == 12
    assert sentence == "m knows 12 of the 20 facts."


@pytest.mark.slow
def test_pocket_s_capitals(tmp_path, capitals) -> None:
    """It knows them all; noise takes much of that away."""
    outcome, document = reproduced.reproduce(
        "reproduce_causal_tracing",
        tmp_path,
        "model=pocket",
        f"experiment.facts={capitals}",
        "experiment.bos=true",
        "experiment.noise.draws=2",
        "experiment.bootstrap.resamples=100",
    )
    assert "pocket knows 20 of the 20 facts." in outcome.said
    assert set(document["data"]) == {"known", "draw 0", "draw 1"}
    rows = {row["quantity"]: row["ours"]["value"] for row in document["rows"]}
    assert len(rows) == 8
    assert all(map(math.isfinite, rows.values()))
    assert rows["P(answer), clean"] > 0.9
    assert rows["total effect (ATE)"] > 0.2


@pytest.mark.slow
def test_a_model_that_cannot_read_the_facts_is_refused(tmp_path) -> None:
    outcome = command("experiment=reproduce_causal_tracing", "model=pocket", f"results={tmp_path}")
    assert outcome.code == 2
    assert "knows the words of 0 facts" in outcome.errors
