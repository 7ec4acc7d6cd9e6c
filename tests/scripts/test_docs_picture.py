"""The README's pictures: made from a report in Chromium, small, and those that pages show."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from results_io import UserError
from scripts.docs import picture

ROOT = Path(__file__).resolve().parents[2]
REPORT = """<!DOCTYPE html><html><style>div { height: 900px } body { margin: 0 }</style>
<div style="background: red"></div>
<div id="circuit" style="background: lime"></div><div id="heads" style="background: blue"></div>
<script>setTimeout(() => { document.documentElement.dataset.ready = "yes" }, 300)</script></html>"""


def test_every_picture_is_kept_and_small_and_no_other():
    image = pytest.importorskip("PIL.Image")
    kept = sorted(path.name for path in picture.FOLDER.glob("*.webp"))
    assert kept == sorted(picture.PICTURES)
    for name in kept:
        assert (picture.FOLDER / name).stat().st_size < 300_000
        assert image.open(picture.FOLDER / name).size == (picture.WIDTH, picture.HEIGHT)


def test_every_picture_is_shown_by_the_readme_or_the_quick_start():
    shown = re.findall(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    shown += [
        f"docs/{name}" for name in re.findall(r"!\[[^]]+\]\(([^)]+)\)", (ROOT / "docs" / "quick-start.md").read_text())
    ]
    assert {Path(name).name for name in shown} == set(picture.PICTURES)
    assert all((ROOT / name).is_file() for name in shown)


def test_without_a_report_there_is_no_picture(tmp_path):
    with pytest.raises(UserError, match="name the folder of a finished run"):
        picture.take(tmp_path / "report.html", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_without_a_browser_it_says_so(tmp_path, monkeypatch):
    (tmp_path / "report.html").write_text(REPORT)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UserError, match="install both"):
        picture.take(tmp_path / "report.html", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromedriver"), reason="no Chromium with its driver is installed")
def test_each_place_of_the_report_is_the_picture_of_its_name(tmp_path):
    """Red, green and blue screens, once the page says that it is ready."""
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "report.html").write_text(REPORT)
    written = picture.take(tmp_path / "report.html", tmp_path)
    middle = [image.open(path).convert("RGB").getpixel((720, 450)) for path in written]
    assert [max(range(3), key=pixel.__getitem__) for pixel in middle] == [0, 1, 2]
