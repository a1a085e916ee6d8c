"""`progress`: shows live what a collector does, while the loop over its batches runs.

    for batch in progress(collector):
        ...

On a terminal a panel of three lines is redrawn in place; elsewhere (a log file, CI) plain lines are printed. Drawing
happens between two batches, in the caller's thread: nothing runs in the background.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from math import isnan
from time import perf_counter
from typing import Any, TextIO

import rich
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reap.collectors.base import DataCollectorBase
from reap.errors import OptionError
from reap.stats import RECENT_EPISODES, CollectorStats, Meter

SECONDS_BETWEEN_LINES = 10.0
"""Where the output is no terminal."""

RATE_WINDOW = 30
"""Views over which the rate is measured: some seconds, so that a pause is forgotten."""

LABEL_COLUMNS = 8
BAR_COLUMNS = 36
SHARES = (("env", "cyan"), ("policy", "magenta"), ("training", "yellow"))
COLLECTED, RATE, NUMBER = "green", "bold", "bold"


def progress(
    collector: DataCollectorBase,
    *,
    total: int | None = None,
    title: str | None = None,
    console: Console | None = None,
    refresh_per_second: float = 5.0,
) -> Iterator[Any]:
    """The batches of a collector, with a live view of it: frames, rate, finished episodes, where the time goes.

    The view ends with the loop, however that ends: at the last batch, by `break`, an exception or Ctrl-C. What the user
    reads with `collector.stats()` is not touched.

    Args:
        collector: any collector.
        total: frames at which the bar is full; by default `collector.total_frames`, in whole batches.
        title: name of the run; by default that of the collector's class.
        console: where to draw; by default rich's, which writes to the standard output.
        refresh_per_second: times a second at which the view is redrawn, at most. Where the output is no terminal a line is
            printed every 10 seconds instead, and at the end.

    Returns:
        An iterator over what the collector delivers.

    Raises:
        OptionError: `total` or `refresh_per_second` is not positive.

    Example:
        >>> from reap.collectors import SyncDataCollector
        >>> collector = SyncDataCollector("CartPole-v1", frames_per_batch=20, total_frames=100)
        >>> sum(batch.numel() for batch in progress(collector, title="demo"))
        demo: 100/100 frames (100%), ... frames/s, ...
        100
    """
    if refresh_per_second <= 0:
        raise OptionError(f"refresh_per_second: expected a positive number, got {refresh_per_second!r}")
    if total is not None and total <= 0:
        raise OptionError(f"total: expected a positive number of frames, or None for the collector's; got {total!r}")
    meter = collector._meter  # pyright: ignore[reportPrivateUsage]
    view = View(title or type(collector).__name__, _whole_batches(collector) if total is None else total)
    console = console or rich.get_console()
    if console.is_terminal and not console.is_dumb_terminal:
        return _watch(collector, meter, LivePanel(view, console), 1.0 / refresh_per_second)
    return _watch(collector, meter, PlainLines(view, console), SECONDS_BETWEEN_LINES)


def _whole_batches(collector: DataCollectorBase) -> int | None:
    frames, batch = collector.total_frames, collector.frames_per_batch
    return None if frames < 0 else -(-frames // batch) * batch


def _watch(collector: DataCollectorBase, meter: Meter, display: Display, interval: float) -> Iterator[Any]:
    display.start(meter.peek(), perf_counter())
    try:
        due = perf_counter() + interval
        for batch in collector:
            yield batch
            now = perf_counter()
            if now >= due:
                display.show(meter.peek(), now)
                due = now + interval
    finally:
        display.stop(meter.peek(), perf_counter())


class View:
    """What is shown: as a panel or as a line.

    Args:
        title: name of the run.
        total: frames at which it is done; None if there is no end.
    """

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._total = total
        self._seen: deque[tuple[float, int]] = deque(maxlen=RATE_WINDOW)
        self._first = (0.0, 0)
        self._rate = 0.0
        self._stats: CollectorStats | None = None

    def start(self, stats: CollectorStats, now: float) -> None:
        """Count from here."""
        self._first = (now, stats.frames)
        self.see(stats, now)

    def see(self, stats: CollectorStats, now: float) -> None:
        """Take new counts."""
        self._stats = stats
        self._seen.append((now, stats.frames))
        self._rate = _slope(self._seen[0], self._seen[-1])

    def finish(self, stats: CollectorStats, now: float) -> None:
        """Take the last counts: the rate is that of the whole loop, and instead of the time left stands the time spent."""
        self.see(stats, now)
"""placeholder"""
