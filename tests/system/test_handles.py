"""`Handle`: the same memory in another process, or an error; never another memory."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from reap.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer
from reap.errors import ClosedError
from reap.system.handles import Handle
from tests import warm

GONE = r"a test: the handle refers to memory that no longer exists: process \d+ has ended, or dropped it\. Keep it there"


def test_it_opens_the_same_memory() -> None:
    fd = os.memfd_create("a")
    os.write(fd, b"here")
    handle: Handle = pickle.loads(pickle.dumps(Handle.of(fd)))
    other = handle.opened("a test")
    assert os.pread(other, 10, 0) == b"here"
    os.close(fd)
    os.close(other)


def test_one_whose_descriptor_is_closed_or_is_another_s_is_refused() -> None:
    fd = os.memfd_create("a")
    handle = Handle.of(fd)
    os.close(fd)
    with pytest.raises(ClosedError, match=GONE):
        handle.opened("a test")
    for open_another in (lambda: os.memfd_create("b"), lambda: os.open("/dev/null", os.O_RDWR), lambda: os.open("/", 0)):
        opened = open_another()
        os.dup2(opened, fd)
        with pytest.raises(ClosedError, match=GONE):
            handle.opened("a test")
        os.close(fd)
        if opened != fd:
            os.close(opened)


def test_one_of_a_process_that_has_ended_is_refused() -> None:
    program = "import os; from reap.system.handles import Handle; print(*Handle.of(os.memfd_create('a')))"
    code, said, _ = warm.run(program, timeout=180)
    assert code == 0
    with pytest.raises(ClosedError, match=GONE):
        Handle(*map(int, said.split())).opened("a test")


@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_a_handle_of_a_buffer_in_whose_place_another_came_is_refused(kind: type) -> None:
    def shared() -> ReplayBuffer:
        buffer: ReplayBuffer = ReplayBuffer(storage=kind(10), batch_size=2, shared=True)
        buffer.extend(torch.arange(4))
        return buffer

    first = shared()
    handle = pickle.dumps(first)
    assert len(pickle.loads(handle)) == 4
    del first
    others = [shared() for _ in range(3)]  # one has its descriptors
    with pytest.raises(ClosedError, match="replay buffer: the handle refers to memory that no longer exists"):
        pickle.loads(handle)
    assert [len(other) for other in others] == [4, 4, 4]
