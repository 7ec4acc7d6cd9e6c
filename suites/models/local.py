"""LocalModel: a causal language model on this machine, its unfolded Hugging Face weights, as a model under test."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor

import results_io
from circuits import models
from results_io import UserError
from suites import likelihood
from suites.models import encoding, head_ablation
from suites.models.base import Generation, Likelihood, Request

MEMORY_MIB = 512  # limit of one batch besides the weights, as estimated by `_bytes`
MOST_ROWS = 64  # larger batches are no faster on the CPU for models of the embedded model's size
# Dtypes in which rows may be padded. A padding position sees masked positions only, whose scores are the dtype's lowest number.
# Most families compute softmax in float32. There float64's lowest number is minus infinity, and float16's becomes minus infinity
# once a score is added. Softmax over minus infinity alone is NaN, which spreads to all positions.
PADDED = (torch.float32, torch.bfloat16)
SAMPLER = "inverse CDF in float64, uniforms of PCG64(SHA-256 of seed, sample and prompt tokens)"
Row = tuple[tuple[int, ...], tuple[int, ...]]  # ids of a context and of its continuation


@dataclass(eq=False)
class Reply:
    """One request while its tokens are drawn."""

    index: int
    request: Request
    prompt: list[int]
    limit: int
    uniforms: np.random.Generator
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""


class LocalModel:
    """A model that `circuits.models.identify` accepts: generation with a KV cache, likelihoods, and optional head ablation.

    `settings`: a `model=` configuration, and optionally `intervention` (`head_ablation.parse`), `bos` and `chat` (null: as the
    tokenizer has them), `memory_mib` and `rows` of a batch. Outputs do not depend on the batches, up to rounding: each sampled
    output has its own random numbers, and padding is on the left with positions counted from the first real token. UserError as
    `identify`, `encoding.of_tokenizer`, `head_ablation.parse` and `head_ablation.prepare`.
    """

    capabilities = frozenset({"generation", "sampling", "logprobs", "seed", "activations"})

    def __init__(self, settings: Mapping[str, Any]) -> None:
        wanted = settings.get("intervention")
        self.intervention = head_ablation.parse(wanted) if wanted else None
        self.source = models.identify(settings)
        self.name = self.source.name
        self.model, tokenizer = models.load_plain(settings, self.source)
        self.encoding = encoding.of_tokenizer(tokenizer, settings.get("bos"), settings.get("chat"))
        if self.encoding.chat:
            self.capabilities = self.capabilities | {"chat"}
        self.memory = int(float(settings.get("memory_mib") or MEMORY_MIB) * 2**20)
        self.most_rows = int(settings.get("rows") or MOST_ROWS)
        self._replacement: head_ablation.AblationHooks | None = None
        if self.intervention:
            reference = [self.encoding.tokens(text) for text in self.intervention.reference]
            self.capabilities -= {"activations"}  # circuits load the model as it is, without the ablation
            self._replacement = head_ablation.prepare(self.intervention, self.model, self.source, reference)

    @property
    def tokenizer(self) -> Any:
        return self.encoding.tokenizer

    @cached_property
    def context(self) -> int:
        """The model's context length in tokens."""
        config = self.model.config.get_text_config()
        return int(config.max_position_embeddings)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end an output: those of the generation settings, and the tokenizer's."""
        stated = self.model.generation_config.eos_token_id
        stated = stated if isinstance(stated, list) else [stated]
        return frozenset(token for token in (*stated, self.tokenizer.eos_token_id) if token is not None)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Content only: the same weights under another name, or from the hub instead of a folder, are the same model."""
        return {
            "kind": "local",
            "weights": self.source.sha256,
            "tokenizer": self.encoding.sha256,
            "intervention": self.intervention.sha256 if self.intervention else None,
            "backend": "transformers, eager attention",
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "device": self.model.device.type,
            "versions": {module.__name__: module.__version__ for module in (tokenizers, torch, transformers)},
            "generation": {
                "bos": self.encoding.bos,
                "chat": self.encoding.chat,
                "context": self.context,
                "ends": sorted(self.ends),
                "sampler": SAMPLER,
            },
        }

    @property
    def execution(self) -> Mapping[str, Any]:
        """How outputs are computed: what may change their last digits and nothing else."""
        batch = {"rows": self.most_rows, "memory_mib": self.memory / 2**20}
        return {"batch": batch, "threads": torch.get_num_threads(), "revision": self.source.revision}

    def reads(self, text: str) -> bool:
        return self.encoding.reads(text)

    def same_tokens(self, first: str, second: str) -> bool | None:
        return self.encoding.tokens(first) == self.encoding.tokens(second)

    # --- generation ---------------------------------------------------------------------------------------------------

    def generate(
        self, requests: Sequence[Request], done: Callable[[int], Any] = lambda count: None
    ) -> list[Generation]:
        """As ModelUnderTest.

        `tokens` are all drawn tokens, including the end-of-text token and those of a stop text. `logprob` is the sum of their
        log-probabilities at temperature 1 (nats); `tokens_out` counts only the tokens of the text. A prompt longer than the
        context gives an error; an output that fills the context ends with "length".
        """
        found: dict[int, Generation] = {}
        replies = []
        for index, request in enumerate(requests):
            try:
                replies.append(self._reply(index, request))
            except UserError as error:
                found[index] = Generation("", "error", error=str(error))
        if found:
            done(len(found))
        for batch in self._batches(replies, lambda reply: (len(reply.prompt), reply.limit, 1)):
            for reply, generation in self._generated(batch):
                found[reply.index] = generation
            done(len(batch))
        return [found[index] for index in range(len(requests))]

    def _reply(self, index: int, request: Request) -> Reply:
        temperature = 1.0 if request.temperature is None else request.temperature
        request = replace(request, temperature=temperature)
        prompt = self.encoding.prompt(request.prompt, request.system, request.earlier)
        if len(prompt) > self.context:
            raise UserError(
                f"the prompt is {len(prompt)} tokens and the model {self.name} reads {self.context}; shorten it"
            )
        if request.max_tokens < 1 or temperature < 0:
            raise UserError(
                f"max_tokens={request.max_tokens} at temperature {temperature:g}: ask for at least one token at a "
                "temperature of at least 0"
            )
        limit = min(request.max_tokens, self.context - len(prompt) + 1)  # the last token is not read again
        seed = int(results_io.sha256([request.seed, request.sample, prompt]), 16)
        return Reply(index, request, prompt, limit, np.random.Generator(np.random.PCG64(seed)))

    def _generated(self, batch: Sequence[Reply]) -> Iterator[tuple[Reply, Generation]]:
        """The outputs of a batch. A batch that exceeds memory is halved; a single request that exceeds it gives an error."""
        start = time.perf_counter()
        try:
            self._continue(batch)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                yield batch[0], Generation("", "error", len(batch[0].prompt), error=f"out of memory ({error})")
                return
            for reply in batch:
                fresh = self._reply(reply.index, reply.request)
                reply.tokens, reply.logprobs, reply.finish, reply.uniforms = [], [], "", fresh.uniforms
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                yield from self._generated(half)
            return
        seconds = (time.perf_counter() - start) / len(batch)
        for reply in batch:
            yield reply, self._finished(reply, seconds)

    @torch.no_grad()
    def _continue(self, batch: Sequence[Reply]) -> None:
        """Draw tokens for every reply until all are finished."""
        tokens, mask = self._padded([reply.prompt for reply in batch])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = None
        with self._changed():
            while True:
                output = self.model(
                    input_ids=tokens,
                    attention_mask=mask,
                    position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                cache = output.past_key_values
                drawn = self._draw(batch, output.logits[:, -1])
                if all(reply.finish for reply in batch):
                    return
                tokens = torch.tensor(drawn, device=mask.device)[:, None]
                mask = torch.cat([mask, mask.new_ones(len(batch), 1)], 1)
                positions = positions[:, -1:] + 1
                positions = positions.clamp(max=self.context - 1)  # for finished rows that stay in the batch

    def _draw(self, batch: Sequence[Reply], logits: Float[Tensor, "row vocabulary"]) -> list[int]:
        """The next token of every reply; a finished reply does not store its token."""
        table = logits.double().log_softmax(-1)
        likeliest = table.argmax(-1).tolist()
        tokens = [
            likeliest[place] if reply.finish or reply.request.temperature == 0 else self._sample(reply, table[place])
            for place, reply in enumerate(batch)
        ]
        numbers = table.gather(1, torch.tensor(tokens, device=table.device)[:, None])[:, 0].tolist()
        for reply, token, number in zip(batch, tokens, numbers, strict=True):
            if not reply.finish:
                reply.tokens.append(token)
                reply.logprobs.append(number)
                if token in self.ends or self._stop(reply) is not None:
                    reply.finish = "stop"
                elif len(reply.tokens) >= reply.limit:
                    reply.finish = "length"
        return tokens

    @staticmethod
    def _sample(reply: Reply, log_probabilities: Float[Tensor, " vocabulary"]) -> int:
        """The first token whose cumulative probability at the request's temperature exceeds the reply's next uniform number."""
        assert reply.request.temperature is not None  # `_reply` has replaced None by 1
        cumulative = (log_probabilities / reply.request.temperature).softmax(-1).cumsum(-1).cpu().numpy()
        drawn = np.searchsorted(cumulative, reply.uniforms.random() * cumulative[-1], side="right")
        return min(int(drawn), len(cumulative) - 1)  # the product may round up to the whole sum

    def _stop(self, reply: Reply) -> str | None:
        """The text before the first stop text, or None while there is none."""
        return reply.request.before_stop(self.encoding.text(reply.tokens)) if reply.request.stop else None

    def _finished(self, reply: Reply, seconds: float) -> Generation:
        written = reply.tokens[:-1] if reply.tokens[-1] in self.ends else reply.tokens
        text = self._stop(reply)
        if text is None:
            text, count = self.encoding.text(written), len(written)
        else:
            count = next(n for n in range(len(written) + 1) if len(self.encoding.text(written[:n])) >= len(text))
        return Generation(
            text=text,
            finish=reply.finish,
            tokens_in=len(reply.prompt),
            tokens_out=count,
            logprob=math.fsum(reply.logprobs),
            logprobs=tuple(reply.logprobs),
            tokens=tuple(reply.tokens),
            seconds=seconds,
        )

    # --- likelihood ---------------------------------------------------------------------------------------------------

    def loglikelihood(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood]:
        """As ModelUnderTest, tokenised by `likelihood.split`; contexts are plain texts, without a chat template.

        UserError for a continuation without tokens, or one longer than the model's context.
        """
        tokens = self.encoding.tokens
        return self.score([likelihood.split(tokens, *pair, self.encoding.prefix) for pair in pairs])

    def score(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Likelihood]:
        """`loglikelihood` of (context ids, continuation ids). If both exceed the context length, the context is cut on the left.

        UserError for an empty context, an empty continuation, or one longer than the model's context.
        """
        for before, after in rows:
            if not before:
                raise UserError(
                    "a continuation after no token cannot be scored; put the BOS or end-of-text token before it"
                )
            if not 0 < len(after) <= self.context:
                raise UserError(
                    f"a continuation of {len(after)} tokens cannot be scored by a model that reads {self.context}; "
                    "give it at least one and at most as many"
                )
        # each distinct row is computed once, so that equal rows get equal numbers and ties stay ties
        distinct = list(dict.fromkeys((tuple(before), tuple(after)) for before, after in rows))
        found: dict[tuple, Likelihood] = {}
        for batch in self._batches(distinct, lambda row: (min(len(row[0] + row[1]) - 1, self.context), 0, len(row[1]))):
            found |= zip(batch, self._scored(batch), strict=True)
        return [found[tuple(before), tuple(after)] for before, after in rows]

    @torch.no_grad()
    def _scored(self, rows: Sequence[Row]) -> list[Likelihood]:
        read = [(before + after)[-(self.context + 1) : -1] for before, after in rows]
        tokens, mask = self._padded(read)
        keep = max(len(after) for _, after in rows)
        logits = self._logits(tokens, mask, keep)
        return [
            self._one(own[keep - len(after) :], after, len(before) + len(after) - 1 - len(ids))
            for own, ids, (before, after) in zip(logits, read, rows, strict=True)
        ]

    @staticmethod
    def _one(logits: Float[Tensor, "token vocabulary"], after: Sequence[int], truncated: int) -> Likelihood:
        wanted = torch.tensor(after, device=logits.device)
        log_probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        total = log_probabilities.gather(1, wanted[:, None]).double().sum()
        return Likelihood(float(total), bool((logits.argmax(-1) == wanted).all()), len(after), truncated)

    @torch.no_grad()
    def next_logits(self, rows: Sequence[Sequence[int]]) -> list[Float[Tensor, " vocabulary"]]:
        """Logits of the token after each row of ids, in order, on the CPU."""
        found: dict[int, Tensor] = {}
        numbered = list(enumerate(map(list, rows)))
        for batch in self._batches(numbered, lambda row: (len(row[1]), 0, 1)):
            tokens, mask = self._padded([ids for _, ids in batch])
            logits = self._logits(tokens, mask, 1)[:, -1]
            found |= {number: row.float().cpu() for (number, _), row in zip(batch, logits, strict=True)}
        return [found[number] for number, _ in numbered]

    # --- batches ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def silenced(self, hooks: head_ablation.AblationHooks) -> Iterator[None]:
        """Within this context the model runs with these heads replaced, instead of its own intervention.

        `identity` does not change, so outputs from within this context must not be recorded as the model's.
        """
        before, self._replacement = self._replacement, hooks
        try:
            yield
        finally:
            self._replacement = before

    def _changed(self) -> contextlib.AbstractContextManager[None]:
        return self._replacement.active() if self._replacement else contextlib.nullcontext()

    def _logits(
        self, tokens: Int[Tensor, "row position"], mask: Int[Tensor, "row position"], keep: int
    ) -> Float[Tensor, "row kept vocabulary"]:
        """Logits at the last `keep` positions of rows padded on the left."""
        with self._changed():
            return self.model(
                input_ids=tokens,
                attention_mask=mask,
                position_ids=(mask.cumsum(1) - 1).clamp(min=0),
                use_cache=False,
                logits_to_keep=keep,
            ).logits

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "row position"], Int[Tensor, "row position"]]:
        """Tokens padded on the left, and the mask that hides the padding."""
        width = max(map(len, rows))
        tokens = [[0] * (width - len(row)) + list(row) for row in rows]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        return torch.tensor(tokens, device=self.model.device), torch.tensor(mask, device=self.model.device)

    def _batches(self, items: Sequence[Any], size: Callable[[Any], tuple[int, int, int]]) -> Iterator[list[Any]]:
        """Batches of items of about equal length, the longest first, as many as fit into memory.

        `size` gives an item's number of tokens to read, of tokens to generate, and of positions with logits. In a dtype outside
        PADDED, the items of a batch have the same length.
        """
        batch: list[Any] = []
        read = total = keep = 0
        for item in sorted(items, key=size, reverse=True):
            length, coming, wanted = size(item)
            wider, kept = max(total, length + coming), max(keep, wanted)
            full = (len(batch) + 1) * self._bytes(wider, kept) > self.memory or len(batch) == self.most_rows
            if batch and (full or (self.model.dtype not in PADDED and length != read)):
                yield batch
                batch, wider, kept = [], length + coming, wanted
            batch.append(item)
            read, total, keep = length, wider, kept
        if batch:
            yield batch

    def _bytes(self, width: int, keep: int) -> int:
        """Estimated bytes of a row: attention scores of a layer with their softmax, the cache, a block's activations, logits."""
        config = self.model.config.get_text_config()
        scores = 3 * config.num_attention_heads * width**2
        cache = 2 * config.num_hidden_layers * width * config.hidden_size
        block = 12 * width * config.hidden_size
        logits = 3 * keep * config.vocab_size
        return self.model.dtype.itemsize * (scores + cache + block) + 8 * logits
