"""The documentation as a site: its pictures are those that its programs draw, and a browser shows it without the network.

`make check` builds it with warnings as errors: pages that are in no menu, and links and anchors that lead nowhere.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import reap
from tests.browser import PHONE, WIDE, browser, look, needs_chromium, requests

ROOT = Path(__file__).parent.parent

SHOWN = [
    "index",
    "quickstart",
    "basics",
    "choosing",
    "trajectories",
    "options",
    "page",
    "api/reap.collectors",
    "examples/ppo.py",
]


def program(name: str) -> ModuleType:
    """A program of `docs/site/`."""
    spec = importlib.util.spec_from_file_location(f"docs_site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_those_that_are_drawn() -> None:
    """`python docs/site/pictures.py` writes them."""
    drawn = program("pictures").pictures()
    assert {name: (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") for name in drawn} == drawn
    page = (ROOT / "docs" / "trajectories.md").read_text(encoding="utf-8")
    assert not [name for name in drawn if f"(images/{name})" not in page]


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == reap.__version__
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site."""
    folder = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**environment, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as driver:
        yield driver


@pytest.mark.processes
@pytest.mark.timeout(300)
@needs_chromium
class TestInABrowser:
    @pytest.fixture(autouse=True)
    def _nothing_left_running(self) -> None:
        """The browser starts and ends processes as it sees fit; it ends with the last test of this class."""

    @pytest.mark.parametrize("size", [WIDE, PHONE])
    def test_pages_fit_and_load_nothing_from_elsewhere(self, site: str, driver: Any, size: tuple[int, int]) -> None:
        for page in SHOWN:
            look(driver, f"{site}/{page}.html", size)
            assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth"), page
            assert not [address for address in requests(driver) if not address.startswith(site)], page
            assert driver.get_log("browser") == [], page
            broken = "return [...document.images].filter((one) => !one.naturalWidth).map((one) => one.src)"
            assert driver.execute_script(broken) == [], page

    def test_search_finds_a_public_name(self, site: str, driver: Any) -> None:
        from selenium.webdriver.common.by import By
        from selenium.webdriver.support.ui import WebDriverWait

        look(driver, f"{site}/index.html")
        driver.find_element(By.CSS_SELECTOR, "input.md-search__input").send_keys("split_trajectories")
        found = WebDriverWait(driver, 100).until(lambda shown: shown.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
        assert any("trajectories.html" in one.get_attribute("href") for one in found)
