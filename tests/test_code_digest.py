"""The digest of code: what it counts, and which edits make a measurement stale."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from code_digest import code_digest, code_version, files, tokens

ROOT = Path(__file__).parents[1]

SAMPLE = '''"""A module."""

# a comment
from os import path  # another


@cache
def shown(name: str, *, wide: bool = False) -> str:
    """What it does: é, 'quotes' and # no comment.

    if not: a statement
    """
    # why
    total = 1 + \\
        2

    text = f"é {name!r:>{10}} {'a' if wide else f'{name:.3f}'} {{x}}" rf\'\'\'{
        name}\'\'\'
    return (  # in brackets

        "one"
        # between
        'two'
    )


class Empty:
    """Nothing else."""

    async def nothing(self): "é"; "no docstring"
'''
TOKENS = """from os import path <newline> @ cache <newline>
def shown ( name : str , * , wide : bool = False ) -> str : <newline>
<indent> total = 1 + 2 <newline>
text = {0} {1} <newline>
return ( "one" 'two' ) <newline>
<dedent> class Empty : <newline>
<indent> async def nothing ( self ) : {3} ; {2} <newline> <dedent>"""
LITERALS = (
    """f"é {name!r:>{10}} {'a' if wide else f'{name:.3f}'} {{x}}\"""",
    "rf'''{\n        name}'''",
    '"no docstring"',
    '"é"',  # beside other code on one line
)
DIGEST = "d5865565de8d17c378fe169afdfb29180d96bbb916f3145d6f1a9d906bd1af13"

DOCSTRING = re.compile(r'(\A"""|^ *(?:def |class |\))[^\n]*:\n *""")', re.MULTILINE)  # its start, after a heading


@pytest.fixture
def digest_of(tmp_path):
    """The digest of a source text."""

    def digest(source: str) -> str:
        path = tmp_path / "source.py"
        path.write_text(source, encoding="utf-8")
        return code_digest([path])

    return digest


def test_the_tokens_of_a_sample_by_hand() -> None:
    expected = [LITERALS[int(word[1])] if word in ("{0}", "{1}", "{2}", "{3}") else word for word in TOKENS.split()]
    assert list(tokens(SAMPLE)) == expected


def test_the_digest_of_a_sample_is_the_same_on_every_python(digest_of) -> None:
    """Python 3.12 and later read an f-string in parts; the number was found with 3.11, 3.12 and 3.13."""
    assert digest_of(SAMPLE) == DIGEST


def test_a_version_and_twelve_digits_are_stored(tmp_path) -> None:
    path = tmp_path / "source.py"
    path.write_text("x = 1\n")
    assert code_version([path]) == f"0.1.0+{code_digest([path])[:12]}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('x = "a"\n', 'x = "b"\n'),
        ('x = f"{a}"\n', 'x = f"{b}"\n'),
        ('x = f"{a:>3}"\n', 'x = f"{a:<3}"\n'),
        ("x = a + b\n", "x = a - b\n"),
        ("if a:\n    b\nc\n", "if a:\n    b\n    c\n"),
        ("a\nb\n", "a; b\n"),
        ('x = 1\n"a"\n', 'x = 1\n"b"\n'),  # a string on its own that is no docstring
        ('def f():\n    return "a"\n', 'def f():\n    return "b"\n'),
        ('if a:\n    "a"\n', 'if a:\n    "b"\n'),
        ('f"a"\n', 'f"b"\n'),  # an f-string is never a docstring
        ('class A:\n    "a"; x = 1\n', 'class A:\n    "b"; x = 1\n'),  # one that shares its line counts as code
    ],
)
def test_code_counts(digest_of, one: str, other: str) -> None:
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('"""a"""\nx = 1\n', "x = 1\n"),
        ('"a" \\\n  "b"\nx = 1\n', "# a\n\n\nx = 1\n"),
        ('("a"\n "b")\nx = 1\n', "x=1"),
        ("def f(a,\n      b):\n  return a\n", "def f(a, b):\n    # b\n    return a  # not b\n"),
        ("x = 1 + \\\n    2\n", "x = 1 + 2\n"),
    ],
)
def test_prose_and_layout_do_not_count(digest_of, one: str, other: str) -> None:
    assert digest_of(one) == digest_of(other)


def test_which_files_and_in_which_order_counts_but_not_where_they_are(tmp_path) -> None:
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("x = 1\n")
        (tmp_path / folder / "b.py").write_text("y = 1\n")
    a, b = tmp_path / "here" / "a.py", tmp_path / "here" / "b.py"
    assert code_digest([a, b]) == code_digest([tmp_path / "there" / "a.py", tmp_path / "there" / "b.py"])
    assert len({code_digest(paths) for paths in ([], [a], [b], [a, b], [b, a])}) == 5


def test_a_file_that_is_not_python_is_an_error(digest_of) -> None:
    with pytest.raises(SyntaxError):
        digest_of("def f(:\n")


# --- what makes a measurement stale ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The sources and the documents of the repository, to be edited."""
    root = tmp_path_factory.mktemp("tree")
    names = ("circuits", "calibrations", "kernels", "suites", "meridian", "scripts", "docs")
    kept = [path for name in names for path in (ROOT / name).rglob("*") if path.suffix in (".py", ".md")]
    for path in [*kept, *ROOT.glob("*.py")]:
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return root


@pytest.fixture(scope="module")
def digest_before(tree: Path) -> str:
    return measuring(tree)


def measuring(tree: Path) -> str:
    return code_digest(files("measurements", tree))


@pytest.fixture
def rewrite(tree: Path):
    """Write a file of the tree anew; afterwards it is as it was."""
    before: dict[Path, str] = {}

    def written(path: Path, text: str) -> None:
        before[path] = path.read_text()
        assert text != before[path]
        path.write_text(text)

    yield written
    for path, text in before.items():
        path.write_text(text)


def test_the_code_that_measures_is_all_of_circuits_the_kernels_names_of_nodes_and_the_format_of_results() -> None:
    found = {path.relative_to(ROOT) for path in files("measurements")}
    assert {path.parts[0] for path in found} == {"circuits", "kernels", "node_names.py", "results_io.py"}
    assert {Path("circuits/engine/fused.py"), Path("circuits/measurements/baseline.py")} < found
    assert {path.relative_to(ROOT) for path in (ROOT / "circuits").rglob("*.py")} < found


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("circuits/engine/fused.py", " + ", " - "),
        ("circuits/tasks/ioi.py", " = ", " = 0 or "),
        ("kernels/choice.py", "return ", "return 0 * "),
        ("node_names.py", "M{self.layer}", "MLP{self.layer}"),
        ("results_io.py", "SIGNIFICANT_DIGITS = 9", "SIGNIFICANT_DIGITS = 8"),
    ],
)
def test_changed_code_makes_a_measurement_stale(tree, digest_before, rewrite, name, old, new) -> None:
    rewrite(tree / name, (tree / name).read_text().replace(old, new))
    assert measuring(tree) != digest_before


def test_prose_and_blank_lines_make_no_measurement_stale(tree, digest_before, rewrite) -> None:
    for path in files("measurements", tree):
        text = DOCSTRING.sub(r"\1Another word. ", path.read_text())
        text = re.sub(r"^(def|class|from) ", r"# a comment\n\n\1 ", text, flags=re.MULTILINE)
        rewrite(path, f"{text}\n# the end\n")
    assert measuring(tree) == digest_before


def test_code_and_documents_that_measure_nothing_make_no_measurement_stale(tree, digest_before) -> None:
    for folder in ("meridian/doctor", "meridian/training", "meridian/report", "calibrations", "docs"):
        paths = [path for path in (tree / folder).rglob("*") if path.suffix in (".py", ".md")]
        assert paths, folder
        for path in paths:
            path.write_text(path.read_text() + "\nprint(1)\n")
    assert measuring(tree) == digest_before


def test_another_process_finds_the_same_digest(tmp_path) -> None:
    """Nothing of it depends on the seed of Python's hashes or on what was imported before."""
    path = tmp_path / "source.py"
    path.write_text(SAMPLE, encoding="utf-8")
    code = f"import pathlib, code_digest; print(code_digest.code_digest([pathlib.Path({str(path)!r})]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == DIGEST
