"""Item, SuiteDeclaration and Suite: immutable values that say what a model is asked and what counts as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from suites import schema

CATALOGUE = Path(__file__).parent / "catalogue"
FILE = "suite.yaml"

Kind = Literal["minimum_functionality", "invariance", "directional"]  # of a test, after CheckList


@dataclass(frozen=True)
class ItemVariant:
    """How an item was made from another item of its suite: kind of change, its parameters and seed, and the parent's id."""

    kind: str
    parent: str
    params: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Item:
    """One prompt and what counts as right.

    `prompt` is the text that a base model continues, or the user's message to a chat model. `system` and `earlier`, the (role,
    text) of earlier turns, precede it. `answers`: any of them is right (empty: the detector alone judges). `distractors`: wrong
    answers that the prompt itself offers. `choices`: the options that likelihood scoring compares, which include the `answers`.
    `template` is the surface frame, `cluster` the sampling unit that dependent items share, `factors` further labels by which
    rates are broken down (depth, length, position).
    `spans` names character spans of `prompt`; perturbations leave them alone and the bridge names positions after them.
    `expect`: what this item's detector needs (a schema, limits, patterns, sources, `answerable`, a canary).
    """

    id: str
    prompt: str
    kind: Kind = "minimum_functionality"
    version: int = 1
    system: str | None = None
    answers: tuple[str, ...] = ()
    distractors: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    template: str = ""
    cluster: str = ""
    factors: Mapping[str, str] = field(default_factory=dict)
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)
    variant: ItemVariant | None = None
    earlier: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SamplingLeg:
    """One way of sampling: greedy (temperature 0, one sample) or `samples` draws at a temperature (None: the model's own).

    Generation ends before any of the `stop` texts, after `max_tokens` tokens, or at the model's end-of-text token.
    """

    name: str = "greedy"
    temperature: float | None = 0.0
    samples: int = 1
    max_tokens: int = 8
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class SuiteDeclaration:
    """The checked content of suite.yaml and its folder. `data` holds plain JSON values."""

    folder: Path
    data: Mapping[str, Any]

    @property
    def file(self) -> str:
        """The file as errors name it: relative to the working directory if it lies below it."""
        return schema.shown_path(self.folder / FILE)

    @property
    def freeze_command(self) -> str:
        """The command that freezes this suite."""
        mine = self.folder.resolve().parent == CATALOGUE.resolve()
        return f"python -m scripts.freeze_suites {self.folder.name if mine else schema.shown_path(self.folder)}"

    @property
    def scorer(self) -> Mapping[str, Any]:
        return self.data.get("scorer", {})


@dataclass(frozen=True)
class Suite:
    """One suite: the declaration (`suite.yaml`) with the items of its lock.

    `mode` is the failure mode that the suite tests for ("A9"), `parameters` are those of the mode. `requires` names what a model
    must be able to do for the suite to apply. `scorer` says what makes an output right. `trace` says how the bridge pairs its
    failures.
    `gate`: the largest failure rate that passes, with a reason, or None. `canary`: the GUID in the lock's header, if it has one.
    """

    id: str
    version: str
    title: str
    description: str
    mode: str
    contexts: tuple[str, ...]
    requires: tuple[str, ...]
    legs: tuple[SamplingLeg, ...]
    scorer: Mapping[str, Any]
    parameters: Mapping[str, Any]
    trace: Mapping[str, Any]
    minimum: int
    gate: Mapping[str, Any] | None
    items: tuple[Item, ...]
    sha256: str
    canary: str | None = None

    @cached_property
    def by_id(self) -> Mapping[str, Item]:
        return {item.id: item for item in self.items}
