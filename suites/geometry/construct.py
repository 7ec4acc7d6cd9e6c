"""Construct: one question asked in several ways, a folder with construct.yaml. The constructs of a set share reference.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from results_io import UserError
from suites import declaration, lock, patterns, schema

CATALOGUE = Path(__file__).parent / "catalogue"
FILE, REFERENCE, LOCK = "construct.yaml", "reference.yaml", "constructs.lock.jsonl"
FORMAT = 2  # 1 left reference.yaml out
SENTENCE_ENDS, WIDE_ENDS, CLOSING = ".!?…؟।", "。！？", "\"')]”’»"  # of sentences before a turn's question
METHODS = ("direct", "paraphrase", "persona", "turns", "language", "reasoning", "side_a", "side_b")
SEMANTIC, SYMBOLIC = "semantic", "symbolic"
SYMBOLIC_REASON = (
    "its output is symbolic (code, arithmetic, JSON), where the paper's definition 3 gives distances no meaning"
)
TEXT = {"type": "string", "minLength": 1, "description": "a text"}
NUMBERS = schema.list_of({"type": "number", "description": "a number"}, "a list of numbers, one an axis")
VARIANT = schema.object_of(
    ("id", "method"),
    id=TEXT,
    method=schema.one_of(METHODS, "how the question is put"),
    prompt=TEXT,
    messages=schema.list_of(schema.object_of(("role", "content"), role=TEXT, content=TEXT), "chat turns"),
    system=TEXT,
    wording=TEXT,
    language=TEXT,
    persona=TEXT,
    turn=schema.whole("the turn after which the question is asked", least=1),
)
SCHEMA = schema.object_of(
    ("id", "version", "title", "mode_of_output"),
    id={"type": "string", "pattern": "^[a-z0-9][a-z0-9_]*$", "description": "a name of small letters, digits and '_'"},
    version={"type": "string", "pattern": r"^\d+\.\d+\.\d+$", "description": 'a text of three numbers such as "1.0.0"'},
    title=TEXT,
    topic=TEXT,
    mode_of_output=schema.one_of((SEMANTIC, SYMBOLIC), "what kind of output"),
    reference=NUMBERS,
    reference_variance={"type": "number", "minimum": 0, "description": "the variance S/n of the reference"},
    regions=schema.object_of(("a", "b"), a=schema.texts("anchor texts"), b=schema.texts("anchor texts")),
    answer_pattern=TEXT,
    transcript=schema.object_of(("user", "assistant"), user=TEXT, assistant=TEXT),
    wordings={**schema.list_of(TEXT, "the question, worded differently"), "uniqueItems": True},
    personas={"type": "object", "additionalProperties": TEXT, "description": "opening sentences by name"},
    turns=schema.list_of(TEXT, "sentences that follow one another before the question"),
    conversation=schema.list_of(
        schema.object_of(("user", "assistant"), user=TEXT, assistant=TEXT), "chat turns that come before the question"
    ),
    variants=schema.list_of(VARIANT, "ways of putting the question"),
)


@dataclass(frozen=True)
class ConstructVariant:
    """One way of asking a construct's question. `wording` identifies variants with the same words under other methods.

    `earlier`: (role, text) of the turns of a conversation before `prompt`.
    """

    id: str
    method: str
    prompt: str
    system: str | None = None
    wording: str = ""
    language: str | None = None
    persona: str | None = None
    turn: int | None = None
    earlier: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Construct:
    """A question with its variants. `reference`: coordinates to compare with; `regions`: anchor texts of sides a and b.

    `transcript`: templates of a user's and an assistant's turn ({} is the text) for a model without chat turns.
    """

    id: str
    version: str
    title: str
    topic: str
    mode_of_output: str
    variants: tuple[ConstructVariant, ...]
    reference: tuple[float, ...] | None = None
    reference_variance: float = 0.0
    regions: Mapping[str, Sequence[str]] | None = None
    answer_pattern: str | None = None
    transcript: Mapping[str, str] | None = None

    @cached_property
    def sha256(self) -> str:
        """Hash of the whole construct in canonical JSON. Fields that the format gained later enter only if they are used."""
        said = asdict(self)
        if self.transcript is None:
            said.pop("transcript")
        for variant in said["variants"]:
            if not variant["earlier"]:
                variant.pop("earlier")
        return lock.digest(said)

    def written(self, variant: ConstructVariant) -> str | None:
        """The text of a variant for a model that takes no chat turns; None for a conversation without a transcript."""
        if self.transcript is None:
            return None if variant.earlier else variant.prompt
        turns = (*variant.earlier, ("user", variant.prompt))
        lines = [self.transcript[role].replace("{}", text) for role, text in turns]
        return "\n".join([*lines, self.transcript["assistant"].replace("{}", "").rstrip()])

    def of(self, method: str, **wanted: Any) -> tuple[ConstructVariant, ...]:
        """The variants of a method, in order, whose fields equal `wanted`."""
        return tuple(
            one for one in self.variants
            if one.method == method and all(getattr(one, key) == value for key, value in wanted.items())
        )  # fmt: skip


@dataclass(frozen=True)
class ConstructSet:
    """The constructs of a folder and what they share: coordinates, scale, sampling, and requirements on a model."""

    name: str
    folder: Path
    constructs: tuple[Construct, ...]
    coordinates: Mapping[str, Any]
    scale: Mapping[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def sha256(self) -> str:
        """Identity of all constructs."""
        return lock.digest([one.sha256 for one in self.constructs])

    @property
    def reference_sha256(self) -> str:
        """Identity of what they share, which decides what is read of an output and in which unit."""
        shared = {"coordinates": self.coordinates, "scale": self.scale, "sampling": self.sampling}
        return lock.digest({**shared, "requires": self.requires})


REFERENCE_SCHEMA = schema.object_of(
    ("coordinates",),
    title=TEXT,
    coordinates={"type": "object", "description": "the coordinates: kind and axes"},
    scale={"type": "object", "description": "the fixed scale: run, mean, sd, rms or matrix"},
    requires=schema.texts("what a model needs"),
    sampling=schema.object_of(max_tokens=schema.whole("tokens of an output"), stop=schema.texts("stop texts")),
)


def names() -> list[str]:
    """The names of the sets that come with the project."""
    return sorted(path.parent.name for path in CATALOGUE.glob(f"*/{REFERENCE}"))


def load(name_or_folder: str | Path, locked: bool = True) -> ConstructSet:
    """The set of that name, or in that folder, with every construct checked, and compared with the lock if `locked`.

    UserError for an unknown name, a malformed file, variants that cannot be compared, and constructs that differ from the lock.
    """
    text = str(name_or_folder)
    folder = CATALOGUE / text if text in names() else Path(text).expanduser()
    if not (folder / REFERENCE).is_file():
        known = schema.suggestion(text, names())
        raise UserError(
            f"there is no set of constructs {text!r}: neither shipped nor a folder with {REFERENCE}; {known}"
        )
    data = declaration.read_yaml(folder / REFERENCE)
    schema.check(data, REFERENCE_SCHEMA, schema.shown_path(folder / REFERENCE))
    files = sorted(folder.glob(f"*/{FILE}"))
    if not files:
        raise UserError(f"{schema.shown_path(folder)} has no <name>/{FILE}; expected one a construct; write one there")
    found = tuple(read(path) for path in files)
    if (again := schema.first_repeated([one.id for one in found])) is not None:
        raise UserError(
            f"{schema.shown_path(files[again])}: id is {found[again].id!r} again; rename one of the constructs"
        )
    loaded = ConstructSet(
        folder.resolve().name,
        folder,
        found,
        data["coordinates"],
        data.get("scale", {}),
        tuple(data.get("requires", ())),
        data.get("sampling", {}),
    )
    if locked:
        _check_lock(loaded)
    return loaded


def read(path: Path) -> Construct:
    """One construct.yaml, expanded and linted. UserError names the file and the key."""
    where, data = schema.shown_path(path), declaration.read_yaml(path)
    schema.check(data, SCHEMA, where)
    if "turns" in data and "conversation" in data:
        raise UserError(f"{where}: turns and conversation both say what comes before the question; keep one of them")
    variants = (*_expanded(data), *(_variant(one, where) for one in data.get("variants", ())))
    reference = data.get("reference")
    found = Construct(
        data["id"],
        data["version"],
        data["title"],
        data.get("topic", data["id"]),
        data["mode_of_output"],
        variants,
        None if reference is None else tuple(float(value) for value in reference),
        float(data.get("reference_variance", 0.0)),
        data.get("regions"),
        data.get("answer_pattern"),
        data.get("transcript"),
    )
    _lint(found, where)
    return found


def freeze(loaded: ConstructSet) -> str:
    """The text of the lock. UserError if an existing lock has other content under the same version of a construct."""
    path = loaded.folder / LOCK
    if path.exists():
        before = {line.get("id"): line for line in _lock_lines(path)}
        for one in loaded.constructs:
            old = before.get(one.id)
            if old is not None and old["sha256"] != one.sha256 and old["version"] == one.version:
                raise UserError(
                    f"{schema.shown_path(path)}: {one.id} {one.version} is frozen with other content; raise its version"
                )
    return "".join(f"{lock.canonical(line)}\n" for line in _as_lines(loaded))


def _as_lines(loaded: ConstructSet) -> list[dict[str, Any]]:
    """One line a construct, and a last one of what they share."""
    lines = [
        {
            "format": FORMAT,
            "id": one.id,
            "version": one.version,
            "sha256": one.sha256,
            "prompts": {v.id: _prompt_hash(v) for v in one.variants},
        }
        for one in loaded.constructs
    ]
    return [*lines, {"format": FORMAT, "id": None, "reference": loaded.reference_sha256}]


def _prompt_hash(variant: ConstructVariant) -> str:
    earlier = {"earlier": variant.earlier} if variant.earlier else {}
    return lock.digest({"system": variant.system, "prompt": variant.prompt, **earlier})


def _lock_lines(path: Path) -> list[dict[str, Any]]:
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is no object")
        return lines
    except (ValueError, RecursionError) as error:
        raise UserError(f"{schema.shown_path(path)} is damaged ({error}); freeze the constructs again") from None


def _check_lock(loaded: ConstructSet) -> None:
    path = loaded.folder / LOCK
    command = f"python -m scripts.freeze_constructs {schema.shown_path(loaded.folder)}"
    if not path.exists():
        raise UserError(f"{schema.shown_path(path)} does not exist; expected the frozen constructs; run `{command}`")
    lines = _lock_lines(path)
    if any(line.get("format") != FORMAT for line in lines):
        raise UserError(f"{schema.shown_path(path)} is a lock of another form, without {REFERENCE}; run `{command}`")
    frozen = {line.get("id"): line for line in lines}
    *constructs, shared = _as_lines(loaded)
    for line in constructs:
        if frozen.pop(line["id"], None) != line:
            raise UserError(
                f"{schema.shown_path(path)}: construct {line['id']} is not the frozen one; raise its version and run `{command}`"
            )
    if frozen.pop(None, None) != shared:
        edited = schema.shown_path(loaded.folder / REFERENCE)
        raise UserError(f"{edited} is not the frozen one: its axes, scale or sampling were edited; run `{command}`")
    if frozen:
        raise UserError(f"{schema.shown_path(path)}: construct {next(iter(frozen))} is gone; run `{command}`")


# --- expansion and lint -----------------------------------------------------------------------------------------------


def _expanded(data: Mapping[str, Any]) -> list[ConstructVariant]:
    """The variants that `wordings`, `personas`, `turns` and `conversation` abbreviate.

    These are every wording alone, after the opening of every persona, and after every turn.
    """
    wordings = {f"w{place + 1}": text for place, text in enumerate(data.get("wordings", ()))}
    found = [ConstructVariant(name, "paraphrase", text, wording=name) for name, text in wordings.items()]
    for persona, opening in data.get("personas", {}).items():
        found += [
            ConstructVariant(f"{persona}_{name}", "persona", f"{opening} {text}", wording=name, persona=persona)
            for name, text in wordings.items()
        ]
    said = data.get("turns", ())
    for turn in range(1, len(said) + 1):
        before = " ".join(said[:turn])
        found += [
            ConstructVariant(f"turn{turn}_{name}", "turns", f"{before} {text}", wording=name, turn=turn)
            for name, text in wordings.items()
        ]
    earlier: tuple[tuple[str, str], ...] = ()
    for turn, said in enumerate(data.get("conversation", ()), start=1):
        earlier += (("user", said["user"]), ("assistant", said["assistant"]))
        found += [
            ConstructVariant(f"turn{turn}_{name}", "turns", text, wording=name, turn=turn, earlier=earlier)
            for name, text in wordings.items()
        ]
    return found


def _variant(one: Mapping[str, Any], where: str) -> ConstructVariant:
    given = dict(one)
    messages = given.pop("messages", None)
    if (messages is None) == ("prompt" not in given):
        raise UserError(f"{where}: variant {one['id']} needs either prompt or messages; write one")
    if messages is None:
        return ConstructVariant(**given)
    roles = [turn["role"] for turn in messages]
    system = {"system": messages[0]["content"]} if roles[0] == "system" else {}
    turns = messages[len(system) :]
    expected = ["user", "assistant"] * len(turns)
    if [turn["role"] for turn in turns] != expected[: len(turns)] or len(turns) % 2 == 0:
        raise UserError(
            f"{where}: variant {one['id']} has messages of {', '.join(roles)}; expected user and assistant in turn, the user "
            "last, at most one of system before them"
        )
    if system and "system" in given:
        raise UserError(f"{where}: variant {one['id']} has two system texts; keep one of them")
    earlier = tuple((turn["role"], turn["content"]) for turn in turns[:-1])
    fields: dict[str, Any] = {**given, **system, "prompt": turns[-1]["content"], "earlier": earlier}
    return ConstructVariant(**fields)


def _lint(construct: Construct, where: str) -> None:
    """UserError for variants that cannot be compared: none, two with one id, a question that changes with its turn.

    Also for a transcript without exactly one {} in each form, and for reasoning without an answer_pattern.
    """
    if not construct.variants:
        raise UserError(f"{where}: no variants; expected wordings or variants; write some")
    if (again := schema.first_repeated([one.id for one in construct.variants])) is not None:
        raise UserError(f"{where}: two variants have the id {construct.variants[again].id!r}; rename one")
    base = {one.wording: one for one in construct.of("paraphrase") if one.wording}
    lacking = {"persona": "persona", "turns": "turn", "language": "language"}
    for one in construct.variants:
        if one.method in lacking and getattr(one, lacking[one.method]) is None:
            raise UserError(f"{where}: variant {one.id} is of method {one.method}; name its {lacking[one.method]}")
        if one.method == "turns" and (one.wording not in base or not _asks(one.prompt, base[one.wording].prompt)):
            raise UserError(
                f"{where}: variant {one.id} asks something else than turn 0: expected the prompt of the paraphrase of its "
                "wording, alone or behind whole sentences; outputs of different questions differ anyway"
            )
    _lint_answer(construct, where)
    if construct.transcript is not None and any(form.count("{}") != 1 for form in construct.transcript.values()):
        raise UserError(f"{where}: each form of the transcript says once where the text stands; write {{}} there")


def _asks(prompt: str, probe: str) -> bool:
    """Whether a prompt is the probe, or ends with it after whole sentences; "Never say <probe>" is another question.

    A whole sentence that reverses the question ("Answer the opposite.") is not detected.
    """
    before = prompt.removesuffix(probe)
    if not prompt.endswith(probe) or not before.strip():
        return prompt.endswith(probe)
    apart = before[-1].isspace() or before[-1] in WIDE_ENDS
    return apart and before.rstrip().rstrip(CLOSING).endswith(tuple(SENTENCE_ENDS + WIDE_ENDS))


def _lint_answer(construct: Construct, where: str) -> None:
    """UserError for an invalid answer_pattern, and for reasoning without one, since only the final answer has a coordinate."""
    if construct.answer_pattern is None:
        if thinking := construct.of("reasoning"):
            raise UserError(
                f"{where}: variant {thinking[0].id} reasons before it answers; give the answer_pattern that finds the answer"
            )
        return
    try:
        patterns.bounded(construct.answer_pattern)
    except ValueError as error:
        pattern = patterns.shown(construct.answer_pattern)
        raise UserError(f"{where}: answer_pattern {pattern} is no regular expression ({error}); correct it") from None
