"""A real browser for tests: Chromium without a window, driven by selenium; of itself it asks nothing of the network."""

from __future__ import annotations

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
def browser(size: tuple[int, int] = WIDE, *, dark: bool = False) -> Iterator[Any]:
    """A selenium driver of a browser with a profile of its own.

    Args:
        size: width and height of the page, in pixels.
        dark: whether the user prefers dark colours.
    """
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
            metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            yield driver
        finally:
            driver.quit()
