"""From a recorded batch to what the user gets: truncation marks, splitting, postproc, the replay buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase

from reap.collectors import SyncDataCollector
from reap.collectors.delivery.steps import mark_truncated
from reap.collectors.utils import split_trajectories
from reap.envs import SerialEnv
from reap.testing import Const, Count, CountTL, DictPolicy, IdRows
from reap.testing.marked import Marked


def count(env: Any = None, **options: Any) -> SyncDataCollector:
    return SyncDataCollector(env or Count(5), Const(), **{"frames_per_batch": 4, **options})


def observed(batch: Any) -> list[float]:
    return batch["observation"].flatten().tolist()


# ---------------------------------------------------------------------- set_truncated


def test_a04_set_truncated_keeps_real_ends() -> None:
    batch = count(frames_per_batch=12, set_truncated=True).next()
    following = batch["next"]
    assert torch.where(following["terminated"].flatten())[0].tolist() == [4, 9]
    assert torch.where(following["truncated"].flatten())[0].tolist() == [11]
    assert torch.where(following["done"].flatten())[0].tolist() == [4, 9, 11]
    assert not batch["done"].any()
    assert not batch["truncated"].any()


def test_set_truncated_does_not_end_the_episode() -> None:
    collector = count(set_truncated=True)
    batches = [collector.next() for _ in range(2)]
    assert [observed(batch) for batch in batches] == [[0, 1, 2, 3], [4, 0, 1, 2]]
    assert batches[1]["collector", "traj_ids"].tolist() == [0, 1, 1, 1]


def test_set_truncated_is_off_by_default_and_part_of_rollout() -> None:
    assert not count().next()["next", "done"].any()
    assert count(set_truncated=True).rollout()["next", "done"].flatten().tolist() == [False, False, False, True]


def test_mark_truncated_takes_the_last_valid_frame_of_each_row() -> None:
    flags = torch.zeros(3, 4, 1, dtype=torch.bool)
    mask = torch.tensor([[True, True, True, True], [True, False, True, False], [False, False, False, False]])
    batch = TensorDict({"next": {"done": flags.clone(), "truncated": flags.clone()}, "collector": {"mask": mask}}, [3, 4])
    marked = mark_truncated(batch)
    expected = [[False, False, False, True], [False, False, True, False], [False] * 4]
    assert marked["next", "truncated"].squeeze(-1).tolist() == expected
    assert marked["next", "done"].squeeze(-1).tolist() == expected


# ---------------------------------------------------------------------- split_trajs, postproc


def test_split_trajs() -> None:
    batch = count(CountTL(9, 3), frames_per_batch=5, split_trajs=True).next()
    assert batch.batch_size == (2, 3)
    assert batch["observation"].squeeze(-1).tolist() == [[0, 1, 2], [0, 1, 0]]
    assert batch["collector", "mask"].tolist() == [[True, True, True], [True, True, False]]


def test_split_trajs_comes_before_postproc() -> None:
    shapes: list[torch.Size] = []

    def postproc(batch: TensorDictBase) -> TensorDictBase:
        shapes.append(batch.batch_size)
        return batch

    collector = count(CountTL(9, 3), frames_per_batch=5, split_trajs=True, postproc=postproc)
    collector.next()
    assert shapes == [torch.Size([2, 3])]


def test_postproc_is_called_once_per_delivered_batch() -> None:
    calls: list[list[float]] = []

    def postproc(batch: TensorDictBase) -> str:
        calls.append(observed(batch))
        return f"batch {len(calls)}"

    collector = count(postproc=postproc, total_frames=12)
    collector.rollout()
    assert calls == []
    assert list(collector) == ["batch 1", "batch 2"]
    assert calls == [[4, 0, 1, 2], [3, 4, 0, 1]]


def test_an_error_in_postproc_leaves_the_collector_usable() -> None:
    wrong = [False, True, False]

    def postproc(batch: TensorDictBase) -> TensorDictBase:
        if wrong.pop(0):
            raise LookupError("no such key")
        return batch

    collector = count(postproc=postproc, total_frames=12)
    batches = iter(collector)
    assert observed(next(batches)) == [0, 1, 2, 3]
    with pytest.raises(LookupError, match="^no such key$"):
        next(batches)
    # The batch was collected, and counts; a new episode begins, for the other one would have a gap.
    assert [observed(batch) for batch in collector] == [[0, 1, 2, 3]]
    assert not collector.closed


def failing(k: int) -> Any:
    """A postproc that fails in its k-th call, counted from 0."""
    calls: list[int] = []

    def postproc(batch: TensorDictBase) -> TensorDictBase:
        calls.append(0)
        if len(calls) == k + 1:
            raise LookupError("no such key")
        return batch

    return postproc


def ids(batch: TensorDictBase) -> list[int]:
    return batch["collector", "traj_ids"].flatten().tolist()


def test_a_state_after_a_lost_batch_starts_new_episodes() -> None:
    collector = SyncDataCollector(Count(9), Const(), frames_per_batch=2, postproc=failing(1))
    assert observed(collector.next()) == [0, 1]
    with pytest.raises(LookupError):
        collector.next()
    state = collector.state_dict()
    other = SyncDataCollector(Count(9), Const(), frames_per_batch=2, postproc=failing(9))
    other.load_state_dict(state)
    for one in (other, collector):
        batch = one.next()
        assert (observed(batch), ids(batch)) == ([0, 1], [1, 1])


def test_a_state_from_before_goes_on_where_it_was_taken() -> None:
    collector = SyncDataCollector(Marked(3), Const(), frames_per_batch=2, postproc=failing(1))
    collector.next()
    state = collector.state_dict()
    with pytest.raises(LookupError):
        collector.next()
    collector.load_state_dict(state)
    assert ids(collector.next()) == [0, 0]


# ---------------------------------------------------------------------- replay buffer


class Buffer:
    """Keeps what is written to it, and how."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, torch.Size]] = []
        self.data: list[TensorDictBase] = []

    def extend(self, data: TensorDictBase) -> None:
        self.calls.append(("extend", data.batch_size))
        self.data.append(data)

    def add(self, data: TensorDictBase) -> None:
        self.calls.append(("add", data.batch_size))
        self.data.append(data)


def test_batches_go_to_the_buffer_and_iteration_yields_none() -> None:
    buffer = Buffer()
    collector = count(replay_buffer=buffer, total_frames=8)
    assert list(collector) == [None, None]
    assert buffer.calls == [("extend", torch.Size([4]))] * 2
    assert [observed(data) for data in buffer.data] == [[0, 1, 2, 3], [4, 0, 1, 2]]


def test_rollout_is_not_written() -> None:
    buffer = Buffer()
    assert observed(count(replay_buffer=buffer).rollout()) == [0, 1, 2, 3]
    assert buffer.calls == []


@pytest.mark.parametrize(("rows", "calls"), [(0, [("add", torch.Size([]))] * 4), (2, [("extend", torch.Size([2]))] * 2)])
def test_columns_one_after_the_other(rows: int, calls: list[Any]) -> None:
    buffer = Buffer()
    env = SerialEnv(rows, lambda: Count(5)) if rows else Count(5)
    assert count(env, replay_buffer=buffer, extend_buffer=False).next() is None
    assert buffer.calls == calls
    columns = [data["observation"].flatten().tolist() for data in buffer.data]
    assert columns == ([[0, 0], [1, 1]] if rows else [[0], [1], [2], [3]])


def test_a_buffer_gets_what_postproc_made() -> None:
    buffer = Buffer()
    count(SerialEnv(2, lambda: Count(5)), replay_buffer=buffer, postproc=lambda batch: batch.reshape(-1)).next()
    assert buffer.calls == [("extend", torch.Size([4]))]
    assert observed(buffer.data[0]) == [0, 1, 0, 1]


def test_an_error_of_the_buffer_leaves_the_collector_usable() -> None:
    class Full(Buffer):
        def extend(self, data: TensorDictBase) -> None:
            if not self.calls:
                self.calls.append(("full", data.batch_size))
                raise MemoryError("full")
            super().extend(data)

    buffer = Full()
    collector = count(replay_buffer=buffer)
    with pytest.raises(MemoryError, match="^full$"):
        collector.next()
    assert collector.next() is None
    assert observed(buffer.data[0]) == [0, 1, 2, 3]  # a new episode: the other one would have a gap


# ---------------------------------------------------------------------- keys and devices


def test_key_set_and_layout() -> None:
    batch = SyncDataCollector(IdRows((2,)), DictPolicy(), frames_per_batch=6).next()
    leaves = {key: (value.dtype, tuple(value.shape)) for key, value in batch.items(True, True)}
    flags = dict.fromkeys(("done", "terminated", "truncated"), (torch.bool, (2, 3, 1)))
    assert leaves == {
        "observation": (torch.float32, (2, 3, 3)),
        "action": (torch.float32, (2, 3, 1)),
        "log_prob": (torch.float32, (2, 3)),
        ("info", "count"): (torch.int64, (2, 3, 1)),
        ("collector", "traj_ids"): (torch.int64, (2, 3)),
        ("next", "observation"): (torch.float32, (2, 3, 3)),
        ("next", "reward"): (torch.float32, (2, 3, 1)),
        **flags,
        **{("next", name): flags[name] for name in flags},
    }
    assert batch.names == [None, "time"]
    assert batch["next"].names == [None, "time"]


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({"max_frames_per_traj": 3}, {"step_count", ("next", "step_count")}),
        ({"track_policy_version": True}, {("collector", "policy_version")}),
        ({"reset_when_done": False}, {("collector", "mask")}),
        ({"use_buffers": True}, set()),
        ({"no_cuda_sync": True}, set()),
        ({"env_device": "cpu"}, set()),
    ],
)
def test_options_that_add_keys(options: dict[str, Any], added: set[Any]) -> None:
    plain = set(count().next().keys(True, True))
    for frames in (0, 4):
        collector = count(init_random_frames=frames, **options)
        for _ in range(3):
            assert set(collector.next().keys(True, True)) == plain | added


@pytest.mark.parametrize("given", [None, "cpu"])
def test_storing_device(given: str | None) -> None:
    batch = count(storing_device=given).next()
    assert batch.device == (None if given is None else torch.device(given))
    assert batch["next"].device == batch.device
    assert {leaf.device for leaf in batch.values(True, True)} == {torch.device("cpu")}


def test_another_storing_device_gets_copies() -> None:
    batch = count(storing_device="meta").next()
    assert {leaf.device.type for leaf in batch.values(True, True)} == {"meta"}
    assert batch.device == torch.device("meta")
    assert batch.names == ["time"]


def test_return_same_td() -> None:
    collector = count(return_same_td=True)
    first = collector.next()
    assert observed(first) == [0, 1, 2, 3]
    first["mine"] = torch.zeros(4)
    second = collector.next()
    assert second is first
    assert observed(second) == [4, 0, 1, 2]
    assert "mine" not in second
    assert collector.next() is not count(return_same_td=False).next()


def test_split_has_the_same_frames_as_the_batch() -> None:
    whole = count(CountTL(9, 3), frames_per_batch=10).next()
    split = count(CountTL(9, 3), frames_per_batch=10, split_trajs=True).next()
    assert (split_trajectories(whole) == split).all()
