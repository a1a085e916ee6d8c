"""`WeightBoard`: a Ray actor that tells receivers which weights are the newest; the weights are in Ray's object store.

This module does not need torch; without it, an actor starts within a second.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple


class Notice(NamedTuple):
    """The newest weights for one receiver.

    Attributes:
        serial: the number of this post, counted from 1.
        version: the version of the weights.
        extra: extra state.
        references: references to the tensors, in a list, so that they are not fetched with the notice.
    """

    serial: int
    version: int
    extra: bytes
    references: list[Any]


class WeightBoard:
    """Tells receivers about new weights. All calls run in one event loop, in which waiting calls do not block others."""

    def __init__(self) -> None:
        self._notices: dict[int, Notice] = {}
        self._left: set[str] = set()
        self._changed = asyncio.Condition()

    async def post(self, worker: int, version: int, extra: bytes, references: list[Any]) -> None:
        """Post the newest weights."""
        async with self._changed:
            serial = self._notices[worker].serial + 1 if worker in self._notices else 1
            self._notices[worker] = Notice(serial, version, extra, references)
            self._changed.notify_all()

    async def newer(self, worker: int, serial: int, caller: str) -> Notice | None:
        """Wait for a notice after the one with this number; None if the caller leaves."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._serial(worker) > serial or caller in self._left)
            return None if caller in self._left else self._notices[worker]

    def _serial(self, worker: int) -> int:
        return self._notices[worker].serial if worker in self._notices else 0

    async def leave(self, caller: str) -> None:
        """Release a caller of `newer`, now or at its next call."""
        async with self._changed:
            self._left.add(caller)
            self._changed.notify_all()
