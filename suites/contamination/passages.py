"""192: items that a corpus holds in nearly the same words. Its passages are read in chunks, so that it is never held whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from suites.contamination import overlap
from suites.contamination.overlap import Threshold
from suites.estimate import Estimate
from suites.modes.embedding import Embedder
from suites.statistics import proportions

PAIRS = Path(__file__).with_name("pairs.jsonl")  # 40 texts beside their near duplicates, 40 beside others of their form
DUPLICATE, OTHER = "duplicate", "other"
KEPT = 3  # passages of an item, the most alike
CHUNK = 4096  # passages that are compared at a time: what is held in memory


@dataclass(frozen=True)
class Passage:
    """A part of the corpus that is compared: its text, the file below the folder, and the line that it begins in, from 1."""

    text: str
    file: str
    line: int


@dataclass(frozen=True)
class Likeness:
    """An item beside a passage: the Jaccard index of their shingles, and the cosine where an embedder compared them."""

    item: str
    passage: Passage
    jaccard: float | None
    cosine: float | None


@dataclass(frozen=True)
class NearDuplicates:
    """The pairs that are alike, by item, three at most of each; the share of items with any; passages read, and whether an
    embedder compared them.

    `compared`: the ids of all items by whether they are as long as a shingle.
    """

    pairs: tuple[Likeness, ...]
    flagged: Estimate
    passages: int
    embedded: bool
    compared: Mapping[str, bool]

    @property
    def items(self) -> set[str]:
        return {pair.item for pair in self.pairs}


@cache
def labelled() -> tuple[tuple[str, str, str], ...]:
    """(kind, first text, second text) of every pair that ships."""
    lines = PAIRS.read_text(encoding="utf-8").splitlines()
    return tuple((one["kind"], one["first"], one["second"]) for one in map(json.loads, lines))


@cache
def threshold() -> Threshold:
    """The Jaccard index from which a pair counts, by `overlap.calibrated` on the labelled pairs: with its rates on them."""
    found: dict[str, list[float]] = {DUPLICATE: [], OTHER: []}
    for kind, first, second in labelled():
        found[kind].append(overlap.jaccard(overlap.shingles(first), overlap.shingles(second)) or 0.0)
    return overlap.calibrated(found[DUPLICATE], found[OTHER])


def of_corpus(folder: Path, longest: int) -> Iterator[Passage]:
    """Every line of a text, every block of several lines between empty ones, and every text of a record.

    A passage of more than `longest` tokens is cut into runs of so many words, each half over the next: beside a far longer text
    no item would look alike. UserError as `overlap.files_of` and `overlap.records`.
    """
    for path in overlap.files_of(folder)[0]:
        name = path.relative_to(folder).as_posix()
        with overlap.decoding(path), path.open(encoding="utf-8-sig") as lines:
            found = overlap.records(path, lines) if path.suffix.lower() == overlap.RECORDS else _blocks(lines)
            for line, text in found:
                yield from (Passage(part, name, line) for part in _cut(text, longest))


def near_duplicates(
    texts: Mapping[str, str], folder: Path, embed: Embedder | None = None, cosine: float = overlap.COSINE
) -> NearDuplicates:
    """Items (`texts`: by id) and passages with a Jaccard index of at least `threshold()`, or a cosine of at least `cosine`.

    Candidates come from MinHash of 128 permutations over 5-token shingles and are compared exactly. An item of fewer tokens than
    a shingle is left out and counted. UserError as `of_corpus`, and without the package datasketch. Source: Broder 1997.
    """
    compared = {name: bool(overlap.shingles(text)) for name, text in texts.items()}
    names = [name for name, long_enough in compared.items() if long_enough]
    items, limit = [texts[name] for name in names], threshold().value
    longest = max((len(overlap.tokens(text)) for text in items), default=1)
    remembered = _remembering(embed, items)
    pairs, count = [], 0
    corpus = of_corpus(folder, longest)
    while chunk := list(itertools.islice(corpus, CHUNK)):
        count += len(chunk)
        other = [one.text for one in chunk]
        for pair in overlap.near_duplicates(items, other, limit, remembered, cosine) if items else ():
            pairs.append(Likeness(names[pair.first], chunk[pair.second], pair.jaccard, pair.cosine))
    order = {name: place for place, name in enumerate(names)}
    alike = {pair: max(pair.jaccard or 0.0, pair.cosine or 0.0) for pair in pairs}
    pairs.sort(key=lambda pair: (order[pair.item], -alike[pair], pair.passage.file, pair.passage.line))
    pairs = [one for _, own in itertools.groupby(pairs, lambda pair: pair.item) for one in itertools.islice(own, KEPT)]
    return _counted(pairs, count, embed is not None, compared)


def part(found: NearDuplicates, names: Mapping[str, str]) -> NearDuplicates:
    """What was found of some of the items, which `names` gives other ids."""
    pairs = [replace(pair, item=names[pair.item]) for pair in found.pairs if pair.item in names]
    compared = {names[name]: long_enough for name, long_enough in found.compared.items() if name in names}
    return _counted(pairs, found.passages, found.embedded, compared)


def _counted(pairs: Sequence[Likeness], count: int, embedded: bool, compared: Mapping[str, bool]) -> NearDuplicates:
    rate = proportions.wilson(len({pair.item for pair in pairs}), sum(compared.values()), unit="share of items")
    short = len(compared) - sum(compared.values())
    rate = replace(rate, excluded={f"under {overlap.SHINGLE} tokens": short} if short else {})
    return NearDuplicates(tuple(pairs), rate, count, embedded, compared)


def count(folder: Path, longest: int, most: int) -> int:
    """Passages of the corpus, counted up to one more than `most`."""
    return sum(1 for _ in itertools.islice(of_corpus(folder, longest), most + 1))


def _blocks(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    number = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line
            block.append(line)
            continue
        if len(block) > 1:
            yield number - len(block), "".join(block)
        block = []
    if len(block) > 1:
        yield number + 1 - len(block), "".join(block)


def _cut(text: str, longest: int) -> Iterator[str]:
    words = text.split()
    if len(words) <= longest:
        if words:
            yield text.strip()
        return
    step = max(1, longest // 2)
    for start in range(0, len(words) - longest + step, step):
        yield " ".join(words[start : start + longest])


def _remembering(embed: Embedder | None, items: Sequence[str]) -> Embedder | None:
    """`embed`, which has the items' vectors at hand: they are compared with every chunk."""
    if embed is None or not items:
        return None
    known = np.asarray(embed(items))
    return lambda texts: known if texts is items else np.asarray(embed(texts))


def require_installed() -> None:
    """UserError without the package that MinHash needs, before anything is read."""
    overlap.near_duplicates(["a b c d e f"], [], threshold().value)
