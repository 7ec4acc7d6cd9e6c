"""Where fillers go, against every way there is of matching two short lists of tokens."""

from __future__ import annotations

import random
from itertools import combinations

from circuits.tasks.file import alignment
from circuits.tasks.file.alignment import PromptSide


def side(ids: list[int]) -> PromptSide:
    """Tokens as letters of a text."""
    return PromptSide("".join(map(str, ids)), tuple(ids), [(place, place + 1) for place in range(len(ids))], {})


def fewest_changes(here: list[int], there: list[int]) -> tuple[int, set[tuple[tuple[int, int], ...]]]:
    """(the fewest tokens replaced or beside a filler, which equal tokens the ways of that many match), by trying all ways."""
    ways: dict[int, set[tuple[tuple[int, int], ...]]] = {}
    for count in range(min(len(here), len(there)) + 1):
        for own in combinations(range(len(here)), count):
            for other in combinations(range(len(there)), count):
                same = tuple((i, j) for i, j in zip(own, other, strict=True) if here[i] == there[j])
                ways.setdefault(len(here) + len(there) - count - len(same), set()).add(same)
    least = min(ways)
    return least, ways[least]


def trimmed(here: list[int], there: list[int]) -> tuple[list[int], list[int]]:
    while here and there and here[0] == there[0]:
        here, there = here[1:], there[1:]
    while here and there and here[-1] == there[-1]:
        here, there = here[:-1], there[:-1]
    return here, there


def test_fillers_leave_the_fewest_changes_and_are_refused_where_they_match_in_several_ways() -> None:
    rng, aligned, refused = random.Random(0), 0, 0
    for _ in range(400):
        here, there = ([0, *rng.choices(range(1, 6), k=rng.randint(0, 5)), 9] for _ in range(2))
        if len(here) == len(there):
            continue
        found = alignment.by_spans((side(here), side(there)))
        least, ways = fewest_changes(*trimmed(here, there))
        if isinstance(found, str):
            assert len(ways) > 1 and found.startswith(alignment.SEVERAL_WAYS), (here, there, ways)
            refused += 1
            continue
        assert len(ways) == 1, (here, there, ways)
        made = [alignment.filled(side(ids), own, "_", -1) for ids, own in zip((here, there), found, strict=True)]
        assert len(made[0].ids) == len(made[1].ids)
        assert sum(a != b for a, b in zip(made[0].ids, made[1].ids, strict=True)) == least
        for one, own, ids in zip(made, found, (here, there), strict=True):
            assert [token for token in one.ids if token != -1] == ids and one.text.replace("_", "") == side(ids).text
            assert alignment.places(own) == tuple(place for place, token in enumerate(one.ids) if token == -1)
        aligned += 1
    assert (aligned, refused) == (303, 29)


def test_parts_of_hundreds_of_tokens_are_not_matched_one_by_one() -> None:
    found = alignment.by_spans((side([0, *[1, 2] * 150, 9]), side([0, *[2, 1, 1] * 150, 9])))
    assert isinstance(found, str) and "too many to match one by one; name the words" in found


def test_roles_move_with_the_text_around_them() -> None:
    one = PromptSide(
        "ab cd ef", (1, 2, 3), [(0, 2), (2, 5), (5, 8)], {"a": (0, 2), "c": (3, 5), "e": (6, 8), "c and e": (2, 8)}
    )
    for keeps_space, text in ((True, "ab<><> cd<> ef"), (False, "ab<><>cd<>ef")):
        made = alignment.filled(one, [alignment.Fill(1, 2), alignment.Fill(2, 1)], "<>", 0, keeps_space)
        assert (made.text, made.ids) == (text, (1, 0, 0, 2, 0, 3))
        words = {role: text[first:last].strip() for role, (first, last) in made.roles.items()}
        assert {role: words[role] for role in "ace"} == {"a": "ab", "c": "cd", "e": "ef"}
        assert words["c and e"].replace("<>", "").replace(" ", "") == "cdef"
