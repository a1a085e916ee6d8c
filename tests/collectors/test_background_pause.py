"""`pause`, and calls on a collector that runs in the background. No sleeps, and a limit on whatever waits."""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from types import FrameType
from typing import Any

import pytest
import torch

from reap.collectors import SyncDataCollector
from reap.errors import ClosedError
from reap.testing import Count
from tests.collectors.buffers import Buffer, collecting, in_thread, join, observed
from tests.collectors.seams import wait_for_end

# ---------------------------------------------------------------------- pause


def test_d04_pause_returns_when_no_write_is_in_flight() -> None:
    buffer = Buffer(0)
    seen: list[Any] = []
    with collecting(buffer) as collector:

        def pausing() -> None:
            with collector.pause():
                seen.append((buffer.under_way, len(buffer)))
                _ = collector.state_dict(), collector.stats()
                seen.append((buffer.under_way, len(buffer)))

        collector.start()
        buffer.wait_for_arrival(1)
        pauses = in_thread(pausing)
        buffer.allow(1000)
        join(pauses)
        assert seen[0] == seen[1]
        assert seen[0][0] == 0
        assert seen[0][1] >= 4
        buffer.wait_for_writes(seen[0][1] // 4 + 2)


def test_pauses_nest() -> None:
    buffer = Buffer()
    with collecting(buffer) as collector:
        collector.start()
        buffer.wait_for_writes(1)
        with collector.pause():
            count = len(buffer)
            with collector.pause():
                assert len(buffer) == count
            assert (len(buffer), buffer.under_way, collector.is_running()) == (count, 0, True)
        buffer.wait_for_writes(count // 4 + 1)


@pytest.mark.processes
@pytest.mark.parametrize("line", range(4))
def test_ctrl_c_in_the_last_lines_of_a_pause_does_not_hold_the_thread_forever(line: int) -> None:
    buffer = Buffer()
    lines: list[int] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_name != "pause" or not frame.f_code.co_filename.endswith("background.py"):
            return None if frame.f_code.co_filename != contextlib.__file__ else trace
        lines.append(frame.f_lineno)
        if len(lines) == line + 1:
            raise KeyboardInterrupt
        return trace

    with collecting(buffer) as collector:
        collector.start()
        buffer.wait_for_writes(1)
        pause = collector.pause()
        pause.__enter__()
        count = len(buffer)
        before = sys.gettrace()
        try:
            sys.settrace(trace)
            pause.__exit__(None, None, None)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert len(lines) > line
        del pause
        buffer.wait_for_writes(count // 4 + 2)


def test_pauses_of_several_threads() -> None:
    buffer = Buffer()
    wrong: list[Any] = []
    with collecting(buffer) as collector:

        def pausing() -> None:
            for _ in range(25):
                with collector.pause():
                    before = len(buffer)
                    if buffer.under_way or len(buffer) != before:
                        wrong.append((buffer.under_way, before, len(buffer)))

        collector.start()
        for thread in [in_thread(pausing) for _ in range(4)]:
            join(thread)
        count = len(buffer)
        buffer.wait_for_writes(count // 4 + 2)
    assert wrong == []


def test_pause_ends_with_an_error_in_its_body() -> None:
    buffer = Buffer()
    with collecting(buffer) as collector:
        collector.start()
        with pytest.raises(ZeroDivisionError), collector.pause():
            _ = len(buffer) / 0
        buffer.wait_for_writes(len(buffer) // 4 + 2)


def test_pause_of_a_collector_that_does_not_run() -> None:
    collector = collecting(Buffer(), total_frames=4)
    with collector.pause():
        pass
    collector.start()
    wait_for_end(collector)
    with collector.pause():
        assert collector.stats().frames == 4
    collector.shutdown()
    with pytest.raises(ClosedError), collector.pause():
        pass


def test_shutdown_in_a_pause() -> None:
    buffer = Buffer()
    collector = collecting(buffer)
    collector.start()
    with collector.pause():
        collector.async_shutdown()
        count = len(buffer)
    assert (collector.closed, collector.is_running(), len(buffer)) == (True, False, count)


# ---------------------------------------------------------------------- calls while it runs


def test_d11_a_checkpoint_agrees_with_the_buffer() -> None:
    buffer = Buffer()
    with collecting(buffer) as collector:
        collector.start()
        for _ in range(20):
            with collector.pause():
                assert collector.state_dict()["counters"]["frames"] == len(buffer) == collector.stats().frames


def test_reset_seed_and_calls_come_between_two_rollouts() -> None:
    buffer = Buffer()
    with collecting(buffer, Count(100_000)) as collector:
        collector.start()
        # Episodes are long enough for none to end here.
        for call in (collector.reset, lambda: collector.set_seed(3), lambda: collector.getattr_env("steps")):
            buffer.wait_for_writes(len(buffer) // 4 + 1)
            call()
        buffer.wait_for_writes(len(buffer) // 4 + 2)
    ids = [int(batch["collector", "traj_ids"][0]) for batch in buffer.batches]
    assert sorted(set(ids)) == [0, 1, 2]
    for batch in buffer.batches:
        assert len(set(batch["collector", "traj_ids"].tolist())) == 1, "a reset in the middle of a rollout"
        assert batch["observation"].flatten().diff().tolist() == [1, 1, 1]


def test_call_env_and_attributes() -> None:
    env, buffer = Count(5), Buffer()
    with collecting(buffer, env) as collector:
        collector.start()
        assert collector.getattr_env("length") == 5
        assert collector.call_env("is_over_time") is False
        assert collector.getattr_policy("w").tolist() == [0]
        assert collector.getattr_policy("w") is not collector.policy.w


def test_calls_in_the_thread_itself_do_not_wait_for_it() -> None:
    seen: list[Any] = []

    def postproc(batch: Any) -> Any:
        seen.append((collector.getattr_env("length"), collector.stats().frames, collector.is_running()))
        if len(seen) == 2:
            collector.reset()
        return batch

    buffer = Buffer()
    with collecting(buffer, Count(1000), postproc=postproc, total_frames=12) as collector:
        collector.start()
        wait_for_end(collector)
    assert seen == [(1000, 4, True), (1000, 8, True), (1000, 12, True)]
    assert observed(buffer.batches) == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3]


def test_the_callers_generator_is_left_alone() -> None:
    """It is one for all threads: neither a seed from before nor one that is given meanwhile swaps another in."""
    seen: list[torch.Tensor] = []

    def policy(observation: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_rng_state())
        return observation

    buffer = Buffer()
    with collecting(buffer, policy=policy, init_random_frames=8) as collector:
        collector.set_seed(3)
        state = torch.get_rng_state()
        seen.clear()
        collector.start()
        collector.set_seed(4)
        buffer.wait_for_writes(len(buffer) // 4 + 5)
    assert len(seen) > 8
    assert all(torch.equal(one, state) for one in seen)
    assert torch.equal(torch.get_rng_state(), state)


def test_stats_while_it_runs() -> None:
    buffer = Buffer()
    frames: list[int] = []
    episodes = 0
    with collecting(buffer) as collector:
        collector.start()
        for number in range(1, 20):
            buffer.wait_for_writes(number)
            stats = collector.stats()
            frames.append(stats.frames)
            episodes += len(stats.episodes)
        with collector.pause():
            stats = collector.stats()
            assert (stats.frames, stats.batches) == (len(buffer), len(buffer) // 4)
            assert episodes + len(stats.episodes) == stats.finished_episodes == stats.frames // 5
    assert frames == sorted(frames)
    assert all(seen >= 4 * number for number, seen in enumerate(frames, 1))


def test_pauses_that_follow_each_other_at_once_do_not_hold_the_thread_forever() -> None:
    memory: deque[Any] = deque()
    with SyncDataCollector(lambda: Count(5), frames_per_batch=4, total_frames=400, replay_buffer=memory) as collector:
        collector.start()
        while collector.is_running():
            with collector.pause():
                assert len(memory) == collector.stats().frames
    assert len(memory) == 400
