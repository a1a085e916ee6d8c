"""Weights of a policy that acts in the background. No sleeps, and a limit on whatever waits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from reap.testing import Const
from tests.collectors.buffers import LIMIT, Buffer, Gated, collecting
from tests.collectors.seams import wait_for_end


def actions(batch: Any) -> list[float]:
    return batch["action"].flatten().tolist()


def test_e10_weights_are_those_of_the_last_update() -> None:
    """A write is allowed when the main thread is done: the batch after it is collected with what was set by then."""
    policy, buffer = Const(0.0), Buffer(0)
    before = policy.w
    with collecting(buffer, policy=policy, track_policy_version=True) as collector:
        collector.start()
        for number, update in enumerate([False, True, False, True], 1):
            buffer.wait_for_arrival(number)
            with torch.no_grad():
                policy.w.fill_(number)
            if update:
                collector.update_policy_weights_()
            buffer.allow()
        buffer.wait_for_arrival(5)
        buffer.allow(100)
    found = [(actions(batch), batch["collector", "policy_version"].tolist()) for batch in buffer.batches[:5]]
    assert found == [([w] * 4, [v] * 4) for w, v in ((0, 0), (0, 0), (2, 1), (2, 1), (4, 2))]
    assert policy.w is before
    assert (policy.w.requires_grad, policy.w.is_shared(), policy.w.grad) == (True, False, None)


def test_an_update_does_not_wait_for_the_rollout_under_way() -> None:
    env, policy, buffer = Gated(), Const(0.0), Buffer(0)
    with collecting(buffer, env, policy) as collector:
        collector.start()
        assert env.entered.wait(LIMIT)
        with pytest.raises(ValueError, match="weights"):
            collector.update_policy_weights_({"v": torch.zeros(1)})
        collector.update_policy_weights_({"w": torch.full((1,), 3.0)})
        assert collector.policy_version == 1
        env.gate.set()
        buffer.wait_for_arrival(1)
        buffer.allow()
        buffer.wait_for_arrival(2)
        buffer.allow(100)
    assert actions(buffer.batches[0]) == [0] * 4, "one rollout, one version"
    assert actions(buffer.batches[1]) == [3] * 4
    assert policy.w.tolist() == [0], "given weights go to the private copy, not into the caller's module"


def test_an_update_after_the_end_is_used_by_rollouts_that_follow() -> None:
    policy = Const(0.0)
    with collecting(Buffer(), policy=policy, total_frames=4) as collector:
        collector.start()
        wait_for_end(collector)
        with torch.no_grad():
            policy.w.fill_(5.0)
        collector.update_policy_weights_()
        assert actions(collector.rollout()) == [5] * 4


def test_a_policy_that_changes_while_it_acts_changes_in_the_copy() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.calls.clone()

    policy, buffer = Counting(), Buffer()
    with collecting(buffer, policy=policy, total_frames=8) as collector:
        collector.start()
        wait_for_end(collector)
    assert [actions(batch) for batch in buffer.batches] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert float(policy.calls) == 0


def test_load_state_dict_reaches_the_copy() -> None:
    saved = collecting(Buffer(), policy=Const(5.0))
    saved.next()
    policy, buffer = Const(0.0), Buffer()
    with collecting(buffer, policy=policy) as collector:
        collector.start()
        buffer.wait_for_writes(1)
        collector.load_state_dict(saved.state_dict())
        with collector.pause():
            written = len(buffer.batches)
        buffer.wait_for_writes(written + 1)
    assert policy.w.tolist() == [5]
    assert actions(buffer.batches[0]) == [0] * 4
    assert actions(buffer.batches[written]) == [5] * 4
