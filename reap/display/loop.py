"""`progress`: a live view of a collector while the loop over its batches runs.

    for batch in progress(collector):
        ...

On a terminal a panel of three lines is redrawn in place; elsewhere (a log file, CI) plain lines are printed. Drawing
happens between two batches, in the caller's thread. A page in the browser is served by a thread, which lives as long as the
loop; without a page nothing runs in the background.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from time import perf_counter
from typing import Any
from weakref import finalize, ref

import rich
from rich.console import Console
from rich.text import Text

from reap.collectors.base import DataCollectorBase
from reap.display.console import Display, Lines, Panel
from reap.display.counts import Count
from reap.errors import OptionError, shown
from reap.optional import load

SECONDS_BETWEEN_LINES = 10.0
"""Seconds between two lines if the output is not a terminal."""

PAGE_WINDOW = 5
"""Number of readings, one per second, over which the page measures the rate."""

MOST_PORT = 65535


def progress(
    collector: DataCollectorBase,
    *,
    total: int | None = None,
    title: str | None = None,
    console: Console | None = None,
    refresh_per_second: float = 5.0,
    page: bool | int = False,
) -> Iterator[Any]:
    """The batches of a collector, with a live view of it: frames, rate, finished episodes, where the time goes.

    The view ends with the loop, whether at the last batch, by `break`, an exception or Ctrl-C, or with the interpreter. It does
    not affect the values that you read with `collector.stats()`.

    Args:
        collector: any collector.
        total: frames at which the bar is full; by default `collector.total_frames`, in whole batches.
        title: name of the run; by default that of the collector's class.
        console: where to draw; by default rich's, which writes to the standard output.
        refresh_per_second: maximum number of times per second that the view is redrawn. If the output is not a terminal, a line
            is printed every 10 seconds instead, and at the end.
        page: whether there is also a page for the browser, with charts, and on which port: `True` takes a free port. The page
            is served on 127.0.0.1 only; its address, which is printed, contains a token without which nothing is shown. It
            needs `pip install "reap[page]"`.

    Returns:
        An iterator over the collector's batches.

    Raises:
        OptionError: not a collector, `total` or `refresh_per_second` is not positive, or `page` is neither a bool nor a free
            port from 1 to 65535.
        ImportError: a page is wanted, and its packages are not installed.

    Example:
        >>> from reap.collectors import SyncDataCollector
        >>> collector = SyncDataCollector("CartPole-v1", frames_per_batch=20, total_frames=100)
        >>> sum(batch.numel() for batch in progress(collector, title="demo"))
        demo: 100/100 frames (100%), ... frames/s, ...
        100
    """
    meter = getattr(collector, "_meter", None)
    if meter is None:
        raise OptionError(f"progress: expected a collector, got {shown(collector):.100}")
    if refresh_per_second <= 0:
        raise OptionError(f"refresh_per_second: expected a positive number, got {refresh_per_second!r}")
    if total is not None and total <= 0:
        raise OptionError(f"total: expected a positive number of frames, or None for the collector's; got {total!r}")
    console, title = console or rich.get_console(), title or type(collector).__name__
    is_live = console.is_terminal and not console.is_dumb_terminal
    interval = 1.0 / refresh_per_second if is_live else SECONDS_BETWEEN_LINES
    total = _whole_batches(collector) if total is None else total
    display = (Panel if is_live else Lines)(Count(meter, total), title, console)
    batches = _watch(collector, display, interval, _page(page, collector, Count(meter, total, PAGE_WINDOW), title), console)
    finalize(batches, _end, ref(batches))
    return batches


def _whole_batches(collector: DataCollectorBase) -> int | None:
    frames, batch = collector.total_frames, collector.frames_per_batch
    return None if frames < 0 else -(-frames // batch) * batch


def _page(page: Any, collector: DataCollectorBase, count: Count, title: str) -> AbstractContextManager[str]:
    """A context in which the page is served, and which gives its address; an empty address if no page is wanted."""
    if page is False:
        return nullcontext("")
    if not isinstance(page, int) or not (page is True or 1 <= page <= MOST_PORT):
        raise OptionError(f"page: expected True, False or a port from 1 to {MOST_PORT}, got {page!r}")
    for package in ("starlette", "uvicorn"):
        load(package, "progress(page=...)")
    buffer = collector._options.replay_buffer  # pyright: ignore[reportPrivateUsage]
    return load("reap.display.page.server").Page(count, title, buffer, 0 if page is True else page)


def _watch(
    collector: DataCollectorBase, display: Display, interval: float, page: AbstractContextManager[str], console: Console
) -> Generator[Any]:
    with page as address:
        if address:
            console.print(Text(f"Page: {address}"), soft_wrap=True)
        try:
            display.begin()
            due = perf_counter() + interval
            for batch in collector:
                now = perf_counter()
                if now >= due:
                    display.show()
                    due = now + interval
                yield batch
        finally:
            display.end()


def _end(batches: ref[Generator[Any]]) -> None:
    """End an unfinished view at the exit of the interpreter: once its modules are gone, nothing can be drawn."""
    if (unfinished := batches()) is not None:
        with suppress(ValueError):  # another thread is in it
            unfinished.close()
