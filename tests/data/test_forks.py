"""Buffers in a process that forks: the child has whole ones that work, whatever other threads were doing."""

from __future__ import annotations

import pickle
from itertools import product

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from reap.data import LazyTensorStorage, ReplayBuffer, SliceSampler
from reap.errors import CallOrderError
from tests import warm
from tests.data.claims import claimed
from tests.pairwise import each_value

SETTING = """
import itertools, os, signal, threading, time, warnings
import torch
from tensordict import TensorDict
from reap.data import LazyTensorStorage, ReplayBuffer, TensorDictPrioritizedReplayBuffer
from reap.data import SamplerWithoutReplacement, SliceSampler
warnings.simplefilter("ignore")  # of Python, about forks of processes with threads
data = TensorDict({"place": torch.arange(40), "episode": torch.arange(40) // 10}, [40])
numbers = itertools.count()

def write(buffer):
    buffer.extend(TensorDict({"place": torch.arange(40), "episode": torch.arange(40) // 10 + 4 * next(numbers)}, [40]))

def in_child(do):
    child = os.fork()
    if not child:
        signal.alarm(100)  # one that hangs is killed
        try:
            do()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
"""

SLICES = "ReplayBuffer(storage=LazyTensorStorage(8_000), sampler=SliceSampler(slice_len=5), batch_size=20, {0})"
PRIORITIES = "TensorDictPrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(8_000), batch_size=20, {0})"


@pytest.mark.processes
def test_a_child_samples_from_a_buffer_with_prefetch() -> None:
    program = """
buffer = ReplayBuffer(storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(), batch_size=10, prefetch=2)
buffer.extend(data)
first = buffer.sample()

def sample():
    places = buffer.sample()["place"]
    assert len(set(places.tolist())) == 10 and not set(places.tolist()) & set(first["place"].tolist())
    buffer.extend(data)
    assert len(buffer) == 80

assert in_child(sample) == 0
rest = [buffer.sample()["place"] for _ in range(3)]
assert sorted(torch.cat([first["place"], *rest]).tolist()) == list(range(40)), "the parent goes on as if nothing had been"
assert len(buffer) == 40
"""
    assert warm.run(SETTING + program, timeout=180) == (0, "", "")


@pytest.mark.processes
@pytest.mark.parametrize("forks", [8, pytest.param(30, marks=pytest.mark.soak)])
@pytest.mark.parametrize(("buffer", "options"), each_value(product([SLICES, PRIORITIES], ["prefetch=2", "shared=True"])))
def test_forks_while_threads_write_and_sample(buffer: str, options: str, forks: int) -> None:
    program = f"""
buffer = {buffer.format(options)}
write(buffer)
ended = threading.Event()

def work(do):
    while not ended.is_set():
        do()

def sample():
    sample = buffer.sample()
    if isinstance(buffer, TensorDictPrioritizedReplayBuffer):
        sample["td_error"] = torch.rand(20)
        buffer.update_tensordict_priority(sample)
    else:
        assert (sample["place"].view(-1, 5).diff() == 1).all()

def use():
    for _ in range(3):
        sample()
        write(buffer)

threads = [threading.Thread(target=work, args=(do,)) for do in (lambda: write(buffer), sample, buffer.sample)]
for thread in threads:
    thread.start()
ends = [in_child(use) for _ in range({forks})]
ended.set()
for thread in threads:
    thread.join()
assert ends == [0] * {forks}, ends
use()
"""
    assert warm.run(SETTING + program, timeout=180) == (0, "", "")


@pytest.mark.processes
def test_a_lock_that_cannot_be_had_is_new_in_the_child() -> None:
    program = """
begun, go_on = threading.Event(), threading.Event()

def wait_in_thread(sample):
    if threading.current_thread() is not threading.main_thread():
        begun.set()
        go_on.wait()
    return sample

buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=10, transform=wait_in_thread)
buffer.extend(data)
thread = threading.Thread(target=buffer.sample)
thread.start()
begun.wait()
assert in_child(buffer.sample) == 0
go_on.set()
thread.join()
buffer.sample()
"""
    assert warm.run(SETTING + program, timeout=180) == (0, "", "")


@pytest.mark.processes
def test_a_transform_may_fork() -> None:
    program = """
def fork(sample):
    assert in_child(lambda: buffer.extend(data)) == 0
    return sample

buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=10, transform=fork, prefetch=1)
buffer.extend(data)
buffer.sample()
buffer.sample()
"""
    assert warm.run(SETTING + program, timeout=180) == (0, "", "")


@pytest.mark.processes
def test_a_child_writes_streams_of_its_own() -> None:
    program = """
buffer = ReplayBuffer(storage=LazyTensorStorage(1_000), sampler=SliceSampler(slice_len=4), batch_size=40, shared=True)
step = lambda first: TensorDict({"place": torch.arange(first, first + 2), "next": {"done": torch.zeros(2, 1, dtype=bool)}}, [2])
buffer.extend(step(0))
assert in_child(lambda: buffer.extend(step(2))) == 0
buffer.extend(step(4))
assert buffer[:]["place"].tolist() == [0, 1, 2, 3, 4, 5]
found = {tuple(places) for _ in range(20) for places in buffer.sample()["place"].view(-1, 4).tolist()}
assert found == {(0, 1, 4, 5)}, "what the child wrote goes on with nothing"
"""
    assert warm.run(SETTING + program, timeout=180) == (0, "", "")


@pytest.mark.processes
def test_a_write_that_was_under_way_is_given_up_in_the_child() -> None:
    program = """
buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=50)
buffer.extend(data)
claim = buffer.storage.ring.claim(10)  # another thread is copying

def use():
    assert buffer.sample()["place"].max() < 40 and len(buffer) == 40
    for _ in range(4):
        buffer.extend(data)
    assert len(buffer) == 100

assert in_child(use) == 0
buffer.storage.ring.publish(claim, 10)
assert len(buffer) == 50
"""
    assert warm.run(SETTING + program, timeout=180) == (0, "", "")


def test_a_copy_of_a_buffer_gives_up_what_is_being_written() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(100), batch_size=50)
    buffer.extend(torch.arange(40))
    claim = claimed(buffer.storage.ring, 10)
    twin = pickle.loads(pickle.dumps(buffer))
    for _ in range(4):
        twin.extend(torch.arange(40))
    assert (len(twin), len(buffer)) == (100, 40)
    buffer.storage.ring.publish(claim, 10)
    assert len(buffer) == 50


def test_slices_of_a_buffer_whose_frames_lie_after_a_write() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=SliceSampler(slice_len=2, traj_key="id"), batch_size=2)
    data = TensorDict({"id": torch.zeros(4, dtype=torch.int64)}, [4])
    buffer.extend(data)
    claim = claimed(buffer.storage.ring, 1)
    buffer.storage.append(data[:3], np.zeros(3, np.int32))
    with pytest.raises(CallOrderError, match="found no frame that belongs to one: .* come after an unfinished write"):
        buffer.sample()
    buffer.storage.ring.publish(claim, 1)
    assert buffer.sample()["id"].tolist() == [0, 0]


@pytest.mark.processes
def test_a_child_leaves_files_that_are_not_shared_alone() -> None:
    program = """
from reap.data import LazyMemmapStorage
from reap.errors import CallOrderError
for shared in (False, True):
    buffer = ReplayBuffer(storage=LazyMemmapStorage(40), batch_size=10, shared=shared)
    buffer.extend(data)

    def write():
        assert len(buffer.sample()) == 10
        for call in (lambda: buffer.extend(data[:5]), lambda: buffer.__setitem__(0, data[1])):
            try:
                call()
            except CallOrderError as error:
                assert not shared and "call share() before the fork" in str(error)
            else:
                assert shared

    assert in_child(write) == 0
    assert buffer[:]["place"][:6].tolist() == ([1, 1, 2, 3, 4, 5] if shared else [0, 1, 2, 3, 4, 5])
"""
    assert warm.run(SETTING + program, timeout=180) == (0, "", "")
