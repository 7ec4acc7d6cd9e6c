"""Circuit files with one thing wrong in each."""

from __future__ import annotations

HEAD = "name: mine\ntask: ioi\nmodel: pocket\nprovenance: {kind: user}\n"
ROLES = "roles: {movers: {heads: [L2H1, L3H0], sign: 1}}\n"
SOUND = HEAD + ROLES
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
)


def with_header(name: str, value: str) -> str:
    lines = [line for line in SOUND.splitlines() if not line.startswith(f"{name}:")]
    return "\n".join([*lines, f"{name}: {value}"]) + "\n"


def with_role(text: str) -> str:
    return HEAD + f"roles: {{movers: {text}}}\n"


WRONG: dict[str, str | bytes] = {
    **{
        f"{name} {value}": with_header(name, value)
        for name in ("name", "task", "model")
        for value in ("5", "null", "[a]", "{a: b}", "''", "' '", "true", ".inf")
    },
    **{
        f"provenance {value[:20]}": with_header("provenance", value)
        for value in (
            "5",
            "null",
            "[a]",
            "user",
            "{kind: 1.0e+400}",
            "{kind: .nan}",
            "{kind: !!binary aGk=}",
            "{kind: !!set {a}}",
            "{kind: !!python/object:os.system {}}",
            "{kind: user, kind: published}",
            f"{{kind: user, n: {'9' * 5000}}}",
            "{kind: " + "[" * 200 + "]" * 200 + "}",
            "&a {kind: *a}",
            "{}",
            "{source: me}",
            "{kind: 5}",
            "{kind: [a]}",
            "{kind: user, n: 0x" + "f" * 20_000 + "}",
            "{kind: user, n: 0x" + "f" * 20 + "}",
            "{kind: user, n: " + ":".join(["59"] * 400) + "}",
            "{kind: user, 5: a, '5': b}",
            '{kind: "\\ud800"}',
        )
    },
    **{
        f"roles {value[:20]}": with_header("roles", value)
        for value in (
            "5",
            "null",
            "[L0H0]",
            "{}",
            "{x: 5}",
            "{x: null}",
            "{x: [L0H0]}",
            "{x: L0H0}",
            "{x: {heads: []}}",
            "{x: {heads: {L0H0: 1}}}",
            "{x: {heads: [5]}}",
            "{x: {heads: [null]}}",
            "{x: {heads: [[0, 1]]}}",
            "{x: {heads: [L0H0, L9H9]}}",
            "{x: {heads: [L-1H0]}}",
            "{embedding: {heads: [L0H0]}}",
            "{logits: {heads: [L0H0]}}",
            "&a {x: *a}",
            "{x: {heads: [L0H0]}, x: {heads: [L1H0]}}",
            f"{{x: {{heads: [L{'9' * 5000}H0]}}}}",
            f"{{x: {{heads: [L{'9' * 30}H0]}}}}",
            "{x: {heads: [L0H0@nowhere]}}",
            "{x: {heads: [L٣H0]}}",
            "{x: {nodes: [M9]}}",
            "{0x10: {heads: [L2H1]}, 16: {heads: [L3H0]}}",
            "{~: {heads: [L2H1]}, null: {heads: [L3H0]}}",
            "{true: {heads: [L2H1]}, yes: {heads: [L3H0]}}",
            "{1.0: {heads: [L2H1]}, 1: {heads: [L3H0]}}",
            "{1: {heads: [L2H1]}, true: {heads: [L3H0]}}",
            "{'1': {heads: [L2H1]}, 1: {heads: [L3H0]}}",
            "{x: {heads: false, nodes: [L2H1]}}",
            "{x: {heads: {}, nodes: [L2H1]}}",
            "{x: {heads: '', nodes: [L2H1]}}",
            "{x: {heads: [L2H1]}, y: {heads: []}}",
            "{x: {heads: [L2H1]}, y: {nodes: []}}",
            "{x: {nodes: [M-1]}}",
            "{x: {heads: [L2H1, L2H1]}}",
            "{x: {heads: [L2H1, L02H1]}}",
            "{x: {heads: [L2H1], nodes: [L2H1]}}",
            "{x: {nodes: [M1, M1]}}",
            "{'': {heads: [L2H1]}}",
            "{' ': {heads: [L2H1]}}",
            '{"\\ud800": {heads: [L2H1]}}',
            "{? [x] : {heads: [L2H1]}}",
        )
    },
    **{
        f"role {value}": with_role(f"{{heads: [L2H1], {value}}}")
        for value in (
            "sign: 7",
            "sign: 0",
            "sign: true",
            "sign: 1.0",
            "sign: null",
            "sign: [1]",
            "sign: '1'",
            "ordinal: 0",
            "ordinal: 5",
            "ordinal: 2.5",
            "ordinal: late",
            "ordinal: [1]",
            "ordinal: true",
            "assigned_by: guess",
            "assigned_by: 5",
            "assigned_by: [function]",
            "evidence: [a]",
            "evidence: {a: b}",
            "evidence: .inf",
            "evidence: true",
            "evidence: 5",
            'evidence: "\\udfff"',
            "mlps: [1]",
            "heads: [L0H0]",
            "new: 1",
            "Sign: 1",
            "5: 6",
        )
    },
    **{
        f"{line[:30]}": SOUND + line + "\n"
        for line in (
            "mlps: [-1]",
            "mlps: [99]",
            "mlps: [1, 1]",
            "mlps: 5",
            "mlps: [1.0]",
            "mlps: [true]",
            "mlps: L1",
            "mlps: {0: 1}",
            "mlps: [[1]]",
            "primary_recipe: guess",
            "primary_recipe: 5",
            "primary_recipe: [mean]",
            "scope: everything",
            "scope: [heads]",
            "scope: 5",
            "scope: 0",
            "scope: false",
            "scope: []",
            "scope: {}",
            "pathways: 0",
            "pathways: ''",
            "pathways: {}",
            "mlps: ''",
            "mlps: false",
            "pathways: 5",
            "pathways: [x]",
            "pathways: {sender: movers, receiver: logits}",
            "pathways: [[movers, logits]]",
            "pathways: [{sender: movers, receiver: movers}]",
            "pathways: [{sender: 5, receiver: logits}]",
            "pathways: [{sender: movers, receiver: logits, input: q}]",
            "pathways: [{sender: movers}]",
            "pathways: [null]",
            "name: again",
            "new: 1",
            "<<: {new: 1}",
            "<<: 5",
            "? [a]\n: b",
            "? {a: b}\n: c",
            "%",
            "@",
            "\t",
            "- a",
            "*a",
            "&a",
        )
    },
    "another model": with_header("model", "gpt2"),
    "another task": with_header("task", "induction"),
    "a bomb": BOMB + "\n" + SOUND,
    "a bomb in the provenance": with_header("provenance", "{kind: user, x: 1}").replace("x: 1", "x: *a11") + BOMB,
    "deep": "[" * 5000,
    "deep keys": "".join(f"{' ' * i}a:\n" for i in range(500)),
    "empty": "",
    "spaces": "   \n",
    "a text": "hello",
    "a list": "- a\n",
    "a number": "5",
    "null": "null",
    "two documents": SOUND + "---\n" + SOUND,
    "zero": "\0",
    "latin": "name: größe".encode("latin-1"),
    "utf-16": SOUND.encode("utf-16"),
    "random": bytes(range(256)) * 8,
    "a megabyte": SOUND + "# " + "x" * (1 << 20),
    "many roles": HEAD + "roles:\n" + "".join(f"  r{i}: {{heads: [L0H0]}}\n" for i in range(20_000)),
}
