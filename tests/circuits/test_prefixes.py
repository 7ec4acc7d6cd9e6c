"""Distinct prefixes of prompts, against sets of tuples."""

from __future__ import annotations

import pytest
import torch

from circuits.engine import prefixes
from circuits.engine.prefixes import Prefixes


@pytest.fixture
def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of few kinds, so that many beginnings are shared, and ends; one prompt is the beginning of another."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 3, (30, 6), generator=generator)
    end = torch.randint(1, 6, (30,), generator=generator)
    tokens[1], end[0], end[1] = tokens[0], 2, 5
    return tokens, end


def words(tokens: torch.Tensor, end: torch.Tensor) -> list[list[tuple[int, ...]]]:
    """The prefix that ends at each position; after the end, the whole prompt."""
    return [
        [tuple(row[: min(at, int(last)) + 1]) for at in range(len(row))]
        for row, last in zip(tokens.tolist(), end, strict=True)
    ]


def test_numbers_are_equal_where_prefixes_are(prompts) -> None:
    numbers, place = prefixes.number(*prompts)
    named = dict(zip(numbers.flatten().tolist(), [prefix for row in words(*prompts) for prefix in row], strict=True))
    assert set(named) == set(range(len(place)))
    assert [[named[n] for n in row] for row in numbers.tolist()] == words(*prompts)
    assert len(set(named.values())) == len(named)
    assert [prompts[1][at // 6] >= at % 6 for at in place.tolist()] == [True] * len(place)  # none is padding
    assert numbers.flatten()[place].tolist() == list(range(len(place)))


def test_each_chain_holds_its_own_prefixes_once(prompts) -> None:
    tokens, end = prompts
    rows = torch.tensor([[0, 1, 2], [3, 3, 4], [29, 0, 1]])
    numbers, _ = prefixes.number(tokens, end)
    seen = Prefixes.of(numbers[rows], end[rows])
    every = words(tokens, end)
    for chain, own in enumerate(rows.tolist()):
        distinct = {prefix for row in own for prefix in every[row]}
        assert int(seen.of_token[chain].max()) + 1 == len(distinct)
    assert seen.prefix.shape[1] == max(len({prefix for row in own for prefix in every[row]}) for own in rows.tolist())
    assert torch.equal(seen.spread(seen.prefix).reshape(numbers[rows].shape), numbers[rows])
    assert torch.equal(seen.last(seen.prefix).reshape(rows.shape), numbers[rows, end[rows]])
    assert torch.equal(seen.collect(numbers[rows].flatten(0, 1)), seen.prefix)
    assert torch.equal(seen.before_end, torch.arange(6) <= end[rows].flatten()[:, None])


def test_what_is_collected_comes_from_a_place_that_is_no_padding(prompts) -> None:
    """At padding, attention sees more than the prefix."""
    tokens, end = prompts
    rows = torch.arange(30).reshape(5, 6)
    numbers, _ = prefixes.number(tokens, end)
    seen = Prefixes.of(numbers[rows], end[rows])
    for chain, own in enumerate(rows.tolist()):
        for at in seen.place[chain].tolist():
            assert at % 6 <= int(end[own[at // 6]])
