"""194: a line of random characters that is published with a suite's items and nowhere else. A model that knows it has read them.

The line is in the README of the catalogue and in the header of each lock, never in a prompt. Its characters are drawn from a
secret seed of the author, so nobody else can have written it by chance.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from suites.contamination import overlap
from suites.estimate import Estimate, missing
from suites.models.base import ModelUnderTest, Request

NUMBER, ID = "194", "canary"
LINE = "This line marks data for testing and never belongs in training data: canary of {suite} {guid}"
GUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
ALTERNATIVES = 999  # random canaries with which the true one is compared: the smallest p is 1/1000
BITS = "bits"
SECOND_HALF_TOKENS = 48  # more than half of a line needs in any tokenizer of characters or longer pieces
NO_TRACE = "the continuation differs, which shows nothing: a line that was read need not come back verbatim"


@dataclass(frozen=True)
class Canary:
    """A canary line: `before` is its beginning, the same for all canaries of a suite; `secret` is the random part."""

    before: str
    secret: str

    @property
    def line(self) -> str:
        return f"{self.before} {self.secret}"


def drawn(seed: str, suite: str) -> str:
    """The GUID of a suite: version 4's form, its bits from HMAC-SHA256(seed, suite id)."""
    bits = hmac.new(seed.encode(), suite.encode(), hashlib.sha256).digest()[:16]
    return str(uuid.UUID(bytes=bits, version=4))


def of_suite(suite: str, guid: str) -> Canary:
    """The canary line of a suite, split before the GUID."""
    return Canary(LINE.format(suite=suite, guid="").rstrip(), guid)


def random_guids(count: int, seed: int) -> list[str]:
    """`count` other GUIDs of the same form, from a generator with `seed`."""
    rng = random.Random(f"canaries {seed}")
    return [str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(count)]


def exposure(logprobs: Sequence[float], true: float) -> Estimate:
    """log2(R + 1) - log2(rank) of the true canary's log-probability among those of R random ones (bits).

    rank = 1 + number of random ones at least as likely, so ties get the worst rank. p = rank/(R + 1), since for a canary that was
    never read all ranks are equally likely. Undefined without a random one. Source: Carlini et al. 2019.
    """
    total = len(logprobs) + 1
    if total < 2:
        return missing("undefined", "there is no other canary to rank it among", BITS)
    rank = 1 + sum(other >= true for other in logprobs)
    return Estimate(
        math.log2(total) - math.log2(rank),
        BITS,
        len(logprobs),
        p_value=rank / total,
        test="rank among random canaries, one-sided",
        assumptions=("the canary was drawn like the random ones",),
        detail={"rank": rank, "of": total, "most": math.log2(total)},
    )


def files_with(folder: Path, guids: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """{suite: the corpus' files, relative to `folder`, that hold its GUID}, for the suites in `guids`.

    UserError as `overlap.files_of`.
    """
    found: dict[str, list[str]] = {suite: [] for suite in guids}
    of_guid = {guid: suite for suite, guid in guids.items()}
    for path in overlap.files_of(folder)[0]:
        with path.open(encoding="utf-8", errors="replace") as lines:
            known = {guid for line in lines for guid in GUID.findall(line.lower()) if guid in of_guid}
        for guid in known:
            found[of_guid[guid]].append(path.relative_to(folder).as_posix())
    return {suite: tuple(files) for suite, files in found.items()}


def measure(
    model: ModelUnderTest,
    canary: Canary,
    seed: int = 0,
    draw: Callable[[int, int], Sequence[str]] = random_guids,
    alternatives: int = ALTERNATIVES,
) -> Estimate:
    """The exposure of a canary or, for a model without log-probabilities, whether it continues the first half by the second.

    Not applicable to a model whose vocabulary cannot represent the line.
    """
    if not model.reads(canary.line):
        return missing("not_applicable", "the model's vocabulary cannot write the canary", BITS)
    if "logprobs" not in model.capabilities:
        return continued(model, canary)
    others = [one for one in draw(alternatives, seed) if one != canary.secret]
    found = model.loglikelihood([(canary.before, f" {one}") for one in (canary.secret, *others)])
    true, *rest = (one.logprob for one in found)
    return exposure(rest, true)


def continued(model: ModelUnderTest, canary: Canary) -> Estimate:
    """1 if the greedy continuation of the line's first half begins verbatim with the second half; a 0 proves nothing."""
    line = canary.line
    middle = len(line) - len(canary.secret) // 2
    request = Request(line[:middle], max_tokens=SECOND_HALF_TOKENS)
    (said,) = model.generate([request], lambda count: None)
    unit = "verbatim continuation"
    if said.error is not None:
        return missing("error", said.error, unit)
    verbatim = said.text.lstrip().startswith(line[middle:])
    return Estimate(float(verbatim), unit, 1, assumptions=() if verbatim else (NO_TRACE,))
