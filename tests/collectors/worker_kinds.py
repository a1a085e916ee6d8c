"""What the tests of collectors with worker processes share: envs that wait or fail, policies, what is left behind."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, aSyncDataCollector
from reap.collectors.base import DataCollectorBase
from reap.envs import GymEnv, SerialEnv
from reap.testing import Const, Count
from reap.testing.marked import Marked
from reap.workers.progress import STOP
from tests.collectors.seams import group_of

LIMIT = 100.0
"""Seconds after which a wait has failed."""

CLASSES: dict[str, Callable[..., DataCollectorBase]] = {
    "MultiSync": MultiSyncDataCollector,
    "MultiaSync": MultiaSyncDataCollector,
    "aSync": lambda factories, policy=None, **options: aSyncDataCollector(factories[-1:], policy, **options),
}
"""Each class, of a list of factories; the one with one worker takes the last of them."""


IDS, MASK, VERSION = ("collector", "traj_ids"), ("collector", "mask"), ("collector", "policy_version")


# ---------------------------------------------------------------------- streams


def take(collector: Any, count: int) -> list[Any]:
    return [collector.next() for _ in range(count)]


def take_until_it_fails(collector: Any) -> NoReturn:
    """Take batches for ever: before one worker fails, others that deliver as they come may deliver any number."""
    while True:
        collector.next()


def leaves(batch: Any) -> list[Any]:
    return sorted(batch.keys(include_nested=True, leaves_only=True), key=str)


def assert_same(found: Any, expected: Any, leave_out: Sequence[Any] = ()) -> None:
    """Every key of a batch, bit for bit."""
    assert leaves(found) == leaves(expected)
    assert found.batch_size == expected.batch_size
    assert found.names == expected.names
    for key in leaves(found):
        if key not in leave_out:
            assert found[key].dtype == expected[key].dtype
            assert torch.equal(found[key], expected[key]), key


def from_worker(batch: Any, worker: int) -> Any:
    """A batch of a collector in this process as that worker delivers it: its ids are its own."""
    copy = batch.clone()
    ids = copy["collector", "traj_ids"]
    ids[ids >= 0] += worker << 40
    return copy


def workers_of(batches: Iterable[Any]) -> dict[int, list[Any]]:
    """The batches of each worker, in their order."""
    found: dict[int, list[Any]] = {}
    for batch in batches:
        found.setdefault(int(batch["collector", "traj_ids"].max()) >> 40, []).append(batch)
    return found


def take_of_each(collector: Any, count: int = 1) -> dict[int, list[Any]]:
    """Batches of each worker of those that deliver as they come, until there are so many of the slowest."""
    found: dict[int, list[Any]] = {}
    while len(found) < collector.num_workers or min(map(len, found.values())) < count:
        for worker, batches in workers_of([collector.next()]).items():
            found.setdefault(worker, []).extend(batches)
    return found


def steps(batch: Any) -> Any:
    return batch["observation"].squeeze(-1).tolist()


# ---------------------------------------------------------------------- envs


def single(worker: int) -> Any:
    return Marked(worker)


def serial(worker: int) -> Any:
    return SerialEnv(2, [partial(Marked, 2 * worker + b) for b in range(2)])


def vector(worker: int) -> Any:
    return GymEnv(SyncVectorEnv([partial(Marked, 3 * worker + b) for b in range(3)]))


def of_torchrl(worker: int) -> Any:
    from torchrl.envs import StepCounter, TransformedEnv

    return TransformedEnv(SerialEnv(2, [partial(Marked, 2 * worker + b) for b in range(2)]).as_torchrl(), StepCounter())


ENVS = {"single": single, "serial": serial, "vector": vector}


def pairs(worker: int, rows: int = 2) -> Any:
    """Rows whose reset observations are ten apart, and twenty from worker to worker."""
    return SerialEnv(rows, [partial(Count, 50, 20 * worker + 10 * b) for b in range(rows)])


def counts(lengths: list[int], **options: Any) -> MultiSyncDataCollector:
    """`Count` of these lengths, one for each worker, with the reset observation 100 w."""
    return MultiSyncDataCollector([partial(Count, n, 100 * w) for w, n in enumerate(lengths)], Const(), **options)


class Text(Count):
    """`Count` that says its count in words."""

    observation_space = spaces.Dict({"count": Count.observation_space, "text": spaces.Text(20)})

    def observe(self) -> Any:
        return {"count": super().observe(), "text": f"{self.start}x{self.steps}"}


class Pixels(Count):
    """`Count` in pixels, larger than what is cloned."""

    observation_space = spaces.Box(0, 255, (20, 20), np.uint8)

    def observe(self) -> Any:
        return np.full((20, 20), self.start + self.steps, np.uint8)


class Seeded(Count):
    """`Count` that keeps the seeds that it is given, and what it is told; it offers no state."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.seeds: list[int] = []
        self.told: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.seeds.append(seed)
        return super().reset(seed=seed, options=options)

    def tell(self, *words: Any) -> int:
        self.told.append(words)
        return len(self.told)


class Gate:
    """A door between the test and an env in a worker: two named pipes.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.paths = [str(folder / name) for name in ("entered", "opened")]
        for path in self.paths:
            os.mkfifo(path)
        self._ends = [os.open(path, os.O_RDWR) for path in self.paths]

    def wait_for_entry(self) -> None:
        """Wait until the env stands before the gate."""
        assert select.select([self._ends[0]], [], [], LIMIT)[0], "the env did not come"
        assert os.read(self._ends[0], 1) == b"."

    def open(self) -> None:
        """Let the env through, once."""
        os.write(self._ends[1], b".")

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


def wait_for_stop(collector: Any, worker: int) -> None:
    """Wait until the collector has told this worker to stop; it is shared memory, with nothing that could be waited for."""
    deadline = time.monotonic() + LIMIT
    while not group_of(collector).carrier.control(worker)[STOP]:
        assert time.monotonic() < deadline, "nobody told it to stop"
        os.sched_yield()


class Gated(Count):
    """`Count` that waits before a gate in some of its steps, counted over all episodes from 1.

    Args:
        paths: the gate's.
        gates: the steps.
        length: steps after which an episode terminates.
    """

    def __init__(self, paths: Sequence[str], gates: Sequence[int], length: int = 1000) -> None:
        super().__init__(length)
        self._ends = [os.open(path, os.O_RDWR) for path in paths]
        self._gates = list(gates)
        self.all_steps = 0

    def step(self, action: Any) -> Any:
        self.all_steps += 1
        if self.all_steps in self._gates:
            os.write(self._ends[0], b".")
            os.read(self._ends[1], 1)
        return super().step(action)


def interrupt_at(gate: Gate, call: Callable[[], Any]) -> None:
    """Call it, and interrupt it when the env waits at the gate, which is opened then."""
    main = threading.get_ident()
    thread = threading.Thread(target=lambda: (gate.wait_for_entry(), signal.pthread_kill(main, signal.SIGINT)))

    try:
        thread.start()  # a worker that collects ahead may be there already
        call()
    except KeyboardInterrupt:
        thread.join()
    else:
        raise AssertionError("nothing was interrupted")
    gate.open()


# ---------------------------------------------------------------------- failures


def fail(how: str) -> Any:
    """Fail in one of many ways."""
    match how:
        case "raise":
            raise ValueError("on purpose")
        case "os._exit":
            os._exit(3)
        case "SIGKILL" | "SIGSEGV":
            os.kill(os.getpid(), getattr(signal, how))
            time.sleep(600)
        case _:
            raise AssertionError(how)


class Failing(Count):
    """`Count` that fails in its k-th reset or step, counted over all episodes from 1."""

    def __init__(self, how: str, phase: str, k: int = 3, length: int = 2) -> None:
        super().__init__(length)
        self._how, self._phase, self._k = how, phase, k
        self._calls = {"reset": 0, "step": 0}

    def _enter(self, phase: str) -> None:
        self._calls[phase] += 1
        if phase == self._phase and self._calls[phase] == self._k:
            fail(self._how)

    def reset(self, **options: Any) -> Any:
        self._enter("reset")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._enter("step")
        return super().step(action)


class FailingPolicy(nn.Module):
    """Acts with its parameter, and fails in worker 1 in its k-th call."""

    def __init__(self, how: str, k: int = 4) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self._how, self._k, self._calls = how, k, 0

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        self._calls += bool(observation[..., 0] >= 100)
        if self._calls == self._k:
            fail(self._how)
        return self.w.expand(*observation.shape[:-1], -1)


class Stuck(Count):
    """`Count` that never comes back from its k-th step: it waits in C, deaf to SIGTERM."""

    def __init__(self, told: str, k: int) -> None:
        super().__init__(1000)
        self._told, self._k = os.open(told, os.O_RDWR), k

    def step(self, action: Any) -> Any:
        if self.steps + 1 == self._k:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            os.write(self._told, b".")
            while True:
                ctypes.CDLL(None).pause()
        return super().step(action)


# ---------------------------------------------------------------------- what is left behind


def descriptors() -> list[str]:
    """What this process has open, pipes and sockets by their kind."""
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").partition(":[")[0])
        except OSError:  # the listing's own
            continue
    return sorted(found)


def mapped() -> int:
    """How many memfds of collectors are mapped into this process."""
    return sum("/memfd:reap" in line for line in Path("/proc/self/maps").read_text().splitlines())


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@contextmanager
def nothing_left() -> Generator[list[int]]:
    """No descriptor, memfd or process more behind the body than before it; it appends the processes to look for."""
    before, maps = descriptors(), mapped()
    pids: list[int] = []
    yield pids
    deadline = time.monotonic() + LIMIT
    while any(map(exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(exists, pids))
    sys.last_value = None  # pytest keeps the last exception, and with it the frames that hold a collector
    assert descriptors() == before
    assert mapped() == maps


# ---------------------------------------------------------------------- policies


class Recall(nn.Module):
    """A recurrent policy that draws."""

    in_keys = ("observation", "h")

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 5)
        self.initial_state = {"h": torch.linspace(-1, 1, 5)}

    def forward(self, observation: torch.Tensor, h: torch.Tensor) -> dict[Any, torch.Tensor]:
        scaled = observation / 2**20
        following = self.cell(scaled.reshape(-1, 4), h.reshape(-1, 5)).view_as(h)
        action = following.sum(-1, keepdim=True) + torch.rand_like(following[..., :1])
        return {"action": action, ("next", "h"): following, "log_prob": action.squeeze(-1)}


def sampling() -> Any:
    """A TensorDict policy that samples from a normal distribution."""
    mean = TensorDictModule(nn.Sequential(nn.Linear(4, 1), nn.Tanh()), ["observation"], ["loc"])
    draw = ProbabilisticTensorDictModule(
        in_keys=["loc"],
        out_keys=["action"],
        distribution_class=torch.distributions.Normal,
        distribution_kwargs={"scale": 2.0},
        return_log_prob=True,
    )
    return ProbabilisticTensorDictSequential(mean, draw)


class Uniform(nn.Module):
    """Acts with its first parameter; `spread` is how far its many parameters are apart, 0 where all are equal."""

    def __init__(self, value: float = 0.0, size: int = 50_000) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.full((size,), value) for _ in range(4)])

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        every = torch.stack([part.detach() for part in self.parts])
        shape = (*observation.shape[:-1], 1)
        return {"action": every[0, :1].expand(shape), "spread": (every.max() - every.min()).expand(shape)}

    def become(self, value: float) -> None:
        with torch.no_grad():
            for part in self.parts:
                part.fill_(value)
