"""The page of a running collection over HTTP: who gets an answer, what it is, and when it ends."""

from __future__ import annotations

import http.client
import importlib
import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Iterator
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from reap import LazyTensorStorage, ReplayBuffer, SyncDataCollector, progress
from reap.collectors.stats import Meter
from reap.display.counts import Count
from reap.display.page import feed
from reap.display.page.app import document
from reap.display.page.server import Page
from reap.errors import OptionError
from tests.pairwise import each_value

NAME = re.compile(r"^Page: (http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32}))$", re.MULTILINE)


@pytest.fixture(autouse=True)
def read_only_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of the start until the loop ends, however long a test takes."""
    monkeypatch.setattr(feed, "SECONDS_BETWEEN_READINGS", 3600.0)


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a page of a collector that has done nothing."""
    with Page(Count(Meter(), 400), "run", None, 0) as address:
        yield address


def ask(
    address: str, path: str = "", *, query: str | None = None, host: str | None = None, method: str = "GET"
) -> tuple[http.client.HTTPResponse, str]:
    """The answer of the server at an address: its head, and its text."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=100)
    try:
        query = parts.query if query is None else query
        connection.request(method, f"/{path}?{query}", headers={"Host": host or parts.netloc})
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()


class Run:
    """A short collection with a page.

    Args:
        page: the option.
        batches: batches of 50 frames.
    """

    def __init__(self, page: bool | int = True, batches: int = 4, **options: Any) -> None:
        self.output = StringIO()
        self.collector = SyncDataCollector("CartPole-v1", frames_per_batch=50, total_frames=50 * batches, **options)
        console = Console(file=self.output, width=40)  # the address is longer than a line
        self.batches = progress(self.collector, title="run", console=console, page=page)

    def take(self) -> Iterator[Any]:
        """The batches; only the loop over them holds them then."""
        return vars(self).pop("batches")

    @property
    def address(self) -> str:
        found = NAME.search(self.output.getvalue())
        assert found is not None, self.output.getvalue()
        return found[1]


def events(address: str) -> Iterator[Any]:
    """What an open page is told."""
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=100)
    connection.request("GET", f"/events?{parts.query}")
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    while line := response.readline():
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))
    connection.close()


def is_served(address: str) -> bool:
    try:
        ask(address)
    except ConnectionError:
        return False
    return True


# What is answered


def test_data_is_exact(address: str) -> None:
    nothing = {"mean": None, "min": None, "max": None}
    response, text = ask(address, "data")
    told = json.loads(text)
    seconds = told["now"].pop("seconds")
    assert told == {
        "now": {
            "title": "run",
            "ended": False,
            "frames": 0,
            "total": 400,
            "frames_per_second": 0.0,
            "batches": 0,
            "episodes": 0,
            "recent_episodes": 0,
            "return": nothing,
            "length": nothing,
            "time": {"env": 0.0, "policy": 0.0, "training": 0.0},
            "staleness": 0,
            "discarded_frames": 0,
            "restarts": 0,
            "out_of_bounds": {},
            "workers": [],
            "buffer": None,
        },
        "from": 0,
        "points": [[seconds, *[None] * 11]],
    }
    assert response.headers["Content-Type"] == "application/json"


def test_the_page_is_one_document_that_loads_nothing(address: str) -> None:
    response, text = ask(address)
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert re.findall(r"https?://[^\s\"'`]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.findall(r"\bsrc=|@import|url\(", text)
    assert urlsplit(address).query.removeprefix("token=") not in text
    assert "/* script */" not in text


def test_headers_keep_the_address_secret_and_foreign_code_out(address: str) -> None:
    for path, query in (("", None), ("data", None), ("", "")):
        headers = ask(address, path, query=query)[0].headers
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Content-Security-Policy"] == document()[1]
        assert "Access-Control-Allow-Origin" not in headers
    assert "unsafe" not in document()[1]
    assert document()[1].startswith("default-src 'none'; script-src 'sha256-")


# Who is answered


@pytest.mark.parametrize(
    ("query", "path"),
    each_value(
        product(
            ["", "token=", "token=wrong", "token=%C3%A9", "tokens=a", "token=wrong&token="],
            ["", "data", "events", "nothing", "docs"],
        )
    ),
)
def test_without_the_token_there_is_nothing(address: str, path: str, query: str) -> None:
    response, text = ask(address, path, query=query)
    assert response.status == 403
    assert text.startswith("This page needs the token in its address: ")


def test_a_token_is_compared_as_a_whole(address: str) -> None:
    query = urlsplit(address).query
    for wrong in (query[:-1], query + "A", query.swapcase().replace("TOKEN", "token")):
        assert ask(address, "data", query=wrong)[0].status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "169.254.169.254", "[::1]:80"])
def test_a_name_that_was_made_to_lead_here_is_refused(address: str, host: str) -> None:
    response, text = ask(address, "data", host=host)
    assert (response.status, text) == (400, "Invalid host header")


def test_the_names_of_this_machine_are_accepted(address: str) -> None:
    port = urlsplit(address).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "localhost:9999"):  # the last: a port that ssh -L leads here
        assert ask(address, "data", host=host)[0].status == 200


@pytest.mark.parametrize(("method", "status"), [("POST", 405), ("PUT", 405), ("DELETE", 405), ("OPTIONS", 405), ("HEAD", 200)])
def test_the_page_is_read_only(address: str, method: str, status: int) -> None:
    assert ask(address, "data", method=method)[0].status == status


def test_only_this_address_is_listened_to(address: str) -> None:
    port = urlsplit(address).port
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=100)


def test_each_run_has_a_token_of_its_own() -> None:
    with Page(Count(Meter(), None), "a", None, 0) as first, Page(Count(Meter(), None), "b", None, 0) as second:
        assert json.loads(ask(first, "data")[1])["now"]["title"] == "a"
        assert ask(first, "data", query=urlsplit(second).query)[0].status == 403


def test_the_token_is_in_no_log(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    run = Run()
    for _ in run.batches:
        ask(run.address, "data")
        ask(run.address, "nothing")
        ask(run.address, "data", host="evil.example")
    token = urlsplit(run.address).query.removeprefix("token=")
    assert caplog.records, "the server logs its start"
    assert token not in caplog.text
    assert token not in "".join(capfd.readouterr())


# With a collector


def test_progress_prints_the_address_and_serves_it() -> None:
    run = Run(replay_buffer=ReplayBuffer(storage=LazyTensorStorage(500)))
    for _ in run.batches:
        told = json.loads(ask(run.address, "data")[1])
        assert told["now"]["total"] == 200
        assert told["now"]["buffer"] == {"items": 0, "capacity": 500}
    assert not is_served(run.address)


def test_the_last_event_has_the_last_numbers() -> None:
    run = Run(replay_buffer=ReplayBuffer(storage=LazyTensorStorage(500)))
    next(run.batches)
    told = events(run.address)
    assert next(told)["now"]["ended"] is False
    assert sum(1 for _ in run.batches) == 3
    (last,) = told
    assert (last["now"]["ended"], last["now"]["frames"], last["now"]["buffer"]["items"]) == (True, 200, 200)
    assert len(last["points"]) == 1


def test_two_pages_at_once_are_both_told() -> None:
    run = Run()
    next(run.batches)
    first, second = events(run.address), events(run.address)
    assert next(first) == next(second)
    list(run.batches)
    assert [one["now"]["frames"] for one in (*first, *second)] == [200, 200]


def test_the_page_does_not_affect_stats() -> None:
    run, found = Run(batches=20), 0
    for _ in run.batches:
        found += len(run.collector.stats().episodes)
    assert found == run.collector.stats().finished_episodes > 0


# How it ends


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("reap-page")]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_loop_ends_the_page(error: type[BaseException]) -> None:
    run = Run()

    def loop() -> None:
        for _ in run.take():
            raise error

    with pytest.raises(error):
        loop()
    assert not is_served(run.address)
    assert threads() == []


def test_break_ends_the_page() -> None:
    run = Run()
    for _ in run.take():
        assert threads() == ["reap-page"]
        break
    assert not is_served(run.address)
    assert threads() == []


def test_a_page_that_reads_nothing_does_not_hold_up_the_end() -> None:
    run = Run()
    next(run.batches)
    parts = urlsplit(run.address)
    with socket.create_connection(("127.0.0.1", parts.port), timeout=100) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        silent.sendall(f"GET /events?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        list(run.batches)
        assert threads() == []


class Unreadable(ReplayBuffer):
    """A buffer whose numbers cannot be read once that is said."""

    fails = False

    @property
    def storage(self) -> Any:
        if self.fails:
            raise RuntimeError("the numbers cannot be read")
        return super().storage


def test_an_error_while_numbers_are_read_does_not_hold_up_the_end(caplog: pytest.LogCaptureFixture) -> None:
    buffer = Unreadable()
    run = Run(replay_buffer=buffer)
    next(run.batches)
    buffer.fails = True
    told = events(run.address)
    first = next(told)
    list(run.batches)
    assert [one["now"] for one in told] == [first["now"]]
    assert threads() == []
    assert "the numbers cannot be read" in caplog.text


# Ports and options


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_a_port_of_ones_own_and_again_after_the_loop() -> None:
    port = free_port()
    for _ in range(2):
        run = Run(page=port)
        list(run.batches)
        assert urlsplit(run.address).port == port


def test_a_port_that_is_taken_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            OptionError,
            match=rf"^page: port {port} of 127\.0\.0\.1 cannot be bound: Address already in use\. Name another one, or take a "
            r"free one with True$",
        ):
            Run(page=port)


def test_a_page_that_is_never_opened_gives_its_port_back() -> None:
    port = free_port()
    run = Run(page=port)
    del run
    with socket.create_server(("127.0.0.1", port)):
        pass


@pytest.mark.parametrize("page", [0, -1, 65536, "yes", 8080.0, None])
def test_values_that_are_no_port_are_refused(page: Any) -> None:
    with pytest.raises(OptionError, match=rf"^page: expected True, False or a port from 1 to 65535, got {page!r}$"):
        Run(page=page)


@pytest.mark.parametrize("package", ["starlette", "uvicorn"])
def test_a_missing_package_is_named_with_its_install_line(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    text = rf'{package} is not installed, and progress\(page=\.\.\.\) needs it\. Install it: pip install "reap\[page\]"'
    with pytest.raises(ImportError, match=text):
        Run()


def test_without_a_page_its_packages_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("starlette", "uvicorn"):
        monkeypatch.setitem(sys.modules, package, None)
    assert sum(1 for _ in Run(page=False).batches) == 4


def test_the_pages_files_are_in_the_package() -> None:
    folder = Path(importlib.import_module("reap.display.page").__file__ or "").parent
    assert {path.suffix for path in folder.glob("page.*")} == {".html", ".css", ".js"}
