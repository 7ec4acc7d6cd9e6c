"""One row of a benchmark's CSV, and functions to read and write files of rows."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import results_io
from results_io import UserError

FOLDER = Path(__file__).parents[2] / "results" / "benchmarks"
DIGITS = 4
PACKAGES = ("torch", "triton", "transformer-lens", "transformers", "nnsight")


@dataclass(frozen=True)
class BenchmarkRow:
    """One engine on one work and one model. results/benchmarks/README.md documents the columns; None means unknown."""

    device: str
    threads: int
    dtype: str
    tf32: bool
    model: str
    work: str
    engine: str
    prompts: int
    length: int
    first_changed: int
    variants: int
    variants_timed: int
    repeats: int
    seconds: float
    seconds_min: float
    seconds_max: float
    cpu_seconds: float
    pairs_per_second: float
    times_hook_loop: float | None
    times_hook_loop_cpu: float | None
    gflop: float
    gflop_naive: float
    gflop_floor: float
    over_floor: float
    gemm_gflops: float
    roofline: float
    datasheet_gflops: float | None
    roofline_datasheet: float | None
    max_abs_difference: float
    variants_checked: int
    peak_memory_mib: float | None
    versions: str

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("NVIDIA")


def versions() -> str:
    """Python's and the packages' versions, in one cell."""
    found = [f"python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} none")
    return "; ".join(found)


def read(path: Path) -> list[BenchmarkRow]:
    """The rows of a file; empty if there is no file. UserError if its columns are not those of a BenchmarkRow."""
    return read_rows(path, BenchmarkRow)


def append(path: Path, rows: Iterable[Any]) -> None:
    """Add rows to a file in one step; the first rows bring the header."""
    rows = list(rows)
    if not rows:
        return
    old = path.read_text() if path.is_file() else ""
    results_io.write_text(path, old + _text(rows, header=not old))


def write(path: Path, rows: Iterable[Any]) -> None:
    """Write a file with exactly these rows in one step; no file if there are none."""
    rows = list(rows)
    if rows:
        results_io.write_text(path, _text(rows, header=True))
    else:
        path.unlink(missing_ok=True)


def _text(rows: list[Any], header: bool) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [field.name for field in fields(rows[0])], lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(
        {name: rounded(value) if isinstance(value, float) else value for name, value in asdict(row).items()}
        for row in rows
    )
    return stream.getvalue()


def read_rows(path: Path, kind: type) -> list[Any]:
    """The rows of a file as values of the dataclass `kind`."""
    if not path.is_file():
        return []
    with path.open(newline="") as stream:
        reader = csv.DictReader(stream)
        expected = [field.name for field in fields(kind)]
        if list(reader.fieldnames or ()) != expected:
            raise UserError(f"{path} has other columns than {', '.join(expected)}; move it away and measure anew")
        return [
            kind(**{field.name: _value(row[field.name], str(field.type)) for field in fields(kind)}) for row in reader
        ]


def rounded(value: float) -> float:
    """The value with the significant digits that a timing supports."""
    return float(f"{value:.{DIGITS}g}")


def _value(cell: str, kind: str) -> Any:
    if cell == "" and "None" in kind:
        return None
    if kind.startswith("bool"):
        return cell == "True"
    return {"int": int, "float": float, "str": str}[kind.split(" ")[0]](cell)
