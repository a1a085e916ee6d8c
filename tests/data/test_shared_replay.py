"""A buffer that several processes write and sample: nothing torn, nothing lost, and usable when a writer is killed."""

from __future__ import annotations

import pickle
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage
from reap.errors import OptionError, SpecMismatch
from tests.machine import impatient
from tests.warm import Program
from tests.warned import on_warning

WRITER = """
import pickle, sys
import torch
from tensordict import TensorDict
torch.set_num_threads(1)
buffer = pickle.loads(bytes.fromhex(sys.argv[1]))
first, count, columns, *rows = map(int, sys.argv[2].split())
for number in range(first, first + count):
    shape = [*rows, columns]
    data = TensorDict({"a": torch.full((*shape, 40), number), "b": torch.full((*shape, 40), number)}, shape)
    buffer.extend(data)
print("done", flush=True)
"""

STOPPED_WRITER = """
import os, pickle, signal, sys, time
import torch
from tensordict import TensorDict
buffer = pickle.loads(bytes.fromhex(sys.argv[1]))
real, continued = buffer.storage._copy, []
signal.signal(signal.SIGCONT, lambda *_: continued.append(1))
def copy(*arguments):
    print("claimed", flush=True)
    while not continued:  # not pause(): the signal may have come before it
        time.sleep(0.01)
    real(*arguments)
buffer.storage._copy = copy
buffer.extend(TensorDict({"a": torch.full((30, 40), -1), "b": torch.full((30, 40), -1)}, [30]))
"""


def write(buffer: ReplayBuffer, *numbers: int, code: str = WRITER) -> Program:
    return Program(code, pickle.dumps(buffer).hex(), " ".join(map(str, numbers)))


def done(program: Program) -> None:
    assert program.stdout.readline() == "done\n", program.stderr.read()
    assert program.wait(100) == 0


def block(number: int, *shape: int) -> TensorDict:
    return TensorDict({"a": torch.full((*shape, 40), number), "b": torch.full((*shape, 40), number)}, shape)


def check(sample: TensorDict) -> set[int]:
    """Every frame says one number in all places; the numbers."""
    both = torch.cat([sample["a"], sample["b"]], -1)
    assert (both == both[..., :1]).all()
    return set(both[..., 0].flatten().tolist())


@pytest.fixture(params=["ram", "memmap"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def made(size: int, ndim: int = 1) -> ReplayBuffer:
        if request.param == "ram":
            return ReplayBuffer(storage=LazyTensorStorage(size, ndim=ndim), shared=True)
        return ReplayBuffer(storage=LazyMemmapStorage(size, ndim=ndim, scratch_dir=tmp_path / "frames"), shared=True)

    return made


@pytest.mark.processes
@pytest.mark.parametrize("ndim", [1, 2])
def test_another_process_makes_the_first_write(make: Any, ndim: int) -> None:
    buffer = make(1000, ndim)
    with write(buffer, 7, 1, 30, *[2] * (ndim - 1)) as program:
        done(program)
    assert len(buffer) == buffer.write_count == 30 * 2 ** (ndim - 1)
    assert check(buffer.sample(50)) == {7}
    buffer.extend(block(8, *[2] * (ndim - 1), 10))
    assert check(buffer[:]) == {7, 8}
    with pytest.raises(SpecMismatch, match="'a'"):
        buffer.extend(block(9, *[2] * (ndim - 1), 10).float())


@pytest.mark.processes
def test_several_writers_and_a_reader(make: Any) -> None:
    buffer = make(700)
    buffer.extend(block(0, 10))
    with write(buffer, 1000, 150, 30) as first, write(buffer, 2000, 150, 41) as second:
        seen: set[int] = set()
        while first.returncode is None or second.returncode is None:
            for _ in range(50):
                seen |= check(buffer.sample(64))
            for program in (first, second):
                if buffer.write_count == 10 + 150 * 71:
                    program.wait(100)
    assert buffer.write_count == 10 + 150 * 71
    assert len(buffer) == 700
    assert seen <= {0, *range(1000, 1150), *range(2000, 2150)}
    assert check(buffer[:]) <= {*range(1000, 1150), *range(2000, 2150)}


@pytest.mark.processes
def test_every_frame_is_written_once(make: Any) -> None:
    buffer = make(10_000)
    with write(buffer, 1000, 50, 30) as first, write(buffer, 2000, 50, 41) as second:
        done(first)
        done(second)
    counts = buffer[:]["a"][:, 0].bincount()
    assert counts[1000:1050].tolist() == [30] * 50
    assert counts[2000:2050].tolist() == [41] * 50
    assert len(buffer) == buffer.write_count == 50 * 71


def test_a_writer_that_is_killed_leaves_the_buffer_usable(make: Any) -> None:
    buffer = make(100)
    buffer.extend(block(1, 80))
    with write(buffer, code=STOPPED_WRITER) as program:
        assert program.stdout.readline() == "claimed\n"
        # It is writing columns 80 to 110, the last ten over the oldest.
        assert len(buffer) == 70
        assert check(buffer.sample(500)) == {1}
        program.send_signal(signal.SIGKILL)
        program.wait(100)
    assert len(buffer) == 70
    assert check(buffer.sample(500)) == {1}
    buffer.extend(block(2, 65))
    assert len(buffer) == 70  # columns 75 to 175, of which nobody wrote 80 to 110
    assert check(buffer.sample(500)) == {1, 2}
    buffer.extend(block(3, 10))
    assert len(buffer) == 75
    buffer.extend(block(4, 100))
    assert (len(buffer), check(buffer.sample(500))) == (100, {4})
    assert buffer.write_count == 80 + 65 + 10 + 100


@pytest.mark.parametrize(("end", "written"), [(signal.SIGKILL, set()), (signal.SIGCONT, {-1})])
def test_a_writer_that_is_stopped_is_named_when_the_ring_comes_round(
    make: Any, end: signal.Signals, written: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, 0.05)
    buffer = make(100)
    buffer.extend(block(1, 50))
    warned: list[str] = []
    with write(buffer, code=STOPPED_WRITER) as program:
        assert program.stdout.readline() == "claimed\n"
        program.send_signal(signal.SIGSTOP)
        buffer.extend(block(2, 20))  # up to its columns

        def warn(message: str, kind: type[Warning]) -> None:
            warned.append(message)
            program.send_signal(end)

        with on_warning(warn):
            buffer.extend(block(3, 75))
    assert re.match(rf"waited for \d+ s: process {program.pid} \(.+\), which is stopped .* in a write of 30 columns", warned[0])
    assert check(buffer[:]) == {*written, 2, 3}
    assert len(buffer) == 95 + 5 * len(written)


def test_a_shared_buffer_goes_on_with_what_it_held() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50))
    buffer.extend(block(1, 20))
    assert buffer.share() is buffer
    buffer.share()
    with write(buffer, 5, 1, 10) as program:
        done(program)
    assert buffer[:]["a"][:, 0].tolist() == [1] * 20 + [5] * 10
    assert "in shared memory" in repr(buffer)


def test_a_private_buffer_is_copied() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50), batch_size=4)
    buffer.extend(block(1, 20))
    other = pickle.loads(pickle.dumps(buffer))
    other.extend(block(2, 5))
    assert (len(buffer), len(other), check(other[20:])) == (20, 25, {2})
    assert check(buffer[:]) == {1}


def test_what_cannot_be_shared() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(50))
    buffer.extend(TensorDict({"text": ["a", "b"], "a": torch.zeros(2)}, [2]))
    with pytest.raises(OptionError, match=r"Python objects cannot be shared between processes: \['text'\]"):
        buffer.share()
    with pytest.raises(SpecMismatch, match=r"shared memory cannot hold the Python objects of \['text'\]; leave them out"):
        ReplayBuffer(storage=LazyTensorStorage(50), shared=True).extend(TensorDict({"text": ["a", "b"]}, [2]))
    with pytest.raises(OptionError, match=r"call share\(\) before a buffer of files is sent to another process"):
        pickle.dumps(ReplayBuffer(storage=LazyMemmapStorage(50)))
