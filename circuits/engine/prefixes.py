"""The distinct prefixes of a batch of prompts: what a causal model computes at a token depends only on its prefix.

Prompts of a template share their beginnings, and padding is not a prefix. What acts on single tokens (norms, projections,
MLPs) runs once for each distinct prefix; attention runs on whole prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def number(
    tokens: Int[Tensor, "prompt position"], end: Int[Tensor, " prompt"]
) -> tuple[Int[Tensor, "prompt position"], Int[Tensor, " prefix"]]:
    """(number of the prefix that ends at each position, flat index of the first token at which each prefix ends).

    Numbers are consecutive from 0. Positions after a prompt's end have the number of its end.
    """
    prompts, length = tokens.shape
    numbers = torch.zeros_like(tokens)
    before = tokens.new_zeros(prompts)
    count = 0
    for position in range(length):
        pair = before * (int(tokens.max()) + 1) + tokens[:, position]
        before = pair.unique(return_inverse=True)[1]
        numbers[:, position] = before + count
        count += int(before.max()) + 1
    past = torch.arange(length, device=tokens.device) > end[:, None]
    numbers = numbers.where(~past, numbers.gather(1, end[:, None]))
    numbers = numbers.unique(return_inverse=True)[1]
    place = tokens.new_full((int(numbers.max()) + 1,), prompts * length)
    where = torch.arange(prompts * length, device=tokens.device)
    return numbers, place.scatter_reduce(0, numbers.flatten(), where, "amin")


@dataclass(frozen=True, eq=False)
class Prefixes:
    """The distinct prefixes of each chain's prompts. Chains with fewer prefixes are padded with their first one.

    `prefix` is the number of each prefix. `of_token` says which of a chain's prefixes ends at a token. `place` is a token (row
    times length plus position) at which a prefix ends. `at_end` is the prefix that equals the whole prompt.
    """

    prefix: Int[Tensor, "chain node"]
    of_token: Int[Tensor, "chain token"]
    place: Int[Tensor, "chain node"]
    at_end: Int[Tensor, "chain row"]
    ends: Int[Tensor, " chain*row"]
    length: int

    @classmethod
    def of(cls, numbers: Int[Tensor, "chain row position"], end: Int[Tensor, "chain row"]) -> Prefixes:
        """From the number of the prefix that ends at each position, and the positions at which prompts end."""
        chains, _, length = numbers.shape
        # a stable sort puts the first token of a prefix first, a real token since padding comes after the end
        ordered, order = numbers.flatten(1).sort(dim=1, stable=True)
        is_new = torch.ones_like(ordered, dtype=torch.bool)
        is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        node = is_new.cumsum(1) - 1
        of_token = torch.empty_like(order).scatter_(1, order, node)
        place = order.new_zeros(chains, int(node.max()) + 1)
        chain = torch.arange(chains, device=order.device)[:, None].expand_as(node)
        place[chain[is_new], node[is_new]] = order[is_new]
        at_end = of_token.unflatten(1, (-1, length)).gather(2, end[..., None])[..., 0]
        return cls(numbers.flatten(1).gather(1, place), of_token, place, at_end, end.flatten(), length)

    def to(self, device: torch.device) -> Prefixes:
        """The same prefixes on `device`."""
        return replace(
            self, **{name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        )

    @property
    def before_end(self) -> Bool[Tensor, "prompt position"]:
        """True at positions that are not padding."""
        return torch.arange(self.length, device=self.ends.device) <= self.ends[:, None]

    def spread(self, value: Tensor) -> Tensor:
        """[chain, node, ...] as rows of prompts: [chain * row, position, ...]."""
        return _taken(value, self.of_token).unflatten(0, (-1, self.length))

    def collect(self, value: Tensor) -> Tensor:
        """[chain * row, position, ...] at the distinct prefixes: [chain, node, ...]."""
        chains = len(self.place)
        return _taken(value.flatten(0, 1).unflatten(0, (chains, -1)), self.place).unflatten(0, (chains, -1))

    def last(self, value: Tensor) -> Tensor:
        """[chain, node, ...] at the ends of the prompts: [chain * row, ...]."""
        return _taken(value, self.at_end)


def _taken(value: Tensor, index: Int[Tensor, "chain taken"]) -> Tensor:
    """[chain, of, ...] at each chain's own indices, with chains concatenated."""
    chains, count = value.shape[:2]
    offset = torch.arange(chains, device=index.device)[:, None] * count
    return value.flatten(0, 1).index_select(0, (index + offset).flatten())
