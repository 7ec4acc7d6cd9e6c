"""The GPU script's plumbing, with stand-ins for the GPU and for Python: every part runs, and the exit code tells."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.sh"
PARTS = ("environment", "tests", "noise", "benchmark", "targets", "weights", "main job, GPT-2-small shape, cuda")


@pytest.fixture
def check(tmp_path):
    """check(fails): run a copy of the script where commands with the word `fails` exit with code 3."""
    folder = tmp_path / "checkout"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "scripts")
    tools, out = tmp_path / "tools", tmp_path / "out"
    tools.mkdir()
    out.mkdir()
    _command(tools / "nvidia-smi", "echo 'NVIDIA H100 80GB HBM3'")

    def run(fails: str, wait: str = "nothing") -> tuple[subprocess.CompletedProcess, Path]:
        body = f'echo "$MERIDIAN_GPU_TESTS" "$@"\ncase "$*" in *{wait}*) sleep 30;; *{fails}*) exit 3;; esac'
        _command(tools / "python", body)
        environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": str(tools / "python")}
        environment |= {"OUT": str(out), "TESTS_LIMIT": "1"}
        done = subprocess.run(
            ["bash", "scripts/gpu_check.sh"], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        return done, out

    return run


def _command(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_all_parts_run_and_the_log_is_copied(check):
    done, out = check("nothing-fails")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if "exit code" not in line and line.startswith("==")] == [
        f"== {part}" for part in PARTS
    ]
    assert "1 -m pytest -m gpu tests/kernels tests/circuits/test_fused_gpu.py" in done.stdout
    assert (out / "nvidia-h100-80gb-hbm3.txt").read_text() == done.stdout
    assert "--scratch <scratch>" in done.stdout
    assert tempfile.gettempdir() not in done.stdout  # no folder of the machine


def test_a_failing_part_does_not_stop_the_others(check):
    done, _ = check("pytest")
    assert done.returncode == 1
    assert "== tests: exit code 3" in done.stdout
    assert all(f"== {part}: exit code 0" in done.stdout for part in PARTS if part != "tests")


def test_a_part_that_hangs_is_ended(check):
    done, _ = check("nothing-fails", wait="pytest")
    assert done.returncode == 1
    assert "== tests: exit code 124" in done.stdout
    assert f"== {PARTS[-1]}: exit code 0" in done.stdout


def test_all_parts_are_ended_within_470_seconds():
    words = SCRIPT.read_text().replace("}", " ").split()
    limits = {word.split("=")[0]: int(word.split(":-")[1]) for word in words if "LIMIT=${" in word}
    assert len(limits) == len(PARTS)
    assert sum(limits.values()) <= 470
    used = [line for line in SCRIPT.read_text().splitlines() if line.strip().startswith("part ")]
    assert all(any(f'"${name}"' in line for line in used) for name in limits)
    assert len(used) == len(PARTS)


def test_the_model_with_targets_is_measured_first(check):
    done, _ = check("nothing-fails")
    assert "--device cuda --models gpt2-small pocket" in done.stdout
    assert "--targets --device cuda --name nvidia-h100-80gb-hbm3" in done.stdout
