"""The page of a running collection in a real browser."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from reap.collectors.stats import Meter, Place
from reap.display.counts import Count
from reap.display.page import feed
from reap.display.page.server import Page
from reap.recording.trajectories import Episode
from tests.browser import PHONE, WIDE, browser, look, needs_chromium, requests
from tests.warm import Program

pytestmark = [needs_chromium, pytest.mark.processes]

FIGURES = ["Return", "Frames per second", "Length of episodes", "Where the time goes"]
SECONDS_TO_WAIT = 100


class Run:
    """A meter with two workers, one of them joining and restarted, and its page.

    Args:
        monkeypatch: makes the readings frequent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(feed, "SECONDS_BETWEEN_READINGS", 0.02)
        self.meter = Meter(2)
        self.meter.place_of = [Place("a", "", 0, 0.0), Place("b", "", 0, 0.0, is_joining=True)].__getitem__
        self.meter.restart(1)
        self.page = Page(Count(self.meter, 4000), "PPO <b>on</b> CartPole", None, 0)
        self.address = self.page.__enter__()

    def work(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.meter.enter()
            self.meter.add(1000, [Episode(7.0, 10), Episode(9.0, 30)], 1e-6, 1e-6)
            self.meter.leave()

    def end(self) -> None:
        self.page.__exit__()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    run = Run(monkeypatch)
    yield run
    run.end()
    assert "reap-page" not in {thread.name for thread in threading.enumerate()}


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as driver:
        yield driver


@pytest.fixture(autouse=True)
def _nothing_left_running() -> None:
    """The browser starts and ends processes as it sees fit; it ends with the last test of this file."""


def wait_for(driver: Any, script: str, expected: Any) -> None:
    """Until a script returns a value."""
    from selenium.webdriver.support.ui import WebDriverWait

    found: list[Any] = []
    try:
        WebDriverWait(driver, SECONDS_TO_WAIT, 0.02).until(
            lambda shown: found.append(shown.execute_script(f"return {script}")) or found[-1] == expected
        )
    except Exception as error:
        raise AssertionError(f"{script}: expected {expected!r}, found {found[-1:]}") from error


def text(selector: str) -> str:
    return f"document.querySelector({selector!r}).textContent"


def test_shows_what_is_collected_and_that_it_has_ended(driver: Any, run: Run) -> None:
    look(driver, run.address)
    wait_for(driver, text("#state"), "running")
    assert driver.title == "PPO <b>on</b> CartPole · reap"
    assert driver.execute_script(f"return {text('h1')}") == "PPO <b>on</b> CartPole"
    run.work(3)
    wait_for(driver, "now.frames", 3000)
    assert driver.execute_script(f"return {text('#progress')}").startswith("3,000 of 4,000 (75%) frames · ")
    tiles = driver.execute_script(
        "return [...document.querySelectorAll('#tiles div')].map((one) => one.innerText.split('\\n'))"
    )
    assert tiles[1:] == [
        ["Return", "8", "7 to 9"],
        ["Length", "20", "10 to 30"],
        ["Episodes", "6"],
        ["Batches", "0", "staleness 0"],
        ["Mended workers", "1"],
    ]
    headings = "[...document.querySelectorAll('figure:not([hidden]) h2')].map((one) => one.firstChild.textContent.trim())"
    assert driver.execute_script(f"return {headings}") == FIGURES, "there is no buffer"
    assert driver.execute_script(f"return {text('#workers small')}") == "1 up, 1 joining, 1 restarted"
    rows = driver.execute_script("return [...document.querySelectorAll('tbody tr')].map((one) => one.innerText.split('\\t'))")
    assert [(row[:4], row[-1]) for row in rows] == [(["0", "up", "a", "3,000"], "0"), (["1", "joining", "b", "0"], "1")]
    run.work()
    run.end()
    wait_for(driver, text("#state"), "ended")
    wait_for(driver, "now.frames", 4000)
    assert driver.get_log("browser") == []


SERVED = """
import signal
from reap.collectors.stats import Meter
from reap.display.counts import Count
from reap.display.page.server import Page

print(Page(Count(Meter(1), 4000), "run", None, 0).__enter__(), flush=True)
signal.pause()
"""


def test_a_server_that_is_gone_is_told(driver: Any) -> None:
    with Program(SERVED) as program:
        look(driver, program.stdout.readline().strip())
        wait_for(driver, text("#state"), "running")
        program.send_signal(signal.SIGKILL)
        wait_for(driver, "document.querySelector('#state').className", "lost")


def test_asks_nobody_else(driver: Any, run: Run) -> None:
    look(driver, run.address)
    wait_for(driver, text("#state"), "running")
    origin = "{0.scheme}://{0.netloc}/".format(urlsplit(run.address))
    ours = [one.removeprefix(origin).partition("?")[0] for one in requests(driver)]
    assert ours == ["", "events"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [WIDE, PHONE])
def test_fits_every_screen_in_both_modes(driver: Any, run: Run, size: tuple[int, int], dark: bool) -> None:
    run.work(2)
    look(driver, run.address, size, dark=dark)
    wait_for(driver, text("#state"), "running")
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    columns = driver.execute_script("return getComputedStyle(document.querySelector('#charts')).gridTemplateColumns")
    assert len(columns.split()) == (2 if size == WIDE else 1)
    back = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(17, 21, 27)" if dark else "rgb(246, 247, 249)")


CONTRASTS = """
const lightness = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((value) => value / 255)
    .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (one) => {
  for (; one; one = one.parentElement) {
    const colour = getComputedStyle(one).backgroundColor;
    if (!colour.startsWith("rgba(0, 0, 0, 0")) return colour;
  }
};
return [...document.querySelectorAll("h1, h2, small, p, dt, dd, td, th, span, svg text")]
  .filter((one) => one.textContent && one.getClientRects().length)
  .map((one) => {
    const style = getComputedStyle(one), back = lightness(ground(one));
    const front = lightness(one instanceof SVGElement ? style.fill : style.color);
    return [(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), one.textContent];
  }).filter(([contrast]) => contrast < 4.5);
"""


@pytest.mark.parametrize("dark", [False, True])
def test_is_readable_for_all(driver: Any, run: Run, dark: bool) -> None:
    """Contrast of 4.5 as WCAG AA asks, names for pictures and for what scrolls, one heading of the page, a language."""
    run.work(2)
    look(driver, run.address, dark=dark)
    wait_for(driver, text("#state"), "running")
    assert driver.execute_script(CONTRASTS) == []
    labels = driver.execute_script(
        "return [...document.querySelectorAll('figure:not([hidden]) svg')].map((one) => one.ariaLabel)"
    )
    assert labels[0] == "Return, mean of the last 100 episodes, from lowest to highest: 8 (7 to 9)"
    assert [label.partition(",")[0] for label in labels] == FIGURES
    assert driver.execute_script("return document.querySelector('#bar').ariaValueNow") == "50"
    assert driver.execute_script("return [document.querySelectorAll('h1').length, document.documentElement.lang]") == [
        1,
        "en",
    ]


def test_the_values_under_the_pointer_are_told(driver: Any, run: Run) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    run.work(2)
    look(driver, run.address)
    wait_for(driver, "points.length > 2", True)
    chart = driver.find_element(By.CSS_SELECTOR, "figure svg")
    ActionChains(driver).move_to_element_with_offset(chart, -chart.size["width"] // 2 + 47, 0).perform()
    wait_for(driver, text("figure .legend"), "at 0:00no episode has ended yet")
    ActionChains(driver).move_to_element(driver.find_element(By.CSS_SELECTOR, "h1")).perform()
    wait_for(driver, text("figure .legend"), "8 (7 to 9)")
