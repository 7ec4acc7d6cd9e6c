"""Were a suite's items in a model's training data? Overlap of 13-grams with a corpus folder, and near duplicates.

An overlap shows that the model could have learnt the text, not that it did. No overlap shows only that this folder does not
contain the text.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import regex

from results_io import UserError
from suites import bounded_text, normalise
from suites.estimate import Estimate, Interval, missing
from suites.modes.embedding import Embedder
from suites.statistics import proportions

LONGEST, SHORTEST = 13, 8  # tokens of an n-gram: 13, or the whole of a shorter item, but never under 8
SHINGLE, PERMUTATIONS = 5, 128  # tokens of a shingle, and MinHash's permutations
COSINE = 0.9  # of near duplicates
PLAIN, RECORDS = (".txt", ".md"), ".jsonl"  # files of a corpus folder that are read
BLOCK = 1 << 20  # characters read at a time, so that a file with a single long line does not fill the memory
PUNCTUATION = regex.compile(r"[\p{P}\p{S}]+")


@dataclass(frozen=True)
class CorpusPlace:
    """The first place of an n-gram in the corpus.

    `file` below the folder, `record` (line of a .jsonl file, counted from 1; None for texts) and `offset`, the number of tokens
    before it in its document.
    """

    file: str
    record: int | None
    offset: int


@dataclass(frozen=True)
class Overlap:
    """How many of an item's `grams` n-grams of `n` tokens the corpus contains. `flagged`: whether any; None under 8 tokens.

    `gram`: the first of the item's n-grams that is in the corpus, `place`: where; None if none is.
    """

    item: str
    tokens: int
    n: int
    grams: int
    found: int
    gram: str | None = None
    place: CorpusPlace | None = None

    @property
    def share(self) -> float | None:
        return self.found / self.grams if self.grams else None

    @property
    def flagged(self) -> bool | None:
        return self.found > 0 if self.grams else None


@dataclass(frozen=True)
class Contamination:
    """The overlap of every item, the flagged share of items that are long enough, and how much of the corpus was read."""

    items: tuple[Overlap, ...]
    flagged: Estimate
    documents: int
    corpus_tokens: int
    files_not_read: int


@dataclass(frozen=True)
class CleanAndDirty:
    """Accuracy on items that are not flagged (clean) and on flagged ones (dirty), and dirty minus clean."""

    clean: Estimate
    dirty: Estimate
    difference: Estimate


@dataclass(frozen=True)
class NearDuplicate:
    """Two texts, by their places in the two lists, with the exact Jaccard index of their shingles and their cosine.

    The Jaccard index is None if a text has fewer tokens than a shingle, the cosine without an embedder.
    """

    first: int
    second: int
    jaccard: float | None
    cosine: float | None


@dataclass(frozen=True)
class Threshold:
    """The least similarity of a duplicate, with its sensitivity on known duplicates and specificity on known other pairs."""

    value: float
    sensitivity: Estimate
    specificity: Estimate


def tokens(text: str) -> list[str]:
    """NFC, casefolded, without punctuation and symbols ("don't" is "dont"), split at white space."""
    return PUNCTUATION.sub("", normalise.normalise(text)).split()


def gram_length(n_tokens: int) -> int | None:
    """Tokens of the n-grams of a text with `n_tokens`: min(13, n_tokens), None under 8."""
    return min(LONGEST, n_tokens) if n_tokens >= SHORTEST else None


def overlap(texts: Mapping[str, str], corpus: str | Path) -> Contamination:
    """Share of the n-grams of every item (`texts`: by id) that occur in the `corpus` folder, and the share of items with any.

    The corpus is streamed: .txt and .md files (across their lines) and every text in each record of .jsonl files, at any depth;
    only the items' n-grams are kept in memory. Items of under 8 tokens are insufficient and counted. UserError for a
    folder without such a file, one that is not UTF-8, and a line that is not JSON. Source: Brown et al. 2020, C.
    """
    words = {item: tokens(text) for item, text in texts.items()}
    lengths = {item: gram_length(len(found)) for item, found in words.items()}
    grams = {item: _grams(words[item], n) if n else [] for item, n in lengths.items()}
    wanted: dict[int, set[str]] = defaultdict(set)
    for item, n in lengths.items():
        if n:
            wanted[n].update(grams[item])
    present, documents, read, skipped = _search(Path(corpus), wanted)
    items = tuple(_overlap(item, words[item], n or 0, grams[item], present) for item, n in lengths.items())
    return _counted(items, documents, read, skipped)


def part(found: Contamination, names: Mapping[str, str]) -> Contamination:
    """The results of the items in `names`, which maps their ids to new ones. So one search can serve many suites."""
    items = tuple(replace(one, item=names[one.item]) for one in found.items if one.item in names)
    return _counted(items, found.documents, found.corpus_tokens, found.files_not_read)


def _counted(items: tuple[Overlap, ...], documents: int, read: int, skipped: int) -> Contamination:
    judged = [one for one in items if one.flagged is not None]
    short = {f"under {SHORTEST} tokens": len(items) - len(judged)} if len(judged) < len(items) else {}
    rate = proportions.wilson(sum(bool(one.flagged) for one in judged), len(judged), unit="share of items")
    return Contamination(items, replace(rate, excluded=short), documents, read, skipped)


def clean_and_dirty(
    items: Sequence[Overlap],
    correct: Mapping[str, bool | None],
    clusters: Mapping[str, str] | None = None,
    level: float = 0.95,
) -> CleanAndDirty:
    """Accuracy on flagged items (1) minus accuracy on the others (2), from `correct` by id (None or absent is excluded).

    The interval of d = p1 - p2 is Newcombe's, from the intervals [l, u] of the two rates: [d - sqrt((p1 - l1)^2 + (u2 - p2)^2),
    d + sqrt((u1 - p1)^2 + (p2 - l2)^2)]. `clusters` (by id) widen these for dependent items. Undefined unless both sides have
    items. A difference is no proof of memorisation, since flagged items may be easier. Source: Newcombe 1998, method 10.
    """
    judged = [one for one in items if one.flagged is not None]
    known = [one for one in judged if correct.get(one.item) is not None]
    left_out = {f"under {SHORTEST} tokens": len(items) - len(judged), "not judged": len(judged) - len(known)}
    excluded = {reason: count for reason, count in left_out.items() if count}

    def accuracy(flagged: bool) -> Estimate:
        ids = [one.item for one in known if one.flagged is flagged]
        groups = [clusters[item] for item in ids] if clusters else ids
        return proportions.clustered([bool(correct[item]) for item in ids], groups, level, "share of items")

    clean, dirty = accuracy(False), accuracy(True)
    if clean.value is None or dirty.value is None:
        reason = f"{clean.n} clean and {dirty.n} flagged items were judged; a difference needs both"
        return CleanAndDirty(clean, dirty, missing("undefined", reason, "share", clean.n + dirty.n, excluded=excluded))
    gap = dirty.value - clean.value
    interval = Interval(
        gap - math.hypot(dirty.value - dirty.bounds.low, clean.bounds.high - clean.value),
        gap + math.hypot(dirty.bounds.high - dirty.value, clean.value - clean.bounds.low),
        level,
        "Newcombe hybrid score",
    )
    return CleanAndDirty(clean, dirty, Estimate(gap, "share", clean.n + dirty.n, ci=interval, excluded=excluded))


def shingles(text: str, size: int = SHINGLE) -> frozenset[str]:
    """All runs of `size` consecutive tokens of the text; none if it has fewer tokens."""
    return frozenset(_grams(tokens(text), size))


def jaccard(first: frozenset[Any], second: frozenset[Any]) -> float | None:
    """|intersection| / |union|; None if a set is empty, since its text is too short to be compared."""
    return len(first & second) / len(first | second) if first and second else None


def minhash_jaccard(
    first: frozenset[str], second: frozenset[str], permutations: int = PERMUTATIONS, seed: int = 1
) -> float | None:
    """MinHash's estimate of `jaccard`, with standard error sqrt(J (1 - J) / permutations). Needs datasketch. Broder 1997."""
    if not first or not second:
        return None
    return float(_minhash(first, permutations, seed).jaccard(_minhash(second, permutations, seed)))


def near_duplicates(
    texts: Sequence[str],
    others: Sequence[str],
    threshold: float,
    embed: Embedder | None = None,
    cosine: float = COSINE,
    permutations: int = PERMUTATIONS,
    seed: int = 1,
) -> list[NearDuplicate]:
    """Pairs of `texts` and `others` with Jaccard index >= `threshold` or, with an embedder, cosine >= `cosine`.

    MinHash with locality-sensitive hashing (datasketch) finds candidates from three standard errors below the threshold on. These
    are compared exactly, so no pair rests on an estimate, but a pair may be missed. Choose `threshold` with `calibrated`.
    """
    sets, other_sets = [shingles(text) for text in texts], [shingles(text) for text in others]
    similar = _candidates(sets, other_sets, threshold, permutations, seed)
    found = {pair for pair in similar if (jaccard(sets[pair[0]], other_sets[pair[1]]) or 0.0) >= threshold}
    cosines = None
    if embed is not None and texts and others:
        cosines = np.asarray(embed(texts)) @ np.asarray(embed(others)).T
        found |= {(int(i), int(j)) for i, j in zip(*np.nonzero(cosines >= cosine), strict=True)}
    return [
        NearDuplicate(i, j, jaccard(sets[i], other_sets[j]), None if cosines is None else float(cosines[i, j]))
        for i, j in sorted(found)
    ]


def calibrated(duplicates: Sequence[float], others: Sequence[float]) -> Threshold:
    """The threshold with the largest Youden's J for similarities of `duplicates` and of `others`; the highest of equal ones.

    Its two rates are optimistic, since they are measured on the pairs that chose it; measure them again on other pairs. UserError
    unless there are pairs of both kinds.
    """
    if not duplicates or not others:
        raise UserError(
            f"{len(duplicates)} duplicates and {len(others)} other pairs; expected some of both: label pairs of both kinds"
        )

    def kept(limit: float) -> tuple[int, int]:
        return sum(x >= limit for x in duplicates), sum(x < limit for x in others)

    def youden(limit: float) -> int:  # J + 1 in whole numbers, times both counts: no last binary digit decides
        hits, passed = kept(limit)
        return hits * len(others) + passed * len(duplicates)

    best = max(sorted(set(duplicates), reverse=True), key=youden)
    hits, passed = kept(best)
    return Threshold(best, proportions.wilson(hits, len(duplicates)), proportions.wilson(passed, len(others)))


def _grams(words: Sequence[str], n: int) -> list[str]:
    return [" ".join(words[start : start + n]) for start in range(len(words) - n + 1)]


def _overlap(
    item: str, words: Sequence[str], n: int, grams: Sequence[str], present: Mapping[str, CorpusPlace]
) -> Overlap:
    first = next((gram for gram in grams if gram in present), None)
    place = None if first is None else present[first]
    return Overlap(item, len(words), n, len(grams), sum(gram in present for gram in grams), first, place)


def files_of(folder: Path) -> tuple[list[Path], int]:
    """(the readable files of a corpus in order, number of other files). UserError for no folder, and for no readable file."""
    if not folder.is_dir():
        raise UserError(f"the corpus {folder} is no folder; expected one with .txt, .md or .jsonl files")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    readable = [path for path in files if path.suffix.lower() in (*PLAIN, RECORDS)]
    if not readable:
        raise UserError(f"the corpus {folder} has no .txt, .md or .jsonl file; write its texts as one of these")
    return readable, len(files) - len(readable)


def _search(folder: Path, wanted: Mapping[int, set[str]]) -> tuple[dict[str, CorpusPlace], int, int, int]:
    """(n-grams of `wanted` that occur, each with its first place, documents, tokens read, files of other kinds)."""
    readable, others = files_of(folder)
    lengths_by_end: dict[str, set[int]] = defaultdict(set)
    for n, grams in wanted.items():
        for gram in grams:
            lengths_by_end[gram.rpartition(" ")[2]].add(n)
    present: dict[str, CorpusPlace] = {}
    documents = read = 0
    for path in readable:
        name = path.relative_to(folder).as_posix()
        with decoding(path):
            for record, document in _documents(path):
                documents += 1
                window: deque[str] = deque(maxlen=LONGEST)
                before = read
                for token in document:
                    read += 1
                    window.append(token)
                    for n, gram in _ending(window, wanted, lengths_by_end):
                        if gram not in present:
                            present[gram] = CorpusPlace(name, record, read - before - n)
    if not read:
        raise UserError(f"the corpus {folder} holds no words in {len(readable)} files; give one with texts")
    return present, documents, read, others


@contextlib.contextmanager
def decoding(path: Path) -> Iterator[None]:
    """Within this context, bytes of `path` that are not UTF-8 raise UserError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 ({error.reason}); convert it, or take it out of the folder") from error


def _ending(
    window: deque[str], wanted: Mapping[int, set[str]], lengths_by_end: Mapping[str, set[int]]
) -> Iterator[tuple[int, str]]:
    """(n, n-gram) of all `wanted` n-grams that end with the window's last token; for most tokens there is none."""
    for n in lengths_by_end.get(window[-1], ()):
        if len(window) >= n and (gram := " ".join(list(window)[-n:])) in wanted[n]:
            yield n, gram


def _documents(path: Path) -> Iterator[tuple[int | None, Iterator[str]]]:
    """(line of the record, tokens) of every document in a file. A document is a whole text file, or a text in a record."""
    with path.open(encoding="utf-8-sig") as handle:
        if path.suffix.lower() != RECORDS:
            yield None, _streamed(handle)
            return
        for number, text in records(path, handle):
            yield number, iter(tokens(text))


def records(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """(line, counted from 1, and text) of every text in the records of a .jsonl file. UserError for a line that is not JSON."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = bounded_text.value(line)
        except ValueError as error:
            raise UserError(f"{path}, line {number} is not JSON ({error}); expected one record a line") from None
        for text in _texts(record):
            yield number, text


def _streamed(handle: TextIO) -> Iterator[str]:
    """The tokens of a text, read in blocks that end between two words."""
    rest = ""
    while block := handle.read(BLOCK):
        *whole, rest = regex.split(r"(?<=\s)(?=\S*\Z)", rest + block, maxsplit=1)
        yield from tokens("".join(whole))
    yield from tokens(rest)


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a record, at any depth; keys do not count."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _minhash(items: frozenset[str], permutations: int, seed: int) -> Any:
    import datasketch  # takes a second, and only this search needs it

    signature = datasketch.MinHash(num_perm=permutations, seed=seed)
    signature.update_batch([item.encode() for item in sorted(items)])
    return signature


def _candidates(
    sets: Sequence[frozenset[str]], others: Sequence[frozenset[str]], threshold: float, permutations: int, seed: int
) -> set[tuple[int, int]]:
    """Pairs whose MinHash signatures share a band."""
    import datasketch

    if not 0 < threshold <= 1:
        raise UserError(f"threshold is {threshold}; expected a Jaccard index above 0 and up to 1, for example 0.5")
    slack = 3 * math.sqrt(threshold * (1 - threshold) / permutations)
    index: Any = datasketch.MinHashLSH(
        threshold=max(0.01, threshold - slack), num_perm=permutations, weights=(0.1, 0.9)
    )  # a missed pair is lost, while a false candidate only costs a comparison
    for place, items in enumerate(others):
        if items:
            index.insert(place, _minhash(items, permutations, seed))
    return {
        (place, other)
        for place, items in enumerate(sets)
        if items
        for other in index.query(_minhash(items, permutations, seed))
    }
