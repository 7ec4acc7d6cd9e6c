"""Alignment of two prompts of unequal length by filler tokens: where fillers go, or why they do not help.

Patching copies position i of one run into position i of the other, so both need the same positions. Fillers are tokens that the
model reads.

    right   fillers go before the shorter prompt, so that both prompts end at the same position
    spans   fillers go to the left of each differing part, so that the words before and after it correspond too. Differing parts
            are those that roles of both prompts name; elsewhere they follow from the fewest replaced and added tokens
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from circuits.prompts import shared_beginning
from circuits.tasks.file.rows import Span

Tokens = tuple[int, ...]
Place = tuple[int, int]  # number of tokens before it in the first and in the second prompt
Step = tuple[int, int]  # one step of an alignment: how many tokens of each prompt it takes
STEPS: tuple[Step, ...] = ((0, 1), (1, 0), (1, 1))  # a filler in the first, in the second, or a token of both
MOST_PLACES = 40_000  # pairs of tokens that are matched one by one; more would take seconds per row
SEVERAL = 2  # stands for "more than one", since the exact number of alignments does not matter
SEVERAL_WAYS = "differs in length and its tokens can be matched in several ways"
BY_HAND = "name the words that stand for each other in roles and in corrupted_roles, or reword it"


@dataclass(frozen=True)
class PromptSide:
    """One prompt of a pair: its text, its tokens without BOS, and the character spans of its tokens and roles."""

    text: str
    ids: Tokens
    offsets: Sequence[Span]
    roles: Mapping[str, Span]

    def tokens_of(self, role: str) -> range:
        """The tokens that overlap a role's characters; empty if there are none."""
        first, last = self.roles[role]
        found = [place for place, (start, end) in enumerate(self.offsets) if start < last and end > first]
        return range(found[0], found[-1] + 1) if found else range(0)


class Fill(NamedTuple):
    """`count` fillers before the token `place` of a prompt."""

    place: int
    count: int


class AlignedPiece(NamedTuple):
    """Corresponding parts of both prompts: tokens of the clean one, of the corrupted one, and their role, if any."""

    clean: range
    corrupted: range
    role: str | None = None


Fills = tuple[list[Fill], list[Fill]]


def by_right(sides: tuple[PromptSide, PromptSide]) -> Fills:
    """Fillers before the shorter prompt."""
    gap = len(sides[0].ids) - len(sides[1].ids)
    return ([Fill(0, -gap)] if gap < 0 else [], [Fill(0, gap)] if gap > 0 else [])


def by_spans(sides: tuple[PromptSide, PromptSide]) -> Fills | str:
    """Fillers inside each part that differs in length; or why their places are ambiguous or impossible."""
    pieces = _pieces(sides)
    if isinstance(pieces, str):
        return pieces
    fills: Fills = ([], [])
    for piece in pieces:
        found = _of_piece(piece, sides)
        if isinstance(found, str):
            return found
        for own, more in zip(fills, found, strict=True):
            own += more
    return fills


def _pieces(sides: tuple[PromptSide, PromptSide]) -> list[AlignedPiece] | str:
    """Both prompts cut at the roles that both name; or why they cannot be cut there."""
    named = [role for role in sides[0].roles if role in sides[1].roles]
    spans = {(sides[0].tokens_of(role), sides[1].tokens_of(role)): role for role in named}
    pieces, ends = [], (0, 0)
    for (here, there), role in sorted(spans.items(), key=lambda one: one[0][0].start):
        if here.start < ends[0] or there.start < ends[1]:
            return f"has the role {role} inside another one, or in another order in the corrupted prompt; reword it"
        pieces.append(AlignedPiece(range(ends[0], here.start), range(ends[1], there.start)))
        pieces.append(AlignedPiece(here, there, role))
        ends = here.stop, there.stop
    lengths = (len(sides[0].ids), len(sides[1].ids))
    return [*pieces, AlignedPiece(range(ends[0], lengths[0]), range(ends[1], lengths[1]))]


def _of_piece(piece: AlignedPiece, sides: tuple[PromptSide, PromptSide]) -> Fills | str:
    """The fillers of one part in either prompt: none for equal lengths, before a role, otherwise between matching tokens."""
    here, there = (side.ids[own.start : own.stop] for side, own in zip(sides, piece[:2], strict=True))
    starts = piece.clean.start, piece.corrupted.start
    if len(here) == len(there):
        return [], []
    if piece.role is not None:
        gap = len(here) - len(there)
        return ([Fill(starts[0], -gap)] if gap < 0 else [], [Fill(starts[1], gap)] if gap > 0 else [])
    before = len(shared_beginning([here], [there]))
    after = len(shared_beginning([here[before:][::-1]], [there[before:][::-1]]))
    here, there = here[before : len(here) - after], there[before : len(there) - after]
    if len(here) * len(there) > MOST_PLACES:
        return f"differs in length over {len(here)} and {len(there)} tokens, too many to match one by one; {BY_HAND}"
    found = _fewest_changes(here, there)
    if found is None:
        return f"{SEVERAL_WAYS} ({len(sides[0].ids)} and {len(sides[1].ids)} tokens); {BY_HAND}"
    moved = [
        [Fill(start + before + place, count) for place, count in own.items()]
        for start, own in zip(starts, found, strict=True)
    ]
    for name, side, own in zip(("clean", "corrupted"), sides, moved, strict=True):
        if own and own[-1].place == len(side.ids):
            return f"would end in a filler in its {name} prompt; let both end in the same word"
    return moved[0], moved[1]


def _fewest_changes(here: Tokens, there: Tokens) -> tuple[Counter[int], Counter[int]] | None:
    """{place: fillers before it} in either prompt, as early as possible, for the alignment with the fewest tokens replaced or
    opposite a filler; None if more than one set of equal tokens can be matched by such alignments."""
    steps = _steps(here, there)
    if len(_matches(here, there, steps)) > 1:
        return None
    fills: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    i = j = 0
    while i < len(here) or j < len(there):
        down, right = steps[i, j][0]
        fills[0][i] += not down
        fills[1][j] += not right
        i, j = i + down, j + right
    return +fills[0], +fills[1]


def _steps(here: Tokens, there: Tokens) -> dict[Place, list[Step]]:
    """{(i, j): first steps of the alignments of here[i:] and there[j:] with the fewest changes}, steps with a filler first."""
    costs: dict[Place, int] = {(len(here), len(there)): 0}
    best: dict[Place, list[Step]] = {}
    for i, j in product(range(len(here), -1, -1), range(len(there), -1, -1)):
        found = {}
        for down, right in STEPS:
            if (ahead := (i + down, j + right)) in costs and ahead != (i, j):
                found[down, right] = costs[ahead] + (not (down and right) or here[i] != there[j])
        if found:
            costs[i, j] = min(found.values())
            best[i, j] = [step for step, cost in found.items() if cost == costs[i, j]]
    return best


def _matches(here: Tokens, there: Tokens, steps: Mapping[Place, list[Step]]) -> set[int]:
    """A number for each set of equal tokens that one of these alignments matches; at most two numbers."""
    numbers: dict[tuple[Place, int], int] = {}  # by a pair and the set matched after it
    found: dict[Place, set[int]] = {(len(here), len(there)): {0}}
    for i, j in product(range(len(here), -1, -1), range(len(there), -1, -1)):
        own = found.setdefault((i, j), set())
        for down, right in steps.get((i, j), ()):
            after = found[i + down, j + right]
            same = bool(down and right) and here[i] == there[j]
            own |= {numbers.setdefault(((i, j), rest), len(numbers) + 1) for rest in after} if same else after
        found[i, j] = set(sorted(own)[:SEVERAL])
    return found[0, 0]


WAYS: dict[str, Callable[[tuple[PromptSide, PromptSide]], Fills | str]] = {"right": by_right, "spans": by_spans}


def filled(side: PromptSide, fills: Sequence[Fill], filler: str, token: int, keeps_space: bool = True) -> PromptSide:
    """The prompt with its fillers (text `filler`, id `token`) and its roles moved. Its offsets are left empty, because it is not
    yet known whether a tokenizer reads the text in this way.

    `keeps_space`: False removes a space after a filler, for tokenizers that add one before the first word after it.
    """
    text, ids, roles = side.text, list(side.ids), dict(side.roles)
    for place, count in sorted(fills, reverse=True):
        at = side.offsets[place - 1][1] if place else 0
        rest = text[at:] if keeps_space else text[at:].removeprefix(" ")
        gone, more = len(text) - at - len(rest), len(filler) * count
        text, ids[place:place] = text[:at] + filler * count + rest, [token] * count
        roles = {
            role: (max(first - gone, at) + more if first >= at else first, last - gone + more if last > at else last)
            for role, (first, last) in roles.items()
        }
    return PromptSide(text, tuple(ids), (), roles)


def places(fills: Sequence[Fill]) -> tuple[int, ...]:
    """The positions of the fillers among the tokens with them."""
    found: list[int] = []
    for place, count in sorted(fills):
        found += range(place + len(found), place + len(found) + count)
    return tuple(found)
