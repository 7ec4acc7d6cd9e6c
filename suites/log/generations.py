"""generations.jsonl: requests and outputs, facts only, on a hash chain.

One run asks one suite of one model. Its lines, which may be interleaved with those of other runs:

    run_started     with `expected_n`, the number of generations to come
    facts           what depends on the model (which variants are the same tokens to it, which legs it cannot do)
    generation      one output
    likelihood      log p of every choice of one item
    run_resumed     the run continued after a stop, or failed calls were repeated; with the environment at that time
    run_finished    with `n`, the number of generations
    not_applicable  instead of run_finished: why the suite does not apply

Readers refuse a run that started but did not finish, or that has no generations. Otherwise, silently missing samples would look
like a small sample.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

import results_io
from results_io import UserError
from suites import lock
from suites.item import Suite
from suites.likelihood import ChoiceScores
from suites.log import chain, environment
from suites.log.line_form import MAYBE_TEXT, NUMBER, Form
from suites.models.base import Generation, Request

SCHEMA = 1
NAME = "generations.jsonl"
STARTED = "run_started"
FORMS: Mapping[str, Form] = {  # of what is read of a line
    STARTED: {
        **dict.fromkeys(("run_id", "suite_id", "suite_hash", "model"), str),
        **{
            "legs": [{"name": str}],
            "expected_n": int,
            "expected_likelihoods": int,
            "identity": dict,
            "environment": dict,
        },
    },
    "facts": {"run_id": str, "facts": dict},
    "generation": {
        **dict.fromkeys(("run_id", "item_id", "leg", "response_text", "cache_key", "finish_reason"), str),
        **{"sample_index": int, "error": MAYBE_TEXT, "latency_ms": NUMBER},
    },
    "likelihood": {
        **{"run_id": str, "item_id": str, "right": list, "truncated": int},
        "choices": [{"text": str, "L": NUMBER, "n_tok": int}],
    },
    "run_resumed": {"run_id": str, "environment": dict},
    "run_finished": {"run_id": str, "n": int},
    "not_applicable": {"run_id": str, "reason": str},
}
RUN_ID_DIGITS = 16


class Slot(NamedTuple):
    """The place of one generation: sample `sample` of one leg of one item."""

    item: str
    leg: str
    sample: int


@dataclass
class RecordedRun:
    """All that the log holds of one run. If a slot was asked twice, the later line counts."""

    run_id: str
    started: Mapping[str, Any]
    generations: dict[Slot, Mapping[str, Any]] = field(default_factory=dict)
    likelihoods: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    finished: Mapping[str, Any] | None = None
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    not_applicable: str | None = None

    def require_complete(self, path: Path) -> RecordedRun:
        """The run itself if it finished with every announced generation; UserError otherwise."""
        suite, expected, n = self.started["suite_id"], self.started["expected_n"], len(self.generations)
        again = "run the suite again, which goes on from there"
        if self.not_applicable is not None:
            return self
        if self.finished is None:
            raise UserError(f"{path}: the run of {suite} has {n} of {expected} generations and did not finish; {again}")
        if n == 0 and not self.started["expected_likelihoods"]:
            raise UserError(f"{path}: the run of {suite} finished without a single generation; {again}")
        if len(self.likelihoods) != self.started["expected_likelihoods"]:
            raise UserError(
                f"{path}: the run of {suite} has the likelihoods of {len(self.likelihoods)} items, announced "
                f"{self.started['expected_likelihoods']}; {again}"
            )
        if n != expected or self.finished["n"] != n:
            raise UserError(
                f"{path}: the run of {suite} has {n} generations, announced {expected} and finished with "
                f"{self.finished['n']}; {again}"
            )
        return self

    @property
    def errors(self) -> list[Slot]:
        """Slots whose generation failed."""
        return [slot for slot, line in self.generations.items() if line["error"] is not None]


def run_id(suite: Suite, identity: Mapping[str, Any], seed: int) -> str:
    """Identity of a run by content: the suite's lock and legs, the model's identity, the seed.

    It contains no time, so that a stopped run is found again.
    """
    asked = {"suite": suite.id, "lock": suite.sha256, "legs": _legs(suite)}
    return results_io.sha256({"schema": SCHEMA, **asked, "model": identity, "seed": seed})[:RUN_ID_DIGITS]


def read(path: Path) -> dict[str, RecordedRun]:
    """Every run of a log, by run id, in order of their last start. UserError at the first line that breaks the chain."""
    runs: dict[str, RecordedRun] = {}
    for record in chain.read(path, FORMS):
        if record["kind"] not in (chain.RECOVERY, STARTED) and record["run_id"] not in runs:
            raise UserError(
                f"{path}: line {record['seq'] + 1} is of a run that no line before it started; restore the file from a copy, or "
                "move it away"
            )
        _fold(runs, record)
    return runs


def latest(path: Path, suite: Suite, runs: Mapping[str, RecordedRun] | None = None) -> RecordedRun:
    """The last run of exactly this suite. `runs`: those of the log, if it was read before.

    UserError if there is no such run, or if the last one is incomplete.
    """
    wanted = {"suite_id": suite.id, "suite_hash": suite.sha256, "legs": _legs(suite)}
    known = (read(path) if runs is None else runs).values()
    found = [run for run in known if all(run.started[key] == value for key, value in wanted.items())]
    if not found:
        raise UserError(f"{path} has no run of {suite.id} as it is now; run that suite first")
    return found[-1].require_complete(path)


def _legs(suite: Suite) -> list[dict[str, Any]]:
    return [{**asdict(leg), "stop": list(leg.stop)} for leg in suite.legs]


def _fold(runs: dict[str, RecordedRun], record: Mapping[str, Any]) -> None:
    """Add one line to the run that it belongs to."""
    kind = record["kind"]
    if kind == chain.RECOVERY:
        return
    if kind == STARTED:
        runs.pop(record["run_id"], None)
        runs[record["run_id"]] = RecordedRun(record["run_id"], record, environments=[record["environment"]])
        return
    run = runs[record["run_id"]]
    if kind == "run_resumed":
        run.finished = run.not_applicable = None
        if record["environment"] not in run.environments:
            run.environments.append(record["environment"])
        runs[run.run_id] = runs.pop(run.run_id)
    elif kind == "generation":
        run.generations[Slot(record["item_id"], record["leg"], record["sample_index"])] = record
    elif kind == "likelihood":
        run.likelihoods[record["item_id"]] = record
    elif kind == "facts":
        run.facts = record["facts"]
    elif kind == "run_finished":
        run.finished = record
    elif kind == "not_applicable":
        run.not_applicable = record["reason"]


class GenerationLog:
    """The writer of one log, with all of its runs. Use as a context manager; UserError as `chain.Writer`."""

    def __init__(
        self,
        path: Path,
        identity: Mapping[str, Any],
        name: str,
        seed: int,
        execution: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.path, self.identity, self.name, self.seed = Path(path), identity, name, seed
        self.fingerprint = results_io.sha256(identity)
        self.environment = environment.of_asking(identity, execution)
        self._environment_hash = results_io.sha256(self.environment)
        self._writer = chain.Writer(self.path)
        self.runs = read(self.path)

    def __enter__(self) -> GenerationLog:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._writer.__exit__(kind, error, trace)

    def run_of(self, suite: Suite) -> RecordedRun:
        """The run of `suite`, which must have begun."""
        return self.runs[run_id(suite, self.identity, self.seed)]

    def answered(self) -> dict[str, Mapping[str, Any]]:
        """Lines of every generation that did not fail, by cache key, over all runs."""
        lines = (line for run in self.runs.values() for line in run.generations.values())
        return {line["cache_key"]: line for line in lines if line["error"] is None}

    def begin(
        self, suite: Suite, expected_n: int, facts: Mapping[str, Any], expected_likelihoods: int = 0
    ) -> RecordedRun:
        """Start the run of `suite`, or resume one that stopped or had errors; nothing is written for a complete one."""
        identifier = run_id(suite, self.identity, self.seed)
        run = self.runs.get(identifier)
        expected = (expected_n, expected_likelihoods)
        if run is None or (run.started["expected_n"], run.started["expected_likelihoods"]) != expected:
            self._write([self._start(identifier, suite, *expected), self._facts(identifier, facts)])
        elif run.not_applicable is None and (run.facts != facts or run.finished is None or run.errors):
            self.resume(run, facts)
        return self.runs[identifier]

    def resume(self, run: RecordedRun, facts: Mapping[str, Any]) -> None:
        """Reopen a run that stopped, had errors, or was judged not applicable by what was known then."""
        outstanding = run.started["expected_n"] - len(run.generations) + len(run.errors)
        line = self._line("run_resumed", run.run_id, outstanding_n=outstanding, environment=self.environment)
        self._write([line, self._facts(run.run_id, facts)])

    def add(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Append lines (made by `generation`) as one batch, which is on disk afterwards."""
        self._write(lines)

    def finish(self, run: RecordedRun) -> None:
        """Record that `run` is complete. UserError, without a record, if it lacks something that it announced."""
        if run.finished is None:
            line = self._line("run_finished", run.run_id, n=len(run.generations), errors=len(run.errors))
            replace(run, finished=line).require_complete(self.path)
            self._write([line])

    def not_applicable(self, suite: Suite, reason: str) -> None:
        """Record why `suite` does not apply; nothing is written if the log already says so."""
        identifier = run_id(suite, self.identity, self.seed)
        run = self.runs.get(identifier)
        if run is None:
            self._write([self._start(identifier, suite, 0)])
        if run is None or run.not_applicable != reason:
            self._write([self._line("not_applicable", identifier, reason=reason)])

    def generation(
        self, suite: Suite, slot: Slot, request: Request, generation: Generation, cache_key: str, cached: bool
    ) -> dict[str, Any]:
        """The line of one output. `cached`: it comes from a record or the cache, or shares its output with another line."""
        item = suite.by_id[slot.item]
        return self._line(
            "generation",
            run_id(suite, self.identity, self.seed),
            suite_id=suite.id,
            suite_hash=suite.sha256,
            item_id=item.id,
            item_version=item.version,
            item_hash=lock.item_hash(item, suite.scorer),
            prompt_hash=lock.prompt_hash(item),
            variant=None if item.variant is None else asdict(item.variant),
            leg=slot.leg,
            sample_index=slot.sample,
            model_fingerprint=self.fingerprint,
            request=request.sampling,
            request_sha256=results_io.sha256(
                [request.system, request.prompt, *map(list, request.earlier)]
            ),  # as separate fields, so that text cannot move from one to the next with the same hash
            **_output(generation),
            cached=cached,
            cache_key=cache_key,
            env_hash=self._environment_hash,
        )

    def likelihood(self, suite: Suite, item: str, scores: ChoiceScores) -> dict[str, Any]:
        """The line of one item's choices: L in nats, with the sizes for normalisation."""
        sizes = zip(scores.choices, scores.logprobs, scores.n_tokens, strict=True)
        return self._line(
            "likelihood",
            run_id(suite, self.identity, self.seed),
            suite_id=suite.id,
            suite_hash=suite.sha256,
            item_id=item,
            item_hash=lock.item_hash(suite.by_id[item], suite.scorer),
            model_fingerprint=self.fingerprint,
            choices=[
                {"text": text, "L": value, "n_tok": n_tokens, "n_char": len(text), "n_byte": len(text.encode())}
                for text, value, n_tokens in sizes
            ],
            right=sorted(scores.right),
            truncated=scores.truncated,
        )

    def _start(self, identifier: str, suite: Suite, expected_n: int, expected_likelihoods: int = 0) -> dict[str, Any]:
        return self._line(
            STARTED,
            identifier,
            suite_id=suite.id,
            suite_version=suite.version,
            suite_hash=suite.sha256,
            legs=_legs(suite),
            expected_n=expected_n,
            expected_likelihoods=expected_likelihoods,
            model=self.name,
            identity=dict(self.identity),
            model_fingerprint=self.fingerprint,
            seed=self.seed,
            environment=self.environment,
        )

    def _facts(self, identifier: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        return self._line("facts", identifier, facts=dict(facts))

    def _line(self, kind: str, identifier: str, **rest: Any) -> dict[str, Any]:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        return {"schema": SCHEMA, "kind": kind, "run_id": identifier, "ts": now, **rest}

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        for record in self._writer.append(list(lines)):
            _fold(self.runs, record)


def to_generation(line: Mapping[str, Any]) -> Generation:
    """The output that a line of the log records."""
    tokens = line["response_tokens"]
    return Generation(
        text=line["response_text"],
        finish=line["finish_reason"],
        tokens_in=line["tokens_in"],
        tokens_out=line["tokens_out"],
        logprob=line["logprob"],
        tokens=None if tokens is None else tuple(tokens),
        error=line["error"],
        reported=line["reported"],
        seconds=line["latency_ms"] / 1000,
    )


def to_scores(line: Mapping[str, Any]) -> ChoiceScores:
    """The choices that a line of the log records."""
    choices = line["choices"]
    return ChoiceScores(
        tuple(choice["text"] for choice in choices),
        tuple(choice["L"] for choice in choices),
        tuple(choice["n_tok"] for choice in choices),
        frozenset(line["right"]),
        line["truncated"],
    )


def _output(generation: Generation) -> dict[str, Any]:
    """An output in the form of the log; `to_generation` is the inverse."""
    text = writable(generation.text)
    failed = generation.finish == "error" or generation.error is not None
    # an endpoint may send -inf for a log-probability, which JSON cannot hold
    finite = generation.logprob is not None and math.isfinite(generation.logprob)
    return {
        "response_text": text,
        "response_hash": hashlib.sha256(text.encode()).hexdigest(),
        "response_tokens": None if generation.tokens is None else list(generation.tokens),
        "tokens_in": generation.tokens_in,
        "tokens_out": generation.tokens_out,
        "finish_reason": generation.finish,
        "latency_ms": round(generation.seconds * 1000, 3),
        "logprob": generation.logprob if finite else None,
        "error": writable(generation.error or "the call failed and does not say why") if failed else None,
        "reported": generation.reported,
    }


def writable(text: str) -> str:
    """`text` without lone surrogates, which an endpoint can send and UTF-8 cannot hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
