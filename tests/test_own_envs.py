"""Envs that users write by TensorDicts, beside what `test_frames.py` shows of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from reap.collectors import SyncDataCollector
from reap.envs import EnvBase, SerialEnv
from reap.errors import SpecMismatch
from reap.specs import Composite, Unbounded
from reap.testing import Const, Crash, DictPolicy, IdRows


class State(EnvBase):
    """Counts in a tensor that it keeps and changes in place; `end` gives the flags of its fourth step."""

    def __init__(self, end: dict[str, bool], size: tuple[int, ...] = ()) -> None:
        super().__init__(batch_size=size)
        self.observation_spec = Composite(observation=Unbounded((*size, 1)), shape=size)
        self.action_spec = Unbounded((*size, 1))
        self.add_truncated_keys()
        self.end, self.last_action = end, torch.zeros(*size, 1)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self.state = torch.zeros(*self.batch_size, 1)
        return TensorDict({"observation": self.state}, self.batch_size)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.state += 1
        self.last_action = tensordict["action"]
        flags = {name: (self.state == 4) & value for name, value in self.end.items()}
        return TensorDict({"observation": self.state, "reward": torch.ones_like(self.state), **flags}, self.batch_size)

    def _set_seed(self, seed: int) -> None:
        pass


@pytest.mark.parametrize("size", [(), (2,)])
@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        ({"done": True}, (True, False)),
        ({"terminated": True}, (True, False)),
        ({"truncated": True}, (False, True)),
        ({"done": True, "terminated": False}, (False, True)),
        ({"done": True, "truncated": True}, (False, True)),
        ({"done": True, "truncated": False}, (True, False)),
        ({"done": True, "terminated": True}, (True, False)),
        ({"terminated": True, "truncated": True}, (True, True)),
        ({"done": True, "terminated": False, "truncated": False}, (True, False)),
    ],
)
def test_flags_that_an_env_leaves_out_follow_from_the_others(end: dict[str, bool], wanted: Any, size: tuple[int, ...]) -> None:
    """`done == terminated | truncated`, whichever of them the env gives."""
    with SyncDataCollector(State(end, size), Const(), frames_per_batch=8 * max(1, *size, 1)) as collector:
        batch = collector.next()
    following = batch["next"]
    last = torch.arange(8).view(8, 1) % 4 == 3
    for name, value in zip(("done", "terminated", "truncated"), (True, *wanted), strict=True):
        assert torch.equal(following[name], (last & value).expand(*size, 8, 1)), name
    assert batch["observation"].reshape(-1, 8)[0].tolist() == [0, 1, 2, 3] * 2


def test_a18_envs_are_reset_and_stepped_without_gradients() -> None:
    """From the first reset on, which is at construction."""
    modes: list[bool] = []

    class Watched(State):
        def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
            modes.append(torch.is_grad_enabled())
            return super()._reset(tensordict)

        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            modes.append(torch.is_grad_enabled())
            return super()._step(tensordict)

    with SyncDataCollector(Watched({"done": True}), Const(), frames_per_batch=8) as collector:
        collector.next()
    assert modes == [False] * 10


def test_what_an_env_keeps_is_no_inference_tensor() -> None:
    """It goes on being used after the collector: in place, or for a gradient."""
    env = State({"done": True})
    with SyncDataCollector(env, Const(), frames_per_batch=6) as collector:
        collector.next()
        assert not env.state.is_inference()
        assert not env.last_action.is_inference()
        env.state.add_(1)
        (env.last_action * torch.ones(1, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("kind", ["rows", "single"])
def test_envs_of_a_batch_may_be_batches_themselves(kind: str) -> None:
    """Rows of a batch of envs are stepped and reset one by one, each by its own env."""
    inner = (2,) if kind == "rows" else ()
    env = SerialEnv(3, lambda: IdRows(inner))
    with SyncDataCollector(env, DictPolicy(), frames_per_batch=20 * env.batch_size.numel()) as collector:
        batch = collector.next()
    assert batch.batch_size == (3, *inner, 20)
    with SyncDataCollector(IdRows(inner), DictPolicy(), frames_per_batch=20 * max(1, *inner, 1)) as collector:
        alone = collector.next()
    for part in batch.unbind(0):
        for key in alone.exclude(("collector", "traj_ids")).keys(True, True):
            assert torch.equal(part[key], alone[key]), key
    assert len(batch["collector", "traj_ids"].unique()) == len(alone["collector", "traj_ids"].unique()) * 3


@pytest.mark.parametrize("size", [(), (3,)])
def test_versions_and_all_else_are_zero_where_a_frame_is_invalid(size: tuple[int, ...]) -> None:
    options: dict[str, Any] = {"reset_when_done": False, "track_policy_version": True}
    rows = max(1, *size, 1)
    with SyncDataCollector(IdRows(size), DictPolicy(), frames_per_batch=12 * rows, **options) as collector:
        collector.update_policy_weights_()
        batch = collector.next()
    invalid = ~batch["collector", "mask"]
    assert invalid.any()
    assert (batch["collector", "traj_ids"][invalid] == -1).all()
    for key in batch.exclude(("collector", "traj_ids")).keys(True, True):
        assert not batch[key][invalid].any(), key
    assert (batch["collector", "policy_version"][~invalid] == 1).all()


def test_a_collector_goes_on_after_an_env_has_raised() -> None:
    """With new episodes in all rows; what was recorded of the broken batch is not delivered and not counted."""
    env = SerialEnv(2, [lambda: Crash(10**9, 3), lambda: Crash(13, 4)])
    with SyncDataCollector(env, Const(), frames_per_batch=20) as collector:
        first = collector.next()
        with pytest.raises(RuntimeError, match="crashed in step 13"):
            collector.next()
        assert collector.stats().frames == 20
        third = collector.next()
        assert collector.stats().frames == 40
    assert third["observation"].squeeze(-1).tolist() == [[0, 1, 2] * 3 + [0], [0, 1, 2, 3] * 2 + [0, 1]]
    seen = set(first["collector", "traj_ids"].unique().tolist())
    assert not seen & set(third["collector", "traj_ids"].unique().tolist())


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_flags_of_a_wrong_size_are_named(shape: tuple[int, ...]) -> None:
    class Odd(State):
        def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
            result = super()._step(tensordict)
            result.batch_size = []
            return result.set("done", torch.zeros(shape, dtype=torch.bool))

    with pytest.raises(SpecMismatch, match=r"Odd\._step.*done.*expected shape"):
        Odd({}, (2,)).rollout(3)
    with (
        SyncDataCollector(Odd({}, (2,)), Const(), frames_per_batch=6) as collector,
        pytest.raises(SpecMismatch, match=r"Odd\._step.*done.*expected shape"),
    ):
        collector.next()
