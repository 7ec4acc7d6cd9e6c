"""Programs in a sandbox: what they answer is compared outside, and escapes do not succeed. As another user where this is root."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from results_io import UserError
from shown_progress import NoProgress
from suites import declaration, runner
from suites.execution import execution_record, harness, problems, program, sandbox, scoring
from suites.execution.execution_record import ExecutionRecord
from suites.execution.harness import ProgramTest, same, verdict
from tests.suites import containers, solutions
from tests.suites.scripted import ScriptedModel

ROOT = Path(__file__).parents[2]
NOBODY = 65534
IMAGE = "python@sha256:" + "0" * 64
ADD = [["ones", [1, 2], 3], ["twos", [2, 2], 4]]
WORK = """
import json, sys
from suites.execution import harness, sandbox
box = sandbox.Process(512)
found = {"identity": dict(box.identity)}
for name, (program, tests, timeout) in json.load(sys.stdin).items():
    ran = harness.run(program, "f", [harness.ProgramTest(*one) for one in tests], box, timeout, 60.0)
    found[name] = {"tests": dict(ran.tests), "why": dict(ran.why), "passed": ran.passed, "error": ran.error}
print(json.dumps(found))
"""
FORGE = """
import json, os
def f(a, b):
    for descriptor in range(1, 30):
        for line in (b'passed\\n', b'{"nonce": "", "value": 3}\\n', b'{"value": 3}\\n', b'[' * 9000 + b'\\n'):
            try:
                os.write(descriptor, line)
            except OSError:
                pass
    print("2 passed")
    return -1
"""
ESCAPES = {  # the program; how its first test ends
    "a right one": ("def f(a, b): return a + b", "passed"),
    "a wrong one": ("def f(a, b): return a - b", "failed"),
    "exit code 0": ("import os\ndef f(a, b): os._exit(0)", "error"),
    "exit code 0 while it is loaded": ("import os\nos._exit(0)", "error"),
    "SystemExit": ("import sys\ndef f(a, b): sys.exit(0)", "error"),
    "forged replies": (FORGE, "failed"),
    "an object that is equal to everything": (
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = None\ndef f(a, b): return E(9)",
        "failed",
    ),
    "another json": ("import json\njson.dumps = lambda *a, **k: 'true'\ndef f(a, b): return 0", "timeout"),
    "no JSON": ("def f(a, b): return {1, 2}", "error"),
    "NaN": ("def f(a, b): return float('nan')", "error"),
    "lists without end": ("def f(a, b):\n    x = []\n    for _ in range(10**5): x = [x]\n    return x", "error"),
    "a loop": ("def f(a, b):\n    while True: pass", "timeout"),
    "sleep": ("import time\ndef f(a, b): time.sleep(99)", "timeout"),
    "a fork": ("import os\ndef f(a, b):\n    os.fork()\n    return a + b", "error"),
    "a thread": ("import _thread\ndef f(a, b):\n    _thread.start_new_thread(print, ())\n    return a + b", "error"),
    "memory": ("def f(a, b): return len('x' * 10**10)", "error"),
    "an answer of ten million signs": ("def f(a, b): return 'x' * 10**7", "error"),
    "a large file": ("def f(a, b):\n    open('x', 'wb').write(b'x' * 10**7)\n    return a + b", "error"),
    "a signal": ("import os\ndef f(a, b): os.kill(os.getpid(), 9)", "killed"),
    "a crash": ("import ctypes\ndef f(a, b): ctypes.string_at(0)", "killed"),
    "standard input": ("def f(a, b): return input()", "error"),
    "its limits": (
        "import resource\ndef f(a, b):\n    resource.setrlimit(resource.RLIMIT_NPROC, (9, 9))\n    return a + b",
        "error",
    ),
    "no function": ("f = 3", "error"),
    "no program": ("def f(a, b) return", "error"),
}


def as_another_user(work: dict) -> dict:
    """The harness in a process that is not root's; its tests cannot be run by root, whom no limit of processes binds."""
    python, how = sys.executable, {}
    if os.geteuid() == 0:  # who may not read what belongs to root: its Python neither
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin:/bin") or ""
        version = python and subprocess.run(
            [python, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True
        )
        if not version or version.stdout.strip() != b"True":
            pytest.skip("this is root, and there is no Python of 3.11 that others can run")
        how = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-c", WORK], input=json.dumps(work), capture_output=True, text=True, cwd="/", env=environment, **how
    )
    if "Permission denied" in done.stderr or "No module named 'suites'" in done.stderr:
        pytest.skip("the repository stands where only root can read it")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def escaped() -> dict:
    slow = {"a loop", "sleep", "another json"}
    return as_another_user(
        {
            name: (text, ADD[:1] if name in slow else ADD, 1.0 if name in slow else 20.0)
            for name, (text, _) in ESCAPES.items()
        }
    )


@pytest.mark.slow
def test_only_the_right_program_passes_and_no_escape_succeeds(escaped):
    assert {name: escaped[name]["tests"]["ones"] for name in ESCAPES} == {
        name: end for name, (_, end) in ESCAPES.items()
    }
    assert [name for name in ESCAPES if escaped[name]["passed"]] == ["a right one"]
    assert all(escaped[name]["error"] is None for name in ESCAPES)  # the sandbox started each time
    assert escaped["exit code 0"]["why"]["twos"] == "it ended with exit code 0 and gave no answer"
    assert escaped["identity"]["isolation"] == "limits, no isolation"


STOLEN = """
import json, os, sys, time
frame = sys._getframe()
while not {"request", "replies"} <= set(frame.f_locals):
    frame = frame.f_back
loaded = {"nonce": frame.f_locals["request"]["nonce"], "value": True}
os.write(frame.f_locals["replies"], json.dumps(loaded).encode() + b"\\n")
time.sleep(60)
"""


@pytest.mark.slow
def test_a_program_that_does_not_read_a_long_request_ends_in_time():
    """It says that it is loaded and sleeps; what a test sends is longer than a pipe holds."""
    numbers = list(range(40_000))
    started = time.monotonic()
    found = as_another_user(
        {
            "asleep": (STOLEN, [["long", [numbers, 2], 3]], 2.0),
            "honest": ("def f(a, b): return len(a) + b", [["long", [numbers, 2], 40_002]], 20.0),
        }
    )
    assert time.monotonic() - started < 30
    assert found["asleep"]["tests"] == {"long": "timeout"} and found["honest"]["tests"] == {"long": "passed"}


@pytest.mark.slow
def test_the_process_has_no_environment_and_where_the_kernel_allows_no_network(escaped):
    found = as_another_user(
        {
            "environment": ("import os\ndef f(): return sorted(set(os.environ) - {'LC_CTYPE'})", [["x", [], []]], 20.0),
            "network": (
                "import socket\ndef f():\n    socket.create_connection(('127.0.0.1', 9), 1)",
                [["x", [], None, "ConnectionRefusedError"]],
                20.0,
            ),
        }
    )
    assert found["environment"]["tests"] == {"x": "passed"}
    assert found["network"]["tests"] == {"x": "failed" if found["identity"]["network"] == "cut" else "passed"}


@pytest.mark.slow
def test_every_problem_that_ships_is_solved_by_its_solution_and_not_by_a_constant():
    suite, work = declaration.load("x01_small_functions"), {}
    for item in suite.items:
        tests = [[one.name, list(one.args), one.returns, one.raises] for one in problems.of_item(item)]
        for kind, body in (("right", solutions.RIGHT[item.id]), ("wrong", solutions.WRONG)):
            work[f"{kind} {item.id}"] = (f"{item.prompt}{body}\nf = solution\n", tests, 20.0)
    found = as_another_user(work)
    assert len(suite.items) == 24
    assert {name for name, one in found.items() if one.get("passed")} == {f"right {item.id}" for item in suite.items}


def test_root_is_refused(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(UserError, match="process is refused to root"):
        sandbox.open_sandbox("process", {"memory_mib": 512})


# --- docker ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """A `docker` on PATH that notes what it is asked and runs the command itself; `down` makes it refuse."""
    log, down = tmp_path / "asked.jsonl", tmp_path / "down"
    fake = tmp_path / "bin" / "docker"
    fake.parent.mkdir()
    fake.write_text(
        f"""#!{sys.executable} -IS
import json, os, sys
asked = sys.argv[1:]
open({str(log)!r}, "a").write(json.dumps(asked) + "\\n")
refused, _, message = (open({str(down)!r}).read() if os.path.exists({str(down)!r}) else "").partition("|")
if asked[0] in refused.split():
    sys.exit(message)
if asked[0] == "run":
    command = asked[asked.index({IMAGE!r}) + 1:]
    os.execv(sys.executable, [sys.executable, *command[1:]])
"""
    )
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{fake.parent}{os.pathsep}{os.environ['PATH']}")

    class Fake:
        @property
        def asked(self):
            return [json.loads(line) for line in log.read_text().splitlines()]

        def refuse(self, *commands, message="Cannot connect to the Docker daemon"):
            down.write_text(f"{' '.join(commands)}|{message}")

    return Fake()


SETTINGS = {"image": IMAGE, "memory_mib": 512, "processes": 64}
TESTS = [ProgramTest(name, args, returns) for name, args, returns in ADD]


def test_a_container_has_no_network_and_no_rights_and_is_taken_away(docker):
    box = sandbox.open_sandbox("docker", SETTINGS)
    ran = harness.run("print('passed')\ndef f(a, b): return 3", "f", TESTS, box, 20.0, 60.0)
    assert (ran.tests, ran.passed) == ({"ones": "passed", "twos": "failed"}, False)
    version, run, rm = docker.asked
    assert (
        version[0] == "version"
        and run[-7] == "python3"
        and run[-6:-3] == ["-I", "-S", "-c"]
        and run[-2:] == ["1", "{}"]
    )
    name = run[3].removeprefix("--name=")
    assert run[: run.index(IMAGE)] == [
        "run", "--rm", "--interactive", f"--name={name}", "--pull=never", "--network=none", "--read-only",
        "--tmpfs=/tmp:rw,noexec,nosuid,nodev,size=64m", "--user=65534:65534", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", "--pids-limit=64", "--memory=512m", "--workdir=/tmp",
    ]  # fmt: skip
    assert rm == ["rm", "--force", name]
    assert box.identity["image"] == IMAGE and box.identity["network"] == "cut"


REPLY = """
import json, os, sys
def f(a, b):
    main = sys._getframe(2).f_locals
    reply = json.dumps({"nonce": main["request"]["nonce"], **FORGED})
    os.write(main["replies"], reply.encode() + b"\\n")
    return a + b
"""


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        ({"raised": ["x"]}, "another form"),
        ({"raised": {"ValueError": 1}, "why": "x"}, "another form"),
        ({"raised": None}, "another form"),
        ({"raised": "ValueError", "why": 3}, "another form"),
        ({"raised": "ValueError", "why": ["x"]}, "another form"),
        ({"raised": "ValueError", "value": 3}, "another form"),
        ({}, "another form"),
        ({"raised": "ValueError", "why": "\ud800"}, "half a character"),
        ({"raised": "\udfff"}, "half a character"),
        ({"value": "\ud800"}, "half a character"),
        ({"value": {"\ud800": [1]}}, "half a character"),
        ({"value": 3, "\ud800": 4}, "half a character"),
    ],
)
@pytest.mark.parametrize("test", [ProgramTest("one", [1, 2], 3), ProgramTest("one", [1, 2], raises="ValueError")])
def test_a_reply_of_another_form_that_the_program_wrote_is_an_error_and_is_recorded(
    docker, tmp_path, forged, said, test
):
    box, text = sandbox.open_sandbox("docker", SETTINGS), REPLY.replace("FORGED", repr(forged))
    ran = harness.run(text, "f", [test], box, 20.0, 60.0)
    assert (ran.tests, ran.passed, ran.error) == ({"one": "error"}, False, None) and said in ran.why["one"]
    with ExecutionRecord(tmp_path / execution_record.NAME) as known:
        known.add("key", text, ran, {})
    (line,) = execution_record.read(tmp_path / execution_record.NAME)
    assert (line["tests"], line["why"]) == (dict(ran.tests), dict(ran.why))


def test_half_a_character_in_what_a_program_returns_or_raises_is_written_as_its_escape(docker, tmp_path):
    box = sandbox.open_sandbox("docker", SETTINGS)
    text = "def f(kind):\n    if kind: raise ValueError('\\ud800' * 999)\n    return {'\\ud800': 1}"
    tests = [
        ProgramTest("raised", [True], 3),
        ProgramTest("expected", [True], raises="ValueError"),
        ProgramTest("returned", [False], 3),
    ]
    ran = harness.run(text, "f", tests, box, 20.0, 60.0)
    assert ran.tests == {"raised": "error", "expected": "passed", "returned": "error"}
    assert ran.why["raised"] == "ValueError: " + ("\\ud800" * 34)[:200]  # 6 characters each
    assert ran.why["returned"].startswith("NoAnswer: no JSON: 'utf-8' codec can't encode character '\\ud800'")
    assert [one[0] for one in docker.asked] == ["version", "run", "rm"]  # one process answered all
    loading = harness.run("raise ValueError('\\ud800')", "f", tests, box, 20.0, 60.0)
    assert loading.why["raised"] == "the program was not loaded: ValueError: \\ud800"
    with ExecutionRecord(tmp_path / execution_record.NAME) as known:
        known.add("one", text, ran, {})
        known.add("two", text, loading, {})


def test_names_and_messages_of_errors_are_cut_to_200_characters():
    long = harness.of_form({"raised": "E" * 201, "why": "m" * 201, "nonce": "ab"})
    assert long == {"raised": "E" * 200, "why": "m" * 200, "nonce": "ab"}
    assert harness.of_form({"value": "v" * 201}) == {"value": "v" * 201}
    deep: list = []
    for _ in range(10**5):
        deep = [deep]
    with pytest.raises(harness._Broken, match="nested too deep"):
        harness.of_form({"value": deep})


def test_a_container_that_is_too_slow_is_replaced_for_the_other_tests(docker):
    box = sandbox.open_sandbox("docker", SETTINGS)
    text = "def f(a, b):\n    while a == 1: pass\n    return a + b"
    ran = harness.run(text, "f", TESTS, box, 2.0, 60.0)
    assert ran.tests == {"ones": "timeout", "twos": "passed"}
    assert [one[0] for one in docker.asked] == ["version", "run", "rm", "run", "rm"]


def test_a_container_that_does_not_start_is_an_error_and_no_failure(docker):
    box = sandbox.open_sandbox("docker", SETTINGS)
    docker.refuse("run")
    ran = harness.run("def f(a, b): return a + b", "f", TESTS, box, 20.0, 60.0)
    assert ran.error == "the sandbox did not start: Cannot connect to the Docker daemon"
    assert (ran.tests, ran.passed) == ({}, None)


def test_an_image_that_is_not_here_is_said_at_the_first_program(docker, tmp_path):
    docker.refuse("run", message="docker: Error response from daemon: No such image: python@sha256:00")
    suite = declaration.load("x01_small_functions")
    answers = {item.prompt: "    return 1\n" for item in suite.items}

    def executor(asked, recorded):
        with ExecutionRecord(tmp_path / execution_record.NAME) as known:
            box = sandbox.open_sandbox("docker", SETTINGS)
            return scoring.execute(asked, recorded, box, known, NoProgress(), 9.0)

    with pytest.raises(
        UserError, match=r"the image python@sha256:0+ is not on this machine; fetch it with docker pull"
    ):
        runner.run([suite], ScriptedModel(answers), tmp_path, say=lambda line: None, executor=executor)
    assert [one[0] for one in docker.asked] == ["version", "run", "rm"]
    assert execution_record.read(tmp_path / execution_record.NAME) == []
    assert (tmp_path / "generations.jsonl").read_text().count("\n") > len(suite.items)


@pytest.mark.parametrize(
    ("image", "refused", "said"),
    [
        (None, (), "code.image=None is no image by digest"),
        ("python:3.12", (), "code.image=python:3.12 is no image by digest"),
        (IMAGE, ("version",), r"docker does not answer \(Cannot connect"),
    ],
)
def test_no_container_without_a_digest_or_a_daemon(docker, image, refused, said):
    docker.refuse(*refused)
    with pytest.raises(UserError, match=said):
        sandbox.open_sandbox("docker", {**SETTINGS, "image": image})


def test_no_container_without_docker(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no docker on PATH"):
        sandbox.open_sandbox("docker", SETTINGS)


IN_A_CONTAINER = {  # how escapes end where they end in another way than under the limits of a process
    "a fork": "passed",  # up to 64 processes
    "a thread": "passed",
    "memory": "killed",
    "a large file": "passed",  # in /tmp, whose 64 MiB it does not fill
    "a signal": "failed",  # the first process of a container gets no signal from inside
    "its limits": "passed",
}
OUT = {  # attempts to leave a container: the program, and what its call raises
    "a file outside /tmp": ("def f(): open('/etc/x', 'w')", "OSError"),
    "a file of another": ("def f(): open('/etc/shadow').read()", "PermissionError"),
    "a full disk": ("def f():\n    with open('x', 'wb') as file: file.write(b'x' * (65 << 20))", "OSError"),
    "a program of its own": (
        "import os\ndef f():\n    open('x', 'w').write('#!/bin/sh')\n    os.chmod('x', 0o755)\n    os.execv('./x', ['x'])",
        "PermissionError",
    ),
    "another user": ("import os\ndef f(): os.setuid(0)", "PermissionError"),
    "another root": ("import os\ndef f(): os.chroot('/tmp')", "PermissionError"),
    "an address": ("import socket\ndef f(): socket.create_connection(('192.0.2.1', 80), 2)", "OSError"),
    "the daemon": (
        "import socket\ndef f(): socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
        "FileNotFoundError",
    ),
    "processes without end": (
        "import os, time\ndef f():\n    for _ in range(99):\n        if os.fork() == 0: time.sleep(9); os._exit(0)",
        "BlockingIOError",
    ),
}


@pytest.fixture(scope="module")
def container():
    return containers.found(SETTINGS)


@pytest.mark.slow
def test_a_real_container_has_another_user_and_no_network(container):
    text = "import os\ndef f(): return [os.getuid(), os.getgid(), os.listdir('/sys/class/net'), os.listdir('/tmp')]"
    ran = harness.run(text, "f", [ProgramTest("user", [], [NOBODY, NOBODY, ["lo"], []])], container, 20.0, 120.0)
    assert ran.tests == {"user": "passed"}, ran


@pytest.mark.slow
@pytest.mark.parametrize("name", ESCAPES)
def test_in_a_real_container_every_escape_ends_as_it_should(container, name):
    text, end = ESCAPES[name]
    ends = end == "timeout"
    tests = [ProgramTest(*one) for one in (ADD[:1] if ends else ADD)]
    ran = harness.run(text, "f", tests, container, 5.0 if ends else 30.0, 120.0)
    assert (ran.tests["ones"], ran.error) == (IN_A_CONTAINER.get(name, end), None), ran
    assert ran.passed is (ran.tests["ones"] == "passed")


@pytest.mark.slow
@pytest.mark.parametrize("name", OUT)
def test_nothing_leaves_a_real_container(container, name):
    text, raised = OUT[name]
    ran = harness.run(text, "f", [ProgramTest("out", [], raises=raised)], container, 30.0, 120.0)
    assert (ran.tests, ran.error) == ({"out": "passed"}, None), ran


@pytest.mark.slow
@pytest.mark.parametrize("solved", [True, False])
def test_in_a_real_container_every_problem_is_solved_by_its_solution_and_not_by_a_constant(container, solved):
    suite = declaration.load("x01_small_functions")
    passed = set()
    for item in suite.items:
        text = f"{item.prompt}{solutions.RIGHT[item.id] if solved else solutions.WRONG}\nf = solution\n"
        ran = harness.run(text, "f", problems.of_item(item), container, 30.0, 120.0)
        passed |= {item.id} if ran.passed else set()
    assert passed == ({item.id for item in suite.items} if solved else set()) and len(suite.items) == 24


# --- verdicts and programs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected", "equal"),
    [
        (1, 1, True), (1.0, 1, True), (True, 1, False), (0, False, False), ("1", 1, False), (None, 0, False),
        ([1, [2]], [1, [2.0]], True), ([1], [1, 1], False), ({"a": 1}, {"a": 1}, True), ({"a": 1}, {"b": 1}, False),
        (1 + 0.9e-9, 1.0, True), (1 + 1.1e-9, 1.0, False), (0.9e-9, 0.0, True), (1.1e-9, 0, False),
        (1e6 + 0.9e-3, 10**6, True), (1e6 + 1.1e-3, 10**6, False), (0.1 + 0.2, 0.3, True), (0.31, 0.3, False),
        (10**400, 1.5, False),
    ],
)  # fmt: skip
def test_equality_is_that_of_json(said, expected, equal):
    assert same(said, expected) is equal


def test_an_error_that_is_asked_for_passes_and_another_one_fails():
    wanted = ProgramTest("x", [], raises="ValueError")
    assert verdict(wanted, {"raised": "ValueError"}) == ("passed", "")
    assert verdict(wanted, {"raised": "KeyError"}) == ("failed", "raised KeyError, expected ValueError")
    assert verdict(wanted, {"value": 3})[0] == "failed"
    assert verdict(ProgramTest("x", [], 3), {"raised": "KeyError", "why": "'a'"}) == ("error", "KeyError: 'a'")


def test_the_program_is_the_fenced_block_the_output_or_the_continuation():
    head = 'def f(a):\n    """Return a."""\n'
    fenced = "Sure:\n```python\ndef f(a):\n    return a\n```\nwhich returns a.\n```\nf(1)\n```"
    assert program.of_output(head, fenced, "f") == "def f(a):\n    return a\n"
    assert program.of_output(head, "def f(a): return a", "f") == "def f(a): return a"
    assert program.of_output(head, "    return a\n", "f") == head + "    return a\n"
    assert program.of_output(head, "```\n    return a\n```", "f") == head + "    return a\n"
    for later in ("def g(a):\n    return 2\n", "class A:\n    pass\n", 'if __name__ == "__main__":\n    print(f(1))\n'):
        assert program.of_output(head, f"    return a\n\n\n{later}", "f") == head + "    return a\n\n\n"
    inner = "    def g():\n        return a\n    return g()\n"
    assert program.of_output(head, inner, "f") == head + inner


HEAD = 'def f(a, b):\n    """Add."""\n'
BODY = "    return a + b\n"


@pytest.mark.parametrize(
    "later",
    [
        "def g(a):\n    return 2\n",
        "@cache\ndef g(n):\n    return n\n",
        "async def g(n):\n    return n\n",
        "print(f(1, 2))\n",
        "assert f(1, 2) == 3\n",
        "f = None\n",
        "def f(a):\n    return 1\n",  # the function again, after what was asked for
        "from x import y\n",
        '"""A text."""\n',
        "This adds them, doesn't it?\n",
        "```\nThis adds them.\n",
    ],
)
def test_a_continuation_ends_before_the_first_line_of_code_in_column_0(later):
    assert program.of_output(HEAD, f"{BODY}\n{later}", "f") == f"{HEAD}{BODY}\n"
    assert program.of_output("def f(a, b):", f"\n{BODY}{later}", "f") == f"def f(a, b):\n{BODY}"
    assert program.of_output("def f(a, b):", f" return a + b\n{later}", "f") == "def f(a, b): return a + b\n"
    assert program.of_output("def f(a,", f" b):\n{BODY}{later}", "f") == f"def f(a, b):\n{BODY}"


@pytest.mark.parametrize(
    "body",
    [
        '    text = """\ndef g(): pass\n"""\n    return a + b\n',
        "    text = '''\nit\\'''s\n'''\n    return a + b\n",
        "# their sum, isn't it (\n    return a + b\n",
        "    total = a\n# and the other\n    return total + b\n",
        "    return sum([\na,\nb,\n])\n",
        "    return {'(': a}['('] + b\n",
        "    return a + \\\nb\n",
        "    if a:\n        return a + b\n\n    return b\n",
    ],
)
def test_a_line_in_column_0_inside_a_text_or_brackets_and_a_comment_end_no_continuation(body):
    found = program.of_output(HEAD, f"{body}print(f(1, 2))\n", "f")
    assert found == HEAD + body
    names: dict = {}
    exec(found, names)
    assert names["f"](1, 2) == 3


@pytest.mark.parametrize("before", [" \n", " \n\n", "\n\t\n", "  \r\n\r\n"])
def test_blank_lines_before_an_output_do_not_make_it_a_continuation(before):
    """Chat models write them; a first line of code that is indented does."""
    whole, body = f"{before}def f(a, b):\n    return a + b\n", f"{before}    return a + b\n"
    assert program.of_output("Write f(a, b).", whole, "f") == whole
    assert program.of_output(HEAD, f"{body}\nf = None\n", "f") == f"{HEAD}{body}\n"
    fenced = f"{before}  ```\n  def f(a, b): return 1\n  ```\n"
    assert program.of_output(HEAD, fenced, "f") == "def f(a, b): return 1\n"


@pytest.mark.parametrize("fence", ["~~~", "~~~~"])
def test_a_block_between_tildes_is_a_fenced_block(fence):
    text = f"So:\n{fence}python\ndef f(a, b):\n    return '```'\n{fence}\nThen f(1, 2).\n"
    assert program.of_output(HEAD, text, "f") == "def f(a, b):\n    return '```'\n"


def test_a_text_that_the_prompt_opened_is_closed_by_the_continuation():
    assert program.of_output('def f(a):\n    """Return\n', 'a.\n"""\n    return a\nprint(1)\n', "f") == (
        'def f(a):\n    """Return\na.\n"""\n    return a\n'
    )


def test_a_continuation_keeps_its_first_line_so_that_prose_is_an_error_and_no_empty_function():
    assert program.of_output(HEAD, "\nIt adds.\n    return 1\n", "f") == f"{HEAD}\nIt adds.\n    return 1\n"


def test_of_two_fenced_blocks_that_define_the_function_the_last_counts():
    text = "First:\n```python\ndef f(a): return 1\n```\nBetter:\n```python\ndef f(a): return 2\n```\nUse:\n```\nf(1)\n```\n"
    assert program.of_output(HEAD, text, "f") == "def f(a): return 2\n"


def test_a_name_that_is_given_a_lambda_is_a_definition_and_a_comparison_is_none():
    assert program.of_output(HEAD, "f = lambda a, b: a + b\n", "f") == "f = lambda a, b: a + b\n"
    assert program.of_output(HEAD, "f == g\n", "f") == f"{HEAD}f == g\n"
    assert program.of_output(HEAD, "```\nf = max\n```\n```\nf == max\n```", "f") == "f = max\n"


@pytest.mark.parametrize("indent", ["   ", "\t", " "])
def test_a_fenced_block_in_a_list_loses_the_indentation_of_its_fence(indent):
    lines = ["```python", "def f(a, b):", "    return a + b", "", "```"]
    text = "1. Write it:\n\n" + "".join(f"{indent if line else ''}{line}\n" for line in lines) + "2. Call it.\n"
    assert program.of_output(HEAD, text, "f") == "def f(a, b):\n    return a + b\n\n"


def test_a_fence_inside_a_text_of_the_program_or_with_another_indentation_ends_no_block():
    in_column_0 = "def f(a):\n    s = '''\n```\nx\n```\n'''\n    return s\n"
    in_a_text = 'def f(a):\n    """Return a.\n\n    ```\n    f(1)\n    ```\n    """\n    return a\n'
    for text in (in_column_0, in_a_text):
        assert program.of_output(HEAD, f"So:\n```python\n{text}```\nand\n```\nf(1)\n```\n", "f") == text
    longer = "def f(a):\n    return a\n```\n"
    assert program.of_output(HEAD, f"````\n{longer}````\nbye", "f") == longer


def test_a_block_whose_own_text_or_fence_has_no_end_stops_at_the_first_fence_or_goes_on():
    broken = 'def f(a):\n    """Return a.\n    return a\n'
    assert program.of_output(HEAD, f"```\n{broken}```\nSee:\n```\nf(1)\n```\n", "f") == broken
    assert program.of_output(HEAD, "  ```\n  def f(a): return a\n```\nbye", "f") == "def f(a): return a\n"
    assert program.of_output(HEAD, "```\ndef f(a): return a\n", "f") == "def f(a): return a\n"
