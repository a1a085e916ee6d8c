"""What the tests of collectors that fill a replay buffer share: buffers, and the frames in them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from reap.collectors import SyncDataCollector
from reap.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
from reap.data.storages.ring.ring import Ring
from reap.envs import SerialEnv
from reap.testing.marked import Marked
from tests.collectors.worker_kinds import CLASSES, LIMIT, Gate

Place = tuple[int, int, int]

EVERY: dict[str, Callable[..., Any]] = {
    "Sync": lambda factories, policy=None, **options: SyncDataCollector(factories[-1], policy, **options),
    **CLASSES,
}
"""Each class, of a list of factories; those with one env take the last of them."""

STORAGES: dict[str, Any] = {"RAM": LazyTensorStorage, "files": LazyMemmapStorage}


def memory(size: int = 1_000, ndim: int = 1, storage: Any = LazyTensorStorage, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(storage=storage(size, ndim=ndim), **options)


def singles(count: int = 2) -> list[Any]:
    return [partial(Marked, number) for number in range(count)]


def serials(count: int = 2) -> list[Any]:
    """Envs of two rows each."""
    return [partial(_serial, 2 * number) for number in range(count)]


def _serial(first: int) -> Any:
    return SerialEnv(2, [partial(Marked, first), partial(Marked, first + 1)])


def places(buffer: Any) -> list[Place]:
    """Env, episode and step of every frame, in the order of the buffer."""
    found: Any = buffer[:]["observation"][..., :3].reshape(-1, 3).long()
    return [tuple(place) for place in found.tolist()]


def require_each_once(buffer: Any, frames: int) -> None:
    """The buffer holds so many frames, and of each env every frame from the first on, once and in order."""
    found = places(buffer)
    assert len(found) == frames
    assert len(set(found)) == frames
    for number in {place[0] for place in found}:
        own = [place for place in found if place[0] == number]
        length = Marked.length
        expected: list[Place] = []
        episode = step = 0
        for _ in own:
            expected.append((number, episode, step))
            episode, step = (episode, step + 1) if step + 1 < length(number, episode) else (episode + 1, 0)
        assert own == expected


def are_random(buffer: Any) -> list[bool]:
    """Which frames have other actions than `Told` takes, in the order of the buffer."""
    frames: Any = buffer[:].reshape(-1)
    return (frames["action"] * 2 != frames["observation"][..., 2:3]).flatten().tolist()


def equal(one: Any, other: Any) -> bool:
    """Whether two buffers hold the same, under each key."""
    a, b = one[:], other[:]
    keys = set(a.keys(True, True))
    return a.shape == b.shape and keys == set(b.keys(True, True)) and all(torch.equal(a[key], b[key]) for key in keys)


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something in shared memory, with which nobody tells of it."""
    deadline = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def wait_for_frames(buffer: Any, frames: int) -> None:
    wait_until(lambda: buffer.write_count >= frames, f"{frames} frames were not written")


class GatedWrite:
    """A postproc that waits before a gate, once, before the write of a batch with this number, counted from 1."""

    def __init__(self, gate: Gate, number: int) -> None:
        self.paths, self.number, self.calls = gate.paths, number, 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls == self.number:
            entered, opened = (os.open(path, os.O_RDWR) for path in self.paths)
            os.write(entered, b".")
            os.read(opened, 1)
        return batch


class Following(Marked):
    """`Marked` that waits, before its `at`-th step, for a file: where workers deliver as they come, another comes as far too.

    Args:
        number: the env.
        at: the step, counted over all episodes from 1.
        file: the file.
    """

    def __init__(self, number: int, at: int, file: Path) -> None:
        super().__init__(number)
        self.at, self.file = at, file

    def step(self, action: Any) -> Any:
        if self.all_steps + 1 == self.at:
            wait_until(self.file.exists, "the other did not come as far")
        return super().step(action)


class KilledInTheWrite:
    """A postproc whose process is killed between claim and publication of what env `number` recorded, in its second write.

    Args:
        number: the env.
        file: is made before.
    """

    def __init__(self, number: int, file: Path) -> None:
        self.number, self.calls, self.file = number, 0, file

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls == 2 and int(batch["observation"].reshape(-1, 4)[0, 0]) == self.number:
            self.file.touch()
            Ring.publish = die  # in this process alone
        return batch


class KilledBehindTheWrite:
    """A postproc whose process is killed when what env `number` recorded is in the buffer, before anybody is told of it.

    Args:
        number: the env.
        publications: how many of its second write there are before that.
        file: is made before.
    """

    def __init__(self, number: int, publications: int, file: Path) -> None:
        self.number, self.calls, self.left, self.file = number, 0, publications, file

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls == 2 and int(batch["observation"].reshape(-1, 4)[0, 0]) == self.number:
            self.file.touch()
            publish = Ring.publish

            def last(ring: Ring, *arguments: Any, **options: Any) -> None:
                publish(ring, *arguments, **options)
                self.left -= 1
                if not self.left:
                    die()

            Ring.publish = last  # in this process alone
        return batch


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Failing:
    """A postproc that raises, or makes the write raise, at its call of this number."""

    def __init__(self, how: str, number: int) -> None:
        self.how, self.number, self.calls = how, number, 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls != self.number:
            return batch
        if self.how == "postproc":
            raise LookupError("no such key")
        return batch.exclude("action")
