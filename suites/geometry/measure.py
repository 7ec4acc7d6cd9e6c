"""Run construct sets on a model: ask, record, and compute coordinates. Nothing already known is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from results_io import UserError
from shown_progress import Progress
from suites import asking, likelihood, lock
from suites.applicability import MISSING, READS
from suites.asking import Asker, no_bar
from suites.geometry import construct, coordinates, fixed_scale, lint
from suites.geometry.construct import Construct, ConstructSet, ConstructVariant
from suites.geometry.coordinates import SEPARATOR, Coordinates
from suites.geometry.metric import centre
from suites.item import Item, SamplingLeg, Suite
from suites.log import generations
from suites.log.cache import Cache
from suites.log.generations import GenerationLog, RecordedRun, Slot
from suites.models.base import CAPABILITIES, ModelUnderTest

CHUNK = 256  # outputs or choices between two writes to the disk
CACHE_NAME = "generations.sqlite"
NO_CHAT = "its conversation needs a model that takes chat turns, or a transcript in the construct"
MOST_MISSING = 0.2  # largest share of a variant's outputs that may lack a coordinate


@dataclass(frozen=True)
class VariantOutputs:
    """The outputs of one variant: scaled points [draw, axis], and how many outputs have no coordinate, by reason."""

    points: Float[np.ndarray, "draw axis"]
    without: Mapping[str, int]
    texts: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether at most a fifth of the outputs lack a coordinate."""
        lost = sum(self.without.values())
        return len(self.points) > 0 and lost <= MOST_MISSING * (len(self.points) + lost)


@dataclass(frozen=True)
class MeasuredConstruct:
    """A construct with the outputs of its variants, by id; if there are none, `reason` says why.

    `left_out`: why `construct` lacks some declared variants; "" if it has all.
    """

    construct: Construct
    outputs: Mapping[str, VariantOutputs]
    reason: str | None = None
    left_out: str = ""

    def usable(self, variants: Sequence[ConstructVariant]) -> str | None:
        """None if all these variants have enough outputs; else a sentence about the first that has not."""
        for one in variants:
            if not self.outputs[one.id].usable:
                found = self.outputs[one.id]
                lost = ", ".join(f"{count} {why}" for why, count in found.without.items()) or "none asked"
                return (
                    f"variant {one.id} has {len(found.points)} outputs with a coordinate ({lost}); over 80 % are needed"
                )
        return None

    def draws(self, variants: Sequence[ConstructVariant]) -> list[Float[np.ndarray, "draw axis"]]:
        return [self.outputs[one.id].points for one in variants]

    def means(self, variants: Sequence[ConstructVariant]) -> Float[np.ndarray, "wording axis"]:
        return np.array([centre(self.outputs[one.id].points) for one in variants])


@dataclass(frozen=True)
class SetRun:
    """A set on a model: its constructs measured, the coordinates' identity, and `reason` if it does not apply.

    `deterministic`: outputs cannot vary, since they are likelihoods or greedy; a single draw at a temperature above 0 can.
    """

    constructs: ConstructSet
    coordinates: Coordinates | None
    identity: Mapping[str, Any]
    measured: tuple[MeasuredConstruct, ...]
    deterministic: bool
    reason: str | None = None
    environments: tuple[Mapping[str, Any], ...] = ()

    @property
    def as_declared(self) -> bool:
        """Whether coordinates are of the kind that the set declares; its scale and references hold only in that kind."""
        return self.coordinates is not None and self.coordinates.kind == self.constructs.coordinates.get("kind")

    @property
    def scale(self) -> Mapping[str, Any]:
        """The fixed scale; empty in coordinates of another kind than the declared one."""
        return self.constructs.scale if self.as_declared else {}

    @property
    def plane(self) -> Float[np.ndarray, "two axis"] | None:
        """For coordinates without declared axes, the two principal axes of the scale; None otherwise, or if it has none."""
        return None if self.coordinates is None or self.coordinates.axes else fixed_scale.plane(self.scale)

    def reference(self, one: Construct) -> tuple[float, ...] | None:
        """The construct's reference in units of the scale; None if it has none in these coordinates."""
        if one.reference is None or not self.as_declared:
            return None
        return tuple(fixed_scale.apply(np.array([one.reference]), self.scale)[0].tolist())

    def in_unit(self) -> list[Construct]:
        """The measured constructs, with their references in units of the scale."""
        live = [one.construct for one in self.measured if one.reason is None]
        return [replace(one, reference=self.reference(one)) for one in live]

    def reference_variance(self, one: Construct) -> float:
        """The variance of the construct's reference in squared units of the scale."""
        axes = 1 if one.reference is None else len(one.reference)
        return fixed_scale.apply_variance(one.reference_variance, axes, self.scale)


@dataclass(frozen=True)
class GeometryRun:
    """The result of `run`."""

    model: str
    identity: Mapping[str, Any]
    seed: int
    sets: tuple[SetRun, ...]
    asked: int
    reused: int
    log: Path


def run(
    sets: Sequence[ConstructSet],
    model: ModelUnderTest,
    folder: Path,
    settings: Mapping[str, Any],
    progress: Callable[[str], Any] | None = None,
    *,
    seed: int = 0,
    embedder: coordinates.Embedding | None = None,
) -> GeometryRun:
    """Run every set on `model`; the record goes to `folder` (results/<model>/geometry).

    `settings`: draws, temperature, and `coordinates`, a kind that replaces the declared one (None: it does not). A stopped run
    that is called again continues where it stopped. With other coordinates of generated texts nothing is asked again. UserError
    for impossible coordinates or settings, and as `GenerationLog`.
    """
    _check(settings)
    execution = getattr(model, "execution", {})
    folder = Path(folder)
    with (
        GenerationLog(folder / generations.NAME, model.identity, model.name, seed, execution) as log,
        Cache(folder / CACHE_NAME) as store,
    ):
        asker = Asker(model, log, store, CHUNK)
        before = _choices_known(log)
        found = tuple(_one_set(one, asker, settings, progress or no_bar, embedder) for one in sets)
        compared = _choices_known(log) - before
    asked, known = asker.asked + compared, asker.reused + before
    return GeometryRun(model.name, model.identity, seed, found, asked, known, folder / generations.NAME)


def _check(settings: Mapping[str, Any]) -> None:
    """UserError for an invalid number of draws or temperature."""
    draws, temperature = settings["draws"], settings["temperature"]
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
        raise UserError(f"geometry.draws={draws} is wrong; expected a whole number above 0: outputs of a variant")
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 <= temperature < np.inf:
        raise UserError(f"geometry.temperature={temperature} is wrong; expected a number from 0")


def _choices_known(log: GenerationLog) -> int:
    """Number of items whose choices this model has already compared, according to the record."""
    return sum(len(one.likelihoods) for one in log.runs.values() if one.started["model_fingerprint"] == log.fingerprint)


def _one_set(
    own: ConstructSet,
    asker: Asker,
    settings: Mapping[str, Any],
    progress: Callable[[str], Any],
    embedder: coordinates.Embedding | None,
) -> SetRun:
    if (reason := why_not(own, asker.model)) is not None:
        return SetRun(own, None, {}, (), False, reason)
    wanted = settings.get("coordinates")
    data = own.coordinates if wanted is None or wanted == own.coordinates.get("kind") else {"kind": wanted}
    space = coordinates.declared(data, f"{own.name}/{construct.REFERENCE}", embedder)
    scale = own.scale if data is own.coordinates else {}
    if data is own.coordinates:
        lint.check(own, space)
    if space.exact and "logprobs" not in asker.model.capabilities:
        return SetRun(own, space, {}, (), True, MISSING["logprobs"])
    sampled = not space.exact and "sampling" in asker.model.capabilities and settings["temperature"] > 0
    leg = _leg(own, settings, sampled)
    chat = "chat" in asker.model.capabilities and not space.exact  # likelihoods are of plain texts
    asked = {one.id: askable(one, chat) for one in own.constructs if one.mode_of_output == construct.SEMANTIC}
    suites = {name: as_suite(own, one, space, leg, chat) for name, one in asked.items() if one.variants}
    for suite in suites.values():
        expected = len(suite.items) * sum(leg.samples for leg in suite.legs)
        asker.log.begin(suite, expected, {}, sum(bool(item.choices) for item in suite.items))
    with progress(f"geometry: {own.name}") as bar:
        if space.exact:
            _ask_choices(list(suites.values()), asker, bar)
        else:
            asker.ask([q for one in suites.values() for q in asking.questions(one, one.legs, asker.log.seed)], bar)
    measured, environments = [], []
    for one in own.constructs:
        if one.id not in suites:
            measured.append(MeasuredConstruct(one, {}, NO_CHAT if one.id in asked else construct.SYMBOLIC_REASON))
            continue
        recorded, left_out = asker.log.run_of(suites[one.id]), NO_CHAT if asked[one.id] != one else ""
        asker.log.finish(recorded)
        environments += recorded.environments
        outputs = _outputs(asked[one.id], recorded, space, scale)
        measured.append(MeasuredConstruct(asked[one.id], outputs, left_out=left_out))
    return SetRun(own, space, space.identity(scale), tuple(measured), not sampled, None, tuple(environments))


def askable(one: Construct, chat: bool) -> Construct:
    """The construct with the variants that can be asked: conversations need a model with chat turns, or a transcript."""
    kept = tuple(v for v in one.variants if chat or one.written(v) is not None)
    return one if kept == one.variants else replace(one, variants=kept)


def why_not(own: ConstructSet, model: ModelUnderTest) -> str | None:
    """Why a set does not apply to a model; None if it does."""
    lacking = [MISSING[name] for name in own.requires if name in CAPABILITIES and name not in model.capabilities]
    if not lacking and READS in own.requires:
        prompts = [one.written(v) or v.prompt for one in own.constructs for v in one.variants]
        bad = [prompt for prompt in prompts if not model.reads(prompt)]
        lacking = [f"the model's vocabulary cannot write {len(bad)} of {len(prompts)} prompts"] if bad else []
    return "; ".join(lacking) or None


def as_suite(own: ConstructSet, one: Construct, space: Coordinates, leg: SamplingLeg, chat: bool) -> Suite:
    """The construct as a suite for the record: an item for each variant, or for each variant and axis if choices are compared.

    `chat`: earlier turns are sent as chat turns; else they are written into the prompt by the construct's transcript.

    Items of generated texts do not depend on the coordinates, so the record serves another embedder as well.
    """
    if space.exact:
        items = tuple(item for v in one.variants for item in space.items(v.id, str(one.written(v)), v.system))
        identity = lock.digest([one.sha256, [dict(axis) for axis in space.axes]])
    else:
        items, identity = tuple(_item(one, v, chat) for v in one.variants), one.sha256
    return Suite(
        id=f"geometry.{own.name}.{one.id}",
        version=one.version,
        title=one.title,
        description=one.title,
        mode="geometry",
        contexts=(),
        requires=own.requires,
        legs=() if space.exact else (leg,),
        scorer={"kind": "none"},
        parameters={},
        trace={},
        minimum=1,
        gate=None,
        items=items,
        sha256=identity,
    )


def _item(one: Construct, variant: ConstructVariant, chat: bool) -> Item:
    if chat:
        return Item(variant.id, variant.prompt, system=variant.system, earlier=variant.earlier)
    return Item(variant.id, str(one.written(variant)), system=variant.system)


def _leg(own: ConstructSet, settings: Mapping[str, Any], sampled: bool) -> SamplingLeg:
    plain = SamplingLeg(
        "greedy", max_tokens=own.sampling.get("max_tokens", 64), stop=tuple(own.sampling.get("stop", ()))
    )
    if not sampled:
        return plain
    return replace(plain, name="draws", temperature=float(settings["temperature"]), samples=int(settings["draws"]))


def _ask_choices(suites: Sequence[Suite], asker: Asker, bar: Progress) -> None:
    """Record the likelihoods of every item that has none, in chunks; each is on disk before the next is asked."""
    bar.expect(sum(len(suite.items) for suite in suites))
    for suite in suites:
        for start in range(0, len(suite.items), CHUNK):
            chunk, have = suite.items[start : start + CHUNK], asker.log.run_of(suite).likelihoods
            wanted = [item for item in chunk if item.id not in have]
            if wanted:
                found = zip(wanted, likelihood.ask(asker.model, wanted), strict=True)
                asker.log.add([asker.log.likelihood(suite, item.id, one) for item, one in found])
            bar.advance(len(chunk))


def _outputs(
    one: Construct, recorded: RecordedRun, space: Coordinates, scale: Mapping[str, Any]
) -> dict[str, VariantOutputs]:
    if space.exact:
        found = {}
        for variant in one.variants:
            lines = [recorded.likelihoods[f"{variant.id}{SEPARATOR}{place}"] for place in range(len(space.axes))]
            point = space.of_choices([generations.to_scores(line) for line in lines])
            found[variant.id] = VariantOutputs(fixed_scale.apply(point[None], scale), {})
        return found
    by_variant: dict[str, list[tuple[Slot, Mapping[str, Any]]]] = {variant.id: [] for variant in one.variants}
    for slot, line in recorded.generations.items():
        by_variant[slot.item].append((slot, line))
    return {
        variant.id: _of_texts(
            by_variant[variant.id],
            space,
            scale,
            one.answer_pattern if variant.method == "reasoning" else None,  # only its final answer counts
        )
        for variant in one.variants
    }


def _of_texts(
    lines: Sequence[tuple[Slot, Mapping[str, Any]]],
    space: Coordinates,
    scale: Mapping[str, Any],
    answer_pattern: str | None,
) -> VariantOutputs:
    lost: Counter[str] = Counter()
    texts = []
    for _, line in sorted(lines, key=lambda pair: pair[0].sample):
        why, text = coordinates.unusable(generations.to_generation(line), answer_pattern)
        if why:
            lost[why] += 1
        else:
            texts.append(text)
    values = space.of_texts(texts)
    readable = np.isfinite(values).all(1)
    if not readable.all():
        lost["unreadable"] += int((~readable).sum())
    kept = tuple(texts[place] for place in np.flatnonzero(readable))
    return VariantOutputs(fixed_scale.apply(values[readable], scale), dict(lost), kept)
