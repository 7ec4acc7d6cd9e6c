"""The certificate in words: the tier, what blocks the next one, and every verdict with its reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from calibrations import table
from calibrations.registry import CALIBRATIONS
from meridian.figures import colours, forest
from meridian.run_folder import RunFolder

MEANING = {  # what each tier of the published rules says, by its name
    "proposed": "The claim is made; the evidence for a circuit is not there yet.",
    "causally suggestive": "It beats random circuits of its shape, and its heads stand out. More is not shown.",
    "supported": "It is faithful under every recipe, better than a naive choice of heads, and reliably measured.",
    "triangulated": "Other methods and other ablations say the same of it.",
    "certified": "It is also invariant, specific and stable, and held-out prompts say the same.",
}
REMEDY_OF_FAIL = "a fail is a finding about the circuit: more data will not change it"
CODE = re.compile(r"\b[a-z]+(?:_[a-z]+)+(?=:)")


@dataclass(frozen=True)
class Verdict:
    """A verdict as symbol, word and class."""

    word: str

    @property
    def mark(self) -> str:
        return colours.MARKS.get(self.word, "–")

    @property
    def style(self) -> str:
        return self.word.replace(" ", "-")


@dataclass(frozen=True)
class Row:
    """One metric of the certificate's table."""

    identifier: str
    name: str
    published: Verdict
    published_value: str
    estimate: str
    verdict: Verdict
    why: str
    needs: str
    gating: bool
    quantity: str = ""


@dataclass(frozen=True)
class About:
    """How to read one metric: its rule, its interval, and the same metric on the held-out prompts."""

    identifier: str
    metric: str
    rule: str
    interval: str
    p: str
    held_out: Verdict
    page: str


@dataclass(frozen=True)
class Blocker:
    """A gate that keeps a tier from being reached."""

    name: str
    verdict: Verdict
    reason: str
    needs: str
    split: str


@dataclass(frozen=True)
class Recipe:
    """Faithfulness under one ablation recipe."""

    name: str
    value: str
    interval: str
    above_floor: str


@dataclass(frozen=True)
class Certificate:
    """Everything that the first section says."""

    task: str
    model: str
    circuit: str
    tier: int | None
    of: int
    name: str
    meaning: str
    ceiling: str
    next_tier: int | None
    blockers: tuple[Blocker, ...]
    later: Mapping[str, tuple[Blocker, ...]]
    warnings: tuple[Blocker, ...]
    headline: Mapping[str, str]
    calibrations: int
    recipes: tuple[Recipe, ...]
    random: str
    rows: tuple[Row, ...]
    others: tuple[Row, ...]
    about: tuple[About, ...]
    overrides: tuple[str, ...]
    p_certificate: str


def view(run: RunFolder) -> Certificate:
    """The certificate of `run`, ready for the page."""
    stored = run.certificate
    tier, blocking = stored["tier"], stored["blocking"]
    names = {"P": "preconditions", **{row["id"]: row["title"] for row in stored["rows"]}}
    behaviour = [r for r in stored["preconditions"] if r["metric"] == "P.behaviour"]
    following = None if tier is None or tier == stored["of"] else tier + 1
    first = _absent(behaviour) if tier is None else _blockers(blocking.get(str(following), ()), names)
    later = {level: _blockers(gates, names) for level, gates in sorted(blocking.items()) if level != str(following)}
    rows = tuple(row for entry in _groups(stored) for row in _rows(run, entry, True))
    others = tuple(row for entry in _groups(stored) for row in _rows(run, entry, False))
    subject = stored["subject"]
    return Certificate(
        task=subject["task"],
        model=subject["model"],
        circuit=subject["circuit"] or "",
        tier=tier,
        of=stored["of"],
        name=stored["tier_name"],
        meaning=MEANING.get(stored["tier_name"], ""),
        ceiling=str(stored["ceiling"]),
        next_tier=following,
        blockers=first,
        later={} if tier is None else later,
        warnings=_blockers(stored["warnings"], names),
        headline=stored.get("headline") or _plain_headline(run),
        calibrations=len(stored["rows"]),
        recipes=_recipes(run),
        random=_random(run),
        rows=rows,
        others=others,
        about=tuple(_about(run, stored)),
        overrides=tuple(stored["overrides"]),
        p_certificate="" if stored["p_certificate"] is None else table.number(stored["p_certificate"]),
    )


def words(reason: str) -> str:
    """A reason as people read it: not_faithful: ... becomes not faithful: ..., n_prompts: ... too few prompts: ..."""
    return CODE.sub(lambda found: re.sub("^n ", "too few ", found.group().replace("_", " ")), reason)


def gate_name(metric: str, titles: Mapping[str, str]) -> str:
    """C12.convergent_validity as "C12 convergent validity"; with two gates in one calibration, which of them."""
    identifier, _, short = metric.partition(".")
    short, title = short.replace("_", " "), titles.get(identifier, "")
    return f"{identifier} {short}" if short == title or not title else f"{identifier} {title}: {short}"


def _blockers(gates: Any, titles: Mapping[str, str]) -> tuple[Blocker, ...]:
    return tuple(
        Blocker(
            gate_name(gate["metric"], titles),
            Verdict(gate["verdict"]),
            words(gate["reason"]),
            REMEDY_OF_FAIL if gate["verdict"] == "fail" else f"needs {gate['needs']}" if gate["needs"] else "",
            gate["split"].replace("_", "-"),
        )
        for gate in gates
    )


def _absent(records: list[Mapping[str, Any]]) -> tuple[Blocker, ...]:
    """Why a model that is not shown to do the task has no tier."""
    gates = [{**r, "reason": "; ".join(r["reasons"]), "split": "evaluation"} for r in records]
    return _blockers(gates, {"P": "preconditions"})


def _groups(stored: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The preconditions as one more calibration above the others."""
    own = [{**record, "gating": True} for record in stored["preconditions"]]
    return [{"id": "P", "title": "preconditions", "verdict": "", "records": own}, *stored["rows"]]


def _rows(run: RunFolder, entry: Mapping[str, Any], chief: bool) -> list[Row]:
    """The gating records of a calibration (or the one that decided, if none gates), or else the others."""
    if not entry["records"]:
        missing = Row(entry["id"], entry["title"], Verdict("none"), "", "–", Verdict(entry["verdict"]), "", "", False)
        return [missing] if chief else []
    gating = [r for r in entry["records"] if r["gating"]]
    shown = gating or [r for r in entry["records"] if r["metric"] == entry["decisive"]]
    titles = {entry["id"]: entry["title"]}
    kept = [r for r in entry["records"] if (r in shown) == chief]
    document = run.calibration(entry["id"])
    settings = None if document is None else document["subject"]["settings"]
    return [_row(entry["id"], gate_name(r["metric"], titles).partition(" ")[2], r, settings) for r in kept]


def _row(identifier: str, name: str, r: Mapping[str, Any], settings: Mapping[str, Any] | None) -> Row:
    value = r["published_value"]
    return Row(
        identifier,
        name,
        Verdict(r["published_verdict"]),
        "" if value is None else table.number(value),
        table.estimate(r).replace("-", "–", 1) if r["estimate"] is None else table.estimate(r),
        Verdict(r["verdict"]),
        words("; ".join(r["reasons"])),
        r["needs"] or "",
        r["gating"],
        "" if settings is None else forest.quantity(r["metric"], settings),
    )


def _about(run: RunFolder, stored: Mapping[str, Any]) -> list[About]:
    found = []
    for identifier in ["P", *(row["id"] for row in stored["rows"])]:
        document = run.calibration(identifier)
        if document is None:
            continue
        again = {r["metric"]: r["verdict"] for r in document["data"]["held_out"]}
        page = f"docs/calibrations/{_stem(identifier)}.md"
        for r in document["records"]:
            p = "" if r["p"] is None else f"{table.number(r['p'])} ({r['p_kind']})"
            held_out = Verdict(again.get(r["metric"], "none"))
            found.append(About(identifier, r["metric"], r["published_rule"], r["ci_method"] or "", p, held_out, page))
    return found


def _stem(identifier: str) -> str:
    module = CALIBRATIONS.get(identifier)
    return "preconditions" if module is None else module.__name__.rpartition(".")[2]


def _plain_headline(run: RunFolder) -> dict[str, str]:
    """What a certificate without a headline (of an older version) is about."""
    subject = run.certificate["subject"]
    split = run.data("01")["split"]
    data = f"{split.count('evaluation')} evaluation + {split.count('held_out')} held-out prompts"
    return {"subject": f"{subject['task']} on {subject['model']}", "data": data, "faithfulness": ""}


def _companions(run: RunFolder, metric: str) -> Mapping[str, Any]:
    document = run.calibration("P")
    found = [r["companions"] for r in document["records"] if r["metric"] == metric] if document else []
    return found[0] if found else {}


def _recipes(run: RunFolder) -> tuple[Recipe, ...]:
    table_, intervals = _companions(run, "P.faithfulness").get("by_method", {}), run.recipe_intervals
    return tuple(
        Recipe(
            name.replace("_", " "),
            table.number(entry["faithfulness"]),
            " to ".join(map(table.number, intervals[name])),
            table.number(entry["normalised"]),
        )
        for name, entry in table_.items()
        if "faithfulness" in entry
    )


def _random(run: RunFolder) -> str:
    found = _companions(run, "P.random_circuits")
    if "random_median" not in found:
        return ""
    median, high, most = (
        table.number(v) for v in (found["random_median"], found["random_90"][1], found["random_maximum"])
    )
    return f"Random circuits of its size and layers, mean ablation: median {median}, 95 % below {high}, largest {most}."
