"""Updates of weights, as workers on any engine get them: who is updated when, and all of a policy's state at the leaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from reap.testing import Count
from tests.collectors.worker_kinds import VERSION

COLUMNS = 4


class Shows(nn.Module):
    """A policy whose action is its weight."""

    def __init__(self, size: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size), requires_grad=False)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.weight[:1].expand(*observation.shape[:-1], 1)


class Whole(Shows):
    """Shows each kind of state: its weight as the action, a buffer, an extra state and an attribute as further outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.extra = self.gain = 0.0

    def get_extra_state(self) -> Any:
        return {"extra": self.extra}

    def set_extra_state(self, state: Any) -> None:
        self.extra = state["extra"]

    def forward(self, observation: torch.Tensor) -> Any:
        action = super().forward(observation)
        shown = {"mean": self.mean, "extra": torch.tensor([self.extra]), "gain": torch.tensor([self.gain])}
        return {"action": action, **{name: value.expand_as(action).clone() for name, value in shown.items()}}

    def become(self, number: int) -> None:
        """Make all of it this number."""
        self.weight.fill_(number)
        self.mean.fill_(number)
        self.extra = self.gain = float(number)


def when_only_one_worker_is_updated(make: Callable[..., Any]) -> list[tuple[list[float], list[int]]]:
    """What acts in each of two workers, with its version, in seven batches; `update_policy_weights_` updates the first alone.

    The weight is the number of batches before, and no worker goes without an update for more than three.
    """
    policy, found = Shows(), []
    options: Any = {"sync": True, "frames_per_batch": 2 * COLUMNS, "track_policy_version": True}
    with make([partial(Count, 50)] * 2, policy, max_weight_update_interval=3, **options) as collector:
        for _ in range(7):
            batch = collector.next()
            assert (batch["action"] == batch["action"][:, :1]).all()
            assert (batch[VERSION] == batch[VERSION][:, :1]).all()
            found.append((batch["action"][:, 0, 0].tolist(), batch[VERSION][:, 0].tolist()))
            policy.weight += 1
            collector.update_policy_weights_(worker_ids=0)
    return found


ONLY_ONE = [
    ([0, 0], [1, 1]),
    ([1, 0], [2, 1]),
    ([2, 0], [3, 1]),
    ([3, 3], [4, 5]),
    ([4, 3], [6, 5]),
    ([5, 3], [7, 5]),
    ([6, 6], [8, 9]),
]


def check_leaves(make: Callable[..., Any], **options: Any) -> Any:
    """Workers that run collectors of two processes: all of the version that acted in a frame did. Returns the last batch."""
    policy = Whole()
    given = {"policy": policy, "num_workers_per_collector": 2, "track_policy_version": True, **options}
    with make([partial(Count, 50)] * 2, **given) as collector:
        is_sync, acted = collector.sync, set[int]()
        for number in range(5):
            if number:
                policy.become(number)
                collector.update_policy_weights_(policy)
            batch = collector.next()
            version = batch[VERSION]
            acted.update(version.unique().tolist())
            for name in ("action", "mean", "extra", "gain"):
                assert (batch[name].squeeze(-1) == version).all(), name
            assert not is_sync or (version == number).all()
        assert acted <= set(range(5))
    return batch
