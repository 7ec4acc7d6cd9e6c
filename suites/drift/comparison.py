"""Comparison: one snapshot against the one before it, axis by axis and prompt by prompt, as plain records.

The change of an axis is the mean over prompts of (mean B - mean A), tested by relabelling within each prompt. The tests of one
snapshot and level are a family, corrected by Benjamini-Hochberg; nothing is pooled over snapshots. Axis tests are primary, tests
of single prompts exploratory.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

import results_io
from suites.drift import centroid, embeddings, hedging, length, power, refusal, series_record, wordings
from suites.drift.corpus import AXES
from suites.drift.series_record import RecordedSnapshot
from suites.drift.snapshot import DEFAULT, ZERO
from suites.estimate import Estimate, missing
from suites.statistics import bootstrap, multiplicity, permutation, proportions

AXIS, PROMPT, HARM, GAPS, OVERLAP = (
    "axis",
    "prompt",
    "harm",
    "held_out_gap",
    "overlap",
)  # levels: each a family of its own
SCALARS = (refusal, hedging, length)  # metrics with a number for each output
Row = Mapping[str, Any]
Values = dict[str, list[float]]  # by prompt


@dataclass(frozen=True)
class SnapshotSide:
    """One snapshot as analyses read it.

    `vectors`: embeddings of its outputs by the text's hash, or None without an embedder. `classified`: the classifier finds the
    refusals. It needs all embeddings of every snapshot of the series, so that all snapshots are judged by the same detector.
    """

    snapshot: RecordedSnapshot
    settings: Mapping[str, Any]
    vectors: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    classified: bool = False
    known: dict[tuple[str, str], Values] = field(default_factory=dict, repr=False, compare=False)  # what `values` found

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of the default leg, which is tested. Legs are never pooled."""
        return series_record.rows_of(self.snapshot, DEFAULT)

    @cached_property
    def axes(self) -> tuple[str, ...]:
        asked = {row["axis"] for row in self.rows}
        return tuple(axis for axis in AXES if axis in asked)

    @property
    def embedder(self) -> Mapping[str, Any] | None:
        """What embeds its outputs: as recorded, else the installed embedder."""
        return self.snapshot.embedder or embeddings.identity()

    @property
    def space(self) -> str | None:
        """The hash of the embedder's weights; None without an embedder."""
        return self.embedder["weights_sha256"] if self.embedder else None

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(self.snapshot.started["corpus"]["markers"])

    @property
    def detector(self) -> refusal.DetectorStatus:
        """The detector of its refusals."""
        return refusal.detector(self.markers, self.classified)

    def classes(self, rows: Sequence[Row]) -> list[refusal.Class]:
        """The class of each output: refused, answered or empty."""
        return [refusal.classify(row, self.markers, self.vectors if self.classified else None) for row in rows]

    def of(self, axis: str) -> dict[str, list[Row]]:
        """The rows of an axis that have no error, by prompt."""
        return series_record.by_prompt([row for row in self.rows if row["axis"] == axis])

    def asked(self, axis: str) -> set[str]:
        """The names of an axis' prompts, of failed calls too."""
        return {f"{row['prompt']}@{row['version']}" for row in self.rows if row["axis"] == axis}

    def failed(self, axis: str) -> str:
        """The reason if too many calls failed for any metric of the axis; else ""."""
        own = [row for row in self.rows if row["axis"] == axis]
        errors = sum(row["error"] is not None for row in own)
        share = self.settings["most_errors"]
        return f"{errors} of {len(own)} calls failed, more than {share:.0%}" if errors > share * len(own) else ""

    def values(self, metric: Any, axis: str) -> Values:
        """A number for each output, by prompt, whose mean is the prompt's; prompts without enough are left out."""
        if (place := (metric.NUMBER, axis)) not in self.known:
            rows = self.of(axis).items()
            self.known[place] = {key: found for key, own in rows if (found := self._values(metric, own))}
        return self.known[place]

    def texts(self, axis: str) -> dict[str, list[str]]:
        """The texts of the outputs, by prompt."""
        return {key: [row["text"] for row in rows] for key, rows in self.of(axis).items()}

    def _values(self, metric: Any, rows: Sequence[Row]) -> list[float]:
        if metric is refusal:
            return [float(one == "refused") for one in self.classes(rows) if one != "empty"]
        if metric is hedging:
            texts = [row["text"] for row in rows]
            return hedging.values(texts) if hedging.density(texts).value is not None else []
        found = length.values(rows)
        return found if len(found) >= length.MINIMUM else []

    def clouds(self, axis: str) -> dict[str, np.ndarray]:
        """The embeddings of each prompt's outputs; a prompt with under 5 outputs or a missing embedding is left out."""
        known, found = self.vectors or {}, {}
        for key, rows in self.of(axis).items():
            hashes = [row["text_sha256"] for row in rows if row["text"].strip()]
            if len(hashes) >= centroid.MINIMUM and all(one in known for one in hashes):
                found[key] = np.stack([known[one] for one in hashes])
        return found


def seed_of(seed: int, *parts: str) -> int:
    """A separate seed for each test, so that no test depends on the order of the others."""
    return int(results_io.sha256([seed, *parts])[:8], 16)


# --- one snapshot -----------------------------------------------------------------------------------------------------


def described(side: SnapshotSide, metric: Any, axis: str, seed: int, names: Collection[str] | None = None) -> Estimate:
    """The level of a metric on an axis: the mean over prompts of their means, with a bootstrap interval over prompts.

    `names`: the prompts to describe, one version of each; default: the latest.
    """
    if why := side.failed(axis):
        return missing("error", why, metric.UNIT)
    names = wordings.once(side.of(axis)) if names is None else names
    values = {name: own for name, own in side.values(metric, axis).items() if name in names}
    least = side.settings["minimum_prompts"]
    if len(values) < least:
        return missing("insufficient_data", f"{len(values)} prompts with a value; at least {least} needed", metric.UNIT)
    means = [float(np.mean(values[key])) for key in sorted(values)]
    detail = _detail(side, metric, [row for name, own in side.of(axis).items() if name in names for row in own], values)
    found = bootstrap.mean(
        means, seed=seed_of(seed, metric.NAME, axis), resamples=side.settings["resamples"], unit=metric.UNIT
    )
    ci = found.ci if found.value is not None else None  # none with fewer than 20 prompts
    if ci is not None and ci.method == proportions.WILSON and metric is not refusal:
        ci = None  # all prompts have the same mean: Wilson's interval then suits a share, but not tokens or densities
    return Estimate(float(np.mean(means)), metric.UNIT, len(means), ci=ci, detail=detail)


def sampling_error(values: Values) -> float | None:
    """Standard error of the axis mean over these k fixed prompts: sqrt(sum over prompts of var/n)/k.

    None if a prompt has a single output.
    """
    if not values or any(len(one) < 2 for one in values.values()):
        return None
    return float(np.sqrt(sum(np.var(one, ddof=1) / len(one) for one in values.values())) / len(values))


def _detail(side: SnapshotSide, metric: Any, rows: Sequence[Row], values: Values) -> dict[str, Any]:
    detail: dict[str, Any] = {"standard_error": sampling_error(values)}
    if metric is length:
        spread = length.quartiles(length.values(rows))
        detail |= {"median": spread.value, **spread.detail, "cut_at_max_tokens": length.cut(rows)}
    if metric is refusal:
        classes = side.classes(rows)
        detail |= {"empty": classes.count("empty"), "safety_stops": sum(bool(row["safety"]) for row in rows)}
        detail |= {"refused": classes.count("refused"), "valid": len(classes) - classes.count("empty")}
    if metric is hedging:
        detail |= {"list_version": hedging.VERSION, "list_sha256": hedging.SHA256}
    return detail


def determinism(side: SnapshotSide, axis: str) -> dict[str, Any] | None:
    """In the zero leg: how many prompts gave a single text, and of how many prompts; None without the leg."""
    rows = series_record.by_prompt([row for row in series_record.rows_of(side.snapshot, ZERO) if row["axis"] == axis])
    if not rows:
        return None
    same = sum(len({row["text"] for row in own}) == 1 for own in rows.values())
    return {"deterministic": same, "prompts": len(rows)}


def changed_texts(before: SnapshotSide, after: SnapshotSide, axis: str) -> dict[str, Any] | None:
    """In the zero leg: how many prompts have another first text than before; None without the leg on both sides."""
    texts = []
    for side in (before, after):
        own = series_record.by_prompt(
            [row for row in series_record.rows_of(side.snapshot, ZERO) if row["axis"] == axis]
        )
        texts.append({key: rows[0]["text"] for key, rows in own.items()})
    both = texts[0].keys() & texts[1].keys()
    return {"changed": sum(texts[0][key] != texts[1][key] for key in both), "prompts": len(both)} if both else None


# --- two snapshots ----------------------------------------------------------------------------------------------------


def compare(before: SnapshotSide, after: SnapshotSide, seed: int) -> list[dict[str, Any]]:
    """The tests of a comparison: axis tests, single prompts and prompts by harm, each family corrected."""
    axes = [axis for axis in after.axes if axis in before.axes]
    pairs = [(metric, axis) for axis in axes for metric in SCALARS]
    m = len(pairs) + len(axes)
    rows = [_scalar(before, after, metric, axis, seed, m) for metric, axis in pairs]
    if after.vectors is not None:
        rows += [_centroid(before, after, axis, seed, m) for axis in axes]
    if after.settings["prompt_level"]:
        rows += _prompts(before, after, pairs, seed)
    rows += _by_harm(before, after, pairs, seed)
    return corrected(rows, after.settings["alpha"])


def corrected(rows: Sequence[dict[str, Any]], alpha: float) -> list[dict[str, Any]]:
    """The records with the adjusted p of their family (one per level), its size and the number excluded from it."""
    found = []
    for level in dict.fromkeys(row["level"] for row in rows):
        own = {str(place): row for place, row in enumerate(rows) if row["level"] == level}
        family = multiplicity.adjust({name: row["p"] for name, row in own.items()}, level, alpha)
        for name, row in own.items():
            numbers = {"m": family.m, "excluded": len(family.excluded), "adjusted_p": family.adjusted.get(name)}
            found.append({**row, **numbers, "rejected": name in family.rejected})
    return found


def _record(metric: Any, axis: str, level: str, found: Estimate, **rest: Any) -> dict[str, Any]:
    direction = (
        None if found.value is None or metric is centroid else float(np.sign(found.value))
    )  # a distance has none
    own = {"metric": metric.NUMBER, "name": metric.NAME, "axis": axis, "level": level, "unit": found.unit}
    said = {"status": found.status, "reason": found.reason, "difference": found.value, "direction": direction}
    tested = {"p": found.p_value, "test": found.test, "n": found.n, "detail": dict(found.detail)}
    return {
        **own,
        **said,
        **tested,
        "prompt": None,
        "harm": None,
        "before": None,
        "after": None,
        "detectable": None,
        **rest,
    }


def blocked(before: SnapshotSide, after: SnapshotSide, metric: Any, axis: str) -> Estimate | None:
    """Why there is no test: too many calls failed or, for lengths, too many outputs were cut; None if there is one."""
    for side in (before, after):
        if why := side.failed(axis):
            return missing("error", f"{side.snapshot.id}: {why}", metric.UNIT)
        rows = [row for own in side.of(axis).values() for row in own]
        if metric is length and (share := length.cut(rows)) > length.CENSORED:
            reason = f"{share:.0%} of the outputs of {side.snapshot.id} end at max_tokens: their lengths are censored"
            return missing("undefined", reason, metric.UNIT)
    return None


def _scalar(before: SnapshotSide, after: SnapshotSide, metric: Any, axis: str, seed: int, m: int) -> dict[str, Any]:
    """The test of one metric on one axis."""
    if (why := blocked(before, after, metric, axis)) is not None:
        return _record(metric, axis, AXIS, why)
    values = before.values(metric, axis), after.values(metric, axis)
    keys = wordings.once(values[0].keys() & values[1].keys())
    if len(keys) < (least := after.settings["minimum_prompts"]):
        reason = f"{len(keys)} prompts with a value in both snapshots; at least {least} needed"
        return _record(metric, axis, AXIS, missing("insufficient_data", reason, metric.UNIT, len(keys)))
    found, a, b = tested(before, after, metric, axis, keys, seed_of(seed, after.snapshot.id, metric.NAME, axis), m)
    error = power.standard_error(a, b)
    detail = dict(found.detail) | {"standard_error": error, "prompts": len(keys)}
    if metric is length:
        side = length.kolmogorov_smirnov(np.concatenate(a), np.concatenate(b))
        detail |= {"kolmogorov_smirnov": {"statistic": side.value, "p": side.p_value}}
    level = [float(np.mean([np.mean(one) for one in side])) for side in (a, b)]
    return _record(
        metric,
        axis,
        AXIS,
        Estimate(found.number / len(keys), metric.UNIT, found.n, p_value=found.p_value, test=found.test, detail=detail),
        before=level[0],
        after=level[1],
        detectable=_detectable(metric, error, b, after.settings["alpha"]),
    )


def _detectable(metric: Any, error: float | None, outputs: Sequence[Sequence[float]], alpha: float) -> float | None:
    """The change that the test could have detected; for refusals also if all outputs, or none, are refusals."""
    if metric is refusal and error == 0:
        return power.detectable_share(sum(map(len, outputs)), alpha)
    return power.detectable(error, alpha)


def tested(
    before: SnapshotSide, after: SnapshotSide, metric: Any, axis: str, keys: Sequence[str], seed: int, m: int = 1
) -> tuple[Estimate, list[list[float]], list[list[float]]]:
    """(sum over prompts of B - A with its p, the values of A, those of B), relabelled within each prompt."""
    a, b = ([side.values(metric, axis)[key] for key in keys] for side in (before, after))
    if metric is hedging:
        texts = [[side.texts(axis)[key] for key in keys] for side in (before, after)]
        return hedging.axis_test(*texts, seed=seed, m=m), a, b
    strata = tuple([key for key, one in zip(keys, side, strict=True) for _ in one] for side in (a, b))
    found = permutation.difference(np.concatenate(a), np.concatenate(b), seed=seed, strata=(strata[0], strata[1]), m=m)
    return found, a, b


def _of_one_prompt(
    before: SnapshotSide, after: SnapshotSide, metric: Any, axis: str, keys: tuple[str, str], seed: int, m: int = 1
) -> Estimate:
    """The change of one prompt, by its name before and after."""
    if metric is hedging:
        texts = [[side.texts(axis)[key]] for side, key in zip((before, after), keys, strict=True)]
        return hedging.axis_test(*texts, seed=seed, m=m)
    values = [side.values(metric, axis)[key] for side, key in zip((before, after), keys, strict=True)]
    return permutation.difference(*values, seed=seed, m=m)


def _centroid(before: SnapshotSide, after: SnapshotSide, axis: str, seed: int, m: int) -> dict[str, Any]:
    if (why := blocked(before, after, centroid, axis)) is not None:
        return _record(centroid, axis, AXIS, why)
    clouds = before.clouds(axis), after.clouds(axis)
    keys = wordings.once(clouds[0].keys() & clouds[1].keys())
    if len(keys) < (least := after.settings["minimum_prompts"]):
        reason = f"{len(keys)} prompts with embeddings in both snapshots; at least {least} needed"
        return _record(centroid, axis, AXIS, missing("insufficient_data", reason, centroid.UNIT, len(keys)))
    a, b = ([side[key] for key in keys] for side in clouds)
    own = seed_of(seed, after.snapshot.id, centroid.NAME, axis)
    found = centroid.axis_test(a, b, seed=own, m=m)
    if found.value is None:
        return _record(centroid, axis, AXIS, found)
    noise = float(np.mean([centroid.corrected(x, y) for x, y in zip(a, b, strict=True)]))
    detail = dict(found.detail) | {
        "corrected": noise,
        "floor": centroid.floor(a, own),
        "label": centroid.label(found.value),
    }
    texts = {row["text"] for side in (before, after) for own in side.of(axis).values() for row in own}
    detail |= {"prompts": len(keys), "truncated": sum(embeddings.truncated(text) for text in texts)}
    whole = Estimate(found.value, centroid.UNIT, found.n, p_value=found.p_value, test=found.test, detail=detail)
    could = centroid.detectable(a, b, own, after.settings["alpha"])
    return _record(centroid, axis, AXIS, whole, after=found.value, detectable=could)


def _prompts(
    before: SnapshotSide, after: SnapshotSide, pairs: Sequence[tuple[Any, str]], seed: int
) -> list[dict[str, Any]]:
    """Exploratory tests of single public prompts. Held-out prompts have no records of their own."""
    asked = []
    for metric, axis in pairs:
        if blocked(before, after, metric, axis) is None:
            values, rows = (before.values(metric, axis), after.values(metric, axis)), after.of(axis)
            public = [key for key in sorted(values[0].keys() & values[1].keys()) if rows[key][0]["split"] == "public"]
            asked += [(metric, axis, key, rows[key][0]["harm"], *(side[key] for side in values)) for key in public]
    alpha = after.settings["alpha"] / max(1, len(asked))  # what the smallest p of a family of this size must pass
    found = []
    for metric, axis, key, harm, a, b in asked:
        own = seed_of(seed, after.snapshot.id, metric.NAME, key)
        one = _of_one_prompt(
            before, after, metric, axis, (key, key), own, 2 * len(asked)
        )  # two tails share the smallest p
        could = _detectable(metric, power.standard_error([a], [b]), [b], alpha)
        sides = {"before": float(np.mean(a)), "after": float(np.mean(b)), "detectable": could}
        ci = asdict(proportions.wilson(int(sum(b)), len(b)).bounds) if metric is refusal else None
        found.append(_record(metric, axis, PROMPT, one, prompt=key, harm=harm, ci=ci, **sides))
    return found


def _by_harm(
    before: SnapshotSide, after: SnapshotSide, pairs: Sequence[tuple[Any, str]], seed: int
) -> list[dict[str, Any]]:
    """Separate tests of clearly harmful and of contested prompts, since a safety change is no normative drift."""
    found = []
    for metric, axis in pairs:
        values, rows = (before.values(metric, axis), after.values(metric, axis)), after.of(axis)
        for harm in ("clear", "contested"):
            common = wordings.once(values[0].keys() & values[1].keys())
            keys = [key for key in common if rows[key][0]["harm"] == harm]
            if keys and blocked(before, after, metric, axis) is None:
                own = seed_of(seed, after.snapshot.id, metric.NAME, axis, harm)
                one, a, b = tested(before, after, metric, axis, keys, own)
                level = [float(np.mean([np.mean(x) for x in side])) for side in (a, b)]
                mean = Estimate(one.number / len(keys), metric.UNIT, one.n, p_value=one.p_value, test=one.test)
                could = _detectable(metric, power.standard_error(a, b), b, after.settings["alpha"])
                sides = {"before": level[0], "after": level[1], "detectable": could}
                found.append(_record(metric, axis, HARM, mean, harm=harm, **sides))
    return found


def overlaps(side: SnapshotSide, seed: int) -> list[dict[str, Any]]:
    """Two versions of a public prompt in the same snapshot: the effect of the new wording. Their series are never joined."""
    found = []
    for axis in side.axes:
        for metric in SCALARS:
            if blocked(side, side, metric, axis) is not None:
                continue
            values, rows = side.values(metric, axis), side.of(axis)
            by_id: dict[str, list[tuple[int, str]]] = {}
            for key in values:
                if rows[key][0]["split"] == "public":
                    by_id.setdefault(rows[key][0]["prompt"], []).append((rows[key][0]["version"], key))
            for versions in by_id.values():
                for (_, old), (_, new) in itertools.pairwise(sorted(versions)):
                    one = _of_one_prompt(side, side, metric, axis, (old, new), seed_of(seed, metric.NAME, new))
                    level = [float(np.mean(values[key])) for key in (old, new)]
                    found.append(_record(metric, axis, OVERLAP, one, prompt=new, before=level[0], after=level[1]))
    return found


def changes_by_split(before: SnapshotSide, after: SnapshotSide, metric: Any, axis: str) -> dict[str, dict[str, float]]:
    """{split: {prompt: mean B - mean A}}, from which the held-out gap is computed; a revealed prompt belongs to neither side."""
    values, rows = (before.values(metric, axis), after.values(metric, axis)), after.of(axis)
    found: dict[str, dict[str, float]] = {"public": {}, "held_out": {}}
    for key in wordings.once(values[0].keys() & values[1].keys()):
        if (split := rows[key][0]["split"]) in found:
            found[split][key] = float(np.mean(values[1][key]) - np.mean(values[0][key]))
    return found
