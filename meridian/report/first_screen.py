"""The first screen: an annotated prompt, one sentence that explains the tier, and what blocks the next tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrations.number_format import interval_text, number
from meridian.figures.intervals import finite
from meridian.figures.names import human
from meridian.report.sources import FieldSource, file_of, of_certificate
from meridian.run_folder import RunFolder

ASKED = {  # what each gate requires, as the end of "the tier asks that ..."
    "P.behaviour": "the model does the task",
    "P.denominator": "there is an effect large enough to be shared out among heads",
    "P.faithfulness": "the circuit alone keeps most of the effect",
    "P.faithfulness_every_recipe": "the circuit alone keeps most of the effect however the rest is silenced",
    "P.faithfulness_over_wordings": "the circuit keeps most of the effect on other wordings like these",
    "P.random_circuits": "the circuit beats random circuits of its shape",
    "P.completeness": "model and circuit lose alike without the same heads",
    "P.completeness_every_recipe": "model and circuit lose alike without the same heads however heads are silenced",
    "P.incompleteness_score": "every group of claimed heads matters as much to the circuit as to the model",
    "P.outside": "no head outside the claim matters much",
    "C11.bootstrap_faithfulness": "faithfulness is stable over prompts",
    "C11.bootstrap_completeness": "completeness is stable over prompts",
    "C12.convergent_validity": "methods rank the heads alike",
    "C13.measurement_invariance": "faithfulness is the same for all templates, names and orders",
    "C14.d_prime": "the circuit's heads stand apart from the others",
    "C16.test_retest": "fresh prompts give the same numbers",
    "C16.split_half": "two halves of the prompts give the same numbers",
    "C17.discriminant_validity": "the heads matter for this task and not for others",
    "C23.role_depth_correlation": "roles lie in the layers that their order asks for",
    "C30.seed_variance": "other seeds give the same faithfulness",
    "C36.incremental_validity": "the circuit beats a naive choice of heads",
    "E1b.method_invariance": "mean, zero and noise ablation give the same faithfulness",
    "F59.kendalls_w": "methods agree on the order of the heads",
    "F59.mean_kappa": "methods agree on which heads count",
    "M3b.certified_stability": "effects of the heads stay above their limit in subsamples",
    "M3b.no_idle_heads": "every claimed head counts",
    "M93.multiple_comparisons": "effects of the heads survive correction for many tests",
    "M98.ablation_invariance": "mean, zero and resample ablation give the same faithfulness",
    "S1.distributional_characterization": "effects of claimed heads are distributed unlike those of the others",
    "S1.total_effect": "claimed heads have larger total effects than the others",
    "S3.distributional_stability": "effects of the heads are distributed alike over prompts",
}
FAITHFUL = "P.faithfulness"


@dataclass(frozen=True)
class Token:
    """A token of the annotated prompt, with the names of its positions."""

    text: str
    names: str


@dataclass(frozen=True)
class AnnotatedPrompt:
    """The first example prompt of 01, its answer and foil with their probabilities (None if not stored), and its D."""

    tokens: tuple[Token, ...]
    answer: str
    foil: str
    answer_probability: float | None
    foil_probability: float | None
    difference: float | None
    metric: str
    unit: str
    file: str

    def source(self, field: str) -> FieldSource:
        """The source of a number of the prompt; the examples of 01 are its first rows."""
        return FieldSource(self.file, f"data.{field}[0]")


def prompt(run: RunFolder) -> AnnotatedPrompt | None:
    """The annotated prompt; None if 01 stored no example."""
    data = run.require("01")["data"]
    if not data.get("examples"):
        return None
    example = data["examples"][0]
    places: dict[int, list[str]] = {}
    for name, where in (example.get("positions") or {}).items():
        for index in where if isinstance(where, list) else [where]:
            places.setdefault(index, []).append(name)
    return AnnotatedPrompt(
        tokens=tuple(
            Token(text, human(", ".join(places.get(index, ())))) for index, text in enumerate(example["clean"])
        ),
        answer=" or ".join(example.get("answers", ())),
        foil=" or ".join(example.get("wrong", ())),
        answer_probability=_first(data, "answer_probability"),
        foil_probability=_first(data, "foil_probability"),
        difference=_first(data, "clean_logit_diff"),
        metric=run.evidence.metric,
        unit=run.evidence.unit,
        file=file_of(run, "01") or "",
    )


def _first(data: Mapping[str, Any], field: str) -> float | None:
    values = data.get(field) or [None]
    return finite(values[0])


def why(run: RunFolder, rest: str = " below") -> str:
    """One sentence: what the run shows, then what the next tier requires and the run refutes (a fail) or does not show.

    `rest`: words that say where the other blocking gates are listed.
    """
    stored = run.certificate
    tier, blocking = stored["tier"], stored["blocking"]
    if tier is None:
        return "The model is not shown to do the task."
    holds = _kept(run)
    if tier == stored["of"]:
        return f"{holds}, and every gate passes."
    gates = blocking.get(str(tier + 1), ())
    if not gates:
        return f"{holds}."
    found = "not true" if gates[0]["verdict"] == "fail" else "not shown"
    also = "also " if tier else ""
    return f"{holds}; tier {tier + 1} {also}asks that {asked(gates[0])}, which is {found}{_more(gates, rest)}."


def kept_number(run: RunFolder) -> tuple[str, FieldSource] | None:
    """The number in the sentence of `why`, as it stands there, and its source; None if the sentence has no number."""
    for place, record in enumerate(run.certificate["preconditions"]):
        if record["metric"] == FAITHFUL and record["estimate"] is not None:
            source = of_certificate(f"preconditions[{place}].estimate", "in brackets: ci90, beside it")
            return _kept_text(record), source
    return None


def asked(gate: Mapping[str, Any]) -> str:
    """What a gate requires, in words; the gate's name if there are no words for it."""
    held_out = "" if gate["split"] == "evaluation" else f" on {gate['split'].replace('_', '-')} prompts"
    return ASKED.get(gate["metric"], f"{gate['metric']} passes") + held_out


def _kept(run: RunFolder) -> str:
    """What the circuit alone keeps, from the certificate's faithfulness."""
    record = run.record(FAITHFUL)
    estimate = None if record is None else record["estimate"]
    if record is None or estimate is None:
        return "What the circuit alone keeps of the effect cannot be said"
    return f"Alone, the circuit keeps {_kept_text(record)} of the model's {run.metric}"


def _kept_text(record: Mapping[str, Any]) -> str:
    low, high = record["ci90"] or (None, None)
    return f"{number(record['estimate'])}{interval_text(low, high)}"


def _more(gates: Sequence[Mapping[str, Any]], where: str) -> str:
    rest = len(gates) - 1
    return f", and {rest} more gate{'s' * (rest > 1)}{where} block{'s' * (rest == 1)} that tier" if rest else ""
