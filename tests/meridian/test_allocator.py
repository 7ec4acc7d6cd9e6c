"""Freed memory: large blocks go back to the system at once, small ones when they are asked back."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

from meridian import allocator
from tests.commandline import ROOT

GLIBC = platform.libc_ver()[0] == "glibc" and sys.platform == "linux"
SCRIPT = """
import json, sys
from meridian import allocator

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20

def freed(size, count):
    kept, blocks = [], []
    for _ in range(count):  # a small block between two large ones, so that freed ones do not form one piece at the end
        blocks.append(bytearray(b"x") * size)
        kept.append(bytearray(b"x") * 100_000)
    held = resident()
    del blocks
    return kept, held

allocator.keep_small_blocks()
before = resident()
found = {}
for name, size, count in (("large", 12 << 20, 30), ("small", 4 << 20, 90)):
    kept, held = freed(size, count)
    left = resident()
    allocator.give_back()
    found[name] = [held - before, left - before, resident() - before]
print(json.dumps(found))
"""


@pytest.mark.skipif(not GLIBC, reason="only glibc has these settings")
def test_what_is_kept_and_what_goes_back() -> None:
    """360 MiB each, in MiB: while in use, after they were freed, after they were asked back."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    used, left, end = found["large"]
    assert used > 330 and left < 30 and end < 30
    used, left, end = found["small"]
    assert used > 330 and left > 300 and end < 30


def test_memory_is_asked_back_before_each_bar(monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(allocator, "give_back", lambda: calls.append("asked back"))

    def progress(title: str):
        calls.append(title)
        return title

    shown = allocator.before_each(progress)
    assert [shown("01 baseline"), shown("02 patching")] == ["01 baseline", "02 patching"]
    assert calls == ["asked back", "01 baseline", "asked back", "02 patching"]


@pytest.mark.parametrize("absent", [AttributeError("mallopt"), OSError("no C library")])
def test_another_system_has_no_such_settings(absent, monkeypatch) -> None:
    def library(name: object) -> None:
        raise absent

    monkeypatch.setattr(allocator.ctypes, "CDLL", library)
    assert allocator.keep_small_blocks() is None and allocator.give_back() is None
