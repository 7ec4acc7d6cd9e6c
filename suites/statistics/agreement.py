"""How far repeated outputs of one item agree, and whether a second run reproduces the first."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from results_io import UserError
from suites import normalise
from suites.estimate import Estimate, missing
from suites.statistics import proportions

MINIMUM_OUTPUTS = 3  # fewer say nothing about agreement
SAME_VERDICTS = 0.95  # share of items with the same verdict that makes a run reproducible
SAME_METRIC = 0.05  # and how far apart the two rates may be, absolute


def mode_consistency(texts: Sequence[str | None], equal_form: Callable[[str], str] = normalise.normalise) -> Estimate:
    """Share of the most frequent output, max_k count_k / n; None marks an output that is an error and is not counted.

    Outputs are equal if their `equal_form` is, here and in `pairwise_agreement`. `detail`: `modes`, the most frequent outputs,
    and `counts`. Insufficient under 3 outputs; "error" if all are errors.
    """
    outputs, excluded = _outputs(texts, equal_form)
    if refused := _too_few(outputs, excluded):
        return refused
    counts = Counter(outputs)
    most = max(counts.values())
    modes = sorted(text for text, count in counts.items() if count == most)
    detail = {"modes": modes, "counts": dict(sorted(counts.items()))}
    return Estimate(most / len(outputs), "share of outputs", len(outputs), excluded=excluded, detail=detail)


def pairwise_agreement(
    texts: Sequence[str | None],
    equal_form: Callable[[str], str] = normalise.normalise,
    same: Callable[[str, str], bool] | None = None,
) -> Estimate:
    """Share of the C(n, 2) pairs of outputs that are equal, or that `same` accepts (for example, similarity above a threshold).

    Insufficient under 3 outputs; "error" if all are errors. Sameness by similarity is not transitive; the assumptions say so.
    """
    outputs, excluded = _outputs(texts, equal_form)
    if refused := _too_few(outputs, excluded):
        return refused
    pairs = list(itertools.combinations(outputs, 2))
    matches = sum(first == second if same is None else bool(same(first, second)) for first, second in pairs)
    assumptions = () if same is None else ("sameness by similarity is not transitive",)
    return Estimate(
        matches / len(pairs),
        "share of pairs",
        len(outputs),
        excluded=excluded,
        assumptions=assumptions,
        detail={"pairs": len(pairs), "matches": matches},
    )


def determinism(runs: Sequence[Sequence[str | None]], clusters: Sequence[str] | None = None) -> Estimate:
    """Share of items whose outputs are identical, character for character, in all repeats. `runs` [repeat][item].

    An item that is an error (None) in any repeat is excluded. The interval allows for dependent items, grouped by `clusters`
    [item]. Insufficient under 2 repeats; UserError for repeats of different length.
    """
    if len(runs) < 2:
        return missing("insufficient_data", f"{len(runs)} repeats; identity needs at least 2", "share of items")
    if len({len(run) for run in runs}) > 1:
        raise UserError(
            f"repeats have {', '.join(str(len(run)) for run in runs)} items; expected the same items: run them again"
        )
    labels = range(len(runs[0])) if clusters is None else clusters
    items = [(outputs, label) for *outputs, label in zip(*runs, labels, strict=True) if None not in outputs]
    errors = len(runs[0]) - len(items)
    same = [len(set(outputs)) == 1 for outputs, _ in items]
    share = proportions.clustered(same, [str(label) for _, label in items], unit="share of items")
    return _with(share, {"error": errors} if errors else {}, {"repeats": len(runs)})


def reproducibility(
    first: Mapping[str, bool | None],
    second: Mapping[str, bool | None],
    same_verdicts: float = SAME_VERDICTS,
    same_metric: float = SAME_METRIC,
) -> Estimate:
    """Share of items (by id) with the same verdict in two runs; `detail["reproducible"]` says whether they agree.

    Reproducible: by default, at least 95 % of verdicts are equal and the rates differ by at most 5 percentage points (absolute).
    Items that lack a verdict on one side or both are excluded. Undefined without shared items.
    """
    shared = [k for k in first.keys() & second.keys() if first[k] is not None and second[k] is not None]
    dropped = len(first.keys() | second.keys()) - len(shared)
    equal = sum(first[key] == second[key] for key in shared)
    share = proportions.wilson(equal, len(shared), unit="share of items")
    if share.value is None:
        return share
    gap = abs(sum(bool(first[key]) - bool(second[key]) for key in shared)) / len(shared)
    slack = 1e-12  # .05 apart is still within 5 points, whatever its last binary digit
    agrees = share.value >= same_verdicts - slack and gap <= same_metric + slack
    excluded = {"without a verdict on one side": dropped} if dropped else {}
    return _with(share, excluded, {"metric_difference": gap, "reproducible": agrees})


def _outputs(texts: Sequence[str | None], equal_form: Callable[[str], str]) -> tuple[list[str], dict[str, int]]:
    outputs = [equal_form(text) for text in texts if text is not None]
    errors = len(texts) - len(outputs)
    return outputs, {"error": errors} if errors else {}


def _too_few(outputs: Sequence[str], excluded: Mapping[str, int]) -> Estimate | None:
    if not outputs and excluded:
        return missing("error", "every output is an error", "share", excluded=excluded)
    if len(outputs) < MINIMUM_OUTPUTS:
        reason = f"{len(outputs)} outputs; agreement needs at least {MINIMUM_OUTPUTS}"
        return missing("insufficient_data", reason, "share", len(outputs), excluded=excluded)
    return None


def _with(estimate: Estimate, excluded: Mapping[str, int], detail: Mapping[str, object]) -> Estimate:
    """The estimate with more exclusions and details."""
    return dataclasses.replace(
        estimate, excluded={**estimate.excluded, **excluded}, detail={**estimate.detail, **detail}
    )
