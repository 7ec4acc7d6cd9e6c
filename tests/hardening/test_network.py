"""The main job talks to nobody: every socket is blocked while a model is loaded, measured, judged, certified and reported."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.commandline import ROOT, SMALL, command

BLOCKED = ("connect", "connect_ex", "sendto", "bind")


@pytest.fixture
def asked() -> Any:
    """What was asked of the network, all of which is refused."""
    found: list[str] = []

    def refuse(name: str) -> Any:
        def refused(*arguments: Any, **named: Any) -> None:
            found.append(f"{name} {arguments[1:] or arguments}")
            raise OSError(f"{name} is blocked")

        return refused

    class Blocked(socket.socket):
        pass

    for name in BLOCKED:
        setattr(Blocked, name, refuse(name))
    with (
        mock.patch.object(socket, "socket", Blocked),
        mock.patch.object(socket, "create_connection", refuse("create_connection")),
        mock.patch.object(socket, "getaddrinfo", refuse("getaddrinfo")),
    ):
        yield found


def test_what_is_blocked_is_noticed(asked) -> None:
    with pytest.raises(OSError, match="connect is blocked"), socket.socket() as one:
        one.connect(("127.0.0.1", 1))
    with pytest.raises(OSError, match="getaddrinfo is blocked"):
        socket.getaddrinfo("localhost", 80)
    assert [one.partition(" ")[0] for one in asked] == ["connect", "getaddrinfo"]


@pytest.mark.slow
def test_no_socket_is_opened_by_the_main_job(results, tmp_path, asked, monkeypatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    place = shutil.copytree(results, tmp_path / "results")
    (folder,) = (path.parent for path in place.rglob("certificate.json"))
    for name in ("01_baseline.json", "21_knockouts.json", "certificate.json", "report.html"):
        (folder / name).unlink()
    outcome = command(*SMALL, "calibration=all", f"results={place}")
    assert (outcome.code, outcome.errors) == (0, "") and (folder / "report.html").is_file()
    assert asked == []


def test_the_workflow_asks_for_known_weaknesses_of_the_lock() -> None:
    text = Path(ROOT / ".github" / "workflows" / "tests.yml").read_text()
    assert "pip_audit --requirement constraints.txt" in text and "cron:" in text
