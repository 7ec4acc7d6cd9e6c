"""193: is an item more likely to a model than a paraphrase of it? Measured by the loss per token.

A model that has read an item knows its words; a paraphrase says the same in words that it has not read. Originals may be plainer
than paraphrases, so the gap alone says little. What counts is its excess over the gap of a reference model, or over the gap of
fresh items, which were written after the model was trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import results_io
from results_io import UserError
from suites import bounded_text
from suites.contamination import overlap
from suites.estimate import Estimate, missing
from suites.item import Suite
from suites.models.base import ModelUnderTest
from suites.statistics import bootstrap, permutation

NUMBER, ID = "193", "loss_gap"
RATIO = (0.8, 1.25)  # tokens of a paraphrase / tokens of its original: outside of it, length alone changes the loss
FEWEST = 20  # pairs
REWORDED = "template"  # the kind of variant that is the same item in other words
NATS = "nats a token"
LENGTH, UNREAD = "length differs", "the model cannot read it"  # why a pair is left out
ALONE = "descriptive: without a reference model or fresh items nothing tells contamination from plain wording"


@dataclass(frozen=True)
class Reworded:
    """An item's text and a paraphrase of it. `cluster`: the sampling unit that it shares with other items."""

    item: str
    original: str
    paraphrase: str
    cluster: str


@dataclass(frozen=True)
class LossGap:
    """Mean gap of the model, and its excess over a reference model on the same pairs, over fresh pairs, and over both.

    `descriptive`: why the gap allows no conclusion; None if there is a comparison. `gaps` by item.
    """

    gap: Estimate
    beyond_reference: Estimate | None
    beyond_fresh: Estimate | None
    beyond_both: Estimate | None
    gaps: Mapping[str, float]

    @property
    def descriptive(self) -> str | None:
        return ALONE if self.beyond_reference is None and self.beyond_fresh is None else None


def of_suite(suite: Suite) -> list[Reworded]:
    """The suite's originals, each with its first variant of kind REWORDED whose length fits."""
    found: dict[str, Reworded] = {}
    for item in suite.items:
        if item.variant is None or item.variant.kind != REWORDED or item.variant.parent in found:
            continue
        original = suite.by_id[item.variant.parent]
        pair = Reworded(original.id, original.prompt, item.prompt, original.cluster or original.id)
        if fits(pair):
            found[original.id] = pair
    return list(found.values())


def read(path: Path) -> list[Reworded]:
    """Pairs from a file of JSON lines {"item", "original", "paraphrase", "cluster" (optional)}.

    UserError for any other line, and for an item or an original that is there twice: one pair would count as many.
    """
    found: list[Reworded] = []
    seen: set[str] = set()
    lines: dict[tuple[str, ...], int] = {}  # by the texts of a pair
    text = bounded_text.given(path, "give a file of JSON lines in UTF-8")
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):  # texts may hold U+2028
        try:
            one = bounded_text.value(line)
            item, original, paraphrase = (one[key] for key in ("item", "original", "paraphrase"))
            cluster = one.get("cluster", item)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f'{path}, line {number} is no pair ({error}); expected {{"item": ..., "original": ..., "paraphrase": ...}}'
            ) from None
        if not all(isinstance(text, str) and text.strip() for text in (item, original, paraphrase, cluster)):
            raise UserError(f"{path}, line {number} has a value that is no text; write item, original and paraphrase")
        if item in seen:
            raise UserError(f"{path}, line {number} has the item {item!r} again; give every pair a name of its own")
        seen.add(item)
        found.append(Reworded(item, original, paraphrase, cluster))
        if (first := lines.setdefault(words(found[-1]), number)) != number:
            raise UserError(f"{path}, line {number} has the original of line {first} again; give every original once")
    if not found:
        raise UserError(f"{path} has no pairs; write one a line, or leave the setting out")
    return found


def words(pair: Reworded) -> tuple[str, ...]:
    """The words of the original: by them two pairs are of the same text, whatever their names, case and spaces."""
    return tuple(overlap.tokens(pair.original))


def require_apart(pairs: Sequence[Reworded], fresh: Sequence[Reworded]) -> None:
    """UserError if a fresh pair has the original of one of the items: their difference would hide what the model has read."""
    known = {words(pair): pair.item for pair in pairs}
    for pair in fresh:
        if (item := known.get(words(pair))) is not None:
            raise UserError(
                f"the fresh pair {pair.item!r} has the text of the item {item!r}; fresh pairs are of texts that no model has "
                "read: take it out of contamination.fresh"
            )


def fits(pair: Reworded) -> bool:
    """Whether the paraphrase is about as long as its original (RATIO) and a different text."""
    first, second = overlap.tokens(pair.original), overlap.tokens(pair.paraphrase)
    return len(first) > 1 and first != second and RATIO[0] <= len(second) / len(first) <= RATIO[1]


def losses(model: ModelUnderTest, texts: Sequence[str]) -> list[float]:
    """Mean negative log-likelihood per token of each text (nats), given its first word. Needs the capability "logprobs".

    A word ends at white space of any kind; of a text without any, the first character is given.
    """
    pairs = []
    for text in map(str.strip, texts):
        first = re.match(r"\S+(?=\s)|.", text, re.DOTALL)
        end = first.end() if first else 0
        pairs.append((text[:end], text[end:]))
    return [-one.logprob / one.n_tokens for one in model.loglikelihood(pairs)]


def gaps(model: ModelUnderTest, pairs: Sequence[Reworded]) -> list[float]:
    """NLL(paraphrase) - NLL(original) of each pair (nats per token): positive if the original is more likely."""
    found = losses(model, [text for pair in pairs for text in (pair.original, pair.paraphrase)])
    return [paraphrase - original for original, paraphrase in zip(found[::2], found[1::2], strict=True)]


def measure(
    model: ModelUnderTest,
    pairs: Sequence[Reworded],
    reference: ModelUnderTest | None = None,
    fresh: Sequence[Reworded] = (),
    seed: int = 0,
    unread: tuple[int, int] = (0, 0),
) -> LossGap:
    """193 over the pairs whose length fits; the others are counted as excluded.

    `unread`: how many pairs, and how many fresh ones, were left out before because the model cannot read them; counted too.

    g = NLL(paraphrase) - NLL(original). Beyond a reference model: mean of g - g_reference over the same pairs, one-sided by sign
    flips. Beyond fresh items: mean g - mean g of the fresh ones, one-sided by relabelling. Beyond both: the same of
    g - g_reference, so what the two models think of the form, and how hard a pair is to either, drop out. Insufficient under 20
    pairs.
    """
    kept, new = [pair for pair in pairs if fits(pair)], [pair for pair in fresh if fits(pair)]
    excluded = _counted({LENGTH: len(pairs) - len(kept), UNREAD: unread[0]})
    of_both = _counted({**excluded, f"fresh: {LENGTH}": len(fresh) - len(new), f"fresh: {UNREAD}": unread[1]})
    own = gaps(model, kept) if kept else []
    gap = replace(mean_gap(own, [pair.cluster for pair in kept], seed), excluded=excluded)
    by_item = {pair.item: value for pair, value in zip(kept, own, strict=True)}
    if len(kept) < FEWEST:
        return LossGap(gap, None, None, None, by_item)
    beyond = against = both = None
    clusters = ([pair.cluster for pair in kept], [pair.cluster for pair in new])
    rest = None if reference is None else _less(own, gaps(reference, kept))
    if rest is not None:
        beyond = replace(mean_gap(rest, clusters[0], seed), excluded=excluded)
    if fresh:
        of_new = gaps(model, new) if new else []
        against = replace(beyond_fresh(own, of_new, clusters, seed), excluded=of_both)
        if reference is not None and rest is not None:
            both = beyond_fresh(rest, _less(of_new, gaps(reference, new) if new else []), clusters, seed)
            both = replace(both, excluded=of_both)
    return LossGap(gap, beyond, against, both, by_item)


def _counted(excluded: Mapping[str, int]) -> dict[str, int]:
    return {reason: count for reason, count in excluded.items() if count}


def _less(own: Sequence[float], other: Sequence[float]) -> list[float]:
    return [one - another for one, another in zip(own, other, strict=True)]


def mean_gap(values: Sequence[float], clusters: Sequence[str] | None = None, seed: int = 0) -> Estimate:
    """Mean of the gaps with a bootstrap interval over `clusters` [pair] and the one-sided sign-flip p of "not above 0".

    Signs of a cluster flip together. Insufficient under 20 pairs.
    """
    if len(values) < FEWEST:
        reason = f"{len(values)} pairs; at least {FEWEST} are needed"
        return missing("insufficient_data", reason, NATS, len(values))
    tested = sign_flips(values, clusters, seed)
    spread = bootstrap.mean(values, clusters, seed=seed, unit=NATS, shares=False)  # none under 20 clusters
    return replace(tested, unit=NATS, ci=spread.ci, assumptions=(*tested.assumptions, *spread.assumptions))


def sign_flips(values: Sequence[float], clusters: Sequence[str] | None = None, seed: int = 0) -> Estimate:
    """Mean of `values` [pair] with the one-sided p of sign flips, exact up to 14 clusters; a cluster flips as a whole."""
    labels = list(clusters) if clusters is not None else [str(place) for place in range(len(values))]
    totals, _ = bootstrap.sums_and_sizes(values, labels)
    found = permutation.paired_difference(np.zeros(len(totals)), totals, seed=seed, alternative="greater")
    return replace(found, value=float(np.mean(values)), n=len(values), unit=NATS)


def beyond_fresh(
    old: Sequence[float], fresh: Sequence[float], clusters: tuple[Sequence[str], Sequence[str]], seed: int = 0
) -> Estimate:
    """Mean gap of the items - mean gap of fresh ones, one-sided by relabelling whole clusters. Insufficient under 20 of either.

    `clusters` (of the items, of the fresh ones): the sampling unit of each. The interval resamples clusters on either side.
    """
    if min(len(old), len(fresh)) < FEWEST:
        reason = f"{len(old)} pairs and {len(fresh)} fresh ones; at least {FEWEST} of each are needed"
        return missing("insufficient_data", reason, NATS, len(old) + len(fresh))
    of_old, of_fresh = (
        [f"{side} {name}" for name in own] for side, own in zip(("old", "fresh"), clusters, strict=True)
    )
    tested = permutation.difference(
        fresh, old, seed=seed, clusters=(of_fresh, of_old), alternative="greater", unit=NATS
    )
    return replace(tested, ci=bootstrap.difference(fresh, old, of_fresh, of_old, seed=seed))


def digest(pairs: Sequence[Reworded]) -> str:
    """Hash of the pairs, which identifies the set."""
    return results_io.sha256([[pair.item, pair.original, pair.paraphrase] for pair in pairs])


def data(found: LossGap) -> dict[str, Any]:
    """The data of the result: the gap of every pair."""
    return {"gaps": dict(sorted(found.gaps.items())), "descriptive": found.descriptive}
