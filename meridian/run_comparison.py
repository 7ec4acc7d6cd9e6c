"""Two runs side by side: two models, two circuits, two checkpoints or two seeds of the same task.

Differences are paired by prompt if both runs have the same prompts; otherwise they are unpaired. Tiers and verdicts are read
from both certificates and never judged again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy
from jaxtyping import Float

import results_io
from calibrations.certificate import BEHAVIOUR
from calibrations.certificate_row import MetricRow
from calibrations.evidence import Head
from calibrations.statistics import overlap_p
from calibrations.tier_words import tier_name
from meridian import overrides
from meridian.figures import static
from meridian.figures.heads import layer_head_map
from meridian.figures.values import EstimateMark, Forest, HeatMap
from meridian.run_differences import LEVEL, HeadDifferences, NoDifference, QuantityDifference, RunPair
from meridian.run_folder import CERTIFICATE, RunFolder
from results_io import UserError
from shown_text import first_of

FOLDER, FILE = "compare", "comparison.json"
OWN_CIRCUIT = ("19", "20", "22", "24", "28")  # measurements that record the circuit they are about
NUMBERS = ("a", "b", "difference", "low", "high")  # fields of a difference; null if there is none
NAMES_SHOWN = 3  # in a sentence
GAINED, LOST, OTHER = "gained", "lost", "changed"


def open_side(path: str | Path) -> RunFolder:
    """The folder of a finished run whose results belong together.

    UserError if it is not one, if it mixes results of different weights, prompts or circuits, or if its verdicts are about older
    results.
    """
    run = RunFolder.open(path)
    subject = run.certificate["subject"]
    files = {file.name.partition("_")[0]: file for file in sorted(run.path.glob("*_*.json"))}
    for number, file in files.items():
        document = results_io.read(file)
        for name in ("model_sha256", "prompts_sha256", *(["circuit_sha256"] if number in OWN_CIRCUIT else [])):
            found = document.get("subject", {}).get(name, subject[name])
            if found != subject[name]:
                what = name.partition("_")[0].replace("model", "weights")
                raise UserError(
                    f"{file} is about other {what} ({str(found)[:8]}) than the certificate beside it "
                    f"({str(subject[name])[:8]}); repeat the run that {path} is of"
                )
        inputs = document.get("inputs_sha256", {}) if document.get("kind") == "calibration" else {}
        for needed, digest in inputs.items():
            if needed in files and results_io.file_digest(files[needed]) != digest:
                raise UserError(f"{file} was made from an older result {needed} than {path} holds; repeat the run")
    return RunFolder.open_as_certified(path)


@dataclass(frozen=True, repr=False)
class RunComparison:
    """What differs between run `a` and run `b`; every difference is b - a."""

    a: RunFolder
    b: RunFolder

    @cached_property
    def subjects(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        return self.a.certificate["subject"], self.b.certificate["subject"]

    @cached_property
    def pair(self) -> RunPair:
        return RunPair(self.a.evidence, self.b.evidence, self.a.settings)

    def same(self, name: str) -> bool:
        """True if both subjects agree on `name` ("task", "model_sha256", "circuit_sha256")."""
        return self.subjects[0][name] == self.subjects[1][name]

    @property
    def paired(self) -> bool:
        return self.same("task") and self.pair.paired

    @property
    def same_shape(self) -> bool:
        """True if both models have the same layers and heads per layer."""
        return self.pair.a.heads == self.pair.b.heads

    @cached_property
    def quantities(self) -> list[QuantityDifference | NoDifference]:
        """Differences of behaviour and faithfulness; empty between two tasks."""
        return self.pair.quantities() if self.same("task") else []

    @cached_property
    def effects(self) -> list[HeadDifferences | NoDifference]:
        """Differences of every head's effects, or the reason why there are none; empty between two tasks or two shapes."""
        return self.pair.effects if self.same("task") and self.same_shape else []

    @property
    def heads(self) -> list[HeadDifferences]:
        """The effects whose heads could be compared."""
        return [one for one in self.effects if isinstance(one, HeadDifferences)]

    @cached_property
    def circuits(self) -> dict[str, Any]:
        """Heads that both circuits share, heads of one circuit only, the Jaccard index, and the overlap expected by chance.

        By chance means that b's heads are drawn at random from each layer, as many as b has there. `p` is then the probability of
        at least as many shared heads. `p_any_layer` (hypergeometric) draws from all layers, so it is small even for circuits that
        merely use the same layers. There are no numbers if the models differ in layers or heads.
        """
        first, second = (set(e.circuit_heads) for e in (self.pair.a, self.pair.b))
        sizes = {"a": len(first), "b": len(second), "model": [len(e.heads) for e in (self.pair.a, self.pair.b)]}
        if not self.same_shape:
            return {"sizes": sizes, "jaccard": None, "reason": "the models have different layers or heads"}
        shared, n = first & second, len(self.pair.a.heads)
        roles = [(head, self.pair.a.roles[head], self.pair.b.roles[head]) for head in sorted(shared)]
        law = chance_overlap(first, second, self.pair.a.heads)
        return {
            "sizes": sizes,
            "shared": sorted(shared),
            "only_a": sorted(first - second),
            "only_b": sorted(second - first),
            "jaccard": len(shared) / len(first | second) if first | second else None,
            "shared_by_chance": float(np.arange(len(law)) @ law),
            "p": float(law[len(shared) :].sum()),
            "p_any_layer": overlap_p(len(shared), n, len(first), len(second)),
            "other_role": [[*head, one, other] for head, one, other in roles if one != other],
        }

    @cached_property
    def verdicts(self) -> list[dict[str, Any]]:
        """Every metric of either certificate: both verdicts and estimates, and how the verdict changed.

        `difference` of the estimates is given only if both have the same settings and the same unit.
        """
        first, second = ({one.metric: one for row in run.rows for one in row.metrics} for run in (self.a, self.b))
        missing = {metric: MetricRow(metric, "not run") for metric in (*first, *second)}
        return [self._verdict(first.get(metric, none), second.get(metric, none)) for metric, none in missing.items()]

    def _verdict(self, a: MetricRow, b: MetricRow) -> dict[str, Any]:
        difference = None
        if a.estimate is not None and b.estimate is not None and self._comparable(a.metric):
            difference = b.estimate - a.estimate
        return {
            "metric": a.metric,
            "gating": a.gating or b.gating,
            "verdict": [a.verdict, b.verdict],
            "change": _change(a.verdict, b.verdict),
            "estimate": [a.estimate, b.estimate],
            "ci90": [a.ci90, b.ci90],
            "difference": difference,
            "reasons": [a.why, b.why],
        }

    def _comparable(self, metric: str) -> bool:
        same_unit = metric != BEHAVIOUR or self.pair.a.metric == self.pair.b.metric
        return same_unit and self._same_settings(metric.partition(".")[0])

    def _same_settings(self, identifier: str) -> bool:
        first, second = (run.calibration(identifier) for run in (self.a, self.b))
        return bool(first and second and first["subject"]["settings"] == second["subject"]["settings"])

    @cached_property
    def tier(self) -> dict[str, Any]:
        """Both tiers, and the gates that explain why one is lower.

        A run without a tier is held back by P.behaviour, whatever else blocks it. If the record of P.behaviour has no reason, the
        tier's name serves as one.
        """
        tiers = [run.certificate["tier"] for run in (self.a, self.b)]
        ranks = [-1 if tier is None else tier for tier in tiers]
        lower = ranks.index(min(ranks))
        held_back = (self.a, self.b)[lower]
        between = range(max(ranks[lower], 0) + 1, max(ranks) + 1)
        gates = [gate for level in between for gate in held_back.certificate["blocking"].get(str(level), ())]
        if tiers[lower] is None and max(ranks) >= 0:
            (behaviour,) = (metric for metric in held_back.rows[0].metrics if metric.metric == BEHAVIOUR)
            reason = behaviour.why or held_back.certificate["tier_name"]
            gate = {"metric": BEHAVIOUR, "split": "evaluation", "verdict": behaviour.verdict, "reason": reason}
            gates = [gate, *(gate for gate in gates if gate["metric"] != BEHAVIOUR)]
        return {
            "tiers": tiers,
            "names": [tier_name(run.certificate) for run in (self.a, self.b)],
            "rules": [run.rules.to_dict() for run in (self.a, self.b)],
            "ceilings": [run.certificate["ceiling"] for run in (self.a, self.b)],
            "held_back": "ab"[lower] if ranks[0] != ranks[1] else None,
            "by": [{key: gate[key] for key in ("metric", "split", "verdict", "reason")} for gate in gates],
        }

    def notes(self) -> Iterator[str]:
        """What readers must know before trusting a difference."""
        if not self.same("task"):
            yield "The tasks differ, so behaviour, faithfulness and effects of heads have no difference; heads and verdicts do."
        elif not self.paired:
            yield "The prompts differ, so intervals are unpaired: they hold the spread of both samples of prompts."
        if not self.same_shape:
            yield "The models have different layers or heads, so heads are not compared."
        elif not self.same("model_sha256"):
            yield "Heads are matched by layer and number, which means something if one model was trained on from the other."
        elif self.paired and self.heads and not any(effect.differs.any() for effect in self.heads):
            yield "No head's effect differs: both runs measured the same model on the same prompts."
        reasons: dict[str, list[str]] = {}
        for one in self.effects:
            if isinstance(one, NoDifference):
                reasons.setdefault(one.reason, []).append(one.quantity)
        for reason, names in reasons.items():
            yield f"Heads have no differences of {', '.join(names)}: {reason}."
        other = [
            i for i in self.a.certificate["inputs"] if i in self.b.certificate["inputs"] and not self._same_settings(i)
        ]
        for side, run in (("a", self.a), ("b", self.b)):
            if not run.rules.released:
                yield f"{side}  {'; '.join(run.rules.lines)}. Its tier was not reached under released rules."
        if all(run.rules.released for run in (self.a, self.b)) and self.a.rules.version != self.b.rules.version:
            yield (
                f"The rules differ (released {self.a.rules.version} and {self.b.rules.version}), and with them what a tier asks."
            )
        if other:
            yield f"Settings differ in {', '.join(other)}; those verdicts answer different questions."

    def sentence(self) -> str:
        """The comparison in one sentence."""
        tiers = ["no tier" if tier is None else f"tier {tier}" for tier in self.tier["tiers"]]
        a, b = (f"{tier} ({name})" for tier, name in zip(tiers, self.tier["names"], strict=True))
        parts = [f"a reaches {a} and b {b}"]
        if self.tier["by"]:
            names = list(dict.fromkeys(gate["metric"] for gate in self.tier["by"]))
            why = f" ({self.tier['by'][0]['reason']})" if names == [BEHAVIOUR] else ""
            parts[0] += f", {self.tier['held_back']} held back by {first_of(names, NAMES_SHOWN)}{why}"
        for change in (GAINED, LOST):
            found = [v["metric"] for v in self.verdicts if v["change"] == change and v["gating"]]
            if found:
                parts.append(f"b {'passes' if change == GAINED else 'no longer passes'} {first_of(found, NAMES_SHOWN)}")
        for one in self.quantities:
            if isinstance(one, QuantityDifference) and one.quantity == "faithfulness, mean":
                how = "paired" if self.paired else "unpaired"
                parts.append(f"faithfulness differs by {one.difference:+.2f} [{one.low:+.2f}, {one.high:+.2f}] ({how})")
        if self.circuits["jaccard"] is not None:
            shared, either = len(self.circuits["shared"]), len(self.pair.a.circuit_heads) + len(self.circuits["only_b"])
            parts.append(f"the circuits share {shared} of {either} heads (Jaccard {self.circuits['jaccard']:.2f})")
        return "; ".join(parts) + "."

    @property
    def table(self) -> pd.DataFrame:
        """One row per quantity: both values, b - a with the ends of its 95 % interval, the unit; a reason if there is none."""
        rows = [dict.fromkeys(NUMBERS) | {"reason": None} | asdict(one) for one in self.quantities]
        frame = pd.DataFrame(rows, columns=["quantity", *NUMBERS, "unit", "reason"])
        frame = frame.astype(dict.fromkeys(NUMBERS, "float64")).set_index("quantity")
        return frame if any(row["reason"] for row in rows) else frame.drop(columns="reason")

    def __repr__(self) -> str:
        """The sentence, and what readers must know before trusting it."""
        return "\n".join([self.sentence(), *self.notes()])

    def document(self) -> dict[str, Any]:
        """The content of comparison.json: everything above, and what it was made from."""
        return {
            "kind": "comparison",
            "subject": {"a": dict(self.subjects[0]), "b": dict(self.subjects[1])},
            "inputs_sha256": {"a": _digests(self.a), "b": _digests(self.b)},
            "paired": self.paired,
            "n": {
                side: {"prompts": len(evidence.clean), "clusters": len(set(evidence.clusters.tolist()))}
                for side, evidence in (("a", self.pair.a), ("b", self.pair.b))
            },
            "level": LEVEL,
            "sentence": self.sentence(),
            "notes": list(self.notes()),
            "tier": self.tier,
            "verdicts": self.verdicts,
            "quantities": [dict.fromkeys(NUMBERS) | {"reason": None} | asdict(one) for one in self.quantities],
            "heads": [{**vars(one), "difference": one.b - one.a, "differs": one.differs} for one in self.heads],
            "circuits": self.circuits,
        }

    def figures(self, file: str = FILE) -> list[Forest | HeatMap]:
        """Differences of shares with their intervals, and every head's differences by layer and head.

        `file`: the name of the result that holds the numbers, for the captions; empty if none was written.
        """
        source = f" Result {file}." if file else ""
        shown = [d for d in self.quantities if isinstance(d, QuantityDifference) and d.unit.startswith("share")]
        basis = f"b - a, {'paired' if self.paired else 'unpaired'}, {100 * LEVEL:g} % bootstrap intervals over clusters"
        found: list[Forest | HeatMap] = []
        if shown:
            found.append(
                Forest(
                    name="differences",
                    title="Differences between the runs",
                    caption=f"{basis}.{source}",
                    x_label="difference b - a",
                    rows=tuple(EstimateMark(d.quantity, d.difference, d.low, d.high) for d in shown),
                    lines={"no difference": 0.0},
                    level=LEVEL,
                )
            )
        return found + [_heat_map(one, basis, source) for one in self.heads]


def chance_overlap(
    first: Collection[Head], second: Collection[Head], heads: Collection[Head]
) -> Float[np.ndarray, " shared"]:
    """P(number of shared heads = 0, 1, ...) if the heads of `second` are redrawn, in each layer as many as it has there.

    The number is hypergeometric within a layer. Over layers it is a sum, whose law is the convolution of the layers' laws.
    """
    law = np.ones(1)
    for layer in sorted({layer for layer, _ in heads}):
        n, k, drawn = (sum(1 for head in group if head[0] == layer) for group in (heads, first, second))
        law = np.convolve(law, scipy.stats.hypergeom.pmf(np.arange(min(k, drawn) + 1), n, k, drawn))
    return law


def compare(a: str | Path, b: str | Path) -> RunComparison:
    """The comparison of two folders of finished runs.

    UserError if one is not a finished run (`open_side`), if both are the same folder, or if they share neither model nor task.
    """
    if Path(a).resolve() == Path(b).resolve():
        raise UserError(f"a and b are both {a}; give the folders of two different runs")
    found = RunComparison(open_side(a), open_side(b))
    if not found.same("task") and not found.same("model_sha256"):
        first, second = found.subjects
        raise UserError(
            f"a is {first['task']} on {first['model']} and b is {second['task']} on {second['model']}; compare two runs of "
            "the same task, or two tasks on the same model"
        )
    return found


def write(found: RunComparison, results: Path) -> Path:
    """Write comparison and figures to <results>/compare/<a>--vs--<b>-<digest of the inputs>/ and return that folder.

    Because of the digest, comparisons of different results do not overwrite each other.
    """
    document = found.document()
    names = ["_".join(run.path.resolve().parts[-2:]) for run in (found.a, found.b)]
    folder = folder_of(results, names, document["inputs_sha256"])
    results_io.write(folder / FILE, document)
    for figure in found.figures():
        static.write(figure, folder)
    return folder


def folder_of(results: Path, names: Sequence[str], inputs: Any) -> Path:
    """<results>/compare/<a>--vs--<b>-<digest of the inputs>."""
    digest = results_io.sha256(inputs)[:8]
    return results / FOLDER / overrides.folder_name(f"{overrides.folder_name('--vs--'.join(names))[:140]}-{digest}")


# --- details -----------------------------------------------------------------------------------------------------


def _change(a: str, b: str) -> str | None:
    """How a verdict changed: gained (b passes, a does not), lost (the reverse), changed, or None."""
    if a == b:
        return None
    return GAINED if b == "pass" else LOST if a == "pass" else OTHER


def _digests(run: RunFolder) -> dict[str, str]:
    files = [*sorted(run.path.glob("*_*.json")), run.path / CERTIFICATE]
    return {file.name: results_io.file_digest(file) for file in files}


def _heat_map(one: HeadDifferences, basis: str, source: str) -> HeatMap:
    return layer_head_map(
        one.heads,
        one.b - one.a,
        one.low,
        one.high,
        name=f"differences_{one.quantity.replace(' ', '_').replace('-', '_')}",
        title=f"Difference of the {one.quantity}",
        caption=f"{basis}; framed where the interval, which holds for all heads together, leaves 0 out.{source}",
        unit=one.unit,
        marked=tuple(head for head, differs in zip(one.heads, one.differs, strict=True) if differs),
    )
