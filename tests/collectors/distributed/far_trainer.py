"""A trainer whose workers are in another network namespace; it does what it is told, line by line, and answers with a line.

python -m tests.collectors.distributed.far_trainer gloo SOCKET ADDRESS LOST_AFTER     SOCKET: see `far_machine`
python -m tests.collectors.distributed.far_trainer ray ADDRESS_OF_HEAD

    make sync|async     a collector; every other line is about it
    close               shut it down
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces

from reap.collectors.distributed import DistributedDataCollector, RayCollector
from reap.errors import ReapError
from reap.testing import Count


class Slow(Count):
    """An env of large frames, no two alike, whose steps take a while."""

    observation_space = spaces.Box(0, 255, (84, 84, 4), np.uint8)

    def observe(self) -> Any:
        return np.random.default_rng(self.steps).integers(0, 256, (84, 84, 4), np.uint8)

    def step(self, action: Any) -> Any:
        time.sleep(0.001)
        return super().step(action)


ENVS: Any = {"create_env_fn": [partial(Slow, 50)] * 2, "frames_per_batch": 200}

BLOCK = 200 * 84 * 84 * 4
"""Bytes of a block's observations, which are nearly all of it."""


def over_gloo(socket: str, address: str, lost_after: str, *, sync: bool) -> Any:
    from tests.collectors.distributed.far_machine import FarLauncher  # it imports this module, for its envs

    options = {"launcher": FarLauncher(socket), "address": address, "lost_after": float(lost_after), "timeout": 100}
    return DistributedDataCollector(**ENVS, sync=sync, **options)


def over_ray(address: str, *, sync: bool) -> Any:
    init = {"address": address, "log_to_driver": False}
    return RayCollector(**ENVS, sync=sync, ray_init_config=init)


def main() -> None:
    engine, *arguments = sys.argv[1:]
    make, collector = {"gloo": over_gloo, "ray": over_ray}[engine], None
    print("up", flush=True)
    for line in sys.stdin:
        name, _, argument = line.strip().partition(" ")
        try:
            if name == "make":
                collector = make(*arguments, sync=argument == "sync")
                print("made", flush=True)
            else:
                print(answer(collector, name, argument), flush=True)
        except ReapError as error:
            print(f"{type(error).__name__}: {' '.join(str(error).split())}", flush=True)


def answer(collector: Any, name: str, argument: str) -> str:
    if name == "close":
        collector.shutdown()
        return "closed"
    if name == "next":
        batch = collector.next()
        return f"{tuple(batch.shape)}"
    if name == "land":  # until so many blocks have come, without a call of `next`
        while sum(one.place.bytes for one in collector.stats().workers) < int(argument) * BLOCK:
            time.sleep(0.05)
        return "landed"
    if name == "transfer":
        return str(sum(one.place.transfer_seconds for one in collector.stats().workers))
    raise ValueError(name)


if __name__ == "__main__":
    main()
