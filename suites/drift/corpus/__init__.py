"""The frozen prompts of drift: `<name>/prompts.yaml`, compiled to a lock, and held-out prompts outside of the repository.

A prompt is never edited: a change needs a new version, which runs beside the old one for two snapshots. The hash of a prompt is
the sha256 of the canonical JSON of {axis, id, messages, template, version}, with texts in NFC and LF.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

import results_io
from results_io import UserError
from shown_text import first_of
from suites import bounded_text, bounded_yaml, lock

FOLDER = Path(__file__).parent
FILE, LOCK, COMMITMENTS = "prompts.yaml", "prompts.lock.jsonl", "prompts.commitments.json"
RESTORE = "restore the file from version control"
AXES = (
    *("political", "historical-contested", "scientific-consensus"),
    *("refusal-boundary", "neutral-control", "factual-stability"),
)
NEUTRAL, BOUNDARY = "neutral-control", "refusal-boundary"
A_LIST = "give a list of at least one under `prompts`, each with its keys"
Harm = Literal["clear", "contested", "none"]
Split = Literal["public", "held_out"]
HELD_OUT_SHARE = (0.3, 0.7)  # of all prompts: fewer show no gap, more leave readers nothing to check
HELD_OUT_LEAST = 10  # held-out prompts an axis, as many as its test needs
OVERLAP = 2  # snapshots that two versions of a prompt run side by side: the second confirms the first
KEYS = {
    *("id", "version", "axis", "prompt", "messages", "supersedes", "harm", "stance"),
    *("equal_length_siblings", "answer"),
}
SHOWN = 5  # keys of prompts in a sentence
OF_SECRET = ("salt", "retired")  # further keys of a held-out prompt


@dataclass(frozen=True)
class Prompt:
    """One frozen question. `messages`: (role, text) of each; `supersedes`: the version of the same id that it replaces.

    `stance`: what pro and anti mean for it, if a judge labels its answers. `answer`: the fact that a right answer states.
    `siblings`: questions with the same number of tokens, for tracing an alarm.
    """

    id: str
    version: int
    axis: str
    messages: tuple[tuple[str, str], ...]
    template: str = ""
    supersedes: int | None = None
    harm: Harm = "none"
    stance: str | None = None
    siblings: tuple[str, ...] = ()
    answer: str | None = None
    split: Split = "public"

    @cached_property
    def hash(self) -> str:
        """sha256 of the canonical JSON of `frozen`."""
        return lock.digest(self.frozen)

    @property
    def frozen(self) -> dict[str, Any]:
        """The content of the hash: axis, id, messages, template and version."""
        messages = [{"role": role, "content": text} for role, text in self.messages]
        own = {"axis": self.axis, "id": self.id, "messages": messages, "template": self.template}
        return {**own, "version": self.version}

    @property
    def text(self) -> str:
        """The last message, which is the question."""
        return self.messages[-1][1]

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text that reveals the question: the messages, the siblings and the stance."""
        stance = () if self.stance is None else (self.stance,)
        return (*(text for _, text in self.messages), *self.siblings, *stance)

    @property
    def system(self) -> str | None:
        """The message before the question, if there is one."""
        return self.messages[0][1] if len(self.messages) > 1 else None

    @property
    def key(self) -> str:
        """Its name within a series, `id@version`: the versions of an id are separate series, never joined."""
        return f"{self.id}@{self.version}"


@dataclass(frozen=True)
class Corpus:
    """The prompts of a corpus and how they are asked. `markers`: beginnings that define a refusal, if the corpus has any.

    `commitments`: what is published of the held-out prompts, by prompt.
    """

    name: str
    version: str
    prompts: tuple[Prompt, ...]
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    markers: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int = 256
    sha256: str = ""
    commitments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes with prompts, in the order of AXES."""
        return tuple(axis for axis in AXES if any(prompt.axis == axis for prompt in self.prompts))

    def active(self, earlier: Sequence[Iterable[str]]) -> tuple[Prompt, ...]:
        """The prompts to ask now. A superseded version stays until its successor has been asked in OVERLAP snapshots.

        `earlier`: the keys asked in each earlier snapshot.
        """
        asked = [set(keys) for keys in earlier]
        over = {
            f"{prompt.id}@{prompt.supersedes}"
            for prompt in self.prompts
            if prompt.supersedes is not None and sum(prompt.key in keys for keys in asked) >= OVERLAP
        }
        return tuple(prompt for prompt in self.prompts if prompt.key not in over)


def names() -> tuple[str, ...]:
    """The names of the corpora that come with the project."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob(f"*/{FILE}")))


def load(name: str | Path, held_out: Path | None = None) -> Corpus:
    """The corpus of a name, or of a folder, with the held-out prompts of a file.

    UserError for an unknown name, for a lock that does not match the prompts, and as `with_held_out`.
    """
    folder = FOLDER / name if isinstance(name, str) and (FOLDER / name / FILE).is_file() else Path(name)
    if not (folder / FILE).is_file():
        raise UserError(f"drift.corpus={name} is no corpus; use {', '.join(names())}, or a folder with {FILE}")
    corpus = declared(folder)
    if not (folder / LOCK).is_file():
        raise UserError(f"{folder} has no {LOCK}; freeze the corpus with `python -m suites.drift.corpus {name}`")
    if bounded_text.given(folder / LOCK, RESTORE) != dumps(corpus):
        raise UserError(
            f"{folder / LOCK} is not the lock of {FILE}; a changed prompt needs a new version with supersedes, and then "
            f"`python -m suites.drift.corpus {name}`"
        )
    return corpus if held_out is None else with_held_out(corpus, Path(held_out))


def declared(folder: Path) -> Corpus:
    """The corpus of prompts.yaml, without checking its lock. UserError for an invalid file."""
    where = folder / FILE
    data = content_of(where)
    if unknown := sorted(
        set(data) - {"version", "prompts", "not_applicable", "markers", "stop", "max_tokens", "template"}
    ):
        raise UserError(
            f"{where} has the key {unknown[0]!r}; expected version, prompts and how they are asked: remove it"
        )
    if not data["prompts"]:
        raise UserError(f"{where} has no prompts; {A_LIST}")
    prompts = tuple(_prompt(one, where, str(data.get("template", ""))) for one in data["prompts"])
    _require_distinct(prompts, where)
    for axis in (missing := set(AXES) - {prompt.axis for prompt in prompts}):
        if axis not in data.get("not_applicable", {}):
            raise UserError(
                f"{where} has no prompt on {axis}; give some, or say why under not_applicable ({len(missing)})"
            )
    _require_texts(data, where)
    corpus = Corpus(
        folder.name,
        str(data.get("version", "1.0.0")),
        prompts,
        dict(data.get("not_applicable", {})),
        tuple(data.get("markers", ())),
        tuple(data.get("stop", ())),
        int(data.get("max_tokens", 256)),
    )
    return replace(corpus, sha256=_digest(corpus))


def _require_texts(data: Mapping[str, Any], where: Path) -> None:
    """UserError unless markers, stops and the reasons for axes without a prompt are texts."""
    reasons = data.get("not_applicable", {})
    if not isinstance(reasons, Mapping) or not all(isinstance(text, str) and text.strip() for text in reasons.values()):
        raise UserError(
            f"{where} has not_applicable: {reasons!r}; expected a reason in words for each axis: write them"
        )
    for key in ("markers", "stop"):
        texts = data.get(key, ())
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise UserError(f"{where} has {key}: {texts!r}; expected a list of texts: put numbers in quotes")


def freeze(folder: Path) -> str:
    """The text of the lock of a corpus. UserError if an (id, version) has another hash in the lock on disk."""
    corpus = declared(folder)
    if (path := folder / LOCK).is_file():
        try:
            lines = [json.loads(line) for line in bounded_text.given(path, RESTORE).removesuffix("\n").split("\n")[1:]]
            known = {(line["id"], line["version"]): line["hash"] for line in lines}
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is no lock of a corpus ({type(error).__name__} {error}); {RESTORE}") from None
        for prompt in corpus.prompts:
            if known.get((prompt.id, prompt.version), prompt.hash) != prompt.hash:
                raise UserError(
                    f"{folder / FILE}: {prompt.id} version {prompt.version} has changed; a prompt is never edited in place: "
                    f"give it version {prompt.version + 1} with supersedes: {prompt.version}, and leave the old one there"
                )
        now = {(prompt.id, prompt.version) for prompt in corpus.prompts}
        if gone := sorted(set(known) - now):
            raise UserError(
                f"{folder / FILE}: {gone[0][0]} version {gone[0][1]} is gone; what was asked stays on record"
            )
    return dumps(corpus)


def dumps(corpus: Corpus) -> str:
    """The lock: a header, then one line of canonical JSON for each prompt with its hash."""
    header = {"corpus": corpus.name, "version": corpus.version, "prompts": len(corpus.prompts), "sha256": corpus.sha256}
    lines = [{**prompt.frozen, "hash": prompt.hash} for prompt in corpus.prompts]
    return "".join(f"{lock.canonical(line)}\n" for line in (header, *lines))


def with_held_out(corpus: Corpus, path: Path) -> Corpus:
    """The corpus with the held-out prompts of a file outside of any repository.

    UserError unless they are 30 to 70 % of all prompts and at least 10 on each axis of the corpus, with no other axis; for a
    question that is public; and as `commitments`, so that a short salt is found before anything is asked.
    """
    gone = retired(path)
    own = tuple(replace(prompt, split="held_out") for prompt in read_held_out(path) if prompt.key not in gone)
    _require_distinct((*corpus.prompts, *own), path)
    public = {prompt.messages for prompt in corpus.prompts}
    if known := next((prompt for prompt in own if prompt.messages in public), None):
        raise UserError(
            f"{path}: {known.key} asks what a public prompt of {corpus.name} asks; keep out another question"
        )
    counts = Counter(prompt.axis for prompt in own)
    for axis in corpus.axes:
        if counts[axis] < HELD_OUT_LEAST:
            raise UserError(
                f"{path} has {counts[axis]} prompts on {axis}; expected at least {HELD_OUT_LEAST}: add some"
            )
    if stray := sorted(set(counts) - set(corpus.axes)):
        raise UserError(f"{path} has prompts on {stray[0]}, where the corpus {corpus.name} has none; remove them")
    share = len(own) / (len(own) + len(corpus.prompts))
    if not HELD_OUT_SHARE[0] <= share <= HELD_OUT_SHARE[1]:
        raise UserError(f"{path} holds {share:.0%} of all prompts; expected 30 % to 70 %: add or remove some")
    joined = replace(corpus, prompts=(*corpus.prompts, *own), commitments=commitments(path)["commitments"])
    return replace(joined, sha256=_digest(joined))


def read_held_out(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a held-out file, a YAML list in the form of prompts.yaml, each with a `salt` of 64 hex digits.

    Those that are `retired: true` belong to it too: they are asked no longer, and may be revealed.
    """
    data = content_of(path)
    return tuple(_prompt({k: v for k, v in one.items() if k not in OF_SECRET}, path, "") for one in data["prompts"])


def retired(path: Path) -> set[str]:
    """The keys of the prompts of a held-out file that are asked no longer."""
    return {key_of(one) for one in content_of(path)["prompts"] if one.get("retired") is True}


def some(keys: Iterable[str]) -> str:
    """The first keys for a sentence, and how many more there are."""
    return first_of(sorted(keys), SHOWN) or "none"


def key_of(row: Mapping[str, Any]) -> str:
    """The key of a prompt as it stands in a file."""
    return f"{lock.normalised(str(row.get('id')))}@{row.get('version', 1)}"


# --- commitments ------------------------------------------------------------------------------------------------------


def commitment(salt: str, prompt: Prompt) -> str:
    """HMAC-SHA256(salt, canonical JSON of the prompt): a commitment that does not show the text. UserError for a short salt."""
    try:
        key = bytes.fromhex(salt)
    except (ValueError, TypeError):
        key = b""
    if len(key) != 32:
        raise UserError(f"the salt of {prompt.key} is not 32 bytes in hex; draw one with `secrets.token_hex(32)`")
    return _hmac(key, prompt.frozen)


def _hmac(key: bytes, frozen: Mapping[str, Any]) -> str:
    return hmac.new(key, lock.canonical(frozen).encode(), hashlib.sha256).hexdigest()


def commitments(path: Path) -> dict[str, Any]:
    """What is published of a held-out file: the commitment and the axis of every prompt. UserError as `commitment`."""
    salts = _salts(path)
    prompts = read_held_out(path)
    listed = {
        prompt.key: {"axis": prompt.axis, "hmac_sha256": commitment(salts[prompt.key], prompt)} for prompt in prompts
    }
    return {"commitments": dict(sorted(listed.items()))}


def _salts(path: Path) -> dict[str, Any]:
    return {key_of(one): one.get("salt", "") for one in content_of(path)["prompts"]}


def secrets(path: Path, public: Iterable[str]) -> list[str]:
    """The texts of a held-out file that must not be published: messages, siblings and stances that are not among `public`."""
    return sorted({text for prompt in read_held_out(path) for text in prompt.texts} - set(public))


def reveal(path: Path, key: str, published: Mapping[str, Any], active: Iterable[str] = ()) -> dict[str, Any]:
    """Text and salt of one retired held-out prompt, verified against what was published.

    `active`: the keys that are not retired. UserError for one of these, for a prompt that is not there, and for one whose
    commitment is another one.
    """
    salts = _salts(path)
    found = next((prompt for prompt in read_held_out(path) if prompt.key == key), None)
    if found is None:
        raise UserError(f"{path} has no prompt {key}; use one of {some(salts)}")
    if key in set(active):
        raise UserError(
            f"{key} is not retired: the last snapshot asked it, or none was finished since; retire it with do=retire, finish a "
            "snapshot, and then reveal it"
        )
    known = published.get("commitments", {}).get(key, {}).get("hmac_sha256")
    if known is None or not hmac.compare_digest(known, commitment(salts[key], found)):
        raise UserError(f"{key} is not what was committed to; the published commitment is of another text or salt")
    return {"prompt": found.frozen, "salt": salts[key], "hmac_sha256": known}


def revealed(path: Path, published: Mapping[str, Any]) -> dict[str, Any]:
    """What `reveal` gave, as stored in a file. UserError for a text or salt that is not what was published of it."""
    try:
        found = json.loads(bounded_text.read(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is no revealed prompt ({error}); delete it, and reveal the prompt again") from error
    return as_committed(found, published, path)


def as_committed(found: Any, published: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A revealed prompt that was read from `path`. UserError for a text or salt that is not what was published of it."""
    try:
        key = f"{found['prompt']['id']}@{found['prompt']['version']}"
        made = _hmac(bytes.fromhex(found["salt"]), found["prompt"])
        contents = [str(message["content"]) for message in found["prompt"]["messages"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no revealed prompt ({error}); delete it, and reveal the prompt again") from error
    known = published.get("commitments", {}).get(key, {}).get("hmac_sha256")
    if not contents or known != made or found.get("hmac_sha256") != made:
        raise UserError(f"{path} is not what was committed to as {key}; delete it, and reveal the prompt again")
    return found


def kept_out(key: bytes, identifier: str, share: float) -> bool:
    """Whether a prompt belongs to the held-out part of a list: first 8 hex digits of HMAC-SHA256(key, id) / 2^32 < share."""
    return int(hmac.new(key, identifier.encode(), hashlib.sha256).hexdigest()[:8], 16) / 2**32 < share


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_messages(value: Any) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= 2:
        return False
    return all(
        isinstance(one, dict) and set(one) == {"role", "content"} and all(map(_is_text, one.values())) for one in value
    )


def _is_version(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


FORMS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (  # of a prompt's keys; in YAML `yes` and `1` are no texts
    ("prompt", _is_text, "a text"),
    ("messages", _is_messages, "one or two messages, each with role and content"),
    ("version", _is_version, "a whole number from 1"),
    ("supersedes", lambda value: value is None or _is_version(value), "a whole number from 1"),
    ("answer", lambda value: value is None or _is_text(value), "a text, in quotes if YAML reads something else"),
    ("stance", lambda value: value is None or _is_text(value), "a text"),
    ("equal_length_siblings", lambda value: isinstance(value, list) and all(map(_is_text, value)), "a list of texts"),
)


# --- reading ----------------------------------------------------------------------------------------------------------


def _prompt(data: Mapping[str, Any], where: Path, template: str) -> Prompt:
    """One prompt, checked. UserError names the file, the prompt and what is wrong."""
    named = f"{where}: {data.get('id', 'a prompt')}"
    if unknown := sorted(set(data) - KEYS):
        raise UserError(f"{named} has the key {unknown[0]!r}; expected one of {', '.join(sorted(KEYS))}: remove it")
    if not isinstance(data.get("id"), str) or data.get("axis") not in AXES:
        raise UserError(f"{named} has the axis {data.get('axis')!r}; expected an id and one of {', '.join(AXES)}")
    if ("prompt" in data) == ("messages" in data):
        raise UserError(f"{named} needs prompt or messages, one of them; give what is asked")
    for key, fits, expected in FORMS:
        if key in data and not fits(data[key]):
            raise UserError(f"{named} has {key} {data[key]!r}; expected {expected}: correct it")
    if data.get("harm", "none") not in get_args(Harm):
        raise UserError(f"{named} has harm {data['harm']!r}; expected one of {', '.join(get_args(Harm))}")
    messages = data.get("messages") or [{"role": "user", "content": data["prompt"]}]
    return Prompt(
        id=lock.normalised(data["id"]),
        version=int(data.get("version", 1)),
        axis=data["axis"],
        messages=tuple((str(one["role"]), lock.normalised(str(one["content"]))) for one in messages),
        template=template,
        supersedes=data.get("supersedes"),
        harm=data.get("harm", "none"),
        stance=data.get("stance"),
        siblings=tuple(lock.normalised(text) for text in data.get("equal_length_siblings", ())),
        answer=data.get("answer"),
    )


def _require_distinct(prompts: Sequence[Prompt], where: Path) -> None:
    counts = Counter(prompt.key for prompt in prompts)
    if again := sorted(key for key in counts if counts[key] > 1):
        raise UserError(f"{where} has {again[0]} {counts[again[0]]} times; give every prompt its own id")
    for prompt in prompts:
        if prompt.supersedes is not None and f"{prompt.id}@{prompt.supersedes}" not in counts:
            raise UserError(f"{where}: {prompt.key} supersedes version {prompt.supersedes}, which is not there; add it")


def _digest(corpus: Corpus) -> str:
    asked = {"markers": list(corpus.markers), "stop": list(corpus.stop), "max_tokens": corpus.max_tokens}
    return results_io.sha256({**asked, "prompts": sorted(prompt.hash for prompt in corpus.prompts)})


def content_of(path: Path) -> dict[str, Any]:
    """The content of a file with a list of `prompts`. UserError for anything else."""
    try:
        data = bounded_yaml.read(path)
    except FileNotFoundError as error:
        raise UserError(
            f"there is no file {path}; give the YAML file with the prompts, which do=hold_out writes for those held out"
        ) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read ({reason}); give a YAML file") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} is no mapping; expected `prompts:` with a list")
    prompts = data.get("prompts")
    if not isinstance(prompts, list) or not all(isinstance(one, dict) for one in prompts):
        raise UserError(f"{path} has no prompts; {A_LIST}")
    return data
