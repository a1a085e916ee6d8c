"""Claim: workers that share no memory with the training process cost little beside those that do.

Each class with two workers, against `MultiSyncDataCollector` or `MultiaSyncDataCollector`, all of them in turns:

CartPole    8 envs a worker, 4,000 frames
Pong        ALE, 84 x 84 x 4 bytes, 8 envs a worker, 992 frames: 28 MB
images      the same 28 MB from an env that costs next to nothing, so that the transfer is what is measured. Beside them what
            the bare engine makes of it: a worker records as many frames, and sends as many bytes with nothing around them

Then an update of 40 MB of weights against one copy of them (the transfer goes on while the training loop does), and the classes
of torchrl with CartPole, each in a program of its own, which is left out where it does not begin in time.

An engine is a line of `ENGINES`; columns of the table in docs/benchmarks.md are claims, its rows subjects.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from select import select
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ceiling import CartPolePolicy
from gymnasium import spaces
from pairs import Loop, Measurement, Pair, Rivals, Subject, Unavailable, alone, measurement_of
from pong import PixelPolicy, make_pong
from torch._C._distributed_c10d import FileStore, ProcessGroupGloo

from reap import GymEnv, MultiaSyncDataCollector, MultiSyncDataCollector, SerialEnv, SyncDataCollector
from reap.collectors.distributed import (
    DistributedDataCollector,
    DistributedSyncDataCollector,
    RayCollector,
    RPCDataCollector,
)
from reap.workers.processes.group import ProcessGroup

WORKERS, ENVS = 2, 8
FRAMES = {"CartPole": 4_000, "Pong": 992, "images": 992}
"""Frames of a worker's rollout."""

BYTES = 84 * 84 * 4 * (FRAMES["images"] + ENVS)
"""Of a rollout's images: the last next one of each env is the only one that is not an observation too."""

UPDATE, BARE, TORCHRL = 1 / 1.5, 0.9, 5.0
"""Targets: an update against a copy, an engine against itself without a collector, a class against torchrl's."""

THEIR_FRAMES = 800
"""Frames of a worker's rollout beside torchrl, which makes some thousands in a second."""

START_LIMIT = 60.0
"""Seconds for a program of torchrl's to deliver its first batch."""

GLOO, RAY = "bare gloo", "bare Ray"


# ---------------------------------------------------------------------- engines


@dataclass(frozen=True)
class Engine:
    """What carries commands and rollouts.

    Attributes:
        name: of the class.
        make: builds a collector: of env factories and a policy, with `sync` and `frames_per_batch`.
        cartpole: targets, sync and async.
        pixels: the same.
        bare: the name of the bare engine, if it is measured.
        needs: a package that it needs.
    """

    name: str
    make: Callable[..., Any]
    cartpole: tuple[float, float]
    pixels: tuple[float, float]
    bare: str | None = None
    needs: str | None = None

    @contextmanager
    def collector(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        """A collector; `Unavailable` without its package."""
        if self.needs is not None and find_spec(self.needs) is None:
            raise Unavailable(f"{self.needs} is not installed")
        with self.make(*arguments, **options) as collector:
            yield collector


def on_ray(*arguments: Any, **options: Any) -> RayCollector:
    """A collector on a Ray that all of them use; its workers import these files."""
    start_ray()
    return RayCollector(*arguments, **options)


def start_ray() -> Any:
    """Ray, which is started if it does not run."""
    import ray

    if not ray.is_initialized():
        os.environ.setdefault("RAY_worker_niceness", "0")  # as the processes on the other side; Ray's own choice is 15
        paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        ray.init(
            address="local",
            num_cpus=2 * WORKERS,  # a number: a second collector's workers are there while the first stand still
            object_store_memory=1 << 30,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}},
        )
    return ray


ENGINES = (
    Engine("DistributedDataCollector", DistributedDataCollector, (0.85, 0.85), (0.6, 0.75), GLOO),
    Engine("RPCDataCollector", RPCDataCollector, (0.85, 0.85), (0.5, 0.5)),
    Engine("RayCollector", on_ray, (0.85, 0.85), (0.55, 0.9), RAY, needs="ray"),
)


def pids_of(collector: Any) -> list[int]:
    carrier = collector._workers.group.carrier
    return [int(carrier.place(worker).rpartition("pid ")[2].split()[0]) for worker in range(collector.num_workers)]


# ---------------------------------------------------------------------- what is collected


class Images(gym.Env[Any, Any]):
    """Images at the price of a copy."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = spaces.Discrete(4)

    def __init__(self) -> None:
        self.steps = 0
        self.image = np.random.default_rng(0).integers(0, 255, (84, 84, 4), dtype=np.uint8)

    def observe(self) -> Any:
        image = self.image.copy()
        image[0, 0, 0] = self.steps % 256
        return image

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observe(), 0.0, self.steps >= 1000, False, {}


def one_pong() -> GymEnv:
    return GymEnv(make_pong())


def make_env(kind: str) -> SerialEnv:
    return SerialEnv(ENVS, {"CartPole": "CartPole-v1", "Pong": one_pong, "images": Images}[kind])


def policy_for(kind: str) -> Any:
    return {"CartPole": CartPolePolicy, "Pong": PixelPolicy, "images": lambda: None}[kind]()


@contextmanager
def shared(kind: str, is_sync: bool) -> Iterator[Loop]:
    """The collector whose workers share memory."""
    made = MultiSyncDataCollector if is_sync else MultiaSyncDataCollector
    frames = FRAMES[kind] * (WORKERS if is_sync else 1)
    collector = made([partial(make_env, kind)] * WORKERS, policy_for(kind), frames_per_batch=frames)
    with collector, alone(lambda: collector.next().numel(), collector._workers.group.pids) as loop:
        yield loop


@contextmanager
def carried(engine: Engine, kind: str, is_sync: bool, frames: int | None = None) -> Iterator[Loop]:
    """The collector of an engine."""
    count = (FRAMES[kind] if frames is None else frames) * (WORKERS if is_sync else 1)
    makers = [partial(make_env, kind)] * WORKERS
    with (
        engine.collector(makers, policy_for(kind), sync=is_sync, frames_per_batch=count) as collector,
        alone(lambda: collector.next().numel(), pids_of(collector)) as loop,
    ):
        yield loop


# ---------------------------------------------------------------------- engines without collectors


class Recording:
    """Records rollouts, and has as many bytes to send as they have."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self._collector = SyncDataCollector(make_env("images"), None, frames_per_batch=FRAMES["images"])
        self.block = np.ones(BYTES, np.uint8)

    def record(self) -> None:
        self._collector.next()

    def close(self) -> None:
        self._collector.shutdown()


def gloo_pair(path: str, rank: int) -> Any:
    """A process group of two."""
    made: Any = ProcessGroupGloo
    options = made._Options()
    options._devices = [made.create_device(hostname="127.0.0.1", interface="")]
    options._threads = 1
    return made(FileStore(path, 2), rank, 2, options)


class GlooSender(Recording):
    """Sends its rollouts by gloo."""

    def __init__(self, path: str, *_: object) -> None:
        super().__init__()
        self._pair = gloo_pair(path, 1)

    def handle(self, _command: str) -> int:
        self.record()
        self._pair.send([torch.from_numpy(self.block)], 0, 0).wait()
        return FRAMES["images"]


@contextmanager
def bare_gloo() -> Iterator[Loop]:
    """Rollouts of two workers, received into memory that is there."""
    rows = [torch.from_numpy(np.ones(BYTES, np.uint8)) for _ in range(WORKERS)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{worker}" for worker in range(WORKERS)]
        group = ProcessGroup([partial(GlooSender, path) for path in paths])
        pairs = [gloo_pair(path, 0) for path in paths]

        def collect() -> int:
            for worker in range(WORKERS):
                group.request(worker, "send")
            under_way = [pair.recv([own], 1, 0) for pair, own in zip(pairs, rows, strict=True)]
            for one in under_way:
                one.wait()
            return sum(group.ready(range(WORKERS))[1] for _ in range(WORKERS))

        with alone(collect, group.pids) as loop:
            yield loop
        group.stop()


class RaySender(Recording):
    """An actor whose results are its rollouts."""

    def pid(self) -> int:
        return os.getpid()

    def send(self) -> Any:
        self.record()
        return self.block


@contextmanager
def bare_ray() -> Iterator[Loop]:
    """Rollouts of two actors, copied out of Ray's store into memory that is there."""
    if find_spec("ray") is None:
        raise Unavailable("ray is not installed")
    ray = start_ray()
    rows = [np.ones(BYTES, np.uint8) for _ in range(WORKERS)]
    actors = [ray.remote(num_cpus=1)(RaySender).remote() for _ in range(WORKERS)]

    def collect() -> int:
        for own, reference in zip(rows, [actor.send.remote() for actor in actors], strict=True):
            np.copyto(own, ray.get(reference))
        return WORKERS * FRAMES["images"]

    with alone(collect, ray.get([actor.pid.remote() for actor in actors])) as loop:
        yield loop
    for actor in actors:
        ray.kill(actor)


# ---------------------------------------------------------------------- weights


class Large(torch.nn.Module):
    """A policy of 40 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(10_000_000))
        self.small = torch.nn.Linear(4, 2)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(self.small(observation).argmax(-1), 2)


@dataclass(frozen=True)
class Updates:
    """How soon an update of the weights returns, against one copy of them into memory of its own.

    Each update has arrived, and a rollout was recorded with it, before anything else is timed.
    """

    engine: Engine

    def measured(self, _seconds: float, repeats: int) -> list[Measurement]:
        """Updates and copies in turns."""
        policy, rates, copies = Large(), list[float](), list[float]()
        try:
            with self.engine.collector(
                ["CartPole-v1"] * WORKERS, policy, sync=True, frames_per_batch=WORKERS, track_policy_version=True
            ) as collector:
                for _ in range(repeats + 1):
                    rates.append(1 / _seconds_of(collector.update_policy_weights_))
                    while int(collector.next()["collector", "policy_version"].min()) < collector.policy_version:
                        pass
                    copies.append(statistics.median(1 / _seconds_of(policy.weight.detach().clone) for _ in range(3)))
        except Unavailable:
            return []
        name = f"{self.engine.name}, update"
        return [measurement_of("a copy of 40 MB", name, 1, UPDATE, rates[1:], copies[1:])]  # the first maps memory


def _seconds_of(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


# ---------------------------------------------------------------------- torchrl


def weights_before_each_batch(*arguments: Any, sync: bool, **options: Any) -> DistributedSyncDataCollector:
    """The class whose batches always hold a rollout of each worker."""
    assert sync
    return DistributedSyncDataCollector(*arguments, **options)


THEIRS = {
    "DistributedDataCollector": ENGINES[0],
    "DistributedSyncDataCollector": Engine("DistributedSyncDataCollector", weights_before_each_batch, (0, 0), (0, 0)),
    "RPCDataCollector": ENGINES[1],
    "RayCollector": ENGINES[2],
}
"""Their classes, and what ours are made by."""


@contextmanager
def of_torchrl(name: str) -> Iterator[Loop]:
    """Torchrl's collector of the same name, in a program of its own."""
    if find_spec("torchrl") is None:
        raise Unavailable("torchrl is not installed")
    environ = dict(os.environ)
    if name == "RayCollector":
        environ["RAY_ADDRESS"] = start_ray().get_runtime_context().gcs_address
    program = Path(__file__).with_name("torchrl_distributed.py")
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, str(program), name, str(WORKERS), str(ENVS), str(THEIR_FRAMES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environ,
            start_new_session=True,
        )
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None

        def collect() -> int:
            stdin.write("\n")
            stdin.flush()
            if select([stdout], [], [], START_LIMIT)[0] and (line := stdout.readline()).startswith("frames "):
                return int(line.split()[1])
            errors.seek(0)
            said = [line.strip() for line in errors if line.strip()]
            how = "it has ended" if process.poll() is not None else f"there is no batch after {START_LIMIT:.0f} s"
            raise Unavailable(f"{how}; its last words: {said[-1] if said else 'none'}")

        try:
            collect()
            with alone(collect, [-process.pid]) as loop:
                yield loop
        finally:
            os.killpg(process.pid, 9)
            process.communicate()


# ---------------------------------------------------------------------- claims


def pairs() -> Iterator[Pair | Rivals | Updates]:
    for kind in FRAMES:
        for is_sync in (True, False):
            yield rivals(kind, is_sync)
    for engine in ENGINES:
        yield Updates(engine)
    for name, engine in THEIRS.items():
        ours = Subject("reap", partial(carried, engine, "CartPole", True, THEIR_FRAMES), TORCHRL)
        yield Rivals(f"torchrl, {name}", ENVS, partial(of_torchrl, name), [ours], share=0.4)


def rivals(kind: str, is_sync: bool) -> Rivals:
    """All engines, and those by themselves where the transfer is what is measured."""
    subjects = [
        Subject(engine.name, partial(carried, engine, kind, is_sync), _target(engine, kind, is_sync)) for engine in ENGINES
    ]
    against: list[tuple[str, str, float]] = []
    if kind == "images" and is_sync:
        subjects += [Subject(GLOO, bare_gloo), Subject(RAY, bare_ray)]
        against = [(engine.name, engine.bare, BARE) for engine in ENGINES if engine.bare is not None]
    name = "MultiSync" if is_sync else "MultiaSync"
    return Rivals(f"{name}, {kind}", ENVS, partial(shared, kind, is_sync), subjects, against)


def _target(engine: Engine, kind: str, is_sync: bool) -> float | None:
    targets = {"CartPole": engine.cartpole, "Pong": engine.pixels}.get(kind)
    return None if targets is None else targets[not is_sync]
