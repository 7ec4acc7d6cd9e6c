"""Patching across checkpoints: the engine in both backends against plain Hugging Face with heads' outputs exchanged."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from circuits import models
from circuits.circuit import Node
from results_io import UserError
from suites.drift.cross_checkpoint import CrossCheckpoint, NextTokenQuestion

POCKET = {"kind": "embedded", "name": "pocket", "path": "pocket", "device": "cpu", "dtype": "float32"}
TEXTS = (
    "The capital of France is",
    "The opposite of big is",
    "At the zoo the ring is red, the coin is blue and the map is",
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """(settings of A, of B): pocket, and a copy in which every weight but the embeddings is disturbed."""
    folder = tmp_path_factory.mktemp("copy") / "disturbed"
    plain, tokenizer = models.load_plain(POCKET, models.identify(POCKET))
    changed, generator = copy.deepcopy(plain), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in changed.named_parameters():
            if ".h." in name:
                size = parameter.std() if parameter.numel() > 1 else parameter.abs()
                parameter += 0.2 * size * torch.randn(parameter.shape, generator=generator)
    changed.save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return POCKET, {"kind": "local", "name": "disturbed", "path": str(folder), "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def plain(pair):
    return [models.load_plain(one, models.identify(one)) for one in pair]


@pytest.fixture(scope="module")
def questions(plain):
    tokenizer = plain[0][1]
    found = []
    for number, text in enumerate(TEXTS):
        ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
        found.append(NextTokenQuestion(tuple(ids), 100 + number, 200 + number, str(number)))
    return found


@torch.no_grad()
def inputs(model, ids):
    """What each layer's output projection of attention reads."""
    kept = {}
    handles = [
        block.attn.c_proj.register_forward_hook(lambda module, given, out, layer=layer: kept.update({layer: given[0]}))
        for layer, block in enumerate(model.transformer.h)
    ]
    logits = model(torch.tensor([ids])).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits, kept


@torch.no_grad()
def exchanged(a, b, ids, heads):
    """Logits of B with these heads' outputs of A, by hand: z W_O of each head, before and after."""
    _, read = inputs(a, ids)
    size = b.config.n_embd // b.config.n_head
    handles = []
    for layer in {layer for layer, _ in heads}:

        def swap(module, given, out, layer=layer):
            for _, index in (one for one in heads if one[0] == layer):
                own = slice(index * size, (index + 1) * size)
                before = given[0][..., own] @ module.weight[own]
                out = out - before + read[layer][..., own] @ a.transformer.h[layer].attn.c_proj.weight[own]
            return out

        handles.append(b.transformer.h[layer].attn.c_proj.register_forward_hook(swap))
    logits = b(torch.tensor([ids])).logits[0, -1]
    for handle in handles:
        handle.remove()
    return logits


def difference(logits, question):
    return float(logits[question.said_by_a] - logits[question.said_by_b])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["lens", "fused"])
def test_every_head_alone_is_what_plain_models_give(pair, plain, questions, backend) -> None:
    (a, _), (b, _) = plain
    cross = CrossCheckpoint(*(models.load(one) for one in pair), questions, backend)
    found = cross.restored()
    gap = [difference(inputs(a, q.tokens)[0], q) - difference(inputs(b, q.tokens)[0], q) for q in questions]
    assert found.gap == pytest.approx(gap, abs=2e-3)
    assert np.abs(found.floor).max() < 1e-4
    for place, name in enumerate(found.heads):
        layer, index = divmod(place, 8)
        expected = [
            difference(exchanged(a, b, q.tokens, [(layer, index)]), q) - difference(inputs(b, q.tokens)[0], q)
            for q in questions
        ]
        assert found.effect[place] == pytest.approx(expected, abs=2e-3), name
    assert np.abs(found.effect).max() > 0.05  # there was something to find


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["lens", "fused"])
def test_heads_together_are_no_sum_and_what_plain_models_give(pair, plain, questions, backend) -> None:
    (a, _), (b, _) = plain
    cross = CrossCheckpoint(*(models.load(one) for one in pair), questions, backend)
    heads = [(0, 1), (1, 3), (1, 5), (3, 0)]
    found = cross.together([Node("head", *one) for one in heads])
    expected = [
        difference(exchanged(a, b, q.tokens, heads), q) - difference(inputs(b, q.tokens)[0], q) for q in questions
    ]
    assert found == pytest.approx(expected, abs=2e-3)
    assert cross.together([]) == pytest.approx([0, 0, 0])


@torch.no_grad()
def direct_of(model, ids, question):
    """What each head adds to LD by hand: z W_O of the head, centred as the last norm does, over its scale, times its gain."""
    _, read = inputs(model, ids)
    kept = {}
    handle = model.transformer.ln_f.register_forward_hook(lambda module, given, out: kept.update(x=given[0][0, -1]))
    model(torch.tensor([ids]))
    handle.remove()
    scale = (kept["x"].var(unbiased=False) + model.config.layer_norm_epsilon).sqrt()
    columns = model.lm_head.weight[question.said_by_a] - model.lm_head.weight[question.said_by_b]
    size, found = model.config.n_embd // model.config.n_head, []
    for layer, block in enumerate(model.transformer.h):
        for index in range(model.config.n_head):
            own = slice(index * size, (index + 1) * size)
            out = read[layer][0, -1, own] @ block.attn.c_proj.weight[own]
            found.append(float(((out - out.mean()) / scale * model.transformer.ln_f.weight) @ columns))
    return found


def test_what_each_head_adds_directly_is_what_plain_models_give(pair, plain, questions) -> None:
    cross = CrossCheckpoint(*(models.load(one) for one in pair), questions, "fused")
    found = cross.direct()
    for side, (model, _) in zip("ab", plain, strict=True):
        expected = np.array([direct_of(model, question.tokens, question) for question in questions]).T
        assert found[side] == pytest.approx(expected, abs=2e-3)
        assert np.abs(expected).max() > 0.05
    assert np.abs(found["a"] - found["b"]).max() > 0.02


@pytest.mark.slow
def test_with_the_same_embeddings_the_ceiling_is_all_but_the_last_norm(pair, questions) -> None:
    """Only the blocks were disturbed, so A's outputs in B's run are A's stream, and the logits are A's."""
    found = CrossCheckpoint(*(models.load(one) for one in pair), questions, "lens").restored()
    assert found.ceiling == pytest.approx(found.gap, abs=5e-3)


def test_a_checkpoint_against_itself_has_no_gap(pair, questions) -> None:
    model = models.load(pair[0])
    found = CrossCheckpoint(model, model, questions, "fused").restored()
    assert np.abs(found.gap).max() < 1e-4 and np.abs(found.effect).max() < 1e-4


@pytest.mark.slow
def test_unlike_models_are_refused(pair, questions) -> None:
    planted = models.load(
        {"kind": "planted", "name": "sound", "variant": "sound", "seed": 0, "device": "cpu", "dtype": "float32"}
    )
    with pytest.raises(UserError, match="shapes"):
        CrossCheckpoint(models.load(pair[0]), planted, questions)
    with pytest.raises(UserError, match="no prompt changed"):
        CrossCheckpoint(models.load(pair[0]), models.load(pair[1]), [])


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "passes"), [("lens", 4), ("fused", 0)])
def test_heads_together_run_in_the_backend_that_was_asked_for(pair, questions, backend, passes, monkeypatch) -> None:
    """The bridge runs once for each of the patched and the plain run, in two chunks; not at all in the fused backend."""
    cross = CrossCheckpoint(*(models.load(one) for one in pair), questions, backend)
    whole = cross.together([Node("head", 1, 3), Node("head", 3, 0)])
    counted = []
    run = cross.b.bridge.run_with_hooks
    monkeypatch.setattr(
        cross.b.bridge, "run_with_hooks", lambda *given, **more: counted.append(1) or run(*given, **more)
    )
    monkeypatch.setattr(cross.engine_b, "forward_rows", lambda *given, **more: 2)
    assert cross.together([Node("head", 1, 3), Node("head", 3, 0)]) == pytest.approx(whole, abs=1e-4)
    assert len(counted) == passes and np.abs(whole).max() > 0.01
