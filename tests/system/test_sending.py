"""What is sent to another process of this machine is shared with it; what is copied, or saved to a file, is a copy."""

from __future__ import annotations

import copy
import io
import multiprocessing as mp
import pickle
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from reap.errors import OptionError
from reap.workers.pickling import dumps, encode


class OwnStorage(LazyTensorStorage):
    """One of a user's."""


STORAGES: dict[str, Callable[[], Any]] = {
    "ram": lambda: LazyTensorStorage(21),
    "files": lambda: LazyMemmapStorage(21),
    "own": lambda: OwnStorage(21),
    "once": lambda: LazyTensorStorage(21, observations_once=True),
}

SENDERS: dict[str, Callable[[Any], bytes]] = {
    "multiprocessing": lambda value: bytes(ForkingPickler.dumps(value)),
    "workers": lambda value: dumps(value, "a test"),
    "commands": lambda value: encode(value, "a test").body,
    "a function": lambda value: dumps(lambda: value, "a test"),
}


def frames(first: int, count: int) -> TensorDict:
    return TensorDict({"a": torch.arange(first, first + count)}, [count])


def filled(storage: Any, **options: Any) -> ReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=2, **options)
    buffer.extend(frames(0, 10))
    return buffer


def received(data: bytes) -> Any:
    value = pickle.loads(data)
    return value if isinstance(value, ReplayBuffer) else value()


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_buffer_is_shared_where_it_is_sent(storage: str, sender: str) -> None:
    buffer = filled(STORAGES[storage]())
    other = received(SENDERS[sender](buffer))
    other.extend(frames(10, 5))
    assert buffer[:]["a"].tolist() == other[:]["a"].tolist() == list(range(15))
    assert buffer.write_count == 15


def test_so_is_one_that_holds_nothing_yet_and_a_storage_alone() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(21))
    other = pickle.loads(ForkingPickler.dumps({"it": [buffer]}))["it"][0]
    other.extend(frames(0, 3))
    assert buffer[:]["a"].tolist() == [0, 1, 2]
    alone = filled(LazyTensorStorage(21)).storage
    storage = pickle.loads(ForkingPickler.dumps(alone))
    assert storage.control.is_shared
    assert len(storage) == 10


@pytest.mark.parametrize("sender", SENDERS)
def test_what_cannot_be_shared_is_refused_and_goes_on_here(sender: str) -> None:
    of_items = filled(ListStorage(21))
    with pytest.raises(OptionError, match="a ListStorage cannot be shared between processes; use a LazyTensorStorage"):
        SENDERS[sender](of_items)
    ranked = ReplayBuffer(storage=LazyTensorStorage(21), writer=TensorDictMaxValueWriter("a"))
    ranked.extend(frames(0, 10))
    with pytest.raises(OptionError, match="TensorDictMaxValueWriter: expected a buffer of one process, got a shared one"):
        SENDERS[sender](ranked)
    for buffer in (of_items, ranked):
        buffer.extend(frames(10, 2))
        assert len(buffer) == 12


def saved(value: Any) -> Any:
    with io.BytesIO() as file:
        torch.save(value, file)
        file.seek(0)
        return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved, lambda value: pickle.loads(pickle.dumps(value))])
@pytest.mark.parametrize("storage", ["ram", "own", "once", "list"])
def test_copies_are_copies(storage: str, copied: Callable[[Any], Any]) -> None:
    buffer = filled(ListStorage(21) if storage == "list" else STORAGES[storage]())
    other = copied(buffer)
    other.extend(frames(10, 5))
    buffer.extend(frames(100, 1))
    assert (len(buffer), len(other)) == (11, 15)
    assert not buffer.storage.control.is_shared
    assert buffer[-1]["a"] == 100


def test_files_are_not_copied_into_a_pickle() -> None:
    buffer = filled(LazyMemmapStorage(21))
    for copied in (copy.deepcopy, saved, pickle.dumps):
        with pytest.raises(OptionError, match=r"call share\(\) before .*, or dumps\(path\) to save it"):
            copied(buffer)


def work(buffer: Any, results: Any) -> None:
    buffer.extend(frames(10, 5))
    buffer.sample()
    results.put(len(buffer))


@pytest.mark.parametrize("storage", ["ram", "files"])
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.processes)])
def test_a_started_process_writes_to_the_same_buffer(method: str, storage: str) -> None:
    context: Any = mp.get_context(method)
    buffer, results = filled(STORAGES[storage](), sampler=PrioritizedSampler(21, 0.7, 0.5)), context.Queue()
    buffer.sample()
    process = context.Process(target=work, args=(buffer, results))
    process.start()
    assert results.get(timeout=180) == 15
    process.join(60)
    assert buffer[:]["a"].tolist() == list(range(15))
    assert set(buffer.sample(300)["a"].tolist()) == set(range(15))
