"""The shipped model does the tasks, loads offline and can be trained again."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from transformers import AutoTokenizer, GPT2LMHeadModel

from circuits.embedded.tokenizer import build_tokenizer
from circuits.tasks import EMBEDDED, TASKS
from meridian.training.export import POCKET, half_precision, save_folder
from meridian.training.run import Run, TrainedShape, TrainingRecipe, build_model, rate_factor
from meridian.training.scoring import last_logits, score

PROMPT = "When Mary and John went to the store, John gave a drink to"
TINY = TrainingRecipe(
    seed=1,
    steps=30,
    documents=32,
    adam_rate=1e-2,
    warm_up=5,
    constant=0.8,
    shape=TrainedShape(layers=1, heads=2, width=48, hidden=48),
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(POCKET)


@pytest.fixture(scope="module")
def model():
    return GPT2LMHeadModel.from_pretrained(POCKET).eval()


@pytest.mark.parametrize("name", EMBEDDED)
def test_pocket_does_each_task_on_unseen_combinations(name, model, tokenizer):
    scores = score(model, tokenizer, TASKS[name], n=200, seed=1)
    assert scores.accuracy >= 0.95
    assert scores.logit_difference > 0


def test_pocket_prefers_the_indirect_object_by_three_logits(model, tokenizer):
    scores = score(model, tokenizer, TASKS["ioi"], n=200, seed=1)
    assert scores.ordered >= 0.95
    assert scores.logit_difference >= 3


def test_pocket_is_small_yet_has_room_for_circuits(model):
    assert sum(path.stat().st_size for path in POCKET.iterdir()) <= 10 * 2**20
    assert model.config.n_layer * model.config.n_head >= 32
    assert next(model.parameters()).dtype == torch.float32


def test_pocket_loads_in_the_transformer_bridge_with_equal_logits(model, tokenizer, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(str(POCKET), device="cpu")
    assert (bridge.cfg.n_layers, bridge.cfg.n_heads, bridge.cfg.d_head) == (4, 8, 24)
    assert bridge.to_single_token(" Mary") == bridge.to_single_token("Mary")
    with torch.no_grad():
        logits = bridge(bridge.to_tokens(PROMPT))[0, -1]
    torch.testing.assert_close(logits, last_logits(model, tokenizer, [PROMPT])[0], atol=1e-4, rtol=0)
    assert bridge.to_string(logits.argmax()) == "Mary"


def test_shipped_tokenizer_is_the_one_that_the_code_builds(tokenizer):
    assert tokenizer.get_vocab() == build_tokenizer().get_vocab()
    ids = tokenizer("from 1732, Mary").input_ids
    assert tokenizer.convert_ids_to_tokens(ids) == ["from", "17", "32", ",", "Mary"]


def test_thirty_steps_lower_the_loss():
    run = Run.start(TINY, build_tokenizer())
    losses = list(run.train())
    assert losses[0] == pytest.approx(math.log(680), abs=0.3)  # knows nothing: uniform over the vocabulary
    assert sum(losses[-5:]) / 5 < losses[0] - 1.0


@pytest.mark.slow
def test_a_resumed_run_takes_the_same_steps(tmp_path):
    tokenizer = build_tokenizer()
    whole = Run.start(TINY, tokenizer)
    expected = list(whole.train())
    interrupted = Run.start(TINY, tokenizer)
    first = list(itertools.islice(interrupted.train(), 13))
    interrupted.save(tmp_path / "checkpoint.pt")
    resumed = Run.resume(tmp_path / "checkpoint.pt", TINY, tokenizer)
    assert first + list(resumed.train()) == expected
    for one, two in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)
    with pytest.raises(ValueError, match="was trained with"):
        Run.resume(tmp_path / "checkpoint.pt", TrainingRecipe(seed=2), tokenizer)


def test_learning_rate_warms_up_holds_and_decays_to_two_percent():
    recipe = TrainingRecipe(steps=1000, warm_up=100, constant=0.15)
    assert rate_factor(0, recipe) == pytest.approx(0.01)
    assert rate_factor(120, recipe) == 1.0
    assert rate_factor(575, recipe) == pytest.approx(0.5)
    assert rate_factor(999, recipe) == pytest.approx(0.02)


def test_saved_half_precision_folder_gives_the_rounded_model(tmp_path):
    tokenizer = build_tokenizer()
    fresh = build_model(TINY.shape, len(tokenizer), seed=0).eval()
    save_folder(fresh, tokenizer, tmp_path, torch.float16)
    loaded = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    rounded = half_precision(fresh)
    torch.testing.assert_close(
        last_logits(loaded, tokenizer, [PROMPT]), last_logits(rounded, tokenizer, [PROMPT]), atol=1e-6, rtol=0
    )
