"""A process that forks with a collector in it: its child is told that the workers are not its own."""

from __future__ import annotations

import pytest

from tests import warm

OTHERS = ["Multia", "ParallelEnv", "inside"]
PROGRAM = """
import os, sys
from functools import partial
from reap import MultiaSyncDataCollector, MultiSyncDataCollector, ParallelEnv, SyncDataCollector
from reap.errors import ClosedError
from reap.testing import Count

def refused(call):
    try:
        call()
    except ClosedError as error:
        return "these workers belong to process" in str(error)
    return False

factories = [partial(Count, 5)] * 2
kind = sys.argv[1]
if kind == "ParallelEnv":
    env = ParallelEnv(2, factories)
    calls = [lambda: env.rollout(3), env.reset, lambda: env.set_seed(1)]
elif kind == "inside":
    collector = SyncDataCollector(ParallelEnv(2, factories), frames_per_batch=20)
    calls = [collector.next]
else:
    collector = {"Multi": MultiSyncDataCollector, "Multia": MultiaSyncDataCollector}[kind](factories, frames_per_batch=20)
    calls = [collector.next, collector.state_dict, lambda: collector.set_seed(1), collector.reset]
calls[0]()
child = os.fork()
if not child:
    os._exit(0 if all(map(refused, calls)) else 1)
assert os.waitpid(child, 0)[1] == 0
for call in calls:
    call()
(env.close if kind == "ParallelEnv" else collector.shutdown)()
"""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["Multi", *OTHERS])
def test_a_fork_is_refused_what_belongs_to_its_parent(kind: str) -> None:
    assert warm.run(PROGRAM, kind, timeout=180) == (0, "", "")


@pytest.mark.processes
def test_a_fork_does_not_wait_for_the_thread_of_its_parent() -> None:
    program = """
import os, signal
from functools import partial
from reap import MultiSyncDataCollector, SyncDataCollector
from reap.data import LazyTensorStorage, ReplayBuffer
from reap.errors import ClosedError
from reap.testing import Const, Count

for kind in (SyncDataCollector, MultiSyncDataCollector):
    buffer = ReplayBuffer(storage=LazyTensorStorage(1_000))
    envs = partial(Count, 5) if kind is SyncDataCollector else [partial(Count, 5)] * 2
    collector = kind(envs, Const(), frames_per_batch=20, replay_buffer=buffer)
    collector.start()
    child = os.fork()
    if not child:
        signal.alarm(100)
        for call in (collector.state_dict, collector.update_policy_weights_):
            try:
                call()
            except ClosedError:
                continue
            if kind is MultiSyncDataCollector:
                os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert collector.is_running()
    collector.shutdown()
"""
    assert warm.run(program, timeout=180)[:2] == (0, "")
