"""Data of classes that a function defines: no other process finds these by their names."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from tensordict import TensorDict, tensorclass

from reap import MultiaSyncDataCollector
from reap.data.buffers.replay import ReplayBuffer
from reap.data.max_value import TensorDictMaxValueWriter
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from reap.errors import SpecMismatch

TENSORS = {"RAM": LazyTensorStorage, "files": LazyMemmapStorage}
STORAGES = {**TENSORS, "list": ListStorage}

every = pytest.mark.parametrize("storage", STORAGES)
kinds = pytest.mark.parametrize("kind", ["tensorclass", "named tuple"])


def local(kind: str) -> Any:
    """A class of this function, and a function that makes data of it: `[n]` from a number on, or one item for None."""
    if kind == "named tuple":
        Pair = namedtuple("Pair", "x y")  # noqa: PYI024  as many write it, in a function
        return Pair, lambda n, start=0: Pair(x=numbers(n, start), y=numbers(n, start) * 2)

    @tensorclass
    class Point:
        x: torch.Tensor
        y: torch.Tensor

    make: Any = Point
    return Point, lambda n, start=0: make(x=numbers(n, start), y=numbers(n, start) * 2, batch_size=[] if n is None else [n])


def numbers(n: int | None, start: int) -> torch.Tensor:
    return torch.tensor(start) if n is None else torch.arange(start, start + n)


@every
@kinds
def test_data_of_a_local_class(kind: str, storage: str, tmp_path: Path) -> None:
    cls, data = local(kind)
    buffer, twin = (ReplayBuffer(storage=STORAGES[storage](10), batch_size=4, prefetch=1) for _ in range(2))
    buffer.extend(data(3))
    buffer.add(data(None, 3))
    buffer.extend([data(None, 4), data(None, 5)])
    buffer[0] = data(None, 9)
    for found in (buffer.sample(), buffer[0], buffer[2:]):
        assert isinstance(found, cls)
        assert torch.equal(found.y, found.x * 2)
    assert buffer[:].x.tolist() == [9, 1, 2, 3, 4, 5]
    twin.add(data(None))
    buffer.dumps(tmp_path / "saved")
    for load in (lambda: twin.loads(tmp_path / "saved"), lambda: twin.load_state_dict(buffer.state_dict())):
        twin.empty()
        twin.add(data(None))
        load()
        assert isinstance(twin[:], cls)
        assert twin[:].x.tolist() == [9, 1, 2, 3, 4, 5]
        assert isinstance(twin.sample(), cls)
    fresh = ReplayBuffer(storage=STORAGES[storage](10))
    with pytest.raises(SpecMismatch, match=f"{cls.__name__}, a {kind}, and a state loads no classes; write one item of it"):
        fresh.loads(tmp_path / "saved")


@kinds
def test_copies(kind: str) -> None:
    cls, data = local(kind)
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(data(3))
    for twin in (copy.deepcopy(buffer), pickle.loads(pickle.dumps(buffer))):
        twin.extend(data(2, 3))
        assert isinstance(twin[:], cls)
        assert twin[:].x.tolist() == [0, 1, 2, 3, 4]
    assert buffer[:].x.tolist() == [0, 1, 2]
    listed = ReplayBuffer(storage=ListStorage(10))
    listed.extend(data(3))
    twin = pickle.loads(cloudpickle.dumps(listed))
    assert isinstance(twin[:], cls)
    assert twin[:].x.tolist() == [0, 1, 2]


def _write(buffer: ReplayBuffer, cls: Any, data: Any) -> None:
    held = len(buffer)
    buffer.extend(data(held, held))
    assert isinstance(buffer[:], cls)
    assert isinstance(buffer.sample(3), cls)


@pytest.mark.processes
@kinds
@pytest.mark.parametrize("storage", TENSORS)
@pytest.mark.parametrize("mapped", [True, False])
def test_a_fork_has_the_class(mapped: bool, storage: str, kind: str) -> None:
    """Also where the schema comes to it after the fork, with a copy of the class."""
    cls, data = local(kind)
    buffer = ReplayBuffer(storage=TENSORS[storage](10), shared=True)
    twin = pickle.loads(pickle.dumps(buffer))
    buffer.extend(data(3))
    context: Any = multiprocessing.get_context("fork")
    child = context.Process(target=_write, args=(buffer if mapped else twin, cls, data))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert buffer[:].x.tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(buffer[:], cls)


@pytest.mark.parametrize("kind", ["tensorclass", "named tuple"])
def test_workers_write_it_and_the_learner_reads_it(kind: str) -> None:
    cls, _ = local(kind)

    def as_class(batch: TensorDict) -> Any:
        obs, reward = batch["observation"], batch["next", "reward"]
        return cls(x=obs, y=reward, batch_size=batch.batch_size) if kind == "tensorclass" else cls(x=obs, y=reward)

    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    options: Any = {"frames_per_batch": 20, "total_frames": 40, "postproc": as_class, "replay_buffer": buffer}
    with MultiaSyncDataCollector(["CartPole-v1"] * 2, **options) as collector:
        list(collector)
        assert "written by the workers" in repr(collector)
    assert isinstance(buffer[:], cls)
    assert buffer.sample(7).x.shape == (7, 4)


SCRIPT = """
import multiprocessing, sys, torch
from tensordict import tensorclass
from reap.data import LazyTensorStorage, ReplayBuffer

@tensorclass
class Point:
    x: torch.Tensor

def write(buffer):
    assert isinstance(buffer[:], Point), type(buffer[:])
    buffer.extend(Point(x=torch.arange(2), batch_size=[2]))
    assert isinstance(buffer.sample(2), Point)

if __name__ == "__main__":
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), shared=True)
    buffer.extend(Point(x=torch.arange(3), batch_size=[3]))
    child = multiprocessing.get_context("spawn").Process(target=write, args=(buffer,))
    child.start()
    child.join()
    assert child.exitcode == 0
    print(buffer[:].x.tolist(), isinstance(buffer[:], Point))
"""


@pytest.mark.processes
def test_a_class_of_the_script_in_a_process_that_it_spawned(tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout == "[0, 1, 2, 0, 1] True\n", done.stderr


def test_the_items_of_greatest_value() -> None:
    cls, data = local("tensorclass")
    best = ReplayBuffer(storage=LazyTensorStorage(2), writer=TensorDictMaxValueWriter("x"))
    best.extend(data(5))
    assert isinstance(best[:], cls)
    assert sorted(best[:].x.tolist()) == [3, 4]


def test_another_class_is_refused() -> None:
    _, data = local("tensorclass")
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(data(3))

    @tensorclass
    class Other:
        x: torch.Tensor
        y: torch.Tensor

    make: Any = Other
    with pytest.raises(SpecMismatch, match="expected a Point, as it holds, got a Other"):
        buffer.extend(make(x=torch.zeros(2), y=torch.zeros(2), batch_size=[2]))
