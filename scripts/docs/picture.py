"""`python -m scripts.docs.picture results/pocket/ioi`: pictures of a finished run's report, for the README and the docs.

It needs Chromium with its driver on the path, and the packages of `pip install -e '.[dev]'`.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from pathlib import Path

import results_io
from results_io import UserError
from scripts.docs import source

FOLDER = source.ROOT / "docs" / "_static"
PICTURES = {
    "report.webp": "",
    "report-circuit.webp": "circuit",
    "report-heads.webp": "heads",
}  # with its place in the report
WIDTH, HEIGHT = 1440, 900  # of the window, in CSS pixels
QUALITY = 80  # of WebP; letters stay sharp
DRAWN_SECONDS = 60  # the longest wait for a report to draw itself
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRAW = """
const [place, done] = arguments;
const shown = () => document.documentElement.dataset.ready === "yes" ? (scroll(), setTimeout(done, 1500)) : setTimeout(shown, 50);
const scroll = () => place && document.getElementById(place).scrollIntoView({behavior: "instant"});
shown();
"""  # figures are drawn when they come near the window


def take(report: Path, folder: Path = FOLDER) -> list[Path]:
    """Write PICTURES of `report`, an HTML file, into `folder`. UserError if the file or a browser is missing."""
    if not report.is_file():
        raise UserError(f"{report} is no file; name the folder of a finished run, such as results/pocket/ioi")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        raise UserError("Chromium or its chromedriver is not on the path; install both")
    written = []
    for name, shot in zip(PICTURES, _screens(report, browser, driver), strict=True):
        results_io.write_bytes(folder / name, _webp(shot))
        written.append(folder / name)
    return written


def _screens(report: Path, browser: str, driver: str) -> list[bytes]:
    """PNG of the window at each place, once the report says that it is ready."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    window = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
    page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        page.set_script_timeout(DRAWN_SECONDS)
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
        page.get(report.resolve().as_uri())
        shots = []
        for place in PICTURES.values():
            page.execute_async_script(DRAW, place)
            shots.append(page.get_screenshot_as_png())
        return shots
    finally:
        page.quit()


def _webp(png: bytes) -> bytes:
    from PIL import Image

    target = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(target, "WEBP", quality=QUALITY, method=6)
    return target.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.docs.picture", description=__doc__)
    parser.add_argument("results", type=Path, help="folder of a finished run")
    try:
        print(*take(parser.parse_args().results / "report.html"), sep="\n")
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
