"""The suite of a shadow evaluation, for the gate: requests on which the candidate was worse, and siblings on which it was not.

Items are the redacted requests. An output fails if it is empty or contains a phrase of refusal. For a judge's verdicts, use
`judge do=pairs` and `do=grade` on runs of the suite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regex
import yaml

import results_io
from suites import abstention, declaration, lock, patterns
from suites.item import FILE
from suites.shadow import evaluation
from suites.shadow.traffic_record import TrafficStream

FOLDER = "suite"
WORD = regex.compile(r"\w+")
PHRASES = tuple(f"(?i){phrase}" for phrase in abstention.REFUSES)
SOMETHING = r"\S"


def write(folder: Path, name: str, stream: TrafficStream, siblings: int, max_tokens: int) -> Path | None:
    """Write suite.yaml, items.jsonl and the lock below `folder`; returns the suite's folder, None without a failing request.

    It has every failing request whose text is still stored and, for each, the `siblings` passing requests that share most words
    with it. The version rises when the items change.
    """
    failing = [one for one in evaluation.failing(stream) if _usable(one, stream)]
    if not failing:
        return None
    chosen = dict.fromkeys(failing, "failing") | dict.fromkeys(_siblings(failing, stream, siblings), "sibling")
    items = [_item(stream.texts[one], kind) for one, kind in sorted(chosen.items())]
    target = Path(folder) / FOLDER
    text = "".join(f"{json.dumps(item, ensure_ascii=False, sort_keys=True)}\n" for item in items)
    path = target / lock.ITEMS_FILE
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return target
    version = _next_version(target)
    results_io.write_text(path, text)
    results_io.write_text(target / FILE, yaml.safe_dump(_declared(name, version, items, max_tokens), sort_keys=False))
    results_io.write_text(target / lock.FILE, lock.freeze(declaration.read(target)))
    return target


def _siblings(failing: Sequence[str], stream: TrafficStream, each: int) -> list[str]:
    """For each failing request, the `each` passing ones nearest by the Jaccard index of their words; each only once."""
    worse = set(evaluation.failing(stream))
    passing = {
        name: _words(stream.texts[name]["prompt"])
        for name in stream.sampled
        if name not in worse and _usable(name, stream) and _passes(stream.texts[name]["candidate"])
    }
    found: list[str] = []
    for name in failing:
        words = _words(stream.texts[name]["prompt"])
        near = sorted((-_alike(words, other), sibling) for sibling, other in passing.items() if sibling not in found)
        found += [sibling for _, sibling in near[:each]]
    return found


def _usable(name: str, stream: TrafficStream) -> bool:
    """Whether a request can be an item: its texts are still stored, and none of its turns is empty."""
    texts = stream.texts.get(name)
    return texts is not None and bool(texts["prompt"]) and all(text for _, text in texts["earlier"])


def _words(text: str) -> frozenset[str]:
    return frozenset(WORD.findall(text.casefold()))


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0


def _passes(text: str) -> bool:
    return bool(text.strip()) and not any(patterns.search(phrase, text) for phrase in PHRASES)


def _item(texts: Mapping[str, Any], kind: str) -> dict[str, Any]:
    item: dict[str, Any] = {"id": texts["request"], "prompt": texts["prompt"], "template": kind}
    item |= {"system": texts["system"]} if texts["system"] else {}
    return item | ({"earlier": texts["earlier"]} if texts["earlier"] else {})


def _declared(name: str, version: str, items: Sequence[Mapping[str, Any]], max_tokens: int) -> dict[str, Any]:
    chats = any("system" in item or "earlier" in item for item in items)
    return {
        "id": f"shadow_{re.sub('[^a-z0-9]+', '_', name.lower()).strip('_')}",
        "version": version,
        "title": "Requests of live traffic on which a candidate was worse: empty outputs and phrases of refusal",
        "description": "Redacted requests on which a candidate was worse than the deployed model, and siblings where it was not.",
        "mode": "A3",
        "contexts": ["chat_assistant"],
        "requires": ["generation", *(["chat"] if chats else []), "reads"],
        "parameters": {"must": [SOMETHING], "must_not": list(PHRASES)},
        "legs": [{"name": "greedy", "temperature": 0, "samples": 1, "max_tokens": max_tokens}],
        "trace": {"strategy": "none", "reason": "requests of live traffic have no twin"},
        "minimum": 1,
        "gate": None,
    }


def _next_version(target: Path) -> str:
    """1.0.0, or the version of the existing lock plus one."""
    path = target / lock.FILE
    if not path.is_file():
        return "1.0.0"
    major = int(json.loads(path.read_text(encoding="utf-8").split("\n", 1)[0])["version"].partition(".")[0])
    return f"{major + 1}.0.0"
