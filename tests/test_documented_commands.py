"""Every command on every page is understood: its settings are those of the command line, its targets, files and options exist.

Here each goes as far as the first stage; tests/test_documented_commands_run.py runs them to their end.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from calibrations.evidence import PRIMARY
from calibrations.preconditions import METHODS
from meridian import commandline
from results_io import UserError
from tests.commandline import ROOT, command, started

EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
PROGRAMS = ("python", "meridian", "make", "bash", "pip")
FILLED_IN = {"model=NAME": "model=gpt2", "model=...": "model=gpt2"}  # what a reader puts in its place
MADE_ON_THE_PAGE = {
    "task=color",
    "calibration=[x1]",
    "tiers",
}  # in docs/extending.md, whose commands tests/test_extending.py runs
MULTIRUN = ("-m", "--multirun")
READERS = {
    "mine.csv",
    "other.csv",
    "other.jsonl",
    "saved",
    "mib_ioi",
    "mine.yaml",
    "graph.json",
    "h.yaml",
    "traffic.jsonl",
    "human.jsonl",
    "fresh.jsonl",
    "pairs.jsonl",
    "my/suite",
}  # files and folders that a page takes for the reader's own
PATHS = {
    "task.path",
    "task.dataset",
    "task.companions",
    "circuit.path",
    "suite.path",
    "geometry.path",
    "model.path",
    "judge.path",
    "corpus",
    "follow",
    "hypothesis",
    "contamination.fresh",
    "contamination.paraphrases",
}  # settings that name what is read
PLACEHOLDER = re.compile(
    r"(?<![A-Za-z])[A-Z]{2,}(?![a-z-])|<[a-z]+>|\.\.\."
)  # DIR, <results> and ... in the place of a name
FROM = {"from", "a", "b", "baseline", "candidate"}  # settings that name a folder of results
SHIPPED_SERIES = {"pocket-demo"}
READERS_SERIES = {"mine", "other"}  # of docs/drift.md, which other pages compare
OTHER_RESULTS = {
    "drift",
    "edited",
    "forged",
}  # below results/, besides models; two of docs/hardening.md are copies of a run
OF_A_MODEL = {"suites", "geometry", "contamination"}  # below a model's results, besides tasks
FIRST = {
    "README.md",
    "docs/quick-start.md",
}  # pages whose commands `make test` tries; `make test-slow` tries those of all


CHOICES = {group: set(commandline.choices(group)) for group in ("model", "task")}


def pages() -> list[Path]:
    """Every page that a reader may take a command from."""
    elsewhere = [*ROOT.glob("*.md"), *ROOT.glob("results/**/README.md"), *ROOT.glob("circuits/**/README.md")]
    return [*elsewhere, *(ROOT / "docs").rglob("*.md")]


PROMPT = re.compile(
    r"^(?:\$ |[A-Z][A-Z0-9_]*=\S+ )+"
)  # before a program: the sign of a shell, settings of its environment


def commands(text: str) -> list[str]:
    """The lines of code blocks that begin with a program, and the code spans that do. A shell's prompt is taken away."""
    blocks = re.findall(r"^(?: {4,}|```\w*\n)?(.+)$", text, re.MULTILINE)
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    lines = [PROMPT.sub("", line.strip()) for line in (*blocks, *spans)]
    return [line for line in lines if line.split()[:1] and line.split()[0] in PROGRAMS]


def documented() -> list[tuple[str, tuple[str, ...]]]:
    """(page, words) of every command, comments taken away; && parts them. A program's name alone is no command."""
    found = {}
    for page in pages():
        for line in commands(page.read_text(encoding="utf-8")):
            for part in " ".join(shlex.split(line, comments=True)).split(" && ") if "&&" in line else [line]:
                words = tuple(FILLED_IN.get(word, word) for word in shlex.split(part, comments=True))
                if len(words) > 1 and not MADE_ON_THE_PAGE & set(words):
                    found[page.relative_to(ROOT).as_posix(), words] = None
    return list(found)


def settings_of(words: tuple[str, ...]) -> list[list[str]]:
    """What a `run.py` command sets. Of a multirun every value stands in one of the combinations; launchers are left to Hydra."""
    given = [word for word in words[2 if words[0] == "python" else 1 :] if not word.startswith(("hydra/", "hydra."))]
    if not set(MULTIRUN) & set(given):
        return [given]
    varied = [[f"{key}={value}" for value in values.split(",")] for key, values in split(given)]
    return [[values[min(place, len(values) - 1)] for values in varied] for place in range(max(map(len, varied)))]


def split(given: list[str]) -> list[tuple[str, str]]:
    return [(word.partition("=")[0], word.partition("=")[2]) for word in given if word not in MULTIRUN]


def fault(words: tuple[str, ...]) -> str | None:
    """Why a command cannot be meant; None if it can."""
    program, *rest = words
    if program == "make":
        return next((f"{target} is no target" for target in rest if target not in TARGETS), None)
    if program == "pip":
        asked = {name for word in rest for names in re.findall(r"\[([\w,-]+)\]", word) for name in names.split(",")}
        return next((f"{name} is no extra" for name in sorted(asked - EXTRAS)), None)
    if program == "meridian" or rest[0] == "run.py":
        return _refused(words)
    if program == "python" and rest[0] == "-c":
        return _unwritten(rest[1])
    file = ROOT / (rest[1].replace(".", "/") if rest[0] == "-m" else rest[0])
    sources = [path for path in (file, file.with_suffix(".py"), file / "__main__.py") if path.is_file()]
    if not sources:
        return f"{file.name} is not there"
    text = "".join(path.read_text(encoding="utf-8") for path in (*sources, *_imported_by(sources[0])))
    return next((f"{word} is no option" for word in rest if word.startswith("--") and word not in text), None)


def _unwritten(code: str) -> str | None:
    """Why a line of Python cannot run: it is no Python, or it imports what is not installed."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except SyntaxError as reason:
        return f"no Python: {reason}"
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    absent = [name for name in names if importlib.util.find_spec(name.partition(".")[0]) is None]
    return f"{absent[0]} is no module" if absent else None


def _imported_by(script: Path) -> list[Path]:
    """The project's modules that a script imports: one of a few lines has its options there."""
    pairs = re.findall(r"^from ([\w.]+) import (.+)$", script.read_text(encoding="utf-8"), re.MULTILINE)
    modules = [
        module for package, names in pairs for module in (package, *(f"{package}.{n}" for n in names.split(", ")))
    ]
    return [path for path in (ROOT / f"{module.replace('.', '/')}.py" for module in modules) if path.is_file()]


def _refused(words: tuple[str, ...]) -> str | None:
    for settings in settings_of(words):
        try:
            started(*settings)
        except UserError as reason:
            return str(reason)
        except Exception as reason:  # Hydra's own, of many kinds: an unknown setting or choice
            return f"{type(reason).__name__}: {reason}"
    return None


def missing(words: tuple[str, ...], before: Sequence[tuple[str, ...]]) -> str | None:
    """Why a name cannot be found that a command reads; None if all can. `before`: the commands above it on its page."""
    for key, value in split(list(words)) if words[0] == "meridian" or words[1] == "run.py" else ():
        if key == "series" and not _made(value, (*before, words)):
            return f"series={value} neither ships nor is made before"
        if key in FROM and value.startswith("results/") and (said := _no_results(value, before)):
            return said
        for path in value.strip("[]").split(",") if key in PATHS else ():
            if not (PLACEHOLDER.search(path) or path in READERS or path in CHOICES["task"] or (ROOT / path).exists()):
                return f"{key}={path} is not in the repository, and no file of the reader's"
    return None


def _made(series: str, commands: Iterable[tuple[str, ...]]) -> bool:
    """Whether one of the commands takes a snapshot of the series, or keeps its requests as one."""
    made = [set(words) for words in commands]
    return series in SHIPPED_SERIES or any(
        f"shadow.series={series}" in words or {f"series={series}", "do=snapshot"} <= words for words in made
    )


def _no_results(value: str, before: Sequence[tuple[str, ...]]) -> str | None:
    """Why no run leaves such a folder: its model, task or series is unknown."""
    _, model, *rest = value.split("/")
    if model == "drift":
        known = rest[0] in READERS_SERIES or _made(rest[0], before)
        return None if known else f"{value} is of no series that is made before"
    if model not in {*CHOICES["model"], *OTHER_RESULTS}:
        return f"{value} is of no model"
    if rest and rest[0] not in {*CHOICES["task"], *OF_A_MODEL}:
        return f"{value} is of no task"
    return None


def test_there_are_pages_with_commands() -> None:
    found = documented()
    assert len(found) > 150 and len({page for page, _ in found}) > 20
    programs = {words[0] for _, words in found}
    assert programs == set(PROGRAMS)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "page",
    [
        page if page in FIRST else pytest.param(page, marks=pytest.mark.slow)
        for page in sorted({page for page, _ in documented()})
    ],
)
def test_every_command_of_the_page_is_understood(page: str) -> None:
    found = [words for where, words in documented() if where == page]
    faults = {" ".join(words): fault(words) or missing(words, found[:place]) for place, words in enumerate(found)}
    assert {command: said for command, said in faults.items() if said} == {}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("python run.py task=nosuch", "task/nosuch"),
        ("python run.py task=ioi prompts.nosuch=3", "nosuch"),
        ("python run.py -m task=ioi,nosuch seed=0,1", "task/nosuch"),
        ("meridian task=ioi circuit=nosuch", "circuit/nosuch"),
        ("make nosuch", "nosuch is no target"),
        ("pip install -e '.[nosuch]'", "nosuch is no extra"),
        ("python -m scripts.nosuch", "nosuch is not there"),
        ("python -m scripts.docs --nosuch", "--nosuch is no option"),
        ("bash scripts/nosuch.sh", "nosuch.sh is not there"),
        ("python -c 'import nosuch'", "nosuch is no module"),
        ("python -c 'print('", "no Python"),
    ],
)
def test_what_is_not_there_is_found(line: str, said: str) -> None:
    assert said in (fault(tuple(shlex.split(line))) or "")


SNAPSHOT = "python run.py drift do=snapshot series=mine"


@pytest.mark.parametrize(
    ("line", "before", "said"),
    [
        ("python run.py drift series=nosuch", "", "series=nosuch neither ships"),
        ("python run.py drift do=analyse series=mine", SNAPSHOT.replace("mine", "other"), "series=mine neither ships"),
        ("python run.py drift do=analyse series=mine", SNAPSHOT, None),
        ("python run.py drift do=analyse series=live", "python run.py shadow shadow.series=live", None),
        ("python run.py verify from=results/nosuch/ioi", "", "results/nosuch/ioi is of no model"),
        ("python run.py verify from=results/pocket/nosuch", "", "results/pocket/nosuch is of no task"),
        ("python run.py figures from=results/pocket/suites", "", None),
        ("python run.py compare a=results/drift/mine b=results/drift/nosuch", "", "drift/nosuch is of no series"),
        ("meridian task=file task.path=nosuch.csv", "", "task.path=nosuch.csv is not in the repository"),
        ("meridian task=file task.path=docs/tutorials/gifts.csv", "", None),
        ("meridian task=file task.companions=[other.csv,nosuch]", "", "task.companions=nosuch is not"),
        ("meridian task=ioi circuit=file circuit.path=nosuch.yaml", "", "circuit.path=nosuch.yaml is not"),
        ("meridian suite=file suite.path=DIR", "", None),
        ("python -m scripts.plant backup --out DIR", "", None),
    ],
)
def test_a_name_that_nothing_has_made_is_found(line: str, before: str, said: str | None) -> None:
    found = missing(tuple(shlex.split(line)), [tuple(before.split())] if before else [])
    assert found is None if said is None else said in (found or "")


def test_commands_are_found_in_blocks_and_in_spans() -> None:
    text = "    python run.py a=1  # why\n\nSay `make ioi`,\nor `meridian\nb=2`.\n\n"
    text += "```text\npip install x\n```\nmake it so: `python`\n"
    assert commands(text)[:1] == ["python run.py a=1  # why"] and "pip install x" in commands(text)
    assert {"make ioi", "meridian b=2"} <= set(commands(text))
    assert commands("    $ python run.py c=3\n\n    HF_HUB_OFFLINE=1 A=b make ioi\n") == [
        "python run.py c=3",
        "make ioi",
    ]


def test_the_tutorial_s_check_prints_what_its_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of the block below the command stands in the output; the page cuts the line of splits short."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "tutorials" / "your-own-csv.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^    python run\.py (check .+)$", page, re.MULTILINE)
    outcome = command(*shlex.split(line))
    shown = next(block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "rows: 240" in block)
    assert outcome.code == 0 and len(shown.splitlines()) == 5
    assert [text for text in shown.splitlines() if text.removesuffix(" ...") not in outcome.output] == []
    (first,) = re.findall(r"^clean,.*\n.*", page, re.MULTILINE)
    assert (ROOT / "docs" / "tutorials" / "gifts.csv").read_text(encoding="utf-8").startswith(first)


def test_the_readme_is_short_and_its_first_screen_has_what_a_newcomer_needs() -> None:
    """A sentence, a picture, the command, six lines of output and four links, before the first heading."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    first = text.partition("\n## ")[0]
    assert "](docs/_static/report.webp)" in first and "    make ioi" in first and "    make test" in text
    (block,) = re.findall(r"```text\n(.*?)```", first, re.DOTALL)
    assert len(block.splitlines()) == 6 and "Tier 2 of 4" in block
    recipes = re.findall(r"\d\.\d\d ([a-z ]+?)(?= ·|;)", block)
    assert [name.replace(" ", "_") for name in recipes] == list(
        dict.fromkeys((PRIMARY, *METHODS))
    )  # as the program prints
    after = first.partition(block)[2]
    assert len(re.findall(r"\]\(docs/[\w-]+\.md\)", after)) == 4
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
