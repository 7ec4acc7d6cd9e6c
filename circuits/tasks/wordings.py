"""Wordings of a task, made from parts: every opening with every continuation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping


def crossed(*parts: Mapping[str, str]) -> dict[str, str]:
    """Every text of the first part followed by every text of the second, and so on, concatenated unchanged.

    A wording's name consists of those of its parts, joined by "_"; a part may have one text without a name. Each combination is
    a separate frame, since other words surround the slots.
    """
    made = {}
    for chosen in itertools.product(*(part.items() for part in parts)):
        made["_".join(name for name, _ in chosen if name)] = "".join(text for _, text in chosen)
    return made


def extended(frames: Mapping[str, str], *further: Mapping[str, str]) -> dict[str, str]:
    """`frames`, then every one of `further` whose text does not occur before it.

    Raises ValueError if two texts have the same name, since the later would replace the earlier.
    """
    merged, texts = dict(frames), set(frames.values())
    for name, text in itertools.chain.from_iterable(mapping.items() for mapping in further):
        if text in texts:
            continue
        if name in merged:
            raise ValueError(f"two wordings are called {name!r}: {merged[name]!r} and {text!r}; rename a part of one")
        merged[name] = text
        texts.add(text)
    return merged
