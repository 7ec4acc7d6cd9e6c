"""Failures of a suite as aligned prompt pairs: find a passing twin, find the first wrong token, check, or give the reason.

Every failure either becomes one pair or is counted under the first reason that rules it out:

1. not traceable: the mode has no counterfactual token, or the model gives no activations (an endpoint).
2. the same prompt as another failure; or without a passing twin: no relative (parent, or variant of the same parent) that the
   model gets right and that has the same answer; or no such relative with the same number of tokens, without which positions
   would not correspond.
3. not reproduced: in a new run without a cache at temperature 0, one of the two gives another output than the recorded one.
4. without a diverging token: the wanted and the actual output do not differ in a token.
5. weak: the wanted token is not the top token of the passing run, or the actual one is not the top token of the failing run, or
   a logit difference is smaller than MARGIN nats. The difference of such a pair would be noise.
6. with a twin that another failure has: every passing prompt is in at most one pair, so that pairs share no run.
7. not the same tokens when written as text.
8. of a template with too few prompts: the means need more reference prompts than the template has left, even after some of its
   pairs were turned into reference prompts.

As many failures as possible are paired. Among such assignments, the one with the fewest differing tokens is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from suites import modes
from suites.bridge.pair import ReferencePrompt, SuitePairs, TracePair
from suites.item import SamplingLeg
from suites.judgement import JudgedSuite
from suites.models.base import Request
from suites.outcome import Case, Detection

if TYPE_CHECKING:
    from suites.models.local import LocalModel  # needs torch

MARGIN = 0.5  # nats of logit difference on either side
MINIMUM_REFERENCES = 5  # per template, as circuits.engine needs for means and donors
MOST_REFERENCES = 120  # per template: more hardly change a mean
NONE = "none"  # the trace strategy of a suite without pairs
DIFFERENCE, END = "difference", "end"  # named positions beside the suite's own spans


@dataclass
class _Run:
    """A new run of one case: the text and tokens of its prompt, and the output tokens."""

    case: Case
    text: str
    ids: list[int]
    output: tuple[int, ...] = ()
    said: str = ""
    offsets: list[tuple[int, int]] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.case.item.id


@dataclass
class _Draft:
    """A candidate pair, before or during filtering."""

    failing: _Run
    passing: _Run
    prefix: tuple[int, ...] = ()
    answer: int = -1
    wrong: int = -1
    logit_diffs: tuple[float, float] = (0.0, 0.0)


@dataclass
class _Tally:
    """Why failures are not traceable, with the failures' ids."""

    reasons: dict[str, str] = field(default_factory=dict)

    def reject(self, failing: str, reason: str) -> None:
        self.reasons.setdefault(failing, reason)

    def filter(
        self, drafts: Sequence[_Draft], step: Callable[[Sequence[_Draft]], list[_Draft]], reason: str
    ) -> list[_Draft]:
        """The drafts that a step keeps; failures without a remaining draft are rejected for the reason."""
        kept = step(drafts)
        for lost in {draft.failing.id for draft in drafts} - {draft.failing.id for draft in kept}:
            self.reject(lost, reason)
        return kept

    @property
    def counts(self) -> dict[str, int]:
        return dict(Counter(self.reasons.values()))


def group(judged: JudgedSuite, model: LocalModel | Any) -> SuitePairs:
    """All failures of one judged suite as pairs, and the remaining passing prompts as references."""
    suite, tally = judged.suite, _Tally()
    failing = [case for case, _ in judged.failures]
    pairs: list[TracePair] = []
    references: list[ReferencePrompt] = []
    reason = _untraceable(judged, model)
    if reason:
        for case in failing:
            tally.reject(case.item.id, reason)
    elif failing:
        pairs, references = _paired(judged, failing, model, tally)
    return SuitePairs(
        suite=suite.id,
        mode=suite.mode,
        title=suite.title,
        failures=len(failing),
        pairs=tuple(pairs),
        references=tuple(references),
        rejected=tally.counts,
        bos=bool(failing) and not reason and _adds_bos(model),
        sha256=suite.sha256,
        related=tuple(suite.trace.get("related", ())),
    )


def _untraceable(judged: JudgedSuite, model: Any) -> str:
    """Why no failure of the suite can be traced; empty if some can."""
    mode = modes.EVERY[judged.suite.mode]
    if "activations" not in model.capabilities:
        return "not traceable (an endpoint, or a model with an intervention: its activations are out of reach)"
    if mode.TRACEABLE == "no":
        return f"not traceable ({mode.TRACE_NOTE.rstrip('.')})"
    return "not traceable by design" if judged.suite.trace["strategy"] == NONE else ""


def _paired(
    judged: JudgedSuite, failing: Sequence[Case], model: LocalModel, tally: _Tally
) -> tuple[list[TracePair], list[ReferencePrompt]]:
    """The failures that pass every filter, each with its twin, and the reference prompts of their templates."""
    runs = _runs(judged.cases, model)
    legs = {leg.name: leg for leg in judged.suite.legs}
    drafts = _candidates(failing, runs, judged.cases, tally)
    for reason, step in (
        ("not reproduced at temperature 0", partial(_reproduced, model=model, legs=legs)),
        ("without a diverging token", _diverging),
        (f"weak (below {MARGIN} nats)", partial(_strong, model=model)),
        ("with a twin that another failure has", _assigned),
    ):
        drafts = tally.filter(drafts, step, reason)
    roles, strategy = _common_roles(drafts, model), judged.suite.trace["strategy"]
    pairs = [pair for draft in drafts if (pair := _written(draft, roles, strategy, model, tally))]
    passing = [runs[case.item.id] for case, found in judged.cases if passes(case, found)]
    return _with_references(pairs, passing, roles, model, tally)


def passes(case: Case, found: Detection) -> bool:
    """Whether the model got a case right: it did not fail, and the scorer does not say that the output is wrong."""
    right = case.first.error is None and case.first.correct is not False
    return right and (found.failed is False or (found.failed is None and case.first.correct is True))


def _runs(cases: Sequence[tuple[Case, Detection]], model: LocalModel) -> dict[str, _Run]:
    """A run for every case, by item id, without cases whose call failed."""
    encoding = model.encoding
    return {
        case.item.id: _Run(case, encoding.rendered(*asked), encoding.prompt(*asked))
        for case, _ in cases
        if case.first.error is None
        for asked in [(case.item.prompt, case.item.system)]
    }


def _original(case: Case) -> str:
    """The id of the parent of the case's item; its own id if it is an original."""
    return case.item.variant.parent if case.item.variant else case.item.id


def _candidates(
    failing: Sequence[Case], runs: Mapping[str, _Run], cases: Sequence[tuple[Case, Detection]], tally: _Tally
) -> list[_Draft]:
    """Each failing case with every relative that passes, has the same answer and the same number of tokens."""
    passing: dict[str, list[_Run]] = {}
    for case, found in cases:
        if passes(case, found):
            passing.setdefault(_original(case), []).append(runs[case.item.id])
    drafts, seen = [], set()
    for case in failing:
        run, wanted = runs[case.item.id], set(case.item.answers)
        if tuple(run.ids) in seen:
            tally.reject(run.id, "the same prompt as another failure")
            continue
        seen.add(tuple(run.ids))
        relatives = [other for other in passing.get(_original(case), []) if set(other.case.item.answers) == wanted]
        aligned = [other for other in relatives if len(other.ids) == len(run.ids) and other.ids != run.ids]
        if not aligned:
            tally.reject(run.id, "without a passing twin of the same length" if relatives else "without a passing twin")
        drafts += [_Draft(run, other) for other in sorted(aligned, key=lambda other: other.id)]
    return drafts


def _reproduced(drafts: Sequence[_Draft], model: LocalModel, legs: Mapping[str, SamplingLeg]) -> list[_Draft]:
    """Run all prompts again as they were asked, but at temperature 0; keep drafts whose two outputs match the record."""
    runs = {run.id: run for draft in drafts for run in (draft.failing, draft.passing)}
    requests = []
    for run in runs.values():
        item, leg = run.case.item, legs[run.case.first.leg]
        requests.append(Request(item.prompt, item.system, max_tokens=leg.max_tokens, stop=leg.stop))
    for run, again in zip(runs.values(), model.generate(requests, lambda _: None), strict=True):
        run.output, run.said = tuple(again.tokens or ()), again.text
    return [draft for draft in drafts if all(run.said == run.case.first.text for run in (draft.failing, draft.passing))]


def _diverging(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Find the first token in which the wanted and the actual output differ; the tokens before it are added to the prompt."""
    kept = []
    for draft in drafts:
        wanted, said = draft.passing.output, draft.failing.output
        place = next((i for i, (a, b) in enumerate(zip(wanted, said, strict=False)) if a != b), None)
        if place is not None:
            draft.prefix, draft.answer, draft.wrong = wanted[:place], wanted[place], said[place]
            kept.append(draft)
    return kept


def _strong(drafts: Sequence[_Draft], model: LocalModel) -> list[_Draft]:
    """Keep drafts whose wanted token is top in the passing run and actual token in the failing run, by MARGIN nats each."""
    sequences = [run.ids + list(draft.prefix) for draft in drafts for run in (draft.passing, draft.failing)]
    distinct = list(dict.fromkeys(map(tuple, sequences)))
    logits = dict(zip(distinct, model.next_logits(distinct), strict=True)) if distinct else {}
    kept = []
    for i, draft in enumerate(drafts):
        clean, corrupted = (logits[tuple(sequences[2 * i + side])] for side in (0, 1))
        right = int(clean.argmax()) == draft.answer and int(corrupted.argmax()) == draft.wrong
        passing, failing = (float(row[draft.answer] - row[draft.wrong]) for row in (clean, corrupted))
        draft.logit_diffs = passing, failing
        if right and passing >= MARGIN and failing <= -MARGIN:
            kept.append(draft)
    return kept


def _token_at(run: _Run, span: tuple[int, int], model: LocalModel) -> int | None:
    """Index of the last token of the prompt's text that overlaps a span of the prompt."""
    if not run.offsets:
        run.offsets = model.tokenizer(run.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    start, end = (_offset(run) + place for place in span)
    inside = [i for i, (first, last) in enumerate(run.offsets) if first < end and last > start]
    return max(inside, default=None)


def _assigned(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Assign a separate twin to as many failures as possible and, among such assignments, with the fewest differing tokens."""
    failing = list(dict.fromkeys(draft.failing.id for draft in drafts))  # no two have the same prompt
    passing = list(dict.fromkeys(tuple(draft.passing.ids) for draft in drafts))  # one prompt may have several ids
    if not drafts:
        return []
    longest = max(len(draft.failing.ids) for draft in drafts) + 1
    cost = np.full((len(failing), len(passing)), float(longest * (len(failing) + 1)))  # no such pair
    places = {}
    for draft in drafts:
        place = failing.index(draft.failing.id), passing.index(tuple(draft.passing.ids))
        places[place] = draft
        cost[place] = sum(a != b for a, b in zip(draft.passing.ids, draft.failing.ids, strict=True))
    rows, columns = linear_sum_assignment(cost)
    chosen = [places[place] for place in zip(rows.tolist(), columns.tolist(), strict=True) if place in places]
    return sorted(chosen, key=lambda draft: failing.index(draft.failing.id))


def _common_roles(drafts: Sequence[_Draft], model: LocalModel) -> tuple[str, ...]:
    """The named words that are at the same token in both prompts of every pair.

    If two facts are swapped, a name would denote different words in the two runs.
    """
    spans = [(run, run.case.item.spans) for draft in drafts for run in (draft.passing, draft.failing)]
    named = set.intersection(*(set(of) for _, of in spans)) if spans else set()
    places = [{role: _token_at(run, of[role], model) for role in named} for run, of in spans]
    return tuple(
        sorted(
            role for role in named if all(a[role] == b[role] for a, b in zip(places[::2], places[1::2], strict=True))
        )
    )


def _written(draft: _Draft, roles: Sequence[str], strategy: str, model: LocalModel, tally: _Tally) -> TracePair | None:
    """The pair as text, if the tokenizer reads the same tokens back."""
    clean, corrupted = (_text(run, draft.prefix, model) for run in (draft.passing, draft.failing))
    words = _words(draft, clean, model)
    if clean is None or corrupted is None or words is None:
        tally.reject(draft.failing.id, "not the same tokens when written as text")
        return None
    answer, wrong, joint = words
    differ = [i for i, (a, b) in enumerate(zip(draft.passing.ids, draft.failing.ids, strict=True)) if a != b]
    return TracePair(
        source=draft.failing.id,
        partner=draft.passing.id,
        strategy=strategy,
        template=_label(draft.passing, len(draft.prefix)),
        cluster=draft.failing.case.item.cluster or _original(draft.failing.case),
        clean=clean,
        corrupted=corrupted,
        answer=answer,
        wrong=wrong,
        joint=joint,
        changed=(differ[0], differ[-1]),
        positions=_positions(draft.passing, clean, roles, model, differ[-1]),
        clean_logit_diff=draft.logit_diffs[0],
        corrupted_logit_diff=draft.logit_diffs[1],
    )


def _label(run: _Run, prefix: int) -> str:
    """Template, number of tokens and length of the forced prefix: prompts with one label correspond position by position."""
    said = f", {prefix} of them said" if prefix else ""
    return f"{run.case.item.template} of {len(run.ids) + prefix} tokens{said}"


def _adds_bos(model: LocalModel) -> bool:
    """Whether a BOS token is put before every text (a chat template adds its own)."""
    return model.encoding.bos and not model.encoding.chat


def _tokens(text: str, model: LocalModel) -> list[int]:
    return model.encoding.tokens(text, bos=_adds_bos(model))


def _text(run: _Run, prefix: Sequence[int], model: LocalModel) -> str | None:
    """The rendered prompt and the forced tokens as one text, with or without a space; None if neither gives the same tokens."""
    wanted = run.ids + list(prefix)
    forced = model.tokenizer.decode(list(prefix)) if prefix else ""
    candidates = (run.text + forced, f"{run.text} {forced}".rstrip() if forced else run.text)
    return next((text for text in candidates if _tokens(text, model) == wanted), None)


def _words(draft: _Draft, text: str | None, model: LocalModel) -> tuple[str, str, str] | None:
    """(answer, foil, the text that joins them to the passing text); None if a word is not its token after that text."""
    tokens = (draft.answer, draft.wrong)
    words = [model.tokenizer.decode([token]).strip() for token in tokens]
    if text is None or not all(words) or not all(map(model.encoding.reads, words)):
        return None
    before = _tokens(text, model)
    whole = [model.tokenizer.decode([token]) for token in tokens]  # including the leading space of byte-level tokens
    for joint, written in ((" ", words), ("", words), ("", whole)):
        read = [_tokens(f"{text}{joint}{word}", model) for word in written]
        if all(ids == [*before, token] for ids, token in zip(read, tokens, strict=True)):
            return written[0], written[1], joint
    return None


def _positions(run: _Run, text: str, roles: Sequence[str], model: LocalModel, last: int) -> dict[str, tuple[int, int]]:
    """Character spans of the named positions in the text; DIFFERENCE is token `last`, the last one that differs."""
    offset = _offset(run)
    spans = {role: (offset + start, offset + end) for role in roles for start, end in [run.case.item.spans[role]]}
    encoded = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    start = int(_adds_bos(model))
    return spans | {DIFFERENCE: tuple(encoded["offset_mapping"][last - start]), END: (len(text) - 1, len(text))}


def _offset(run: _Run) -> int:
    """Offset of the prompt in the rendered text. If a chat template trims it, the offset is found by its trimmed text."""
    prompt = run.case.item.prompt
    place = run.text.find(prompt)
    return place if place >= 0 else run.text.find(prompt.strip()) - (len(prompt) - len(prompt.lstrip()))


def _spare(
    pair: TracePair, passing: Sequence[_Run], used: Collection[str], roles: Sequence[str], model: LocalModel
) -> list[ReferencePrompt]:
    """Passing prompts that are in no pair, with the pair's template and length; there are none for pairs with forced tokens."""
    found = {}
    for run in passing:
        fits = _label(run, 0) == pair.template and set(roles) <= set(run.case.item.spans)
        if fits and (text := _text(run, (), model)) is not None and text not in used:
            places = _positions(run, text, roles, model, pair.changed[1])
            cluster = run.case.item.cluster or _original(run.case)
            found[text] = ReferencePrompt(text, pair.template, cluster, places)
    return list(found.values())[:MOST_REFERENCES]


def _with_references(
    pairs: Sequence[TracePair], passing: Sequence[_Run], roles: Sequence[str], model: LocalModel, tally: _Tally
) -> tuple[list[TracePair], list[ReferencePrompt]]:
    """(the remaining pairs, reference prompts of their templates). A template with too few turns some pairs into references."""
    used = {text for pair in pairs for text in (pair.clean, pair.corrupted)}
    kept, references = [], []
    for label in sorted({pair.template for pair in pairs}):
        own = [pair for pair in pairs if pair.template == label]
        found = _spare(own[0], passing, used, roles, model)
        while len(found) < MINIMUM_REFERENCES and len(own) > MINIMUM_REFERENCES:
            given = own.pop()
            tally.reject(given.source, "kept as reference prompts")
            found.append(ReferencePrompt(given.clean, label, given.cluster, given.positions))
        if len(found) < MINIMUM_REFERENCES:
            for pair in own:
                tally.reject(pair.source, "of a template with too few prompts")
            continue
        kept += own
        references += found
    return kept, references
