"""The page's server: a thread with an event loop of its own, for as long as the loop over the batches runs.

loop over batches                          server's thread
  enter: bind 127.0.0.1, start  ---------> serves; reads the meter once a second
  ...                                      ...
  leave: end --------------------------->  tells open pages the last numbers, closes
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from threading import Event, Thread
from typing import Any
from weakref import finalize

import uvicorn

from reap.display.counts import Count
from reap.display.page.app import application
from reap.display.page.feed import Feed
from reap.errors import OptionError

HOST = "127.0.0.1"

TOKEN_BYTES = 24

SECONDS_TO_CLOSE = 1
"""Seconds to wait for a page that does not read its data."""


class Page:
    """A page of a running collector, served while it is entered. Entering it gives its address.

    Args:
        count: provides the counts; used for nothing else.
        title: name of the run.
        buffer: the replay buffer that the collector fills, or None.
        port: where to serve; 0 takes a free one. It is bound immediately.

    Raises:
        OptionError: the port cannot be bound.
    """

    def __init__(self, count: Count, title: str, buffer: Any, port: int) -> None:
        self._count, self._title, self._buffer = count, title, buffer
        self._socket = _listening(port)
        finalize(self, self._socket.close)  # of a page that is never entered

    def __enter__(self) -> str:
        self._count.begin()
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._feed = Feed(self._count, self._title, self._buffer)
        config = uvicorn.Config(
            application(self._feed, token),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,  # the user's own, and no line for a request: it would hold the token
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=SECONDS_TO_CLOSE,
        )
        self._server = Server(config)
        self._thread = Thread(target=self._serve, name="reap-page", daemon=True)
        self._thread.start()
        self._server.is_up.wait()
        return f"http://{HOST}:{self._socket.getsockname()[1]}/?token={token}"

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._server.is_up.set()  # if it has failed, too: then the thread shows why
            self._socket.close()

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._server.loop.call_soon_threadsafe(self._end)
            self._thread.join()

    def _end(self) -> None:
        try:
            self._feed.end()
        finally:
            self._server.leave()


class Server(uvicorn.Server):
    """A server that reports when it is up, and its event loop, and that sleeps until there is a request.

    uvicorn's own wakes up ten times per second. Each time the loop over the batches hands over the interpreter's lock and waits
    until this thread has had a core, which takes milliseconds on a busy machine.

    Args:
        config: what to serve.

    Attributes:
        is_up: set once requests are answered.
        loop: its event loop.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up, self._leaving = Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start answering requests."""
        self.loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.is_up.set()

    async def main_loop(self) -> None:
        """Serve until asked to exit."""
        await self._leaving.wait()

    def leave(self) -> None:
        """Stop serving once all requests are answered."""
        self.should_exit = True
        self._leaving.set()


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise OptionError(
            f"page: port {port} of {HOST} cannot be bound: {error.strerror}. Name another one, or take a free one with True"
        ) from error
    return listener
