"""`RemoteTensorDictReplayBuffer`: a buffer like others, and methods that are called where it is."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch.distributed import rpc

from reap.data import LazyTensorStorage, PrioritizedSampler, RemoteTensorDictReplayBuffer, TensorDictReplayBuffer
from reap.data.buffers.remote import CALLED
from tests.weights.engines.references import join_group


def frames(*values: int) -> TensorDict:
    return TensorDict({"n": torch.tensor(values)}, [len(values)])


class Reference:
    """What an RRef is at its owner."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def local_value(self) -> Any:
        return self._value


def test_a_buffer_like_others() -> None:
    ours = RemoteTensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    samples: list[Any] = []
    for buffer in (ours, theirs):
        buffer.extend(frames(1, 2, 3))
        buffer.add(frames(4)[0])
        torch.manual_seed(0)
        samples.append(buffer.sample())
    assert samples[0]["index"].equal(samples[1]["index"])
    assert (samples[0] == samples[1]).all()
    assert next(iter(ours)).shape == (4,)
    assert len(ours) == 4
    assert repr(ours) == f"Remote{theirs!r}"


def test_every_public_method_takes_a_reference() -> None:
    names = {name for name in dir(TensorDictReplayBuffer) if not name.startswith("_")} | set(CALLED)
    methods = {name for name in names if callable(getattr(TensorDictReplayBuffer, name))}
    assert {"add", "extend", "sample", "update_priority", "update_tensordict_priority", "empty", "dumps", "stats"} < methods
    for name in methods:
        method = getattr(RemoteTensorDictReplayBuffer, name)
        assert method.__qualname__ == f"RemoteTensorDictReplayBuffer.{name}"  # as it is pickled
        assert method.__doc__ == getattr(TensorDictReplayBuffer, name).__doc__
    buffer = RemoteTensorDictReplayBuffer(storage=LazyTensorStorage(8))
    RemoteTensorDictReplayBuffer.extend(Reference(buffer), frames(1, 2))  # pyright: ignore[reportArgumentType]
    assert RemoteTensorDictReplayBuffer.__len__(Reference(buffer)) == 2  # pyright: ignore[reportArgumentType]


def own(store: str) -> None:
    join_group("owner", 1, store)
    rpc.shutdown()


def train(store: str) -> None:
    join_group("trainer", 0, store)
    call_the_owner("owner")
    rpc.shutdown()


def call_the_owner(owner: str) -> None:
    kind = RemoteTensorDictReplayBuffer
    options = {"batch_size": 4, "storage": LazyTensorStorage(8), "sampler": PrioritizedSampler(8, 1.0, 1.0, eps=0.0)}
    rref: Any = rpc.remote(owner, kind, kwargs=options)

    def call(method: Any, *arguments: Any, **options: Any) -> Any:
        return rpc.rpc_sync(owner, method, args=(rref, *arguments), kwargs=options)

    assert call(kind.extend, frames(10, 11, 12)).tolist() == [0, 1, 2]
    assert int(call(kind.add, frames(13)[0])) == 3
    call(kind.update_priority, torch.tensor([0, 1, 2]), 0.0)
    sample, info = call(kind.sample, 50, return_info=True)
    assert sample["n"].tolist() == [13] * 50
    assert sample["index"].equal(info["index"])
    call(
        kind.update_tensordict_priority, TensorDict({"index": torch.tensor([1, 3]), "td_error": torch.tensor([1.0, 0.0])}, [2])
    )
    assert call(kind.sample)["n"].tolist() == [11] * 4
    call(kind.__setitem__, slice(0, 1), frames(9))
    assert call(kind.__getitem__, slice(None))["n"].tolist() == [9, 11, 12, 13]
    assert call(kind.__len__) == 4
    with pytest.raises(ValueError, match="OptionError.*batch_size: expected a positive integer, got -1"):
        call(kind.sample, -1)
    call(kind.empty)
    assert call(kind.stats)["size"] == 0


@pytest.mark.distributed
def test_calls_are_carried_out_at_the_owner(tmp_path: Path) -> None:
    # Both are processes of their own: one that has been in a group finds no new one by a store.
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=target, args=(str(tmp_path / "store"),), daemon=True) for target in (own, train)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
