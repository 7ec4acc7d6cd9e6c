"""One pass over the traffic: sample requests, ask the candidate, redact, detect, judge and record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from results_io import UserError
from shown_progress import Progress
from suites.judging import pairs
from suites.judging.answers import AnswerPair, Asked
from suites.judging.judge import Judge
from suites.judging.judgement_record import JudgementRecord
from suites.models.base import Generation, ModelUnderTest, Request
from suites.shadow import detectors, sampling
from suites.shadow.redaction import Redactor
from suites.shadow.snapshots import PARTS
from suites.shadow.traffic import Logged
from suites.shadow.traffic_record import TrafficRecord, TrafficStream

CHUNK = 64  # requests between two writes to disk: a kill loses at most so many


@dataclass(frozen=True)
class Pass:
    """Counts of one pass: requests in the file, opted in, in the sample, asked now, failed, and left for lack of budget.

    `why`: the first failed call's error.
    """

    requests: int
    opted_in: int
    sampled: int
    asked: int
    failed: int
    over_budget: int
    why: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "why"}


def require_chat(traffic: Sequence[Logged], candidate: ModelUnderTest, settings: Mapping[str, Any]) -> None:
    """UserError for a candidate without chat if usable requests have system texts or earlier turns."""
    if "chat" in candidate.capabilities:
        return
    if any((one.system or one.earlier) and one.opted_in(settings["opt_in"]) for one in traffic):
        raise UserError(
            f"{candidate.name} takes no system texts and no earlier turns, which requests have; take a model that chats"
        )


def follow(
    traffic: Sequence[Logged],
    candidate: ModelUnderTest,
    record: TrafficRecord,
    key: bytes,
    redactor: Redactor,
    settings: Mapping[str, Any],
    now: datetime,
    bar: Progress,
) -> Pass:
    """Ask the candidate the sampled requests that are not recorded yet, within the budget.

    The candidate reads the original requests; everything else sees redacted texts. Of a failed call only the request's name is
    recorded, and it is asked again next time.
    """
    willing = [one for one in traffic if one.opted_in(settings["opt_in"])]
    drawn = [one for one in willing if sampling.taken(key, one.id, settings["rate"])]
    known = record.stream.sampled
    missing = [one for one in drawn if sampling.name(key, one.id) not in known]
    room = max(0, settings["budget"] - len(known))
    asked = missing[:room]
    failed, why = 0, None
    bar.expect(len(asked))
    for start in range(0, len(asked), CHUNK):
        chunk = asked[start : start + CHUNK]
        requests = [Request(one.prompt, one.system, settings["max_tokens"], earlier=one.earlier) for one in chunk]
        said = candidate.generate(requests, bar.advance)
        both = [(one, output) for one, output in zip(chunk, said, strict=True) if output.error is None]
        lost = [sampling.name(key, one.id) for one, output in zip(chunk, said, strict=True) if output.error is not None]
        failed += len(lost)
        why = why or next((output.error for output in said if output.error is not None), None)
        made = [_made(one, output, key, redactor, settings, now) for one, output in both]
        record.add([line for line, _ in made], [texts for _, texts in made])
        record.failed(lost)
    return Pass(len(traffic), len(willing), len(drawn), len(asked), failed, len(missing) - len(asked), why)


def judge_pairs(record: TrafficRecord, judge: Judge, judgements: JudgementRecord, bar: Progress) -> int:
    """Let the record's judge compare candidate (A) and deployed answer (B) in both orders, for pairs without a verdict.

    Returns how many it compared. Only texts that are still stored can be judged, and a pair with a failed call is asked again
    next time.
    """
    waiting = [one for one in record.stream.sampled if one not in record.stream.verdicts and one in record.stream.texts]
    found = [_pair(record.stream.texts[one]) for one in waiting]
    judged = pairs.judge_all(judge, found, judgements, bar)
    record.judged(
        [
            {"request": pair.id, "judge": judge.fingerprint, "original": said.original, "swapped": said.swapped}
            for pair, said in zip(judged.pairs, judged.verdicts, strict=True)
        ]
    )
    return len(judged.pairs)


def failing(stream: TrafficStream) -> dict[str, list[str]]:
    """Requests on which the candidate is worse, by name, with reasons: a detector fires on its answer alone, or it lost.

    Verdicts that decide nothing are no reason.
    """
    found: dict[str, list[str]] = {}
    for name, line in stream.sampled.items():
        reasons = [one for one, has in line["candidate"].items() if has and not line["live"][one]]
        verdict = stream.verdicts.get(name) if stream.doubt is None else None
        if verdict is not None and (verdict["original"], verdict["swapped"]) == ("B", "B"):
            reasons.append("judge")
        if reasons:
            found[name] = reasons
    return found


def _made(
    one: Logged, output: Generation, key: bytes, redactor: Redactor, settings: Mapping[str, Any], now: datetime
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the line for the chain, the texts to store) of one request. All texts are redacted before any use."""
    before = redactor.counts.copy()
    name = sampling.name(key, one.id)
    texts = {
        "request": name,
        "system": None if one.system is None else redactor(one.system),
        "earlier": [[role, redactor(text)] for role, text in one.earlier],
        "prompt": redactor(one.prompt),
        "live": redactor(one.answer),
        "candidate": redactor(output.text),
        "expires": (now + timedelta(days=settings["retention"])).date().isoformat(),
    }
    counts = redactor.counts - before
    line = {
        "request": name,
        "day": one.day,
        "part": sampling.part(key, one.id, PARTS),
        "hashes": {part: _sha256(texts[part]) for part in ("prompt", "live", "candidate")},
        "finish": output.finish,
        "redacted": dict(sorted(counts.items())),
        "live": detectors.detected(texts["live"]),
        "candidate": detectors.detected(texts["candidate"]),
    }
    return line, texts


def _pair(texts: Mapping[str, Any]) -> AnswerPair:
    turns = [("system", texts["system"])] if texts["system"] else []
    turns += [(role, text) for role, text in texts["earlier"]]
    shown = "\n".join(f"{role}: {text}" for role, text in [*turns, ("user", texts["prompt"])])
    question = shown if turns else texts["prompt"]
    return AnswerPair(
        texts["request"], Asked(question, _sha256(question), texts["request"]), texts["candidate"], texts["live"]
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
