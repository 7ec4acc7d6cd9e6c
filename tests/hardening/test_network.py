"""The main job talks to nobody: a fresh process runs it, and what it asks of the network is refused and written down."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commandline import ROOT, SMALL

WATCHED = """
import sys, runpy
ASKS = ("connect", "getaddrinfo", "gethostbyname", "bind", "sendto", "sendmsg")
IPV6 = ("::1", 0)  # urllib3 binds it once, on this machine, to see whether there is IPv6
asked = open(sys.argv[1], "a", buffering=1)
def watch(event, arguments):
    if event in [f"socket.{one}" for one in ASKS] and IPV6 not in arguments:
        asked.write(f"{event} {[one for one in arguments if isinstance(one, (str, int, tuple))]}\\n")
        raise OSError(f"{event} is blocked")
sys.addaudithook(watch)
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def watched(tmp_path: Path, *line: str) -> tuple[int, str, str]:
    """(exit code, what was asked of the network, the error stream) of a fresh process; nothing tells it that it is offline."""
    asked = tmp_path / "asked"
    asked.touch()
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "WANDB_MODE")
    environment = {name: value for name, value in os.environ.items() if name not in offline}
    home = {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "hub"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(asked), *line],
        cwd=ROOT,
        env={**environment, **home},
        capture_output=True,
        text=True,
    )
    return done.returncode, asked.read_text(), done.stderr


def test_what_is_asked_of_the_network_is_noticed(tmp_path) -> None:
    script = tmp_path / "asks.py"
    script.write_text("import socket\nsocket.create_connection(('localhost', 1))\n")
    code, asked, errors = watched(tmp_path, str(script))
    assert code == 1 and asked.startswith("socket.getaddrinfo ['localhost', 1,") and "is blocked" in errors


@pytest.mark.slow
def test_the_main_job_asks_nothing_of_the_network(tmp_path) -> None:
    results = tmp_path / "results"
    code, asked, errors = watched(tmp_path, str(ROOT / "run.py"), *SMALL, "calibration=all", f"results={results}")
    assert (code, asked) == (0, ""), errors
    assert [path.name for path in results.rglob("report.html")] == ["report.html"]


def test_the_workflow_asks_for_known_weaknesses_of_the_lock() -> None:
    text = Path(ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert "pip_audit --requirement constraints.txt" in text and "cron:" in text
