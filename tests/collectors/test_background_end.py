"""How collecting in the background ends. No sleeps, and a limit on whatever waits."""

from __future__ import annotations

import gc
import textwrap
import threading
import weakref
from typing import Any

import pytest
import torch

from reap.errors import ClosedError
from reap.testing.marked import Told
from tests import warm
from tests.collectors.buffers import LIMIT, Buffer, Gated, collecting, in_thread, join
from tests.collectors.seams import threads_of, wait_for_end


def test_async_shutdown_twice() -> None:
    env, buffer = Gated(), Buffer()
    env.gate.set()
    collector = collecting(buffer, env)
    collector.start()
    buffer.wait_for_writes(1)
    collector.async_shutdown()
    count = len(buffer)
    collector.async_shutdown(timeout=1.0)
    collector.shutdown()
    assert (collector.closed, collector.is_running(), env.closings, len(buffer)) == (True, False, 1, count)
    assert collector.stats().frames == count
    with pytest.raises(ClosedError):
        collector.update_policy_weights_()


def test_async_shutdown_can_leave_the_env_open() -> None:
    env = Gated()
    env.gate.set()
    collector = collecting(Buffer(), env)
    collector.start()
    collector.async_shutdown(close_env=False)
    assert (env.closings, collector.env.closed) == (0, False)


def test_async_shutdown_without_start() -> None:
    env = Gated()
    collector = collecting(Buffer(), env)
    collector.async_shutdown()
    assert (collector.closed, env.closings) == (True, 1)


def test_async_shutdown_waits_for_the_rollout_under_way() -> None:
    env, buffer = Gated(), Buffer()
    collector = collecting(buffer, env)
    collector.start()
    assert env.entered.wait(LIMIT)
    ending = in_thread(collector.async_shutdown)
    while not collector.closed:  # it is set before anything is waited for
        pass
    assert (env.closings, len(buffer)) == (0, 0)
    env.gate.set()
    join(ending)
    assert env.closings == 1
    assert len(buffer) % 4 == 0


def test_async_shutdown_with_a_timeout_leaves_a_slow_rollout_to_itself() -> None:
    env, buffer = Gated(), Buffer()
    collector = collecting(buffer, env)
    collector.start()
    assert env.entered.wait(LIMIT)
    collector.async_shutdown(timeout=0.01)
    assert (collector.closed, env.closings) == (True, 0), "an env is not closed while it steps"
    collector.async_shutdown()
    env.gate.set()
    wait_for_end(collector)
    assert env.closings == 1, "it is closed behind the step"
    assert len(buffer) == 0, "what nobody waited for is not written"


def test_shutdown_in_the_thread_itself() -> None:
    def postproc(batch: Any) -> Any:
        collector.async_shutdown()
        return batch

    env = Gated()
    env.gate.set()
    collector = collecting(Buffer(), env, postproc=postproc)
    collector.start()
    wait_for_end(collector)
    assert (collector.closed, env.closings) == (True, 1)


def test_a_dropped_collector_ends_its_thread() -> None:
    env, buffer = Gated(), Buffer()
    env.gate.set()
    collector = collecting(buffer, env)
    collector.start()
    [thread] = threads_of(collector)
    buffer.wait_for_writes(2)
    dropped = weakref.ref(collector)
    del collector
    gc.collect()
    join(thread)
    gc.collect()
    assert dropped() is None


def test_the_thread_has_a_name() -> None:
    with collecting(Buffer()) as collector:
        collector.start()
        assert "SyncDataCollector.start" in {thread.name for thread in threading.enumerate()}


EXIT = """
    from threading import Event
    import gymnasium as gym, torch
    from reap.collectors import SyncDataCollector
    from reap.collectors.background import background
    from reap.testing import Const, Count

    written, stuck = Event(), {stuck}
    background.EXIT_SECONDS = 0.2 if stuck else 60.0

    class Slow(Count):
        def step(self, action):
            if stuck and written.is_set():
                Event().wait()
            return super().step(action)

    class Buffer:
        def extend(self, data):
            written.set()

    policy = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    collector = SyncDataCollector(Slow(5), policy, frames_per_batch=8, replay_buffer=Buffer())
    collector.start()
    assert written.wait(60)
    {end}
"""


@pytest.mark.parametrize(("stuck", "end", "code"), [(False, "", 0), (True, "raise SystemExit(3)", 3)])
def test_the_interpreter_ends_silently_with_a_thread_that_runs(stuck: bool, end: str, code: int) -> None:
    script = textwrap.dedent(EXIT.format(stuck=stuck, end=end))
    assert warm.run(script, timeout=180) == (code, "", "")


def test_outputs_of_a_policy_are_there() -> None:
    """The private copy is called as the policy is: all of its outputs are written."""
    from reap.testing.marked import Marked

    buffer = Buffer()
    with collecting(buffer, Marked(0), Told(), total_frames=8) as collector:
        collector.start()
        wait_for_end(collector)
    batch = torch.cat(buffer.batches)
    assert torch.equal(batch["seen"], batch["observation"][:, 3:4])
    assert torch.equal(batch["action"], batch["observation"][:, 2:3] / 2)
