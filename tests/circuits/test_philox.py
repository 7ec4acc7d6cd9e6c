"""Philox4x32-10: the published known answers, the laws of what is drawn from it, and what must not change a number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import code_digest
from circuits.engine import philox
from circuits.engine.philox import LOW, NoiseStream
from results_io import UserError
from tests.circuits import philox_loop

KNOWN_ANSWERS = [  # Random123, tests/kat_vectors, philox4x32 of 10 rounds: counter, key, result
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
HOOK = "blocks.3.attn.hook_z"
IDS = [f"prompt {number}" for number in range(40)]


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


def drawn(ids=IDS, hooks=(HOOK,), draws=(0,), components=10, seed=0, dtype=torch.float64, device="cpu"):
    streams = [NoiseStream.of_hook(hook, draw) for hook in hooks for draw in draws]
    return philox.normal(philox.keys(seed, ids, device), streams, components, dtype)


# --- words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_the_published_known_answers(counter, key, expected) -> None:
    found = philox.words(*(tuple(map(torch.tensor, integers(text))) for text in (counter, key)))
    assert tuple(map(int, found)) == integers(expected)
    assert philox_loop.philox(integers(counter), integers(key)) == integers(expected)


def test_words_are_those_of_python_integers_whatever_broadcasts() -> None:
    rng = np.random.default_rng(0)
    edges = [0, 1, LOW, 2**31, 2**31 - 1]
    values = [np.append(rng.integers(0, 2**32, 95), edges) for _ in range(6)]
    c0, c1, c2, c3, k0, k1 = (torch.tensor(value) for value in values)
    found = torch.stack(philox.words((c0, c1, c2, c3), (k0, k1))).T.tolist()
    assert found == [list(philox_loop.philox(tuple(row[:4]), tuple(row[4:]))) for row in np.array(values).T.tolist()]
    wide = philox.words((c0[None, :], c1[:3, None], c2[:3, None], c3[:3, None]), (k0[:3, None], k1[:3, None]))
    for row in range(3):
        same = [value[row].expand(100) for value in (c1, c2, c3, k0, k1)]
        alone = philox.words((c0, *same[:3]), tuple(same[3:]))
        assert all(torch.equal(one[row], other) for one, other in zip(wide, alone, strict=True))


def test_each_bit_of_a_word_is_set_half_the_time_and_words_are_spread_evenly() -> None:
    count, zero = 2**18, torch.zeros(1, dtype=torch.long)
    found = torch.stack(philox.words((torch.arange(count), zero, zero, zero), (zero, zero)))
    bits = torch.stack([(found >> bit & 1).double().mean(1) for bit in range(32)])
    assert float((bits - 0.5).abs().max()) < 4.5 * 0.5 / math.sqrt(count)
    counts = np.bincount((found >> 24).flatten().numpy(), minlength=256)
    assert 1e-3 < stats.chisquare(counts).pvalue < 1 - 1e-3


# --- normal numbers ---------------------------------------------------------------------------------------------


def test_a_million_numbers_are_standard_normal() -> None:
    """Bounds: four standard errors of mean, SD, skew and kurtosis, and p > .001 of Kolmogorov and Smirnov."""
    values = drawn([f"{number}" for number in range(1000)], components=1000).flatten().numpy()
    n = len(values)
    assert n == 10**6
    assert abs(values.mean()) < 4 / math.sqrt(n)
    assert abs(values.std() - 1) < 4 / math.sqrt(2 * n)
    assert abs(stats.skew(values)) < 4 * math.sqrt(6 / n)
    assert abs(stats.kurtosis(values)) < 4 * math.sqrt(24 / n)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert 4.3 < np.abs(values).max() < 6.8  # 6.77 is as far as 32 bits reach
    beyond = (np.abs(values) > 3).mean()
    assert abs(beyond / 0.0026998 - 1) < 4 / math.sqrt(2700)


@pytest.mark.parametrize("between", ["prompts", "layers", "draws", "seeds", "kinds", "components", "words"])
def test_neighbours_are_independent(between) -> None:
    """Correlation of values, and of squares, within four standard errors."""
    n = 250_000
    pairs = {
        "prompts": lambda: drawn(["a", "b"], components=n)[0],
        "layers": lambda: drawn(["a"], [HOOK, "blocks.4.attn.hook_z"], components=n)[:, 0],
        "draws": lambda: drawn(["a"], draws=(0, 1), components=n)[:, 0],
        "seeds": lambda: [drawn(["a"], components=n, seed=seed)[0, 0] for seed in (0, 1)],
        "kinds": lambda: drawn(["a"], [HOOK, "blocks.3.hook_mlp_out"], components=n)[:, 0],
        "components": lambda: drawn(["a"], components=4 * n)[0, 0].view(-1, 4)[:, 1:3].T,
        "words": lambda: drawn(["a"], components=4 * n)[0, 0].view(-1, 4)[:, :2].T,
    }
    one, other = (value.numpy() for value in pairs[between]())
    assert not np.array_equal(one, other)
    for first, second in ((one, other), (one**2, other**2), (one[1:], other[:-1])):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(n)


@pytest.mark.parametrize("components", [1, 3, 4, 5, 37])
def test_every_component_is_the_one_of_the_law(components) -> None:
    hooks, draws = ("hook_embed", HOOK, "blocks.0.hook_mlp_out"), (0, 7)
    found = drawn(["a", "ü"], hooks, draws, components, seed=-3)
    for number, (hook, draw) in enumerate((hook, draw) for hook in hooks for draw in draws):
        for row, name in enumerate(("a", "ü")):
            expected = philox_loop.normal(-3, name, hook, draw, components)
            np.testing.assert_allclose(found[number, row], expected, rtol=1e-12, atol=1e-12)


def test_float32_is_float64_rounded_once() -> None:
    assert torch.equal(drawn(components=1001).float(), drawn(components=1001, dtype=torch.float32))


# --- what changes nothing ---------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("at_once", [1, 7, 300, 2**15])
def test_chunks_batches_order_padding_and_threads_change_no_bit(at_once, dtype, monkeypatch) -> None:
    hooks, draws = (HOOK, "blocks.0.hook_mlp_out"), (0, 1, 2)
    whole = drawn(hooks=hooks, draws=draws, components=101, dtype=dtype)
    monkeypatch.setitem(philox.AT_ONCE, "cpu", at_once)
    assert torch.equal(drawn(hooks=hooks, draws=draws, components=101, dtype=dtype), whole)
    order = np.random.default_rng(0).permutation(len(IDS)).tolist()
    permuted = drawn([IDS[row] for row in order], hooks, draws, 101, dtype=dtype)
    assert torch.equal(permuted, whole[:, order])
    parts = [drawn(IDS[start : start + 7], hooks, draws, 101, dtype=dtype) for start in range(0, len(IDS), 7)]
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(drawn(hooks=hooks[1:], draws=draws[2:], components=101, dtype=dtype)[0], whole[-1])
    assert torch.equal(drawn(hooks=hooks, draws=draws, components=260, dtype=dtype)[..., :101], whole)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert torch.equal(drawn(hooks=hooks, draws=draws, components=101, dtype=dtype), whole)
    finally:
        torch.set_num_threads(threads)


def test_no_value_is_read_while_drawing() -> None:
    """On the meta device, which has shapes and no values: whatever asked for one, or mixed devices, would raise."""
    found = drawn(hooks=(HOOK, "hook_embed"), draws=(0, 1), components=50, dtype=torch.float32, device="meta")
    assert (found.shape, found.device.type, found.dtype) == ((4, len(IDS), 50), "meta", torch.float32)
    key = philox.keys(0, IDS, "meta")
    assert (
        philox.choice(
            key, NoiseStream("donor", 0, 0), torch.ones(len(IDS), dtype=torch.long, device="meta")
        ).device.type
        == "meta"
    )


@pytest.mark.parametrize(("ids", "streams", "components"), [([], 1, 5), (["a"], 0, 5), (["a"], 1, 0)])
def test_nothing_is_drawn_for_nothing(ids, streams, components) -> None:
    found = philox.normal(philox.keys(0, ids), [NoiseStream("kind", 0, 0)] * streams, components, torch.float32)
    assert found.shape == (streams, len(ids), components)


# --- choices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_choices_are_uniform_and_those_of_the_law(count) -> None:
    ids = [str(number) for number in range(20_000)]
    found = philox.choice(philox.keys(5, ids), NoiseStream("donor", 0, 3), torch.full((len(ids),), count))
    assert found[:50].tolist() == [philox_loop.donor(5, one, 3, count) for one in ids[:50]]
    counts = np.bincount(found, minlength=count)
    assert len(counts) == count
    assert count == 1 or 1e-3 < stats.chisquare(counts).pvalue < 1 - 1e-3


def test_no_choice_is_favoured_by_more_than_its_share_of_32_bits() -> None:
    """The extreme words reach the first and the last choice, and each has floor or ceil of 2^32 / n of the words."""
    for count in (3, 100, 4095, 65_537):
        edges = [-(-choice * 2**32 // count) for choice in range(count + 1)]  # the first word of each choice
        sizes = np.diff(edges)
        assert sizes.max() - sizes.min() <= 1 and edges[-1] == 2**32
        for choice in (0, count // 2, count - 1):
            assert edges[choice] * count >> 32 == choice and (edges[choice + 1] - 1) * count >> 32 == choice


# --- names ------------------------------------------------------------------------------------------------------


def test_streams_are_told_apart_by_layer_draw_and_kind() -> None:
    kinds = ("attn.hook_z", "hook_attn_out", "hook_mlp_out", "hook_resid_pre")
    names = ["hook_embed", *(f"blocks.{layer}.{kind}" for layer in range(100) for kind in kinds)]
    counters = {NoiseStream.of_hook(name, draw).counter for name in names for draw in range(4)}
    counters |= {NoiseStream("donor", 0, draw).counter for draw in range(4)}
    assert len(counters) == 4 * (len(names) + 1)
    assert NoiseStream.of_hook("blocks.12.attn.hook_z", 5) == NoiseStream("attn.hook_z", 12, 5)


@pytest.mark.parametrize("draw", [-1, 2**32])
def test_a_draw_that_no_counter_holds_is_refused(draw) -> None:
    with pytest.raises(
        UserError, match=rf"draw {draw} of attn.hook_z has no random numbers; use one from 0 to 4294967295"
    ):
        NoiseStream.of_hook(HOOK, draw)


def test_stored_results_are_those_of_this_generator() -> None:
    """Results and rules keep the digest of the code that draws: what was measured with other draws is stale."""
    for stored in ("measurements", "rules"):
        assert {"circuits/engine/philox.py", "circuits/engine/sources.py"} <= set(code_digest.of_each(stored))
