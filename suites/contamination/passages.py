"""192: items that a corpus contains in nearly the same words. The corpus is read in chunks, so it need not fit into memory."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from shown_progress import NO_PROGRESS, Progress
from suites.contamination import overlap
from suites.contamination.overlap import Threshold
from suites.estimate import Estimate
from suites.modes.embedding import Embedder
from suites.statistics import proportions

PAIRS = Path(__file__).with_name("pairs.jsonl")  # 40 pairs of near duplicates, 40 of other texts of the same form
DUPLICATE, OTHER = "duplicate", "other"
KEPT = 3  # most similar passages that are kept of an item
EMBEDDED = 256  # items whose vectors are computed at a time
CHUNK = 4096  # passages that are compared at a time and held in memory


@dataclass(frozen=True)
class Passage:
    """A part of the corpus that is compared: its text, the file below the folder, and its first line, counted from 1."""

    text: str
    file: str
    line: int


@dataclass(frozen=True)
class Likeness:
    """An item and a similar passage: the Jaccard index of their shingles, and their cosine if there is an embedder."""

    item: str
    passage: Passage
    jaccard: float | None
    cosine: float | None


@dataclass(frozen=True)
class NearDuplicates:
    """Similar pairs by item, at most three each; the share of items with any; passages read; and whether an embedder was used.

    `compared`: for the id of every item, whether it is at least as long as a shingle.
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
    """(kind, first text, second text) of every labelled pair that comes with the project."""
    lines = PAIRS.read_text(encoding="utf-8").splitlines()
    return tuple((one["kind"], one["first"], one["second"]) for one in map(json.loads, lines))


@cache
def threshold() -> Threshold:
    """The least Jaccard index of a duplicate, by `overlap.calibrated` on the labelled pairs, with its rates on them."""
    found: dict[str, list[float]] = {DUPLICATE: [], OTHER: []}
    for kind, first, second in labelled():
        found[kind].append(overlap.jaccard(overlap.shingles(first), overlap.shingles(second)) or 0.0)
    return overlap.calibrated(found[DUPLICATE], found[OTHER])


def of_corpus(folder: Path, longest: int) -> Iterator[Passage]:
    """Every line of a text, every block of several lines between empty lines, and every text of a record.

    A passage of more than `longest` tokens is cut into runs of that many words that overlap by half, since no item would be
    similar to a far longer text. UserError as `overlap.files_of` and `overlap.records`.
    """
    for path in overlap.files_of(folder)[0]:
        name = path.relative_to(folder).as_posix()
        with overlap.decoding(path), path.open(encoding="utf-8-sig") as lines:
            found = overlap.records(path, lines) if path.suffix.lower() == overlap.RECORDS else _blocks(lines)
            for line, text in found:
                yield from (Passage(part, name, line) for part in _cut(text, longest))


def near_duplicates(
    texts: Mapping[str, str],
    folder: Path,
    embed: Embedder | None = None,
    cosine: float = overlap.COSINE,
    bar: Progress = NO_PROGRESS,
) -> NearDuplicates:
    """Pairs of items (`texts` by id) and passages with a Jaccard index >= `threshold()` or, with `embed`, a cosine >= `cosine`.

    Candidates come from MinHash with 128 permutations over 5-token shingles and are compared exactly. An item with fewer tokens
    than a shingle is excluded. `bar` counts items and passages. UserError as `of_corpus`. Source: Broder 1997.
    """
    compared = {name: bool(overlap.shingles(text)) for name, text in texts.items()}
    names = [name for name, long_enough in compared.items() if long_enough]
    items, limit = [texts[name] for name in names], threshold().value
    longest = max((len(overlap.tokens(text)) for text in items), default=1)
    remembered = _remembering(embed, items, bar)
    pairs, count = [], 0
    corpus = of_corpus(folder, longest)
    while chunk := list(itertools.islice(corpus, CHUNK)):
        count += len(chunk)
        bar.expect(len(chunk))
        other = [one.text for one in chunk]
        for pair in overlap.near_duplicates(items, other, limit, remembered, cosine) if items else ():
            pairs.append(Likeness(names[pair.first], chunk[pair.second], pair.jaccard, pair.cosine))
        bar.advance(len(chunk))
    order = {name: place for place, name in enumerate(names)}
    alike = {pair: max(pair.jaccard or 0.0, pair.cosine or 0.0) for pair in pairs}
    pairs.sort(key=lambda pair: (order[pair.item], -alike[pair], pair.passage.file, pair.passage.line))
    pairs = [one for _, own in itertools.groupby(pairs, lambda pair: pair.item) for one in itertools.islice(own, KEPT)]
    return _counted(pairs, count, embed is not None, compared)


def part(found: NearDuplicates, names: Mapping[str, str]) -> NearDuplicates:
    """The results of the items in `names`, which maps their ids to new ones."""
    pairs = [replace(pair, item=names[pair.item]) for pair in found.pairs if pair.item in names]
    compared = {names[name]: long_enough for name, long_enough in found.compared.items() if name in names}
    return _counted(pairs, found.passages, found.embedded, compared)


def _counted(pairs: Sequence[Likeness], count: int, embedded: bool, compared: Mapping[str, bool]) -> NearDuplicates:
    rate = proportions.wilson(len({pair.item for pair in pairs}), sum(compared.values()), unit="share of items")
    short = len(compared) - sum(compared.values())
    rate = replace(rate, excluded={f"under {overlap.SHINGLE} tokens": short} if short else {})
    return NearDuplicates(tuple(pairs), rate, count, embedded, compared)


def count(folder: Path, longest: int, most: int) -> int:
    """Number of passages of the corpus, counted up to `most` + 1."""
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


def _remembering(embed: Embedder | None, items: Sequence[str], bar: Progress) -> Embedder | None:
    """`embed` with the items' vectors cached, since they are compared with every chunk."""
    if embed is None or not items:
        return None
    bar.expect(len(items))
    parts = []
    for start in range(0, len(items), EMBEDDED):
        parts.append(np.asarray(embed(items[start : start + EMBEDDED])))
        bar.advance(len(parts[-1]))
    known = np.concatenate(parts)
    return lambda texts: known if texts is items else np.asarray(embed(texts))


def require_installed() -> None:
    """UserError without the package that MinHash needs, before anything is read."""
    overlap.near_duplicates(["a b c d e f"], [], threshold().value)
