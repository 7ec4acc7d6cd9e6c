"""The weekly workflow runs every slow test: its machines together have every folder of tests."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_the_machines_of_the_slow_tests_share_all_of_them() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    slow = workflow["jobs"]["slow"]
    assert workflow[True]["schedule"] and slow["if"] == "github.event_name == 'schedule'"  # `on` is read as true
    assert slow["steps"][-1]["run"] == 'make test-slow TESTS="${{ matrix.tests }}"'
    asked = [path for tests in slow["strategy"]["matrix"]["tests"] for path in tests.split()]
    found = [
        path
        for one in asked
        for place in ROOT.glob(one)
        for path in (place.rglob("test_*.py"), [place])[place.is_file()]
    ]
    assert sorted(found) == sorted((ROOT / "tests").rglob("test_*.py"))
