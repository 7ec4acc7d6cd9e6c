"""Every error message of the source, as a template: found in the syntax tree, so none can be forgotten.

A message is the first argument of an exception that the project raises. What it takes from the run stands in angle
brackets, `<settings['name']>`. Where the argument is a variable or a parameter, what is assigned to it, or passed by the
callers in the same module, is followed.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from scripts.docs import source

USER_ERROR = "UserError"
INSUFFICIENT = "Insufficient"
BUILTIN = ("ValueError", "TypeError", "RuntimeError", "KeyError", "ImportError", "SystemExit")
SENTENCES = {"meridian.commandline": ("sentence",)}  # functions whose returned texts are what the user reads
OWN_SHARE = 0.3  # of a sentence's characters; a template of less would match anything
_PLACEHOLDER = re.compile(r"<[^<>]*>")
MOST = 12  # alternatives of one message that are written out


@dataclass(frozen=True, order=True)
class Message:
    """`template` with where it is raised (`module`, `function`) and as what (`error`)."""

    module: str
    function: str
    error: str
    template: str

    def matches(self, sentence: str) -> bool:
        """Whether `sentence` could be this message. At least `OWN_SHARE` of it has to stand in the template itself."""
        parts = _PLACEHOLDER.split(" ".join(self.template.split()))
        own = sum(map(len, parts)) >= OWN_SHARE * len(sentence)
        return own and re.fullmatch(".*".join(map(re.escape, parts)), sentence, re.DOTALL) is not None

    @property
    def speaks(self) -> bool:
        """Whether it has words of its own; one that hands on what another error says has none."""
        return re.search(r"[^\W\d_]{2}", _PLACEHOLDER.sub("", self.template)) is not None


@functools.cache
def user_errors() -> frozenset[str]:
    """UserError and every class that the source derives from it."""
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for path in source.files()
        for node in ast.walk(source.tree(path))
        if isinstance(node, ast.ClassDef)
    }
    found = {USER_ERROR}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return frozenset(found)


def is_user_error(message: Message) -> bool:
    """Whether it ends a run as one sentence (the others are raised to whoever calls the function)."""
    return message.error in user_errors() or message.error in (
        "exit",
        "print",
        "return",
        "SystemExit",
        "NothingToCertify",
    )


@functools.cache
def messages() -> tuple[Message, ...]:
    """All messages of the source that have words of their own, sorted, without repetition."""
    found = {m for path in source.files() for m in _Module(path).messages() if m.speaks}
    return tuple(sorted(found))


class _Module:
    """One source file: its functions, and the messages that they raise."""

    def __init__(self, path: Path) -> None:
        self.name = source.dotted(path)
        self.tree = source.tree(path)
        self.parents = {child: parent for parent in ast.walk(self.tree) for child in ast.iter_child_nodes(parent)}

    def messages(self) -> Iterator[Message]:
        for node in ast.walk(self.tree):
            found = self._error(node)
            if found:
                error, argument = found
                function = self._function(node)
                name = function.name if function else ""
                for template in self._templates(argument, function):
                    yield Message(self.name, name, error, " ".join(template.split()))

    def _error(self, node: ast.AST) -> tuple[str, ast.expr] | None:
        """The exception's name and the expression of its message, if `node` makes one."""
        if isinstance(node, ast.Return) and node.value and self._speaks(node):
            return "return", node.value
        if not isinstance(node, ast.Call) or not node.args:
            return None
        name = ast.unparse(node.func).rpartition(".")[2]
        if name in user_errors() or name == "NothingToCertify":
            return name, node.args[0]
        if name in BUILTIN and isinstance(self.parents.get(node), ast.Raise):
            return name, node.args[0]
        if name == INSUFFICIENT and len(node.args) > 1:
            return name, ast.BinOp(node.args[0], ast.Add(), ast.BinOp(ast.Constant(": "), ast.Add(), node.args[1]))
        if ast.unparse(node.func) == "sys.exit" and isinstance(node.args[0], ast.JoinedStr | ast.Constant):
            return "exit", node.args[0]
        if ast.unparse(node.func) == "Console(stderr=True).print" and isinstance(node.args[0], ast.Constant):
            return "print", node.args[0]
        return None

    def _speaks(self, node: ast.Return) -> bool:
        function = self._function(node)
        return function is not None and function.name in SENTENCES.get(self.name, ())

    def _function(self, node: ast.AST) -> ast.FunctionDef | None:
        while node in self.parents:
            node = self.parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None

    def _templates(self, argument: ast.expr, function: ast.FunctionDef | None) -> list[str]:
        """The message's forms; a parameter is replaced by what callers in this module pass for it."""
        names = _parameters(function)
        used = {n.id for n in ast.walk(argument) if isinstance(n, ast.Name)} & set(names)
        calls = self._calls(function.name) if function and used and function.name.startswith("_") else []
        forms = []
        for call in calls:
            passed = {name: value for name, value in _bound(call, names).items() if name in used and _says(value)}
            caller = self._function(call)
            known = {name: _render(value, caller, self.tree, {}) for name, value in passed.items()}
            forms += _render(argument, function, self.tree, known)
        forms = list(dict.fromkeys(forms)) or _render(argument, function, self.tree, {})
        return forms[:MOST]

    def _calls(self, name: str) -> list[ast.Call]:
        called = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call)]
        return [n for n in called if ast.unparse(n.func).rpartition(".")[2] == name]


def _parameters(function: ast.FunctionDef | None) -> list[str]:
    if function is None:
        return []
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def _bound(call: ast.Call, names: list[str]) -> dict[str, ast.expr]:
    keywords = {k.arg: k.value for k in call.keywords if k.arg}
    return dict(zip(names, call.args, strict=False)) | keywords


def _says(value: ast.expr) -> bool:
    """Whether the expression holds words of its own."""
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) and " " in n.value for n in ast.walk(value))


def _render(
    node: ast.expr, function: ast.FunctionDef | None, module: ast.Module, known: Mapping[str, list[str]]
) -> list[str]:
    """The texts that an expression may have."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.JoinedStr):
        parts = [_render(part, function, module, known) for part in node.values]
        return ["".join(combination) for combination in itertools.islice(itertools.product(*parts), MOST)]
    if isinstance(node, ast.FormattedValue):
        texts = _render(node.value, function, module, known)
        return texts if any(_is_sentence(text) for text in texts) else [_one(texts)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and not _counts(node):
        sides = itertools.product(*(_render(s, function, module, known) for s in (node.left, node.right)))
        return ["".join(pair) for pair in itertools.islice(sides, MOST)]
    if isinstance(node, ast.IfExp):
        return _render(node.body, function, module, known) + _render(node.orelse, function, module, known)
    if isinstance(node, ast.Name):
        return _of_name(node.id, function, module, known)
    return _of_other(node, function, module)


def _counts(node: ast.BinOp) -> bool:
    """Whether the sum is one of numbers."""
    return any(isinstance(side, ast.Constant) and not isinstance(side.value, str) for side in (node.left, node.right))


def _is_sentence(text: str) -> bool:
    """Whether a text says something besides what it takes from the run."""
    return len(re.sub(r"<[^<>]*>", "", text).split()) > 2


def _of_name(
    name: str, function: ast.FunctionDef | None, module: ast.Module, known: Mapping[str, list[str]]
) -> list[str]:
    """What a variable may hold: what it is known to be, or what the function or the module assigns to it."""
    if name in known:
        return known[name]
    for scope in (function, module):
        if scope is None:
            continue
        assigned = [
            n.value
            for n in (ast.walk(scope) if scope is function else module.body)
            if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
        ]
        texts = [
            text
            for value in assigned
            if _says(value) and not any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(value))
            for text in _render(value, function if scope is function else None, module, known)
        ]
        if texts:
            return list(dict.fromkeys(texts))
    return [_constant(name, module) or f"<{name}>"]


def _constant(name: str, module: ast.Module) -> str:
    """The text of a constant of the module, or its texts; empty if it is no such constant."""
    for statement in module.body:
        if name.isupper() and isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            if all(isinstance(value, ast.Constant) and isinstance(value.value, str) for value in values):
                return " or ".join(value.value for value in values)
    return ""


def _of_other(node: ast.expr, function: ast.FunctionDef | None, module: ast.Module) -> list[str]:
    """A call or a lookup: the texts of a table of sentences, the items that are joined, or the expression itself."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "join" and node.args:
            named = _constant(node.args[0].id, module) if isinstance(node.args[0], ast.Name) else ""
            return [named or f"<{_short(node.args[0])}>"]
        if node.func.attr == "get":
            return _of_table(node.func.value, module) or [f"<{_short(node)}>"]
    if isinstance(node, ast.Subscript):
        return _of_table(node.value, module) or [f"<{_short(node)}>"]
    return [f"<{_short(node)}>"]


def _of_table(node: ast.expr, module: ast.Module) -> list[str]:
    """The sentences of a module's dictionary."""
    if not isinstance(node, ast.Name):
        return []
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == node.id:
            values = statement.value.values if isinstance(statement.value, ast.Dict) else []
            return [text for v in values if _says(v) for text in _render(v, None, module, {})]
    return []


def _one(texts: list[str]) -> str:
    """Several texts as one placeholder."""
    if len(texts) == 1:
        return texts[0]
    return f"<{' / '.join(re.sub('[<>]', '', text) or 'nothing' for text in texts)}>"


def _short(node: ast.expr) -> str:
    return ast.unparse(node).replace("<", "‹").replace(">", "›")
