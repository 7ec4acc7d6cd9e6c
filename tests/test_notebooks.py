"""The notebooks run from top to bottom, show figures, and find what is known to be true."""

from __future__ import annotations

import ast
import base64
import importlib
import importlib.util
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 900  # for one cell, on a core that others use as well
IMAGE, PLOTLY = "image/png", "application/vnd.plotly.v1+json"
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work|Users|tmp|mnt)/")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Executed:
    """A notebook after its execution."""

    book: NotebookNode

    @property
    def outputs(self) -> Iterator[NotebookNode]:
        return (output for cell in self.book.cells if cell.cell_type == "code" for output in cell.outputs)

    def images(self) -> list[bytes]:
        found = (output.get("data", {}).get(IMAGE) for output in self.outputs)
        return [base64.b64decode(image) for image in found if image]

    def text(self, source: str) -> str:
        """Plain text of the last output of the only cell whose code contains `source`."""
        (cell,) = [cell for cell in self.book.cells if cell.cell_type == "code" and source in cell.source]
        last = cell.outputs[-1]
        return last["text"] if last.output_type == "stream" else last["data"]["text/plain"]

    def row(self, source: str, label: str) -> list[float]:
        """The numbers of the line that begins with `label` in that text."""
        (line,) = [line for line in self.text(source).splitlines() if line.startswith(label)]
        return [float(word) for word in line.removeprefix(label).split()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_is_there(path) -> None:
    """Quick, and without a kernel: a class that was renamed is noticed."""
    code = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    lines = [line for source in code for line in source.splitlines() if not line.startswith(("%", "!"))]
    imports = [node for node in ast.walk(ast.parse("\n".join(lines))) if isinstance(node, ast.ImportFrom)]
    assert imports or "import " in "\n".join(lines)
    for node in imports:
        module = importlib.import_module(str(node.module))
        for one in node.names:
            inside = hasattr(module, one.name) or importlib.util.find_spec(f"{node.module}.{one.name}")
            assert inside, f"{path.name}: {node.module} has no {one.name}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebooks keep their results."""
    return tmp_path_factory.mktemp("notebooks")


@pytest.fixture(scope="module")
def execute(folder):
    """Run one notebook in a kernel of its own, from the root of the repository, once."""
    done: dict[str, Executed] = {}

    def run(name: str) -> Executed:
        (path,) = [path for path in NOTEBOOKS if path.name.startswith(name)]
        if path.name not in done:
            book = nbformat.read(path, as_version=4)
            environment = {**os.environ, **ONE_THREAD, "TMPDIR": str(folder)}
            client = NotebookClient(book, timeout=SECONDS, resources={"metadata": {"path": str(ROOT)}})
            client.execute(env=environment)
            if kept := os.environ.get("MERIDIAN_KEEP_NOTEBOOKS"):  # to look at them
                nbformat.write(book, Path(kept) / path.name)
            done[path.name] = Executed(book)
        return done[path.name]

    return run


def size(png: bytes) -> tuple[int, int]:
    return struct.unpack(">II", png[16:24])


# --- as committed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_committed_notebook_has_no_outputs_and_no_path_of_a_machine(path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert not [cell.source for cell in book.cells if MACHINE_PATH.search(cell.source)]
    assert book.cells[0].source.startswith(f"# {int(path.name[:2])} ")


def test_there_are_five_in_the_order_of_their_numbers() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


# --- executed ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_figures(execute, path) -> None:
    done = execute(path.name)
    images = done.images()
    assert images and all(min(size(image)) > 150 for image in images)
    assert not [output for output in done.outputs if output.output_type == "error"]
    noise = [output["text"] for output in done.outputs if output.output_type == "stream" and output.name == "stderr"]
    assert not [text for text in noise if "Warning" in text]
    assert not list(ROOT.glob("notebooks/results")), "results belong in a temporary folder"


@pytest.mark.slow
def test_first_steps_end_in_a_certificate(execute, folder) -> None:
    done = execute("01")
    (certificate,) = (folder / "meridian-notebooks" / "pocket" / "ioi").rglob("certificate.json")
    assert (certificate.parent / "report.html").is_file()
    assert done.row("difference.table", "clean")[3] > 0.95  # share of prompts on which the answer wins
    (shown,) = [o for o in done.outputs if "Tier" in o.get("data", {}).get("text/html", "")]
    assert shown["data"]["text/html"].count("<tr>") == 17


@pytest.mark.slow
def test_exploring_adds_up(execute) -> None:
    done = execute("02")
    parts, whole = re.findall(r"[\d.]+\d", done.text("sum of the parts"))
    assert float(parts) == pytest.approx(float(whole), abs=1e-3) and float(whole) > 5
    together, single = map(float, re.findall(r"([\d.]+) nats", done.text("as a sum of single ablations")))
    assert together > single > 0  # answer promoters cover for each other
    assert any(PLOTLY in output.get("data", {}) for output in done.outputs)


@pytest.mark.slow
def test_a_failure_leads_to_a_head_that_is_confirmed_on_the_other_half(execute) -> None:
    assert done_heads(execute("03"))["confirmed"] >= 1


def done_heads(done: Executed) -> dict[str, int]:
    lines = done.text('groupby("verdict").size().rename("heads")').splitlines()[2:]
    return {line.split()[0]: int(line.split()[1]) for line in lines}


@pytest.mark.slow
def test_your_own_claim_is_judged(execute) -> None:
    text = execute("04").text('answer promoters alone": "circuit"')
    mine = float(
        next(line for line in text.splitlines() if line.startswith("answer promoters")).split("ablation")[1].split()[0]
    )
    stored = float(
        next(line for line in text.splitlines() if line.startswith("stored")).split("ablation")[1].split()[0]
    )
    assert mine < 0.2 and 0.8 < stored < 1.2


@pytest.mark.slow
def test_planted_truth_is_found(execute) -> None:
    done = execute("05")
    for recipe in ("mean", "resample", "zero"):
        sound, missing, backup = done.row("faithfulness.round", f"{recipe} ablation")
        assert sound == pytest.approx(1, abs=0.02) and backup == pytest.approx(1, abs=0.05) and missing < 0.8
    lost = {recipe: done.row("pd.DataFrame(lost)", recipe) for recipe in ("mean", "zero")}
    assert lost["mean"][2] - lost["zero"][2] > 0.5  # the backup wakes under zero ablation
    assert abs(lost["mean"][0] - lost["zero"][0]) < 0.1  # the sound model has none
    published, verdict = (done.row('"verdict"]].mean()', name)[0] for name in ("published", "verdict"))
    assert verdict < 0.05 < published
