"""Scoring: whether an output is right, by the rule that its suite declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import jsonschema
import jsonschema.exceptions
import regex
from jsonpath_ng.ext import parser

import results_io
from suites import patterns, schema
from suites.item import Item
from suites.judging import rubric
from suites.normalise import normalise, number, numbers

WHICH = schema.one_of(["first", "last"], "which of several answers that are found counts (default: last)")
NUMERIC = schema.flag("numbers are equal in any written form: 1,000.0 is 1000")


def _kind(name: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return schema.object_of(["kind", *required], kind={"const": name}, **properties)


SCHEMA: Mapping[str, Any] = {
    "oneOf": [
        _kind("none"),
        _kind("exact", numeric=NUMERIC),
        _kind("contains", numeric=NUMERIC),
        _kind("prefix_word"),
        _kind("regex", ("pattern",), pattern={"type": "string"}, group={"type": ["integer", "string"]}, which=WHICH),
        _kind(
            "numeric", absolute={"type": "number", "minimum": 0}, relative={"type": "number", "minimum": 0}, which=WHICH
        ),
        _kind("json_path", ("path",), path={"type": "string"}, which=WHICH),
        _kind("choice", which=WHICH),
        _kind("judge", ("rubric",), rubric={"type": "string", "minLength": 1}),
        _kind(
            "code",
            ("tests", "entry"),
            tests={"type": "string", "pattern": r"^[\w.-]+$"},
            entry={"type": "string", "pattern": r"^[A-Za-z_]\w*$"},
            sandbox=schema.one_of(["docker", "process"], "where the program runs (default: docker)"),
            timeout={"type": "number", "exclusiveMinimum": 0, "maximum": 600},
        ),
    ]
}
WORD = regex.compile(r"\w+(?:['’-]\w+)*")
# paired marks of emphasis around words: "**B**", "_York_", "`x`"
EMPHASIS = regex.compile(r"(?<![\w*])(?P<mark>\*{1,3}|_{1,3}|`{1,3})(?=\S)(?P<words>.+?)(?<=\S)(?P=mark)(?![\w*])")
LETTER = regex.compile(r"\s*(?:\(([A-Z])\)|([A-Z])(?:[.:)]|\s*$))")
BOLD_LETTER = regex.compile(r"\s*(?:\*{1,3}|_{1,3}|`)\(?([A-Z])[.:)]?(?:\*{1,3}|_{1,3}|`)(?!\w)")
EDGES = " \t\r\n.,;:!?\"'“”‘’()[]*_`"


def score(scorer: Mapping[str, Any], item: Item, text: str) -> bool | None:
    """Whether the output `text` is right for the item; None where the scorer is "none", the item has no answers, or a
    pattern takes longer than a second.

    kinds: "exact" (equal to an answer once normalised, without marks around it) · "contains" (contains an answer as whole
    words) · "prefix_word" (its first words are an answer) · "regex" (a group of a pattern equals an answer) · "numeric" (a number
    within max(absolute, relative * |answer|) of an answer, both 0 by default) · "json_path" (a value in the output's JSON) ·
    "choice" (the item's choice that it names, by text or by letter). If several answers are found, `which` decides; the default
    is "last". An output in which no answer is found is wrong. UserError for an unknown kind.
    """
    kind = scorer.get("kind", "none")
    if kind not in KINDS:
        raise results_io.UserError(f"scorer.kind is {kind!r}; expected one of {', '.join(KINDS)}")
    return KINDS[kind](scorer, item, text) if item.answers else None


def check(scorer: Mapping[str, Any], name: str) -> None:
    """UserError, beginning with `name`, for a scorer that cannot be used: unknown keys, a bad pattern or path."""
    kind = scorer.get("kind")
    if kind not in KINDS:
        raise results_io.UserError(f"{name}: scorer.kind is {kind!r}; expected one of {', '.join(KINDS)}")
    wanted = next(one for one in SCHEMA["oneOf"] if one["properties"]["kind"]["const"] == kind)
    problem = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(wanted).iter_errors(dict(scorer)))
    if problem is not None:
        raise results_io.UserError(f"{name}: scorer is not one of kind {kind!r} ({problem.message}); correct it")
    if kind == "regex":
        pattern = patterns.compiled(scorer["pattern"])
        group = scorer.get("group", 1 if pattern.groups else 0)
        if group not in pattern.groupindex and not (isinstance(group, int) and 0 <= group <= pattern.groups):
            raise results_io.UserError(f"{name}: scorer.group is {group!r}; {scorer['pattern']!r} has no such group")
    if kind == "json_path":
        _path(scorer["path"])
    if kind == "judge" and (chosen := rubric.load(scorer["rubric"])).kind != "grade":
        raise results_io.UserError(
            f"{name}: scorer.rubric is {scorer['rubric']}, one of {chosen.kind}; use one of grades"
        )


def check_items(scorer: Mapping[str, Any], items: Sequence[Item], name: str) -> None:
    """UserError, beginning with `name`, for an item whose answers cannot be compared.

    These are: an answer outside the item's choices; an item without choices for the scorer "choice"; an answer that is no number
    for the scorer "numeric".
    """
    kind = scorer.get("kind", "none")
    for item in items:
        outside = [answer for answer in item.answers if item.choices and answer not in item.choices]
        if outside:
            raise results_io.UserError(
                f"{name}: item {item.id}: answers has {outside[0]!r}; expected one of its choices, {', '.join(item.choices)}"
            )
        if kind == "choice" and item.answers and not item.choices:
            raise results_io.UserError(
                f"{name}: item {item.id}: no choices; the scorer 'choice' compares them; give some"
            )
        words = [answer for answer in item.answers if kind == "numeric" and number(answer) is None]
        if words:
            raise results_io.UserError(
                f"{name}: item {item.id}: answers has {words[0]!r}; expected a number such as \"5\", which the scorer 'numeric' "
                "compares"
            )


def _exact(scorer: Mapping[str, Any], item: Item, text: str) -> bool:
    numeric = scorer.get("numeric", False)
    return _bare(text, numeric) in {_bare(answer, numeric) for answer in item.answers}


def _contains(scorer: Mapping[str, Any], item: Item, text: str) -> bool:
    numeric = scorer.get("numeric", False)
    body = normalise(text, numeric)
    return any(mention(body, normalise(answer, numeric)) is not None for answer in item.answers)


def _prefix_word(scorer: Mapping[str, Any], item: Item, text: str) -> bool:
    said = WORD.findall(normalise(text))
    wanted = [WORD.findall(normalise(answer)) for answer in item.answers]
    return any(words and said[: len(words)] == words for words in wanted)


def _regex(scorer: Mapping[str, Any], item: Item, text: str) -> bool | None:
    try:
        found = patterns.every(scorer["pattern"], text)
    except TimeoutError:
        return None  # a slow pattern says nothing about the output
    group = scorer.get("group", 1 if patterns.compiled(scorer["pattern"]).groups else 0)
    said = [match[group] for match in found if match[group] is not None]
    return bool(said) and _bare(_chosen(scorer, said)) in {_bare(answer) for answer in item.answers}


def _numeric(scorer: Mapping[str, Any], item: Item, text: str) -> bool:
    wanted: list[Decimal] = []
    for answer in item.answers:
        if (value := number(answer)) is None:
            raise results_io.UserError(
                f"{item.id}: the answer {answer!r} is no number, which the scorer 'numeric' compares"
            )
        wanted.append(value)
    said = numbers(text)
    if not said:
        return False
    absolute, relative = (Decimal(str(scorer.get(key, 0))) for key in ("absolute", "relative"))
    value = _chosen(scorer, said)
    return any(abs(value - other) <= max(absolute, relative * abs(other)) for other in wanted)


def _json_path(scorer: Mapping[str, Any], item: Item, text: str) -> bool:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    said = [match.value for match in _path(scorer["path"]).find(document)]
    if not said:
        return False
    value = _chosen(scorer, said)
    return _bare(value if isinstance(value, str) else json.dumps(value), True) in {
        _bare(one, True) for one in item.answers
    }


def _choice(scorer: Mapping[str, Any], item: Item, text: str) -> bool:
    said = named_choice(scorer, item, text)
    return said is not None and normalise(said) in {normalise(answer) for answer in item.answers}


def named_choice(scorer: Mapping[str, Any], item: Item, text: str) -> str | None:
    """The item's choice that an output names; None if it names none.

    It is named by letter if the output is a letter alone or begins with one and a mark ("B", "(B) ...", "B.", "**B** ..."), else
    by its text. If several are named, `scorer.which` decides ("last" by default). Markdown emphasis is ignored.
    """
    plain = _unmarked(text)
    letter = BOLD_LETTER.match(text) or LETTER.match(plain)
    if letter and (place := ord(next(filter(None, letter.groups()))) - ord("A")) < len(item.choices):
        return item.choices[place]
    body = normalise(plain)
    wanted = {choice: normalise(_unmarked(choice)) for choice in item.choices}
    # a choice inside a longer one ("York" in "New York") is not named by it
    named = [
        (match.start(), choice)
        for choice, words in wanted.items()
        for match in _mentions(body, words)
        if not any(
            other != words and words in other and longer.start() <= match.start() and match.end() <= longer.end()
            for other in wanted.values()
            for longer in _mentions(body, other)
        )
    ]
    return _chosen(scorer, [choice for _, choice in sorted(named)]) if named else None


def _unmarked(text: str) -> str:
    return EMPHASIS.sub(lambda match: match["words"], text)


def mention(body: str, words: str) -> int | None:
    """Offset of the first occurrence of `words` in `body` as whole words; None without one. Both must be normalised."""
    found = next(iter(_mentions(body, words)), None)
    return None if found is None else found.start()


def _mentions(body: str, words: str) -> list[regex.Match[str]]:
    if not words:
        return []
    return list(regex.finditer(rf"(?<!\w){regex.escape(words)}(?!\w)", body))


def _bare(text: str, numeric: bool = False) -> str:
    return normalise(normalise(text).strip(EDGES), numeric)


def _chosen(scorer: Mapping[str, Any], found: list[Any]) -> Any:
    return found[0] if scorer.get("which", "last") == "first" else found[-1]


def _path(path: str) -> Any:
    try:
        return parser.parse(path)
    except Exception as error:  # the parser raises plain Exception
        raise results_io.UserError(f"{path!r} is not a JSON path ({error}); correct scorer.path in the suite") from None


KINDS: Mapping[str, Callable[[Mapping[str, Any], Item, str], bool | None]] = {
    "none": lambda scorer, item, text: None,
    "exact": _exact,
    "contains": _contains,
    "prefix_word": _prefix_word,
    "regex": _regex,
    "numeric": _numeric,
    "json_path": _json_path,
    "choice": _choice,
    "judge": lambda scorer, item, text: None,  # graded in suites.judging.scoring
    "code": lambda scorer, item, text: None,  # programs are run in suites.execution.scoring
}
