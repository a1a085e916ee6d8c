"""What tests see of a collector that its users do not: its parts, each at one place here, through their public methods."""

from __future__ import annotations

import re
import threading
from typing import Any

from reap.collectors.workers.base import Workers
from reap.recording.pool import SlotPool
from reap.workers.remote.group import RemoteGroup

LIMIT = 100.0
"""Seconds after which a wait has failed."""


def seam_of(collector: Any) -> Workers:
    """The collector's workers: their group and their slots."""
    return collector._workers


def pids_of(collector: Any) -> list[int]:
    """The processes of the workers, on this machine."""
    group = group_of(collector)
    if isinstance(group, RemoteGroup):
        places = [group.carrier.place(worker) for worker in range(group.size)]
        return [int(number) for number in re.findall(r"pid (\d+)", " ".join(places))]
    return group.pids


def group_of(collector: Any) -> Any:
    """The group of the workers."""
    return seam_of(collector).group


def pools_of(collector: Any) -> list[SlotPool]:
    """The pool of slots of each worker; workers that record in the same slots have the same pool."""
    slots: list[Any] = [seam_of(collector).slots_of(worker) for worker in range(collector.num_workers)]
    return [one.pool for one in slots]


def pool_of(collector: Any) -> SlotPool:
    """The only pool."""
    first, *others = pools_of(collector)
    assert all(pool is first for pool in others)
    return first


def under_way(collector: Any) -> list[int]:
    """The workers that are recording."""
    return [worker for one in collector._handover.recording for worker in one.commands]


def is_held(collector: Any) -> bool:
    """Whether the collector waits for the learner; asked between two rollouts, when that is known."""
    with collector.pause():
        return collector._throttle.is_holding


def threads_of(collector: Any) -> list[threading.Thread]:
    """The threads in which a collector of this class works in the background."""
    return [thread for thread in threading.enumerate() if thread.name == f"{type(collector).__name__}.start"]


def wait_for_end(collector: Any) -> None:
    """Wait until it does not work in the background any more."""
    for thread in threads_of(collector):
        thread.join(LIMIT)
    assert not collector.is_running()
