"""Real containers for tests: of any image of Python that this machine has by its digest."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from suites.execution import sandbox


def found(settings: Mapping[str, Any]) -> sandbox.Sandbox:
    """The sandbox of such an image; skips the test where there is no docker daemon that lists one."""
    listed = shutil.which("docker") and subprocess.run(
        ["docker", "images", "--digests", "--format", "{{.Repository}}@{{.Digest}}"], capture_output=True, text=True
    )
    names = (listed.stdout if listed else "").split()
    image = next((name for name in names if sandbox.DIGEST.fullmatch(name) and "python" in name), None)
    if image is None:
        pytest.skip("no docker daemon with an image of Python")
    return sandbox.open_sandbox("docker", {**settings, "image": image})
