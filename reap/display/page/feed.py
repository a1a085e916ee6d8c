"""The numbers of a running collector, read once per second, and the readers who wait for them.

    collector's meter --(once a second)--> Feed --> /data     everything so far
                                            |-----> /events   what is new, to each page that is open

All of it runs in the event loop of the server's thread.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from reap.display.counts import Count, Counted
from reap.display.page.history import History, point
from reap.display.page.report import report

SECONDS_BETWEEN_READINGS = 1.0


class Feed:
    """The numbers that pages receive.

    Args:
        count: provides the counts; used for nothing else.
        title: name of the run.
        buffer: the replay buffer that the collector fills, or None.
    """

    def __init__(self, count: Count, title: str, buffer: Any) -> None:
        self._count, self._title, self._buffer = count, title, buffer
        self._history = History()
        self._has_news, self._has_ended = asyncio.Event(), False
        self._read(count.now)

    async def run(self) -> None:
        """Read the counts until cancelled."""
        while True:
            await asyncio.sleep(SECONDS_BETWEEN_READINGS)
            self.read()

    def read(self) -> None:
        """Read the counts, and wake the waiting readers."""
        self._read(self._count.now)

    def end(self) -> None:
        """Read the counts one last time, and end the waiting of all readers, even if that fails."""
        self._has_ended = True
        try:
            self._read(self._count.in_all)
        finally:
            self._wake()

    def _read(self, count: Callable[[], Counted]) -> None:
        self._now = report(self._title, count(), self._buffer)
        self._latest = point(self._now)
        self._history.add(self._latest)
        self._wake()

    def _wake(self) -> None:
        self._has_news.set()
        self._has_news = asyncio.Event()

    def whole(self) -> dict[str, Any]:
        """The numbers as last read, and all points."""
        return self._since(0)

    def _since(self, start: int) -> dict[str, Any]:
        """The points from `start` on replace those that a page has from there on."""
        kept = self._history.points
        points = kept[start:] if kept[-1] is self._latest else [*kept[start:], self._latest]
        return {"now": self._now, "from": start, "points": points}

    async def news(self) -> AsyncIterator[str]:
        """Server-sent events: everything so far, then what is new, until the loop ends."""
        start, thinned = 0, self._history.thinned
        while True:
            if thinned != self._history.thinned:
                start, thinned = 0, self._history.thinned
            waiting, told, is_last = self._has_news, self._since(start), self._has_ended
            start = len(self._history.points)
            yield f"data: {json.dumps(told, allow_nan=False, separators=(',', ':'))}\n\n"  # which may take long
            if is_last:
                return
            await waiting.wait()
