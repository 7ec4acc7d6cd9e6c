"""A page in headless Chromium: opened in a window of a given size, waited for, and measured."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NEEDS_CHROMIUM = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium with its driver is installed"),
]
DESKTOP, PHONE = (1440, 900), (390, 844)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
OVERLAPS = """
const texts = [...document.querySelectorAll(arguments[0])].filter(e => e.textContent.trim() && e.getClientRects().length)
  .map(e => [e.textContent.trim(), e.getBoundingClientRect()]);
const bad = [];
for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
  const [a, p] = texts[i], [b, q] = texts[j];
  const x = Math.min(p.right, q.right) - Math.max(p.left, q.left), y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
  if (x > 2 && y > 3) bad.push([a, b]);
}
return bad;
"""


def chromium() -> Iterator[Any]:
    """A browser that logs its console and what it asks the network for, until it is not needed."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def show(browser: Any, path: Path, size: tuple[int, int], fragment: str = "") -> None:
    """Open the report in a window of `size` and wait until the library is unpacked."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get("about:blank")  # a page that differs in its fragment alone would not be loaded again
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what earlier pages said
    browser.get(path.as_uri() + fragment)
    wait(lambda: browser.execute_script("return document.documentElement.dataset.ready") == "yes", "the library")


def wait(done: Any, what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what} was not there after {seconds} s"
        time.sleep(0.05)


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast of two CSS colours."""
    lights = sorted(map(luminance, (first, second)))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def luminance(colour: str) -> float:
    channels = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def mixed(colour: str, ground: str, opacity: float) -> str:
    """A CSS colour as it appears on a ground with this opacity."""
    own, below = ([int(part) for part in re.findall(r"\d+", one)[:3]] for one in (colour, ground))
    return f"rgb({', '.join(str(round(opacity * a + (1 - opacity) * b)) for a, b in zip(own, below, strict=True))})"
