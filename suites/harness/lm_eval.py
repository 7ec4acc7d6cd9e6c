"""MeridianLM: a local model under test, with its heads ablated or not, inside lm-evaluation-harness.

Importing this module registers it as `meridian`: `lm_eval.simple_evaluate(MeridianLM(model), tasks=...)`, or
`simple_evaluate("meridian", model_args={"name": "pocket", "kind": "embedded", "path": "pocket"}, ...)`.
Needs the extra `lm-eval`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs

from results_io import UserError
from suites.models.base import Request
from suites.models.local import LocalModel

MAX_GEN_TOKS = 256  # lm-eval's own default
READ = frozenset({"until", "max_gen_toks", "do_sample", "temperature"})  # what generation takes from a task


@register_model("meridian")
class MeridianLM(TemplateLM):
    """`model`, or the one that `settings` name (see LocalModel). `batch_size` is the most rows of a batch.

    lm-eval applies chat templates itself (`apply_chat_template=True`), so prompts are used unchanged here. Its response cache is
    refused, since the key does not contain the model, and one model would get another's answers. UserError for a prompt that is
    longer than the model's context.
    """

    def __init__(
        self,
        model: LocalModel | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        if model is None:
            model = LocalModel({**settings, "device": device})
        self.model = copy.copy(model)
        self.model.encoding = replace(model.encoding, chat=False)
        if isinstance(batch_size, int) or str(batch_size).isdigit():
            self.model.most_rows = int(str(batch_size))

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def tokenizer_name(self) -> str:
        return self.model.encoding.sha256

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> Any:
        return self.model.encoding.prefix

    @property
    def max_length(self) -> int:
        return self.model.context

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def set_cache_hook(self, cache_hook: Any) -> NoReturn:
        raise UserError(
            "lm-eval's response cache mixes up models, as its key leaves the model out; run without use_cache"
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self.model.encoding.tokens(string, bos=add_special_tokens)

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        found = self.model.score([(context, continuation) for _, context, continuation in requests])
        return [(one.logprob, one.greedy) for one in found]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of each text, every token scored once, in windows of the context length; the first after the prefix."""
        texts = []
        for request in requests:
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)  # the prefix token is BOS already
            windows = utils.get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, context_len=1)
            texts.append([utils.make_disjoint_window(window) for window in windows])
        found = iter(self.model.score([window for windows in texts for window in windows]))
        return [sum(next(found).logprob for _ in windows) for windows in texts]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        asked: Counter[str] = Counter()
        arguments: list[Any] = [request.args for request in requests]
        generations = self.model.generate([self._request(prompt, wanted, asked) for prompt, wanted in arguments])
        for generation in generations:
            if generation.error:
                raise UserError(generation.error)
        return [generation.text for generation in generations]

    @staticmethod
    def _request(prompt: str, wanted: dict[str, Any], asked: Counter[str]) -> Request:
        """The request of a prompt; its n-th request is its n-th sample. UserError for an unknown generation setting."""
        settings: dict[str, Any] = dict(normalize_gen_kwargs(wanted, MAX_GEN_TOKS))
        unknown = sorted(set(settings) - READ)
        if unknown:
            raise UserError(f"generation setting {unknown[0]!r} is unknown; use {', '.join(sorted(READ))}")
        until = settings.get("until") or []
        asked[prompt] += 1
        return Request(
            prompt,
            max_tokens=settings["max_gen_toks"],
            temperature=float(settings.get("temperature") or 0.0),
            stop=tuple([until] if isinstance(until, str) else until),
            sample=asked[prompt] - 1,
        )
