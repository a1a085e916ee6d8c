"""A real browser for tests: Chromium without a window, driven by selenium; of itself it asks nothing of the network."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

needs_chromium = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no Chromium, or no chromedriver, is installed")

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
)

WIDE, PHONE = (1280, 900), (390, 844)
"""Pixels of a window, and of a phone."""


@contextmanager
def browser() -> Iterator[Any]:
    """A selenium driver of a browser with a profile of its own."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    assert CHROMIUM is not None
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for argument in (*QUIET, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = Chrome(options, ChromeService(DRIVER))
        try:
            yield driver
        finally:
            driver.quit()


def look(driver: Any, address: str, size: tuple[int, int] = WIDE, *, dark: bool = False) -> None:
    """Open a page; the logs begin with it.

    Args:
        driver: the browser.
        address: of the page.
        size: width and height of the page, in pixels.
        dark: whether the user prefers dark colours.
    """
    driver.get("about:blank")
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    for log in ("browser", "performance"):
        driver.get_log(log)
    driver.get(address)


def requests(driver: Any) -> list[str]:
    """The addresses that the page has asked for since it was opened, from the network."""
    events = [json.loads(one["message"])["message"] for one in driver.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    return [one for one in asked if one.startswith(("http", "ws"))]
