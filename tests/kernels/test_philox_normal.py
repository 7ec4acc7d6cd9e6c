"""Normal numbers by one kernel: the reference's, which has the known answers, whatever is drawn beside them."""

from __future__ import annotations

import pytest
import torch

from circuits.engine import philox
from circuits.engine.philox import LOW, NoiseStream
from kernels import philox_normal as module
from kernels.philox_normal import philox_normal

STREAMS = [NoiseStream("attn.hook_z", 3, 0), NoiseStream("hook_embed", 0, LOW), NoiseStream("hook_mlp_out", LOW, 5)]
WORDS = torch.tensor([stream.counter for stream in STREAMS])
KEY = torch.cat([philox.keys(-3, ["a", "ü"]), torch.tensor([[0, LOW, LOW], [0, LOW, 0]])], 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("components", [1, 3, 4, 5, 1027])
def test_it_draws_what_the_reference_draws(components) -> None:
    found = philox_normal(KEY, WORDS, components)
    expected = philox.normal(KEY, STREAMS, components, torch.float32)
    assert (found.shape, found.dtype) == ((3, 5, components), torch.float32)
    assert float((found - expected).abs().max()) < 1e-6 and float(expected.abs().max()) > 0.1


@pytest.mark.slow
def test_what_is_drawn_beside_them_changes_no_bit(monkeypatch) -> None:
    whole = philox_normal(KEY, WORDS, 41)
    assert torch.equal(philox_normal(KEY[:, [4, 1]], WORDS[1:], 41), whole[1:][:, [4, 1]])
    assert torch.equal(philox_normal(KEY, WORDS, 6), whole[..., :6])
    monkeypatch.setattr(module, "BLOCK", 16)
    assert torch.equal(philox_normal(KEY, WORDS, 100)[..., :41], whole)


@pytest.mark.parametrize(("streams", "prompts", "components"), [(0, 2, 5), (2, 0, 5), (2, 2, 0)])
def test_nothing_is_drawn_for_nothing(streams, prompts, components) -> None:
    assert philox_normal(KEY[:, :prompts], WORDS[:streams], components).shape == (streams, prompts, components)


def test_it_draws_on_gpus_alone() -> None:
    """Not in the interpreter, which is slower than the reference."""
    assert module.runs_on(torch.device("cuda", 1))
    assert not module.runs_on(torch.device("cpu")) and not module.runs_on(torch.device("meta"))


def test_other_words_are_refused() -> None:
    with pytest.raises(ValueError, match=r"key is torch.int32 \[2, 5\]; pass int64 \[2, 5\]"):
        philox_normal(KEY.int(), WORDS, 4)
    with pytest.raises(ValueError, match=r"streams is torch.int64 \[3, 2\]; pass int64 \[3, 3\]"):
        philox_normal(KEY, WORDS[:, :2], 4)
