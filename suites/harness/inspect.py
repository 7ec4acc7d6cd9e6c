"""The inspect_ai provider `meridian`: a local model under test, asked in batches and with raw prompts.

Importing this module registers it: `get_model("meridian/pocket", kind="embedded", path="pocket")`, or with `local=` a LocalModel.
A model without a chat template gets the user's message and nothing else. Needs the extra `inspect`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import anyio
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from results_io import UserError
from suites.models.base import FILTERED, Generation, Request
from suites.models.local import LocalModel

WINDOW = 0.01  # seconds that a batch waits for more requests, short compared with a forward pass
MAX_TOKENS = 16  # default if a task does not say, since base models do not stop by themselves
FINISH: dict[str, StopReason] = {"stop": "stop", "length": "max_tokens", FILTERED: "content_filter"}


@modelapi(name="meridian")
def meridian() -> type[ModelAPI]:
    return MeridianAPI


@dataclass(eq=False)
class Ticket:
    """One request that waits for its batch."""

    request: Request
    generation: Generation | None = None


class MeridianAPI(ModelAPI):
    """`local`, or the model that `settings` name (see LocalModel), under the name given to inspect_ai.

    At a temperature above 0, the n-th request of a prompt is its n-th sample. UserError for tools, for more than one user
    message, and for a prompt that the model cannot read; inspect_ai records it as the error of the sample.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008, the base class's own default
        local: LocalModel | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        self.model = local or LocalModel({"name": model_name, **settings})
        self._waiting: list[Ticket] = []
        self._asked: Counter[tuple[str, str | None]] = Counter()

    @cached_property
    def _running(self) -> anyio.Lock:
        return anyio.Lock()

    def max_connections(self) -> int:
        return self.model.most_rows

    async def generate(
        self, input: list[ChatMessage], tools: list[ToolInfo], tool_choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        if tools:
            raise UserError(f"model {self.model_name} takes no tools; run a task without them")
        generation = await self._answer(self._request(input, config))
        if generation.error:
            raise UserError(generation.error)
        return self._output(generation, bool(config.logprobs))

    def _request(self, messages: list[ChatMessage], config: GenerateConfig) -> Request:
        users = [message.text for message in messages if message.role == "user"]
        systems = [message.text for message in messages if message.role == "system"]
        if len(users) != 1 or len(users) + len(systems) < len(messages):
            raise UserError(
                f"a conversation of {len(messages)} messages; model {self.model_name} takes one user message"
            )
        prompt, system = users[0], "\n".join(systems) or None
        temperature = config.temperature or 0.0
        sample = self._asked[prompt, system] if temperature else 0
        self._asked[prompt, system] += 1
        return Request(
            prompt,
            system,
            max_tokens=config.max_tokens or MAX_TOKENS,
            temperature=temperature,
            stop=tuple(config.stop_seqs or ()),
            seed=config.seed or 0,
            sample=sample,
        )

    async def _answer(self, request: Request) -> Generation:
        """The task that gets the lock runs all waiting requests; those that arrive meanwhile form the next batch."""
        ticket = Ticket(request)
        self._waiting.append(ticket)
        async with self._running:
            if ticket.generation is None:
                await anyio.sleep(WINDOW)
                await self._run()
        return cast(Generation, ticket.generation)  # `_run` fills the tickets of all waiting requests

    async def _run(self) -> None:
        batch = list(self._waiting)
        found = await anyio.to_thread.run_sync(self.model.generate, [ticket.request for ticket in batch])
        for ticket, generation in zip(batch, found, strict=True):
            ticket.generation = generation
        self._waiting = self._waiting[len(batch) :]  # only now, so that they still wait after a cancellation

    def _output(self, generation: Generation, logprobs: bool) -> ModelOutput:
        choice = ChatCompletionChoice(
            message=ChatMessageAssistant(content=generation.text, model=self.model_name, source="generate"),
            stop_reason=FINISH[generation.finish],
            logprobs=self._logprobs(generation) if logprobs else None,
        )
        read, written = generation.tokens_in or 0, len(generation.tokens or ())
        usage = ModelUsage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        return ModelOutput(model=self.model_name, choices=[choice], usage=usage, time=generation.seconds)

    def _logprobs(self, generation: Generation) -> Logprobs:
        pairs = zip(generation.tokens or (), generation.logprobs or (), strict=True)
        return Logprobs(content=[Logprob(token=self.model.tokenizer.decode([t]), logprob=value) for t, value in pairs])
