"""Judge: a model under test that reads a prompt of a rubric and answers with one of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import results_io
from results_io import UserError
from shown_progress import Progress
from suites.judging import prompt, reading
from suites.judging.judgement_record import ALONE, JudgementRecord
from suites.judging.rubric import Rubric
from suites.models.base import ModelUnderTest, Request

FORM = 1  # version of the prompts' form; with another form it is another judge
CHUNK = 64  # judgements between two writes to disk
ATTEMPTS = 2  # tries if an output has no verdict
FORGED = "refused: a text holds the letters of its delimiter"
TOO_LONG = "refused: the prompt is longer than the model reads at once"
WHO = ("weights", "tokenizer", "intervention")  # these identify a local model
WHERE = ("base_url", "requested")  # and these a model behind an endpoint
ORIGINAL, SWAPPED_ORDER = "original", "swapped"


@dataclass(frozen=True)
class JudgeQuestion:
    """A question to a judge: the texts in the order shown, of the pair or item `id`. `repeat` numbers identical questions."""

    id: str
    item_hash: str
    question: str
    texts: tuple[str, ...]
    order: str
    authors: tuple[str, str] | None = None
    reworded: bool = False
    repeat: int = 0


@dataclass(frozen=True)
class Judgement:
    """The answer to a question. `verdict` None: the output was unreadable, or the call failed, as `error` then says."""

    verdict: str | None
    confidence: float | None = None
    output: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Judge:
    """A model with a rubric. `read`: "likelihood" or "text". Its identity: the model's, the way of reading, the prompts' form."""

    model: ModelUnderTest
    rubric: Rubric
    read: str
    max_tokens: int

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def identity(self) -> dict[str, Any]:
        """Everything besides the rubric that its verdicts depend on."""
        read = {"read": self.read} | ({"max_tokens": self.max_tokens} if self.read == "text" else {})
        return {"model": dict(self.model.identity), "form": FORM, **read}

    @property
    def fingerprint(self) -> str:
        return results_io.sha256(self.identity)

    def ask(self, questions: Sequence[JudgeQuestion], record: JudgementRecord, bar: Progress) -> list[Judgement]:
        """The judgement of every question, in order. Known ones come from the record; each chunk is on disk before the next.

        Likelihood: the label with the largest log p after the prompt. Text: the last line "Verdict: LABEL" at temperature 0; the
        judge is asked once more if there is none. A text that could end its own quotation, or a prompt whose beginning the model
        would cut off, gets no verdict.
        """
        rubric = self.rubric
        about = {"name": rubric.name, "kind": rubric.kind, "sha256": rubric.sha256, "read_sha256": rubric.read_sha256}
        record.introduce(self.fingerprint, self.identity, {**about, "passes": list(rubric.passes)})
        keys = [self.key(one) for one in questions]
        wanted = {key: one for key, one in zip(keys, questions, strict=True) if key not in record.known}
        bar.expect(len(wanted))
        failed: dict[str, Judgement] = {}
        for start in range(0, len(wanted), CHUNK):
            chunk = dict(list(wanted.items())[start : start + CHUNK])
            found = self._judged(list(chunk.values()))
            record.add([self._line(key, chunk[key], one) for key, one in zip(chunk, found, strict=True)])
            failed |= {key: one for key, one in zip(chunk, found, strict=True) if one.error is not None}
            bar.advance(len(chunk))
        return [failed[key] if key in failed else _of_line(record.known[key]) for key in keys]

    def key(self, question: JudgeQuestion) -> str:
        """The key of a judgement in the record: hash of judge, rubric, prompt, texts and order."""
        rubric = self._rubric(question)
        return results_io.sha256(
            {
                "judge": self.fingerprint,
                "rubric": rubric.read_sha256,
                "prompt": results_io.sha256(self.prompt(question)),
                "texts": [results_io.sha256(text) for text in question.texts],
                "order": question.order,
                **({"repeat": question.repeat} if question.repeat else {}),
            }
        )

    def prompt(self, question: JudgeQuestion) -> str:
        """What the judge reads."""
        rubric, mark = self._rubric(question), prompt.tag(question.item_hash)
        if question.order == ALONE:
            return prompt.of_grade(rubric, question.question, question.texts[0], mark)
        first, second = question.texts
        return prompt.of_pair(rubric, question.question, (first, second), mark, question.authors)

    def _rubric(self, question: JudgeQuestion) -> Rubric:
        return self.rubric.in_other_words() if question.reworded else self.rubric

    def _judged(self, questions: Sequence[JudgeQuestion]) -> list[Judgement]:
        found: list[Judgement | None] = [
            Judgement(None, output=FORGED)
            if prompt.forged(prompt.tag(one.item_hash), one.question, *one.texts, *(one.authors or ()))
            else None
            for one in questions
        ]
        open_ = [place for place, one in enumerate(found) if one is None]
        asked = [questions[place] for place in open_]
        for place, one in zip(
            open_, self._by_likelihood(asked) if self.read == "likelihood" else self._by_text(asked), strict=True
        ):
            found[place] = one
        return [one for one in found if one is not None]

    def _by_likelihood(self, questions: Sequence[JudgeQuestion]) -> list[Judgement]:
        labels = list(self.rubric.labels)
        pairs = [pair for one in questions for pair in reading.contexts(self.prompt(one), labels)]
        found = self.model.loglikelihood(pairs) if pairs else []
        parts = [found[start : start + len(labels)] for start in range(0, len(found), len(labels))]
        return [
            Judgement(None, output=TOO_LONG)
            if any(one.truncated for one in part)
            else Judgement(*reading.of_likelihoods(labels, part), output=" ".join(f"{one.logprob:.6g}" for one in part))
            for part in parts
        ]

    def _by_text(self, questions: Sequence[JudgeQuestion]) -> list[Judgement]:
        found: dict[int, Judgement] = {}
        for attempt in range(ATTEMPTS):
            open_ = [
                k
                for k in range(len(questions))
                if k not in found or (found[k].verdict is None and found[k].error is None)
            ]
            asked = [self._request(questions[k], attempt) for k in open_]
            outputs = self.model.generate(asked, lambda count: None) if asked else []
            for k, output in zip(open_, outputs, strict=True):
                said = None if output.error is not None else reading.of_text(output.text, list(self.rubric.labels))
                found[k] = Judgement(said, None, output.text, output.error)
        return [found[k] for k in range(len(questions))]

    def _request(self, question: JudgeQuestion, attempt: int) -> Request:
        sample = question.repeat * ATTEMPTS + attempt
        return Request(self.prompt(question), max_tokens=self.max_tokens, seed=sample, sample=sample)

    def _line(self, key: str, question: JudgeQuestion, judged: Judgement) -> dict[str, Any]:
        return {
            "key": key,
            "id": question.id,
            "order": question.order,
            "repeat": question.repeat,
            "judge": self.fingerprint,
            "rubric": self._rubric(question).read_sha256,
            "prompt": results_io.sha256(self.prompt(question)),
            "texts": [results_io.sha256(text) for text in question.texts],
            "verdict": judged.verdict,
            "confidence": judged.confidence,
            "output": judged.output.encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
            "error": judged.error,
        }


def open_judge(model: ModelUnderTest, rubric: Rubric, read: str | None, max_tokens: int) -> Judge:
    """`model` as a judge. `read` None: "likelihood" if the model gives log-probabilities, else "text".

    UserError for an unknown `read`, and for "likelihood" without log-probabilities.
    """
    able = "logprobs" in model.capabilities
    if read is not None and read not in reading.MODES:
        raise UserError(f"judge.read={read} is unknown; use {' or '.join(reading.MODES)}, or leave it out")
    if read == "likelihood" and not able:
        raise UserError(
            f"{model.name} gives no log-probabilities, which judge.read=likelihood needs; use judge.read=text"
        )
    return Judge(model, rubric, read or ("likelihood" if able else "text"), max_tokens)


def same_model(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two identities are the same model: equal weights, tokenizer and intervention, or the same name and address."""
    for names in (WHO, WHERE):
        if one.get(names[0]) is not None and other.get(names[0]) is not None:
            return all(one.get(name) == other.get(name) for name in names)
    return dict(one) == dict(other)


def refuse_itself(judge: Judge, candidates: Mapping[str, Mapping[str, Any]], allowed: bool) -> list[str]:
    """The candidates (name: identity) that are the judge itself. UserError for one unless `allowed`."""
    own = [name for name, identity in candidates.items() if same_model(judge.model.identity, identity)]
    if own and not allowed:
        raise UserError(
            f"the judge {judge.name} is the candidate {own[0]}; use another one, or judge.self=true, which marks every number"
        )
    return own


def _of_line(line: Mapping[str, Any]) -> Judgement:
    return Judgement(line["verdict"], line["confidence"], line["output"], line["error"])
