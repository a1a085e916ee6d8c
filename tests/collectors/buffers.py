"""What the tests of collecting in the background share: a buffer and an env that wait for the test, limits on every wait."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Event, Thread
from typing import Any

from reap.collectors import SyncDataCollector
from reap.testing import Const, Count

LIMIT = 100.0
"""Seconds after which a wait has failed."""


class Buffer:
    """Stands in for a replay buffer; each write waits until it is allowed.

    Args:
        allowed: writes that need not wait.
    """

    def __init__(self, allowed: float = float("inf")) -> None:
        self.state = Condition()
        self.batches: list[Any] = []
        self.arrived = self.under_way = 0
        self.allowed = allowed

    def extend(self, data: Any) -> None:
        with self.state:
            self.arrived += 1
            self.under_way += 1
            self.state.notify_all()
            assert self.state.wait_for(lambda: len(self.batches) < self.allowed, LIMIT), "nobody allowed the write"
            self.batches.append(data)
            self.under_way -= 1
            self.state.notify_all()

    add = extend

    def allow(self, count: float = 1) -> None:
        with self.state:
            self.allowed += count
            self.state.notify_all()

    def wait_for_arrival(self, number: int) -> None:
        """Wait until that many writes have begun."""
        with self.state:
            assert self.state.wait_for(lambda: self.arrived >= number, LIMIT), f"{self.arrived} writes, waited for {number}"

    def wait_for_writes(self, number: int) -> None:
        with self.state:
            assert self.state.wait_for(lambda: len(self.batches) >= number, LIMIT), f"{len(self.batches)} writes"

    def __len__(self) -> int:
        """Frames that are written."""
        with self.state:
            return sum(batch.numel() for batch in self.batches)


class Gated(Count):
    """`Count` whose steps wait for the gate."""

    def __init__(self) -> None:
        super().__init__(5)
        self.gate, self.entered = Event(), Event()
        self.closings = 0

    def step(self, action: Any) -> Any:
        self.entered.set()
        assert self.gate.wait(LIMIT), "nobody opened the gate"
        return super().step(action)

    def close(self) -> None:
        self.closings += 1


def collecting(buffer: Any, env: Any = None, policy: Any = None, **options: Any) -> SyncDataCollector:
    env = Count(5) if env is None else env
    return SyncDataCollector(env, policy or Const(), **{"frames_per_batch": 4, **options}, replay_buffer=buffer)


def in_thread(call: Callable[[], Any]) -> Thread:
    thread = Thread(target=call)
    thread.start()
    return thread


def join(thread: Thread) -> None:
    thread.join(LIMIT)
    assert not thread.is_alive()


def observed(batches: Any) -> list[float]:
    return [value for batch in batches for value in batch["observation"].flatten().tolist()]


WHILE_RUNNING: dict[str, Callable[[SyncDataCollector], Any]] = {
    "start": lambda collector: collector.start(),
    "next": lambda collector: collector.next(),
    "rollout": lambda collector: collector.rollout(),
    "iter": lambda collector: next(iter(collector)),
    "iterator": lambda collector: next(collector.iterator()),
}
