"""Compares the rules behind a certificate, settings and code, with the released rules.

Rules are all that decides a verdict independently of the claimed circuit: the settings of calibrations, certificate,
measurements and prompts, the seed that draws the prompts, a task's own settings, how far engines may differ, and the code of
calibrations, recipes, engine and measurements. Task, model and circuit are free, because they only choose what is certified.
`released_rules.json` holds the released rules; scripts/release_rules.py writes it. The comparison finds changes. It cannot
detect a forger who releases rules of their own under a version number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import code_digest
import results_io
from results_io import UserError

RELEASED: Final = Path(__file__).with_name("released_rules.json")
SCRIPT: Final = "python -m scripts.release_rules"
SETTINGS: Final = ("calibration", "certificate", "measurement", "prompts", "seed", "task", "engine.tolerance")
FREE: Final = (  # what is certified; for rows from a file also how they become prompts, which the prompts' digest covers
    *("task.name", "task.group", "task.path", "task.dataset", "task.subset", "task.part", "task.columns"),
    *("task.companions", "task.align", "task.chat", "task.space", "task.foil"),
)
TEMPLATES, REFERENCE, MORE = "prompts.templates", "prompts.reference", "more"
CODE: Final = "code "  # prefix of a difference of code, before the file
TASKS: Final = "circuits/tasks/"
ABSENT: Final = "absent"  # value in a difference if one side lacks the setting or file
VERSION: Final = re.compile(r'^  "version": "(\d+)\.(\d+)"', re.MULTILINE)


@dataclass(frozen=True)
class RuleDifference:
    """A setting ("prompts.evaluation") or file of code ("code calibrations/record.py", as digests) and its released value."""

    key: str
    value: Any
    released: Any

    @property
    def text(self) -> str:
        """ "prompts.evaluation: 40 (released: 400)"."""
        return f"{self.key}: {_text(self.value)} (released: {_text(self.released)})"


@dataclass(frozen=True)
class Rules:
    """`settings`: {dotted key: value}; `code`: {file: digest of its tokens}."""

    settings: Mapping[str, Any]
    code: Mapping[str, str]

    @property
    def sha256(self) -> str:
        """One digest over both."""
        return results_io.sha256(asdict(self))

    def differences(self, released: Rules) -> tuple[RuleDifference, ...]:
        """What differs from the rules `released`: settings in the order of their keys, then files of code."""
        sides = (
            (self.settings, released.settings),
            *[({f"{CODE}{name}": digest for name, digest in rules.code.items()} for rules in (self, released))],
        )
        return tuple(
            RuleDifference(key, own.get(key, ABSENT), theirs.get(key, ABSENT))
            for own, theirs in sides
            for key in sorted({*own, *theirs})
            if _ordered(own.get(key, ABSENT)) != _ordered(theirs.get(key, ABSENT))  # 1 == True, but not as text
            and not (own is self.settings and self._asks_more(key, theirs.get(key)))
        )

    def _asks_more(self, key: str, released: Any) -> bool:
        """True for the larger grammar of wordings and for the larger number of reference prompts that it takes. Both are
        released beside the defaults, because tier 4 may need them."""
        if self.settings.get(TEMPLATES) != MORE:
            return False
        value = self.settings.get(key)
        larger = type(value) is type(released) is int and value > released
        return key == TEMPLATES or (key == REFERENCE and larger)


@dataclass(frozen=True)
class Release:
    """Released rules. `tasks`: {task: settings in which its own file differs, "absent" for one that it lacks}."""

    version: str
    rules: Rules
    tasks: Mapping[str, Mapping[str, Any]]

    def of(self, task: str) -> Rules:
        """The rules for one task."""
        settings = {**self.rules.settings, **self.tasks.get(task, {})}
        return replace(self.rules, settings={key: value for key, value in settings.items() if value != ABSENT})

    @property
    def content(self) -> dict[str, Any]:
        """Everything but the version."""
        return {**asdict(self.rules), "tasks": self.tasks}

    @property
    def text(self) -> str:
        """The text of the file, one setting or file of code per line, so that the history shows each change of rules."""
        document = {"version": self.version, "sha256": self._sha256, **self.content}
        return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_lines(value)}" for key, value in document.items()) + "\n}\n"

    @property
    def _sha256(self) -> str:
        return results_io.sha256({"version": self.version, **self.content})

    @classmethod
    def read(cls) -> Self:
        """The released rules. Raises UserError if their file cannot be read or was edited by hand."""
        path, remedy = RELEASED, f"restore the file, or release rules anew: {SCRIPT}"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            found = cls(stored["version"], Rules(stored["settings"], stored["code"]), stored["tasks"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} does not hold released rules ({error!r}); {remedy}") from error
        if found._sha256 != stored.get("sha256"):
            raise UserError(
                f"{path} was edited by hand: its content has the digest {found._sha256[:12]}, and it says "
                f"{str(stored.get('sha256'))[:12]}; {remedy}"
            )
        return found


@dataclass(frozen=True)
class Standing:
    """How the rules of a certificate compare with the release `version`; None if the certificate does not record its rules."""

    version: str | None = None
    sha256: str | None = None
    differences: tuple[RuleDifference, ...] = ()

    @classmethod
    def read(cls, certificate: Mapping[str, Any]) -> Self:
        """The standing recorded in a stored certificate or in its entry in summary.json."""
        stored = certificate.get("rules") or {"version": None, "sha256": None, "differences": ()}
        return cls(stored["version"], stored["sha256"], tuple(RuleDifference(**one) for one in stored["differences"]))

    def to_dict(self) -> dict[str, Any]:
        """What the certificate stores of it."""
        return {**asdict(self), "differences": [asdict(one) for one in self.differences]}

    @property
    def released(self) -> bool:
        """True if nothing differs from the released rules."""
        return self.version is not None and not self.differences

    @property
    def word(self) -> str:
        """ "released 0.3", "changed", or "unknown"."""
        return "unknown" if self.version is None else "changed" if self.differences else f"released {self.version}"

    @property
    def lines(self) -> list[str]:
        """The word and, for changed rules, the differences: a line for each setting and one for all files of code."""
        if not self.differences:
            return [f"rules: {self.word}"]
        files = [one.key.removeprefix(CODE) for one in self.differences if one.key.startswith(CODE)]
        settings = [one.text for one in self.differences if not one.key.startswith(CODE)]
        code = [f"code: {', '.join(files)}"] if files else []
        return [f"rules: changed from released {self.version}", *settings, *code]


def rules_of(settings: Mapping[str, Any]) -> Rules:
    """The rules of a run: those among its settings, and the code that runs."""
    found = {key: value for name in SETTINGS for key, value in _flat(name, _at(settings, name)) if not _is_free(key)}
    return Rules(dict(sorted(found.items())), code_digest.of_each("rules"))


def _is_free(key: str) -> bool:
    return any(key == one or key.startswith(f"{one}.") for one in FREE)


def standing(settings: Mapping[str, Any], task: str) -> Standing:
    """How the rules of a run on `task` with these settings compare with the released ones. Raises as `Release.read`.

    A new file among the tasks is another task to certify, not a changed rule. A changed file is a changed rule.
    """
    rules, released = rules_of(settings), Release.read()
    found = rules.differences(released.of(task))
    differ = (one for one in found if not (one.key.startswith(f"{CODE}{TASKS}") and one.released == ABSENT))
    return Standing(released.version, rules.sha256, tuple(differ))


def version_after(text: str, asked: str | None = None) -> str:
    """The version after the highest in a file of released rules, which may hold both sides of a merge; or the version `asked`.

    Raises UserError if `asked` is not higher, or not two numbers such as 0.4.
    """
    major, minor = max(((int(one), int(other)) for one, other in VERSION.findall(text)), default=(0, 0))
    if asked is None:
        return f"{major}.{minor + 1}"
    parts = asked.split(".")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts) or tuple(map(int, parts)) <= (major, minor):
        raise UserError(
            f"version {asked} of the rules does not follow {major}.{minor}; use {major}.{minor + 1} or a higher one"
        )
    return asked


def claims_what_it_cannot(stored: Standing, settings: Mapping[str, Any], task: str, now: Standing) -> str | None:
    """What is wrong with the standing that a certificate of a run with these settings records; None if it is possible.

    `now`: the standing of the same settings with the code that runs. Equal digests must have equal differences. Rules of this
    version without differences must have the digest of these settings with the released code.
    """
    if stored.version != now.version:
        return None
    if stored.sha256 == now.sha256:
        return None if stored == now else "other differences than rules of this digest have"
    released = Release.read()
    own = replace(rules_of(settings), code=released.rules.code)
    differ = own.differences(released.of(task))
    if not stored.differences and (differ or stored.sha256 != own.sha256 or not now.differences):
        return f"no difference from the released {stored.version}, and another digest than these have"
    return None


def _at(settings: Mapping[str, Any], name: str) -> Any:
    """The section of a dotted name."""
    for part in name.split("."):
        settings = settings[part]
    return settings


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(dotted key, plain value) of every setting below `key`; lists and empty sections are values."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _flat(f"{key}.{name}", inner)
    else:
        yield key, _plain(results_io.canonical(value))


def _plain(value: Any) -> Any:
    """1.0 becomes 1: settings are compared by value, not by notation."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _ordered(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _lines(value: Any) -> str:
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value)
    return "{\n" + ",\n".join(f"    {json.dumps(key)}: {_ordered(value[key])}" for key in sorted(value)) + "\n  }"
