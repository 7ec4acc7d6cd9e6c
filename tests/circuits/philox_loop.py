"""Philox in Python integers, one counter at a time, and the laws that `Recipe` documents for noise and donors: the twin of
`circuits.engine.philox`, with which it shares nothing.
"""

from __future__ import annotations

import binascii
import hashlib
import math

LOW = 2**32 - 1


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 as published: Salmon et al. 2011, section 3.3."""
    left, right, (first, second) = counter[:2], counter[2:], key
    for _ in range(10):
        one, other = 0xD2511F53 * left[0], 0xCD9E8D57 * right[0]
        left, right = (other >> 32 ^ left[1] ^ first, other & LOW), (one >> 32 ^ right[1] ^ second, one & LOW)
        first, second = (first + 0x9E3779B9) & LOW, (second + 0xBB67AE85) & LOW
    return (*left, *right)


def key_of(seed: int, prompt_id: str) -> tuple[int, int]:
    number = int(hashlib.sha256(f"{seed}/{prompt_id}".encode()).hexdigest()[:16], 16)
    return number & LOW, number >> 32


def normal(seed: int, prompt_id: str, hook: str, draw: int, count: int) -> list[float]:
    """The first `count` normal numbers of a prompt at a hook."""
    name = hook.split(".")
    layer, kind = (int(name[1]), ".".join(name[2:])) if name[0] == "blocks" else (0, hook)
    found: list[float] = []
    for block in range((count + 3) // 4):
        drawn = philox((block, layer, draw, binascii.crc32(kind.encode())), key_of(seed, prompt_id))
        for word, other in (drawn[:2], drawn[2:]):
            radius, angle = math.sqrt(-2 * math.log((word + 0.5) / 2**32)), 2 * math.pi * (other + 0.5) / 2**32
            found += [radius * math.cos(angle), radius * math.sin(angle)]
    return found[:count]


def donor(seed: int, prompt_id: str, draw: int, count: int) -> int:
    """Which of `count` reference prompts stands in for a prompt."""
    return philox((0, 0, draw, binascii.crc32(b"donor")), key_of(seed, prompt_id))[0] * count // 2**32
