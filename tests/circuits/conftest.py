"""Random models, prompts and studies that the tests of `circuits` share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from circuits import circuit as circuit_files
from circuits import prompts as prompt_sets
from circuits import study as studies
from circuits import tasks
from circuits.embedded.tokenizer import build_tokenizer
from circuits.models import Model
from circuits.prompts import PromptSet
from circuits.study import Study
from tests.circuits import hook_loop, toy

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def one_thread_without_gradients() -> Iterator[None]:
    """For a module that runs whole models by itself: contended threads are slower than one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of the random model of an architecture; the GPT-2 comes with a circuit for greater-than."""

    @cache
    def make(architecture: str) -> Path:
        path = toy.save(toy.build(architecture), tmp_path_factory.mktemp("models") / architecture)
        if architecture == "gpt2":
            circuit_files.save(toy.circuit("greater_than"), path / "circuits" / "greater_than.yaml")
        return path

    return make


@pytest.fixture(scope="session")
def load(folder) -> Callable[..., Model]:
    """load(architecture, dtype): the random model in a bridge."""
    return cache(lambda architecture, dtype="float32": toy.load(folder(architecture), dtype))


@pytest.fixture(scope="session")
def plain(folder):
    """plain(architecture): the same weights as an ordinary Hugging Face model in float64."""
    return cache(lambda architecture: toy.plain(folder(architecture)))


@pytest.fixture(scope="module")
def float64_throughout() -> Iterator[None]:
    """Softmax and RMS norm in the dtype of their input: rotary models compute both in float32 whatever their dtype."""
    softmax = torch.nn.functional.softmax

    def exact_softmax(x, dim=None, dtype=None, **rest):
        return softmax(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype, **rest)

    def exact_norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def exact_offset_norm(self, x):
        return (1 + self.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", exact_softmax)
        for norm in (LlamaRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
            patch.setattr(norm, "forward", exact_norm)
        for norm in (GemmaRMSNorm, Gemma2RMSNorm, Gemma3RMSNorm):
            patch.setattr(norm, "forward", exact_offset_norm)
        yield


@pytest.fixture(scope="session")
def model(load) -> Model:
    return load("gpt2")


@pytest.fixture(scope="session")
def sets(tokenizer) -> Callable[[str], dict[str, PromptSet]]:
    """sets(task): its four prompt sets."""

    @cache
    def make(name: str) -> dict[str, PromptSet]:
        task = tasks.get(name)
        drawn = prompt_sets.draw_examples(task, toy.SIZES, 0)
        return {split: prompt_sets.tokenize(task, examples, tokenizer, split) for split, examples in drawn.items()}

    return make


@pytest.fixture(scope="session")
def scored(sets) -> PromptSet:
    """IOI prompts of several lengths."""
    return prompt_sets.join(sets("ioi")["evaluation"], sets("ioi")["held_out"])


@pytest.fixture(scope="session")
def reference(sets) -> PromptSet:
    """Six IOI reference prompts of every template."""
    prompts, rows = sets("ioi")["reference"], {}
    for row, template in enumerate(prompts.templates):
        rows.setdefault(template, []).append(row)
    return prompts.select(sorted(row for own in rows.values() for row in own[:6]))


@pytest.fixture(scope="session")
def make_study(load) -> Callable[..., Study]:
    """make_study(architecture, task): a study of the random model with the toy's settings."""

    @cache
    def make(architecture: str = "gpt2", task: str = "ioi") -> Study:
        return studies.prepare(
            load(architecture),
            tasks.get(task),
            toy.SIZES,
            seed=0,
            engine=toy.ENGINE,
            circuit=toy.circuit(task),
            settings=toy.SETTINGS,
        )

    return make


@pytest.fixture(scope="session")
def study(make_study) -> Study:
    return make_study()


@pytest.fixture(scope="session")
def twin(plain, sets) -> Callable[..., hook_loop.HookLoop]:
    """twin(architecture, task): the brute-force twin of the engine."""

    @cache
    def make(architecture: str = "gpt2", task: str = "ioi") -> hook_loop.HookLoop:
        return hook_loop.HookLoop(plain(architecture), architecture, toy.N_HEADS, sets(task)["reference"])

    return make
