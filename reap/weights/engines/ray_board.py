"""`WeightBoard`: where a sender posts which weights are the newest, in a Ray actor; they themselves are in Ray's object store.

Nothing here needs torch: an actor starts in a second without it.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple


class Notice(NamedTuple):
    """The newest weights for one receiver.

    Attributes:
        serial: counts what was posted for it, from 1.
        version: of the weights.
        extra: state beyond tensors.
        references: to the tensors, in a list: what is in one is not fetched with the notice.
    """

    serial: int
    version: int
    extra: bytes
    references: list[Any]


class WeightBoard:
    """See the module; all calls run in one event loop, and those that wait hold up no other."""

    def __init__(self) -> None:
        self._notices: dict[int, Notice] = {}
        self._left: set[str] = set()
        self._changed = asyncio.Condition()

    async def post(self, worker: int, version: int, extra: bytes, references: list[Any]) -> None:
        """These are the newest."""
        async with self._changed:
            serial = self._notices[worker].serial + 1 if worker in self._notices else 1
            self._notices[worker] = Notice(serial, version, extra, references)
            self._changed.notify_all()

    async def newer(self, worker: int, serial: int, caller: str) -> Notice | None:
        """Wait for a notice that follows the one of this number; None if the caller leaves."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._serial(worker) > serial or caller in self._left)
            return None if caller in self._left else self._notices[worker]

    def _serial(self, worker: int) -> int:
        return self._notices[worker].serial if worker in self._notices else 0

    async def leave(self, caller: str) -> None:
        """Let a caller of `newer` go, now or when it calls next."""
        async with self._changed:
            self._left.add(caller)
            self._changed.notify_all()
